"""Opens what one party names, or is given, as its data: its own files, or for trials a part of a dataset."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from graft.data import is_generated, is_sharded, parse_dataset, partitions
from graft.data.data_agreement import DataAgreement, with_own_reading
from graft.data.data_file import read_data_file
from graft.data.datasets import load
from graft.data.generated import Generated, GeneratedGraphs
from graft.data.graphs import Graph, cut
from graft.data.lazy_graphs import ClientGraphs
from graft.data.npz import read_npz
from graft.data.preparation import Source
from graft.data.pyg_data import from_pyg
from graft.data.schema import ClientFiles, Schema
from graft.data.shards import ShardedGraphs
from graft.data.tables import NodeTable, read_table
from graft.errors import InputError

PART = "#"  # stands between a dataset and which of its parts is meant, as digits#0/3 or shards/cora#2


def open_party(source: Any, agreement: DataAgreement, name: str) -> Source:
    """Returns what a party holds, under its name.

    That is a folder with two tables, a .npz file, a data file of one dataset whose schema says how its tables are read,
    a dataset's name, a PyG `Data`, a `Graph`, or a part: `digits#0/3` is the first of three of a dataset that is shared
    out by the federation's seed, `shards/cora#2` the third client of shards.
    """
    if isinstance(source, ClientFiles):
        return _open_files(source, agreement.schema, agreement, name)
    if isinstance(source, str | Path):
        return _open_text(str(source), agreement, name)
    if isinstance(source, NodeTable):
        return _declared_columns(replace(source, name=name), agreement)
    if isinstance(source, Graph):
        return replace(source, name=name)
    if hasattr(source, "edge_index"):
        return from_pyg(source, name)
    raise InputError(
        f"The data of {name} are a {type(source).__name__}; they should be a folder, a .npz file, a data file, a PyG "
        f"Data or a graft.Graph."
    )


def _open_text(source: str, agreement: DataAgreement, name: str) -> Source:
    path = Path(source)
    if path.is_dir() and not is_sharded(source):
        return _open_files(ClientFiles(path=path), agreement.schema, agreement, name)
    if path.suffix == ".npz" and path.is_file():
        return replace(read_npz(path), name=name)
    if path.suffix == ".toml" and path.is_file():
        return _open_data_file(path, agreement, name)
    if path.is_file():
        raise InputError(
            f"{path} cannot be the data of {name}: of tables, give the folder that holds them, {path.parent}; else a "
            f".npz file or a data file, which is TOML."
        )
    dataset, hash_, part = source.rpartition(PART)
    if hash_:
        return replace(_open_part(dataset, part, agreement.seed, agreement.split), name=name)
    if is_sharded(source):
        raise InputError(f"{source} holds the graphs of many clients: say whose is meant, as {source}{PART}0.")
    return replace(load(source), name=name)


def _open_data_file(path: Path, agreement: DataAgreement, name: str) -> Source:
    file = read_data_file(path)
    files = file.single or file.clients.get(name)
    if files is None:
        raise InputError(f"{path} names the data of {', '.join(file.clients)}, but not those of {name}.")
    return _open_files(files, with_own_reading(agreement.schema, file.schema, str(path)), agreement, name)


def _open_files(files: ClientFiles, schema: Schema, agreement: DataAgreement, name: str) -> Source:
    if files.path is not None and files.path.is_file():
        return replace(read_npz(files.path), name=name)
    _check_tables_agreed(agreement, name)
    return read_table(files, schema, name, declared_only=True)


def _check_tables_agreed(agreement: DataAgreement, name: str) -> None:
    if agreement.encoding is None:
        raise InputError(
            f"The data of {name} are tables, but the federation's [schema] names no column of features: it needs "
            f"numeric, categorical or date, so that all come to the same."
        )


def _declared_columns(table: NodeTable, agreement: DataAgreement) -> NodeTable:
    """Returns a table that was read before with no other columns than those that were agreed on."""
    _check_tables_agreed(agreement, table.name)
    columns = {name: cells for name, cells in table.columns.items() if agreement.schema.kind_of(name) is not None}
    return replace(table, columns=columns)


def _open_part(dataset: str, part: str, seed: int, split: str) -> Graph:
    if is_sharded(dataset):
        graphs = ShardedGraphs(dataset)
        known = graphs.names or ()
        return graphs[known.index(part) if part in known else _check_part(part, len(graphs), dataset)]
    match = re.fullmatch(r"(\d{1,7})/(\d{1,7})", part)
    if match is None:
        raise InputError(
            f"'{dataset}{PART}{part}' should say which part of how many, from 0 on, as {dataset}{PART}0/3."
        )
    count = int(match[2])
    number = _check_part(match[1], count, dataset)
    name, options, suffix = parse_dataset(dataset)
    if is_generated(name) and not suffix:
        generated: ClientGraphs = GeneratedGraphs(Generated.parse(options), count, split, seed)
        return generated[number]
    graph = load(dataset)
    return cut(graph, partitions.partition(graph, count, "louvain", seed))[number]


def _check_part(part: str, count: int, dataset: str) -> int:
    if not (part.isascii() and part.isdigit()) or int(part) >= count:
        raise InputError(f"There is no part '{part}' of {dataset}, which has {count}: parts are 0 to {count - 1}.")
    return int(part)
