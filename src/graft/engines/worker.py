"""A worker of a cluster: some clients of a federation in a process of their own, as fleets of the in-process engine."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graft.engines.arrays import Arrays, Rows, stack_alike, to_arrays, to_tensor, to_tree, unstack
from graft.engines.capture import capture_stream
from graft.engines.fetching import fetch
from graft.engines.in_process import InProcess
from graft.engines.memory import budget, peak_memory
from graft.engines.on_demand import OnDemand
from graft.engines.precision import products_in
from graft.engines.state_files import TRAVEL_BYTES
from graft.federation.clients import Engine, Mail, Replies, Request
from graft.federation.setup import Setup
from graft.tensors.trees import Tree, add_sums, count_bytes, weighted_sum


class StepCall(NamedTuple):
    """What is asked of a worker's clients; what all workers are told alike comes beside it."""

    step: str
    round: int
    turn: int
    clients: list[int]
    each: Rows | None = None  # one message apiece
    senders: list[int] | None = None  # of what peers sent
    links: np.ndarray[Any, Any] | None = None  # to this worker's clients
    votes: Mapping[str, str] = {}  # of fields that only a mean is read of, the field of replies that may weigh it


class VotedSum(NamedTuple):
    """A field added up over a worker's clients, each times what it replied as its vote."""

    votes: str  # the field of the replies
    arrays: Arrays


class Answer(NamedTuple):
    """What a worker's clients replied."""

    parts: Rows
    losses: list[tuple[str, list[int], np.ndarray[Any, Any]]]
    held: dict[str, int]  # fields that stay here, since only their mean is read, and their bytes
    sums: dict[str, VotedSum]  # of such fields, where the call names votes
    seconds: float  # that the clients took, without what came before and after to send it


class Sum(NamedTuple):
    """What a worker's clients have in the mean of a field: each times its vote."""

    arrays: Arrays
    seconds: float  # that it took to add it up


