"""What weights of edges mean to methods that read edges themselves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from graft.graphs.fleet_graph import build_fleet_graph
from graft.methods import METHODS
from graft.methods.fedgkc import FedGKC
from graft.methods.fedgkc.distillation import neighbourhood_loss
from graft.methods.fedgkc.knowledge import knowledge_of
from graft.methods.fedlit.channels import normalise_without_loops
from graft.methods.fedlit.edge_types import type_views
from graft.methods.fedsage_plus.lesson import without_edges_of
from graft.methods.fedsage_plus.mending import add_neighbours
from graft.methods.fedtad import FedTAD
from graft.methods.fedtad.disclosure import disclosed, merge_disclosed
from graft.methods.fedtad.reliability import class_reliability
from graft.tensors.trees import map_tree
from graft.testing.toy import join_graphs
from tests.contract import contract_method
from tests.test_every_method import SETTINGS
from tests.toy import gap, run_rounds, toy_graph, toy_graphs, toy_setup, with_weights

CPU = torch.device("cpu")
READ_NO_EDGES = ("fedmlp",)


def laid(graph):
    return build_fleet_graph([graph], CPU)


def scaled(graph, factor):
    return replace(graph, weights=graph.weights * np.float32(factor))


def ones(graph):
    return replace(graph, weights=np.ones(graph.edges.shape[1], np.float32))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_weights_of_one_are_no_weights_to_any_method_and_others_matter(name):
    method = SETTINGS.get(name) or contract_method(name)
    models = method.experiment_defaults.get("models", "gcn" if method.one_model else "gcn,sage")
    federation = join_graphs(toy_graphs())
    kinds = {
        "without": federation,
        "ones": replace(federation, clients=list(map(ones, federation.clients)), graph=ones(federation.graph)),
        "drawn": replace(
            federation, clients=list(map(with_weights, federation.clients)), graph=with_weights(federation.graph)
        ),
    }
    states = {
        kind: run_rounds(toy_setup(method, federation=clients, models=models, seed=1)).client(0)
        for kind, clients in kinds.items()
    }
    assert gap(states["without"], states["ones"]) < 1e-5
    reads_edges = name not in READ_NO_EDGES and "majority" not in name
    assert (gap(states["without"], states["drawn"]) > 1e-4) == reads_edges


def test_neighbourhood_of_fedgkc_weighs_neighbours_and_not_the_loss():
    graph = with_weights(toy_graph(12))
    generator = torch.Generator().manual_seed(0)
    teacher, student = torch.randn(1, 12, 4, generator=generator), torch.randn(1, 12, 4, generator=generator)
    targets, guesses = teacher[0].log_softmax(1), student[0].log_softmax(1)
    for reduction in ("sum", "mean"):
        loss = neighbourhood_loss(laid(graph), teacher, student, reduction)
        total = 0.0
        for node in range(12):
            entries = graph.edges[0] == node
            neighbours, weights = graph.edges[1, entries], torch.from_numpy(graph.weights[entries])
            apart = [(targets[j].exp() * (targets[j] - guesses[node])).sum() for j in (*neighbours, node)]
            counts = [*(weights / weights.sum() * len(neighbours)), 1.0]
            term = sum(count * value for count, value in zip(counts, apart, strict=True))
            total += term / (len(apart) if reduction == "mean" else 1)
        torch.testing.assert_close(loss[0], total / 12)
        rescaled = neighbourhood_loss(laid(scaled(graph, 1000)), teacher, student, reduction)
        torch.testing.assert_close(rescaled, loss)
        plain = neighbourhood_loss(laid(replace(graph, weights=None)), teacher, student, reduction)
        assert not torch.allclose(plain, loss, rtol=1e-3)


def test_knowledge_of_fedgkc_does_not_depend_on_the_unit_of_weights():
    graph = with_weights(toy_graph(12))
    chances = torch.randn(1, 12, 3, generator=torch.Generator().manual_seed(0)).softmax(2)
    clarity = [
        knowledge_of(FedGKC(), laid(other), chances)[1]
        for other in (graph, scaled(graph, 1e-3), replace(graph, weights=None))
    ]
    torch.testing.assert_close(clarity[0], clarity[1])
    assert not torch.allclose(clarity[0], clarity[2], rtol=1e-4)


def test_neighbours_that_fedsage_plus_adds_have_the_mean_weight_of_their_client():
    graphs = [with_weights(toy_graph(5)), with_weights(toy_graph(4, seed=1)), with_weights(toy_graph(4, edgeless=True))]
    fleet = build_fleet_graph(graphs, CPU)
    mended = add_neighbours(fleet, [torch.tensor([0, 2]), torch.tensor([3]), torch.tensor([1])]).dense()
    for client, (graph, owners) in enumerate(zip(graphs, ([0, 2], [3], [1]), strict=True)):
        wanted = torch.zeros(mended.shape[1:])
        wanted[tuple(graph.edges)] = torch.from_numpy(graph.weights)
        mean = float(graph.weights.mean()) if len(graph.weights) else 1.0
        for new, owner in enumerate(owners, graph.nodes):
            wanted[owner, new] = wanted[new, owner] = mean
        torch.testing.assert_close(mended[client], wanted)
    hidden = torch.zeros(3, 5, dtype=torch.bool)
    hidden[0, 1] = True
    cut = add_neighbours(without_edges_of(fleet, hidden), [torch.tensor([], dtype=torch.int64)] * 3).dense()
    wanted = fleet.neighbours.dense()
    wanted[0, 1] = wanted[0, :, 1] = 0
    assert torch.equal(cut, wanted)


def test_channels_of_fedlit_share_out_the_weights():
    fleet = build_fleet_graph([with_weights(graph) for graph in toy_graphs()], CPU)
    types = fleet.edge_of[0] % 2
    views = type_views(fleet, types, 2)
    assert torch.equal(views[0].neighbours.dense() + views[1].neighbours.dense(), fleet.neighbours.dense())
    adjacency = views[1].neighbours.dense()
    scale = adjacency.sum(2)
    scale = torch.where(scale > 0, scale, 1).rsqrt()
    assert (adjacency.sum(2)[adjacency.sum(2) > 0] < 1).any()
    wanted = scale.unsqueeze(2) * adjacency * scale.unsqueeze(1)
    torch.testing.assert_close(normalise_without_loops(views[1]).dense(), wanted)


@pytest.mark.parametrize("include_self", [True, False])
def test_reliability_of_fedtad_is_a_weighted_mean_of_similarities(include_self):
    graph = with_weights(toy_graph(12))
    method = FedTAD(include_self=include_self, walk_length=1)  # a walk of one step never returns: features alone count
    fleet = toy_setup(method, graphs=[graph]).fleet([0])
    unit = graph.x / np.linalg.norm(graph.x, axis=1, keepdims=True)
    wanted = np.zeros(3)
    for node in np.flatnonzero(graph.train):
        entries = graph.edges[0] == node
        weights, cosines = graph.weights[entries], unit[graph.edges[1, entries]] @ unit[node]
        above, below = (weights * cosines).sum() + include_self, weights.sum() + include_self
        wanted[graph.y[node]] += above / below if below else 0
    assert np.allclose(class_reliability(method, fleet), wanted, atol=1e-5)


def test_disclosed_graphs_keep_their_weights():
    parts = [with_weights(toy_graph(5)), toy_graph(4, seed=1)]
    messages = [map_tree(lambda leaf: leaf[0], disclosed(laid(part))) for part in parts]
    merged = merge_disclosed(messages, 6, CPU).neighbours.dense()[0]
    for part, first in zip(parts, (0, 5), strict=True):
        own = laid(part).neighbours.dense()[0]
        assert torch.equal(merged[first : first + part.nodes, first : first + part.nodes], own)
    assert "weights" not in messages[1]
