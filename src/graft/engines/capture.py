"""Whole steps as CUDA graphs: recorded once, then replayed without a single launch from Python.

A step is a function of its message, the fleet's state and the fleet's random keys. All three live in fixed buffers
that are filled before a replay; what the step returns is copied out, so that nobody holds a buffer the next replay
will overwrite. Everything Python decides while a step is recorded stays decided: a step that looks at
`fleet.round` is therefore never recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graft.fleet import Fleet
from graft.randomness import Stream
from graft.weights import Tree, leaves, map_tree, spread


class Message(NamedTuple):
    """What a step is given: a tree for all clients, a tree with a row a client, both or neither."""

    common: Any = None
    own: Any = None


class Recorder:
    """The recorded steps of one fleet, and the fixed buffers that hold its state from then on."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        """Without a stream it gets one of its own: what runs at the same time must not share library buffers."""
        self.stream = torch.cuda.Stream() if stream is None else stream  # type: ignore[no-untyped-call]
        self._seen: set[Any] = set()
        self._never: set[str] = set()
        self._states: dict[Any, Tree] = {}
        self.recordings: dict[Any, Recording] = {}

    def run(self, function: Callable[..., Any], fleet: Fleet, step: str, message: Message) -> Any:
        """Run a step: plainly the first time, recorded the second, replayed from then on; `join` before use."""
        here = torch.cuda.current_stream()
        if here != self.stream:
            self.stream.wait_stream(here)
            # What is let go of here may have been made there: its memory must not be reused before it was read.
            for _, leaf in (*leaves(fleet.state), *leaves(message.own or {})):
                if leaf.is_cuda:
                    leaf.record_stream(self.stream)
        with torch.cuda.stream(self.stream):
            return self._run(function, fleet, step, message)

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
            self.recordings[key] = Recording(function, fleet, self._states[shape], message, self.stream)
            return self.recordings[key].replay(fleet, message)
        self._seen.add(key)
        reply = function(fleet, *given(message, fleet))
        if fleet.looked_at_round:
            self._never.add(step)
        return reply


class Recording:
    """One step as a CUDA graph."""

    def __init__(
        self, function: Callable[..., Any], fleet: Fleet, state: Tree, message: Message, stream: torch.cuda.Stream
    ) -> None:
        self.state = state
        fixed_copy = partial(map_tree, lambda leaf: held(leaf, fleet).clone())
        self.message = Message(*(None if part is None else fixed_copy(part) for part in message))
        self.keys = fleet.random.keys.clone()
        before, random = fleet.state, fleet.random
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            fleet.state = shallow(state)  # optimisers work in place on the fixed buffers
            fleet.random, fleet.losses = Stream(self.keys), {}
            reply = function(fleet, *given(self.message, fleet))
            # What is read from a fixed buffer must be safe before anything is written into one.
            fixed = {leaf.data_ptr() for _, leaf in leaves(state)}
            self.reply = map_tree(lambda leaf: leaf.clone() if leaf.data_ptr() in fixed else leaf, reply)
            changed = [(into, leaf) for into, leaf in paired(state, fleet.state) if leaf is not into]
            changed = [(into, leaf.clone() if leaf.data_ptr() in fixed else leaf) for into, leaf in changed]
            copy_all(changed)
            self.losses = fleet.losses
        fleet.state, fleet.random = before, random

    def replay(self, fleet: Fleet, message: Message) -> Any:
        pairs = [(self.keys, fleet.random.keys), *paired(self.state, fleet.state)]
        for buffer, part in zip(self.message, message, strict=True):
            if part is not None:
                pairs += paired(buffer, map_tree(lambda leaf: held(leaf, fleet), part))
        copy_all([(into, leaf) for into, leaf in pairs if leaf is not into])
        self.graph.replay()
        fleet.state = shallow(self.state)
        fleet.losses = {name: loss.clone() for name, loss in self.losses.items()}
        return map_tree(torch.clone, self.reply)


@lru_cache(maxsize=1)
def side_stream() -> torch.cuda.Stream:
    """The stream that all recording happens on; CUDA cannot record its default one."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def lane(device: torch.device) -> AbstractContextManager[Any]:
    """Do everything on the stream that recording needs: each further stream costs the libraries 64 MB."""
    return torch.cuda.stream(side_stream()) if device.type == "cuda" else nullcontext()


def given(message: Message, fleet: Fleet) -> list[Any]:
    """The message as a step receives it: with a client axis, and as one tree."""
    parts = []
    if message.common is not None:
        parts.append(spread(message.common, len(fleet.clients), fleet.device))
    if message.own is not None:
        parts.append(map_tree(lambda leaf: leaf.to(fleet.device), message.own))
    return [Tree({name: branch for part in parts for name, branch in part.items()})] if parts else []


def held(leaf: Any, fleet: Fleet) -> Tensor:
    return torch.as_tensor(leaf, device=fleet.device)


def shallow(tree: Tree) -> Tree:
    return map_tree(lambda leaf: leaf, tree)  # type: ignore[no-any-return]


def paired(first: Tree, second: Tree) -> list[tuple[Tensor, Tensor]]:
    others = dict(leaves(second))
    return [(leaf, others[path]) for path, leaf in leaves(first)]


def copy_all(pairs: list[tuple[Tensor, Tensor]]) -> None:
    if pairs:
        torch._foreach_copy_([into for into, _ in pairs], [leaf for _, leaf in pairs])


def shape_of(tree: Any) -> Any:
    if tree is None:
        return None
    return tuple((path, tuple(leaf.shape) if isinstance(leaf, Tensor) else ()) for path, leaf in leaves(tree))
