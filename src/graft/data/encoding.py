"""From the columns of a table to features: numbers, dates, one-hot or hashed categories, and what is missing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graft.data.graphs import Bools, Floats, Ints
from graft.data.schema import Schema
from graft.data.tables.node_table import Column, NodeTable
from graft.errors import InputError

KINDS = ("number", "date", "category")


@dataclass(frozen=True)
class EncodedColumn:
    """How one column becomes features."""

    name: str
    kind: str
    missing: bool = False  # one feature more: whether the cell is missing
    categories: tuple[str, ...] | None = None  # one-hot; None: hashed into buckets
    other: bool = False  # one feature more for all other categories
    buckets: int = 0
    log: bool = False  # the logarithm of a number, sign(x) log(1 + |x|)

    @property
    def features(self) -> list[str]:
        """Returns the names of the features."""
        indicator = [f"{self.name} is missing"] if self.missing else []
        if self.kind != "category":
            return [f"log {self.name}" if self.log else self.name, *indicator]
        if self.categories is None:
            return [f"{self.name} hash {bucket}" for bucket in range(self.buckets)] + indicator
        other = [f"{self.name} is other"] if self.other else []
        return [f"{self.name} = {category}" for category in self.categories] + other + indicator


@dataclass(frozen=True)
class Encoding:
    """How the tables of a client become features; the same for all clients, but for how their files are read."""

    columns: tuple[EncodedColumn, ...]
    directed: bool = False  # two features more: how much comes in, and how much goes out
    weighted: bool = False  # whether these count weights rather than edges
    schema: Schema = field(default_factory=Schema)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Returns the names of all features."""
        amount = "weight" if self.weighted else "edges"
        degrees = [f"log(1 + {way} {amount})" for way in ("incoming", "outgoing")] if self.directed else []
        return (*(name for column in self.columns for name in column.features), *degrees)

    @property
    def schema_of_new_tables(self) -> Schema:
        """Returns the schema without columns that features are not made of: new tables may lack splits and times."""
        names = {kind: tuple(column.name for column in self.columns if column.kind == kind) for kind in KINDS}
        forms = {name: form for name, form in self.schema.date_formats.items() if name in names["date"]}
        lists = {name: categories for name, categories in self.schema.categories.items() if name in names["category"]}
        return replace(
            self.schema,
            numeric=names["number"],
            log=tuple(name for name in self.schema.log if name in names["number"]),
            categorical=names["category"],
            date=names["date"],
            date_formats=forms,
            categories=lists,
            split=None,
            time=None,
            edge_time=None,
        )

    @cached_property
    def numeric(self) -> Ints:
        """Returns the positions of features that are numbers, and so are scaled."""
        starts = self._starts
        positions = [starts[column.name] for column in self.columns if column.kind != "category"]
        width = len(self.feature_names)
        return np.array(positions + ([width - 2, width - 1] if self.directed else []), np.int64)

    @cached_property
    def indicators(self) -> Ints:
        """Returns for each of the `numeric` features the position of the one that says it is missing; -1 without."""
        starts = self._starts
        numbers = [column for column in self.columns if column.kind != "category"]
        positions = [starts[column.name] + 1 if column.missing else -1 for column in numbers]
        return np.array(positions + [-1, -1] * self.directed, np.int64)

    @cached_property
    def _starts(self) -> dict[str, int]:
        widths = np.cumsum([0, *(len(column.features) for column in self.columns)])
        return {column.name: int(start) for column, start in zip(self.columns, widths, strict=False)}

    def encode(self, table: NodeTable) -> tuple[Floats, Bools]:
        """Returns the features of a table, 0 where one is missing, and which of the `numeric` features are missing."""
        self._check_columns(table)
        x = np.zeros((table.nodes, len(self.feature_names)), np.float32)
        missing = np.zeros((table.nodes, len(self.numeric)), bool)
        numeric = 0
        for column in self.columns:
            block = x[:, self._starts[column.name] :][:, : len(column.features)]
            cells = table.columns[column.name]
            if column.kind == "category":
                _fill_categories(block, column, cells)
            else:
                missing[:, numeric] = _fill_numbers(block, column, cells, table)
                numeric += 1
        if self.directed:
            x[:, -2:] = np.log1p(_degrees(table, self.weighted))
        return x, missing

    def _check_columns(self, table: NodeTable) -> None:
        lacking = [column.name for column in self.columns if column.name not in table.columns]
        if lacking:
            raise InputError(
                f"The table of '{table.name}' lacks {', '.join(lacking[:8])}{' and more' * (len(lacking) > 8)}: it "
                f"needs the columns {', '.join(column.name for column in self.columns)[:400]}."
            )

    def to_json(self) -> dict[str, Any]:
        """Returns all of it as JSON can hold it."""
        columns = [
            {
                "name": column.name,
                "kind": column.kind,
                "missing": column.missing,
                "log": column.log,
                "categories": None if column.categories is None else list(column.categories),
                "other": column.other,
                "buckets": column.buckets,
            }
            for column in self.columns
        ]
        schema = self.schema.to_dict()
        return {"columns": columns, "directed": self.directed, "weighted": self.weighted, "schema": schema}


