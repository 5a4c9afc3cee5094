"""Trials are scored on validation nodes, and the labels of test nodes are not there to be read."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import graft
from graft.errors import InputError
from graft.experiments.build import build_federation
from graft.experiments.experiment import make_experiment
from graft.experiments.given import Given
from graft.experiments.run import run_experiment
from graft.experiments.tuning.trial import (
    HiddenTests,
    Pruned,
    TrialOrder,
    ValidationWatch,
    run_trial,
    without_test_labels,
)
from graft.methods import METHODS

DATA = "synthetic:nodes=90,degree=6,classes=3,features=8"


def experiment(method="fedavg", **values):
    return make_experiment({"method": method, "dataset": DATA, "clients": 3, "width": 8, "rounds": 2, **values})


@cache
def federation():
    return build_federation(experiment())


def never(rounds, score):  # noqa: ARG001
    return False


@pytest.mark.parametrize(
    "values",
    [{}, {"inductive": True}, {"split": "10/20/30"}, {"edge_noise": 0.2, "feature_sparsity": 0.1}],
    ids=["plain", "inductive", "unused nodes", "perturbed"],
)
def test_hidden_federation_has_labels_of_training_and_validation_nodes_alone(values):
    data = build_federation(experiment(**values))
    hidden = without_test_labels(data)
    pairs = [(data.graph, hidden.graph), *zip(data.clients, hidden.clients, strict=True)]
    if data.clean is not None:
        pairs += [(data.clean.graph, hidden.clean.graph), *zip(data.clean.clients, hidden.clean.clients, strict=True)]
    for before, after in pairs:
        shown = before.train | before.validation
        assert not after.test.any()
        assert (after.y[~shown] == -1).all()
        assert (after.y[shown] == before.y[shown]).all()
        assert (after.train == before.train).all()
        assert (after.validation == before.validation).all()
        assert after.edges is before.edges
        assert after.x is before.x
    assert (data.clean or data).graph.test.any()  # there was something to hide
    assert all("labels" not in row for row in hidden.card["per_client"])


@pytest.mark.parametrize("name", sorted(METHODS))
def test_hidden_test_labels_change_nothing_that_a_method_does(name):
    described = experiment(name)
    before, after = (
        run_experiment(described, given=Given(federation=data))
        for data in (federation(), without_test_labels(federation()))
    )
    for with_tests, without in zip(before.rounds, after.rounds, strict=True):
        assert without["loss"] == with_tests["loss"]
        assert without["validation"] == with_tests["validation"]
        assert without["per_client"]["validation"] == with_tests["per_client"]["validation"]
        assert without["test"] is None
        assert with_tests["test"] is not None


@pytest.mark.parametrize("metric", ["macro_f1", "auroc", "log_loss"])
def test_other_metrics_need_no_test_nodes_either(metric):
    order = TrialOrder("fedavg", 0, {"dataset": DATA, "clients": 3, "width": 8, "rounds": 2, "metric": metric}, (0,))
    outcome = run_trial(order, HiddenTests(), never)
    assert (outcome.state, outcome.reason) == ("complete", "")
    result = graft.run("fedgkc", DATA, clients=3, width=8, rounds=2, metric=metric, seed=0)
    assert outcome.validation == result.metrics[metric]["validation"]


def trapped(kind):
    """The data with wrong labels at all nodes of a mask."""
    graph = federation().graph
    mask = getattr(graph, kind)
    return replace(graph, y=np.where(mask, (graph.y + 1) % graph.classes, graph.y))


def tuned_on(graph, method):
    # The split is that of the graph itself, for labels decide about any other.
    return graft.tune(
        method,
        graph,
        split="own",
        clients=3,
        width=8,
        rounds=3,
        trials=4,
        seeds=1,
        final_seeds=1,
        partition="random",
    )


every_kind_of_method = pytest.mark.parametrize("method", ["fedprox", "centralised", "local"])


@every_kind_of_method
def test_trap_in_the_test_labels_changes_no_trial_and_is_met_at_the_end(method):
    clean, trap = (tuned_on(graph, method) for graph in (federation().graph, trapped("test")))
    assert histories(clean) == histories(trap)
    assert clean.params() == trap.params()
    assert clean.summary["methods"][method]["test"] != trap.summary["methods"][method]["test"]


@every_kind_of_method
def test_trap_in_the_validation_labels_changes_the_trials(method):
    assert histories(tuned_on(federation().graph, method)) != histories(tuned_on(trapped("validation"), method))


def histories(tuning):
    return [
        [(row["trial"], row["state"], row["validation"], row["params"]) for row in entry["history"]]
        for entry in tuning.summary["methods"].values()
    ]


def test_score_is_the_mean_over_seeds_of_the_best_round():
    values = {"method": "fedavg", "dataset": DATA, "clients": 3, "width": 8, "rounds": 4}
    outcome = run_trial(TrialOrder("fedavg", 0, values, (0, 5)), HiddenTests(), never)
    best = [max(record["validation"] for record in graft.run(**values, seed=seed).rounds) for seed in (0, 5)]
    assert outcome.validation == pytest.approx(sum(best) / 2, abs=1e-12)
    assert (outcome.state, outcome.rounds) == ("complete", 8)


def test_global_score_is_that_of_the_global_model():
    values = {"method": "fedavg", "dataset": DATA, "clients": 3, "width": 8, "rounds": 3, "score": "global"}
    outcome = run_trial(TrialOrder("fedavg", 0, values, (0,)), HiddenTests(), never)
    rounds = graft.run(**values).rounds
    assert outcome.validation == max(record["validation_global"] for record in rounds)
    assert outcome.validation != max(record["validation"] for record in rounds)


def test_trial_ends_in_the_round_in_which_it_is_pruned():
    values = {"method": "fedavg", "dataset": DATA, "clients": 3, "width": 8, "rounds": 6}
    heard = []

    def after_the_first_seed(rounds, score):
        heard.append((rounds, score))
        return rounds == 8  # the second round of the second seed

    outcome = run_trial(TrialOrder("fedavg", 3, values, (0, 1)), HiddenTests(), after_the_first_seed)
    assert (outcome.state, outcome.rounds) == ("pruned", 8)
    assert [rounds for rounds, _ in heard] == [1, 2, 3, 4, 5, 7, 8]
    assert outcome.validation == heard[-1][1]


def test_watch_keeps_the_best_score_and_looks_away_from_rounds_without_one():
    watch = ValidationWatch(experiment(rounds=40), [0.5], lambda _, score: score < 0.5)
    for number, value in ((1, 0.6), (2, 0.9), (3, None), (4, 0.7)):
        watch.on_round({"round": number, "validation": value})
    assert watch.best == 0.9
    with pytest.raises(Pruned):
        ValidationWatch(experiment(rounds=40), [0.1], lambda _, score: score < 0.5).on_round(
            {"round": 2, "validation": 0.8}
        )


@pytest.mark.parametrize(
    ("values", "reason", "bad_input"),
    [
        ({"optimizer": "sgd", "learning_rate": 1e30}, "finite", False),
        ({"dataset": "nowhere.npz"}, "nowhere", True),
    ],
    ids=["diverges", "no data"],
)
def test_trial_that_fails_says_why(values, reason, bad_input):
    plain = {"method": "fedavg", "dataset": DATA, "clients": 3, "width": 8, "rounds": 3}
    outcome = run_trial(TrialOrder("fedavg", 1, {**plain, **values}, (0,)), HiddenTests(), never)
    assert outcome.state == "failed"
    assert outcome.validation is None
    assert reason in outcome.reason
    assert outcome.bad_input == bad_input


def test_data_without_validation_nodes_cannot_be_tuned_on():
    graph = federation().graph
    unvalidated = replace(graph, validation=np.zeros(graph.nodes, bool))
    with pytest.raises(InputError, match="No client has validation nodes"):
        tuned_on(unvalidated, "fedprox")


def test_data_are_built_once_a_seed(monkeypatch):
    built = []
    original = build_federation
    monkeypatch.setattr(
        "graft.experiments.many_runs.build_federation",
        lambda described, graph: built.append(described.seed) or original(described, graph),
    )
    data = HiddenTests()
    for number in range(3):
        values = {"method": "fedavg", "dataset": DATA, "clients": 3, "width": 8, "rounds": 1, "learning_rate": 0.1}
        assert run_trial(TrialOrder("fedavg", number, values, (0, 1)), data, never).state == "complete"
    assert built == [0, 1]


def test_data_of_another_tuning_are_let_go(monkeypatch):
    built = []
    original = build_federation
    monkeypatch.setattr(
        "graft.experiments.many_runs.build_federation",
        lambda described, graph: built.append(described.dataset) or original(described, graph),
    )
    data, other = HiddenTests(), f"{DATA},homophily=0.3"
    for source in (DATA, DATA, other, DATA):
        data.federation(experiment(dataset=source))
    assert built == [DATA, other, DATA]
