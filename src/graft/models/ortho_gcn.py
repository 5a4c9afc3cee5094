"""Orthogonal graph convolutional network (Guo, Zhou, Hu, Li, Chang and Wang: Orthogonal graph neural networks.
AAAI 2022), in the layout that FedOMD trains: a graph convolution, orthogonal layers, a head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import NodeSubset
from graft.models.architecture import LayeredModel, Output, add_bias, glorot, linear, project, propagate
from graft.tensors.randomness import Stream
from graft.tensors.trees import Tree, Weights

SMALLEST_SQUARE = 1e-12  # mean square of a node's row that is brought to size 1
BOUNDS: dict[str, Callable[[Tensor], Tensor]] = {
    "gram": lambda matrix: torch.linalg.matrix_norm(matrix.mT @ matrix, keepdim=True).sqrt(),
    "frobenius": lambda matrix: torch.linalg.matrix_norm(matrix, keepdim=True),
}


@dataclass(frozen=True)
class OrthoGCN(LayeredModel):
    """`depth` layers whose matrices are made orthogonal in the forward pass, after a plain one from the features.

    What is trained and averaged are the raw matrices: a mean of orthogonal ones would not be orthogonal.
    """

    orthogonal: bool = True  # off: plain graph convolutions in their place
    newton_steps: int = 4  # towards the nearest orthogonal matrix; with 2 it is still far off
    hybrid: float = 0.2  # share of the trained matrix in what is made orthogonal; the rest is the identity
    center: bool = False  # subtract each row's mean first, after which no square matrix can become orthogonal
    orthogonal_start: bool = False  # whether the matrix of the first layer starts with orthogonal columns
    # These are not in the text of an architecture, from which initial weights are drawn: all variants start alike.
    scale_free: bool = field(default=False, repr=False)  # whether the size of a node's features does not matter
    newton_bound: Literal["gram", "frobenius"] = field(default="gram", repr=False)  # what a matrix is divided by
    propagated: bool = field(default=True, repr=False)  # whether an orthogonal layer is a graph convolution

    kind: ClassVar[str] = "ortho_gcn"

    @property
    def hidden(self) -> int:
        return self.depth + 1

    def start(self, generator: torch.Generator) -> Tree:
        weights = super().start(generator)
        if self.orthogonal_start:
            # No hybrid with the identity makes this one well-conditioned, so it takes more steps, but only once.
            weights.layer0.weight = orthogonalised(weights.layer0.weight, steps=20)
        if self.orthogonal:
            for index in range(1, self.hidden):
                del weights[f"layer{index}"]["bias"]
        return weights

    def __call__(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Output:
        hidden, logits = self.outputs(weights, graph, random)
        return Output(hidden[-1], logits)

    def outputs(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> tuple[list[Tensor], Tensor]:
        """Returns the outputs of all hidden layers, after the activation and before dropout, and the logits."""
        hidden = [self.first_layer(weights["layer0"], graph)]
        for index in range(1, self.hidden):
            inputs = self.apply_dropout(hidden[-1], random)
            hidden.append(torch.relu(self.inner(weights[f"layer{index}"], graph, inputs)))
        inputs = self.apply_dropout(hidden[-1], random)
        head = weights["head"]
        return hidden, linear(inputs, head) if self.head == "linear" else self.layer(head, graph, inputs)

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        return Tree(weight=glorot(inputs, outputs, generator), bias=torch.zeros(outputs))

    def layer(self, weights: Weights, graph: FleetGraph | NodeSubset, hidden: Any) -> Tensor:
        return add_bias(propagate(graph, "normalised", hidden, weights["weight"]), weights)

    def first_layer(self, weights: Weights, graph: FleetGraph | NodeSubset) -> Tensor:
        """Returns the output of the layer from the features, after the activation.

        Orthogonal layers keep the size of what comes in, so small features would leave hardly any signal. Scale-free,
        this layer's product with the features has size 1 at every node, before the bias: nothing depends on theirs.
        """
        product = propagate(graph, "normalised", graph.features, weights["weight"])
        return torch.relu(add_bias(of_size_one(product) if self.scale_free else product, weights))

    def inner(self, weights: Weights, graph: FleetGraph, hidden: Tensor) -> Tensor:
        """Applies a layer between the first and the head."""
        if not self.orthogonal:
            return self.layer(weights, graph, hidden)
        projected = project(hidden, self.effective(weights["weight"]))
        return graph.normalised @ projected if self.propagated else projected

    def effective(self, weight: Tensor) -> Tensor:
        """Returns the matrix that an orthogonal layer applies."""
        identity = torch.eye(weight.shape[-1], dtype=weight.dtype, device=weight.device)
        blended = self.hybrid * weight + (1 - self.hybrid) * identity
        if self.center:
            blended = blended - blended.mean(-1, keepdim=True)
        return orthogonalised(blended, self.newton_steps, self.newton_bound)

    def inner_weights(self, weights: Weights) -> Tensor:
        """Returns the raw matrices of the orthogonal layers, [clients, layers, width, width]; none where they are
        plain."""
        layers = range(1, self.hidden) if self.orthogonal else ()
        if not layers:
            first: Tensor = weights["layer0"]["weight"]
            return first.new_zeros(len(first), 0, self.width, self.width)
        return torch.stack([weights[f"layer{index}"]["weight"] for index in layers], dim=1)


def of_size_one(rows: Tensor) -> Tensor:
    """Returns every row divided by its root mean square; a row of zeros, as of padding, stays one."""
    return rows * rows.square().mean(2, keepdim=True).clamp(min=SMALLEST_SQUARE).rsqrt()


def orthogonalised(matrix: Tensor, steps: int, bound: str = "gram") -> Tensor:
    """Returns the orthogonal factor U V^T of U S V^T by Newton's iteration, for a matrix no wider than it is tall.

    The first line bounds all singular values by 1, where the iteration converges: by the root of the norm of the Gram
    matrix, or by the matrix's own Frobenius norm, from which it takes more steps. The iteration keeps correcting
    itself, unlike the form that iterates on a separate inverse root, which was seen to diverge in single precision.
    """
    current: Tensor = matrix / BOUNDS[bound](matrix)
    for _ in range(steps):
        current = 1.5 * current - 0.5 * current @ (current.mT @ current)
    return current


def departure(matrices: Tensor) -> Tensor:
    """Returns the distance of square matrices from orthogonality, ||W W^T - I||_F, not squared; its gradient at 0 is
    0."""
    identity = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    distance: Tensor = torch.linalg.matrix_norm(matrices @ matrices.mT - identity)
    return distance
