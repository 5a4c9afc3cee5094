"""The loopback engine: separate processes, bytes only, errors that say who, where and when."""

import os
from dataclasses import dataclass

import pytest
import torch

from graft.engines.envelopes import ANSWER, Answer, StepRequest, seal, unseal
from graft.engines.failures import StepFailed
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback, handler_of
from graft.engines.messages import pack
from graft.federation.clients import ClientsAbsent, Request
from graft.federation.method import Method, step
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import Tree, count_bytes
from graft.testing.wire import CountingLoopback, payload
from tests.toy import run_rounds, toy_setup


@dataclass(frozen=True)
class Probe(Method):
    """Steps that show where they ran and how they fail."""

    def round(self, server, clients):
        server.state.where = clients.ask(self.where).process

    @step
    def where(self, fleet):
        fleet.state.asked = fleet.state.asked + 1
        return Tree(process=torch.full((len(fleet.clients),), os.getpid()), asked=fleet.state.asked)

    def start_client(self, fleet):
        super().start_client(fleet)
        fleet.state.asked = torch.zeros(len(fleet.clients), dtype=torch.int64)

    @step
    def fail(self, fleet):
        if 1 in fleet.clients:
            raise ValueError("mean has 64 features, hidden has 32")
        return Tree()

    @step
    def leak(self, fleet):
        return {"graph": fleet.graph}

    @step
    def die(self, fleet):
        if 2 in fleet.clients:
            os._exit(1)
        return Tree()

    @step
    def echo(self, fleet, message):  # noqa: ARG002
        return Tree(value=message["value"])

    def secret(self, fleet):
        return Tree(labels=fleet.labels.classes)


@pytest.fixture
def engine():
    engine = Loopback(toy_setup(Probe()))
    yield engine
    engine.close()


def ask(engine, name, message=None, each=None):
    return engine.ask(Request(name, 12, engine.members(), message, each))


def test_every_client_lives_in_a_process_of_its_own_and_keeps_its_state(engine):
    first, second = ask(engine, "where"), ask(engine, "where")
    assert len({*first.process.tolist(), os.getpid()}) == 4
    assert torch.equal(first.process, second.process)
    assert second.asked.tolist() == [2, 2, 2]


def test_a_failure_names_client_step_method_and_round(engine):
    with pytest.raises(StepFailed) as failure:
        ask(engine, "fail")
    wanted = "Client 1 failed in step 'fail' of probe, round 12: mean has 64 features, hidden has 32"
    assert str(failure.value) == wanted
    assert ask(engine, "where").asked.tolist() == [1, 1, 1]  # and the engine goes on


def test_a_process_that_dies_is_named(engine):
    with pytest.raises(ClientsAbsent, match=r"step 'die' of probe, round 12: 2 has ended: its process is gone"):
        ask(engine, "die")


def test_only_marked_steps_can_be_asked_for(engine):
    for name in ("secret", "start_client", "__class__", "nothing"):
        with pytest.raises(StepFailed, match="is not a step"):
            ask(engine, name)


def test_nothing_but_tensors_and_numbers_can_leave(engine):
    with pytest.raises(StepFailed, match="holds a FleetGraph at 'graph'"):
        ask(engine, "leak")


def test_in_process_refuses_the_same_things():
    engine = InProcess(toy_setup(Probe()))
    with pytest.raises(StepFailed, match="holds a FleetGraph"):
        ask(engine, "leak")
    with pytest.raises(ValueError, match="is not a step"):
        ask(engine, "secret")
    with pytest.raises(StepFailed, match=r"Clients 0, 1, 2 failed in step 'fail' of probe, round 12: mean has"):
        ask(engine, "fail")


def test_a_message_apiece_reaches_its_client(engine):
    each = {client: {"value": torch.tensor(float(10 * client))} for client in engine.members()}
    assert ask(engine, "echo", each=each).value.tolist() == [0.0, 10.0, 20.0]
    assert ask(engine, "echo", {"value": 7}).value.tolist() == [7, 7, 7]


def test_damaged_bytes_are_answered_with_an_error_not_with_a_crash():
    handle = handler_of(toy_setup(Probe()).part([0]))
    good = StepRequest("", 1, 1, 1, "1", 0, "where", 0)
    for data in (b"", b"garbage", seal(Answer("reply")), seal(good, b"garbage")):
        assert unseal(handle("server", data), ANSWER)[0].kind == "failed"
    assert unseal(handle("server", seal(good)), ANSWER)[0].kind == "reply"


def test_counted_bytes_are_what_crosses_the_pipes_but_for_framing():
    setup = toy_setup(FedAvg(), width=64)
    engine = CountingLoopback(setup)
    try:
        finished = run_rounds(setup, rounds=2, engine=engine)
        counted, pipes = finished.traffic, engine.counted()
        assert counted == pipes
        assert pipes.up + pipes.down < engine.wire_bytes  # framing is not counted
        model = count_bytes(finished.server.state.model)
        assert counted.down == 2 * 3 * model  # rounds, clients
        assert counted.up == 2 * 3 * (model + 8)  # and the number of nodes
    finally:
        engine.close()


def test_payload_is_what_tensors_and_numbers_need():
    tree = {"weights": torch.zeros(5, 3), "few": torch.zeros(3, dtype=torch.int8), "rate": 0.5, "rounds": 7}
    assert payload(pack({"do": "step"}, tree)) == count_bytes(tree) == 60 + 3 + 16
    assert payload(pack({"do": "a longer head", "and": "more of it"}, tree)) == count_bytes(tree)
    assert payload(pack({"do": "step"})) == 0


def test_a_gpu_cannot_be_asked_for():
    from dataclasses import replace

    from graft.errors import InputError

    with pytest.raises(InputError, match="CPU only"):
        Loopback(replace(toy_setup(FedAvg()), device=torch.device("cuda")))
