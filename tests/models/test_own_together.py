"""Clients of one module of the user's own as a fleet: they train as each would alone."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, TransformerConv

from graft.engines.in_process import InProcess
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc.method import FedGKC
from graft.models.build import build_model
from graft.testing.toy import with_weights
from tests.toy import CLASSES, gap, run_rounds, toy_graphs, toy_setup, unbroken_and_resumed

STACKABLE = ("pyg:GCN", "pyg:GraphSAGE", "pyg:GIN", "pyg:PNA", "attention")


class Net(nn.Module):
    def __init__(self, features, kind="attention", dropout=0.5):
        super().__init__()
        torch.manual_seed(5)
        attention = TransformerConv(features, 4, heads=2)
        self.first = GATConv(features, 8, dropout=dropout) if kind == "drops edges" else attention
        self.second, self.head = GCNConv(8, 8), nn.Linear(8, CLASSES)
        self.norm = nn.BatchNorm1d(8) if kind == "norm" else nn.LayerNorm(8)
        self.kind, self.dropout = kind, dropout

    def forward(self, x, edge_index):
        hidden = torch.relu(self.norm(self.first(x, edge_index)))
        hidden = functional.dropout(hidden, self.dropout, self.training)
        embedding = self.second(hidden, edge_index).tanh() + hidden
        if self.kind == "looks at all":
            embedding = embedding - embedding.mean(0)
        return embedding, self.head(embedding)


def make_model(name, features=6):
    with torch.random.fork_rng():
        module = name if name.startswith("pyg:") else Net(features, name)
        return build_model(module, features, CLASSES, width=8, dropout=0.5)


def together_and_alone(method, name, rounds=3, features=6, **settings):
    setup = toy_setup(method, models=make_model(name, features), optimizer="sgd", **settings)
    return [run_rounds(setup, rounds=rounds, engine=InProcess(setup, alone=alone)) for alone in (False, True)]


def assert_equal(together, alone):
    assert [fleet.clients for fleet in together.engine.fleets] == [[0, 1, 2]]
    assert len(alone.engine.fleets) == 3
    assert together.engine.fleets[0].model.not_stackable == ""
    for client in range(3):
        assert gap(together.client(client), alone.client(client)) < 1e-5


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", STACKABLE)
def test_clients_of_a_module_train_together_as_alone(name, sparse):
    together, alone = together_and_alone(FedAvg(), name, sparse=sparse, features=24 if sparse else 6)
    assert_equal(together, alone)
    assert gap(together.client(0), together.client(1)) > 1e-3
    shorter, _ = together_and_alone(FedAvg(), name, rounds=2, sparse=sparse, features=24 if sparse else 6)
    assert gap(together.client(0), shorter.client(0)) > 1e-4


@pytest.mark.parametrize("settings", [{"participation": 0.67, "rounds": 5}, {"batches": 2}, {"epochs": 2}], ids=str)
def test_some_of_the_clients_and_batches_are_the_same_together_and_alone(settings):
    together, alone = together_and_alone(FedAvg(), "attention", **settings)
    assert_equal(together, alone)


def test_views_are_the_same_together_and_alone():
    """Views do not last, so each client is run by itself."""
    together, alone = together_and_alone(FedGKC(smkd=True, self_weight=1.0), "attention")
    assert_equal(together, alone)


def test_weights_of_edges_are_the_same_together_and_alone():
    graphs = [with_weights(graph) for graph in toy_graphs()]
    together, alone = together_and_alone(FedAvg(), "pyg:GCN", graphs=graphs)
    assert_equal(together, alone)
    plain, _ = together_and_alone(FedAvg(), "pyg:GCN", graphs=toy_graphs())
    assert gap(together.client(0), plain.client(0)) > 1e-4


@pytest.mark.parametrize("kind", ["norm", "looks at all", "drops edges"])
def test_module_that_padding_would_change_trains_client_by_client(kind):
    model = make_model(kind)
    finished = run_rounds(toy_setup(FedAvg(), models=model), rounds=1)
    assert [fleet.clients for fleet in finished.engine.fleets] == [[0], [1], [2]]
    assert model.not_stackable
    assert model.not_recordable == ""


def test_predictions_of_a_fleet_are_those_of_the_module_on_each_graph():
    setup = toy_setup(FedAvg(), models=make_model("attention"))
    fleet = setup.fleet([0, 1, 2])
    given = fleet.predict(fleet.initial())
    module = setup.models[0].module.eval()
    for client, graph in enumerate(setup.graphs):
        wanted = module(torch.from_numpy(graph.x), torch.from_numpy(graph.edges))
        torch.testing.assert_close(given.embedding[client, : graph.nodes], wanted[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(given.logits[client, : graph.nodes], wanted[1], atol=1e-5, rtol=1e-4)
    assert given.logits.shape[1] == fleet.graph.nodes


@pytest.mark.parametrize("name", ["pyg:GCN", "pyg:GAT"])
def test_resumed_run_equals_the_unbroken_one(name):
    unbroken, resumed = unbroken_and_resumed(toy_setup(FedAvg(), models=name, dropout=0.5))
    for client in range(3):
        assert gap(unbroken.client(client), resumed.client(client)) == 0
