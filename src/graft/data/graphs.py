"""The graph that every other part of the data layer reads: features, edges, labels and masks in numpy and scipy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse
from scipy.sparse.csgraph import connected_components

from graft.errors import InputError

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Times = NDArray[np.float64]  # seconds since 1970, or whatever else grows with time
Features: TypeAlias = Any  # float32 of shape [N, F]: an ndarray, or a csr_array when sparse

MASKS = ("train", "validation", "test")
SPARSE_BELOW = 0.1  # features with at most this share of non-zero cells are kept sparse


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph with node features and labels; `make_graph` is the way to make one."""

    name: str
    x: Features
    edges: Ints  # [2, E], both directions, sorted by (row, col), no duplicates, no self-loops
    y: Ints  # [N], -1 = unlabelled
    classes: int
    train: Bools | None = None
    validation: Bools | None = None
    test: Bools | None = None
    weights: Floats | None = None  # [E], above 0 and the same in both directions; None: all 1
    ids: NDArray[np.str_] | None = None  # [N], what the owner calls the nodes; None: 0, 1, ...
    feature_names: tuple[str, ...] | None = None  # [F]
    class_names: tuple[str, ...] | None = None
    node_times: Times | None = None  # [N]
    edge_times: Times | None = None  # [E], the same in both directions

    @property
    def nodes(self) -> int:
        """Returns the number of nodes."""
        return len(self.y)

    @property
    def features(self) -> int:
        """Returns the number of features of a node."""
        return int(self.x.shape[1])

    @property
    def edge_count(self) -> int:
        """Returns the number of undirected edges."""
        return int(self.edges.shape[1]) // 2

    @property
    def masks(self) -> dict[str, Bools]:
        """Returns the masks that the graph has, by name."""
        return {name: getattr(self, name) for name in MASKS if getattr(self, name) is not None}


def make_graph(
    name: str,
    x: Any,
    edges: ArrayLike,
    y: ArrayLike,
    classes: int | None = None,
    masks: Mapping[str, ArrayLike | None] | None = None,
    *,
    ids: ArrayLike | None = None,
    feature_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    node_times: ArrayLike | None = None,
) -> Graph:
    """Returns a graph of checked arrays, with edges made undirected, unique and free of self-loops."""
    features = _clean_features(name, x)
    nodes = features.shape[0]
    labels, classes = _clean_labels(name, y, nodes, classes)
    checked_masks: dict[str, Any] = {
        mask: _clean_mask(name, mask, values, nodes) for mask, values in (masks or {}).items() if values is not None
    }
    return Graph(
        name,
        features,
        _clean_edges(name, edges, nodes),
        labels,
        classes,
        **checked_masks,
        ids=None if ids is None else np.asarray(ids, dtype=np.str_),
        feature_names=None if feature_names is None else tuple(feature_names),
        class_names=None if class_names is None else tuple(class_names),
        node_times=None if node_times is None else np.asarray(node_times, dtype=np.float64),
    )


def _clean_features(name: str, x: Any) -> Features:
    matrix: Any = x if issparse(x) else _as_array(f"The features x of '{name}'", x)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise InputError(
            f"The features x of '{name}' must be numbers of shape [nodes, features], not {matrix.dtype} of shape "
            f"{tuple(matrix.shape)}."
        )
    if 0 in matrix.shape:
        raise InputError(f"Graph '{name}' is empty: it has {matrix.shape[0]} nodes with {matrix.shape[1]} features.")
    with np.errstate(over="ignore"):
        features = (
            csr_array(matrix, dtype=np.float32, copy=True)
            if issparse(matrix)
            else matrix.astype(np.float32, copy=False)
        )
    values = features.data if issparse(features) else features
    if not np.isfinite(values).all():
        cells = features.tocoo() if issparse(features) else None
        first = int(np.flatnonzero(~np.isfinite(values).ravel())[0])
        node = cells.row[first] if cells is not None else first // features.shape[1]
        raise InputError(f"The features x of '{name}' hold NaN or infinity, first at node {node}: fill or drop it.")
    if issparse(features):
        features.sum_duplicates()
        features.eliminate_zeros()
        return features if features.nnz <= SPARSE_BELOW * np.prod(features.shape) else features.toarray()
    return csr_array(features) if np.count_nonzero(features) <= SPARSE_BELOW * features.size else features


