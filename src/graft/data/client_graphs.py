"""Graphs as clients: every graph is one client's own, with a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graft.data.data_file import check_names
from graft.data.graphs import MASKS, Graph, Ints, concatenate_features
from graft.data.pyg_data import from_pyg
from graft.errors import InputError


class Federation:
    """The graphs of clients that hold their own, by name; a dataset for `graft.run` that needs no partition.

    A graph may be a PyG `Data`, a `graft.Graph`, or the path of a folder with tables or of a .npz file. A list gives
    the clients numbers instead of names.
    """

    def __init__(self, graphs: Mapping[str, Any] | Sequence[Any], *, name: str = "graphs", schema: Any = None) -> None:
        self.name = name
        self.names: tuple[str, ...] | None = None
        if isinstance(graphs, Mapping):
            check_names("A federation", graphs)
            self.names = tuple(graphs)
            graphs = list(graphs.values())
        if not graphs:
            raise InputError("A federation needs at least one client's graph.")
        labels = self.names or [f"client {client}" for client in range(len(graphs))]
        self.sources: list[Any] = [_source(graph, label, schema) for graph, label in zip(graphs, labels, strict=True)]

    def __len__(self) -> int:
        return len(self.sources)

    def __repr__(self) -> str:
        return f"Federation({', '.join(self.names or map(str, range(len(self))))})"


def _source(graph: Any, name: str, schema: Any) -> Any:
    from graft.data.preparation import load_source

    if isinstance(graph, str | Path) or hasattr(graph, "nodes_file"):
        return load_source(graph, schema, name)
    if isinstance(graph, Graph):
        return replace(graph, name=name)
    if hasattr(graph, "edge_index"):
        return from_pyg(graph, name)
    raise InputError(
        f"The graph of client '{name}' is a {type(graph).__name__}; it should be a PyG Data, a graft.Graph or a path."
    )


def join(parts: Sequence[Graph], name: str) -> tuple[Graph, Ints]:
    """Returns the graphs of all clients side by side as one, and whose node each one is."""
    sizes = [part.nodes for part in parts]
    starts = np.cumsum([0, *sizes[:-1]])
    first = parts[0]
    joined: dict[str, Any] = {}
    for field in (*MASKS, "ids", "node_times", "weights", "edge_times"):
        values = [getattr(part, field) for part in parts]
        if all(value is not None for value in values):
            joined[field] = np.concatenate(values)
    if "weights" not in joined and any(part.weights is not None for part in parts):
        ones = [np.ones(part.edges.shape[1], np.float32) if part.weights is None else part.weights for part in parts]
        joined["weights"] = np.concatenate(ones)
    whole = Graph(
        name,
        concatenate_features([part.x for part in parts]),
        np.concatenate([part.edges + start for part, start in zip(parts, starts, strict=True)], axis=1),
        np.concatenate([part.y for part in parts]),
        first.classes,
        **joined,
        feature_names=first.feature_names,
        class_names=first.class_names,
    )
    return whole, np.repeat(np.arange(len(parts)), sizes)
