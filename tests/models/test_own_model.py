"""A module of the user's own, trained as a client of a real federation."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GCNConv

from graft.methods.fedavg import FedAvg
from graft.methods.fedprox import FedProx
from graft.methods.local import Local
from graft.models import build_model
from graft.tensors.trees import flatten, map_tree, squared_distance, weighted_mean
from tests.toy import CLASSES, gap, run_rounds, same, toy_graph, toy_setup

BUFFERS = {"norm/running_mean", "norm/running_var", "norm/num_batches_tracked"}


class Net(nn.Module):
    def __init__(self, features=6, dropout=0.0, pair=False):
        super().__init__()
        torch.manual_seed(5)
        self.first = GCNConv(features, 8, bias=False)  # the norm would cancel a bias, and Adam its rounding errors
        self.norm = nn.BatchNorm1d(8)
        self.second = GCNConv(8, CLASSES)
        self.dropout, self.pair = dropout, pair

    def forward(self, x, edge_index):
        hidden = torch.relu(self.norm(self.first(x, edge_index)))
        logits = self.second(functional.dropout(hidden, self.dropout, self.training), edge_index)
        return (hidden, logits) if self.pair else logits


@pytest.fixture
def net():
    with torch.random.fork_rng():
        return Net()


def make_net(**settings):
    with torch.random.fork_rng():
        return Net(**settings)


def train_by_hand(net, graph, epochs, **settings):
    net = copy.deepcopy(net).train()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4, **settings)
    x, edges, y = (torch.from_numpy(part) for part in (graph.x, graph.edges, graph.y))
    train = torch.from_numpy(graph.train)
    for _ in range(epochs):
        optimizer.zero_grad()
        functional.cross_entropy(net(x, edges)[train], y[train]).backward()
        optimizer.step()
    return {name.replace(".", "/"): value for name, value in net.state_dict().items()}


@pytest.mark.parametrize("method", [Local(), FedAvg()], ids=["local", "fedavg"])
def test_own_module_trains_as_it_would_by_hand(net, method):
    graph = toy_graph(12)
    finished = run_rounds(toy_setup(method, models=net, graphs=[graph], epochs=3), rounds=2)
    ours = dict(flatten(finished.client(0).model))
    wanted = train_by_hand(net, graph, 6)
    assert ours.keys() == wanted.keys()
    for path, value in wanted.items():
        torch.testing.assert_close(ours[path], value, atol=1e-6, rtol=1e-5, msg=path)
    other = train_by_hand(net, graph, 5)
    assert (ours["first/lin/weight"] - other["first/lin/weight"]).abs().max() > 1e-3


def test_the_module_itself_is_never_trained(net):
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run_rounds(toy_setup(FedAvg(), models=net), rounds=1)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_buffers_are_updated_at_clients_and_averaged_at_the_server(net):
    setup = toy_setup(FedAvg(), models=net, epochs=3)
    assert setup.models[0].frozen == BUFFERS
    finished = run_rounds(setup, rounds=2)
    clients = [finished.client(number).model for number in range(3)]
    for buffer in ("running_mean", "running_var"):
        stacked = torch.stack([client.norm[buffer] for client in clients])
        wanted = (stacked * torch.tensor([12.0, 9, 7]).view(3, 1) / 28).sum(0)
        torch.testing.assert_close(finished.server.state.model.norm[buffer], wanted)
        assert (stacked[0] - wanted).abs().max() > 1e-3
        assert (getattr(net.norm, buffer) - wanted).abs().max() > 1e-3
    counted = finished.server.state.model.norm.num_batches_tracked
    assert counted.dtype == torch.int64
    assert counted == 6


def test_optimiser_keeps_nothing_for_buffers(net):
    finished = run_rounds(toy_setup(FedAvg(), models=net), rounds=1)
    held = {path for path, _ in flatten(finished.client(0).optimizer.model.first)}
    assert held == {path for path, _ in flatten(finished.client(0).model)} - BUFFERS


def test_scoring_leaves_the_buffers_alone(net):
    setup = toy_setup(FedAvg(), models=net)
    fleet = setup.fleet([0])
    weights = fleet.initial()
    before = map_tree(torch.clone, weights)
    fleet.predict(weights)
    assert same(weights, before)
    with torch.no_grad():
        weights = map_tree(torch.clone, weights)
        fleet.forward(weights)
    assert not same(weights, before)


def test_a_pair_gives_embedding_and_logits():
    graph = toy_graph(12)
    single, pair = make_net(), make_net(pair=True)
    outputs = {}
    for name, module in (("single", single), ("pair", pair)):
        fleet = toy_setup(Local(), models=module, graphs=[graph]).fleet([0])
        outputs[name] = fleet.predict(fleet.initial())
    assert torch.equal(outputs["single"].logits, outputs["pair"].logits)
    assert outputs["pair"].embedding.shape == (1, 12, 8)
    assert torch.equal(outputs["single"].embedding, outputs["single"].logits)
    pair.eval()
    hidden, _ = pair(torch.from_numpy(graph.x), torch.from_numpy(graph.edges))
    torch.testing.assert_close(outputs["pair"].embedding[0], hidden)
    trained = [run_rounds(toy_setup(FedAvg(), models=module)).server.state for module in (single, pair)]
    assert same(*trained)


def test_sparse_features_reach_the_module_as_a_plain_tensor():
    graph = toy_graph(12, sparse=True)
    module = make_net(features=24)
    fleet = toy_setup(Local(), models=module, graphs=[graph]).fleet([0])
    module.eval()
    wanted = module(torch.from_numpy(graph.x.toarray()), torch.from_numpy(graph.edges))
    torch.testing.assert_close(fleet.predict(fleet.initial()).logits[0], wanted)


def test_fedprox_does_not_pull_buffers(net):
    fleet = toy_setup(FedProx(), models=net).fleet([0])
    received = map_tree(torch.clone, fleet.initial())
    moved = map_tree(torch.clone, received)
    moved.norm.running_mean += 100
    assert FedProx(mu=1e6).loss(fleet, moved, received) == FedAvg().loss(fleet, moved, received)
    assert squared_distance(moved, received) > 1e3  # what the pull would have been
    moved.norm.weight += 1
    assert FedProx(mu=1e6).loss(fleet, moved, received) > 1e6


def test_same_seed_gives_the_same_result_with_dropout_and_leaves_the_global_generator_alone():
    setups = [toy_setup(FedAvg(), models=make_net(dropout=0.5), seed=seed) for seed in (0, 0, 1)]
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = run_rounds(setups[0]).server.state.model
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert same(run_rounds(setups[1]).server.state.model, first)
    assert gap(run_rounds(setups[2]).server.state.model, first) > 1e-3


def test_whole_number_buffers_are_taken_from_the_first_client_not_rounded():
    models = {"count": torch.tensor([[7], [9]]), "mean": torch.tensor([[1.0], [3.0]])}
    averaged = weighted_mean(models, torch.tensor([1, 1]))
    assert averaged["count"].tolist() == [7]
    assert averaged["mean"].tolist() == [2.0]


def test_own_modules_never_share_a_fleet(net):
    finished = run_rounds(toy_setup(FedAvg(), models=net), rounds=1)
    assert [fleet.clients for fleet in finished.engine.fleets] == [[0], [1], [2]]
    started = build_model(net, 6, CLASSES).start(torch.Generator())
    assert started.first.lin.weight.data_ptr() != net.first.lin.weight.data_ptr()