class Worker:
    """Clients that live in this process; nothing but arrays and plain values goes in and out."""

    def __init__(self, threads: int = 1, precision: str = "float32", device: str = "cpu") -> None:
        torch.set_num_threads(threads)
        self._device = torch.device(device)
        self._contexts = ExitStack()  # for as long as the process lives
        self._contexts.enter_context(capture_stream(self._device))
        self._contexts.enter_context(products_in(precision))
        self._engine: Engine | None = None
        self._setup: Setup | None = None
        self._held: dict[tuple[str, int, str], list[tuple[list[int], Tree]]] = {}  # by step, turn and field
        self._held_round = 0
        self._copies: dict[int, Mapping[int, Tree]] = {}

    def describe(self) -> dict[str, Any]:
        """Returns what a driver may want to know of this process: who it is, and how much memory it may use."""
        return {"process": os.getpid(), "budget": budget(self._device), "peak": peak_memory(self._device)}

    def build(self, setup: Setup, clients: Sequence[int] | None = None) -> None:
        """Starts clients: all of a setup that holds their graphs, or some of one that says where graphs are."""
        self._engine, self._held, self._copies = None, {}, {}  # before the next one takes its memory
        setup = replace(setup, device=self._device)
        if setup.on_demand:
            self._engine = OnDemand(setup)
        else:
            self._engine = InProcess(setup if clients is None else setup.part(clients))
        self._setup = setup

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("a worker was asked before it was given clients")
        return self._engine

    def ask(self, call: StepCall, message: Arrays | None = None) -> Answer:
        """Runs a step at some clients; `message` is one for all of them, or what peers sent."""
        if call.round != self._held_round:
            self._held, self._held_round = {}, call.round
        request = request_of(call, message)
        begun = time.perf_counter()
        replies = self.engine.ask(request)
        names = self._averaged(call.step)
        held = {name: [(clients, part[name]) for clients, part in replies.parts] for name in names if name in replies}
        for name, parts in held.items():
            self._held[call.step, call.turn, name] = parts
        losses = [(label, clients, loss.detach().cpu().numpy()) for label, clients, loss in self.engine.losses()]
        sizes = {name: sum(count_bytes(Tree(held=branch)) for _, branch in parts) for name, parts in held.items()}
        sums = {
            name: VotedSum(
                votes, add_up([(clients, part[name], part[votes].double()) for clients, part in replies.parts])
            )
            for name, votes in call.votes.items()
            if name in held and votes in replies
        }
        parts = travelling(replies, held)
        return Answer(parts, losses, sizes, sums, time.perf_counter() - begun)

    def _averaged(self, step: str) -> list[str]:
        """Returns the fields of a step's replies that its method only ever averages; none where sums do not suffice for
        that."""
        assert self._setup is not None
        if self._setup.average.robust:
            return []
        fields = (name.split("/", 1) for name in self._setup.method.averages)
        return [field for name, field in fields if name == step]

    def sum_held(self, step: str, turn: int, field: str, votes: Mapping[int, float]) -> Sum:
        """Returns the sum of a field that was kept here over this worker's clients, each times its vote."""
        begun = time.perf_counter()
        parts = []
        for clients, branch in self._held[step, turn, field]:
            own = torch.tensor([votes[client] for client in clients], dtype=torch.float64, device=self._device)
            parts.append((clients, branch, own))
        return Sum(add_up(parts), time.perf_counter() - begun)

    def state(self) -> Rows:
        """Returns what every client keeps."""
        return stack_alike(self.engine.state())

    def versions(self) -> dict[int, int]:
        """Returns a number for every client that was ever asked, another one whenever its state has changed."""
        return dict(self._on_demand.state().versions)

    def read_states(self, clients: Sequence[int]) -> Rows:
        """Returns the states of the first of these clients, so many that they travel together."""
        return stack_alike(next(self._on_demand.state().batches(clients, TRAVEL_BYTES), {}))

    @property
    def _on_demand(self) -> OnDemand:
        assert isinstance(self._engine, OnDemand)
        return self._engine

    def keep_copy(self, key: int, fields: Collection[str] | None, clients: Collection[int] | None = None) -> None:
        """Keeps a copy of these fields of what all or some clients keep, until it is dropped."""
        self._copies[key] = self.engine.copy_state(fields, clients)

    def fetch_copy(self, key: int, clients: Collection[int] | None = None) -> Rows:
        copied = self._copies.get(key, {})
        return stack_alike(copied if clients is None else {client: copied[client] for client in clients})

    def drop_copy(self, key: int) -> None:
        self._copies.pop(key, None)

    def restore(self, rows: Rows) -> None:
        """Goes on from a state of before."""
        self.engine.restore(unstack(rows))
        self._held.clear()

    def add_states(self, rows: Rows) -> None:
        """Takes further states of before, where they do not come at once."""
        self._on_demand.add_states(unstack(rows))


def request_of(call: StepCall, message: Arrays | None) -> Request:
    """Returns what the engine of a worker is asked."""
    mail = None
    if call.senders is not None and call.links is not None:
        mail = Mail(call.senders, to_tree(message), to_tensor(call.links))
        message = None
    each = None if call.each is None else unstack(call.each)
    return Request(call.step, call.round, call.clients, to_tree(message), each, call.turn, mail)


def add_up(parts: Sequence[tuple[list[int], Any, Tensor]]) -> Arrays:
    """Returns the sum over clients, each times its vote, on the host; integer leaves are the first client's."""
    in_order = sorted(parts, key=lambda part: min(part[0]))
    total, _ = fetch(add_sums([weighted_sum(Tree(sum=branch), votes) for _, branch, votes in in_order]), None)
    return to_arrays(total) or {}


def travelling(replies: Replies, held: Collection[str]) -> Rows:
    """Returns replies without what is held back, on the host after one copy."""
    parts = [
        (clients, Tree({name: branch for name, branch in part.items() if name not in held}))
        for clients, part in replies.parts
    ]
    fetched, _ = fetch(Tree({str(index): part for index, (_, part) in enumerate(parts)}), None)
    return [(clients, to_arrays(fetched.get(str(index), {})) or {}) for index, (clients, _) in enumerate(parts)]
