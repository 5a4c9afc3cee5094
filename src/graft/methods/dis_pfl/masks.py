"""Masks of sparse models: their densities and selection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graft.errors import InputError
from graft.tensors.trees import Tree, Weights, flatten, unflatten

if TYPE_CHECKING:
    from graft.tensors.randomness import Stream

LEAST = torch.iinfo(torch.int64).min  # a sort key below all others


def erk(shapes: dict[str, tuple[int, ...]], density: float, power: float) -> dict[str, float]:
    """Returns the density of every matrix, such that with all else dense the model has a given density
    (Erdos-Renyi-Kernel; Evci, Gale, Menick, Castro and Elsen, ICML 2020): in proportion to (sum / product of its
    sides)^power, at most 1."""
    sizes = {path: math.prod(shape) for path, shape in shapes.items()}
    matrices = {path: (sum(shape) / sizes[path]) ** power for path, shape in shapes.items() if len(shape) > 1}
    budget = density * sum(sizes.values()) - sum(size for path, size in sizes.items() if path not in matrices)
    if matrices and budget <= 0:
        raise InputError(
            f"density is {density}, but biases and other vectors, which are never cut, are more than that."
        )
    densities: dict[str, float] = {}
    while len(densities) < len(matrices):
        rest = {path: raw for path, raw in matrices.items() if path not in densities}
        left = budget - sum(sizes[path] for path in densities)
        scale = left / sum(raw * sizes[path] for path, raw in rest.items())
        full = {path: 1.0 for path, raw in rest.items() if scale * raw >= 1}
        densities |= full or {path: scale * raw for path, raw in rest.items()}
    return {path: densities[path] for path in matrices}


def masked(weights: Weights, mask: Weights) -> Tree:
    """Returns weights, or anything of their shape, with 0 where the mask is false."""
    masks = dict(flatten(mask))
    return unflatten({path: leaf * masks[path] if path in masks else leaf for path, leaf in flatten(weights)})


def ordered(values: Tensor, random: Stream) -> Tensor:
    """Returns integer sort keys [peers, values] for the absolute values; ties are broken at random.

    Weights of features that a peer never sees stay at 0, so there are many ties.
    """
    sizes = values.abs().flatten(1).view(torch.int32).long()  # the bits of non-negative floats are in their order
    return (sizes << 31) | ((random.bits(sizes.shape[1]) >> 33) & (2**31 - 1))


def top(keys: Tensor, most: int, count: Tensor | None = None) -> Tensor:
    """Returns a mask of the `most` largest entries of each row, or of the `count` largest among these."""
    indices = keys.topk(most, 1).indices
    rank = torch.arange(most, device=keys.device).expand_as(indices)
    selected = torch.ones_like(rank, dtype=torch.bool) if count is None else rank < count
    return torch.zeros_like(keys, dtype=torch.bool).scatter(1, indices, selected)
