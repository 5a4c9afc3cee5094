"""Every architecture on graphs with weights of edges, against dense matrices written out here."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from graft.graphs.fleet_graph import build_fleet_graph
from graft.graphs.node_subset import NodeSubset
from graft.models import build_model
from graft.tensors.randomness import streams
from graft.tensors.trees import select_clients
from graft.training.optimizers import Training
from tests.toy import CLASSES, bare_fleet, random_weights, toy_graph, toy_graphs, trained_tree, with_weights

NAMES = ("gcn", "sage", "gat", "gin", "sgc", "tag", "ortho_gcn", "gcn4")
CASES = list(itertools.product(NAMES, ("linear", "conv"), (False, True)))
CPU = torch.device("cpu")
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{'sparse' * case[2]}")


# The same networks with dense matrices -------------------------------------------------------------------------------


def gcn_matrix(adjacency):
    looped = adjacency + torch.eye(len(adjacency))
    scale = looped.sum(1) ** -0.5
    return scale[:, None] * looped * scale[None, :]


def gcn_layer(weights, adjacency, hidden, **_):
    return gcn_matrix(adjacency) @ hidden @ weights["weight"] + weights["bias"]


def sage_layer(weights, adjacency, hidden, **_):
    rows = []
    for weight in adjacency:
        linked = weight > 0
        mean = (weight[linked, None] * hidden[linked]).sum(0) / weight.sum() if linked.any() else 0 * hidden[0]
        rows.append(mean)
    return torch.stack(rows) @ weights["neighbours"] + hidden @ weights["own"] + weights["bias"]


def gin_layer(weights, adjacency, hidden, **_):
    summed = hidden + adjacency @ hidden
    inner = summed @ weights["first"]["weight"] + weights["first"]["bias"]
    inner = functional.layer_norm(inner, inner.shape[1:]) * weights["scale"] + weights["shift"]
    return torch.relu(inner) @ weights["second"]["weight"] + weights["second"]["bias"]


def gat_layer(weights, adjacency, hidden, **_):
    looped = adjacency + torch.eye(len(adjacency))
    heads, size = weights["target"].shape
    outputs = []
    for head in range(heads):
        values = (hidden @ weights["weight"])[:, head * size : (head + 1) * size]
        scores = (values @ weights["target"][head])[:, None] + (values @ weights["source"][head])[None, :]
        chances = looped * functional.leaky_relu(scores, 0.2).exp()
        outputs.append(chances / chances.sum(1, keepdim=True) @ values)
    return torch.cat(outputs, dim=1) + weights["bias"]


def ortho_layer(weights, adjacency, hidden, model, inner=False):
    if not inner:
        return gcn_layer(weights, adjacency, hidden)
    return gcn_matrix(adjacency) @ hidden @ model.effective(weights["weight"])


def tag_layer(weights, adjacency, hidden, model=None, steps=1):  # noqa: ARG001
    sums = weights["bias"] + hidden @ weights["hop0"]
    for step in range(1, steps + 1):
        hidden = gcn_matrix(adjacency) @ hidden
        sums = sums + hidden @ weights[f"hop{step}"]
    return sums


LAYERS = {
    "tag": tag_layer,
    "gcn": gcn_layer,
    "sage": sage_layer,
    "gin": gin_layer,
    "gat": gat_layer,
    "ortho_gcn": ortho_layer,
}


def dense_forward(model, weights, adjacency, features):
    """The embedding and the logits of one client."""

    def classify(embedding):
        head = weights["head"]
        if model.head == "linear":
            return embedding @ head["weight"] + head["bias"]
        if model.kind == "sgc":
            return gcn_matrix(adjacency) @ embedding @ head["weight"] + head["bias"]
        return LAYERS[model.kind](head, adjacency, embedding, model=model)

    if model.kind == "tag":
        embedding = tag_layer(weights["layer0"], adjacency, features, steps=model.hidden)
        return embedding, classify(embedding)
    if model.kind == "sgc":
        spread = features
        for _ in range(model.hidden):
            spread = gcn_matrix(adjacency) @ spread
        embedding = spread @ weights["layer0"]["weight"] + weights["layer0"]["bias"]
        return embedding, classify(embedding)
    outputs, hidden = [], features
    for index in range(model.hidden):
        more = {"inner": index > 0} if model.kind == "ortho_gcn" else {}
        hidden = torch.relu(LAYERS[model.kind](weights[f"layer{index}"], adjacency, hidden, model=model, **more))
        outputs.append(hidden)
    embedding = torch.stack(outputs).amax(0) if model.kind != "ortho_gcn" and model.depth >= 4 else hidden
    return embedding, classify(embedding)


def dense_of(graph):
    adjacency = torch.zeros(graph.nodes, graph.nodes)
    for source, target, weight in zip(*graph.edges, graph.weights, strict=True):
        adjacency[source, target] = float(weight)
    assert torch.equal(adjacency, adjacency.T)
    return adjacency, torch.as_tensor(graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray())


# Graphs with weights -------------------------------------------------------------------------------------------------


def weighted_graphs(sparse=False):
    return [with_weights(graph, seed) for seed, graph in enumerate(toy_graphs(sparse=sparse))]


def make_fleet(case, graphs, clients=None):
    name, head, _ = case
    model = build_model(name, graphs[0].features, CLASSES, width=8, dropout=0.0, head=head)
    return bare_fleet(clients or list(range(len(graphs))), graphs, model, Training())


def outputs(model, weights, graph, train=None):
    """Embedding, logits, and the gradients of a number made of both."""
    tree, parameters = trained_tree(weights)
    output = model(tree, graph) if train is None else model.forward_at(tree, train)
    loss = output.logits.square().sum() + output.embedding[graph.real if train is None else train.real].sum()
    return [*output, *torch.autograd.grad(loss, parameters)]


def close(first, second, tolerance=1e-5):
    return all(torch.allclose(a, b, atol=tolerance, rtol=tolerance) for a, b in zip(first, second, strict=True))


@every_case
def test_weights_enter_every_model_as_in_dense_matrices(case):
    graphs = weighted_graphs(case[2])
    fleet = make_fleet(case, graphs)
    weights = random_weights(fleet.model, 3)
    embedding, logits, *gradients = outputs(fleet.model, weights, fleet.graph)
    for client, graph in enumerate(graphs):
        tree, parameters = trained_tree(select_clients(weights, client))
        wanted = dense_forward(fleet.model, tree, *dense_of(graph))
        loss = wanted[1].square().sum() + wanted[0].sum()
        # Padding has the bias for an embedding, and its logits are part of the loss of the fleet.
        ours = [embedding[client, : graph.nodes], logits[client, : graph.nodes]]
        assert close(ours, wanted)
        if graph.nodes == fleet.graph.nodes:
            own = [gradient[client] for gradient in gradients]
            assert close(own, torch.autograd.grad(loss, parameters), 1e-4)
    plain = make_fleet(case, [replace(graph, weights=None) for graph in graphs])
    assert not close([logits], [outputs(fleet.model, weights, plain.graph)[1]], 1e-2)  # weights matter


@every_case
def test_weights_of_one_are_no_weights(case):
    graphs = toy_graphs(sparse=case[2])
    plain = make_fleet(case, graphs)
    ones = make_fleet(case, [replace(graph, weights=np.ones(graph.edges.shape[1], np.float32)) for graph in graphs])
    assert plain.graph.neighbours.values is None
    weights = random_weights(plain.model, 3)
    assert close(outputs(plain.model, weights, plain.graph), outputs(plain.model, weights, ones.graph), 1e-6)


@every_case
def test_weighted_fleet_of_three_is_three_fleets_of_one_even_where_one_has_no_weights(case):
    graphs = weighted_graphs(case[2])
    graphs[1] = replace(graphs[1], weights=None)
    fleet = make_fleet(case, graphs)
    weights = random_weights(fleet.model, 3)
    logits = fleet.predict(weights).logits
    for client, graph in enumerate(graphs):
        alone = make_fleet(case, [graph], [client])
        assert (alone.graph.neighbours.values is None) == (client == 1)
        own = alone.predict(select_clients(weights, slice(client, client + 1))).logits
        assert close([own[0]], [logits[client, : graph.nodes]])
    some = fleet.select([2, 0]).predict(select_clients(weights, torch.tensor([2, 0]))).logits
    assert close([some], [logits[[2, 0]]])
    ranged = fleet.graph.select_range(range(1, 3))
    assert close([fleet.model(select_clients(weights, slice(1, 3)), ranged).logits], [logits[1:]])


@every_case
def test_views_keep_the_weights_of_the_edges_that_they_keep(case):
    graphs = weighted_graphs(case[2])
    fleet = make_fleet(case, graphs)
    weights = random_weights(fleet.model, 3)
    view = fleet.graph.perturbed(streams(CPU, 7, [0, 1, 2]), 0.5, 0.4)
    really = []
    for client, graph in enumerate(graphs):
        kept = view.neighbours.dense()[client].numpy()[tuple(graph.edges)] > 0
        assert 0 < kept.sum() < len(kept)
        masked = graph.x * view.features.columns[client].numpy()
        really.append(
            replace(
                graph,
                edges=graph.edges[:, kept],
                weights=graph.weights[kept],
                x=masked if isinstance(graph.x, np.ndarray) else masked.tocsr(),
            )
        )
    wanted = outputs(fleet.model, weights, build_fleet_graph(really, CPU))
    assert close(outputs(fleet.model, weights, view), wanted)
    assert not close(outputs(fleet.model, weights, fleet.graph)[1:2], wanted[1:2], 1e-2)


@every_case
def test_weighted_rows_of_some_nodes_are_those_of_all(case):
    fleet = make_fleet(case, weighted_graphs(case[2]))
    weights = random_weights(fleet.model, 3)
    nodes = torch.tensor([[3, 0, 8], [1, 2, 0], [5, 4, 0]])
    subset = NodeSubset(fleet.graph, nodes, torch.tensor([[True] * 3, [True] * 3, [True, True, False]]))
    whole, some = fleet.predict(weights).logits, fleet.model.forward_at(weights, subset).logits
    assert close([some[subset.real]], [whole.gather(1, nodes[:, :, None].expand(-1, -1, CLASSES))[subset.real]])


def test_very_small_and_very_large_weights_give_finite_attention():
    graph = toy_graph(12)
    low, high = np.sort(graph.edges, axis=0)
    graph = replace(graph, weights=np.where((low + high) % 2, 1e-37, 1e37).astype(np.float32))
    for name in ("gat", "sage"):
        fleet = make_fleet((name, "linear", False), [graph])
        assert all(
            torch.isfinite(leaf).all() for leaf in outputs(fleet.model, random_weights(fleet.model), fleet.graph)
        )
