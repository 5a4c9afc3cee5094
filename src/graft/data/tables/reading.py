"""From two files to a `NodeTable`: all that is wrong with them is found before anything is raised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from graft.data.graphs import Bools, Ints, Times
from graft.data.schema import ClientFiles, Schema
from graft.data.tables.classes import UNLABELLED, class_spelling, sort_classes
from graft.data.tables.columns import list_wrong_cells, read_columns, read_dates
from graft.data.tables.ends import read_edges
from graft.data.tables.folders import read_sheets
from graft.data.tables.inference import resolve
from graft.data.tables.node_table import Column, NodeTable
from graft.data.tables.problems import Problems, TableError
from graft.data.tables.sheets import Sheet
from graft.data.tables.values import parse_numbers, without_missing

SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("validation", "val", "valid", "dev"), "validation"
)
MOST_CLASSES = 1000
LONGEST_ID = 256  # letters


def read(files: ClientFiles, schema: Schema, name: str, declared_only: bool = False) -> NodeTable:
    """Returns the tables of a client; raises one `TableError` with all that is wrong.

    With `declared_only` no column of nodes becomes a feature that the schema does not name.
    """
    problems, notes = Problems(), list[str]()
    nodes, edges = read_sheets(files, schema, problems)
    rows_lost = problems.count > 0  # of nodes, perhaps: edges to them would be problems only because of that
    if nodes is not None and not nodes.rows:
        problems.add(nodes.path, "there is a header but no node", "it needs a row for every node")
        nodes = None
    resolved = resolve(schema, nodes, edges, problems, notes) if nodes is not None and edges is not None else None
    if nodes is None or edges is None or resolved is None:
        raise TableError(problems.listed, problems.count)
    if declared_only:
        resolved = _without_undeclared(resolved, nodes, notes)
    notes += nodes.notes + edges.notes
    ids = _read_ids(nodes, resolved, problems)
    columns = read_columns(nodes, resolved, problems)
    y, class_names = _read_labels(nodes, resolved, problems)
    masks = _read_masks(nodes, resolved, problems)
    node_times = read_times(nodes, resolved.time, resolved, problems)
    edge_list = read_edges(edges, nodes, ids, resolved, Problems() if rows_lost else problems, notes)
    edge_times = read_times(edges, resolved.edge_time, resolved, problems)
    weights = _read_weights(edges, resolved, problems)
    problems.raise_if_any()
    kept = edge_list.kept
    return NodeTable(
        name,
        _with_kinds(resolved, columns),
        ids,
        columns,
        y,
        class_names,
        masks,
        node_times,
        edge_list.ends[:, kept],
        None if weights is None else weights[kept],
        None if edge_times is None else edge_times[kept],
        edge_list.self_loops,
        edge_list.unknown,
        tuple(notes),
    )


def _without_undeclared(schema: Schema, nodes: Sheet, notes: list[str]) -> Schema:
    """Returns the schema with all columns that it does not name ignored, whatever they hold."""
    reserved = (schema.id, schema.label, schema.split, schema.time)
    undeclared = tuple(name for name in nodes.columns if schema.kind_of(name) is None and name not in reserved)
    if undeclared:
        notes.append(f"{nodes.path}: {', '.join(undeclared)} not used; the schema does not name them")
    return replace(schema, ignore=(*schema.ignore, *undeclared))


def _read_ids(nodes: Sheet, schema: Schema, problems: Problems) -> pl.Series:
    column = str(schema.id)
    ids = nodes[column]
    empty = ids.is_null()
    list_wrong_cells(
        nodes, column, ids.fill_null(""), empty, "is no id: the id is empty", "give every node an id", problems
    )
    repeated = (ids.is_first_distinct().not_() & ~empty) if ids.n_unique() < len(ids) else ~(empty | ~empty)
    list_wrong_cells(
        nodes, column, ids, repeated, "was used before", "ids must be unique: remove or rename the row", problems
    )
    long = (ids.str.len_chars() > LONGEST_ID).fill_null(False)
    list_wrong_cells(nodes, column, ids, long, "is too long for an id", f"use at most {LONGEST_ID} letters", problems)
    return ids


def _read_labels(nodes: Sheet, schema: Schema, problems: Problems) -> tuple[Ints, tuple[str, ...]]:
    """Returns the class of every node, and the classes: whole numbers by value, others as texts in order."""
    if schema.label is None or schema.label not in nodes.columns:
        return np.full(nodes.rows, -1, np.int64), ()
    words = tuple(dict.fromkeys((*UNLABELLED, *schema.missing_cells)))
    labels = without_missing(nodes[schema.label], words)
    different = labels.drop_nulls().unique().to_list()
    if len(different) > MOST_CLASSES:
        problems.add(
            nodes.path,
            f"the label has {len(different)} different values, but there can be {MOST_CLASSES} classes at most",
            "name the column of classes, as label = ... in the schema",
            column=schema.label,
        )
        return np.full(nodes.rows, -1, np.int64), ()
    spelling = class_spelling(different)
    names = sort_classes(spelling.values())
    position = {name: index for index, name in enumerate(names)}
    codes = labels.replace_strict(
        list(spelling), [position[name] for name in spelling.values()], default=-1, return_dtype=pl.Int64
    )
    return np.array(codes.fill_null(-1).to_numpy(), dtype=np.int64), names


def _read_masks(nodes: Sheet, schema: Schema, problems: Problems) -> dict[str, Bools] | None:
    if schema.split is None or schema.split not in nodes.columns:
        return None
    cells = without_missing(nodes[schema.split], schema.missing_cells)
    splits = cells.str.to_lowercase().replace_strict(SPLITS, default=None, return_dtype=pl.String)
    list_wrong_cells(
        nodes,
        schema.split,
        cells,
        cells.is_not_null() & splits.is_null(),
        "is not a split",
        "use train, validation, test or leave it empty",
        problems,
    )
    return {
        name: np.array((splits == name).fill_null(False).to_numpy(), dtype=bool)
        for name in ("train", "validation", "test")
    }


def read_times(sheet: Sheet, column: str | None, schema: Schema, problems: Problems) -> Times | None:
    """Returns the times in a column: numbers as they are, dates as seconds since 1970; None without a column."""
    if column is None:
        return None
    cells = without_missing(sheet[column], schema.missing_cells)
    empty = cells.is_null()
    list_wrong_cells(sheet, column, cells.fill_null(""), empty, "is no time: the cell is empty", "fill it", problems)
    parsed = parse_numbers(cells, schema.decimal, sheet.separator)
    if column in schema.date_formats or 2 * int(parsed.wrong.sum()) >= len(cells):
        dates = read_dates(sheet, column, cells, schema, problems)
        return None if dates is None else _array(dates.numbers)
    list_wrong_cells(sheet, column, cells, parsed.wrong, "is not a time", "correct it", problems)
    return _array(parsed.numbers)


def _read_weights(edges: Sheet, schema: Schema, problems: Problems) -> Times | None:
    column = schema.edge_weight
    if column is None or column not in edges.columns:
        return None
    cells = without_missing(edges[column], schema.missing_cells)
    parsed = parse_numbers(cells, schema.decimal, edges.separator)
    wrong = parsed.numbers.is_null() | (parsed.numbers < 0).fill_null(False)
    list_wrong_cells(
        edges,
        column,
        cells.fill_null(""),
        wrong,
        "is not a weight",
        "use a number of 0 or more, or declare no weight",
        problems,
    )
    return _array(parsed.numbers)


def _array(numbers: pl.Series) -> Times:
    return np.array(numbers.fill_null(float("nan")).to_numpy(), dtype=np.float64)


def _with_kinds(schema: Schema, columns: dict[str, Column]) -> Schema:
    """Returns the schema with the kinds that were inferred, so that new tables are read in the same way."""

    def with_inferred(declared: tuple[str, ...], *kinds: str) -> tuple[str, ...]:
        return (*declared, *(name for name, column in columns.items() if column.kind in kinds and name not in declared))

    forms = {name: column.form for name, column in columns.items() if column.form is not None}
    return replace(
        schema,
        numeric=with_inferred(schema.numeric, "number", "boolean"),
        categorical=with_inferred(schema.categorical, "category"),
        date=with_inferred(schema.date, "date"),
        date_formats={**forms, **schema.date_formats},
    )
