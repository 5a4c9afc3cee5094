"""The reference engine: clients one at a time where a step wants that, and state that survives it."""

from dataclasses import dataclass

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.federation.clients import Clients, Request, Traffic
from graft.federation.method import Method, step
from graft.graphs.fleet_graph import FleetGraph
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.tensors.trees import Tree
from tests.toy import toy_setup


@dataclass(frozen=True)
class Ragged(Method):
    """Client k answers with k + 1 numbers."""

    def start_client(self, fleet):
        fleet.state.newer = torch.ones(len(fleet.clients), 2)
        fleet.state.older = torch.zeros(len(fleet.clients), 2)
        fleet.state.count = torch.zeros(len(fleet.clients))

    @step(fleet=False)
    def answer(self, fleet):
        (client,) = fleet.clients
        return Tree(numbers=torch.full((1, client + 1), float(client)))

    @step(fleet=False)
    def shift(self, fleet):
        """What was newer becomes older, and a count is raised in place."""
        fleet.state.older, fleet.state.newer = fleet.state.newer, fleet.state.newer + 1
        fleet.state.count += 1
        return Tree()

    @step
    def shift_together(self, fleet):
        return self.shift(fleet)

    @step
    def forget(self, fleet):
        """Two fields become one tensor."""
        fleet.state.older = fleet.state.newer
        return Tree()

    @step
    def show(self, fleet):
        """The answer is what is kept."""
        return Tree(newer=fleet.state.newer)

    @step(fleet=False)
    def renew(self, fleet):
        fleet.state.newer = fleet.state.newer + 1
        return Tree()


@pytest.mark.parametrize("engine_of", [InProcess, Loopback])
def test_replies_may_differ_in_size_and_are_counted_as_they_are(engine_of):
    engine = engine_of(toy_setup(Ragged()))
    try:
        traffic = Traffic()
        replies = Clients(engine, 1, [0, 1, 2], traffic).ask(Ragged().answer)
    finally:
        engine.close()
    assert [replies[client].numbers.tolist() for client in range(3)] == [[0.0], [1.0, 1.0], [2.0, 2.0, 2.0]]
    assert traffic.up == 4 * (1 + 2 + 3)


@pytest.mark.parametrize("name", ["shift", "shift_together"])
@pytest.mark.parametrize("asked", [[1], [0, 2], [0, 1, 2]])
def test_state_that_moves_between_fields_arrives_and_nobody_elses_changes(name, asked):
    engine = InProcess(toy_setup(Ragged()))
    assert len(engine.fleets) == 1
    for number in (1, 2):
        engine.ask(Request(name, number, asked))
    for client, state in engine.state().items():
        wanted = ([2.0] * 2, [3.0] * 2, 2.0) if client in asked else ([0.0] * 2, [1.0] * 2, 0.0)
        assert (state.older.tolist(), state.newer.tolist(), state.count.tolist()) == wanted


@pytest.mark.parametrize("clients", [1, 3])
def test_steps_for_one_client_at_a_time_are_never_captured(clients):
    class Listening:
        def __init__(self):
            self.heard = []

        def run(self, function, group, fleet, step, message):  # noqa: ARG002
            self.heard.append(step)
            return function(fleet)

        def join(self):
            pass

    engine = InProcess(toy_setup(Ragged(), clients=clients))
    listening = Listening()
    engine._steps = {id(group): listening for group in engine.groups}
    for name in ("answer", "shift", "shift_together"):
        engine.ask(Request(name, 1, engine.members()))
    assert listening.heard == ["shift_together"]


def test_asking_only_some_clients_of_a_round_counts_only_them():
    engine, traffic = InProcess(toy_setup(Ragged())), Traffic()
    clients = Clients(engine, 1, [0, 2], traffic)
    some = clients.only([2, 1])  # client 1 does not take part
    assert some.members == [2]
    assert some.ask(Ragged().answer).clients == [2]
    assert traffic.up == 4 * 3
    assert len(clients.only([])) == 0


@pytest.mark.parametrize("asked", [[1], [0, 1, 2]])
def test_fields_that_a_step_made_one_tensor_part_again(asked):
    engine = InProcess(toy_setup(Ragged()))
    engine.ask(Request("forget", 1, [0, 1, 2]))
    engine.ask(Request("renew", 1, asked))
    for client, state in engine.state().items():
        assert state.newer.tolist() == ([2, 2] if client in asked else [1, 1])
        assert state.older.tolist() == [1, 1]


@pytest.mark.parametrize("asked", [[0], [1, 2], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_an_answer_does_not_change_when_state_does(asked, participation):
    engine = InProcess(toy_setup(Ragged(), participation=participation))
    answer = engine.ask(Request("show", 1, asked)).newer
    engine.ask(Request("shift_together", 1, asked))
    assert answer.eq(1).all()
    assert engine.ask(Request("show", 1, asked)).newer.eq(2).all()  # the negative control


def test_graphs_are_cut_once_for_the_clients_of_a_round_and_not_at_all_for_everyone(monkeypatch):
    cuts = []
    select = FleetGraph.select
    monkeypatch.setattr(FleetGraph, "select", lambda graph, chosen: cuts.append(chosen) or select(graph, chosen))
    engine = InProcess(toy_setup(Ragged(), participation=0.5))
    engine.ask(Request("show", 1, [0, 1, 2]))
    assert not cuts
    for asked in ([0, 2], [0, 2], [1], [0, 2]):
        engine.ask(Request("show", 1, asked))
    assert cuts == [[0, 2], [1], [0, 2]]


@pytest.mark.parametrize("models", ["gcn", "gcn,sage"])
def test_only_clients_that_did_something_are_scored_again(models):
    method = Local() if "," in models else FedAvg()
    scored = []

    class Noting(type(method)):
        @step(pure=True)
        def score(self, fleet):
            scored.extend(fleet.clients)
            return super().score(fleet)

    setup = toy_setup(Noting(), clients=6, models=models, participation=0.5)
    engine = InProcess(setup)
    message = (engine.state()[0].model,) if method.one_model else ()

    def score(clients=range(6)):
        scored.clear()
        return engine.ask(Request("score", 1, list(clients))).correct, sorted(scored)

    first, asked = score()
    assert asked == list(range(6))
    again, asked = score()
    assert asked == []
    assert torch.equal(first, again)
    engine.ask(Request("train", 1, [1, 4, 5], *message))
    some, asked = score([4, 2])
    assert asked == [4]
    every, asked = score()
    assert asked == [1, 5]
    assert torch.equal(some, every[[2, 4]])
    fresh = InProcess(setup)
    fresh.restore(engine.state())
    assert torch.equal(every, fresh.ask(Request("score", 1, list(range(6)))).correct)
    engine.restore(fresh.state())
    assert score()[1] == list(range(6))
    assert not torch.equal(every, first)
