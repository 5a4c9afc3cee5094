"""Raw data in a tensor: features, edges or labels of a graph, reshaped, transposed, sorted, scaled or encoded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graft.data.graphs import Graph

Array = NDArray[Any]
ALIKE = 1 - 1e-6  # correlation of values in order from which on they are the same up to scale and shift


def find_raw_data(leaf: Array, graph: Graph) -> str | None:
    """Returns in what form a tensor holds a graph's data, in words; None if it does not."""
    values = leaf.astype(np.float64)
    for form, holds in (
        ("the features of its nodes", holds_features),
        ("the labels of its nodes", holds_labels),
        ("its adjacency matrix", holds_adjacency),
        ("its list of edges", holds_edges),
    ):
        if holds(values, graph):
            return form
    return None


def holds_features(leaf: Array, graph: Graph) -> bool:
    """Returns whether all features of some node are among the values, or those of all nodes up to scale and shift."""
    features: Array = (graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray()).astype(np.float64)
    values = np.sort(leaf.ravel())
    if len(values) == 0:
        return False
    return contains_rows(values, features) or alike(values[values != 0], np.sort(features[features != 0]))


def contains_rows(values: Array, rows: Array) -> bool:
    """Returns whether sorted values contain all non-zero entries of any row, which must have several."""
    position = np.searchsorted(values, rows).clip(1, len(values) - 1) if len(values) > 1 else np.zeros(rows.shape, int)
    distance = np.minimum(abs(values[position] - rows), abs(values[position - 1] - rows))
    contained = (distance <= 1e-6 * abs(rows)) | (rows == 0)
    return bool((contained.all(1) & ((rows != 0).sum(1) > 1)).any())


def alike(values: Array, others: Array) -> bool:
    """Returns whether sorted values are other sorted values times a number plus a number."""
    if len(values) != len(others) or len(values) < 3 or np.ptp(values) == 0 or np.ptp(others) == 0:
        return False
    correlations = [np.corrcoef(values, other)[0, 1] for other in (others, -others[::-1])]
    return bool(max(correlations) > ALIKE)


def holds_labels(leaf: Array, graph: Graph) -> bool:
    """Returns whether some axis has an entry a node, or a training node, that tells the classes apart and no more."""
    selections = [np.arange(graph.nodes)]
    if graph.train is not None:
        selections.append(np.flatnonzero(graph.train))
    for nodes in selections:
        classes = partition_of(graph.y[nodes])
        if len(nodes) < 6 or classes.max() == 0:  # too few to be told from chance
            continue
        for table in tables(leaf, len(nodes)):
            if np.array_equal(partition_of(table[: len(nodes)]), classes):
                return True
            if len(table) >= graph.nodes and np.array_equal(partition_of(table[nodes]), classes):
                return True
    return False


def tables(leaf: Array, nodes: int) -> Iterator[Array]:
    """Yields views of a tensor as a matrix with at least so many rows: each axis as rows, and rows of any length."""
    for axis in range(leaf.ndim):
        if leaf.shape[axis] >= nodes:
            yield np.moveaxis(leaf, axis, 0).reshape(leaf.shape[axis], -1)
    if leaf.size and leaf.size % nodes == 0:
        yield leaf.reshape(nodes, -1)
        yield leaf.reshape(-1, nodes).T


def partition_of(rows: Array) -> Array:
    """Returns the number of the group of every row, where equal rows are a group, in the order of first members."""
    _, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    rank: Array = first.argsort().argsort()[group.ravel()]
    return rank


def holds_adjacency(leaf: Array, graph: Graph) -> bool:
    """Returns whether the entries that are not zero are those of the adjacency matrix, with or without self-loops."""
    size = math.isqrt(leaf.size)
    if size * size != leaf.size or size < graph.nodes or graph.edge_count == 0:
        return False
    matrix = leaf.reshape(size, size) != 0
    np.fill_diagonal(matrix, False)
    linked = np.zeros_like(matrix)
    linked[graph.edges[0], graph.edges[1]] = True
    upper = np.triu(matrix | matrix.T)
    return bool(np.array_equal(upper, np.triu(linked)) or np.array_equal(degrees(upper), degrees(np.triu(linked))))


def degrees(upper: Array) -> Array:
    """Returns the sorted degrees of an upper triangle: the same in whatever order the nodes are."""
    return np.sort((upper | upper.T).sum(1))


def holds_edges(leaf: Array, graph: Graph) -> bool:
    """Returns whether the values, taken as pairs, name at least half of the edges."""
    if graph.edge_count < 3 or leaf.size < graph.edge_count or leaf.size % 2:
        return False
    edges = {(low, high) for low, high in graph.edges.T.tolist() if low < high}
    for pairs in (leaf.reshape(2, -1).T, leaf.reshape(-1, 2)):
        named = {(min(pair), max(pair)) for pair in pairs.tolist()}
        if 2 * len(named & edges) >= len(edges):
            return True
    return False
