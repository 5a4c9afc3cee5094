"""Rounds and steps replayed as CUDA graphs equal those that are run plainly; runs where there is a GPU.

That every method is captured as it declares is a claim of the contract, see tests/test_every_method.py.
"""

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from graft import run
from graft.engines.in_process import InProcess
from graft.errors import RunError
from graft.federation.clients import Request
from graft.federation.method import step
from graft.methods.fedavg import FedAvg
from graft.methods.fedkd import FedKD
from graft.tensors.trees import Tree, map_tree
from tests.toy import declaring, gap, run_rounds, toy_setup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def on_gpu(method, **settings):
    return replace(toy_setup(method, **settings), device=torch.device("cuda"))


def without_capture(setup):
    return replace(setup, capture=False)


def captured_steps(finished):
    return any(capture.captured for capture in finished.engine._steps.values())


@pytest.mark.parametrize("models", ["gcn", "gat", "sage", "gin", "sgc", "mlp", "gcn4"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_replayed_rounds_equal_plain_ones(models, sparse, whole):
    setup = on_gpu(FedAvg(), models=models, sparse=sparse, dropout=0.5)
    replayed, plain = run_rounds(setup, rounds=5, whole=whole), run_rounds(without_capture(setup), rounds=5)
    assert bool(replayed.engine.rounds.captured) == whole
    assert captured_steps(replayed) != whole
    for client in range(3):
        assert gap(replayed.client(client), plain.client(client)) < 1e-5
    assert gap(replayed.server.state, plain.server.state) < 1e-5
    shorter = run_rounds(setup, rounds=4, whole=whole)
    assert gap(replayed.client(0), shorter.client(0)) > 1e-4


def test_a_run_is_the_same_captured_and_not():
    """Scores, losses and what a method records come out of captured rounds as they do out of others."""
    shared = {"dataset": "synthetic:nodes=200,degree=6,classes=3,features=16", "clients": 4, "rounds": 9}
    for method, more in (("fedavg", {}), ("fedgkc", {"models": "gcn,sage"}), ("fedavg", {"evaluate_every": 2})):
        here, there = (run(method, device=device, **shared, **more) for device in ("cpu", "cuda"))
        for mine, theirs in zip(here.rounds, there.rounds, strict=True):
            assert mine.keys() == theirs.keys()
            assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-3)
            assert mine["details"].keys() == theirs["details"].keys()
            byte_counts = {key for key in mine if key.endswith("bytes")}
            assert all(mine[key] == theirs[key] for key in byte_counts)
            if "test" in mine:
                assert mine["test"] == pytest.approx(theirs["test"], abs=0.03)
        assert here.rounds[-1]["loss"] != here.rounds[-2]["loss"]


def test_a_round_that_reads_values_is_not_captured_as_a_whole_but_its_steps_are():
    class ReadsValues(FedAvg):
        def aggregate(self, server, clients, replies):
            super().aggregate(server, clients, replies)
            if server.state.model.head.weight.sum() > 1e9:
                raise AssertionError

    setup = on_gpu(ReadsValues())
    with pytest.warns(RuntimeWarning, match="Python waits for the device at .*test_capture.py"):
        finished = run_rounds(setup, rounds=7)
    plain = run_rounds(without_capture(setup), rounds=7)
    assert not finished.engine.rounds.captured
    assert captured_steps(finished)
    assert gap(finished.client(0), plain.client(0)) < 1e-5


class ScheduledServer(FedAvg):
    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)
        weight = server.state.model.head.weight
        server.state.model.head.weight = weight + 1e-3 * server.round


class ScheduledClients(FedAvg):
    def loss(self, fleet, weights, received):
        return super().loss(fleet, weights, received) * (1 + fleet.round)


class DrawingServer(FedAvg):
    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)
        server.state.model.head.bias = server.random("noise").normal(server.state.model.head.bias.numel())[0]


@pytest.mark.parametrize("kind", [ScheduledServer, ScheduledClients, DrawingServer])
@pytest.mark.parametrize("whole", [False, True])
def test_the_round_and_random_draws_advance_in_replays(kind, whole):
    setup = on_gpu(kind(), optimizer="sgd", learning_rate=0.05)
    replayed, plain = run_rounds(setup, rounds=6, whole=whole), run_rounds(without_capture(setup), rounds=6)
    assert bool(replayed.engine.rounds.captured) == whole
    assert captured_steps(replayed) != whole
    assert gap(replayed.server.state, plain.server.state) < 1e-5
    assert gap(replayed.client(0), plain.client(0)) < 1e-5
    # The negative control: the last replayed round again with the number, and the draws, of the one before.
    again = run_rounds(setup, rounds=1, engine=restored(setup, replayed), first=5, state=clone(replayed.server.state))
    further = run_rounds(setup, rounds=1, engine=restored(setup, replayed), first=7, state=clone(replayed.server.state))
    assert gap(again.server.state, further.server.state) > 1e-4


def clone(tree):
    return map_tree(torch.clone, tree)


def restored(setup, finished):
    engine = InProcess(setup)
    engine.restore({client: clone(state) for client, state in finished.engine.state().items()})
    return engine


class ServerStateOnTheHost(FedAvg):
    capturable: ClassVar[bool] = True

    def start_server(self, server):
        super().start_server(server)
        server.state.seen = torch.zeros(1)

    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)
        server.state.seen = server.state.seen + 1


