"""Views of a fleet's graphs against graphs that really lack these edges and features."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from graft.data.graphs import make_graph
from graft.graphs.fleet_graph import FleetGraph, MaskedFeatures, build_fleet_graph
from graft.models import build_model
from graft.tensors.randomness import streams
from graft.training.optimizers import Training
from tests.toy import CLASSES, bare_fleet, random_weights, toy_graph, toy_graphs, trained_tree

CPU = torch.device("cpu")
MODELS = ("gcn", "gat", "sage", "gin", "sgc", "tag", "mlp", "gcn4")
every_kind = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


def make_view(laid, edges=0.5, features=0.4, clients=(0, 1, 2), seed=7):
    return laid.perturbed(streams(CPU, seed, list(clients)), edges, features)


def graphs_with_an_edgeless_one(sparse=False):
    return [*toy_graphs(sparse=sparse)[:2], toy_graph(7, sparse=sparse, edgeless=True)]


def really(graph, view, client):
    """The graph of a client without what its view leaves out."""
    kept = view.neighbours.dense()[client].numpy()[tuple(graph.edges)] > 0
    masked = graph.x * view.features.columns[client].numpy()
    return replace(
        graph, edges=graph.edges[:, kept], x=masked.tocsr() if not isinstance(graph.x, np.ndarray) else masked
    )


def outputs(model, weights, graph):
    """What a model says, and the gradients of some number made of it."""
    tree, parameters = trained_tree(weights)
    output = model(tree, graph)
    loss = output.logits.square().sum() + output.embedding[graph.real].sum()
    return [*output, *torch.autograd.grad(loss, parameters)]


@every_kind
@pytest.mark.parametrize("name", MODELS)
def test_view_that_leaves_nothing_out_is_the_graph_bit_for_bit(name, sparse):
    laid = build_fleet_graph(toy_graphs(sparse=sparse), CPU)
    laid.cacheable = False  # or its features would be spread first, which rounds otherwise
    model = build_model(name, laid.width, CLASSES, width=8)
    weights = random_weights(model, 3)
    whole, view = outputs(model, weights, laid), outputs(model, weights, make_view(laid, 0.0, 0.0))
    assert all(torch.equal(one, other) for one, other in zip(whole, view, strict=True))
    for edges, features in ((0.5, 0.0), (0.0, 0.5)):
        other = outputs(model, weights, make_view(laid, edges, features))
        assert torch.equal(whole[1], other[1]) == (name == "mlp" and features == 0)


@every_kind
@pytest.mark.parametrize("name", MODELS)
def test_models_see_a_view_as_the_graph_really_thinned(name, sparse):
    graphs = graphs_with_an_edgeless_one(sparse)
    laid = build_fleet_graph(graphs, CPU)
    view = make_view(laid)
    thin = build_fleet_graph([really(graph, view, client) for client, graph in enumerate(graphs)], CPU)
    assert 0 < thin.neighbours.entries < laid.neighbours.entries
    model = build_model(name, laid.width, CLASSES, width=8)
    weights = random_weights(model, 3)
    for mine, wanted in zip(outputs(model, weights, view), outputs(model, weights, thin), strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(weights, laid).logits, model(weights, thin).logits, atol=1e-3)


def test_prepared_matrices_of_a_view_are_those_of_the_thinned_graph():
    graphs = graphs_with_an_edgeless_one()
    laid = build_fleet_graph(graphs, CPU)
    view = make_view(laid)
    thin = build_fleet_graph([really(graph, view, client) for client, graph in enumerate(graphs)], CPU)
    assert torch.equal(view.degree, thin.degree)
    assert torch.equal(view.real, thin.real)
    for name in ("neighbours", "with_self_loops", "normalised", "mean"):
        mine, wanted, whole = (getattr(graph, name) for graph in (view, thin, laid))
        torch.testing.assert_close(mine.dense(), wanted.dense())
        torch.testing.assert_close(mine.transpose.dense(), wanted.transpose.dense())
        assert not torch.allclose(mine.dense(), whole.dense())
    for heads in (1, 4):
        assert torch.equal(view.self_loops_per_head(heads).dense(), thin.self_loops_per_head(heads).dense())
    hidden = torch.randn(3, 12, 5)
    torch.testing.assert_close(view.mean @ hidden, thin.mean @ hidden)


def test_both_directions_of_an_edge_vanish_together():
    laid = build_fleet_graph(toy_graphs(), CPU)
    adjacency = laid.neighbours.dense()
    for seed in range(10):
        kept = make_view(laid, seed=seed).neighbours.dense()
        assert torch.equal(kept, kept.transpose(1, 2))
        assert set(kept.unique().tolist()) == {0, 1}
        assert not (kept * (1 - adjacency)).any()
        assert 0 < kept.sum() < adjacency.sum()


def test_every_edge_is_numbered_within_its_client():
    graphs = graphs_with_an_edgeless_one()
    laid = build_fleet_graph(graphs, CPU)
    edge, most = laid.edge_of
    owner = laid.neighbours.row_of // laid.nodes
    for client, graph in enumerate(graphs):
        counts = torch.bincount(edge[owner == client], minlength=graph.edge_count)
        assert counts.tolist() == [2] * graph.edge_count  # once in either direction
    assert most == max(graph.edge_count for graph in graphs)


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.3, 0.5, 0.8])
def test_share_that_is_left_out_is_the_rate(rate):
    random = np.random.default_rng(0)
    graph = make_graph(
        "large", random.normal(size=(400, 3000)), random.integers(0, 400, (2, 20_000)), np.zeros(400, int), 2
    )
    laid = build_fleet_graph([graph] * 3, CPU)
    view = make_view(laid, rate, rate)
    masks = {"edges": view.neighbours.values.view(3, -1), "features": view.features.columns}
    for name, mask in masks.items():
        draws = graph.edge_count if name == "edges" else graph.features
        left_out = 1 - mask.mean(1)
        assert (left_out - rate).abs().max() < 5 * (rate * (1 - rate) / draws) ** 0.5
        other = make_view(laid, rate, rate, seed=8)
        again = other.neighbours.values.view(3, -1) if name == "edges" else other.features.columns
        for one, two in ((mask[0], mask[1]), (mask, again)):  # every client and every view draws for itself
            assert abs(float((one == two).float().mean()) - (rate**2 + (1 - rate) ** 2)) < 0.03


def test_edges_and_features_are_drawn_apart():
    laid = build_fleet_graph(toy_graphs(), CPU)
    for edges, features in ((0.5, 0.0), (0.0, 0.5)):
        view = make_view(laid, edges, features)
        assert bool((view.neighbours.values == 0).any()) == (edges > 0)
        assert bool((view.features.columns == 0).any()) == (features > 0)


def test_a_stream_gives_another_view_each_time():
    laid, random = build_fleet_graph(toy_graphs(), CPU), streams(CPU, 7, [0, 1, 2])
    first, second = (laid.perturbed(random, 0.5, 0.4) for _ in range(2))
    assert not torch.equal(first.neighbours.values, second.neighbours.values)
    assert not torch.equal(first.features.columns, second.features.columns)
    assert torch.equal(first.neighbours.values, make_view(laid).neighbours.values)
    assert laid.neighbours.values is None  # and the graph itself is as it was


@every_kind
def test_views_of_a_fleet_are_each_clients_own(sparse):
    graphs = graphs_with_an_edgeless_one(sparse)
    together = make_view(build_fleet_graph(graphs, CPU), clients=(4, 0, 2))
    for position, (client, graph) in enumerate(zip((4, 0, 2), graphs, strict=True)):
        alone = make_view(build_fleet_graph([graph], CPU), clients=[client])
        nodes = graph.nodes
        assert torch.equal(together.neighbours.dense()[position, :nodes, :nodes], alone.neighbours.dense()[0])
        assert torch.equal(together.features.columns[position], alone.features.columns[0])
        assert torch.equal(together.features.dense()[position, :nodes], alone.features.dense()[0])
        stranger = make_view(build_fleet_graph([graph], CPU), clients=[client + 1])
        assert not torch.equal(together.features.columns[position], stranger.features.columns[0])


def test_views_of_some_clients_are_those_of_the_whole_fleet():
    laid = build_fleet_graph(toy_graphs(), CPU)
    whole, some = make_view(laid), make_view(laid.select([2, 0]), clients=(2, 0))
    assert torch.equal(some.neighbours.dense(), whole.neighbours.dense()[[2, 0]])
    assert torch.equal(some.normalised.dense(), whole.normalised.dense()[[2, 0]])
    assert torch.equal(some.self_loops_per_head(2).dense(), whole.self_loops_per_head(2).dense()[[4, 5, 0, 1]])


@every_kind
def test_masked_columns_are_columns_of_zeros(sparse):
    laid = build_fleet_graph(toy_graphs(sparse=sparse), CPU)
    columns = (torch.arange(laid.width) % 3 != torch.arange(3)[:, None]).float()
    masked = MaskedFeatures(laid.features, columns)
    written = (laid.features.dense() if sparse else laid.features.clone()) * columns.unsqueeze(1)
    assert not written[0, :, ::3].any()
    assert written[1, :, ::3].any()
    assert torch.equal(masked.dense(), written)
    weights = torch.randn(3, laid.width, 4)
    mine, wanted = weights.clone().requires_grad_(), weights.clone().requires_grad_()
    torch.testing.assert_close(masked @ mine, written @ wanted)
    up = torch.randn(3, 12, 4)
    (masked @ mine).backward(up)
    (written @ wanted).backward(up)
    torch.testing.assert_close(mine.grad, wanted.grad)
    assert not torch.allclose(laid.features @ weights, masked @ weights)


def test_view_of_a_graph_without_any_edge_hides_features_only():
    graph = toy_graph(7, edgeless=True)
    laid = build_fleet_graph([graph], CPU)
    view = make_view(laid, clients=[0])
    assert view.neighbours.entries == 0
    assert torch.equal(view.normalised.dense()[0], torch.eye(7))
    assert not view.degree.any()
    assert 0 < view.features.columns.sum() < 6
    for name in MODELS:
        model = build_model(name, 6, CLASSES, width=8)
        found = outputs(model, random_weights(model), view)
        wanted = outputs(model, random_weights(model), build_fleet_graph([really(graph, view, 0)], CPU))
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_padding_nodes_stay_out_of_a_view():
    laid = build_fleet_graph(toy_graphs(), CPU)
    view = make_view(laid)
    hidden = torch.randn(3, 12, 4)
    poisoned = torch.where(laid.real.unsqueeze(2), hidden, 1e6)
    for name in ("neighbours", "with_self_loops", "normalised", "mean"):
        matrix = getattr(view, name)
        assert torch.equal((matrix @ hidden)[view.real], (matrix @ poisoned)[view.real])
    assert not view.degree[~view.real].any()


def test_a_view_keeps_nothing_alive_and_is_not_kept_alive():
    laid = build_fleet_graph(toy_graphs(), CPU)
    model = build_model("gat", 6, CLASSES, width=8)
    weights = random_weights(model, 3)
    gc.disable()
    try:
        view = make_view(laid)
        outputs(model, weights, view)
        held = [weakref.ref(view), weakref.ref(view.with_self_loops), weakref.ref(view.neighbours.values)]
        del view
        assert [one() for one in held] == [None] * 3
    finally:
        gc.enable()


def test_a_fleet_can_look_at_a_view():
    graphs = toy_graphs()
    model = build_model("sage", 6, CLASSES, width=8, dropout=0.5)
    fleet = bare_fleet([0, 1, 2], graphs, model, Training())
    weights, view = random_weights(model, 3), make_view(fleet.graph)
    assert isinstance(view, FleetGraph)
    assert torch.equal(fleet.predict(weights, graph=view).logits, model(weights, view).logits)
    assert not torch.equal(fleet.predict(weights, graph=view).logits, fleet.predict(weights).logits)
    noisy = fleet.forward(weights, graph=view).logits
    assert not torch.equal(noisy, fleet.predict(weights, graph=view).logits)
