"""A graph in a .npz file that somebody brought."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from graft.data.arrays import DAMAGED_FILE_ERRORS, DamagedFileError, read_arrays
from graft.data.graphs import MASKS, Graph, make_graph
from graft.data.labels import as_text, encode_labels
from graft.errors import DataWarning, InputError

SPARSE_PARTS = ("x_data", "x_indices", "x_indptr", "x_shape")
WIDEST = 2**24  # features of a sparse x, of which a file can declare any number
ALIASES = {  # what an array may be called, its own name first
    "x": ("x",),
    "edges": ("edges", "edge_index"),
    "y": ("y",),
    "train": ("train", "train_mask"),
    "validation": ("validation", "val_mask", "valid_mask"),
    "test": ("test", "test_mask"),
    "weights": ("weights", "edge_weight"),
    "edge_attr": ("edge_attr",),
    "ids": ("ids",),
    "feature_names": ("feature_names",),
    "class_names": ("class_names",),
    "node_times": ("node_times", "node_time"),
    "edge_times": ("edge_times", "edge_time"),
}
EXPECTED = (
    "it needs x (or x_data, x_indices, x_indptr and x_shape) and edges, usually y, and may have train, validation, "
    "test, weights, ids, feature_names, class_names, node_times and edge_times"
)


def read_npz(path: Path) -> Graph:
    """Returns the graph in a .npz file; without y, nothing in it is labelled."""
    arrays = _read(path)
    missing = [name for name in ("x", "edges") if name not in arrays]
    if missing:
        raise InputError(f"{path} lacks {' and '.join(missing)}: {EXPECTED}.")
    edges, x = arrays["edges"], arrays["x"]
    if edges.ndim == 2 and edges.shape[0] != 2 and edges.shape[1] == 2:
        edges = edges.T
    y = arrays.get("y", np.full(x.shape[:1], -1))
    labels, class_names = encode_labels(path.stem, y, arrays.get("class_names"))
    return make_graph(
        path.stem,
        x,
        edges,
        labels,
        None if class_names is None else len(class_names),
        {name: arrays.get(name) for name in MASKS},
        class_names=class_names,
        weights=_weights(path, arrays, edges.shape[-1:]),
        **{name: arrays.get(name) for name in ("ids", "feature_names", "node_times", "edge_times")},
    )


def _weights(path: Path, arrays: dict[str, NDArray[Any]], count: tuple[int, ...]) -> NDArray[Any] | None:
    """Returns the weights, or edge_attr where that is one number an edge; warns of one that is not used."""
    weights, attributes = arrays.get("weights"), arrays.get("edge_attr")
    if weights is not None or attributes is None:
        return weights
    if attributes.shape in (count, (*count, 1)):
        return attributes
    warnings.warn(
        f"The edge_attr of {path} is not used: it is of shape {attributes.shape}, and an edge can have one number, its "
        "weight.",
        DataWarning,
        stacklevel=3,
    )
    return None


def _read(path: Path) -> dict[str, Any]:
    """Returns the arrays of a file by their own names, those of names and ids as text."""
    try:
        given = read_arrays(path, (*SPARSE_PARTS, *(alias for aliases in ALIASES.values() for alias in aliases)))
        arrays: dict[str, Any] = {
            name: next(given[alias] for alias in aliases if alias in given)
            for name, aliases in ALIASES.items()
            if any(alias in given for alias in aliases)
        }
        for name in ("ids", "feature_names", "class_names"):
            if name in arrays:
                arrays[name] = as_text(arrays[name]).ravel()
        if "y" in arrays and arrays["y"].dtype.kind == "S":
            arrays["y"] = as_text(arrays["y"])
    except (DamagedFileError, UnicodeError) as error:
        raise InputError(f"{path} is not a readable .npz file of plain arrays ({error}); {EXPECTED}.") from error
    if "x" not in arrays and "x_data" in given:
        arrays["x"] = _join_sparse_features(path, given)
    return arrays


def _join_sparse_features(path: Path, parts: dict[str, NDArray[Any]]) -> csr_array:
    try:
        shape = tuple(int(size) for size in parts["x_shape"])
        x = csr_array((parts["x_data"], parts["x_indices"], parts["x_indptr"]), shape=shape)
        x.check_format(full_check=True)
    except DAMAGED_FILE_ERRORS as error:
        raise InputError(f"The parts of the sparse x in {path} do not fit together ({error}); {EXPECTED}.") from error
    if x.shape[1] > WIDEST:
        raise InputError(f"The x_shape of {path} declares {x.shape[1]:,} features, and {WIDEST:,} are the most.")
    return x
