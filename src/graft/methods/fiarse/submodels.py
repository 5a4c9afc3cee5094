"""Submodels: which weights of a model are its most important ones, and how they learn.

All weights that may be left out stand in one vector, matrix after matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from graft.tensors.autograd import apply_function
from graft.tensors.trees import Tree, Weights, flatten, trainable, unflatten, unsqueeze_to

Scope = Literal["global", "layer"]
Shapes = Mapping[str, torch.Size]  # of the weights that may be left out, by path, in the order of the vector


def selectable(weights: Weights, frozen: frozenset[str], *, biases: bool) -> Shapes:
    """Returns the shapes of what may be left out of one client's model: matrices, or all that is trained."""
    trained = flatten(trainable(weights, frozen))
    return {path: leaf.shape for path, leaf in trained if biases or leaf.dim() > 1}


def sizes_of(shapes: Shapes) -> list[int]:
    return [shape.numel() for shape in shapes.values()]


def as_vector(weights: Weights, shapes: Shapes) -> Tensor:
    """Returns the selectable weights of stacked models, [clients, entries]."""
    leaves = dict(flatten(weights))
    return torch.cat([leaves[path].reshape(len(leaves[path]), -1) for path in shapes], dim=1)


def as_leaves(vector: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Returns a stacked vector as the leaves that it was made of, by path."""
    parts = vector.split(sizes_of(shapes), 1)
    return {path: part.view(-1, *shape) for (path, shape), part in zip(shapes.items(), parts, strict=True)}


def with_leaves(weights: Weights, leaves: Mapping[str, Tensor]) -> Tree:
    """Returns models in which the leaves at some paths are others."""
    return unflatten({**dict(flatten(weights)), **leaves})


def unselectable(weights: Weights, shapes: Shapes) -> Tree:
    """Returns what every client holds of a model, as biases."""
    return unflatten({path: leaf for path, leaf in flatten(weights) if path not in shapes})


def places(vector: Tensor, sizes: Sequence[int], scope: Scope) -> Tensor:
    """Returns the place of every weight in the order of magnitudes, of all weights or of those of its matrix: 0 is the
    largest, and of equal ones the first.

    In the order of all, the largest weight of every matrix comes before any other: without a single weight in some
    layer a model would say the same of all nodes.
    """
    parts = [part.abs() for part in vector.split(list(sizes))]
    if scope == "layer":
        return torch.cat([order_of(part) for part in parts])
    return order_of(torch.cat([part.index_fill(0, part.argmax().view(1), torch.inf) for part in parts]))


def order_of(magnitudes: Tensor) -> Tensor:
    # Bits of a float that is not negative are in its order; with the position below them no two are equal, and sorting
    # whole numbers takes a quarter of the time of a stable sort of floats.
    position = torch.arange(len(magnitudes), device=magnitudes.device)
    keys = (~magnitudes.view(torch.int32)).long() << 32 | position
    order = keys.sort().values & (1 << 32) - 1
    return torch.empty_like(order).scatter(0, order, position)


def mask_of(placed: Tensor, sizes: Sequence[int], scope: Scope, capacity: float) -> Tensor:
    """Returns which weights a client of some capacity holds, [entries]: that share of all weights, or of every matrix,
    rounded down, and at least one a matrix."""
    limits = [held_of(size, capacity, 1) for size in sizes]
    if scope == "global":
        limits = [held_of(sum(sizes), capacity, len(sizes))] * len(sizes)
    return torch.cat([part < limit for part, limit in zip(placed.split(list(sizes)), limits, strict=True)])


def held_of(size: int, capacity: float, least: int) -> int:
    return max(least, int(capacity * size + 1e-6))  # a product such as 0.29 * 100 comes out a little too small


def positions(mask: Tensor) -> Tensor:
    """Returns where a mask [entries] is true."""
    return mask.nonzero().squeeze(1)


def thresholds(vector: Tensor, mask: Tensor, shapes: Shapes, scope: Scope) -> dict[str, Tensor]:
    """Returns the magnitude of the least weight that each client holds, of all or of each matrix, by path; 0 where it
    holds every weight, so that it trains as if there were no mask."""
    sizes, held = sizes_of(shapes), mask.to(vector)
    beyond = torch.finfo(vector.dtype).max  # added to what a client does not hold
    least = [part.amin(1) for part in vector.abs().add_(1 - held, alpha=beyond).split(sizes, 1)]
    complete = [part.amin(1) > 0 for part in held.split(sizes, 1)]
    if scope == "global":
        least = [torch.stack(least).amin(0)] * len(sizes)
        complete = [torch.stack(complete).all(0)] * len(sizes)
    return {
        path: torch.where(whole, 0, smallest) for path, smallest, whole in zip(shapes, least, complete, strict=True)
    }


def in_use(weights: Weights, masks: Mapping[str, Tensor], at_least: Mapping[str, Tensor]) -> Tree:
    """Returns the weights that stacked models work with: a selectable one is 0 unless its client holds it and it is, by
    now, no smaller than the client's threshold."""
    leaves = dict(flatten(weights))
    return with_leaves(
        weights,
        {
            path: apply_function(Importance, leaves[path], mask, unsqueeze_to(at_least[path], leaves[path]))
            for path, mask in masks.items()
        },
    )


class Importance(torch.autograd.Function):
    """Weights x where |x| is at least a threshold, 0 elsewhere.

    Its gradient counts the step of the mask, too, as if it rose with the slope 2 threshold / (|x| + threshold)^2:
    weights near the threshold learn up to 1.5 times as fast as those far above it, and weights that are not in use
    learn nothing.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, mask: Tensor, threshold: Tensor) -> Tensor:
        # Products with 0 and 1 throughout: on a CPU a choice by scattered bits takes many times as long.
        magnitude = weights.abs()
        used = torch.ge(magnitude, threshold, out=torch.empty_like(magnitude)).mul_(mask)
        spread = magnitude.add_(threshold).clamp_(min=torch.finfo(weights.dtype).tiny)
        share = torch.div(threshold, spread, out=spread)  # of the threshold in |x| + threshold; |x| has the rest
        factor = share.addcmul_(share, share, value=-1).mul_(2).add_(1).mul_(used)
        ctx.save_for_backward(factor)
        return used.mul_(weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (factor,) = ctx.saved_tensors
        return gradient * factor, None, None


class SquaredNorm(torch.autograd.Function):
    """The squares of the weights in use, summed a client; the gradient goes to the weights that they are of, without
    the factor by which `Importance` multiplies."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, used: Tensor) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(used)
        return used.square().flatten(1).sum(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (used,) = ctx.saved_tensors
        return used * unsqueeze_to(2 * gradient, used), None
