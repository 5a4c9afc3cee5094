"""Rounds and steps of a user's module, replayed as CUDA graphs where that is possible; runs where there is a GPU."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv, GraphConv

from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc.method import FedGKC
from graft.models.own import OwnModel
from graft.tensors.trees import map_tree
from tests.toy import CLASSES, gap, run_rounds, toy_setup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


class Net(nn.Module):
    """With a norm that has buffers, dropout, and whatever else a test asks for."""

    def __init__(self, kind="", features=6):
        super().__init__()
        torch.manual_seed(5)
        conv = GraphConv if kind else GCNConv  # which looks for self-loops, so that a GPU would have to wait
        self.first, self.norm, self.second = conv(features, 8), nn.BatchNorm1d(8), conv(8, CLASSES)
        self.kind, self.scale = kind, 1.0

    def forward(self, x, edge_index):
        hidden = torch.relu(self.norm(self.first(x, edge_index)))
        hidden = functional.dropout(hidden, 0.5, self.training)
        if self.kind == "waits" and bool(hidden.sum() > 1e6):
            hidden = hidden / 2
        if self.kind == "counts":
            self.scale = 1.5 - self.scale  # 1, 0.5, 1, ...
        if self.kind == "noise" and self.training:
            hidden = hidden + 0.1 * torch.rand_like(hidden)
        return self.second(hidden, edge_index) * self.scale


def on_gpu(method, models, **settings):
    return replace(toy_setup(method, models=models, **settings), device=torch.device("cuda"))


def both(method, models, whole=True, rounds=6, **settings):
    setup = on_gpu(method, models, **settings)
    replayed = run_rounds(setup, rounds=rounds, whole=whole)
    return replayed, run_rounds(replace(setup, capture=False), rounds=rounds)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", ["pyg:GCN", "pyg:GAT", "pyg:GraphSAGE", "pyg:GIN", "pyg:PNA", "net"])
@pytest.mark.parametrize("whole", [False, True])
def test_replayed_rounds_of_own_modules_equal_plain_ones(name, sparse, whole):
    models = OwnModel(Net(features=24 if sparse else 6)) if name == "net" else name
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        replayed, plain = both(FedAvg(), models, whole, sparse=sparse, dropout=0.5, optimizer="sgd")
    assert bool(replayed.engine.rounds.captured) == whole
    assert any(capture.captured for capture in replayed.engine._steps.values()) != whole
    for client in range(3):
        assert gap(replayed.client(client), plain.client(client)) < 1e-4
    shorter = run_rounds(on_gpu(FedAvg(), models, sparse=sparse, dropout=0.5, optimizer="sgd"), rounds=5)
    assert gap(replayed.client(0), shorter.client(0)) > 1e-4


def test_own_module_beside_native_ones_is_captured():
    replayed, plain = both(FedGKC(), [OwnModel(Net()), "gcn", "sage"], optimizer="sgd")
    assert replayed.engine.rounds.captured
    for client in range(3):
        assert gap(replayed.client(client).model, plain.client(client).model) < 1e-4


def test_dropout_is_the_same_on_every_device():
    setup = toy_setup(FedAvg(), models="pyg:GCN", dropout=0.5, optimizer="sgd")
    here, there = run_rounds(setup, rounds=5), run_rounds(replace(setup, device=torch.device("cuda")), rounds=5)
    assert gap(here.client(0), map_tree(Tensor.cpu, there.client(0))) < 1e-4
    other = run_rounds(toy_setup(FedAvg(), models="pyg:GCN", dropout=0.5, optimizer="sgd", seed=1), rounds=5)
    assert gap(here.client(0), other.client(0)) > 1e-3


@pytest.mark.parametrize(
    ("kind", "reason"), [("waits", "waits for the device"), ("noise", "waits for the device"), ("counts", "in Python")]
)
def test_module_that_cannot_be_replayed_is_noticed_and_run_all_the_same(kind, reason):
    setup = on_gpu(FedAvg(), OwnModel(Net(kind)), optimizer="sgd")
    with pytest.warns(RuntimeWarning, match=reason):
        captured = run_rounds(setup, rounds=6)
    assert not captured.engine.rounds.captured
    if kind != "counts":  # a try counts, too
        plain = run_rounds(replace(setup, capture=False), rounds=6)
        assert gap(captured.client(0), plain.client(0)) < 1e-5
        assert gap(captured.server.state, plain.server.state) < 1e-5
