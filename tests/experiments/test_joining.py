"""What a client gives to the others: the federation without it, and what that changes."""

from dataclasses import replace

import numpy as np
import pytest

from graft.data.federation import build
from graft.data.perturbations import Perturbation
from graft.data.synthetic import generate
from graft.errors import InputError, RunError
from graft.experiments.experiment import make_experiment
from graft.experiments.given import Given
from graft.experiments.joining import leave_out, models_of, without
from graft.experiments.run import run_experiment
from graft.experiments.verdicts import UNCLEAR, Verdict, read_verdicts, write_verdicts

NODES = 90
SETTINGS = {"method": "fedavg", "dataset": f"synthetic:nodes={NODES}", "clients": 3, "width": 8, "rounds": 3}


def federation_of(**settings):
    graph = generate(nodes=NODES, degree=4, classes=3, features=6)
    return build(graph, 3, "random", **settings)


@pytest.fixture(scope="module")
def federation():
    return replace(federation_of(), names=("alpha", "beta", "gamma"))


@pytest.fixture(scope="module")
def experiment():
    return make_experiment(SETTINGS)


@pytest.fixture(scope="module")
def federated(experiment, federation):
    return run_experiment(experiment, given=Given(federation=federation))


@pytest.mark.parametrize("client", [0, 1, 2])
def test_all_clients_but_one_are_left_as_they_were(federation, client):
    rest = without(federation, client)
    others = [other for other in range(3) if other != client]
    assert rest.names == tuple(federation.names[other] for other in others)
    for graph, other in zip(rest.clients, others, strict=True):
        assert graph is federation.clients[other]
    assert rest.preparations == [federation.preparations[other] for other in others]
    assert (rest.graph.features, rest.graph.classes) == (federation.graph.features, federation.graph.classes)


@pytest.mark.parametrize("client", [0, 1, 2])
def test_the_graph_of_all_data_lacks_the_nodes_of_the_one(federation, client):
    rest = without(federation, client)
    kept = federation.membership != client
    assert rest.graph.nodes == NODES - federation.clients[client].nodes
    assert np.array_equal(rest.graph.y, federation.graph.y[kept])
    for position, graph in enumerate(rest.clients):
        assert np.array_equal(rest.graph.y[rest.membership == position], graph.y)
        assert np.array_equal(rest.graph.masks["test"][rest.membership == position], graph.masks["test"])
    assert set(rest.membership) == {0, 1}


def test_what_models_are_scored_on_lacks_the_client_too():
    perturbed = federation_of(perturbation=Perturbation(label_noise=0.5))
    rest = without(perturbed, 1)
    assert rest.clean is not None
    assert [graph.nodes for graph in rest.clean.clients] == [graph.nodes for graph in rest.clients]
    assert not np.array_equal(rest.clients[0].y, rest.clean.clients[0].y)
    assert without(federation_of(), 1).clean is None


@pytest.mark.parametrize(
    ("models", "clients", "expected"),
    [
        ("gcn", [0, 2], "gcn"),
        ("gcn,gat,sage", [0, 2], ["gcn", "sage"]),
        ("gcn,gat", [1, 2], ["gat", "gcn"]),
        (["gcn", "gat"], [1], ["gat"]),
        ("architectures", [1, 2, 4], ["gat", "sage", "sgc"]),
    ],
)
def test_clients_keep_their_architectures_when_one_leaves(experiment, models, clients, expected):
    assert models_of(replace(experiment, models=models), clients) == expected


def test_a_contribution_is_the_mean_difference_of_a_run_with_and_one_without(experiment, federation, federated):
    gain = leave_out(1, federated, federation, experiment)
    smaller = run_experiment(replace(experiment, clients=2), given=Given(federation=without(federation, 1)))
    before, after = (
        {row["client"]: row["test"] for row in result.summary["per_client"]} for result in (smaller, federated)
    )
    assert list(before) == ["alpha", "gamma"]
    assert gain == pytest.approx(np.mean([after[name] - before[name] for name in before]))


def test_clients_that_train_alone_gain_nothing_but_other_random_numbers(federation):
    """Without dropout, and from the same weights, nothing of another client is in what one learns alone."""
    alone = make_experiment({**SETTINGS, "method": "local", "dropout": 0.0})
    result = run_experiment(alone, given=Given(federation=federation))
    assert leave_out(2, result, federation, alone) == pytest.approx(0.0)  # the last: the others keep their numbers


def test_clients_that_were_perturbed_may_leave(experiment):
    data = federation_of(perturbation=Perturbation(label_noise=0.5, perturbed_clients="2"))
    settings = replace(experiment, label_noise=0.5, perturbed_clients="2")
    result = run_experiment(settings, given=Given(federation=data))
    assert leave_out(0, result, data, settings) is not None


def test_data_of_all_in_one_place_lack_a_client_who_left(federation):
    central = make_experiment({**SETTINGS, "method": "centralised"})
    result = run_experiment(central, given=Given(federation=without(federation, 0)))
    assert [row["client"] for row in result.summary["per_client"]] == ["beta", "gamma"]
    assert [row["nodes"] for row in result.summary["per_client"]] == [graph.nodes for graph in federation.clients[1:]]


def test_a_run_that_was_stopped_gives_no_contribution(experiment, federation, federated, monkeypatch):
    def stopped(*arguments, **settings):
        return replace(run_experiment(*arguments, **settings), finished=False)

    monkeypatch.setattr("graft.experiments.joining.run_experiment", stopped)
    with pytest.raises(RunError, match="without client beta was stopped"):
        leave_out(1, federated, federation, experiment)


def test_verdicts_come_back_as_they_were_written_and_damage_is_seen(tmp_path):
    verdict = Verdict("alpha", "auroc", 40, 0.5, 0.75, 0.25, -0.1, 0.4, UNCLEAR, contribution=0.125)
    write_verdicts(tmp_path, [verdict], "local")
    assert read_verdicts(tmp_path) == [verdict]
    file = tmp_path / "verdicts.json"
    file.write_text(file.read_text().replace("0.125", "0.625"))
    with pytest.raises(InputError, match=r"verdicts\.json is damaged"):
        read_verdicts(tmp_path)
    file.unlink()
    assert read_verdicts(tmp_path) == []
