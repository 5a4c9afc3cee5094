"""The structure distillation: over the neighbours of a node, similarities are distributed as the teacher's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graft.methods.fgssl.contrast import unit
from graft.tensors.autograd import apply_function
from graft.tensors.sparse import BlockSparse, csr
from graft.training.losses import mean_over

if TYPE_CHECKING:
    from graft.graphs.fleet_graph import FleetGraph


def structure_loss(graph: FleetGraph, student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Returns KL(teacher || student) of the softmax of cosines over each node's neighbours: a sum over neighbours, a
    mean over nodes that have any, one number a client; no gradient reaches the teacher."""
    pattern = graph.neighbours
    if pattern.entries == 0:
        return student.new_zeros(graph.clients)
    target = neighbour_log_softmax(pattern, edge_products(pattern, unit(teacher.detach())) / temperature)
    by_node = apply_function(_NeighbourDivergence, pattern, unit(student), target, temperature)
    return mean_over(by_node.view(graph.clients, graph.nodes), graph.neighbour_counts > 0)


def edge_products(pattern: BlockSparse, embedding: Tensor) -> Tensor:
    """Returns the inner product of both ends of every entry, without a tensor of entries by width."""
    rows = embedding.flatten(0, 1)
    size = (len(rows), len(rows))
    blank = csr(pattern.starts, pattern.columns, rows.new_zeros(pattern.entries), size)
    products: Tensor = torch.sparse.sampled_addmm(blank, rows, rows.t(), beta=0.0).values()
    return products


def neighbour_log_softmax(pattern: BlockSparse, scores: Tensor) -> Tensor:
    """Returns the logarithm of the softmax of one score an entry over the entries of its row."""
    highest = scores.new_full((len(pattern.starts) - 1,), -torch.inf)
    highest = highest.scatter_reduce(0, pattern.row_of, scores, "amax")
    shifted = scores - highest.index_select(0, pattern.row_of)
    return shifted - pattern.row_sums(shifted.exp()).log().index_select(0, pattern.row_of)


class _NeighbourDivergence(torch.autograd.Function):
    """With a backward of its own: what is saved is one number an entry, and equal distributions give no gradient at
    all, not even a rounding error."""

    @staticmethod
    def forward(ctx: Any, pattern: BlockSparse, embedding: Tensor, target: Tensor, temperature: float) -> Tensor:
        predicted = neighbour_log_softmax(pattern, edge_products(pattern, embedding) / temperature)
        chances = target.exp()
        ctx.pattern, ctx.temperature = pattern, temperature
        ctx.save_for_backward(embedding, predicted.exp() - chances)
        return pattern.row_sums(chances * (target - predicted))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None, None]:
        pattern: BlockSparse = ctx.pattern
        embedding, difference = ctx.saved_tensors
        to_scores = gradient.index_select(0, pattern.row_of) * difference / ctx.temperature
        # Both ends of an entry move, and the pattern is symmetric: one product with the sum of both directions.
        both = to_scores + to_scores.index_select(0, pattern.transpose_permutation)
        return None, pattern.with_values(both).times(embedding), None, None
