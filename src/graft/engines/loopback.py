"""Every client alone in a process of its own, every message through bytes.

Slow on purpose: it shows that a method would survive a network, and it is what byte counts are checked against.
Nothing but named steps can be asked of a worker, and nothing but what a step returns comes back; only the simulation
itself may also read and write what a client keeps. A worker that has ended, or does not answer in time, is absent from
then on, as an organisation would be.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping
from multiprocessing import connection, get_all_start_methods, get_context
from multiprocessing.connection import Connection

import torch

from graft.engines.client_group import select_fields
from graft.engines.envelopes import ANSWER, REQUEST, Answer, StateRequest, StepRequest, seal, unseal
from graft.engines.kept_state import KeptState, StateMissing
from graft.engines.messages import DamagedMessage, add_client_axis, drop_client_axis, pack, unpack
from graft.engines.remote import Remote
from graft.engines.steps import run_step
from graft.engines.wire import Absent, Handler, Patience
from graft.errors import InputError
from graft.federation.fleet import Fleet
from graft.federation.method import SCORING
from graft.federation.setup import Setup
from graft.tensors.trees import Tree

PATIENCE = Patience(seconds=600)


class Loopback(Remote):
    """One worker process a client."""

    losses_travel = True
    failures_end = True

    def __init__(self, setup: Setup, patience: Patience = PATIENCE) -> None:
        if setup.device.type != "cpu":
            raise InputError("The loopback engine gives every client a process of its own and runs on the CPU only.")
        self.pipes = PipeNode({str(client): setup.part([client]) for client in setup.clients})
        super().__init__(setup, self.pipes, [str(client) for client in setup.clients], patience)
        self._known: dict[int, Tree] = {}  # what clients kept when they were last asked, for those that are gone

    @property
    def wire_bytes(self) -> int:
        """Returns everything that went through the pipes, framing included."""
        return self.pipes.bytes

    def state(self) -> dict[int, Tree]:
        self._known |= self._states(StateRequest(all_fields=True), self.members())
        return {client: self._last_known(client) for client in self.members()}

    def copy_state(
        self, fields: Collection[str] | None = None, clients: Collection[int] | None = None
    ) -> dict[int, Tree]:
        request = StateRequest(None if fields is None else list(fields))
        chosen = self.members() if clients is None else list(clients)
        states = self._states(request, chosen)
        lost = [client for client in chosen if client not in states]
        return states | {client: select_fields(self._last_known(client), fields) for client in lost}

    def _last_known(self, client: int) -> Tree:
        """Returns what a client kept when it was last asked, or how it began."""
        if client not in self._known:
            self._known[client] = drop_client_axis(start(self._setup.part([client])).state)
        return self._known[client]

    def _states(self, request: StateRequest, clients: Collection[int]) -> dict[int, Tree]:
        """Returns what clients keep, of those whose processes are there."""
        answers = self.pipes.ask(dict.fromkeys(map(str, clients), seal(request)), self.patience)
        arrived = {client: answers[str(client)] for client in clients}
        return {c: unpack(unseal(data, ANSWER)[1])[1] for c, data in arrived.items() if isinstance(data, bytes)}

    def restore(self, state: Mapping[int, Tree]) -> None:
        head = StateRequest(do="restore")
        self.pipes.ask({str(c): seal(head, pack({}, state[c])) for c in self.members()}, self.patience)
        self._known = dict(state)
        self.begin_anew()


class PipeNode:
    """Worker processes at the other ends of pipes."""

    name = "server"

    def __init__(self, setups: Mapping[str, Setup]) -> None:
        self.bytes = 0
        self.watch: Callable[[str, bytes, bool], None] | None = None  # is shown all that is sent and received
        # A fork server imports PyTorch once and forks a clean process a client.
        forkserver = "forkserver" in get_all_start_methods()
        context = get_context("forkserver") if forkserver else get_context("spawn")
        if forkserver:
            context.set_forkserver_preload(["graft.engines.loopback"])
        self._pipes: dict[str, Connection] = {}
        self._sent = 0  # how many requests; a late answer to another one is dropped
        self.workers = []
        for name, setup in setups.items():
            here, there = context.Pipe()
            # What a process is started with is the one thing that does not go through bytes.
            worker = context.Process(target=serve, args=(there, setup), daemon=True)
            worker.start()
            there.close()
            self._pipes[name] = here
            self.workers.append(worker)

    def present(self) -> set[str]:
        return {name for name, pipe in self._pipes.items() if not pipe.closed}

    def ask(self, requests: Mapping[str, bytes], patience: Patience) -> dict[str, bytes | Absent]:
        self._sent += 1
        number = self._sent.to_bytes(8, "little")
        answers: dict[str, bytes | Absent] = {}
        for name, data in requests.items():
            try:
                self._pipes[name].send_bytes(number + data)
                self._note(name, data, sent=True)
            except OSError:
                answers[name] = self._lost(name)
        waiting = {self._pipes[name]: name for name in requests if name not in answers}
        end = time.monotonic() + patience.seconds
        while waiting and (left := end - time.monotonic()) > 0:
            for pipe in connection.wait(list(waiting), left):
                assert isinstance(pipe, Connection)
                name = waiting[pipe]
                try:
                    data = pipe.recv_bytes()
                except (EOFError, OSError):
                    answers[name] = self._lost(name)
                    del waiting[pipe]
                    continue
                if data[:8] == number:
                    self._note(name, data[8:], sent=False)
                    answers[name] = data[8:]
                    del waiting[pipe]
        return answers | {name: Absent(f"did not answer within {patience.seconds:g} s") for name in waiting.values()}

    def _lost(self, name: str) -> Absent:
        self._pipes[name].close()
        return Absent("has ended: its process is gone")

    def _note(self, name: str, data: bytes, *, sent: bool) -> None:
        self.bytes += len(data) + 8
        if self.watch is not None:
            self.watch(name, data, sent)

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()
        for worker in self.workers:
            worker.join(timeout=5)
            if worker.is_alive():
                worker.kill()  # one that was stopped does not hear of anything milder


def serve(pipe: Connection, setup: Setup) -> None:
    """The life of a worker: handles messages until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then closes the pipes
    torch.set_num_threads(1)
    handler = handler_of(setup)
    while True:
        try:
            data = pipe.recv_bytes()
            pipe.send_bytes(data[:8] + handler("server", data[8:]))
        except (EOFError, OSError):
            return


