"""Whole steps as CUDA graphs: recorded once, then replayed without a single launch from Python.

A step is a function of its message, the fleet's state and the fleet's random keys. All three live in fixed buffers
that are filled before a replay; what the step returns is copied out, so that nobody holds a buffer the next replay
will overwrite. Everything Python decides while a step is recorded stays decided: a step that looks at
`fleet.round` is therefore never recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graft.fleet import Fleet
from graft.randomness import Stream
from graft.weights import Tree, leaves, map_tree, spread


class Recorder:
    """The recorded steps of one fleet."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()
        self._recorded: dict[Any, Recording] = {}

    def run(self, function: Callable[..., Any], fleet: Fleet, step: str, message: Any) -> Any:
        """Run a step: plainly the first time, recorded the second, replayed from then on."""
        # The first run may create state (optimisers); only what stays the same from call to call can be replayed.
        key = (step, shape_of(message), shape_of(fleet.state))
        recording = self._recorded.get(key)
        if recording is not None:
            return recording.replay(fleet, message)
        if key in self._seen and not fleet.looked_at_round:
            recording = self._recorded[key] = Recording(function, fleet, message)
            return recording.replay(fleet, message)
        self._seen.add(key)
        return function(fleet, *given(message, fleet))


class Recording:
    """One step as a CUDA graph."""

    def __init__(self, function: Callable[..., Any], fleet: Fleet, message: Any) -> None:
        self.message = None if message is None else map_tree(lambda leaf: held(leaf, fleet), message)
        self.state = map_tree(torch.clone, fleet.state)
        self.keys = fleet.random.keys.clone()
        before, keys = fleet.state, fleet.random
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):  # libraries set themselves up on the first call, which cannot be recorded
            self._call(function, fleet)
        torch.cuda.current_stream().wait_stream(warm_up)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.reply = self._call(function, fleet)
            self.after, self.losses = fleet.state, fleet.losses
        fleet.state, fleet.random = before, keys

    def _call(self, function: Callable[..., Any], fleet: Fleet) -> Any:
        # Trees are copied, tensors are not: the optimiser works in place on the fixed buffers.
        fleet.state = map_tree(lambda leaf: leaf, self.state)
        fleet.random, fleet.losses = Stream(self.keys), {}
        return function(fleet, *given(self.message, fleet))

    def replay(self, fleet: Fleet, message: Any) -> Any:
        pairs = [(self.keys, fleet.random.keys), *paired(self.state, fleet.state)]
        if message is not None:
            pairs += paired(self.message, map_tree(lambda leaf: held(leaf, fleet), message))
        moved = [(into, out) for into, out in pairs if into is not out]
        torch._foreach_copy_([into for into, _ in moved], [out for _, out in moved])
        self.graph.replay()
        fleet.state = map_tree(lambda leaf: leaf, self.after)
        fleet.losses = {name: loss.clone() for name, loss in self.losses.items()}
        return map_tree(torch.clone, self.reply)


def given(message: Any, fleet: Fleet) -> list[Any]:
    """The message as a step receives it: with a client axis."""
    return [] if message is None else [spread(message, len(fleet.clients), fleet.device)]


def held(leaf: Any, fleet: Fleet) -> Tensor:
    return torch.as_tensor(leaf, device=fleet.device)


def paired(first: Tree, second: Tree) -> list[tuple[Tensor, Tensor]]:
    return [(one, two) for (_, one), (_, two) in zip(leaves(first), leaves(second), strict=True)]


def shape_of(tree: Any) -> Any:
    if tree is None:
        return None
    return tuple((path, tuple(leaf.shape) if isinstance(leaf, Tensor) else ()) for path, leaf in leaves(tree))