def _clean_edges(name: str, edges: ArrayLike, nodes: int) -> Ints:
    ends = _as_array(f"The edges of '{name}'", edges)
    if ends.size == 0:
        return np.empty((2, 0), np.int64)
    if ends.ndim != 2 or ends.shape[0] != 2 or ends.dtype.kind not in "iu":
        raise InputError(
            f"The edges of '{name}' must be whole numbers of shape [2, edges], not {ends.dtype} of shape {ends.shape}."
        )
    if ends.min() < 0 or ends.max() >= nodes:
        column = int(np.flatnonzero(((ends < 0) | (ends >= nodes)).any(axis=0))[0])
        raise InputError(
            f"Edge {column} of '{name}' joins {ends[0, column]} and {ends[1, column]}, but its nodes are 0 to "
            f"{nodes - 1}."
        )
    # An edge is one number, row * nodes + column, so that sorting it sorts pairs without a second array.
    low, high = np.minimum(ends[0], ends[1]), np.maximum(ends[0], ends[1])
    keys = sorted_unique(low[low != high].astype(np.int64) * nodes + high[low != high])
    del low, high
    keys = np.concatenate([keys, keys % nodes * nodes + keys // nodes])
    keys.sort()
    edge_index = np.empty((2, len(keys)), np.int64)
    np.divmod(keys, nodes, out=(edge_index[0], edge_index[1]))
    return edge_index


def sorted_unique(keys: Ints) -> Ints:
    """Returns the different values of an array in ascending order, as `np.unique` but sorting the array itself in
    place."""
    keys.sort()
    differs = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=differs[1:])
    return keys[differs]


def _clean_labels(name: str, y: ArrayLike, nodes: int, classes: int | None) -> tuple[Ints, int]:
    values = _as_array(f"The labels y of '{name}'", y)
    if values.shape not in ((nodes,), (nodes, 1)) or values.dtype.kind not in "biuf":
        raise InputError(
            f"The labels y of '{name}' must be one number for each of its {nodes} nodes, not {values.dtype} of shape "
            f"{values.shape}."
        )
    values = values.reshape(nodes)
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -1, values)
        if not np.isfinite(values).all() or (values != np.floor(values)).any():
            raise InputError(f"The labels y of '{name}' must be whole numbers (NaN or -1 where there is none).")
    labels = values.astype(np.int64)
    classes = max(int(labels.max()), 0) + 1 if classes is None else classes
    wrong = np.flatnonzero((labels < -1) | (labels >= classes))
    if len(wrong):
        raise InputError(
            f"Node {wrong[0]} of '{name}' has label {labels[wrong[0]]}, but labels are 0 to {classes - 1}, or -1 for "
            f"unlabelled."
        )
    return labels, classes


def _clean_mask(name: str, mask: str, mask_values: ArrayLike, nodes: int) -> Bools:
    if mask not in MASKS:
        raise InputError(f"Graph '{name}' was given a mask '{mask}'; the masks are {', '.join(MASKS)}.")
    values = _as_array(f"The {mask} mask of '{name}'", mask_values)
    if values.shape != (nodes,) or values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
        raise InputError(f"The {mask} mask of '{name}' must be true or false for each of its {nodes} nodes.")
    return values.astype(bool)


def _as_array(subject: str, values: Any) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{subject} cannot be read as an array: {error}.") from error


def adjacency(nodes: int, edges: Ints) -> csr_array:
    """Returns the adjacency matrix of edges sorted by row, in CSR form."""
    indptr = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(edges[0], minlength=nodes), out=indptr[1:])
    return csr_array((np.ones(edges.shape[1], np.int8), np.ascontiguousarray(edges[1]), indptr), shape=(nodes, nodes))


