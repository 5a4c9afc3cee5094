"""How difficult nodes are, and how many are taught: cases worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from graft.data.graphs import make_graph
from graft.graphs.fleet_graph import build_fleet_graph
from graft.methods.trust import TRUST
from graft.methods.trust.difficulty import (
    distance_to_class,
    easiest,
    easiest_first,
    label_entropy,
    places,
    share_taught,
)
from tests.toy import run_rounds, toy_graph, toy_setup, with_weights

CPU = torch.device("cpu")


def line_graph():
    """Four nodes in a row and one alone: 0 - 1 - 2 - 3, 4."""
    edges = np.array([[0, 1, 2], [1, 2, 3]])
    return make_graph("line", np.ones((5, 1)), edges, np.zeros(5, int), 2)


def one_hot(classes, count=2):
    return torch.eye(count)[torch.tensor(classes)].unsqueeze(0)


def test_entropy_of_labels_around_a_node_and_its_own():
    graph = build_fleet_graph([line_graph()], CPU)
    entropy = label_entropy(graph, one_hot([0, 0, 1, 1, 1]))[0]
    # Around node 1 are (0, 0, 1), around node 2 (0, 1, 1); nodes 0 and 3 see their own class only, and 4 nobody else.
    two_to_one = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert two_to_one == pytest.approx(0.636514, abs=1e-6)
    assert entropy[:5].tolist() == pytest.approx([0, two_to_one, two_to_one, 0, 0], abs=1e-6)


def test_weights_of_edges_count_in_the_shares_of_classes():
    weighted = with_weights(line_graph())
    entropy = label_entropy(build_fleet_graph([weighted], CPU), one_hot([0, 0, 1, 1, 1]))[0]
    link = {(a, b): w for a, b, w in zip(*weighted.edges.tolist(), weighted.weights.tolist(), strict=True)}
    share = (1 + link[1, 0]) / (1 + link[1, 0] + link[1, 2])
    wanted = -(share * math.log(share) + (1 - share) * math.log(1 - share))
    assert float(entropy[1]) == pytest.approx(wanted, abs=1e-6)
    assert float(entropy[1]) != pytest.approx(0.636514, abs=1e-3)


def test_distance_is_one_less_the_cosine_to_the_mean_of_the_class():
    embedding = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 3.0], [0.0, 0.0]]])
    distance = distance_to_class(embedding, one_hot([0, 0, 1, 1]))[0]
    # Class 0 has the mean (0.5, 0.5), class 1 (0, 1.5); the zero vector has no direction.
    assert distance.tolist() == pytest.approx([1 - math.sqrt(0.5), 1 - math.sqrt(0.5), 0, 1], abs=1e-6)


def test_places_are_in_order_of_difficulty_padding_is_last_and_the_first_of_equals_is_first():
    difficulty = torch.tensor([[0.7, 0.2, 0.2 + 1e-7, 0.0, 0.0], [0.5, 0.4, 0.3, 0.2, 0.1]])
    real = torch.tensor([[True, True, True, True, False], [True, True, True, True, True]])
    assert places(difficulty, real).tolist() == [[3, 1, 2, 0, 4], [4, 3, 2, 1, 0]]
    assert places(torch.tensor([[0.2, 0.1]]), real[1:, :2]).tolist() == [[1, 0]]


def test_share_taught_grows_from_its_start_to_all():
    shares = [float(share_taught(torch.tensor(epoch), 0.25, 40)) for epoch in (0, 20, 40, 80)]
    assert shares == pytest.approx([0.25, 0.625, 1, 1])
    assert float(share_taught(torch.tensor(0), 1.0, 40)) == 1


def test_as_many_of_the_easiest_are_taught_as_the_share_allows_rounded_down():
    graph = build_fleet_graph([toy_graph(12), toy_graph(7)], CPU)
    every = torch.arange(12)
    ranks = torch.stack([every.flip(0), every])
    taught = easiest(ranks, torch.tensor(0.5, dtype=torch.float64), graph.sizes)
    assert [row.nonzero().flatten().tolist() for row in taught] == [[6, 7, 8, 9, 10, 11], [0, 1, 2]]
    assert easiest(ranks, torch.tensor(1.0, dtype=torch.float64), graph.sizes)[1].sum() == 7


def test_true_labels_of_training_nodes_count_and_predictions_of_all_others():
    fleet = run_rounds(toy_setup(TRUST(pretrain_epochs=0)), rounds=1).engine.fleets[0]
    guide, train = fleet.state.guide, fleet.labels.masks[:, 0]

    def ranked(classes):
        labels = replace(fleet.labels, classes=classes)
        return easiest_first(fleet.on(replace(fleet.data, labels=labels)), guide, 0.5)

    classes = fleet.labels.classes
    other, before = (classes + 1) % 3, ranked(classes)
    assert torch.equal(ranked(torch.where(train, classes, other)), before)
    assert not torch.equal(ranked(torch.where(train, other, classes)), before)
