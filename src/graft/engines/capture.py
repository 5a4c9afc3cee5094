"""Whole rounds, or at least whole steps, as CUDA graphs: recorded once, then replayed without a launch from Python.

A round is a function of what the server and the clients keep and of the seeds of this round. These live in fixed
buffers; seeds are filled in before a replay, and what a round found out is fetched after it, all in one go. Everything
Python decides while a round is recorded stays decided: so the rounds of a method that waits for the device (to look at
a value), or that looks at the number of the round, are never recorded, but those of its steps are that do neither.

A step is a function of its message, the fleet's state and the fleet's random keys. What it returns is copied out, so
that nobody holds a buffer the next replay will overwrite.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graft.errors import RunError
from graft.federation.exchange import Server
from graft.federation.fleet import Fleet
from graft.tensors.randomness import SeedBuffer, Stream
from graft.tensors.trees import Tree, broadcast_tree, flatten, map_tree, unflatten

Round = Callable[[], tuple[Tree, Any]]  # gives tensors that will be read, and facts that never change


class Message(NamedTuple):
    """What a step is given: a tree for all clients, a tree with a row a client, both or neither."""

    common: Any = None
    own: Any = None


class StepCapture:
    """The recorded steps of one fleet, and the fixed buffers that hold its state from then on."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        """Without a stream it gets one of its own: what runs at the same time must not share library buffers."""
        self.stream = torch.cuda.Stream() if stream is None else stream  # type: ignore[no-untyped-call]
        self._seen: set[Any] = set()
        self._never: set[str] = set()
        self._states: dict[Any, Tree] = {}
        self.recordings: dict[Any, CapturedStep] = {}

    def run(self, function: Callable[..., Any], fleet: Fleet, step: str, message: Message) -> Any:
        """Run a step: plainly the first time, recorded the second, replayed from then on; `join` before use."""
        with self.beside(fleet, message):
            return self._run(function, fleet, step, message)

    @contextmanager
    def beside(self, fleet: Fleet, message: Message) -> Iterator[None]:
        """Do something for a fleet on its own stream, next to what other fleets do; `join` before use."""
        here = torch.cuda.current_stream()
        if here != self.stream:
            self.stream.wait_stream(here)
            # What is let go of here may have been made there: its memory must not be reused before it was read.
            for _, leaf in (*flatten(fleet.state), *flatten(message.own or {})):
                if leaf.is_cuda:
                    leaf.record_stream(self.stream)
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for what was started here."""
        torch.cuda.current_stream().wait_stream(self.stream)

    def _run(self, function: Callable[..., Any], fleet: Fleet, step: str, message: Message) -> Any:
        # The first run may create state (optimisers); only what stays the same from call to call can be replayed.
        shape = shape_of(fleet.state)
        key = (step, *map(shape_of, message), shape)
        if key in self.recordings:
            return self.recordings[key].replay(fleet, message)
        if key in self._seen and step not in self._never:
            if shape not in self._states:
                self._states[shape] = map_tree(torch.clone, fleet.state)
            self.recordings[key] = CapturedStep(function, fleet, self._states[shape], message, self.stream)
            return self.recordings[key].replay(fleet, message)
        self._seen.add(key)
        reply = function(fleet, *step_arguments(message, fleet))
        if fleet.looked_at_round:
            self._never.add(step)
        return reply


class CapturedStep:
    """One step as a CUDA graph."""

    def __init__(
        self, function: Callable[..., Any], fleet: Fleet, state: Tree, message: Message, stream: torch.cuda.Stream
    ) -> None:
        self.state = state
        fixed_copy = partial(map_tree, lambda leaf: on_device(leaf, fleet).clone())
        self.message = Message(*(None if part is None else fixed_copy(part) for part in message))
        self.keys = fleet.random.keys.clone()
        before, random = fleet.state, fleet.random
        self.graph = torch.cuda.CUDAGraph()
        with capturing(self.graph, stream):
            fleet.state = shallow_copy(state)  # optimisers work in place on the fixed buffers
            fleet.random, fleet.losses = Stream(self.keys), {}
            reply = function(fleet, *step_arguments(self.message, fleet))
            fixed = storages([state])
            self.reply = map_tree(lambda leaf: clone_if_shared(fixed, leaf), reply)
            write_back([state], [fleet.state])
            self.losses = fleet.losses
        fleet.state, fleet.random = before, random

    def replay(self, fleet: Fleet, message: Message) -> Any:
        pairs = [(self.keys, fleet.random.keys), *leaf_pairs(self.state, fleet.state)]
        for buffer, part in zip(self.message, message, strict=True):
            if part is not None:
                pairs += leaf_pairs(buffer, map_tree(lambda leaf: on_device(leaf, fleet), part))
        copy_all([(into, leaf) for into, leaf in pairs if leaf is not into])
        self.graph.replay()
        fleet.state = shallow_copy(self.state)
        fleet.losses = {name: loss.clone() for name, loss in self.losses.items()}
        return map_tree(torch.clone, self.reply)


