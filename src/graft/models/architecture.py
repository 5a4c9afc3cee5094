"""What every model is: an architecture without weights, applied to a whole fleet of weights at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import NodeSubset
from graft.tensors.randomness import Stream
from graft.tensors.sparse import BlockSparse, stacked_product
from graft.tensors.trees import Tree, Weights


class Output(NamedTuple):
    """What a model predicts for every node of every client."""

    embedding: Tensor  # [clients, nodes, width], after the activation, before dropout
    logits: Tensor  # [clients, nodes, classes]


class Model:
    """An architecture; its weights are made by `start` and live elsewhere."""

    name: str
    stackable: ClassVar[bool] = True  # whether clients can share a fleet
    frozen: frozenset[str] = frozenset()  # paths of buffers: averaged, never trained
    normalisation: frozenset[str] = frozenset()  # paths of normalisation layers, their statistics included
    kinds: Mapping[str, range] = MappingProxyType({})  # which clients have a branch of the weights, if not all have all

    def start(self, generator: torch.Generator) -> Tree:
        """Returns the initial weights of one client."""
        raise NotImplementedError

    def __call__(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Output:
        """Returns predictions of stacked weights; with a random stream in training mode, without it in evaluation
        mode."""
        raise NotImplementedError

    def forward_train_eval(self, weights: Weights, graph: FleetGraph, random: Stream) -> tuple[Output, Output]:
        """Returns predictions in training mode, and in evaluation mode without gradient."""
        training = self(weights, graph, random)
        with torch.no_grad():
            return training, self(weights, graph)

    def forward_at(self, weights: Weights, rows: NodeSubset, random: Stream | None = None) -> Output:
        """Returns the outputs at some nodes alone; what they do not depend on need not be computed."""
        return Output(*map(rows.gather, self(weights, rows.graph, random)))

    @property
    def shares_fleet(self) -> bool:
        """Returns whether an engine may put several clients of it into one fleet."""
        return self.stackable

    def host_state(self) -> Any:
        """Returns what it keeps in Python and may change when it is called, to compare: a replay would not."""
        return None

    def select(self, chosen: Sequence[int]) -> Model:  # noqa: ARG002
        """Returns the model of some clients of a fleet."""
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
    supports_rows: ClassVar[bool] = True  # whether a layer can be restricted to some nodes

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.kind if self.depth == 2 else f"{self.kind}{self.depth}"

    @property
    def hidden(self) -> int:
        """Returns how many layers come before the head."""
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
        return self.later_layers(weights, graph, self.first_layer(weights, graph), random)

    @property
    def is_layered(self) -> bool:
        """Returns whether it is made of `first_layer` and `later_layers`, and not a model with a shape of its own."""
        return type(self).__call__ is LayeredModel.__call__

    @property
    def single_layer(self) -> bool:
        """Returns whether no layer after the first propagates along edges."""
        return self.hidden == 1 and self.head == "linear"

    def forward_at(self, weights: Weights, rows: NodeSubset, random: Stream | None = None) -> Output:
        if not self.is_layered or not self.supports_rows:
            return super().forward_at(weights, rows, random)
        first = self.first_layer(weights, rows if self.single_layer else rows.graph)
        return self.later_layers(weights, rows.graph, first, random, rows)

    def forward_train_eval(self, weights: Weights, graph: FleetGraph, random: Stream) -> tuple[Output, Output]:
        if not self.is_layered:
            return super().forward_train_eval(weights, graph, random)
        first = self.first_layer(weights, graph)
        training = self.later_layers(weights, graph, first, random)
        with torch.no_grad():
            return training, self.later_layers(weights, graph, first)

    def first_layer(self, weights: Weights, graph: FleetGraph | NodeSubset) -> Tensor:
        """Returns the output of the first layer: all before any dropout, so the same in training and evaluation."""
        return torch.relu(self.layer(weights["layer0"], graph, graph.features))

    def later_layers(
        self,
        weights: Weights,
        graph: FleetGraph,
        first: Tensor,
        random: Stream | None = None,
        rows: NodeSubset | None = None,
    ) -> Output:
        """Returns the outputs from that of `first_layer`; with `rows`, the last graph layer is computed there alone."""
        if self.head == "linear":
            embedding = self.embed(weights, graph, first, random, rows)
            return Output(embedding, linear(self.apply_dropout(embedding, random, rows), weights["head"]))
        embedding = self.embed(weights, graph, first, random)
        logits = self.layer(weights["head"], rows or graph, self.apply_dropout(embedding, random))
        return Output(rows.gather(embedding) if rows else embedding, logits)

    def embed(
        self,
        weights: Weights,
        graph: FleetGraph,
        first: Tensor,
        random: Stream | None,
        rows: NodeSubset | None = None,
    ) -> Tensor:
        outputs = [first]
        for index in range(1, self.hidden):
            hidden = self.apply_dropout(outputs[-1], random)
            seen = rows if rows and index == self.hidden - 1 else graph
            outputs.append(torch.relu(self.layer(weights[f"layer{index}"], seen, hidden)))
        if self.depth < 4:
            return outputs[-1]
        # Deep networks use jumping knowledge (Xu et al., ICML 2018) with the element-wise maximum.
        before = [rows.gather(output) for output in outputs[:-1]] if rows else outputs[:-1]
        return torch.stack([*before, outputs[-1]]).amax(0)

    def apply_dropout(self, hidden: Tensor, random: Stream | None, rows: NodeSubset | None = None) -> Tensor:
        if random is None or self.dropout == 0:
            return hidden
        return random.dropout(hidden, self.dropout, rows)

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        raise NotImplementedError

    def start_head(self, inputs: int, generator: torch.Generator) -> Tree:
        """Returns the weights of a convolutional head."""
        return self.start_layer(inputs, self.classes, generator)

    def layer(self, weights: Weights, graph: FleetGraph | NodeSubset, hidden: Any) -> Tensor:
        """Applies one layer without activation; `hidden` is of all nodes, and may be the fleet's sparse features."""
        raise NotImplementedError