def start(setup: Setup) -> Fleet:
    """Returns the only client of a setup, ready for its first step."""
    fleet = setup.fleet([0])
    setup.method.start_client(fleet)
    return fleet


def handler_of(setup: Setup) -> Handler:
    """Returns what a worker answers to a request; a failure is reported, never raised."""
    fleet = start(setup)
    kept = KeptState(fleet.state)

    def handle(sender: str, data: bytes) -> bytes:  # noqa: ARG001
        try:
            request, body = unseal(data, REQUEST)
            message = unpack(body)[1] if body else None
        except DamagedMessage as error:
            return seal(Answer("failed", reason=str(error)))
        if isinstance(request, StateRequest):
            if request.do == "restore":
                kept.start_from(add_client_axis(message), 0)
                for cache in fleet.caches:
                    cache.clear()
                return seal(Answer("reply"), pack({}))
            state = fleet.state if request.all_fields else select_fields(fleet.state, request.fields)
            return seal(Answer("reply"), pack({}, drop_client_axis(state)))
        if not isinstance(request, StepRequest):
            return seal(Answer("reply", request.run, request.number), pack({}))
        try:
            if request.step in SCORING:
                kept.visit(request.round, request.after, request.attempt)
            else:
                kept.enter(request.round, request.after, request.attempt)
            reply, losses = run_step(setup, fleet, request, message)
            return seal(Answer("reply", request.run, request.number, losses=losses), pack({}, reply))
        except StateMissing as error:
            return seal(Answer("behind", request.run, request.number, str(error), kept.committed))
        except Exception as error:
            return seal(Answer("failed", request.run, request.number, f"{error}" or type(error).__name__))

    return handle