class RoundCapture:
    """The recorded rounds of a federation, and the fixed buffers that hold what everybody keeps from then on."""

    def __init__(self, fleets: list[Fleet], device: torch.device) -> None:
        self._fleets = fleets
        self._device = device
        self._played: Counter[Any] = Counter()
        self._kept: list[Tree] = []  # of the server and of every fleet
        self.recordings: dict[Any, CapturedRound] = {}
        self.possible = True  # until a method is seen to wait for the device or to look at the round
        self.watching = False
        self.waits: list[str] = []  # where Python was seen to wait
        self.slots: SeedBuffer | None = None  # where seeds come from while a round is recorded

    def play(self, server: Server, kind: Any, play: Round) -> tuple[Tree, Any]:
        """Play a round: plainly the first time, watched the second, recorded the third, replayed from then on."""
        if kind in self.recordings:
            return self.recordings[kind].replay(server)
        self._played[kind] += 1
        if self._played[kind] == 1:  # it may create state, and what is computed once for all rounds
            return fetch(*play())
        if self._played[kind] == 2:
            self.watching = True
            with watch_synchronisation() as self.waits:
                values, facts = play()
            self.watching = False
            plain = not all(isinstance(leaf, Tensor) for _, leaf in flatten(server.state))
            self.possible = self.possible and not (self.waits or plain or server.looked_at_round)
            return fetch(values, facts)
        keepers: list[Server | Fleet] = [server, *self._fleets]
        self._kept = self._kept or [map_tree(torch.clone, keeper.state) for keeper in keepers]
        before = [keeper.state for keeper in keepers]
        self.slots = server.slots = SeedBuffer(self._device)
        try:
            self.recordings[kind] = CapturedRound(server, self._fleets, self._kept, self.slots, play)
        except (RuntimeError, RunError) as error:  # not enough memory for one more copy, say
            self.possible = False
            raise NotCaptured(str(error)) from error
        finally:
            self.slots = server.slots = None
            for keeper, state in zip(keepers, before, strict=True):
                keeper.state = state
        return self.recordings[kind].replay(server)


class NotCaptured(RunError):
    """A round could not be recorded; nothing has happened, and it can be played plainly."""


class CapturedRound:
    """One round as a CUDA graph."""

    def __init__(self, server: Server, fleets: list[Fleet], kept: list[Tree], slots: SeedBuffer, play: Round) -> None:
        self._fleets, self._kept, self._slots = fleets, kept, slots
        keepers: list[Server | Fleet] = [server, *fleets]
        self._graph = torch.cuda.CUDAGraph()
        with capturing(self._graph, torch.cuda.current_stream()):
            for keeper, state in zip(keepers, kept, strict=True):
                keeper.state = shallow_copy(state)  # optimisers work in place on the fixed buffers
            values, self._facts = play()
            self._bytes, self._layout = pack_bytes(values)
            write_back(kept, [keeper.state for keeper in keepers])

    def replay(self, server: Server) -> tuple[Tree, Any]:
        keepers: list[Server | Fleet] = [server, *self._fleets]
        for keeper, state in zip(keepers, self._kept, strict=True):
            if not same_leaves(state, keeper.state):
                copy_all([(into, leaf) for into, leaf in leaf_pairs(state, keeper.state) if leaf is not into])
                keeper.state = shallow_copy(state)
        self._slots.fill(server.at)
        self._graph.replay()
        return unpack_bytes(self._bytes.cpu(), self._layout), self._facts


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """Record what is done here; an old graph that the garbage collector found meanwhile would end the recording."""
    with torch.cuda.graph(graph, stream=stream):
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()


