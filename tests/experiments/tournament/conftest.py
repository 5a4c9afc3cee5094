"""A small tournament: two families on generated graphs."""

import pytest

from graft.experiments.studies.study import Variant
from graft.experiments.tournament.families import DATA, FAMILIES, Family, entrant
from graft.experiments.tournament.plan import plan_events

SYNTHETIC = "synthetic:nodes=90,degree=6,classes=3,features=8"
TOY = Family(
    meaning="Toys",
    entrants=[entrant("local"), entrant("fedavg"), entrant("fedgkc")],
    leading=("fedgkc",),
    datasets=("toy-a", "toy-b"),
    experiment={"width": 8},
    note="They are small.",
)
PLAYED = Family(
    meaning="Other toys",
    entrants=[
        entrant("all", Variant("fml", {"kd_nodes": "all"}), keep=("kd_nodes",)),
        entrant("train", Variant("fml")),
        entrant("centralised", Variant("centralised", changes={"models": "gcn"})),
    ],
    leading=(),
    datasets=("toy-a",),
    experiment={"width": 8, "models": ["gcn", "mlp"]},
    keep=("epochs",),
)


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """Has the toys among the families and the data."""
    for name, extra in (("toy-a", ""), ("toy-b", ",homophily=0.3")):
        monkeypatch.setitem(DATA, name, {"dataset": SYNTHETIC + extra})
    for name, family in (("toy", TOY), ("played", PLAYED)):
        monkeypatch.setitem(FAMILIES, name, family)


@pytest.fixture
def events():
    """Returns the events of the first family, with few trials."""
    return small_events()


def small_events(**values):
    own = {"families": ["toy"], "trials": 4, "seeds": (0,), "final_seeds": 2, "clients": 3, "rounds": 3}
    return plan_events(**{**own, **values})