def _fill_numbers(block: Floats, column: EncodedColumn, cells: Column, table: NodeTable) -> Bools:
    if cells.kind == "empty":
        numbers = np.full(table.nodes, np.nan)
    elif cells.numbers is None or (cells.kind == "date") != (column.kind == "date"):
        raise InputError(
            f"The column '{column.name}' of '{table.name}' is a {cells.kind}, but it was a {column.kind} before; "
            f"declare its kind in the schema, or correct its cells."
        )
    else:
        numbers = cells.numbers
    missing: Bools = np.isnan(numbers)
    if column.log:
        numbers = np.sign(numbers) * np.log1p(np.abs(numbers))
    block[:, 0] = np.where(missing, 0, numbers)
    if column.missing:
        block[:, 1] = missing
    return missing


def _fill_categories(block: Floats, column: EncodedColumn, cells: Column) -> None:
    codes, names = category_codes(cells)
    positions = np.array([_category_position(column, name) for name in names] + [-1], np.int64)[codes]
    rows = np.flatnonzero(positions >= 0)
    block[rows, positions[rows]] = 1
    if column.missing:
        block[:, -1] = codes < 0


def _category_position(column: EncodedColumn, category: str) -> int:
    if column.categories is None:
        return bucket(column.name, category, column.buckets)
    if category in column.categories:
        return column.categories.index(category)
    return len(column.categories) if column.other else -1


def bucket(column: str, category: str, buckets: int) -> int:
    """Returns the bucket of a category, the same at every client and on every machine."""
    digest = hashlib.blake2b(f"{column}\0{category}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % buckets


def category_codes(cells: Column) -> tuple[Ints, list[str]]:
    """Returns every cell as a position in the list of different texts, -1 where it is missing; numbers as texts."""
    if cells.texts is None:
        return _number_codes(cells.numbers)
    import polars as pl

    texts = cells.texts
    names = texts.drop_nulls().unique().sort().to_list()
    codes = texts.cast(pl.Enum(names)).to_physical().cast(pl.Int64).fill_null(-1)
    return np.array(codes.to_numpy(), dtype=np.int64), names


def _number_codes(numbers: NDArray[np.float64] | None) -> tuple[Ints, list[str]]:
    values, codes = np.unique(np.zeros(0) if numbers is None else numbers, return_inverse=True)
    codes = np.where(np.isnan(values)[codes], -1, codes).astype(np.int64)
    return codes, [
        str(int(value)) if value == np.floor(value) else repr(float(value)) for value in values[~np.isnan(values)]
    ]


def _degrees(table: NodeTable, weighted: bool) -> NDArray[np.float64]:
    weights = table.weights if weighted else None
    source, target = table.edges
    return np.stack([np.bincount(ends, weights, minlength=table.nodes) for ends in (target, source)], axis=1)
