"""The co-purchase and co-author graphs of Shchur et al., 2018, as they were published: one .npz file each."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from graft.data.arrays import DamagedFileError, read_arrays
from graft.data.graphs import SPARSE_BELOW, Graph, make_graph

PARTS = ("data", "indices", "indptr", "shape")


def read_benchmark_npz(path: Path, name: str) -> Graph:
    """Returns the graph with features of 0 and 1, as everywhere else; a `DamagedFileError` says why it cannot."""
    expected = [f"{matrix}_{part}" for matrix in ("attr", "adj") for part in PARTS] + ["labels"]
    arrays = read_arrays(path, expected)
    missing = [array for array in expected if array not in arrays]
    if missing:
        raise DamagedFileError(f"{path.name} lacks {' and '.join(missing)}")
    x: Any = _join(arrays, "attr")
    links = _join(arrays, "adj")
    x.data = x.data > 0  # truth values, so that a cell that comes twice is still 1
    if x.nnz <= SPARSE_BELOW * x.shape[0] * x.shape[1]:
        x.sum_duplicates()
    else:
        x = x.toarray()  # now, as sorting so many cells, which are in any order, would take longer than all the rest
    if links.shape != (x.shape[0], x.shape[0]):
        raise DamagedFileError(f"{path.name} joins {links.shape} nodes, but has features of {x.shape[0]}")
    return make_graph(name, x, np.stack(links.tocoo().coords), arrays["labels"])


def _join(arrays: dict[str, NDArray[Any]], matrix: str) -> csr_array:
    data, indices, indptr, shape = (arrays[f"{matrix}_{part}"] for part in PARTS)
    joined = csr_array((data, indices, indptr), shape=tuple(int(size) for size in shape))
    joined.check_format(full_check=True)
    return joined
