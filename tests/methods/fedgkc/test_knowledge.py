"""Knowledge-aware aggregation (KAMA), worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from graft.federation.clients import Replies
from graft.federation.server import Server
from graft.graphs.fleet_graph import build_fleet_graph
from graft.methods.fedgkc import FedGKCPaper
from graft.methods.fedgkc.knowledge import knowledge_of
from graft.tensors.trees import Tree, flatten
from tests.methods.fedgkc.cases import (
    CPU,
    FIRST,
    PATH,
    SECOND,
    SWITCHES,
    by_hand,
    fleet_of,
    hand_graph,
    hand_setup,
    record_of,
    watched,
)
from tests.toy import SIZES, run_rounds, same, toy_graph, toy_graphs, toy_setup


@by_hand
def test_knowledge_and_weights_of_two_clients_are_those_worked_out_by_hand():
    setup = hand_setup([hand_graph(FIRST, PATH), hand_graph(SECOND)])
    record = record_of(run_rounds(setup, rounds=1))
    assert record["knowledge"] == pytest.approx([0.761909, 0.8], abs=1e-6)
    assert record["volume_weight"] == pytest.approx([0.6, 0.4])
    assert record["weight"] == pytest.approx([0.543903, 0.456097], abs=1e-6)
    assert (record["fell_back"], record["negative"]) == (False, 0)
    plain = record_of(run_rounds(hand_setup(setup.graphs, kama=False), rounds=1))
    assert plain["weight"] == pytest.approx([0.6, 0.4])
    assert plain["knowledge"] == record["knowledge"]


@pytest.mark.parametrize(
    ("graph", "scores"),
    [(hand_graph(FIRST, PATH), (0.805075, 0.428576, 1.052077)), (hand_graph(SECOND), (0.3, 1.3))],
    ids=["path", "isolated nodes"],
)
def test_every_nodes_score_is_the_one_worked_out_by_hand(graph, scores):
    for node, score in enumerate(scores):
        laid = build_fleet_graph([graph], CPU)
        laid.real = torch.arange(graph.nodes).unsqueeze(0) == node  # a mean over this node alone
        strength, clarity = knowledge_of(FedGKCPaper(), laid, laid.features.softmax(2))
        assert float(strength + clarity) == pytest.approx(score, abs=1e-6)


@by_hand
@pytest.mark.parametrize(
    ("switch", "first", "second"),
    [
        ("strength", 0.761909 - 2 / 3, 0.8 - 0.65),
        ("clarity1", 0.761909 - 0.5 / 3, 0.8 - 0.15),
        ("clarity2", 2 / 3 + 0.5 / 3, 0.8),  # client 2 has no neighbours that could be similar
        ("kama", 0.761909, 0.8),
    ],
)
def test_switches_leave_out_their_part_of_the_knowledge(switch, first, second):
    setup = hand_setup([hand_graph(FIRST, PATH), hand_graph(SECOND)], **{switch: False})
    record = record_of(run_rounds(setup, rounds=1))
    assert record["knowledge"] == pytest.approx([first, second], abs=1e-5)
    shares = [first / (first + second), second / (first + second)] if switch != "kama" else [0.6, 0.4]
    assert record["weight"] == pytest.approx([(0.6 + shares[0]) / 2, (0.4 + shares[1]) / 2], abs=1e-5)


def dense_similarity(graph, probabilities):
    """The mean cosine between a node and its neighbours, edge by edge; 0 without neighbours."""
    found = torch.zeros(graph.nodes)
    for node in range(graph.nodes):
        around = graph.edges[1][graph.edges[0] == node]
        alike = [functional.cosine_similarity(probabilities[node], probabilities[other], dim=0) for other in around]
        found[node] = torch.stack(alike).mean() if alike else 0
    return found


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_knowledge_is_a_straight_line_in_confidence_less_the_similarity(classes):  # Eq. 14
    graphs = toy_graphs()
    laid = build_fleet_graph(graphs, CPU)
    probabilities = torch.randn(3, 12, classes, generator=torch.Generator().manual_seed(0)).softmax(2)
    strength, clarity = knowledge_of(FedGKCPaper(smoothing=0.3), laid, probabilities)
    for client, graph in enumerate(graphs):
        own = probabilities[client, : graph.nodes]
        line = (1 + 2 / (classes - 1)) * own.amax(1) - 1 / (classes - 1)
        expected = (line - 0.3 * dense_similarity(graph, own)).mean()
        torch.testing.assert_close(strength[client] + clarity[client], expected, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(strength[client], own.amax(1).mean())
    blind = knowledge_of(FedGKCPaper(smoothing=0), laid, probabilities)[1]
    assert (blind - clarity > 1e-2).all()


def averaged(size, knowledge, values=None, **settings):
    """A server after a round in which clients replied this; their copilots are single numbers."""
    size, knowledge = torch.tensor(size), torch.as_tensor(knowledge, dtype=torch.float32)
    values = torch.zeros(len(size)) if values is None else values
    reply = Tree(
        copilot=Tree(x=values), size=size, strength=knowledge, clarity=knowledge, knowledge=knowledge, terms=Tree()
    )
    server = Server.of(toy_setup(FedGKCPaper(), clients=len(size)))
    replies = Replies([(list(range(len(size))), reply)])
    FedGKCPaper(**settings).round(server, SimpleNamespace(ask=lambda step, message: replies))  # noqa: ARG005
    return server


@pytest.mark.parametrize("seed", range(5))
def test_gain_over_volume_weights_is_half_a_mean_difference_and_a_covariance(seed):  # Eq. 16
    random = np.random.default_rng(seed)
    knowledge, size, values = random.uniform(0.1, 2, 6), random.integers(1, 500, 6), random.normal(size=6)
    server = averaged(size.tolist(), knowledge, torch.tensor(values))
    volume = size / size.sum()
    covariance = ((knowledge - knowledge.mean()) * (values - values.mean())).mean()
    expected = 0.5 * (values.mean() - volume @ values + covariance / knowledge.mean())
    assert float(server.state.copilot.x) - volume @ values == pytest.approx(expected, abs=1e-6)
    without = averaged(size.tolist(), knowledge, torch.tensor(values), kama=False)
    assert float(without.state.copilot.x) == pytest.approx(volume @ values, abs=1e-9)


@pytest.mark.parametrize(
    ("knowledge", "weights", "negative"),
    [
        ((-0.076, -0.09, -0.05), (0.5, 0.3, 0.2), 3),  # a ratio of negative numbers would reverse the order
        ((0.0, 0.0, 0.0), (0.5, 0.3, 0.2), 0),
        ((1e-9, 1e-9, 1e-9), (0.5, 0.3, 0.2), 0),
        ((-0.5, 0.3, 0.1), (0.25, 0.525, 0.225), 1),
        ((0.2, 0.2, 0.2), (5 / 12, 19 / 60, 4 / 15), 0),
    ],
)
def test_knowledge_below_zero_counts_as_none(knowledge, weights, negative):
    records = averaged([50, 30, 20], knowledge).take_records()
    record = {name: value.tolist() for name, value in records.items()}
    assert record["weight"] == pytest.approx(weights)
    assert sum(record["weight"]) == pytest.approx(1)
    assert record["negative"] == negative
    assert record["fell_back"] == (sum(max(one, 0) for one in knowledge) < 1e-8)


# What the paper does not have: sharper shares, knowledge alone, and knowledge by held-out labels.


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({}, (0.45, 0.4, 0.15)),  # volume 0.5, 0.3, 0.2 and knowledge 0.4, 0.5, 0.1
        ({"volume": False}, (0.4, 0.5, 0.1)),
        ({"sharpness": 2.0}, (0.25 + 8 / 42, 0.15 + 12.5 / 42, 0.1 + 0.5 / 42)),  # squares: 16, 25 and 1 of 42
        ({"sharpness": 2.0, "volume": False}, (16 / 42, 25 / 42, 1 / 42)),
        ({"sharpness": 300.0, "volume": False}, (0, 1, 0)),
        ({"kama": False, "sharpness": 2.0, "volume": False}, (0.5, 0.3, 0.2)),
    ],
)
def test_shares_in_knowledge_are_sharpened_and_may_count_alone(settings, weights):
    record = averaged([50, 30, 20], [0.8, 1.0, 0.2], **settings).take_records()
    assert record["weight"].tolist() == pytest.approx(weights)


@pytest.mark.parametrize("settings", [{"volume": False}, {"sharpness": 5.0}, {"sharpness": 0.5}], ids=str)
def test_where_nobody_knows_anything_volume_counts_alone_however_sharp(settings):
    record = averaged([50, 30, 20], [-0.1, 0.0, 0.0], **settings).take_records()
    assert record["weight"].tolist() == pytest.approx([0.5, 0.3, 0.2])
    without_labels = averaged([50, 30, 0], [0.5, 0.1, 0.0], **settings).take_records()
    assert without_labels["weight"][2] == 0


@pytest.mark.parametrize("judged", [None, "other nodes"])
def test_knowledge_by_labels_is_the_share_of_judged_nodes_that_the_copilot_gets_right(judged):
    method = FedGKCPaper(knowledge_from="validation")
    fleet, models = fleet_of(method, "sage")
    copilot = models.copilot
    if judged:
        data = replace(fleet.data, labels=replace(fleet.labels, judged=fleet.labels.masks[:, 2]))
        fleet = replace(fleet, data=data)
    assert (fleet.labels.judged == fleet.labels.masks[:, 1]).all() == (judged is None)
    logits = fleet.predict(copilot, fleet.architecture("gcn")).logits
    right = logits.argmax(2) == fleet.labels.classes
    shares = [float(own[nodes].float().mean()) for own, nodes in zip(right, fleet.labels.judged, strict=True)]
    known = method.knowledge(fleet, logits)
    assert known.total.tolist() == pytest.approx(shares)
    assert len(set(shares)) > 1
    by_confidence = FedGKCPaper().knowledge(fleet, logits)
    assert torch.equal(by_confidence.strength, known.strength)
    assert torch.equal(by_confidence.total, known.strength + known.clarity)


def test_a_client_without_nodes_to_judge_by_has_no_knowledge_but_its_volume():
    graphs = toy_graphs()
    graphs[1] = replace(graphs[1], validation=graphs[1].validation & False)
    method = FedGKCPaper(knowledge_from="validation", sharpness=3.0)
    record = record_of(run_rounds(toy_setup(method, graphs=graphs), rounds=2))
    assert record["knowledge"][1] == 0
    assert record["weight"][1] == pytest.approx(record["volume_weight"][1] / 2)
    assert sum(record["weight"]) == pytest.approx(1)


@by_hand
def test_uniform_predictions_of_seven_classes_fall_back_to_volume_weights():
    uniform = [(1 / 7,) * 7] * 4
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    setup = hand_setup([hand_graph(uniform[:3], PATH), hand_graph(uniform, ring)])
    finished = run_rounds(setup, rounds=1)
    record = record_of(finished)
    assert record["knowledge"] == pytest.approx([1 / 42 - 0.1] * 2, abs=1e-6)
    assert record["weight"] == pytest.approx([3 / 7, 4 / 7])
    assert (record["fell_back"], record["negative"]) == (True, 2)
    assert all(leaf.isfinite().all() for _, leaf in flatten(finished.server.state))
    lonely = hand_setup([hand_graph(uniform[:3]), hand_graph(uniform, ring)])  # no neighbours: no penalty
    assert record_of(run_rounds(lonely, rounds=1))["weight"] == pytest.approx([(3 / 7 + 1) / 2, 2 / 7])


def test_identical_clients_have_equal_weights():
    graph = toy_graph(12)
    method = FedGKCPaper(self_distill=False)  # every client draws views of its own
    record = record_of(run_rounds(toy_setup(method, graphs=[graph] * 3), rounds=2))
    assert record["weight"] == pytest.approx([1 / 3] * 3, abs=1e-6)
    other = record_of(run_rounds(toy_setup(method, graphs=[graph, graph, toy_graph(12, seed=5)]), rounds=2))
    assert max(other["weight"]) - min(other["weight"]) > 1e-3


def test_the_copilot_of_a_single_client_is_taken_as_it_is():
    setup = toy_setup(FedGKCPaper(), clients=1)
    engine, replies = watched(setup)
    finished = run_rounds(setup, rounds=2, engine=engine)
    assert same(finished.server.state.copilot, replies[-1][0].copilot)
    assert not same(finished.server.state.copilot, replies[0][0].copilot)


def test_server_averages_copilots_by_the_recorded_weights():
    setup = toy_setup(FedGKCPaper(), models="gcn,sage")
    engine, replies = watched(setup)
    finished = run_rounds(setup, rounds=2, engine=engine)
    weights = record_of(finished)["weight"]
    assert sum(weights) == pytest.approx(1)
    for path, leaf in flatten(finished.server.state.copilot):
        parts = [dict(flatten(replies[-1][client].copilot))[path].double() for client in range(3)]
        expected = sum(weight * part for weight, part in zip(weights, parts, strict=True))
        torch.testing.assert_close(leaf.double(), expected, atol=1e-6, rtol=1e-6)


def test_knowledge_is_that_of_the_trained_copilot_without_dropout():
    setup = toy_setup(FedGKCPaper(), dropout=0.5)
    engine, replies = watched(setup)
    knowledge = torch.tensor(record_of(run_rounds(setup, rounds=1, engine=engine))["knowledge"])
    fleet = engine.fleets[0]
    gcn = fleet.architecture("gcn")
    copilots = replies[0].copilot, fleet.initial(gcn)
    trained, before = (FedGKCPaper().knowledge(fleet, fleet.predict(copilot, gcn).logits).total for copilot in copilots)
    torch.testing.assert_close(knowledge, trained)
    assert (knowledge - before).abs().min() > 1e-4


def test_both_weights_are_shared_out_among_the_clients_that_take_part():
    setup = toy_setup(FedGKCPaper(), clients=4, models="gcn,sage", participation=0.5)
    finished = run_rounds(setup, rounds=1)
    members, record = finished.session.participants(1), record_of(finished)
    size = torch.tensor([setup.graphs[client].nodes for client in members]).double()
    knowledge = torch.tensor(record["knowledge"])
    assert len(members) == 2
    assert record["volume_weight"] == pytest.approx((size / size.sum()).tolist())
    assert record["weight"] == pytest.approx(((size / size.sum() + knowledge / knowledge.sum()) / 2).tolist(), abs=1e-6)


@pytest.mark.parametrize("settings", [{}, *SWITCHES], ids=str)
def test_server_weights_follow_the_switches(settings):
    record = record_of(run_rounds(toy_setup(FedGKCPaper(**settings), models="gcn,sage"), rounds=1))
    volume, knowledge = torch.tensor(SIZES) / 28, torch.tensor(record["knowledge"]).clamp(min=0)
    assert record["fell_back"] == ("strength" in settings)  # so early, the margin alone is below zero everywhere
    trusted = volume if record["fell_back"] else knowledge / knowledge.sum()
    expected = volume if "kama" in settings else (volume + trusted) / 2
    assert record["weight"] == pytest.approx(expected.tolist(), abs=1e-6)
