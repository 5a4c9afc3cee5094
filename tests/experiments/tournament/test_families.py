"""Who competes: the same search for all, rows that are what they are called, and who judges by validation labels."""

from dataclasses import asdict, replace
from functools import cache

import numpy as np
import pytest

from graft.data import default_root
from graft.errors import InputError
from graft.experiments.build import build_federation
from graft.experiments.experiment import make_experiment
from graft.experiments.given import Given
from graft.experiments.make_method import make_method
from graft.experiments.run import run_experiment
from graft.experiments.tournament.families import BLIND, FAMILIES, RATES, TWITCH, judges
from graft.experiments.tournament.plan import plan_events
from graft.experiments.tuning.tune import open_trials
from graft.methods import METHODS
from tests.experiments.tournament.conftest import PLAYED, SYNTHETIC, TOY

OWN = [name for name in FAMILIES if FAMILIES[name] not in (TOY, PLAYED)]
SHARED = ("optimizer", "optimizer_state", "learning_rate", "weight_decay", "dropout", "epochs")


@pytest.mark.parametrize("name", OWN)
def test_all_methods_of_a_family_search_the_same_beside_their_own_fields(name):
    events = plan_events([name], ["cora"])
    spaces = [candidate.space for event in events for candidate in event.design.candidates()]
    shared = [field for field in SHARED if field not in FAMILIES[name].keep]
    assert spaces
    assert len({repr([space[field] for field in shared]) for space in spaces}) == 1
    assert all(space["learning_rate"] == RATES for space in spaces)
    assert not any(field in space for space in spaces for field in FAMILIES[name].keep)


@pytest.mark.parametrize("name", OWN)
def test_all_events_of_a_family_have_as_many_trials_and_the_same_seeds(name):
    named = [dataset for dataset in FAMILIES[name].datasets if dataset != TWITCH]  # whose files may not be here
    for event in plan_events([name], named, trials=7, seeds=(3, 4), final_seeds=2):
        assert (event.design.trials, list(event.design.seeds), list(event.design.final_seeds)) == (7, [3, 4], [5, 6])


def test_only_references_search_their_architecture():
    (event,) = plan_events(["general"], ["cora"], ["local", "fedavg", "centralised"])
    with open_trials(event.design) as trials:
        spaces = {label: subject.space for label, subject in trials.subjects.items()}
    assert {"models", "width"} <= set(spaces["centralised"])
    assert set(spaces["local"]) == set(spaces["fedavg"]) == set(SHARED)


def test_variant_keeps_what_makes_it_one():
    (event,) = plan_events(["played"], ["toy-a"], ["all", "train"])
    everything, training = event.design.candidates()
    assert everything.variant["settings"] == {"kd_nodes": "all"}
    assert "kd_nodes" not in everything.space
    assert "kd_nodes" in training.space
    assert (everything.label, training.label) == ("all", "train")


def test_leading_rows_are_rows():
    for family in FAMILIES.values():
        assert set(family.leading) <= {entry.label for entry in family.entrants}


@pytest.mark.skipif(not list(default_root().glob("Twitch/*.npz")), reason="the graphs of Twitch are not here")
def test_countries_are_clients_of_their_own():
    (event,) = plan_events(["general"], ["twitch"], ["fedavg"], clients=10)
    values = event.design.candidates()[0].variant
    assert len(values["graphs"]) == 5
    assert "clients" not in values
    assert values["metric"].startswith("auroc")


def test_what_does_not_take_part_is_refused():
    with pytest.raises(InputError, match=r"no family 'generals' \(did you mean 'general'"):
        plan_events(["generals"])
    with pytest.raises(InputError, match="no dataset 'mars'"):
        plan_events(["toy"], ["mars"])
    with pytest.raises(InputError, match="no method 'dpsgd'"):
        plan_events(["toy"], methods=["dpsgd"])


# Who reads validation labels.


def described(name, settings, **more):
    values = {"method": name, "settings": settings, "dataset": SYNTHETIC, "clients": 3, "width": 8, "rounds": 4}
    return make_experiment({**values, **more})


def said_to_judge(name, settings, **more):
    return judges(asdict(replace(described(name, {}, **more), settings=vars(make_method(name, settings)))))


@cache
def federation():
    return build_federation(described("fedavg", {}))


def wrong(graph):
    """The graph with wrong labels at its validation nodes."""
    return replace(graph, y=np.where(graph.validation, (graph.y + 1) % graph.classes, graph.y))


def reads_validation(name, settings, **more):
    """Whether wrong labels of validation nodes change what a method learns, or what it predicts on test nodes."""
    data = federation()
    trapped = replace(data, graph=wrong(data.graph), clients=[wrong(graph) for graph in data.clients])
    before, after = (
        run_experiment(described(name, settings, **more), given=Given(federation=entry)).rounds
        for entry in (data, trapped)
    )
    return [(row["loss"], row["per_client"]["test"]) for row in before] != [
        (row["loss"], row["per_client"]["test"]) for row in after
    ]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_that_are_said_to_judge_by_validation_labels_are_all_that_do(name):
    assert reads_validation(name, {}) <= said_to_judge(name, {})


@pytest.mark.parametrize("name", [name for name in BLIND if name in METHODS])
def test_what_is_said_to_be_blind_is(name):
    fields = vars(make_method(name, {}))
    blind = {field: values[0] for field, values in BLIND[name].items() if field in fields}
    assert not said_to_judge(name, blind)
    assert not reads_validation(name, blind)


@pytest.mark.parametrize("name", [name for name in BLIND if name in METHODS])
def test_nobody_reads_validation_labels_where_training_nodes_are_judged(name):
    fields = vars(make_method(name, {}))
    judging = {field: value for field, value in {"choose": True, "answer": "best"}.items() if field in fields}
    assert not reads_validation(name, judging, judge_on="training")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fml", {"answer": "best"}),
        ("fedgkc", {"gate": True}),
        ("dfed_sst", {"search": 4}),
        *((name, {"search": 4}) for name in ("dfedavgm", "dpsgd", "feddual", "gossip", "osgp", "pens")),
        ("dis_pfl", {"search": 4, "density": 0.9}),
        ("pens", {"judge": "val", "chosen": 1, "first_phase": 1.0}),
    ],
)
def test_what_judges_does_change_with_validation_labels(name, settings):
    assert reads_validation(name, settings)
    assert said_to_judge(name, settings)
    assert not said_to_judge(name, settings, judge_on="training")
    assert not reads_validation(name, settings, judge_on="training")