@contextmanager
def watch_synchronisation() -> Iterator[list[str]]:
    """Note every time that Python waits for the device."""
    waits: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it may not see every wait
        torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in said:
        if "synchronizing CUDA operation" in str(warning.message):
            waits.append(f"{warning.filename}:{warning.lineno}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


Layout = list[tuple[str, torch.Size, torch.dtype]]


def fetch(values: Tree, facts: Any) -> tuple[Tree, Any]:
    """What a round found out, fetched in one go; what a method worked out on the host is there already."""
    there = Tree({path: leaf for path, leaf in flatten(values) if leaf.is_cuda})
    if not there:
        return values, facts
    data, layout = pack_bytes(there)
    return unflatten(dict(flatten(values)) | dict(flatten(unpack_bytes(data.cpu(), layout)))), facts


def pack_bytes(values: Tree) -> tuple[Tensor, Layout]:
    """A tree of tensors as bytes, the widest numbers first so that each begins at a multiple of its size."""
    flat = sorted(flatten(values), key=lambda pair: -pair[1].element_size())
    layout = [(path, leaf.shape, leaf.dtype) for path, leaf in flat]
    parts = [leaf.detach().reshape(-1).view(torch.uint8) for _, leaf in flat]
    return (torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)), layout


def unpack_bytes(data: Tensor, layout: Layout) -> Tree:
    values, start = {}, 0
    for path, shape, dtype in layout:
        size = shape.numel() * dtype.itemsize
        values[path] = data[start : start + size].view(dtype).view(shape)
        start += size
    return unflatten(values)


@lru_cache(maxsize=1)
def side_stream() -> torch.cuda.Stream:
    """The stream that all recording happens on; CUDA cannot record its default one."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@contextmanager
def capture_stream(device: torch.device) -> Iterator[None]:
    """Do everything on the stream that recording needs: each further stream costs the libraries 64 MB."""
    if device.type != "cuda":
        yield
        return
    here, side = torch.cuda.current_stream(), side_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        yield
    here.wait_stream(side)


def step_arguments(message: Message, fleet: Fleet) -> list[Any]:
    """The message as a step receives it: with a client axis, and as one tree."""
    parts = []
    if message.common is not None:
        parts.append(broadcast_tree(message.common, len(fleet.clients), fleet.device))
    if message.own is not None:
        parts.append(map_tree(lambda leaf: leaf.to(fleet.device), message.own))
    return [Tree({name: branch for part in parts for name, branch in part.items()})] if parts else []


def on_device(leaf: Any, fleet: Fleet) -> Tensor:
    return torch.as_tensor(leaf, device=fleet.device)


def write_back(kept: list[Tree], now: list[Tree]) -> None:
    """Write what changed into the fixed buffers; what is read from one must be safe before any is written into."""
    fixed = storages(kept)
    changed = [
        pair for old, new in zip(kept, now, strict=True) for pair in leaf_pairs(old, new) if pair[0] is not pair[1]
    ]
    copy_all([(into, clone_if_shared(fixed, leaf)) for into, leaf in changed])


def storages(trees: list[Tree]) -> set[int]:
    """The memory that the leaves of some trees are in."""
    return {storage_of(leaf) for tree in trees for _, leaf in flatten(tree)}


def clone_if_shared(fixed: set[int], leaf: Tensor) -> Tensor:
    return leaf.clone() if storage_of(leaf) in fixed else leaf


def storage_of(leaf: Tensor) -> int:
    """The memory that a tensor is a view of."""
    return leaf.untyped_storage().data_ptr()


def shallow_copy(tree: Tree) -> Tree:
    return map_tree(lambda leaf: leaf, tree)  # type: ignore[no-any-return]


def same_leaves(first: Any, second: Any) -> bool:
    """Whether two trees hold the very same tensors."""
    if not isinstance(first, dict):
        return first is second
    return len(first) == len(second) and all(
        name in second and same_leaves(branch, second[name]) for name, branch in first.items()
    )


def leaf_pairs(first: Tree, second: Tree) -> list[tuple[Tensor, Tensor]]:
    others = dict(flatten(second))
    return [(leaf, others[path]) for path, leaf in flatten(first)]


def copy_all(pairs: list[tuple[Tensor, Tensor]]) -> None:
    if pairs:
        torch._foreach_copy_([into for into, _ in pairs], [leaf for _, leaf in pairs])


def shape_of(tree: Any) -> Any:
    if tree is None:
        return None
    return tuple((path, tuple(leaf.shape) if isinstance(leaf, Tensor) else ()) for path, leaf in flatten(tree))
