"""Whole rounds, or at least whole steps, as CUDA graphs: captured once, then replayed without a launch from Python.

A round is a function of what the server and the clients keep, of its seeds and of its number. These live in fixed
buffers, which are written before a replay; what a round found out is fetched after it in one copy. Everything that
Python decides while a round is captured stays decided. So a method declares whether its rounds can be captured, and the
second round proves it: one that waits for the device runs step by step, and state that a replay would not change, on
another device or in Python, is an error.

A step is a function of its message, the fleet's state, its random keys and the round's number. What it returns is
copied out, so that nobody holds a buffer which the next replay will overwrite.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graft.engines.client_group import ClientGroup, shallow_copy, storage_of
from graft.engines.fetching import fetch, pack_bytes, unpack_bytes
from graft.errors import RunError
from graft.federation.clients import Round
from graft.federation.fleet import Call, Fleet
from graft.federation.server import Server
from graft.tensors.randomness import SeedBuffer, Stream
from graft.tensors.trees import Tree, broadcast_tree, flatten, map_tree


class Message(NamedTuple):
    """What a step is given: a tree for all clients, a tree with a row a client, both or neither."""

    common: Any = None
    own: Any = None


StepFunction = Callable[..., Any]
CHANGES_PYTHON = "a module changes what it keeps in Python"


class StepCapture:
    """The captured steps of one group of clients, and the fixed buffers that hold its state from then on."""

    def __init__(self, stream: torch.cuda.Stream, *, watched: bool = False) -> None:
        """Steps that may do anything, since a user's module is part of them, are `watched` before they are captured."""
        self.stream = stream
        self._watched = watched
        self._seen: Counter[Any] = Counter()
        self._plain: set[Any] = set()  # steps that cannot be captured
        self._states: dict[Any, Tree] = {}
        self.captured: dict[Any, CapturedStep] = {}

    def run(self, function: StepFunction, group: ClientGroup, fleet: Fleet, step: str, message: Message) -> Any:
        """Runs a step: plainly the first time (or two), captured the second, then replayed; `join` before use."""
        with self.beside(fleet, message):
            # The first run may create state (optimisers); only what stays the same from call to call can be replayed.
            shape = shape_of(group.state)
            key = (step, *map(shape_of, message), shape)
            if key not in self.captured and key not in self._plain:
                self._seen[key] += 1
                if self._watched and self._seen[key] == 2:
                    return self._watch(key, function, fleet, message)
                if self._seen[key] > 1 + self._watched:
                    self._capture(key, function, group, fleet, message)
            if key in self.captured:
                return self.captured[key].replay(group, fleet, message)
            return function(fleet, *step_arguments(message, fleet))

    def _capture(self, key: Any, function: StepFunction, group: ClientGroup, fleet: Fleet, message: Message) -> None:
        shape = key[-1]
        if shape not in self._states:
            self._states[shape] = map_tree(torch.clone, group.state)
        try:
            self.captured[key] = CapturedStep(function, fleet, self._states[shape], message, self.stream)
        except RuntimeError as error:
            if not self._watched:
                raise
            self._run_plainly(key, str(error).partition("\n")[0])

    def _watch(self, key: Any, function: StepFunction, fleet: Fleet, message: Message) -> Any:
        """Runs a step, and finds out whether a replay would do the same."""
        waits: list[str] = []
        before = fleet.model.host_state()
        with watch_synchronisation(waits):
            reply = function(fleet, *step_arguments(message, fleet))
        if waits:
            self._run_plainly(key, f"Python waits for the device at {', '.join(waits[:3])}")
        elif fleet.model.host_state() != before:
            self._run_plainly(key, CHANGES_PYTHON)
        return reply

    def _run_plainly(self, key: Any, reason: str) -> None:
        self._plain.add(key)
        warnings.warn(f"Step '{key[0]}' is not captured: {reason}.", RuntimeWarning, stacklevel=3)

    @contextmanager
    def beside(self, fleet: Fleet, message: Message) -> Iterator[None]:
        """Runs something for a group on its own stream, next to what other groups do; `join` before use."""
        here = torch.cuda.current_stream()
        if here != self.stream:
            self.stream.wait_stream(here)
            # What is made here is read there: its memory must not be reused before that.
            leaves = [leaf for tree in (fleet.state, message.own or {}) for _, leaf in flatten(tree)]
            for leaf in (fleet.random.keys, *leaves):
                if leaf.is_cuda:
                    leaf.record_stream(self.stream)
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Lets the current stream wait for what was started here."""
        torch.cuda.current_stream().wait_stream(self.stream)


class CapturedStep:
    """One step as a CUDA graph."""

    def __init__(
        self, function: StepFunction, fleet: Fleet, state: Tree, message: Message, stream: torch.cuda.Stream
    ) -> None:
        self.state = state
        fixed_copy = partial(map_tree, lambda leaf: on_device(leaf, fleet).clone())
        self.message = Message(*(None if part is None else fixed_copy(part) for part in message))
        self.keys = fleet.random.keys.clone()
        self.round = torch.zeros((), dtype=torch.int64, device=fleet.device)
        self.graph = torch.cuda.CUDAGraph()
        call = Call(self.round, Stream(self.keys))
        captured = shallow_copy(state)  # optimisers work in place on the fixed buffers
        with capturing(self.graph, stream):
            view = replace(fleet, state=captured, call=call)
            reply = function(view, *step_arguments(self.message, view))
            fixed = storages([state])
            self.reply = map_tree(lambda leaf: clone_if_shared(fixed, leaf), reply)
            write_back([state], [captured])
            self.losses = call.losses

    def replay(self, group: ClientGroup, fleet: Fleet, message: Message) -> Any:
        """Replays the step for the state of its group, the random keys of a call and a message."""
        pairs = [(self.keys, fleet.random.keys), *leaf_pairs(self.state, group.state)]
        for buffer, part in zip(self.message, message, strict=True):
            if part is not None:
                pairs += leaf_pairs(buffer, map_tree(lambda leaf: on_device(leaf, fleet), part))
        copy_all([(target, leaf) for target, leaf in pairs if leaf is not target])
        number = fleet.call.number
        self.round.copy_(number) if isinstance(number, Tensor) else self.round.fill_(number)
        self.graph.replay()
        group.state = shallow_copy(self.state)
        fleet.call.losses.update({name: loss.clone() for name, loss in self.losses.items()})
        return map_tree(torch.clone, self.reply)


class RoundCapture:
    """The captured rounds of a federation, and the fixed buffers that hold what everybody keeps from then on."""

    def __init__(self, groups: list[ClientGroup], device: torch.device) -> None:
        self._groups = groups
        self._device = device
        self._executed: Counter[Any] = Counter()
        self._buffers: list[Tree] = []  # of the server and of every group
        self.captured: dict[Any, CapturedRound] = {}
        self.possible = True  # until a round is seen to wait for the device
        self.watching = False
        self.waits: list[str] = []  # where Python was seen to wait
        self.seeds: SeedBuffer | None = None  # where seeds come from while a round is captured

    def execute(self, server: Server, kind: Any, round: Round) -> tuple[Tree, Any]:
        """Runs a round: plainly the first time, watched the second, captured the third, replayed from then on."""
        if kind in self.captured:
            return self.captured[kind].replay(server)
        self._executed[kind] += 1
        if self._executed[kind] == 1:  # it may create state, and what is computed once for all rounds
            return fetch(*round())
        if self._executed[kind] == 2:
            return self._watch(server, round)
        return self._capture(server, kind, round)

    def _watch(self, server: Server, round: Round) -> tuple[Tree, Any]:
        """Runs a round and proves that all it changes would change in a replay, too."""
        before, modules = self._host_values(server), self._module_states()
        self.watching, self.waits = True, []
        with watch_synchronisation(self.waits):
            tensors, facts = round()
        self.watching = False
        if self.waits:
            self._give_up(f"Python waits for the device at {', '.join(self.waits[:3])}")
        elif self._module_states() != modules:
            self._give_up(CHANGES_PYTHON)
        elif self.possible:
            self._check_state(server)
            if self._host_values(server) != before:
                raise RunError(
                    "A round that is declared capturable changes a cache in Python, which a replay would not do: keep "
                    "what changes as tensors of the state, or declare capturable = False."
                )
        return fetch(tensors, facts)

    def _give_up(self, reason: str) -> None:
        self.possible = False
        warnings.warn(f"Rounds are not captured as a whole: {reason}.", RuntimeWarning, stacklevel=3)

    def _module_states(self) -> list[Any]:
        return [group.fleet.model.host_state() for group in self._groups]

    def _host_values(self, server: Server) -> list[Any]:
        caches = [server.cache, *(cache for group in self._groups for cache in group.fleet.caches)]
        return [{key: host_value(value) for key, value in cache.items()} for cache in caches]

    def _check_state(self, server: Server) -> None:
        for owner, state in (("the server", server.state), *(("clients", group.state) for group in self._groups)):
            for path, leaf in flatten(state):
                if not isinstance(leaf, Tensor) or leaf.device.type != self._device.type:
                    where = f"on the {leaf.device.type}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
                    raise RunError(
                        f"State '{path}' of {owner} is {where}, so a captured round would never change it: keep it as "
                        f"a tensor on the {self._device.type}, or declare capturable = False."
                    )

    def _capture(self, server: Server, kind: Any, round: Round) -> tuple[Tree, Any]:
        keepers: list[Server | ClientGroup] = [server, *self._groups]
        self._buffers = self._buffers or [map_tree(torch.clone, keeper.state) for keeper in keepers]
        before = [keeper.state for keeper in keepers]
        self.seeds = server.seeds = SeedBuffer(self._device)
        try:
            self.captured[kind] = CapturedRound(server, self._groups, self._buffers, self.seeds, round)
        except (RuntimeError, RunError) as error:  # not enough memory for one more copy, say
            self.possible = False
            raise NotCaptured(str(error)) from error
        finally:
            self.seeds = server.seeds = None
            for keeper, state in zip(keepers, before, strict=True):
                keeper.state = state
        return self.captured[kind].replay(server)


class NotCaptured(RunError):
    """A round could not be captured; nothing has happened, and it can be run plainly."""


class CapturedRound:
    """One round as a CUDA graph."""

    def __init__(
        self, server: Server, groups: list[ClientGroup], buffers: list[Tree], seeds: SeedBuffer, round: Round
    ) -> None:
        self._groups, self._buffers, self._seeds = groups, buffers, seeds
        keepers: list[Server | ClientGroup] = [server, *groups]
        self._graph = torch.cuda.CUDAGraph()
        with capturing(self._graph, torch.cuda.current_stream()):
            for keeper, buffer in zip(keepers, buffers, strict=True):
                keeper.state = shallow_copy(buffer)  # optimisers work in place on the fixed buffers
            tensors, self._facts = round()
            self._bytes, self._layout = pack_bytes(tensors)
            write_back(buffers, [keeper.state for keeper in keepers])

    def replay(self, server: Server) -> tuple[Tree, Any]:
        """Replays the round for what the server and the clients keep by now."""
        keepers: list[Server | ClientGroup] = [server, *self._groups]
        for keeper, buffer in zip(keepers, self._buffers, strict=True):
            if not same_leaves(buffer, keeper.state):
                copy_all([(target, leaf) for target, leaf in leaf_pairs(buffer, keeper.state) if leaf is not target])
                keeper.state = shallow_copy(buffer)
        server.write_seeds(self._seeds)
        self._graph.replay()
        return unpack_bytes(self._bytes.cpu(), self._layout), self._facts


def host_value(value: Any) -> Any:
    """Returns something that tells whether a cached value changed: the plain value itself, or which object it is."""
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if isinstance(value, list | tuple):
        return [host_value(entry) for entry in value]
    return value if isinstance(value, int | float | str | bytes | None) else id(value)


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """Captures what is done here; an old graph that the garbage collector frees meanwhile would end the capture."""
    with torch.cuda.graph(graph, stream=stream):
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()


@contextmanager
def watch_synchronisation(waits: list[str]) -> Iterator[None]:
    """Adds the places where Python waits for the device to a list."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it may not see every wait
        torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in caught:
        if "synchronizing CUDA operation" in str(warning.message):
            waits.append(f"{warning.filename}:{warning.lineno}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


STREAMS = 8  # that fleets are captured on, side by side: at the same time they must not share library buffers


def capture_streams(count: int) -> list[torch.cuda.Stream]:
    """Returns a stream for each of so many fleets, some of them the same; the first is that of everything else."""
    streams = [side_stream(), *(torch.cuda.Stream() for _ in range(min(count, STREAMS) - 1))]
    return [streams[index % len(streams)] for index in range(count)]


@lru_cache(maxsize=1)
def side_stream() -> torch.cuda.Stream:
    """Returns the stream that all capturing happens on; CUDA cannot capture its default one."""
    return torch.cuda.Stream()


@contextmanager
def capture_stream(device: torch.device) -> Iterator[None]:
    """Runs everything on the stream that capturing needs: each further stream costs the libraries 64 MB."""
    if device.type != "cuda":
        yield
        return
    here, side = torch.cuda.current_stream(), side_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        yield
    here.wait_stream(side)


def step_arguments(message: Message, fleet: Fleet) -> list[Any]:
    """Returns the message as a step receives it: with a client axis, and as one tree."""
    parts = []
    if message.common is not None:
        parts.append(broadcast_tree(message.common, len(fleet.clients), fleet.device))
    if message.own is not None:
        parts.append(map_tree(lambda leaf: leaf.to(fleet.device), message.own))
    return [Tree({name: branch for part in parts for name, branch in part.items()})] if parts else []


def on_device(leaf: Any, fleet: Fleet) -> Tensor:
    return torch.as_tensor(leaf, device=fleet.device)


def write_back(buffers: list[Tree], now: list[Tree]) -> None:
    """Writes what changed into fixed buffers; what is read from one must be safe before any is written into."""
    fixed = storages(buffers)
    pairs = [pair for buffer, state in zip(buffers, now, strict=True) for pair in leaf_pairs(buffer, state)]
    copy_all([(target, clone_if_shared(fixed, leaf)) for target, leaf in pairs if target is not leaf])


def storages(trees: list[Tree]) -> set[int]:
    """Returns the memory that the leaves of some trees are in."""
    return {storage_of(leaf) for tree in trees for _, leaf in flatten(tree)}


def clone_if_shared(fixed: set[int], leaf: Tensor) -> Tensor:
    return leaf.clone() if storage_of(leaf) in fixed else leaf


def same_leaves(first: Any, second: Any) -> bool:
    """Returns whether two trees hold the very same tensors."""
    if not isinstance(first, dict):
        return first is second
    return len(first) == len(second) and all(
        name in second and same_leaves(branch, second[name]) for name, branch in first.items()
    )


def leaf_pairs(first: Tree, second: Tree) -> list[tuple[Tensor, Tensor]]:
    """Returns the leaves of two trees path by path."""
    others = dict(flatten(second))
    return [(leaf, others[path]) for path, leaf in flatten(first)]


def copy_all(pairs: list[tuple[Tensor, Tensor]]) -> None:
    if pairs:
        torch._foreach_copy_([target for target, _ in pairs], [leaf for _, leaf in pairs])


def shape_of(tree: Any) -> Any:
    """Returns the paths and shapes of a tree, to compare."""
    if tree is None:
        return None
    return tuple((path, tuple(leaf.shape) if isinstance(leaf, Tensor) else ()) for path, leaf in flatten(tree))
