"""Several architectures as one model, so that clients of different kinds are one fleet.

Losses, copilots and optimisers then run once for all of them; only the layers run architecture by architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import NodeSubset
from graft.models.architecture import Model, Output
from graft.tensors.randomness import Stream
from graft.tensors.trees import ARCHITECTURE_MARK, Weights, flatten


class ArchitectureGroup(NamedTuple):
    """An architecture and how many clients of a fleet have it."""

    name: str  # of its branch in the weights, the same in every fleet of a federation
    model: Model
    clients: int


@dataclass(frozen=True)
class Heterogeneous(Model):
    """Architectures whose embeddings are of one width; the clients of each are contiguous in the fleet.

    Weights have a branch for every architecture, with a row for each of its clients.
    """

    parts: tuple[ArchitectureGroup, ...]

    name = "heterogeneous"

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

    def forward_at(self, weights: Weights, rows: NodeSubset, random: Stream | None = None) -> Output:
        return concatenate_outputs(self._run([kind.model.forward_at for kind in self.parts], weights, rows, random))

    def _run(
        self,
        forwards: Sequence[Callable[..., Any]],
        weights: Weights,
        graph: FleetGraph | NodeSubset,
        random: Stream | None,
    ) -> list[Any]:
        """Runs every architecture on the part of the graph that its clients own."""
        streams = [None if random is None else random.select(owners) for owners in self.kinds.values()]
        outputs = []
        with ArchitectureStreams(weights, graph, random) as cuda_streams:
            for forward, (name, owners), stream in zip(forwards, self.kinds.items(), streams, strict=True):
                with cuda_streams.next():
                    outputs.append(forward(weights[name], graph.select_range(owners), stream))
        if (
            random is not None
        ):  # some architectures draw more often than others: each client goes on after its own draws
            drawn = zip(self.parts, streams, strict=True)
            random.advance([s.draws - random.draws for group, s in drawn if s for _ in range(group.clients)])
        return outputs

    def select(self, chosen: Sequence[int]) -> Heterogeneous:
        counts = [sum(client in owners for client in chosen) for owners in self.kinds.values()]
        parts = [group._replace(clients=count) for group, count in zip(self.parts, counts, strict=True) if count]
        return Heterogeneous(tuple(parts))


class ArchitectureStreams:
    """CUDA streams on which architectures run side by side during a capture; outside of one they run in turn, since
    launching them is what takes time there.

    Streams wait for each other where they fork and join, and autograd does the same in the backward pass. Tensors made
    for this step before the fork must not be freed while a branch, or its backward pass, may still read them: so their
    use is recorded on every branch.
    """

    def __init__(self, weights: Weights, graph: FleetGraph | NodeSubset, random: Stream | None) -> None:
        self._tensors = [leaf for _, leaf in flatten(weights)]
        self._capturing = self._tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()
        if random is not None:
            self._tensors.append(random.keys)
        if isinstance(graph, FleetGraph):
            self._tensors += graph.step_tensors
        self._branches: list[torch.cuda.Stream] = []
        self._first = True

    def __enter__(self) -> ArchitectureStreams:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._branches:
            torch.cuda.current_stream().wait_stream(stream)

    def next(self) -> AbstractContextManager[Any]:
        """Returns the context to run the next architecture in; the first stays on the current stream."""
        if not self._capturing or self._first:
            self._first = False
            return nullcontext()
        trunk = torch.cuda.current_stream()
        stream = branch_stream(trunk, len(self._branches))
        stream.wait_stream(trunk)
        for tensor in self._tensors:
            tensor.record_stream(stream)
        self._branches.append(stream)
        return torch.cuda.stream(stream)


@cache
def branch_stream(trunk: torch.cuda.Stream, index: int) -> torch.cuda.Stream:  # noqa: ARG001
    """Returns a stream of its own for every branch of every trunk: sharing one would overwrite what is still read."""
    return torch.cuda.Stream()


def make_heterogeneous(models: Sequence[Model], names: dict[Model, str]) -> Heterogeneous:
    """Returns the model of clients with these architectures, sorted by architecture."""
    return Heterogeneous(
        tuple(ArchitectureGroup(names[model], model, models.count(model)) for model in dict.fromkeys(models))
    )


def architecture_names(models: Sequence[Model]) -> dict[Model, str]:
    """Returns the name of the branch of every architecture; of equal names, the later ones are numbered."""
    names = [model.name for model in models]
    earlier = [names[:index].count(name) for index, name in enumerate(names)]
    suffixes = [f"-{count + 1}" if count else "" for count in earlier]
    return {model: f"{ARCHITECTURE_MARK}{model.name}{suffix}" for model, suffix in zip(models, suffixes, strict=True)}


def concatenate_outputs(outputs: Sequence[Output]) -> Output:
    return outputs[0] if len(outputs) == 1 else Output(*map(torch.cat, zip(*outputs, strict=True)))
