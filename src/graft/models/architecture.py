"""What every model is: an architecture without weights, applied to a whole fleet of weights at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph, Rows
from graft.tensors.randomness import Stream
from graft.tensors.sparse import BlockSparse, stacked_product
from graft.tensors.trees import Tree, Weights


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

    def forward_train_eval(self, weights: Weights, graph: FleetGraph, random: Stream) -> tuple[Output, Output]:
        """Predictions in training mode, and in evaluation mode without gradient."""
        training = self(weights, graph, random)
        with torch.no_grad():
            return training, self(weights, graph)

    def at(self, weights: Weights, rows: Rows, random: Stream | None = None) -> Output:
        """What it says of some nodes alone; what they do not depend on need not be worked out."""
        return Output(*map(rows.own, self(weights, rows.whole, random)))

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
    supports_rows: ClassVar[bool] = True  # whether a layer can be asked about some nodes alone

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

    @property
    def plain(self) -> bool:
        """Whether it is made of `begin` and `end`, and not a model with a shape of its own."""
        return type(self).__call__ is LayeredModel.__call__

    @property
    def single_layer(self) -> bool:
        """Whether no layer after the first looks at the graph."""
        return self.hidden == 1 and self.head == "linear"

    def at(self, weights: Weights, rows: Rows, random: Stream | None = None) -> Output:
        if not self.plain or not self.supports_rows:
            return super().at(weights, rows, random)
        begun = self.begin(weights, rows if self.single_layer else rows.whole)
        return self.end(weights, rows.whole, begun, random, rows)

    def forward_train_eval(self, weights: Weights, graph: FleetGraph, random: Stream) -> tuple[Output, Output]:
        if not self.plain:
            return super().forward_train_eval(weights, graph, random)
        begun = self.begin(weights, graph)
        training = self.end(weights, graph, begun, random)
        with torch.no_grad():
            return training, self.end(weights, graph, begun)

    def begin(self, weights: Weights, graph: FleetGraph | Rows) -> Tensor:
        """What the first layer says: all that comes before the first dropout, the same in training and evaluation."""
        return torch.relu(self.layer(weights["layer0"], graph, graph.features))

    def end(
        self,
        weights: Weights,
        graph: FleetGraph,
        begun: Tensor,
        random: Stream | None = None,
        rows: Rows | None = None,
    ) -> Output:
        """All that comes after `begin`; with `rows`, the last layer that looks at the graph is asked about them."""
        if self.head == "linear":
            embedding = self.embed(weights, graph, begun, random, rows)
            return Output(embedding, linear(self.drop(embedding, random, rows), weights["head"]))
        embedding = self.embed(weights, graph, begun, random)
        logits = self.layer(weights["head"], rows or graph, self.drop(embedding, random))
        return Output(rows.own(embedding) if rows else embedding, logits)

    def embed(
        self,
        weights: Weights,
        graph: FleetGraph,
        begun: Tensor,
        random: Stream | None,
        rows: Rows | None = None,
    ) -> Tensor:
        outputs = [begun]
        for index in range(1, self.hidden):
            hidden = self.drop(outputs[-1], random)
            seen = rows if rows and index == self.hidden - 1 else graph
            outputs.append(torch.relu(self.layer(weights[f"layer{index}"], seen, hidden)))
        if self.depth < 4:
            return outputs[-1]
        # Deep networks use jumping knowledge (Xu et al., ICML 2018) with the element-wise maximum.
        before = [rows.own(output) for output in outputs[:-1]] if rows else outputs[:-1]
        return torch.stack([*before, outputs[-1]]).amax(0)

    def drop(self, hidden: Tensor, random: Stream | None, rows: Rows | None = None) -> Tensor:
        if random is None or self.dropout == 0:
            return hidden
        return random.drop(hidden, self.dropout, rows)

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        raise NotImplementedError

    def start_head(self, inputs: int, generator: torch.Generator) -> Tree:
        """The weights of a convolutional head."""
        return self.start_layer(inputs, self.classes, generator)

    def layer(self, weights: Weights, graph: FleetGraph | Rows, hidden: Any) -> Tensor:
        """One layer without activation; `hidden` is of all nodes, and may be the fleet's sparse features."""
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


def propagate(graph: FleetGraph | Rows, matrix: str, hidden: Any, weight: Tensor, steps: int = 1) -> Tensor:
    """Some products of a matrix of the graph, by its name, with what `project` gives."""
    known = graph.spread(matrix, steps) if hidden is graph.features else None
    if known is not None:
        return project(known, weight)
    last: BlockSparse = getattr(graph, matrix)
    if isinstance(graph, Rows) and steps == 1 and isinstance(hidden, Tensor) and hidden.shape[2] <= weight.shape[2]:
        return project(last @ hidden, weight)  # the order does not matter, and there are fewer rows to project
    projected = project(hidden, weight)
    for _ in range(steps - 1):
        projected = getattr(graph.whole if isinstance(graph, Rows) else graph, matrix) @ projected
    return last @ projected


def project_own(graph: FleetGraph | Rows, hidden: Any, weight: Tensor) -> Tensor:
    """What `project` gives for the nodes that are asked about."""
    if not isinstance(graph, Rows):
        return project(hidden, weight)
    return project(graph.own(hidden), weight) if isinstance(hidden, Tensor) else graph.own(project(hidden, weight))


def linear(hidden: Any, weights: Weights) -> Tensor:
    return add_bias(project(hidden, weights["weight"]), weights)


def add_bias(hidden: Tensor, weights: Weights) -> Tensor:
    bias: Tensor = weights["bias"]
    return hidden + bias.unsqueeze(1)
