"""Opens what an experiment names, or is given, as its data: one graph to share out, or the clients' own graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from graft.data import is_generated, is_sharded, parse_dataset, parse_graphs
from graft.data.client_graphs import Federation
from graft.data.data_file import read_data_file
from graft.data.datasets import load
from graft.data.generated import Generated
from graft.data.lazy_graphs import ClientGraphs
from graft.data.preparation import Source, load_source
from graft.data.shards import ShardedGraphs
from graft.data.tables import NodeTable

Opened: TypeAlias = Source | Federation | Generated | ClientGraphs


def open_data(source: Any, graphs: list[str] | None = None) -> Opened:
    """Returns the data of a dataset's name, a path, a data file or an object; `graphs` are paths of clients' own."""
    if graphs:
        return Federation(parse_graphs(graphs))
    if isinstance(source, Federation | NodeTable | Generated | ClientGraphs):
        return source
    if isinstance(source, str | Path):
        return _open_text(str(source))
    if isinstance(source, Mapping | Sequence):
        return Federation(source)
    return load(source)


def _open_text(source: str) -> Opened:
    name, options, suffix = parse_dataset(source)
    if is_sharded(name) and not suffix:
        return ShardedGraphs(name)
    if is_generated(name) and not suffix:
        return Generated.parse(options)
    path = Path(name)
    if suffix or not path.exists():
        return load(source)
    if path.suffix == ".toml":
        file = read_data_file(path)
        if file.single is not None:
            return load_source(file.single, file.schema, path.stem)
        return Federation(file.clients, name=path.stem, schema=file.schema)
    return load_source(path) if path.is_dir() else load(source)
