"""Every client alone in a process of its own, every message through bytes.

Slow on purpose: it shows that a method would survive a network, and it is what byte counts are checked against.
Nothing but named steps can be asked of a worker, and nothing but what a step returns comes back.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from graft.engines.capture import Message, step_arguments
from graft.engines.client_group import select_fields
from graft.engines.failures import step_failed
from graft.engines.fetching import fetch
from graft.engines.in_process import labelled_losses
from graft.engines.messages import DamagedMessage, add_client_axis, drop_client_axis, pack, unpack
from graft.errors import InputError
from graft.federation.clients import Mail, Replies, Request, Round, StepLosses, check_reply
from graft.federation.fleet import Fleet
from graft.federation.method import find_step
from graft.federation.server import Server
from graft.federation.setup import Setup
from graft.tensors.trees import Tree, map_tree, select_clients


class Loopback:
    """One worker process a client."""

    def __init__(self, setup: Setup) -> None:
        if setup.device.type != "cpu":
            raise InputError("The loopback engine gives every client a process of its own and runs on the CPU only.")
        self._setup = setup
        self.wire_bytes = 0  # everything that went through the pipes, framing included
        self._losses: StepLosses = []
        # A fork server imports PyTorch once and forks a clean process a client.
        forkserver = "forkserver" in get_all_start_methods()
        context = get_context("forkserver") if forkserver else get_context("spawn")
        if forkserver:
            context.set_forkserver_preload(["graft.engines.loopback"])
        self._pipes: dict[int, Connection] = {}
        self._workers = []
        for client in setup.clients:
            here, there = context.Pipe()
            # What a process is started with is the one thing that does not go through bytes.
            worker = context.Process(target=serve, args=(there, setup.part([client])), daemon=True)
            worker.start()
            there.close()
            self._pipes[client] = here
            self._workers.append(worker)

    def members(self) -> list[int]:
        return self._setup.clients

    def execute(self, server: Server, kind: Any, round: Round) -> tuple[Tree, Any]:  # noqa: ARG002
        return fetch(*round())

    def ask(self, request: Request) -> Replies:
        step, round = request.step, request.round
        head = {"do": "step", "step": step, "round": round, "turn": request.turn}
        same = pack(head, request.message) if request.each is None and request.mail is None else b""
        for position, client in enumerate(request.clients):
            own = request.each[client] if request.each else inbox_of(request.mail, position, client)
            self._send(client, same or pack(head, own), step, round)
        parts: list[tuple[list[int], Any]] = []
        failures = []
        for client in request.clients:
            answer, reply = self._receive(client, step, round)
            if "error" in answer:
                failures.append(step_failed(self._setup, [client], step, round, answer["error"]))
                continue
            parts.append(([client], add_client_axis(reply)))
            for label, loss in answer["losses"].items():
                self._losses.append((label, [client], torch.tensor([loss])))
        if failures:
            raise failures[0]
        return Replies(parts)

    def _send(self, client: int, data: bytes, step: str, round: int) -> None:
        self.wire_bytes += len(data)
        try:
            self._pipes[client].send_bytes(data)
        except OSError as error:
            raise step_failed(self._setup, [client], step, round, "its process has ended") from error

    def _receive(self, client: int, step: str, round: int) -> tuple[dict[str, Any], Any]:
        try:
            data = self._pipes[client].recv_bytes()
        except (EOFError, OSError) as error:
            raise step_failed(self._setup, [client], step, round, "its process has ended") from error
        self.wire_bytes += len(data)
        return unpack(data)

    def losses(self) -> StepLosses:
        losses, self._losses = self._losses, []
        return losses

    def state(self) -> dict[int, Tree]:
        for client in self._pipes:
            self._send(client, pack({"do": "state"}), "state", 0)
        return {client: self._receive(client, "state", 0)[1] for client in self._pipes}

    def copy_state(
        self, fields: Collection[str] | None = None, clients: Collection[int] | None = None
    ) -> dict[int, Tree]:
        head = {"do": "state", "fields": None if fields is None else list(fields)}
        chosen = self._pipes if clients is None else clients
        for client in chosen:
            self._send(client, pack(head), "state", 0)
        return {client: self._receive(client, "state", 0)[1] for client in chosen}

    def restore(self, state: Mapping[int, Tree]) -> None:
        for client in self._pipes:
            self._send(client, pack({"do": "restore"}, state[client]), "restore", 0)
            self._receive(client, "restore", 0)

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()
        for worker in self._workers:
            worker.join(timeout=5)
            if worker.is_alive():
                worker.terminate()


def inbox_of(mail: Mail | None, position: int, client: int) -> Any:
    """Returns what one recipient finds in its inbox: the messages it hears and its own, nothing of anybody else's."""
    if mail is None:
        return None
    links = mail.links[position]
    heard = (links != 0).reshape(-1, len(mail.senders)).any(0)
    delivered = [index for index, sender in enumerate(mail.senders) if heard[index] or sender == client]
    senders = [mail.senders[index] for index in delivered]
    sent = select_clients(mail.sent, torch.tensor(delivered))
    if links.dim() == 2:  # parts that travel apart: those that were not heard are not delivered
        arrived = (links[:, delivered] != 0).T | (torch.tensor(senders) == client).unsqueeze(1)
        sent = map_tree(lambda leaf: leaf * arrived.view(*arrived.shape, *[1] * (leaf.dim() - 2)).to(leaf.dtype), sent)
    return {"sent": sent, "links": links[..., delivered], "senders": torch.tensor(senders)}


def serve(pipe: Connection, setup: Setup) -> None:
    """The life of a worker: handles messages until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then closes the pipes
    torch.set_num_threads(1)
    fleet = setup.fleet([0])
    setup.method.start_client(fleet)
    while True:
        try:
            data = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            pipe.send_bytes(handle(setup, fleet, data))
        except OSError:
            return


def handle(setup: Setup, fleet: Fleet, data: bytes) -> bytes:
    """Returns a worker's reply to one message; a failure is reported, never raised."""
    try:
        head, message = unpack(data)
        return ACTIONS[head["do"]](setup, fleet, head, message)
    except DamagedMessage as error:
        return pack({"error": str(error)})
    except Exception as error:
        return pack({"error": f"{error}" or type(error).__name__})


def run_step(setup: Setup, fleet: Fleet, head: dict[str, Any], message: Any) -> bytes:
    step = head["step"]
    function, _ = find_step(setup.method, step)
    view = fleet.for_call(head["round"], step, head["turn"])
    reply = function(view, *step_arguments(Message(message), view))
    check_reply(reply, 1, f"step '{step}'")
    losses = {label: float(loss) for label, loss in labelled_losses(step, view)}
    return pack({"losses": losses}, drop_client_axis(reply))


def tell_state(setup: Setup, fleet: Fleet, head: dict[str, Any], message: Any) -> bytes:  # noqa: ARG001
    state = select_fields(fleet.state, head["fields"]) if "fields" in head else fleet.state
    return pack({}, drop_client_axis(state))


def take_state(setup: Setup, fleet: Fleet, head: dict[str, Any], message: Any) -> bytes:  # noqa: ARG001
    fleet.state.clear()
    fleet.state.update(map_tree(torch.clone, add_client_axis(message)))
    for cache in fleet.caches:
        cache.clear()
    return pack({})


ACTIONS = {"step": run_step, "state": tell_state, "restore": take_state}
