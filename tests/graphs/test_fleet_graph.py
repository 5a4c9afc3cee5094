"""The graphs of a fleet against the textbook formulae, client by client."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from graft.data.graphs import make_graph
from graft.federation.fleet import group_clients
from graft.graphs.fleet_graph import build_fleet_graph
from graft.models import build_model
from graft.tensors.sparse import BlockSparse
from tests.toy import SIZES, toy_federation, toy_graph, toy_graphs

CPU = torch.device("cpu")


def dense_adjacency(graph):
    adjacency = torch.zeros(graph.nodes, graph.nodes)
    adjacency[graph.edges[0], graph.edges[1]] = 1
    return adjacency


def padded(matrix, nodes):
    full = torch.zeros(nodes, nodes)
    full[: len(matrix), : len(matrix)] = matrix
    return full


def test_neighbours_are_the_adjacency_of_every_client():
    graphs = toy_graphs()
    laid = build_fleet_graph(graphs, CPU)
    assert (laid.clients, laid.nodes) == (3, 12)
    assert laid.sizes.tolist() == list(SIZES)
    for client, graph in enumerate(graphs):
        assert torch.equal(laid.neighbours.dense()[client], padded(dense_adjacency(graph), 12))


def test_normalised_is_the_formula_of_kipf_and_welling():
    graphs = toy_graphs()
    laid = build_fleet_graph(graphs, CPU)
    for client, graph in enumerate(graphs):
        looped = dense_adjacency(graph) + torch.eye(graph.nodes)
        scale = torch.diag(looped.sum(1) ** -0.5)
        ours = laid.normalised.dense()[client, : graph.nodes, : graph.nodes]
        torch.testing.assert_close(ours, scale @ looped @ scale)
    assert laid.normalised.transpose is laid.normalised


def test_mean_divides_by_the_degree_and_its_transpose_is_right():
    graphs = toy_graphs()
    laid = build_fleet_graph(graphs, CPU)
    for client, graph in enumerate(graphs):
        adjacency = dense_adjacency(graph)
        wanted = padded(adjacency / adjacency.sum(1, keepdim=True).clamp(min=1), 12)
        torch.testing.assert_close(laid.mean.dense()[client], wanted)
        torch.testing.assert_close(laid.mean.transpose.dense()[client], wanted.t())
    assert not torch.allclose(laid.mean.dense(), laid.mean.transpose.dense())
    assert not laid.mean.dense()[0, 11].any()  # the isolated node has no mean


def test_looped_adds_every_node_to_itself():
    laid = build_fleet_graph(toy_graphs(), CPU)
    torch.testing.assert_close(laid.with_self_loops.dense(), laid.neighbours.dense() + torch.eye(12))
    starts, columns = laid.with_self_loops.starts.tolist(), laid.with_self_loops.columns.tolist()
    rows = [columns[a:b] for a, b in itertools.pairwise(starts)]
    assert all(row == sorted(set(row)) for row in rows)


def test_pattern_for_attention_repeats_each_client_once_a_head():
    laid = build_fleet_graph(toy_graphs(), CPU)
    repeated = laid.self_loops_per_head(2)
    assert torch.equal(repeated.dense(), laid.with_self_loops.dense().repeat_interleave(2, dim=0))
    assert laid.self_loops_per_head(2) is repeated


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_features_are_those_of_the_client_and_zero_below(sparse):
    graphs = toy_graphs(sparse=sparse)
    laid = build_fleet_graph(graphs, CPU)
    assert isinstance(laid.features, torch.Tensor) == (not sparse)
    written = laid.features.dense() if sparse else laid.features
    for client, graph in enumerate(graphs):
        x = torch.from_numpy(graph.x.toarray() if sparse else graph.x)
        assert torch.equal(written[client, : graph.nodes], x)
        assert not written[client, graph.nodes :].any()
    weights = torch.randn(3, graphs[0].features, 4)
    torch.testing.assert_close(laid.features @ weights, written @ weights)


@pytest.mark.parametrize("prepared", ["neighbours", "with_self_loops", "normalised", "mean"])
def test_padding_nodes_never_reach_a_real_one(prepared):
    laid = build_fleet_graph(toy_graphs(), CPU)
    matrix = getattr(laid, prepared)
    hidden = torch.randn(3, 12, 4)
    poisoned = torch.where(laid.real.unsqueeze(2), hidden, 1e6)
    assert torch.equal((matrix @ hidden)[laid.real], (matrix @ poisoned)[laid.real])
    assert not torch.equal((matrix @ hidden)[laid.real], (matrix @ (hidden + 1))[laid.real])
    assert laid.real.sum(1).tolist() == list(SIZES)
    assert not laid.degree[~laid.real].any()


@pytest.mark.parametrize("prepared", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_selection_equals_laying_out_the_subset(prepared, sparse):
    graphs = toy_graphs(sparse=sparse)
    laid = build_fleet_graph(graphs, CPU)
    if prepared:
        assert all(getattr(laid, name).blocks == 3 for name in ("with_self_loops", "normalised", "mean"))
    picked, anew = laid.select([0, 2]), build_fleet_graph([graphs[0], graphs[2]], CPU)
    assert picked.sizes.tolist() == anew.sizes.tolist()
    for name in ("neighbours", "with_self_loops", "normalised", "mean"):
        mine, wanted = getattr(picked, name), getattr(anew, name)
        torch.testing.assert_close(mine.dense(), wanted.dense())
        torch.testing.assert_close(mine.transpose.dense(), wanted.transpose.dense())
    assert torch.equal(picked.degree, anew.degree)
    assert torch.equal(picked.self_loops_per_head(4).dense(), anew.self_loops_per_head(4).dense())
    weights = torch.randn(2, graphs[0].features, 4)
    torch.testing.assert_close(picked.features @ weights, anew.features @ weights)
    assert not torch.equal(picked.degree, laid.select([1, 2]).degree)


def thin_graph(nodes, density, degree=1, features=50):
    random = np.random.default_rng(nodes)
    x = (random.random((nodes, features)) < density).astype(np.float32)
    edges = [(node, (node + step) % nodes) for node in range(nodes) for step in range(1, 1 + degree)]
    graph = make_graph("thin", x, np.array(edges).T, random.integers(0, 3, nodes), classes=3)
    return replace(graph, x=x)


def test_dense_features_with_many_zeros_are_multiplied_as_sparse_ones_on_a_cpu():
    graphs = [thin_graph(nodes, density=0.12) for nodes in (30, 25)]
    laid = build_fleet_graph(graphs, CPU)
    assert isinstance(laid.features, BlockSparse)
    for client, graph in enumerate(graphs):
        assert np.array_equal(laid.features.dense()[client, : graph.nodes].numpy(), graph.x)
    weights = torch.randn(2, 50, 4)
    torch.testing.assert_close(laid.features @ weights, laid.features.dense() @ weights)
    assert isinstance(build_fleet_graph([thin_graph(30, density=0.3)], CPU).features, torch.Tensor)


def test_dense_features_of_a_graph_with_many_edges_are_propagated_once_instead():
    assert isinstance(build_fleet_graph([thin_graph(30, density=0.12, degree=1)], CPU).features, BlockSparse)
    crowded = build_fleet_graph([thin_graph(30, density=0.12, degree=8)], CPU)
    assert isinstance(crowded.features, torch.Tensor)
    assert crowded.propagated_features("normalised") is not None


def test_graph_without_edges_is_laid_out():
    laid = build_fleet_graph([toy_graph(7, edgeless=True)], CPU)
    assert laid.neighbours.entries == 0
    assert torch.equal(laid.normalised.dense()[0], torch.eye(7))
    assert not (laid.mean @ torch.ones(1, 7, 2)).any()


def test_the_toy_federation_cuts_back_into_its_clients():
    federation = toy_federation()
    for mine, wanted in zip(federation.clients, toy_graphs(), strict=True):
        assert np.array_equal(mine.x, wanted.x)
        assert np.array_equal(mine.edges, wanted.edges)
        assert np.array_equal(mine.y, wanted.y)
        assert np.array_equal(mine.train, wanted.train)
    assert federation.card["edges"]["lost"] > 0
    assert [sorted(set(graph.y.tolist())) for graph in federation.clients] == [[0, 1, 2], [0, 1, 2], [0, 1]]


def test_clients_train_together_when_model_and_size_allow():
    gcn, mlp = (build_model(name, 6, 3, width=8) for name in ("gcn", "mlp"))
    graphs = toy_graphs()
    assert group_clients([gcn] * 3, graphs) == [[0, 1, 2]]
    assert group_clients([gcn, mlp, gcn], graphs) == [[0, 2], [1]]
    small = [*graphs[:2], replace(toy_graph(5))]
    assert group_clients([gcn] * 3, small) == [[0, 1], [2]]  # 5 is less than half of 12
