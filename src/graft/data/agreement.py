"""How clients with tables of their own come to the same columns, categories and classes, and what they tell for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graft.data.encoding import EncodedColumn, Encoding, category_codes
from graft.data.exchange import Exchange, Message, as_bytes
from graft.data.tables.classes import sort_classes
from graft.data.tables.node_table import KINDS, NodeTable
from graft.data.tables.problems import Problem
from graft.errors import InputError

MOST_CATEGORIES = 100  # of a column; rarer ones are together in one feature
AGREED_KINDS = (
    ({"number", "boolean"}, "number"),
    ({"date"}, "date"),
    ({"category", "boolean", "text"}, "category"),
)  # the first set that holds all kinds of a column decides; a column that is text everywhere is ignored
REVEALS = {
    "columns": "names of the columns",
    "kinds": "whether a column holds numbers, dates, categories or text",
    "missing": "whether a column has empty cells",
    "constant": "whether a column holds the same in all rows",
    "directed": "whether edges have a direction, and weights",
    "classes": "names of the classes that occur",
}


class Agreement(NamedTuple):
    """The features of all clients, what they told each other for them, and what a person should know."""

    encodings: list[Encoding]
    exchange: Exchange
    notes: list[str]


def agree(tables: Sequence[NodeTable], names: Sequence[str], scaling: str) -> Agreement:
    """Returns one encoding for all tables; where `scaling` is local, no category leaves a client."""
    problems = disagreements(tables, names)
    if problems:
        raise InputError(describe(problems))
    notes: list[str] = []
    kinds = _feature_kinds(tables, notes)
    shared = scaling == "federated" or len(tables) == 1
    vocabularies = [_vocabularies(table, kinds) for table in tables] if shared else [{} for _ in tables]
    columns = tuple(_encoded_column(name, kind, tables, vocabularies, shared) for name, kind in kinds.items())
    directed, weighted = tables[0].schema.directed, any(table.weights is not None for table in tables)
    if not columns and not directed:
        raise InputError(
            f"{_all_of(names)} no feature: at least one column of numbers, dates or categories is needed beside id, "
            f"label and split."
        )
    encodings = [Encoding(columns, directed, directed and weighted, table.schema.without_files()) for table in tables]
    exchange = _exchange(tables, columns, vocabularies) if len(tables) > 1 else Exchange()
    return Agreement(encodings, exchange, notes)


def _all_of(names: Sequence[str]) -> str:
    return f"The table of '{names[0]}' has" if len(names) == 1 else f"The tables of {', '.join(names)} have"


def describe(problems: Sequence[Problem]) -> str:
    """Returns one sentence for one problem, and a list below a sentence for several."""
    lines = "\n".join(f"  {problem}" for problem in problems[:20])
    rest = f"\n  ... and {len(problems) - 20} more" * (len(problems) > 20)
    return (
        f"{problems[0]}."
        if len(problems) == 1
        else f"The clients' tables differ in {len(problems)} points:\n{lines}{rest}"
    )


def disagreements(tables: Sequence[NodeTable], names: Sequence[str]) -> list[Problem]:
    """Returns where the tables of clients do not fit together: columns that one lacks or has otherwise."""
    problems = []
    for column in dict.fromkeys(column for table in tables for column in table.columns):
        kinds = {
            name: table.columns[column].kind
            for name, table in zip(names, tables, strict=True)
            if column in table.columns
        }
        lacking = [name for name in names if name not in kinds]
        if agreed_kind(set(kinds.values())) is None:
            if set(kinds.values()) - {"text", "empty"}:
                problems.append(_other_kinds(column, kinds))
        elif lacking:
            remedy = f'add it, give the column its name with rename, or leave it out everywhere: ignore = ["{column}"]'
            problems += [
                _client_problem(name, f"there is no such column, but {next(iter(kinds))} has it", remedy, column)
                for name in lacking
            ]
    directed = [table.schema.directed for table in tables]
    if len(set(directed)) > 1:
        other = directed.index(not directed[0])
        what = f"directed is {directed[other]}, unlike at {names[0]}"
        problems.append(_client_problem(names[other], what, "declare it in the schema"))
    weighted = [table.weights is not None for table in tables]
    if tables and tables[0].schema.directed and len(set(weighted)) > 1:
        name = names[weighted.index(False)]
        problems.append(
            _client_problem(name, "edges have no weights, but those of others have", "declare weight in [schema.edges]")
        )
    return problems


def _client_problem(client: str, what: str, remedy: str, column: str | None = None) -> Problem:
    return Problem(f"client {client}", what, remedy, column=column)


def _other_kinds(column: str, kinds: Mapping[str, str]) -> Problem:
    """Returns the problem of the client whose kind is the rarest."""
    counts = Counter(kind for kind in kinds.values() if kind != "empty")
    usual = counts.most_common(1)[0][0]
    client, kind = next((client, kind) for client, kind in kinds.items() if kind not in (usual, "empty"))
    others = next(client for client, other in kinds.items() if other == usual)
    return _client_problem(
        client,
        f"it holds {_PLURALS[kind]}, but at {others} {_PLURALS[usual]}",
        "declare it as numeric, categorical, date or under ignore in the schema",
        column,
    )


_PLURALS = {
    "number": "numbers",
    "boolean": "truth values",
    "date": "dates",
    "category": "categories",
    "text": "texts that hardly repeat themselves",
}


def agreed_kind(kinds: set[str]) -> str | None:
    """Returns what a column is for all clients; None where they differ, and where it is text or empty everywhere."""
    kinds = kinds - {"empty"}
    if not kinds or kinds == {"text"}:
        return None
    return next((agreed for group, agreed in AGREED_KINDS if kinds <= group), None)


def _feature_kinds(tables: Sequence[NodeTable], notes: list[str]) -> dict[str, str]:
    """Returns the columns that become features, with their kinds."""
    kinds: dict[str, str] = {}
    ignored: dict[str, list[str]] = {"empty": [], "text that hardly repeats itself": [], "the same in every row": []}
    constant = []
    for column in dict.fromkeys(column for table in tables for column in table.columns):
        cells = [table.columns[column] for table in tables if column in table.columns]
        kind = agreed_kind({part.kind for part in cells})
        if kind is None:
            empty = all(part.kind == "empty" for part in cells)
            ignored["empty" if empty else "text that hardly repeats itself"].append(column)
            continue
        kinds[column] = kind
        if all(part.constant or part.kind == "empty" for part in cells):
            constant.append(column)
    if len(constant) < len(kinds):  # the only features there are stay, whatever they hold
        for column in constant:
            del kinds[column]
        ignored["the same in every row"] = constant
    notes += [f"{', '.join(columns)}: ignored, {reason}" for reason, columns in ignored.items() if columns]
    return kinds


def _vocabularies(table: NodeTable, kinds: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Returns how often each category occurs, column by column."""
    counts = {}
    for name, kind in kinds.items():
        if kind == "category" and name not in table.schema.categories:
            codes, categories = category_codes(table.columns[name])
            occurrences = np.bincount(codes[codes >= 0], minlength=len(categories)).tolist()
            counts[name] = dict(zip(categories, occurrences, strict=True))
    return counts


