"""Graphs in two tables, nodes and edges, as programs of organisations export them; read by polars, when first used."""

from __future__ import annotations

from pathlib import Path

from graft.data.graphs import Graph
from graft.data.schema import ClientFiles as ClientFiles
from graft.data.schema import Schema as Schema
from graft.data.tables.node_table import Column as Column
from graft.data.tables.node_table import NodeTable as NodeTable
from graft.data.tables.problems import Problem as Problem
from graft.data.tables.problems import TableError as TableError
from graft.errors import InputError


def read_table(
    files: ClientFiles, schema: Schema | None = None, name: str = "table", declared_only: bool = False
) -> NodeTable:
    """Returns the nodes and edges of two tables, typed but not encoded; what the schema leaves open is inferred, or
    with `declared_only` left out."""
    try:
        import polars  # noqa: F401
    except ImportError as error:
        raise InputError(f"Tables such as {files} are read by polars, which is missing: pip install polars.") from error
    from graft.data.tables.reading import read

    return read(files, schema or Schema(), name, declared_only)


def read_tables(folder: Path) -> Graph:
    """Returns the graph of a folder with two tables, its numbers as they are."""
    from graft.data.preparation import encode

    table = read_table(ClientFiles(path=folder), None, folder.resolve().name)
    return encode([table], [table.name], "local").graphs[0]
