"""The graph that every other part of the data layer reads: features, edges, labels and masks in numpy and scipy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse, vstack
from scipy.sparse.csgraph import connected_components

from graft.data.edges import Edges, as_array, checked_times, clean_edges
from graft.data.edges import Floats as Floats
from graft.data.edges import Ints as Ints
from graft.data.edges import Times as Times
from graft.errors import InputError

Bools = NDArray[np.bool_]
Features: TypeAlias = Any  # float32 of shape [N, F]: an ndarray, or a csr_array when sparse

MASKS = ("train", "validation", "test")
MOST_CLASSES = 2**16
CLASSES_OF_ANY_GRAPH = 1000  # labels beyond are numbers of something else, unless there are as many nodes
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
    weights: ArrayLike | None = None,
    edge_times: ArrayLike | None = None,
) -> Graph:
    """Returns a graph of checked arrays, with edges made undirected, unique and free of self-loops.

    Where every edge is given in both directions with the same weight, that is its weight; otherwise the weights of all
    rows between two nodes are summed. Of their times the earliest counts, and a weight of 0 is no edge.
    """
    features = _clean_features(name, x)
    nodes = features.shape[0]
    labels, classes = _clean_labels(name, y, nodes, classes)
    checked_masks: dict[str, Any] = {
        mask: _clean_mask(name, mask, values, nodes) for mask, values in (masks or {}).items() if values is not None
    }
    cleaned = clean_edges(name, edges, nodes, weights, edge_times)
    return Graph(
        name,
        features,
        cleaned.ends,
        labels,
        classes,
        **checked_masks,
        weights=cleaned.weights,
        ids=None if ids is None else _clean_ids(name, ids, nodes),
        feature_names=_clean_names(name, "feature_names", feature_names, features.shape[1], "features"),
        class_names=_clean_names(name, "class_names", class_names, classes, "classes"),
        node_times=None
        if node_times is None
        else checked_times(f"The node_times of '{name}'", node_times, nodes, "nodes"),
        edge_times=cleaned.times,
    )


def _clean_features(name: str, x: Any) -> Features:
    matrix: Any = x if issparse(x) else as_array(f"The features x of '{name}'", x)
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


def _clean_labels(name: str, y: ArrayLike, nodes: int, classes: int | None) -> tuple[Ints, int]:
    values = as_array(f"The labels y of '{name}'", y)
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
    most = min(max(nodes, CLASSES_OF_ANY_GRAPH), MOST_CLASSES)
    if classes is None and values.max() >= most:
        raise InputError(
            f"Node {values.argmax()} of '{name}' has label {values.max():.12g}, but a graph of {nodes} nodes has "
            f"at most {most} classes: number them from 0 on, with -1 for unlabelled."
        )
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
    values = as_array(f"The {mask} mask of '{name}'", mask_values)
    if values.shape != (nodes,) or values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
        raise InputError(f"The {mask} mask of '{name}' must be true or false for each of its {nodes} nodes.")
    return values.astype(bool)


def _clean_ids(name: str, ids: ArrayLike, nodes: int) -> NDArray[np.str_]:
    texts = as_array(f"The ids of '{name}'", ids).astype(np.str_)
    if texts.shape != (nodes,):
        raise InputError(
            f"The ids of '{name}' must be one for each of its {nodes} nodes, not of shape {tuple(texts.shape)}."
        )
    unique, counts = np.unique(texts, return_counts=True)
    if len(unique) < nodes:
        twice = unique[counts > 1][0]
        first, second = np.flatnonzero(texts == twice)[:2]
        raise InputError(f"The ids of '{name}' must differ, but nodes {first} and {second} are both '{twice}'.")
    return texts


def _clean_names(name: str, field: str, names: Sequence[str] | None, count: int, of: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    texts = tuple(map(str, names))
    if len(texts) != count:
        raise InputError(f"The {field} of '{name}' are {len(texts)}, but it has {count} {of}.")
    return texts


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
    inside = np.flatnonzero((ends >= 0).all(axis=0))
    return _select_nodes(graph, selected, _edges_at(graph, inside, ends[:, inside]))


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
    del owner
    return [
        _select_nodes(graph, nodes, _edges_at(graph, rows, np.ascontiguousarray(edges)))
        for nodes, rows, edges in zip(
            np.split(order, starts[1:]), np.split(inside, stops[:-1]), np.split(ends, stops[:-1], axis=1), strict=True
        )
    ]


def _select_nodes(graph: Graph, nodes: Ints, edges: Edges) -> Graph:
    per_node: dict[str, Any] = {
        name: getattr(graph, name)[nodes] for name in (*MASKS, "ids", "node_times") if getattr(graph, name) is not None
    }
    return with_edges(replace(graph, x=graph.x[nodes], y=graph.y[nodes], **per_node), edges)


def _edges_at(graph: Graph, rows: Ints | Bools, ends: Ints) -> Edges:
    """Returns some of a graph's edges with their weights and times, between nodes of other numbers."""
    weights = None if graph.weights is None else graph.weights[rows]
    return Edges(ends, weights, None if graph.edge_times is None else graph.edge_times[rows])


def with_edges(graph: Graph, edges: Edges) -> Graph:
    """Returns a graph of the same nodes with other edges."""
    return replace(graph, edges=edges.ends, weights=edges.weights, edge_times=edges.times)


def keep_edges(graph: Graph, rows: Ints | Bools) -> Graph:
    """Returns the graph with some of its edges, which must come in both directions, their weights and times."""
    return with_edges(graph, _edges_at(graph, rows, graph.edges[:, rows]))


def edge_weights(graph: Graph) -> Floats:
    """Returns the weight of every edge, 1 where the graph has none."""
    return np.ones(graph.edges.shape[1], np.float32) if graph.weights is None else graph.weights


def concatenate_features(features: Sequence[Features]) -> Features:
    """Returns the features of several graphs on top of each other, sparse where all of them are."""
    if all(issparse(x) for x in features):
        return csr_array(vstack(features, "csr"))
    return np.concatenate([x.toarray() if issparse(x) else x for x in features])


def largest_component(graph: Graph) -> Graph:
    """Returns the largest connected component; of several equally large ones, that of the lowest node."""
    _, component = connected_components(adjacency(graph.nodes, graph.edges), directed=False)
    return subgraph(graph, np.flatnonzero(component == np.bincount(component).argmax()))


def normalise(graph: Graph, normalisation: str) -> Graph:
    """Returns the same graph with its features scaled by one of `NORMALISATIONS`, each node by itself."""
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


NORMALISATIONS: dict[str, Callable[[Features], Features]] = {
    "raw": lambda x: x,
    "row": _row,
    "l2": _l2,
}
