"""The citation graphs of Yang et al., ICML 2016, as they were published: eight files each, seven of them pickles."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse, vstack

from graft.data.arrays import DamagedFileError
from graft.data.graphs import Graph, Ints, make_graph
from graft.data.plain_pickles import LARGEST_PICKLE, read_pickle

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
VALIDATION = 500  # nodes after the training nodes
MOST_GAPS = 10  # nodes without features for each test node


def read_planetoid(folder: Path, name: str) -> Graph:
    """Returns a citation graph with its public split; a `DamagedFileError` says why it cannot.

    `allx` are the first nodes and `tx` the test nodes, in the order of test.index. CiteSeer's test nodes have gaps:
    isolated nodes without features, of class 0 as everywhere else.
    """
    files = {part: folder / f"ind.{name}.{part}" for part in PARTS}
    other, test, y, other_y, test_y = (_read_matrix(files[part]) for part in ("allx", "tx", "y", "ally", "ty"))
    test_nodes = _read_test_nodes(files["test.index"], other.shape[0], test.shape[0])
    if (len(other_y), len(test_y)) != (other.shape[0], test.shape[0]) or len(y) > len(other_y):
        raise DamagedFileError("its labels are not as many as its nodes")
    nodes = int(test_nodes.max()) + 1
    row = np.full(nodes, other.shape[0] + test.shape[0])  # of a gap: the row of zeros after all others
    row[: other.shape[0]] = np.arange(other.shape[0])
    row[test_nodes] = other.shape[0] + np.arange(test.shape[0])
    x = vstack([other, test, csr_array((1, other.shape[1]), dtype=other.dtype)], format="csr")[row]
    labels = np.concatenate([other_y.argmax(axis=1), test_y.argmax(axis=1), [0]])[row]
    masks = {mask: np.zeros(nodes, bool) for mask in ("train", "validation", "test")}
    masks["train"][: len(y)] = True
    masks["validation"][len(y) : len(y) + VALIDATION] = True
    masks["test"][test_nodes] = True
    return make_graph(name, x, _read_edges(files["graph"]), labels, masks=masks)


def _read_matrix(path: Path) -> Any:
    matrix = read_pickle(path)
    if not (issparse(matrix) or isinstance(matrix, np.ndarray)) or matrix.ndim != 2 or 0 in matrix.shape:
        raise DamagedFileError(f"{path.name} holds no matrix")
    return matrix


def _read_test_nodes(path: Path, first: int, count: int) -> Ints:
    if path.stat().st_size > LARGEST_PICKLE:
        raise DamagedFileError(f"{path.name} is larger than {LARGEST_PICKLE:,} bytes")
    nodes = np.array([int(line) for line in path.read_text(encoding="ascii").split()])
    if len(nodes) != count or len(np.unique(nodes)) < count or nodes.min() != first:
        raise DamagedFileError(f"{path.name} does not number the {count} nodes of tx from {first} on")
    if nodes.max() >= first + MOST_GAPS * count:
        raise DamagedFileError(f"{path.name} goes up to {nodes.max()}, far beyond its {count} nodes")
    return nodes


def _read_edges(path: Path) -> NDArray[np.int64]:
    neighbours = read_pickle(path)
    if not isinstance(neighbours, dict) or not all(type(ends) is list for ends in neighbours.values()):
        raise DamagedFileError(f"{path.name} holds no lists of neighbours")
    counts = np.array([len(ends) for ends in neighbours.values()], np.int64)
    edges = int(counts.sum())
    if edges > path.stat().st_size:  # a list that is used again and again
        raise DamagedFileError(f"{path.name} has more edges than bytes")
    starts = np.fromiter(neighbours.keys(), np.int64, len(neighbours))
    return np.stack([np.repeat(starts, counts), np.fromiter(chain.from_iterable(neighbours.values()), np.int64, edges)])
