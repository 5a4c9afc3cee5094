"""What personal models of AdaFGL propagate along: dense matrices of nodes by nodes, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from graft.tensors.autograd import apply_function
from graft.tensors.sparse import stacked_product

if TYPE_CHECKING:
    from graft.graphs.fleet_graph import FleetGraph

LEAST_SCALE = 1e-9  # by which a matrix of equal entries is divided


def similar_pairs(chances: Tensor, real: Tensor, threshold: float) -> Tensor:
    """Returns R, [clients, nodes, nodes]: 1 for two different nodes whose rows of `chances` have a cosine of at least
    the threshold."""
    unit = functional.normalize(chances, dim=2, eps=1e-12) * real.unsqueeze(2)
    similar = (unit @ unit.mT >= threshold) & real.unsqueeze(1) & real.unsqueeze(2)
    similar.diagonal(dim1=1, dim2=2).fill_(False)
    return similar.float()


def propagation_matrix(graph: FleetGraph, similar: Tensor, adjacency: float) -> Tensor:
    """Returns A', [clients, nodes, nodes]: `adjacency` parts of A and the rest of R, with self-loops and symmetrically
    normalised."""
    mixed = adjacency * graph.neighbours.dense() + (1 - adjacency) * similar
    mixed.diagonal(dim1=1, dim2=2).add_(1)
    scale = mixed.sum(2).rsqrt()
    return mixed * scale.unsqueeze(2) * scale.unsqueeze(1)


def propagate_hops(matrix: Tensor, by_hop: Tensor) -> Tensor:
    """Returns the sum over hops j of A'^j times values [clients, nodes, hops, width] of that hop, with as many products
    as there are hops."""
    *earlier, total = by_hop.unbind(2)
    for values in reversed(earlier):
        total = torch.baddbmm(values, matrix, total)
    return total


def signed_similarity(chances: Tensor, similar: Tensor, real: Tensor, share: float) -> Tensor:
    """Returns R', [clients, nodes, nodes]: `share` parts of R and the rest cosines of `chances`, less the mean,
    rescaled to [-1, 1], with 1 more for a node and itself.

    Mean and maximum are constants of a step: no gradient goes through them.
    """
    unit = functional.normalize(chances, dim=2, eps=1e-12) * real.unsqueeze(2)
    mixed = apply_function(_SimilarOrAlike, unit, similar, share)
    with torch.no_grad():
        sizes = real.sum(1).to(mixed)
        mean = (mixed.sum((1, 2)) / sizes.square()).view(-1, 1, 1)
        above = mixed.amax((1, 2), keepdim=True) - mean
    centred = mixed - mean
    with torch.no_grad():
        # As numbers: a choice by scattered bits takes a CPU many times as long.
        positive = torch.gt(centred, 0, out=torch.empty_like(centred))
        scale = torch.lerp(mean.clamp(min=LEAST_SCALE), above.clamp(min=LEAST_SCALE), positive)
    return torch.addcdiv(torch.eye(centred.shape[1], device=centred.device), centred, scale)


class _SimilarOrAlike(torch.autograd.Function):
    """`share` parts of R and the rest cosines of unit vectors; the gradient by few long rows, which CPUs are faster at
    than at few columns."""

    @staticmethod
    def forward(ctx: Any, unit: Tensor, similar: Tensor, share: float) -> Tensor:
        ctx.save_for_backward(unit)
        ctx.share = share
        return torch.baddbmm(similar, unit, unit.mT, beta=share, alpha=1 - share)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (unit,) = ctx.saved_tensors
        rows = unit.mT.contiguous()
        return (1 - ctx.share) * (rows @ gradient + rows @ gradient.mT).mT, None, None


def signed_messages(signed: Tensor, values: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Returns PReLU(R') and PReLU(-R') times values [clients, nodes, width], of a slope a client."""
    positive = stacked_product(torch.relu(signed), values)
    negative = positive - stacked_product(signed, values)
    scale = slope.view(-1, 1, 1)
    return positive - scale * negative, negative - scale * positive