def _encoded_column(
    name: str,
    kind: str,
    tables: Sequence[NodeTable],
    vocabularies: Sequence[Mapping[str, Mapping[str, int]]],
    shared: bool,
) -> EncodedColumn:
    missing = any(bool(table.columns[name].missing.any()) for table in tables)
    if kind != "category":
        return EncodedColumn(name, kind, missing, log=kind == "number" and name in tables[0].schema.log)
    declared = tables[0].schema.categories.get(name)
    if declared is not None:
        return EncodedColumn(name, kind, missing, declared, other=True)
    if not shared:
        return EncodedColumn(name, kind, missing, buckets=tables[0].schema.hash)
    counts: Counter[str] = Counter()
    for vocabulary in vocabularies:
        counts.update(vocabulary[name])
    kept = sorted(counts, key=lambda category: (-counts[category], category))[:MOST_CATEGORIES]
    return EncodedColumn(name, kind, missing, sort_classes(kept), other=len(counts) > len(kept))


def _exchange(
    tables: Sequence[NodeTable],
    columns: Sequence[EncodedColumn],
    vocabularies: Sequence[Mapping[str, Mapping[str, int]]],
) -> Exchange:
    """Returns what clients sent to agree, and what they were answered."""
    down: dict[str, NDArray[np.generic]] = {
        "columns": as_bytes([column.name for column in columns]),
        "kinds": np.array([KINDS.index(column.kind) for column in columns], np.uint8),
        "missing": np.array([column.missing for column in columns], bool),
    }
    reveals = dict(REVEALS)
    for column in columns:
        if any(column.name in vocabulary for vocabulary in vocabularies):
            down[f"categories/{column.name}"] = as_bytes(column.categories or ())
            reveals[f"categories/{column.name}"] = f"the categories of {column.name} that occur"
            reveals[f"category_counts/{column.name}"] = f"how often each category of {column.name} occurs"
    up = tuple(_announcement(table, counts) for table, counts in zip(tables, vocabularies, strict=True))
    return Exchange(up, (down,) * len(tables), reveals)


def _announcement(table: NodeTable, counts: Mapping[str, Mapping[str, int]]) -> Message:
    cells = table.columns.values()
    message: dict[str, NDArray[np.generic]] = {
        "columns": as_bytes(list(table.columns)),
        "kinds": np.array([KINDS.index(column.kind) for column in cells], np.uint8),
        "missing": np.array([column.missing.any() for column in cells], bool),
        "constant": np.array([column.constant for column in cells], bool),
        "directed": np.array([table.schema.directed, table.weights is not None]),
    }
    for name, categories in counts.items():
        message[f"categories/{name}"] = as_bytes(list(categories))
        message[f"category_counts/{name}"] = np.array(list(categories.values()), np.int64)
    return message