def glorot(inputs: int, outputs: int, generator: torch.Generator) -> Tensor:
    """Returns a weight matrix [inputs, outputs] as Glorot and Bengio initialise it."""
    bound = (6 / (inputs + outputs)) ** 0.5
    return torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator)


def start_linear(inputs: int, outputs: int, generator: torch.Generator) -> Tree:
    """Returns the weights of a linear layer as PyTorch initialises them; the weight is [inputs, outputs]."""
    bound = inputs**-0.5
    weight = torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator)
    return Tree(weight=weight, bias=torch.empty(outputs).uniform_(-bound, bound, generator=generator))


def project(hidden: Any, weight: Tensor) -> Tensor:
    """Returns the product of every client's nodes, dense or sparse, with that client's weight matrix."""
    if isinstance(hidden, Tensor) and weight.stride(0) == 0:  # one matrix for all clients need not be written out
        return hidden @ weight[0]
    return stacked_product(hidden, weight) if isinstance(hidden, Tensor) else hidden @ weight


def propagate(graph: FleetGraph | NodeSubset, matrix: str, hidden: Any, weight: Tensor, steps: int = 1) -> Tensor:
    """Returns `project` propagated: multiplied by a matrix of the graph, by its name, `steps` times."""
    propagated = graph.propagated_features(matrix, steps) if hidden is graph.features else None
    if propagated is not None:
        return project(propagated, weight)
    last: BlockSparse = getattr(graph, matrix)
    if (
        isinstance(graph, NodeSubset)
        and steps == 1
        and isinstance(hidden, Tensor)
        and hidden.shape[2] <= weight.shape[2]
    ):
        return project(last @ hidden, weight)  # the order does not matter, and there are fewer rows to project
    projected = project(hidden, weight)
    for _ in range(steps - 1):
        projected = getattr(graph.graph if isinstance(graph, NodeSubset) else graph, matrix) @ projected
    return last @ projected


def project_subset(graph: FleetGraph | NodeSubset, hidden: Any, weight: Tensor) -> Tensor:
    """Returns what `project` gives, restricted to the nodes of a subset."""
    if not isinstance(graph, NodeSubset):
        return project(hidden, weight)
    return (
        project(graph.gather(hidden), weight) if isinstance(hidden, Tensor) else graph.gather(project(hidden, weight))
    )


def linear(hidden: Any, weights: Weights) -> Tensor:
    """Returns a linear layer of every client's nodes, by that client's weight and bias."""
    return add_bias(project(hidden, weights["weight"]), weights)


def add_bias(hidden: Tensor, weights: Weights) -> Tensor:
    """Adds every client's bias to all of its nodes."""
    bias: Tensor = weights["bias"]
    return hidden + bias.unsqueeze(1)
