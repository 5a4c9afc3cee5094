"""LG-FedAvg: cases worked out by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.federation.clients import Request
from graft.federation.fleet import initial_weights
from graft.methods.fedavg import FedAvg
from graft.methods.lg_fedavg import LGFedAvg
from graft.methods.local import Local
from graft.models.architecture import Model, Output
from graft.models.gcn import GCN
from graft.tensors.trees import Tree, flatten
from tests.toy import CLASSES, gap, run_rounds, same, toy_graph, toy_setup


class TwoNumbers(Model):
    """A head of one weight and one bias on top of one private number."""

    name = "numbers"

    def start(self, generator):  # noqa: ARG002
        return Tree(layer0=Tree(x=torch.tensor(7.0)), head=Tree(weight=torch.zeros(1, 1), bias=torch.zeros(1)))

    def __call__(self, weights, graph, random=None):  # noqa: ARG002
        blank = weights["head"]["weight"].expand(-1, graph.nodes, 1)
        return Output(blank, blank)


class Told(LGFedAvg):
    """The heads and the private number of client k go where they are told."""

    def loss(self, fleet, weights):
        wanted = torch.tensor([1.0, 5.0])[fleet.clients]
        return (weights.head.weight.flatten() - wanted).square() + (weights.layer0.x - 10 * wanted).square()


@pytest.mark.parametrize(("weight_by", "average"), [("nodes", 2.0), ("uniform", 3.0)])
def test_heads_one_and_five_with_weights_three_and_one_average_to_two(weight_by, average):
    # One step of SGD with a rate of 1/2 on (x - a)^2 lands on a; the clients have 9 and 3 nodes.
    training = {"optimizer": "sgd", "learning_rate": 0.5, "weight_decay": 0.0, "epochs": 1, "weight_by": weight_by}
    finished = run_rounds(toy_setup(Told(), 2, TwoNumbers(), sizes=(9, 3), **training), rounds=1)
    assert float(finished.server.state.shared.head.weight) == average
    assert list(finished.server.state.shared) == ["head"]
    assert [float(finished.client(client).model.layer0.x) for client in (0, 1)] == [10.0, 50.0]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("model", ["gcn", "gat", "sgc"])
def test_sharing_everything_is_fedavg_bit_for_bit(model, dropout):
    settings = {"models": model, "dropout": dropout}
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=3)
    ours = run_rounds(toy_setup(LGFedAvg(share="all"), **settings), rounds=3)
    assert same(ours.server.state.shared, wanted.server.state.model)
    assert all(same(ours.client(client), wanted.client(client)) for client in range(3))
    assert ours.traffic == wanted.traffic
    assert LGFedAvg(share="all").shared(ours.server) is ours.server.state.shared
    heads = run_rounds(toy_setup(LGFedAvg(), **settings), rounds=3)
    assert not same(heads.client(0), wanted.client(0))


def test_sharing_nothing_is_local_training_bit_for_bit():
    settings = {"models": "gcn,sage", "dropout": 0.5}
    wanted = run_rounds(toy_setup(Local(), **settings), rounds=3)
    ours = run_rounds(toy_setup(LGFedAvg(share="nothing"), **settings), rounds=3)
    heads = run_rounds(toy_setup(LGFedAvg(), **settings), rounds=3)
    assert all(same(ours.client(client), wanted.client(client)) for client in range(3))
    assert (ours.traffic.up, ours.traffic.down) == (0, 0)
    assert not any(same(heads.client(client), wanted.client(client)) for client in range(3))
    engine = Loopback(toy_setup(LGFedAvg(share="nothing"), **settings))
    try:
        assert (
            gap(run_rounds(toy_setup(LGFedAvg(share="nothing"), **settings), 3, engine).client(0), wanted.client(0))
            < 1e-5
        )
    finally:
        engine.close()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_one_client_is_local_training_bit_for_bit(dropout):
    settings = {"clients": 1, "dropout": dropout}
    wanted = run_rounds(toy_setup(Local(), **settings), rounds=3)
    ours = run_rounds(toy_setup(LGFedAvg(), **settings), rounds=3)
    assert same(ours.client(0), wanted.client(0))
    assert not same(run_rounds(toy_setup(LGFedAvg(), seed=1, **settings), rounds=3).client(0), wanted.client(0))


def test_messages_hold_the_two_tensors_of_the_head_and_a_vote():
    setup = toy_setup(LGFedAvg(), models="architectures", clients=5)
    engine, seen = InProcess(setup), []
    ask = engine.ask
    engine.ask = lambda request: seen.append((request.message, ask(request))) or seen[-1][1]
    finished = run_rounds(setup, rounds=2, engine=engine)
    for message, replies in seen:
        assert {path: tuple(leaf.shape) for path, leaf in flatten(message)} == {
            "head/weight": (8, 3),
            "head/bias": (3,),
        }
        assert [path for path, _ in flatten(replies[0])] == ["shared/head/weight", "shared/head/bias", "weight"]
    head = 4 * (8 * 3 + 3)
    assert (finished.traffic.down, finished.traffic.up) == (2 * 5 * head, 2 * 5 * (head + 8))


def test_encoders_that_do_not_train_stay_and_all_clients_take_the_same_head():
    class Held(LGFedAvg):
        def loss(self, fleet, weights):
            output = fleet.predict(weights)
            return fleet.cross_entropy(output.embedding @ weights.head.weight + weights.head.bias.unsqueeze(1))

    setup = toy_setup(Held(), models="gcn,sage", weight_decay=0.0)
    first = run_rounds(setup, rounds=1)
    assert gap(first.client(0).model.head, first.client(1).model.head) > 1e-4  # each has trained its own by then
    averaged = first.server.state.shared.head
    still = replace(setup, training=replace(setup.training, epochs=0))
    engine = InProcess(still)
    engine.restore(first.engine.state())
    second = run_rounds(still, rounds=1, engine=engine, first=2, state=first.server.state)
    for client in range(3):
        model, start = second.client(client).model, initial_weights(setup.models[client], 0)
        assert same(model.head, averaged)
        assert all(same(model[part], start[part]) for part in start if part != "head")
    free = run_rounds(toy_setup(LGFedAvg(), models="gcn,sage"), rounds=1).client(0).model
    assert not same(free.layer0, initial_weights(setup.models[0], 0).layer0)


def test_all_heads_start_from_the_servers():
    setup = toy_setup(LGFedAvg(), models="gcn,sage", epochs=1, optimizer="sgd", learning_rate=1e-12)
    finished = run_rounds(setup, rounds=1)
    start = initial_weights(setup.models[0], 0).head
    assert all(gap(finished.client(client).model.head, start) < 1e-6 for client in range(3))
    assert gap(initial_weights(setup.models[1], 0).head, start) > 1e-3  # which is not where the other model would start


def test_a_head_is_no_global_model():
    finished = run_rounds(toy_setup(LGFedAvg()), rounds=1)
    assert LGFedAvg().shared(finished.server) is None


class Own(nn.Module):
    def __init__(self, width=8, name="head"):
        super().__init__()
        self.body = nn.Linear(6, width)
        self.add_module(name, nn.Linear(width, CLASSES))
        self.last = name

    def forward(self, x, edge_index):  # noqa: ARG002
        return getattr(self, self.last)(self.body(x).relu())


def test_own_modules_share_a_layer_called_head():
    with torch.random.fork_rng():
        setup = toy_setup(LGFedAvg(), 2, [Own(), Own()])
    finished = run_rounds(setup, rounds=1)
    assert finished.server.state.shared.head.weight.shape == (3, 8)
    correct = finished.engine.ask(Request("score", 1, [0, 1])).correct
    assert correct.shape == (2, 1, 3)


@pytest.mark.parametrize(
    ("models", "head", "reason"),
    [
        ("gcn", "conv", "gcn has none: use head = linear"),
        ("gcn,sage", "conv", "gcn has none: use head = linear"),
        ([GCN(6, 3, width=8), GCN(6, 3, width=4)], "linear", "heads of one shape, not gcn 8 x 3, gcn 4 x 3"),
        ([Own(8), Own(4)], "linear", "heads of one shape, not own 3 x 8, own 3 x 4"),
        ([Own(8, "classifier")], "linear", "call the last linear layer of your own module 'head'"),
        ([GCN(6, 3, width=3), Own(3)], "linear", "transposed"),
    ],
)
def test_heads_that_cannot_be_averaged_are_refused(models, head, reason):
    graphs = [toy_graph(9), toy_graph(8)]
    with pytest.raises(InputError, match=reason):
        run_rounds(toy_setup(LGFedAvg(), models=models, head=head, graphs=graphs), rounds=1)
    run_rounds(toy_setup(LGFedAvg(share="nothing"), models=models, head=head, graphs=graphs), rounds=1)


def test_sharing_everything_needs_one_architecture():
    with pytest.raises(InputError, match="needs one architecture for all clients, not gcn, sage"):
        run_rounds(toy_setup(LGFedAvg(share="all"), models="gcn,sage"), rounds=1)
