"""A graph in a .npz file that somebody brought."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from graft.data.graphs import MASKS, Graph, make_graph
from graft.errors import InputError

DAMAGED_FILE_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    UnicodeError,
    zipfile.BadZipFile,
    zlib.error,
)  # all that reading a damaged file is known to raise


def read_npz(path: Path) -> Graph:
    """Returns the graph in a .npz file with the arrays x (or the parts of a sparse one), edges, y and perhaps masks."""
    aliases = {"edges": "edge_index", "train": "train_mask", "validation": "val_mask", "test": "test_mask"}
    expected = (
        "it needs x (or x_data, x_indices, x_indptr and x_shape), edges and y, and may have train, validation and test"
    )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = dict(content)
    except DAMAGED_FILE_ERRORS as error:
        raise InputError(f"{path} is not a readable .npz file of plain arrays ({error}); {expected}.") from error
    arrays.update({name: arrays[alias] for name, alias in aliases.items() if alias in arrays and name not in arrays})
    if "x" not in arrays and "x_data" in arrays:
        arrays["x"] = _read_sparse_features(path, arrays, expected)
    missing = [name for name in ("x", "edges", "y") if name not in arrays]
    if missing:
        raise InputError(f"{path} lacks {' and '.join(missing)}: {expected}.")
    edges = arrays["edges"]
    if edges.ndim == 2 and edges.shape[0] != 2 and edges.shape[1] == 2:
        edges = edges.T
    return make_graph(path.stem, arrays["x"], edges, arrays["y"], masks={name: arrays.get(name) for name in MASKS})


def _read_sparse_features(path: Path, arrays: dict[str, Any], expected: str) -> csr_array:
    try:
        parts = (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"])
        x = csr_array(parts, shape=tuple(arrays["x_shape"]))
        x.check_format(full_check=True)
    except DAMAGED_FILE_ERRORS as error:
        raise InputError(f"The parts of the sparse x in {path} do not fit together ({error}); {expected}.") from error
    return x