class ServerStateInPython(FedAvg):
    def start_server(self, server):
        super().start_server(server)
        server.state.seen = 0

    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)
        server.state.seen += 1


class ClientStateOnTheHost(FedAvg):
    def start_client(self, fleet):
        super().start_client(fleet)
        fleet.state.seen = torch.zeros(len(fleet.clients))

    @step
    def train(self, fleet, model):
        fleet.state.seen = torch.ones(len(fleet.clients))
        return super().train(fleet, model)


class CountsInTheServersCache(FedAvg):
    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)
        server.cache["count"] = server.cache.get("count", 0) + 1


class CountsInAClientsCache(FedAvg):
    @step
    def train(self, fleet, model):
        fleet.caches[0]["count"] = fleet.caches[0].get("count", 0) + 1
        return super().train(fleet, model)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (ServerStateOnTheHost, "State 'seen' of the server is on the cpu"),
        (ServerStateInPython, "State 'seen' of the server is a int"),
        (ClientStateOnTheHost, "State 'seen' of clients is on the cpu"),
        (CountsInTheServersCache, "changes a cache in Python"),
        (CountsInAClientsCache, "changes a cache in Python"),
    ],
)
def test_what_a_replay_would_not_change_is_an_error_and_never_a_frozen_value(kind, reason):
    setup = on_gpu(kind())
    with pytest.raises(RunError, match=reason):
        run_rounds(setup, rounds=5)
    run_rounds(without_capture(setup), rounds=5)
    if kind in (ServerStateOnTheHost, CountsInTheServersCache):
        finished = run_rounds(on_gpu(declaring(kind(), capturable=False)), rounds=5)
        count = finished.server.state.seen if kind is ServerStateOnTheHost else finished.server.cache["count"]
        assert int(count) == 5


def test_a_round_that_cannot_be_captured_is_run_all_the_same():
    class Shy(FedAvg):
        def aggregate(self, server, clients, replies):
            super().aggregate(server, clients, replies)
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("not in front of everybody")

    setup = on_gpu(Shy())
    with pytest.warns(RuntimeWarning, match="not in front of everybody"):
        finished = run_rounds(setup, rounds=7)
    plain = run_rounds(without_capture(setup), rounds=7)
    assert not finished.engine.rounds.captured
    assert gap(finished.client(0), plain.client(0)) < 1e-5
    assert gap(finished.server.state, plain.server.state) < 1e-5


def test_a_checkpoint_is_right_between_captured_rounds():
    setup = on_gpu(FedAvg(), dropout=0.5)
    finished = run_rounds(setup, rounds=5)
    assert finished.engine.rounds.captured
    kept = {client: clone(state) for client, state in finished.engine.state().items()}
    server = clone(finished.server.state)
    unbroken = run_rounds(setup, rounds=3, engine=finished.engine, first=6, state=finished.server.state)
    after_unbroken = clone(unbroken.server.state)
    finished.engine.restore(kept)
    again = run_rounds(setup, rounds=3, engine=finished.engine, first=6, state=clone(server))
    fresh = InProcess(setup)
    fresh.restore(kept)
    other = run_rounds(setup, rounds=3, engine=fresh, first=6, state=clone(server))
    assert gap(after_unbroken, other.server.state) < 1e-5
    assert gap(again.client(0), other.client(0)) < 1e-5
    assert gap(after_unbroken, server) > 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_state_set_outside_a_captured_step_survives_fleets_that_run_side_by_side(seed):
    """FedKD's clients receive outside captured steps what the next captured step reads, on other streams."""
    setup = toy_setup(FedKD(), clients=5, models="architectures", width=64, seed=seed)
    there = run_rounds(replace(setup, device=torch.device("cuda")), rounds=8)
    here = run_rounds(setup, rounds=8)
    for client in here.engine.members():
        assert gap(here.client(client).mentee, map_tree(Tensor.cpu, there.client(client).mentee)) < 1e-2


@pytest.mark.parametrize("whole", [False, True])
def test_state_that_moves_between_fields_is_replayed_in_order(whole):
    class Remembers(FedAvg):
        def start_client(self, fleet):
            super().start_client(fleet)
            fleet.state.before = fleet.initial()

        @step
        def train(self, fleet, model):
            older = fleet.state.before
            fleet.state.before = fleet.state.model
            return Tree(**super().train(fleet, model), older=older)

    setup = on_gpu(Remembers())
    replayed, plain = run_rounds(setup, rounds=6, whole=whole), run_rounds(without_capture(setup), rounds=6)
    assert bool(replayed.engine.rounds.captured) == whole
    assert gap(replayed.client(0), plain.client(0)) < 1e-5
    assert gap(replayed.client(0).before, replayed.client(0).model) > 1e-4


def test_what_a_replay_returned_is_not_overwritten_by_the_next():
    setup = on_gpu(FedAvg())
    engine = InProcess(setup)
    model = run_rounds(setup, rounds=1).server.state.model
    kept = [engine.ask(Request("train", number, engine.members(), model)).model.head.weight for number in range(1, 6)]
    copies = [weight.clone() for weight in kept]
    torch.cuda.synchronize()
    assert all(torch.equal(weight, copy) for weight, copy in zip(kept, copies, strict=True))
    assert not torch.equal(kept[-1], kept[-2])
