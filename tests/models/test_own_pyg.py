"""PyG's models by name, and the weights of edges that some of them take."""

import warnings

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv
from torch_geometric.nn.models import GCN

import graft
from graft.errors import InputError
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc.method import FedGKC
from graft.models import MODELS, build_model, parse_model
from graft.models.own import OwnModel
from graft.models.own_inputs import inputs_of
from graft.testing.toy import with_weights
from tests.toy import CLASSES, gap, run_rounds, toy_graph, toy_setup

PYG = [name for name in MODELS if name.startswith("pyg:")]


@pytest.mark.parametrize("name", PYG)
@pytest.mark.parametrize("method", [FedAvg(), FedGKC()], ids=["fedavg", "fedgkc"])
def test_every_model_of_pyg_trains(method, name):
    finished = run_rounds(toy_setup(method, models=name, dropout=0.5), rounds=2)
    after = run_rounds(toy_setup(method, models=name, dropout=0.5), rounds=1)
    assert gap(finished.client(0).model, after.client(0).model) > 1e-4
    assert finished.engine.fleets[0].model.not_recordable == ""


def test_there_are_five():
    assert PYG == ["pyg:GCN", "pyg:GAT", "pyg:GraphSAGE", "pyg:GIN", "pyg:PNA"]


def test_width_depth_and_dropout_are_those_of_the_experiment():
    model = build_model("pyg:GCN3", 6, CLASSES, width=5, dropout=0.25, head="linear", seed=1)
    assert (model.module.num_layers, model.module.hidden_channels, model.module.dropout.p) == (3, 5, 0.25)
    assert model.name == "pyg:GCN3"
    assert build_model("pyg:GCN", 6, CLASSES).name == "pyg:GCN"
    assert build_model("pyg:GCN", 6, CLASSES).module.num_layers == 2


def test_the_long_name_means_the_same():
    assert parse_model("torch_geometric.nn.models:PNA") == ("pyg:PNA", None)
    long, short = (
        build_model(name, 6, CLASSES, seed=3).module for name in ("torch_geometric.nn.models:GIN", "pyg:GIN")
    )
    assert all(torch.equal(*pair) for pair in zip(long.state_dict().values(), short.state_dict().values(), strict=True))
    other = build_model("pyg:GIN", 6, CLASSES, seed=4).module
    assert not torch.equal(other.convs[0].nn.lins[0].weight, short.convs[0].nn.lins[0].weight)


@pytest.mark.parametrize("name", ["pyg:Foo", "torch_geometric.nn.models:EdgeCNN", "pyg:gcn", "pyg:GCN 3"])
def test_unknown_ones_are_refused_with_the_list(name):
    with pytest.raises(InputError, match=r"of PyG's there are pyg:GCN, pyg:GAT, pyg:GraphSAGE, pyg:GIN, pyg:PNA"):
        build_model(name, 6, CLASSES)


def test_too_many_layers_are_refused():
    with pytest.raises(InputError, match="asks for 65 layers"):
        build_model("pyg:GCN65", 6, CLASSES)


def test_nothing_of_the_clients_enters_pna():
    first, second = (build_model("pyg:PNA", 6, CLASSES, seed=1).module.state_dict() for _ in range(2))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


class Weightless(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(6, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


def make_fleet(module, graph):
    model = module if isinstance(module, OwnModel) else OwnModel(module)
    return toy_setup(FedAvg(), models=model, graphs=[graph]).fleet([0])


def test_weights_of_edges_reach_modules_that_take_them():
    graph = with_weights(toy_graph(12))
    torch.manual_seed(2)
    module = GCN(6, 8, 2, CLASSES).eval()
    fleet = make_fleet(module, graph)
    weights, edges = torch.from_numpy(graph.weights), torch.from_numpy(graph.edges)
    wanted = module(torch.from_numpy(graph.x), edges, edge_weight=weights)
    for _ in range(2):  # as it is, and recorded
        torch.testing.assert_close(fleet.predict(fleet.initial()).logits[0], wanted)
    assert not torch.allclose(wanted, module(torch.from_numpy(graph.x), edges))
    assert inputs_of(fleet.graph).recordings


def test_module_that_takes_no_weights_is_warned_of_once():
    module = Weightless().eval()
    graph = with_weights(toy_graph(12))
    model = OwnModel(module)
    fleet = make_fleet(model, graph)
    with pytest.warns(RuntimeWarning, match="Weightless takes no edge_weight"):
        given = fleet.predict(fleet.initial()).logits[0]
    torch.testing.assert_close(given, module(torch.from_numpy(graph.x), torch.from_numpy(graph.edges)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.not_recordable = "so that it is run again"
        fleet.predict(fleet.initial())
        unweighted = make_fleet(Weightless(), toy_graph(12))
        unweighted.predict(unweighted.initial())


def test_view_of_a_weighted_graph_has_the_weights_of_the_edges_that_are_left():
    graph = with_weights(toy_graph(12))
    fleet = make_fleet(GCN(6, 8, 2, CLASSES), graph)
    view = fleet.graph.perturbed(fleet.random, 0.5, 0.0)
    inputs = inputs_of(view)
    kept = view.neighbours.values > 0
    assert 0 < int(kept.sum()) < len(kept)
    assert torch.equal(inputs.edge_weight, inputs_of(fleet.graph).edge_weight[kept])
    assert inputs.edge_index.shape[1] == len(inputs.edge_weight)


@pytest.mark.parametrize("outputs", [2, 5])
def test_a_module_with_another_number_of_outputs_than_classes_is_refused(outputs):
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, outputs)

        def forward(self, x, edge_index):  # noqa: ARG002
            return self.linear(x)

    with pytest.raises(graft.GraftError, match=rf"Wide should return logits of shape \[nodes, 10\].*, {outputs}\]"):
        graft.run("fedavg", "digits", models=Wide(), clients=2, rounds=1)
