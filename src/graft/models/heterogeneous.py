"""Several architectures as one model, so that clients of different kinds are one fleet.

Whatever looks at all clients alike, as losses, copilots and optimisers do, then runs once for all of them; only the
layers themselves run kind by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch

from graft.graphs.fleet_graph import FleetGraph, Rows
from graft.models.architecture import Model, Output
from graft.tensors.randomness import Stream
from graft.tensors.trees import ARCHITECTURE_MARK, Weights, flatten


class ArchitectureGroup(NamedTuple):
    """An architecture and how many clients of a fleet have it."""

    name: str  # of its branch in the weights: its mark, the same in every fleet of a federation
    model: Model
    clients: int


@dataclass(frozen=True)
class Heterogeneous(Model):
    """Architectures whose embeddings are of one width; the clients of each stand side by side in the fleet.

    Weights have a branch for every kind, with a row for each of its clients.
    """

    parts: tuple[ArchitectureGroup, ...]

    name = "mixed"

    @cached_property
    def kinds(self) -> dict[str, range]:  # type: ignore[override]
        ends = accumulate((kind.clients for kind in self.parts), initial=0)
        return {kind.name: range(*ends) for kind, ends in zip(self.parts, pairwise(ends), strict=True)}

    @cached_property
    def frozen(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(f"{kind.name}/{path}" for kind in self.parts for path in kind.model.frozen)

    def __call__(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Output:
        return concatenate_outputs(self._run([kind.model for kind in self.parts], weights, graph, random))

    def forward_train_eval(self, weights: Weights, graph: FleetGraph, random: Stream) -> tuple[Output, Output]:
        pairs = self._run([kind.model.forward_train_eval for kind in self.parts], weights, graph, random)
        training, evaluation = zip(*pairs, strict=True)
        return concatenate_outputs(training), concatenate_outputs(evaluation)

    def at(self, weights: Weights, rows: Rows, random: Stream | None = None) -> Output:
        return concatenate_outputs(self._run([kind.model.at for kind in self.parts], weights, rows, random))

    def _run(
        self, models: Sequence[Callable[..., Any]], weights: Weights, graph: FleetGraph | Rows, random: Stream | None
    ) -> list[Any]:
        """What every kind says about its part of the graph."""
        draws = [None if random is None else random.of(mine) for mine in self.kinds.values()]
        outputs = []
        with ArchitectureStreams(weights, graph, random) as branches:
            for model, (name, mine), draw in zip(models, self.kinds.items(), draws, strict=True):
                with branches.next():
                    outputs.append(model(weights[name], graph.part(mine), draw))
        if random is not None:  # some kinds draw more often than others, and each client goes on after its own draws
            spent = zip(self.parts, draws, strict=True)
            random.advance([draw.draws - random.draws for kind, draw in spent if draw for _ in range(kind.clients)])
        return outputs

    def select(self, chosen: Sequence[int]) -> Heterogeneous:
        counts = [sum(client in owners for client in chosen) for owners in self.kinds.values()]
        parts = [kind._replace(clients=count) for kind, count in zip(self.parts, counts, strict=True) if count]
        return Heterogeneous(tuple(parts))


class ArchitectureStreams:
    """Where a GPU records them, kinds run side by side, each on a stream of its own; elsewhere one after the other,
    since what takes time there is to launch them.

    Streams wait for each other where they part and where they meet, and PyTorch sees to the same on the way back. What
    was made for this step before they part must not be overwritten while a branch may still read it, on the way back
    too: so it is noted down for every branch.
    """

    def __init__(self, weights: Weights, graph: FleetGraph | Rows, random: Stream | None) -> None:
        self._read = [leaf for _, leaf in flatten(weights)]
        self._fast = self._read[0].is_cuda and torch.cuda.is_current_stream_capturing()
        if random is not None:
            self._read.append(random.keys)
        if isinstance(graph, FleetGraph):
            self._read += graph.step_tensors
        self._used: list[torch.cuda.Stream] = []
        self._first = True

    def __enter__(self) -> ArchitectureStreams:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._used:
            torch.cuda.current_stream().wait_stream(stream)

    def next(self) -> AbstractContextManager[Any]:
        """Where to run one more kind; the first stays where it is."""
        if not self._fast or self._first:
            self._first = False
            return nullcontext()
        here = torch.cuda.current_stream()
        stream = branch_stream(here, len(self._used))
        stream.wait_stream(here)
        for tensor in self._read:
            tensor.record_stream(stream)
        self._used.append(stream)
        return torch.cuda.stream(stream)


@cache
def branch_stream(trunk: torch.cuda.Stream, place: int) -> torch.cuda.Stream:  # noqa: ARG001
    """Branches of different trunks must not share a stream: what one trunk still reads, the other would overwrite."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def make_heterogeneous(models: Sequence[Model], names: dict[Model, str]) -> Heterogeneous:
    """The model of clients with these architectures, which stand in the order of their kinds."""
    return Heterogeneous(
        tuple(ArchitectureGroup(names[model], model, models.count(model)) for model in dict.fromkeys(models))
    )


def architecture_names(models: Sequence[Model]) -> dict[Model, str]:
    """A name for every architecture; of those that call themselves alike, the later ones are numbered."""
    names = [model.name for model in models]
    before = [names[:place].count(name) for place, name in enumerate(names)]
    numbers = [f"-{count + 1}" if count else "" for count in before]
    return {model: f"{ARCHITECTURE_MARK}{model.name}{number}" for model, number in zip(models, numbers, strict=True)}


def concatenate_outputs(outputs: Sequence[Output]) -> Output:
    return outputs[0] if len(outputs) == 1 else Output(*map(torch.cat, zip(*outputs, strict=True)))
