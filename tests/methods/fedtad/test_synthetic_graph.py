"""The made-up graph of the server: models see it exactly as they would see the same graph of a client."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv

from graft.data.graphs import make_graph
from graft.graphs.fleet_graph import build_fleet_graph
from graft.methods.fedtad.disclosure import disclosed, merge_disclosed
from graft.methods.fedtad.synthetic_graph import PseudoGraph, nearest, neighbour_graph, stacked_logits
from graft.models import NATIVE, build_model
from graft.models.own import OwnModel
from graft.tensors.randomness import streams
from graft.tensors.trees import select_clients, stack
from tests.toy import random_weights, toy_graph

NODES, WIDTH = 9, 6


def features(seed=0, nodes=NODES):
    return torch.randn(nodes, WIDTH, generator=torch.Generator().manual_seed(seed))


def as_client(pseudo, models):
    """The same graph as clients hold theirs, one copy a model."""
    edges = pseudo.adjacency.nonzero().T.numpy()
    graph = make_graph("same", pseudo.features[0].detach().numpy(), edges, np.zeros(NODES, int), 3)
    return build_fleet_graph([graph] * models, torch.device("cpu"))


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = GCNConv(WIDTH, 3), nn.Dropout(0.5)

    def forward(self, x, edge_index):
        return self.drop(self.layer(x, edge_index))


def test_every_row_has_as_many_neighbours_as_asked_for_and_all_of_them_make_it_complete():
    for by in ("dot", "cosine"):
        for count in (1, 3, 4):
            assert nearest(features(nodes=4), count, by).sum(1).tolist() == [count] * 4
    graph = neighbour_graph(features(nodes=4), 4, "dot")
    assert torch.equal(graph.adjacency, 1 - torch.eye(4))


def test_similarity_is_the_product_or_the_cosine():
    long = torch.tensor([[1.0, 0.0], [0.9, 0.1], [50.0, 50.0]])
    assert nearest(long, 1, "dot").argmax(1).tolist() == [2, 2, 2]
    assert nearest(long, 1, "cosine").argmax(1).tolist() == [0, 1, 2]
    assert nearest(long, 2, "cosine").tolist() == [[1, 1, 0], [1, 1, 0], [0, 1, 1]]
    # Node 2 chose node 1, so node 1 is joined to it too; nobody is joined to itself.
    assert neighbour_graph(long, 2, "cosine").adjacency.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


def test_no_gradient_flows_through_the_choice_of_neighbours():
    wanted = features().requires_grad_()
    graph = neighbour_graph(wanted, 3, "dot")
    assert not graph.adjacency.requires_grad
    assert graph.features.requires_grad


@pytest.mark.parametrize("head", ["linear", "conv"])
@pytest.mark.parametrize("name", NATIVE)
def test_models_see_a_dense_graph_as_they_see_a_clients(name, head):
    model = build_model(name, WIDTH, 3, width=8, head=head)
    weights = random_weights(model, clients=4)
    graph = neighbour_graph(features().requires_grad_(), 3, "dot")
    found, wanted = stacked_logits(model, weights, graph), model(weights, as_client(graph, 4)).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    if name != "mlp":
        other = PseudoGraph(torch.zeros(NODES, NODES), graph.features[0])
        assert (stacked_logits(model, weights, other) - wanted).abs().max() > 1e-3
    # One by one is the same, and the features get a gradient either way.
    alone = torch.cat([stacked_logits(model, select_clients(weights, torch.tensor([one])), graph) for one in range(4)])
    torch.testing.assert_close(found, alone, atol=1e-6, rtol=1e-6)
    together, apart = (torch.autograd.grad(out.square().sum(), graph.features)[0] for out in (found, alone))
    torch.testing.assert_close(together, apart, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NATIVE)
def test_gradients_of_the_features_are_those_of_finite_differences(name):
    model = build_model(name, WIDTH, 3, width=8)
    weights = random_weights(model, clients=2)
    start = features().requires_grad_()
    adjacency = neighbour_graph(start, 3, "dot").adjacency

    def loss(x):
        return stacked_logits(model, weights, PseudoGraph(adjacency, x)).log_softmax(2)[:, :, 0].sum()

    (gradient,) = torch.autograd.grad(loss(start), start)
    direction = torch.randn(start.shape, generator=torch.Generator().manual_seed(3))
    step = 1e-2
    with torch.no_grad():
        slope = (loss(start + step * direction) - loss(start - step * direction)) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=0.03, atol=0.03)


def test_your_own_module_is_called_once_for_every_model():
    models = [OwnModel(Own()) for _ in range(3)]
    weights = stack([model.start(torch.Generator()) for model in models])
    graph = neighbour_graph(features(), 3, "dot")
    found = stacked_logits(models[0], weights, graph)
    for place in range(3):
        alone = models[0](select_clients(weights, torch.tensor([place])), as_client(graph, 1)).logits
        torch.testing.assert_close(found[place : place + 1], alone, atol=1e-5, rtol=1e-5)
    same = select_clients(weights, torch.tensor([0, 0]))
    random = streams(torch.device("cpu"), 0, [0, 1])
    first, second = (stacked_logits(models[0], same, graph, random) for _ in range(2))
    assert not torch.equal(first[0], first[1])  # every student drops out other nodes
    assert not torch.equal(first, second)  # and others every time
    assert torch.equal(first, stacked_logits(models[0], same, graph, streams(torch.device("cpu"), 0, [0, 1])))


@pytest.mark.parametrize("sparse", [False, True])
def test_disclosed_graphs_are_put_side_by_side(sparse):
    graphs = [toy_graph(size, seed=size, sparse=sparse) for size in (12, 9)]
    fleet = build_fleet_graph(graphs, torch.device("cpu"))
    parts = [select_clients(disclosed(fleet.select([client])), 0) for client in range(2)]
    whole = merge_disclosed(parts, graphs[0].features, torch.device("cpu"))
    assert whole.nodes == 21
    edges = set(zip(whole.neighbours.row_of.tolist(), whole.neighbours.columns.tolist(), strict=True))
    wanted = set(map(tuple, graphs[0].edges.T.tolist())) | set(map(tuple, (graphs[1].edges + 12).T.tolist()))
    assert edges == wanted
    tables = [torch.as_tensor(graph.x.toarray() if sparse else graph.x) for graph in graphs]
    found = whole.features.dense()[0] if sparse else whole.features[0]
    torch.testing.assert_close(found, torch.cat(tables))
    model = build_model("gcn", graphs[0].features, 3, width=8)
    weights = random_weights(model, clients=2)
    separate = model(select_clients(weights, torch.tensor([0, 0])), fleet).logits
    torch.testing.assert_close(stacked_logits(model, weights, whole)[0, :12], separate[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(stacked_logits(model, weights, whole)[0, 12:], separate[1, :9], atol=1e-5, rtol=1e-5)