def undirected(edges: Ints) -> Ints:
    """Every undirected edge once, the lower node first, in the order given."""
    return edges[:, edges[0] < edges[1]]


def subgraph(graph: Graph, nodes: ArrayLike) -> Graph:
    """Returns the subgraph induced by some nodes, renumbered in ascending order."""
    selected = np.unique(np.asarray(nodes, dtype=np.int64))
    if not len(selected) or selected[0] < 0 or selected[-1] >= graph.nodes:
        raise InputError(f"A subgraph of '{graph.name}' needs at least one node out of 0 to {graph.nodes - 1}.")
    position = np.full(graph.nodes, -1, np.int64)
    position[selected] = np.arange(len(selected))
    ends = position[graph.edges]
    return _select_nodes(graph, selected, ends[:, (ends >= 0).all(axis=0)])


def cut(graph: Graph, membership: Ints) -> list[Graph]:
    """Returns the induced subgraph of every client: client k gets the nodes of membership k and the edges between
    them."""
    sizes = np.bincount(membership)
    order = np.argsort(membership, kind="stable")
    starts = np.cumsum(sizes) - sizes
    position = np.empty(graph.nodes, np.int64)
    position[order] = np.arange(graph.nodes) - np.repeat(starts, sizes)
    owner = membership[graph.edges[0]]
    inside = np.flatnonzero(owner == membership[graph.edges[1]])
    # Stable, and positions rise with node ids: every client's edges come out sorted by (row, col) again.
    inside = inside[np.argsort(owner[inside], kind="stable")]
    ends = position[graph.edges[:, inside]]
    stops = np.cumsum(np.bincount(owner[inside], minlength=len(sizes)))
    return [
        _select_nodes(graph, nodes, np.ascontiguousarray(edges))
        for nodes, edges in zip(np.split(order, starts[1:]), np.split(ends, stops[:-1], axis=1), strict=True)
    ]


def _select_nodes(graph: Graph, nodes: Ints, edges: Ints) -> Graph:
    per_node: dict[str, Any] = {
        name: getattr(graph, name)[nodes] for name in (*MASKS, "ids", "node_times") if getattr(graph, name) is not None
    }
    return replace(graph, x=graph.x[nodes], edges=edges, y=graph.y[nodes], **per_node)


def largest_component(graph: Graph) -> Graph:
    """Returns the largest connected component; of several equally large ones, that of the lowest node."""
    _, component = connected_components(adjacency(graph.nodes, graph.edges), directed=False)
    return subgraph(graph, np.flatnonzero(component == np.bincount(component).argmax()))


def normalise(graph: Graph, normalisation: str) -> Graph:
    """Returns the same graph with its features scaled by one of `NORMALISATIONS`."""
    if normalisation not in NORMALISATIONS:
        raise InputError(
            f"There is no feature normalisation '{normalisation}'; choose one of {', '.join(NORMALISATIONS)}."
        )
    return replace(graph, x=NORMALISATIONS[normalisation](graph.x))


def _row(x: Features) -> Features:
    # The sum of absolute values: the row sum of counts, and never near zero for signed features.
    return _divide_rows(x, abs(x).sum(axis=1))


def _l2(x: Features) -> Features:
    return _divide_rows(x, np.sqrt((x * x).sum(axis=1)))


def _divide_rows(x: Features, lengths: NDArray[np.float32]) -> Features:
    scale = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return csr_array(x * scale[:, None]) if issparse(x) else x * scale[:, None]


def _standard(x: Features) -> Features:
    dense = x.toarray() if issparse(x) else x
    centred = dense - dense.mean(axis=0, dtype=np.float64).astype(np.float32)
    deviation = np.sqrt(np.square(centred).mean(axis=0, dtype=np.float64)).astype(np.float32)
    constant = dense.min(axis=0) == dense.max(axis=0)
    centred /= np.where(constant | (deviation == 0), 1, deviation)
    centred[:, constant] = 0
    return centred


NORMALISATIONS: dict[str, Callable[[Features], Features]] = {
    "raw": lambda x: x,
    "row": _row,
    "l2": _l2,
    "standard": _standard,
}
