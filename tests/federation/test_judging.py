"""Steps judge models by validation nodes, or by training nodes that no client trains on."""

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch

import graft
from graft.data.splits import HELD_OUT, hold_out
from graft.errors import InputError
from graft.experiments.build import build_federation, build_setup
from graft.experiments.experiment import make_experiment
from graft.experiments.given import Given
from graft.experiments.make_method import make_method
from graft.experiments.run import run_experiment
from graft.federation.method import judging_settings
from graft.methods import METHODS
from graft.testing.labels import judging_method, with_wrong_labels

DATA = {"dataset": "synthetic:nodes=120,degree=6,classes=3,features=8", "clients": 3, "width": 8, "rounds": 2}
DATA |= {"optimizer": "adam", "learning_rate": 0.01}  # gets going within these rounds


def fleet_of(**values):
    experiment = make_experiment({**DATA, "method": "fedavg", **values})
    federation = build_federation(experiment)
    setup = build_setup(experiment, make_method("fedavg", {}), federation)
    return setup.fleet(setup.clients), federation


def test_a_fifth_of_the_training_nodes_is_held_out_and_nothing_else():
    plain, _ = fleet_of()
    fleet, _ = fleet_of(judge_on="training")
    train, held = plain.labels.masks[:, 0], fleet.labels.judged
    assert (held.sum(1) == train.sum(1) // HELD_OUT).all()
    assert (held.sum(1) > 0).all()
    assert not (held & ~train).any()
    assert (fleet.labels.masks[:, 0] == train & ~held).all()
    assert (fleet.labels.masks[:, 1:] == plain.labels.masks[:, 1:]).all()
    assert (fleet.labels.class_counts.sum(1) == (train & ~held).sum(1)).all()
    assert (plain.labels.judged == plain.labels.masks[:, 1]).all()


def test_what_is_held_out_depends_on_seed_and_client_alone():
    fleet, federation = fleet_of(judge_on="training")
    alone = hold_out(federation.clients[2], 2, 0)[1]
    assert (fleet.labels.judged[2, : len(alone)].numpy() == alone).all()
    assert (fleet.select([2]).labels.judged[0] == fleet.labels.judged[2]).all()
    assert (hold_out(federation.clients[2], 2, 1)[1] != alone).any()


def test_judged_are_the_nodes_that_were_held_out():
    fleet, _ = fleet_of(judge_on="training")
    right = torch.nn.functional.one_hot(fleet.labels.classes, 3).float()
    assert (fleet.count_validated(right) == fleet.labels.judged.sum(1)).all()
    wrong_elsewhere = torch.where(fleet.labels.judged.unsqueeze(2), right, 1 - right)
    assert (fleet.count_validated(wrong_elsewhere) == fleet.labels.judged.sum(1)).all()
    wrong_there = torch.where(fleet.labels.judged.unsqueeze(2), 1 - right, right)
    assert (fleet.count_validated(wrong_there) == 0).all()


def test_batches_judge_by_their_share_of_these_nodes():
    fleet, _ = fleet_of(judge_on="training", batches=2)
    batches = fleet.cut_batches()
    assert (sum(batch.labels.judged.sum(1) for batch in batches) == fleet.labels.judged.sum(1)).all()
    assert (sum(batch.labels.masks[:, 0].sum(1) for batch in batches) == fleet.labels.masks[:, 0].sum(1)).all()


def test_few_training_nodes_are_all_trained_on():
    graph = build_federation(make_experiment({**DATA, "method": "fedavg"})).clients[0]
    few = replace(graph, train=np.arange(graph.nodes) < HELD_OUT - 1)
    kept, held = hold_out(few, 0, 0)
    assert not held.any()
    assert (kept.train == few.train).all()


@pytest.mark.parametrize("name", ["fedgkc", "dfed_sst", "fedavg"])
def test_every_engine_holds_out_the_same(name):
    here = graft.run(name, **DATA, judge_on="training")
    there = graft.run(name, **DATA, judge_on="training", engine="loopback")
    assert there.accuracy["test"] == pytest.approx(here.accuracy["test"], abs=1e-6)
    assert [row["loss"] for row in there.rounds] == pytest.approx([row["loss"] for row in here.rounds], rel=1e-4)


def test_graphs_in_which_nobody_knows_the_nodes_are_refused():
    for values in ({"inductive": True}, {"label_sparsity": 0.2}):
        with pytest.raises(InputError, match="judge_on is training"):
            graft.run("fedgkc", **DATA, judge_on="training", **values)
    graft.run("fedgkc", **DATA, judge_on="training", label_sparsity=0.2, evaluate_on="perturbed")


# What methods declare. That nothing else reads validation labels is a claim of the contract.


@cache
def federation():
    return build_federation(make_experiment({**DATA, "method": "fedavg"}))


def learned(method, *, wrong=False, **more):
    """The losses of all rounds and what was predicted on test nodes, perhaps with wrong labels at validation nodes."""
    data = federation()
    if wrong:
        parts = [with_wrong_labels(graph, "validation") for graph in data.clients]
        data = replace(data, graph=with_wrong_labels(data.graph, "validation"), clients=parts)
    name = METHODS.label_of(type(method))
    experiment = make_experiment({**DATA, "rounds": 4, "method": name, "settings": vars(method), **more})
    rounds = run_experiment(experiment, given=Given(federation=data)).rounds
    return [(row["loss"], row["per_client"]["test"]) for row in rounds]


CASES = [(name, setting) for name in sorted(METHODS) for setting in judging_settings(METHODS[name])]
CASES.remove(("fedgkc_alone", "knowledge_from"))  # where nothing travels, knowledge is only put on record
# With which the choice among models matters within a few rounds among three clients.
OTHERS = {"pens": {"chosen": 1, "first_phase": 1.0}, "dfed_sst_paper": {"search": 4}, "dis_pfl": {"density": 0.9}}


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_every_declared_setting_does_read_validation_labels(name, setting):
    kind = METHODS[name]
    blind = {field: values[0] for field, values in judging_settings(kind).items() if field != setting}
    judging = judging_method(kind(**blind, **OTHERS.get(name, {})), [setting])
    assert getattr(judging, setting) not in judging_settings(kind)[setting]
    assert learned(judging, wrong=True) != learned(judging)


@pytest.mark.parametrize(("name", "setting"), [case for case in CASES if case[0] in ("fedgkc", "pens", "ditto")])
def test_where_models_are_judged_by_training_nodes_these_are_read_instead(name, setting):
    judging = judging_method(METHODS[name](**OTHERS.get(name, {})), [setting])
    assert learned(judging, wrong=True, judge_on="training") == learned(judging, judge_on="training")


def test_declared_settings_are_fields_of_the_method():
    assert {"fedgkc", "ditto", "dfed_sst", "pens", "trust"} <= {name for name, _ in CASES}
    for name, setting in CASES:
        assert setting in {field.name for field in fields(METHODS[name])}, (name, setting)


def test_declarations_of_base_classes_count():
    assert judging_settings(METHODS["fedgkc_paper"]) == judging_settings(METHODS["fedgkc"])

    class MoreOfIt(METHODS["fedgkc"]):
        judges_unless = {"kama": (True,)}  # noqa: RUF012

    assert set(judging_settings(MoreOfIt)) == {*judging_settings(METHODS["fedgkc"]), "kama"}
