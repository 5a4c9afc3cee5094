"""A graph in a PyG `Data`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from graft.data.graphs import Bools, Features, Graph, Ints, make_graph
from graft.errors import DataWarning, InputError

# Names under which published client graphs and PyG's own datasets keep things; the first that is there counts.
PYG_MASKS = {
    "train": ("train_mask", "train_idx"),
    "validation": ("val_mask", "valid_mask", "val_idx", "valid_idx"),
    "test": ("test_mask", "test_idx"),
}
NODE_IDS = ("node_id", "n_id", "ids")


def from_pyg(data: Any, name: str = "pyg") -> Graph:
    """Returns the graph of a PyG `Data`: x and edge_index, and of y, weights, masks, ids and times what it has."""
    missing = [field for field in ("x", "edge_index") if getattr(data, field, None) is None]
    if missing:
        raise InputError(f"The PyG Data lacks {' and '.join(missing)}: it needs x and edge_index, and y for labels.")
    x, edges = _features_from_tensor(data.x), _array(data.edge_index)
    nodes, entries = int(x.shape[0]), int(edges.shape[-1])
    labels, classes = _labels(name, data, nodes)
    masks = {mask: _mask(name, data, attributes, nodes) for mask, attributes in PYG_MASKS.items()}
    ids = _first(data, NODE_IDS)
    return make_graph(
        name,
        x,
        edges,
        labels,
        classes,
        masks,
        weights=_weights(name, data, entries),
        ids=None if ids is None else _array(ids[1]),
        node_times=_times(data, "node_time", nodes),
        edge_times=_array_or_none(data, "edge_time") if nodes == entries else _times(data, "edge_time", entries),
    )


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)


def _array_or_none(data: Any, attribute: str) -> Any:
    values = getattr(data, attribute, None)
    return None if values is None else _array(values)


def _first(data: Any, attributes: tuple[str, ...]) -> tuple[str, Any] | None:
    """Returns the first of some attributes that is there, with its name."""
    present = ((name, getattr(data, name, None)) for name in attributes)
    return next(((name, values) for name, values in present if values is not None), None)


def _times(data: Any, attribute: str, count: int) -> Any:
    """Returns times under their own name, or under the plain name `time` where there are as many of them."""
    values = _array_or_none(data, attribute)
    if values is not None:
        return values
    plain = _array_or_none(data, "time")
    return plain if plain is not None and plain.shape in ((count,), (count, 1)) else None


def _weights(name: str, data: Any, entries: int) -> Any:
    """Returns `edge_weight`, or `edge_attr` where that is one number an edge; warns of one that is not used."""
    weights, attributes = _array_or_none(data, "edge_weight"), _array_or_none(data, "edge_attr")
    if weights is None and attributes is not None and attributes.shape in ((entries,), (entries, 1)):
        return attributes
    if attributes is not None and not (weights is not None and np.array_equal(attributes.ravel(), weights.ravel())):
        why = "edge_weight holds the weights" if weights is not None else f"it is of shape {attributes.shape}"
        warnings.warn(
            f"The edge_attr of '{name}' is not used: {why}, and an edge can have one number, its weight.",
            DataWarning,
            stacklevel=4,
        )
    return weights


def _labels(name: str, data: Any, nodes: int) -> tuple[Any, int | None]:
    """Returns a class for every node, and how many classes there are where that is known; -1 without any label."""
    labels = _array_or_none(data, "y")
    if labels is None:
        return np.full(nodes, -1), None
    if labels.ndim != 2 or labels.shape[0] != nodes or labels.shape[1] < 2:
        return labels, None
    marks = np.nan_to_num(labels, nan=0.0) if labels.dtype.kind == "f" else labels
    if not np.isin(marks, (0, 1)).all() or (marks.sum(axis=1) > 1).any():
        raise InputError(
            f"The labels y of '{name}' are of shape {labels.shape} and not one-hot: a node can have one class, so give "
            "each its number, or a single 1 in a row."
        )
    return np.where(marks.any(axis=1), marks.argmax(axis=1), -1), labels.shape[1]


def _mask(name: str, data: Any, attributes: tuple[str, ...], nodes: int) -> Bools | NDArray[Any] | None:
    """Returns a mask that is given as one, or as a list of nodes; of several columns, the first."""
    given = _first(data, attributes)
    if given is None:
        return None
    attribute, values = given[0], _array(given[1])
    if values.ndim > 1:
        values = values[:, 0]
    return (
        values if attribute.endswith("_mask") or values.dtype.kind == "b" else _mask_of(name, attribute, values, nodes)
    )


def _mask_of(name: str, attribute: str, positions: NDArray[Any], nodes: int) -> Bools:
    if positions.size and (positions.dtype.kind not in "iu" or positions.min() < 0 or positions.max() >= nodes):
        raise InputError(f"The {attribute} of '{name}' must be numbers of nodes, from 0 to {nodes - 1}.")
    mask = np.zeros(nodes, bool)
    selected: Ints = positions.astype(np.int64)
    mask[selected] = True
    return mask


def _features_from_tensor(x: Any) -> Features:
    import torch

    if not isinstance(x, torch.Tensor) or x.layout == torch.strided:
        return _array(x)
    cells = x.detach().cpu().to_sparse(layout=torch.sparse_coo).coalesce()
    return csr_array((cells.values().numpy(), tuple(cells.indices().numpy())), shape=tuple(cells.shape))
