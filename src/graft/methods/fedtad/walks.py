"""Random walks on a private graph: how likely each node is to be where it started after 1, 2, ... steps.

With T = A D^-1 these are the diagonals of T, T^2, ...; S = D^-1/2 A D^-1/2 has the same ones and is symmetric, so
that row i of S^a alone tells two of them: diag(S^2a)_i is its squared norm and diag(S^(2a-1))_i its product with row i
of S^(a-1). Rows are worked out sparsely and in blocks. Where that would take too many steps, they are estimated.
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
Places = NDArray[np.int64]


def as_scipy(matrix: BlockSparse, rows: int, width: int) -> csr_array:
    """The first rows and columns of a matrix of one block, for what PyTorch has no sparse product for."""
    starts, columns = matrix.starts[: rows + 1].cpu().numpy(), matrix.columns.cpu().numpy()
    values = np.ones(len(columns)) if matrix.values is None else matrix.values.cpu().numpy().astype(np.float64)
    entries = int(starts[-1])  # spare nodes come last and have none
    return csr_array((values[:entries], columns[:entries], starts), shape=(rows, width))


def return_probabilities(
    adjacency: csr_array,
    nodes: Places,
    length: int,
    random: Stream,
    *,
    loops: bool = False,
    budget: int = BUDGET,
    probes: int = 256,
) -> Numbers:
    """For some nodes the chances of being back after 1 to `length` steps, [nodes, length].

    They are exact where that takes at most `budget` multiplications; else only those of one and two steps are, and
    the others are estimated from random probes, see `estimated`. With `loops` a walk may also stay where it is.
    """
    steps = step_matrix(adjacency, loops)
    if cost(steps, nodes, length).sum() <= budget:
        return exact(steps, nodes, length)
    return estimated(steps, nodes, length, random, probes)


def step_matrix(adjacency: csr_array, loops: bool) -> csr_array:
    """S = D^-1/2 A D^-1/2; a node without neighbours goes nowhere and is never back."""
    whole = csr_array(adjacency + eye_array(adjacency.shape[0])) if loops else adjacency
    degree = whole.sum(1)
    scale = diags_array(np.divide(1, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0))
    return csr_array(scale @ whole @ scale)


def cost(steps: csr_array, nodes: Places, length: int) -> Numbers:
    """An upper bound of the multiplications for each node: the walks that leave it, but never more than all entries
    of the matrix for a step."""
    pattern = csr_array((np.ones_like(steps.data), steps.indices, steps.indptr), shape=steps.shape)
    walks, total = np.ones(steps.shape[0]), np.zeros(steps.shape[0])
    for _ in range(half(length)):
        walks = pattern @ walks
        total += np.minimum(walks, steps.nnz)
    return total[nodes]


def half(length: int) -> int:
    """The power whose rows tell all return probabilities up to a length."""
    return (length + 1) // 2


def exact(steps: csr_array, nodes: Places, length: int) -> Numbers:
    """Row by row of S, S^2, ..., never more than a block of them at once."""
    found = np.zeros((len(nodes), length))
    # A row has no more entries than there are nodes, whatever the number of walks.
    width = np.minimum(cost(steps, nodes, length), steps.shape[0])
    for block in blocks(width):
        row = csr_array(
            (np.ones(len(block)), nodes[block], np.arange(len(block) + 1)), shape=(len(block), steps.shape[0])
        )
        for power in range(half(length)):
            before, row = row, csr_array(row @ steps)
            note(found, block, power, products(before, row), products(row, row))
    return found


def estimated(steps: csr_array, nodes: Places, length: int, random: Stream, probes: int) -> Numbers:
    """Unbiased estimates: with random signs z the mean of (S^a z)_i^2 is diag(S^2a)_i, and that of
    (S^(a-1) z)_i (S^a z)_i is diag(S^(2a-1))_i.

    The standard error is at most sqrt(2 / probes) times an even value v_2a, and for an odd value at most
    sqrt((v_(2a-2) v_2a + v_(2a-1)^2) / probes), with v_0 = 1. The values of one and two steps are exact.
    """
    found = np.zeros((len(nodes), length))
    everywhere = slice(0, len(nodes))
    for some in blocks(np.full(probes, steps.shape[0])):
        signs = random.keep(0.5, steps.shape[0], len(some))[0].cpu().numpy()
        spread = np.where(signs, 1.0, -1.0)
        for power in range(half(length)):
            before, spread = spread, steps @ spread
            here, there = before[nodes], spread[nodes]
            note(found, everywhere, power, (here * there).sum(1) / probes, (there * there).sum(1) / probes)
    found[:, :2] = 0
    note(found, everywhere, 0, steps.diagonal()[nodes], products(steps[nodes], steps[nodes]))
    return found


def note(found: Numbers, where: Any, power: int, odd: Numbers, even: Numbers) -> None:
    """Add what S^a and S^(a + 1) tell, the second of which may be one step too many."""
    found[where, 2 * power] += odd
    if 2 * power + 1 < found.shape[1]:
        found[where, 2 * power + 1] += even


def products(first: csr_array, second: csr_array) -> Numbers:
    """The product of each row of one matrix with that row of another."""
    summed: Numbers = first.multiply(second).sum(1)
    return summed


def blocks(width: Numbers) -> Iterator[Places]:
    """Groups of rows in their order, each of as many entries as may be held at once, and of one row at least."""
    last = np.cumsum(width) // BLOCK
    yield from np.split(np.arange(len(width)), np.flatnonzero(np.diff(last)) + 1)
