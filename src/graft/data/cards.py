"""A partition card: the statistics of a partition and of every client, to be printed, compared and saved."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.sparse.csgraph import connected_components

from graft.data.graphs import MASKS, Graph, Ints, adjacency, undirected
from graft.files import write_text


def content_hash(membership: Ints) -> str:
    """Returns the SHA-256 of a membership, the same on every machine and for every integer dtype."""
    return hashlib.sha256(np.ascontiguousarray(membership, "<i8").tobytes()).hexdigest()


def graph_hash(graph: Graph) -> str:
    """Returns the SHA-256 of the edges and labels of a graph."""
    digest = hashlib.sha256(f"{graph.x.shape} {graph.classes}".encode())
    for values in (graph.edges, graph.y):
        digest.update(np.ascontiguousarray(values, "<i8").data)
    return digest.hexdigest()


def data_hash(graphs: Iterable[Graph], membership: Ints) -> str:
    """Returns the SHA-256 of all that graphs hold, and of who holds which node: features, edges, labels, masks, and the
    weights of edges where there are any."""
    digest = hashlib.sha256(np.ascontiguousarray(membership, "<i8").data)
    for graph in graphs:
        features = (graph.x.indptr, graph.x.indices, graph.x.data) if issparse(graph.x) else (graph.x,)
        masks = [graph.masks.get(name, np.zeros(0, bool)) for name in MASKS]
        digest.update(f"{graph.name} {graph.x.shape} {graph.classes}".encode())
        weights = () if graph.weights is None else (graph.weights,)
        for values in (*features, graph.edges, graph.y, *masks, *weights):
            kind = np.dtype(f"<{values.dtype.kind}{8 if values.dtype.kind in 'iu' else values.dtype.itemsize}")
            digest.update(f"{kind} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values, kind).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def card(
    graph: Graph,
    membership: Ints,
    by: str | Path,
    seed: int,
    options: Mapping[str, Any],
    names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Describes a partition and every client in it, by its name or number."""
    inside = graph.edges[:, membership[graph.edges[0]] == membership[graph.edges[1]]]
    inner, total = inside.shape[1] // 2, graph.edge_count
    return {
        "dataset": graph.name,
        "method": str(by),
        "clients": int(membership.max()) + 1,
        "seed": int(seed),
        "options": dict(options),
        "hash": content_hash(membership),
        **({} if names is None else {"names": list(names)}),
        "nodes": graph.nodes,
        "edges": {
            "total": total,
            "kept": inner,
            "lost": total - inner,
            "lost_share": (total - inner) / total if total else 0.0,
        },
        "per_client": _per_client(graph, membership, inside, names),
    }


def _per_client(graph: Graph, membership: Ints, inside: Ints, names: Sequence[str] | None) -> list[dict[str, Any]]:
    clients, classes = int(membership.max()) + 1, graph.classes
    edges = undirected(inside)
    _, component = connected_components(adjacency(graph.nodes, inside), directed=False)
    first_nodes = np.unique(component, return_index=True)[1]
    alone = np.bincount(inside[0], minlength=graph.nodes) == 0
    labelled = graph.y >= 0

    labelled_edges = edges[:, labelled[edges].all(axis=0)]
    owner, (label, other) = membership[labelled_edges[0]], graph.y[labelled_edges]
    same = label == other  # homophily counts edges, whatever their weights
    both = _table(owner[same], label[same], clients, classes)
    either = _table(owner, label, clients, classes) + _table(owner[~same], other[~same], clients, classes)

    columns = {
        "nodes": np.bincount(membership, minlength=clients).tolist(),
        "edges": np.bincount(membership[edges[0]], minlength=clients).tolist(),
        "components": np.bincount(membership[first_nodes], minlength=clients).tolist(),
        "isolated": np.bincount(membership[alone], minlength=clients).tolist(),
        "labels": _table(membership[labelled], graph.y[labelled], clients, classes).tolist(),
        "unlabelled": np.bincount(membership[~labelled], minlength=clients).tolist(),
        "homophily": _shares(both.sum(axis=1), np.bincount(owner, minlength=clients)),
        "class_homophily": [_shares(*pair) for pair in zip(both, either, strict=True)],
    }
    return [
        {
            "client": client if names is None else names[client],
            **{name: values[client] for name, values in columns.items()},
        }
        for client in range(clients)
    ]


def _table(rows: Ints, columns: Ints, height: int, width: int) -> NDArray[np.int64]:
    return np.bincount(rows * width + columns, minlength=height * width).reshape(height, width)


def _shares(parts: Ints, wholes: Ints) -> list[float | None]:
    return [int(part) / int(whole) if whole else None for part, whole in zip(parts, wholes, strict=True)]


def save(card: Mapping[str, Any], membership: Ints | None, path: str | Path) -> None:
    """Writes a card as JSON, with its membership, if there is one, for `partition(by=path)` to read back."""
    owners = {} if membership is None else {"membership": membership.tolist()}
    write_text(Path(path), json.dumps({**card, **owners}) + "\n")
