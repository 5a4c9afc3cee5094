"""Graphs as clients: every graph is one client's own, with a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graft.data.data_file import check_names
from graft.data.graphs import MASKS, Graph, concatenate_features, edge_weights
from graft.data.preparation import Source, load_sources
from graft.data.pyg_data import from_pyg
from graft.data.schema import ClientFiles, Schema
from graft.data.tables import NodeTable
from graft.errors import InputError


class Federation:
    """The graphs of clients that hold their own, by name: a dataset for `graft.run` that needs no partition.

    A graph may be a PyG `Data`, a `graft.Graph`, or the path of a folder with tables or of a .npz file. A list gives
    the clients numbers instead of names.
    """

    def __init__(
        self, graphs: Mapping[str, Any] | Sequence[Any], *, name: str | None = None, schema: Schema | None = None
    ) -> None:
        if not len(graphs):
            raise InputError("A federation needs at least one client's graph.")
        self.names: tuple[str, ...] | None = None
        if isinstance(graphs, Mapping):
            check_names("A federation", graphs)
            self.names = tuple(graphs)
        else:
            graphs = {f"client {client}": graph for client, graph in enumerate(graphs)}
        self.labels = tuple(graphs)  # what people call the clients
        self.name = name or ("-".join(self.labels) if self.names else "graphs")
        files = {label: graph for label, graph in graphs.items() if isinstance(graph, str | Path | ClientFiles)}
        loaded = dict(zip(files, load_sources(files, schema), strict=True))
        self.sources: list[Source] = [
            loaded[label] if label in loaded else _in_memory(graph, label) for label, graph in graphs.items()
        ]

    def __len__(self) -> int:
        return len(self.sources)

    def __repr__(self) -> str:
        return f"Federation({', '.join(self.labels)})"


def _in_memory(graph: Any, name: str) -> Source:
    if isinstance(graph, Graph | NodeTable):
        return replace(graph, name=name)
    if hasattr(graph, "edge_index"):
        return from_pyg(graph, name)
    raise InputError(
        f"The graph of client '{name}' is a {type(graph).__name__}; it should be a PyG Data, a graft.Graph or a path."
    )


def join(parts: Sequence[Graph], name: str) -> Graph:
    """Returns the graphs of all clients, which have the same features and classes, side by side as one."""
    starts = np.cumsum([0, *(part.nodes for part in parts[:-1])])
    joined: dict[str, Any] = {"weights": None}
    for field in (*MASKS, "ids", "node_times", "edge_times"):
        values = [getattr(part, field) for part in parts]
        joined[field] = None if any(value is None for value in values) else np.concatenate(values)
    if any(part.weights is not None for part in parts):
        joined["weights"] = np.concatenate([edge_weights(part) for part in parts])
    return replace(
        parts[0],
        name=name,
        x=concatenate_features([part.x for part in parts]),
        edges=np.concatenate([part.edges + start for part, start in zip(parts, starts, strict=True)], axis=1),
        y=np.concatenate([part.y for part in parts]),
        **joined,
    )
