"""What classes of methods declare."""

from typing import ClassVar

import pytest

from graft.federation.plug import Plug, plugged
from graft.methods import METHODS, PLUGS
from graft.methods.fedavg import FedAvg
from graft.methods.fedomd import FedOMD


class OtherLoss(FedAvg):
    def loss(self, fleet, weights, received):
        return 2 * super().loss(fleet, weights, received)


class OtherAggregation(FedAvg):
    def aggregate(self, server, clients, replies):
        """Keeps the model."""


class OtherRound(FedAvg):
    def round(self, server, clients):
        """Asks nobody."""


class OtherAggregationThatAverages(FedAvg):
    averages: ClassVar = ("train/model",)

    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)


class TakesTheFirst(OtherAggregation, OtherAggregationThatAverages):
    pass


class Aggregation:
    def aggregate(self, server, clients, replies):
        """Keeps the model."""


class MixedIn(Aggregation, FedAvg):
    pass


class MixedInBehind(FedAvg, Aggregation):
    pass


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (OtherLoss, ("train/model",)),
        (OtherAggregation, ()),
        (OtherRound, ()),
        (OtherAggregationThatAverages, ("train/model",)),
        (TakesTheFirst, ()),
        (MixedIn, ()),
        (MixedInBehind, ("train/model",)),
        (Plug, ()),
    ],
)
def test_averages_are_those_of_the_class_whose_aggregation_runs(kind, declared):
    assert kind.averages == declared


@pytest.mark.parametrize("plug", sorted(PLUGS))
def test_a_plug_may_look_at_every_model_whatever_its_host_averages(plug):
    assert FedOMD.averages
    assert plugged(FedOMD, PLUGS[plug]).averages == ()


FEDOMD = ("means/mean", "moments/moments", "match/model", "train/model")
AVERAGES = {
    **dict.fromkeys(
        ("ditto", "fedavg", "fedgcn", "fedmlp", "fedprox", "fedsage_plus", "moon", "pfedme"), ("train/model",)
    ),
    **dict.fromkeys(("fedadagrad", "fedadam", "fedavgm", "feddyn", "fednova", "fedyogi"), ("train/model",)),
    **dict.fromkeys(("adafgl", "fgssl"), ("train/model",)),
    **dict.fromkeys(("feddc", "scaffold"), ("train/model", "train/change")),
    **dict.fromkeys(("fedgkc", "fedgkc_paper"), ("train/copilot",)),
    **dict.fromkeys(("fedomd", "fedomd_paper"), FEDOMD),
    "fedlit": ("train/common",),
    "fml": ("train/meme",),
    **dict.fromkeys(("fedbn", "fedrep", "lg_fedavg"), ("train/shared",)),
    "trust": ("train/proxy",),
}


def test_methods_whose_server_averages_say_so_and_no_others():
    assert {name: kind.averages for name, kind in METHODS.items() if kind.averages} == AVERAGES
    assert {"fedtad", "fedgta", "fedproto", "fedkd"} < METHODS.keys() - AVERAGES.keys()


def test_averages_that_a_server_keeps_are_those_that_it_takes_and_what_is_distilled():
    kept = {name: kind.averaged for name, kind in METHODS.items() if kind.averaged}
    others = {
        "fedgkc": "copilot",
        "fedgkc_paper": "copilot",
        "fml": "meme",
        "trust": "proxy",
    }
    others |= dict.fromkeys(("fedbn", "fedrep", "lg_fedavg"), "shared")
    stops = {"adafgl"}  # in its second step nothing is averaged any more, and a server with momentum would go on
    distilled = {"fedtad", "fedtad_paper", "fedtad_released"}
    models = dict.fromkeys((AVERAGES.keys() | distilled) - others.keys() - stops, "model")
    assert kept == {**models, **others}
