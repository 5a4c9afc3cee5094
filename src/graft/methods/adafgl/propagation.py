"""What personal models of AdaFGL propagate along: dense matrices of nodes by nodes, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from graft.tensors.autograd import apply_function
from graft.tensors.sparse import stacked_product
from graft.tensors.trees import Tree, Weights

if TYPE_CHECKING:
    from graft.graphs.fleet_graph import FleetGraph
    from graft.graphs.node_subset import NodeSubset

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


class TrainRows(NamedTuple):
    """What a loss of labels needs of the matrices: their rows at training nodes, worked out once."""

    subset: NodeSubset
    similar: Tensor  # rows of R, [clients, training nodes, nodes]
    itself: Tensor  # rows of the identity, of the same shape
    powers: Tensor  # rows of A'^j, side by side by node and then by hop j, [clients, training nodes, nodes * hops]


def rows_at(subset: NodeSubset, matrices: Weights, hops: int) -> Tree:
    """Returns the rows of R, of the identity, and of the powers of A' up to as many hops, at the nodes of a subset."""
    itself = subset.selection.dense()
    powers = [itself]
    for _ in range(hops):
        powers.append(powers[-1] @ matrices["propagation"])
    return Tree(similar=itself @ matrices["similar"], itself=itself, powers=torch.stack(powers, 3).flatten(2))


def propagate_parts(matrix: Tensor, powers: Tensor, by_hop: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what `propagate_hops` gives for the first and the last of three parts [clients, nodes, hops, 3, width] at
    all nodes, [clients, nodes, 2, width], and for the second at training nodes alone."""
    outputs: tuple[Tensor, Tensor] = cast(Any, _Parts).apply(matrix, powers, by_hop)
    return outputs


class _Parts(torch.autograd.Function):
    """Writes the gradients of all parts and hops into one tensor, instead of adding up as many that are mostly zero."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, powers: Tensor, by_hop: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(matrix, powers)
        clients, nodes, _, parts, width = ctx.shape = by_hop.shape
        everywhere = by_hop[:, :, :, ::2].transpose(1, 2).reshape(clients, -1, nodes, 2 * width)
        total = propagate_hops(matrix, everywhere.transpose(1, 2))
        at_rows = powers @ by_hop.view(clients, -1, parts, width)[:, :, 1]
        return total.view(clients, nodes, 2, width), at_rows

    @staticmethod
    def backward(ctx: Any, everywhere: Tensor, at_rows: Tensor) -> tuple[None, None, Tensor]:
        matrix, powers = ctx.saved_tensors
        clients, nodes, hops, parts, width = ctx.shape
        gradient = everywhere.new_empty(ctx.shape)
        gradient.view(clients, -1, parts, width)[:, :, 1] = powers.mT @ at_rows
        arrived = everywhere.flatten(2)
        for hop in range(hops):
            arrived = matrix.mT @ arrived if hop else arrived
            gradient[:, :, hop, ::2] = arrived.view(clients, nodes, 2, width)
        return None, None, gradient


def signed_similarity(
    chances: Tensor, similar: Tensor, real: Tensor, share: float, rows: TrainRows | None = None
) -> Tensor:
    """Returns R', [clients, nodes, nodes]: `share` parts of R and the rest cosines of `chances`, less the mean,
    rescaled to [-1, 1], with 1 more for a node and itself; or some rows of it.

    Mean and maximum are constants of a step: no gradient goes through them.
    """
    unit = functional.normalize(chances, dim=2, eps=1e-12) * real.unsqueeze(2)
    if rows is None:
        mixed = every = apply_function(_SimilarOrAlike, unit, unit, similar, share)
    else:
        mixed = apply_function(_SimilarOrAlike, rows.subset.gather(unit), unit, rows.similar, share)
        with torch.no_grad():
            every = torch.baddbmm(similar, unit, unit.mT, beta=share, alpha=1 - share)
    with torch.no_grad():
        sizes = real.sum(1).to(mixed)
        mean = (every.sum((1, 2)) / sizes.square()).view(-1, 1, 1)
        above = every.amax((1, 2), keepdim=True) - mean
    centred = mixed - mean
    with torch.no_grad():
        # As numbers: a choice by scattered bits takes a CPU many times as long.
        positive = torch.gt(centred, 0, out=torch.empty_like(centred))
        scale = torch.lerp(mean.clamp(min=LEAST_SCALE), above.clamp(min=LEAST_SCALE), positive)
    itself = torch.eye(centred.shape[2], device=centred.device) if rows is None else rows.itself
    return torch.addcdiv(itself, centred, scale)


class _SimilarOrAlike(torch.autograd.Function):
    """`share` parts of R and the rest cosines of unit vectors of some nodes and of all; the gradients by few long rows,
    which CPUs are faster at than at few columns."""

    @staticmethod
    def forward(ctx: Any, some: Tensor, unit: Tensor, similar: Tensor, share: float) -> Tensor:
        ctx.save_for_backward(some, unit)
        ctx.share = share
        return torch.baddbmm(similar, some, unit.mT, beta=share, alpha=1 - share)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        some, unit = (each.mT.contiguous() for each in ctx.saved_tensors)
        to_some, to_unit = unit @ gradient.mT, some @ gradient
        return (1 - ctx.share) * to_some.mT, (1 - ctx.share) * to_unit.mT, None, None


def signed_messages(signed: Tensor, values: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Returns PReLU(R') and PReLU(-R') times values [clients, nodes, width], of a slope a client."""
    positive = stacked_product(torch.relu(signed), values)
    negative = positive - stacked_product(signed, values)
    scale = slope.view(-1, 1, 1)
    return positive - scale * negative, negative - scale * positive
