"""Parties behind mutual TLS in processes that a measurement starts, and what their time goes into."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from graft.engines import kept_state, party
from graft.engines.forms import Forms
from graft.engines.kept_state import KeptState
from graft.engines.party import Journal, Party, Terms
from graft.engines.policy import Policy
from graft.engines.zenoh import ZenohNode
from graft.federation.setup import Setup
from graft.keys import key_files
from graft.machine import peak_ram

SERVER, RUN, NAMESPACE = "server", "measured", "measured"
PRELOADED = ["graft.engines.loopback", "graft.engines.zenoh", "graft.engines.rehearsal", "graft.methods", "graft.data"]
# What a party does for an exchange, by the functions that do it; each is timed without those within it.
PARTS = {
    "envelopes": [(party, "seal"), (party, "unseal")],
    "unpacking": [(party, "unpack")],
    "packing": [(party, "pack")],
    "checks": [(party, "check_message"), (party, "check_tree")],
    "computing": [(party, "run_step")],
    "packing of the state": [(kept_state, "message_parts")],
    "the disk": [(KeptState, "save"), (KeptState, "_commit")],
    "fsync": [(os, "fsync")],
    "journals": [(party, "described"), (Journal, "add")],
    "the rest of the party": [(Party, "handle")],
}


@dataclass(frozen=True)
class Membership:
    """What one party is started with."""

    name: str
    setup: Setup  # of this party alone
    keys: Path
    folder: Path  # of its own
    address: str  # of the server


class Clock:
    """Seconds that parts take in every exchange, those of the parts within them left out; one for every thread."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, float]] = []
        self._local = threading.local()

    def wrap(self, part: str, function: Callable[..., Any], outermost: bool = False) -> Callable[..., Any]:
        """Returns a function that is timed; the end of an outermost one is that of an exchange."""

        def timed(*arguments: Any, **options: Any) -> Any:
            local = self._local
            if outermost:
                local.parts, local.inner = defaultdict(float), [0.0]
            elif not hasattr(local, "parts"):
                return function(*arguments, **options)
            local.inner.append(0.0)
            begun = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                taken = time.perf_counter() - begun
                local.parts[part] += taken - local.inner.pop()
                local.inner[-1] += taken
                if outermost:
                    self.exchanges.append({**local.parts, "all": taken})
                    del local.parts

        return timed

    def install(self, parts: dict[str, list[tuple[Any, str]]], outermost: str) -> None:
        """Has functions timed from now on, wherever they are looked up."""
        for part, functions in parts.items():
            for where, name in functions:
                setattr(where, name, self.wrap(part, getattr(where, name), part == outermost))


class Rehearsed:
    """A step that computes, until it is told to reply at once what it replied before."""

    def __init__(self) -> None:
        self.at_once = False
        self._run_step = party.run_step
        self._replies: dict[tuple[int, str], Any] = {}

    def __call__(self, setup: Setup, fleet: Any, request: Any, message: Any) -> Any:
        key = id(fleet), request.step
        if not self.at_once or key not in self._replies:
            self._replies[key] = self._run_step(setup, fleet, request, message)
        return self._replies[key]


def open_party(membership: Membership, forms: Forms, stack: ExitStack) -> None:
    """Connects a party, which answers from then on until the stack is left."""
    membership.folder.mkdir(parents=True, exist_ok=True)
    terms = Terms(SERVER, RUN, membership.setup.rounds, forms)
    answering = Party(membership.setup, terms, Policy(scores="all", minimum_count=0), membership.folder)
    files = key_files(membership.keys, membership.name)
    node = ZenohNode(
        membership.name,
        files,
        answering.handle,
        others=[SERVER],
        connect=[membership.address],
        namespace=NAMESPACE,
    )
    stack.enter_context(closing(node))


def live(pipe: Connection, memberships: Sequence[Membership], forms: Forms, timed: bool) -> None:
    """The life of a process of parties: does as it is told until the pipe closes."""
    torch.set_num_threads(1)
    clock, rehearsed = Clock(), Rehearsed()
    party.run_step = rehearsed
    if timed:
        clock.install(PARTS, "the rest of the party")
    sync = os.fsync
    with ExitStack() as stack:
        for membership in memberships:
            open_party(membership, forms, stack)
        pipe.send("ready")
        while True:
            try:
                word = pipe.recv()
            except EOFError:
                return
            if word == "report":
                pipe.send({"exchanges": clock.exchanges[:], "cpu": time.process_time(), "peak": peak_ram()})
                clock.exchanges.clear()
            elif word in ("compute", "reply at once"):
                rehearsed.at_once = word == "reply at once"
                pipe.send(word)
            elif word in ("sync", "do not sync"):
                os.fsync = sync if word == "sync" else lambda descriptor: None  # noqa: ARG005
                pipe.send(word)


class PartyProcesses:
    """Processes of parties, each with one or several of them."""

    def __init__(self, groups: Sequence[Sequence[Membership]], forms: Forms, timed: bool = False) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._processes = []
        self._pipes = []
        for group in groups:
            here, there = context.Pipe()
            process = context.Process(target=live, args=(there, group, forms, timed), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)
        for pipe in self._pipes:
            pipe.recv()

    def tell(self, word: str) -> list[Any]:
        """Tells all processes something, and returns what they answer."""
        for pipe in self._pipes:
            pipe.send(word)
        return [pipe.recv() for pipe in self._pipes]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=30)
            if process.is_alive():
                process.kill()
                process.join()
