"""What every model is: an architecture without weights, applied to a whole fleet of weights at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from graft.graph import FleetGraph
from graft.randomness import Stream
from graft.sparse import stacked_product
from graft.weights import Tree, Weights


class Output(NamedTuple):
    """What a model says of every node of every client."""

    embedding: Tensor  # [clients, nodes, width], after the activation, before dropout
    logits: Tensor  # [clients, nodes, classes]


class Model:
    """An architecture; its weights are made by `start` and live elsewhere."""

    name: str
    stackable: ClassVar[bool] = True  # whether clients can share a fleet
    frozen: frozenset[str] = frozenset()  # paths of buffers: averaged, never trained
    kinds: Mapping[str, range] = MappingProxyType({})  # which clients have a branch of the weights, if not all have all

    def start(self, generator: torch.Generator) -> Tree:
        """Initial weights of one client."""
        raise NotImplementedError

    def __call__(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Output:
        """Predictions of stacked weights; with a random stream in training mode, without it in evaluation mode."""
        raise NotImplementedError

    def both(self, weights: Weights, graph: FleetGraph, random: Stream) -> tuple[Output, Output]:
        """Predictions in training mode, and in evaluation mode without gradient."""
        training = self(weights, graph, random)
        with torch.no_grad():
            return training, self(weights, graph)

    def select(self, chosen: Sequence[int]) -> Model:  # noqa: ARG002
        """The model of some clients of a fleet."""
        return self


@dataclass(frozen=True)
class LayeredModel(Model):
    """Layers of one kind, then a head: linear, or the last layer of that kind itself (`head="conv"`)."""

    features: int
    classes: int
    depth: int = 2
    width: int = 64
    dropout: float = 0.5
    head: str = "linear"

    kind: ClassVar[str] = ""

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.kind if self.depth == 2 else f"{self.kind}{self.depth}"

    @property
    def hidden(self) -> int:
        """How many layers come before the head."""
        return self.depth if self.head == "linear" else self.depth - 1

    def start(self, generator: torch.Generator) -> Tree:
        weights = Tree()
        for index in range(self.hidden):
            inputs = self.width if index else self.features
            weights[f"layer{index}"] = self.start_layer(inputs, self.width, generator)
        if self.head == "linear":
            weights["head"] = start_linear(self.width, self.classes, generator)
        else:
            weights["head"] = self.start_head(self.width, generator)
        return weights

    def __call__(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Output:
        return self.end(weights, graph, self.begin(weights, graph), random)

    def both(self, weights: Weights, graph: FleetGraph, random: Stream) -> tuple[Output, Output]:
        if type(self).__call__ is not LayeredModel.__call__:  # a model with a shape of its own
            return super().both(weights, graph, random)
        begun = self.begin(weights, graph)
        training = self.end(weights, graph, begun, random)
        with torch.no_grad():
            return training, self.end(weights, graph, begun)

    def begin(self, weights: Weights, graph: FleetGraph) -> Tensor:
        """What the first layer says: all that comes before the first dropout, the same in training and evaluation."""
        return torch.relu(self.layer(weights["layer0"], graph, graph.features))

    def end(self, weights: Weights, graph: FleetGraph, begun: Tensor, random: Stream | None = None) -> Output:
        embedding = self.embed(weights, graph, begun, random)
        inputs = self.drop(embedding, random)
        if self.head == "linear":
            return Output(embedding, linear(inputs, weights["head"]))
        return Output(embedding, self.layer(weights["head"], graph, inputs))

    def embed(self, weights: Weights, graph: FleetGraph, begun: Tensor, random: Stream | None) -> Tensor:
        outputs = [begun]
        for index in range(1, self.hidden):
            hidden = self.drop(outputs[-1], random)
            outputs.append(torch.relu(self.layer(weights[f"layer{index}"], graph, hidden)))
        # Deep networks use jumping knowledge (Xu et al., ICML 2018) with the element-wise maximum.
        return torch.stack(outputs).amax(0) if self.depth >= 4 else outputs[-1]

    def drop(self, hidden: Tensor, random: Stream | None) -> Tensor:
        if random is None or self.dropout == 0:
            return hidden
        return random.drop(hidden, self.dropout)

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        raise NotImplementedError

    def start_head(self, inputs: int, generator: torch.Generator) -> Tree:
        """The weights of a convolutional head."""
        return self.start_layer(inputs, self.classes, generator)

    def layer(self, weights: Weights, graph: FleetGraph, hidden: Any) -> Tensor:
        """One layer without activation; `hidden` may be the fleet's sparse features."""
        raise NotImplementedError


def glorot(inputs: int, outputs: int, generator: torch.Generator) -> Tensor:
    bound = (6 / (inputs + outputs)) ** 0.5
    return torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator)


def start_linear(inputs: int, outputs: int, generator: torch.Generator) -> Tree:
    """A linear layer as PyTorch starts it; the weight is [inputs, outputs]."""
    bound = inputs**-0.5
    weight = torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator)
    return Tree(weight=weight, bias=torch.empty(outputs).uniform_(-bound, bound, generator=generator))


def project(hidden: Any, weight: Tensor) -> Tensor:
    """The product of every client's nodes, dense or sparse, with that client's weight matrix."""
    if isinstance(hidden, Tensor) and weight.stride(0) == 0:  # one matrix for all clients need not be written out
        return hidden @ weight[0]
    return stacked_product(hidden, weight) if isinstance(hidden, Tensor) else hidden @ weight


def spread(graph: FleetGraph, matrix: str, hidden: Any, weight: Tensor, steps: int = 1) -> Tensor:
    """Some products of a matrix of the graph, by its name, with what `project` gives."""
    known = graph.spread(matrix, steps) if hidden is graph.features else None
    if known is not None:
        return project(known, weight)
    projected = project(hidden, weight)
    for _ in range(steps):
        projected = getattr(graph, matrix) @ projected
    return projected


def linear(hidden: Any, weights: Weights) -> Tensor:
    return shifted(project(hidden, weights["weight"]), weights)


def shifted(hidden: Tensor, weights: Weights) -> Tensor:
    bias: Tensor = weights["bias"]
    return hidden + bias.unsqueeze(1)
