"""The ends of edges, found among the ids of nodes by a join."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from graft.data.graphs import Bools, Ints
from graft.data.schema import Schema
from graft.data.tables.columns import list_wrong_cells
from graft.data.tables.problems import Problems
from graft.data.tables.sheets import Sheet

FLOAT_TAIL = r"\.0+$"  # what a program leaves behind that took ids for numbers


class EdgeList(NamedTuple):
    """Edges by the positions of their nodes, row by row of the table."""

    ends: Ints  # [2, rows], -1 where there is no such node
    kept: Bools  # [rows], not self-loops and not edges to unknown nodes
    self_loops: int
    unknown: int


def read_edges(
    edges: Sheet, nodes: Sheet, ids: pl.Series, schema: Schema, problems: Problems, notes: list[str]
) -> EdgeList:
    """Returns the edges of a table; ends that are no ids are problems, or dropped where the schema says so."""
    positions = pl.DataFrame({"end": ids, "position": pl.int_range(len(ids), dtype=pl.Int64, eager=True)})
    positions = positions.drop_nulls().unique("end", keep="first")
    names = (str(schema.source), str(schema.target))
    columns = [_positions(edges, name, positions, notes) for name in names]
    unknown = np.zeros(edges.rows, bool)
    for name, position in zip(names, columns, strict=True):
        cells = edges[name]
        lost = position.is_null()
        unknown |= np.asarray(lost.to_numpy(), dtype=bool)
        if schema.unknown_nodes == "refuse" and lost.any():
            list_wrong_cells(
                edges,
                name,
                cells.fill_null(""),
                lost,
                f"is unknown: there is no such node in {nodes.path.name}",
                'add the node, or drop such edges with unknown_nodes = "drop" in the schema',
                problems,
            )
    ends = np.stack([np.array(position.fill_null(-1).to_numpy(), dtype=np.int64) for position in columns])
    loops = (ends[0] == ends[1]) & ~unknown
    if unknown.any() and schema.unknown_nodes == "drop":
        notes.append(f"{edges.path}: {int(unknown.sum())} edges to unknown nodes were dropped")
    return EdgeList(ends, ~(unknown | loops), int(loops.sum()), int(unknown.sum()))


def _positions(edges: Sheet, column: str, positions: pl.DataFrame, notes: list[str]) -> pl.Series:
    ends = edges[column].to_frame("end")
    joined = _join(ends, positions)
    lost = joined.is_null() & ends["end"].is_not_null()
    if lost.any() and ends["end"].filter(lost).str.contains(FLOAT_TAIL).all():
        trimmed = ends.with_columns(pl.when(lost).then(pl.col("end").str.replace(FLOAT_TAIL, "")).otherwise("end"))
        again = _join(trimmed.rename({trimmed.columns[0]: "end"}), positions)
        if again.null_count() < joined.null_count():
            notes.append(f"{edges.path}: ids in {column} end in .0, which was left out")
            return again
    return joined


def _join(ends: pl.DataFrame, positions: pl.DataFrame) -> pl.Series:
    return ends.join(positions, on="end", how="left", maintain_order="left")["position"]
