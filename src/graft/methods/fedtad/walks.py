"""Return probabilities of random walks: how likely a walk from each node is back after 1, 2, ... steps.

With T = A D^-1 these are the diagonals of T, T^2, ...; S = D^-1/2 A D^-1/2 has the same ones and is symmetric, so
row i of S^a gives two of them: diag(S^2a)_i is its squared norm and diag(S^(2a-1))_i its product with row i of S^(a-1).
Rows are computed sparsely and in blocks. Where that would take too many multiplications, they are estimated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, eye_array

from graft.tensors.sparse import BlockSparse

if TYPE_CHECKING:
    from graft.tensors.randomness import Stream

BLOCK = 2**21  # numbers that are held at once: 16 MB, and with the positions of sparse ones twice that
BUDGET = 50_000_000  # multiplications, about a second

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]


def as_scipy(matrix: BlockSparse, rows: int, width: int) -> csr_array:
    """Returns the first rows and columns of a matrix of one block, for what PyTorch has no sparse product for."""
    starts, columns = matrix.starts[: rows + 1].cpu().numpy(), matrix.columns.cpu().numpy()
    values = np.ones(len(columns)) if matrix.values is None else matrix.values.cpu().numpy().astype(np.float64)
    entries = int(starts[-1])  # padding comes last and has none
    return csr_array((values[:entries], columns[:entries], starts), shape=(rows, width))


def return_probabilities(
    adjacency: csr_array,
    nodes: Indices,
    length: int,
    random: Stream,
    *,
    loops: bool = False,
    budget: int = BUDGET,
    probes: int = 256,
) -> Numbers:
    """Returns the return probabilities of some nodes after 1 to `length` steps, [nodes, length].

    They are exact where that takes at most `budget` multiplications; else only those of one and two steps are, and
    the others are estimated from random probes, see `estimate`. With `loops` a walk may also stay where it is.
    """
    steps = step_matrix(adjacency, loops)
    if cost(steps, nodes, length).sum() <= budget:
        return exact(steps, nodes, length)
    return estimate(steps, nodes, length, random, probes)


def step_matrix(adjacency: csr_array, loops: bool) -> csr_array:
    """S = D^-1/2 A D^-1/2; a walk from a node without neighbours never returns."""
    matrix = csr_array(adjacency + eye_array(adjacency.shape[0])) if loops else adjacency
    degree = matrix.sum(1)
    scale = diags_array(np.divide(1, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0))
    return csr_array(scale @ matrix @ scale)


def cost(steps: csr_array, nodes: Indices, length: int) -> Numbers:
    """Returns an upper bound of the multiplications for each node: the walks that leave it, but never more than all
    entries of the matrix for a step."""
    pattern = csr_array((np.ones_like(steps.data), steps.indices, steps.indptr), shape=steps.shape)
    walks, total = np.ones(steps.shape[0]), np.zeros(steps.shape[0])
    for _ in range(highest_power(length)):
        walks = pattern @ walks
        total += np.minimum(walks, steps.nnz)
    return total[nodes]


def highest_power(length: int) -> int:
    """Returns the highest power of S that is needed for return probabilities up to a length."""
    return (length + 1) // 2


def exact(steps: csr_array, nodes: Indices, length: int) -> Numbers:
    """Return probabilities from rows of S, S^2, ..., never more than a block of them at once."""
    probabilities = np.zeros((len(nodes), length))
    # A row has no more entries than there are nodes, whatever the number of walks.
    width = np.minimum(cost(steps, nodes, length), steps.shape[0])
    for block in blocks(width):
        row = csr_array(
            (np.ones(len(block)), nodes[block], np.arange(len(block) + 1)), shape=(len(block), steps.shape[0])
        )
        for power in range(highest_power(length)):
            before, row = row, csr_array(row @ steps)
            add_pair(probabilities, block, power, row_products(before, row), row_products(row, row))
    return probabilities


def estimate(steps: csr_array, nodes: Indices, length: int, random: Stream, probes: int) -> Numbers:
    """Unbiased estimates: with random signs z the mean of (S^a z)_i^2 is diag(S^2a)_i, and that of
    (S^(a-1) z)_i (S^a z)_i is diag(S^(2a-1))_i.

    The standard error is at most sqrt(2 / probes) times an even value v_2a, and for an odd value at most
    sqrt((v_(2a-2) v_2a + v_(2a-1)^2) / probes), with v_0 = 1. The values of one and two steps are exact.
    """
    probabilities = np.zeros((len(nodes), length))
    all_rows = slice(0, len(nodes))
    for block in blocks(np.full(probes, steps.shape[0])):
        signs = random.keep(0.5, steps.shape[0], len(block))[0].cpu().numpy()
        propagated = np.where(signs, 1.0, -1.0)
        for power in range(highest_power(length)):
            before, propagated = propagated, steps @ propagated
            lower, upper = before[nodes], propagated[nodes]
            odd, even = (lower * upper).sum(1) / probes, (upper * upper).sum(1) / probes
            add_pair(probabilities, all_rows, power, odd, even)
    probabilities[:, :2] = 0
    add_pair(probabilities, all_rows, 0, steps.diagonal()[nodes], row_products(steps[nodes], steps[nodes]))
    return probabilities


def add_pair(probabilities: Numbers, rows: Any, power: int, odd: Numbers, even: Numbers) -> None:
    """Add the values of 2 * power + 1 and 2 * power + 2 steps, the second of which may be one too many."""
    probabilities[rows, 2 * power] += odd
    if 2 * power + 1 < probabilities.shape[1]:
        probabilities[rows, 2 * power + 1] += even


def row_products(first: csr_array, second: csr_array) -> Numbers:
    """Returns the inner products of corresponding rows of two matrices."""
    summed: Numbers = first.multiply(second).sum(1)
    return summed


def blocks(width: Numbers) -> Iterator[Indices]:
    """Consecutive row numbers in blocks, each of as many entries as are held at once, but of one row at least."""
    last = np.cumsum(width) // BLOCK
    yield from np.split(np.arange(len(width)), np.flatnonzero(np.diff(last)) + 1)
