"""Two tables after reading: typed, joined by id, and still without features."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graft.data.graphs import Bools, Ints, Times
from graft.data.schema import Schema

if TYPE_CHECKING:
    import polars as pl

KINDS = ("empty", "text", "category", "boolean", "number", "date")  # of a column


@dataclass(frozen=True, eq=False)
class Column:
    """A column of nodes: numbers with NaN where a cell is missing, or texts with null."""

    name: str
    kind: str
    numbers: NDArray[np.float64] | None = None  # of numbers, truth values, and dates (days since 1970)
    texts: pl.Series | None = None  # of categories, texts and truth values
    constant: bool = False  # every cell holds the same
    form: str | None = None  # of dates in which day and month could be confused

    @cached_property
    def missing(self) -> Bools:
        """Returns which cells are missing."""
        if self.numbers is not None:
            return np.isnan(self.numbers)
        return np.asarray(self.texts.is_null().to_numpy(), dtype=bool) if self.texts is not None else np.ones(0, bool)


@dataclass(frozen=True, eq=False)
class NodeTable:
    """The nodes and edges of one client, as its tables say."""

    name: str
    schema: Schema  # with all that was inferred
    ids: Any  # [N], texts: a polars Series
    columns: dict[str, Column]
    y: Ints  # [N], positions in class_names, -1 = unlabelled
    class_names: tuple[str, ...]  # those of this client
    masks: dict[str, Bools] | None
    node_times: Times | None
    edges: Ints  # [2, E], as they were given, but for self-loops and edges to unknown nodes
    weights: NDArray[np.float64] | None
    edge_times: Times | None
    self_loops: int = 0
    dropped_edges: int = 0  # to unknown nodes
    notes: tuple[str, ...] = field(default=())

    @property
    def nodes(self) -> int:
        """Returns the number of nodes."""
        return len(self.y)

    @cached_property
    def duplicate_edges(self) -> int:
        """Returns how many rows repeat an edge of the same direction."""
        keys = np.sort(self.edges[0] * self.nodes + self.edges[1])
        return int((keys[1:] == keys[:-1]).sum())

    @cached_property
    def missing_cells(self) -> int:
        """Returns how many cells of feature columns are missing."""
        return sum(int(column.missing.sum()) for column in self.columns.values() if column.kind != "text")
