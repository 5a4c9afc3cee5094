"""What the columns of two tables mean, as a person declares it or as it was inferred; imports nothing heavy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from graft.errors import InputError
from graft.registry import close_to

SEPARATORS = (",", ";", "\t", "|")
MISSING = ("", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "-", "?")  # in lower case; cells that hold nothing
MOST_BUCKETS = 4096
UNKNOWN_NODES = ("refuse", "drop")


def canonical(name: str) -> str:
    """Returns the form in which names of columns are compared: 'Account ID' and 'account_id' are the same."""
    return re.sub(r"[\s_.\-]+", "_", name.strip().casefold()).strip("_")


@dataclass(frozen=True)
class ClientFiles:
    """Where the data of a client are: one folder or .npz file, or two tables."""

    path: Path | None = None
    nodes_file: Path | None = None
    edges_file: Path | None = None

    def __str__(self) -> str:
        return str(self.path) if self.path is not None else f"{self.nodes_file} and {self.edges_file}"


@dataclass(frozen=True)
class Schema:
    """What the columns of a table of nodes and a table of edges mean; None or empty is inferred.

    Names of columns are canonical. The names of the keys of [schema.edges] begin with edge_ here, but for source,
    target and directed.
    """

    nodes: str | None = None  # names of the two files in a folder
    edges: str | None = None
    id: str | None = None
    label: str | None = None
    positive: str | None = None
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # where they are declared
    date: tuple[str, ...] = ()
    date_formats: Mapping[str, str] = field(default_factory=dict)
    log: tuple[str, ...] = ()  # numbers of which the logarithm is taken
    ignore: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)  # names of columns here, and what others call them
    split: str | None = None
    time: str | None = None
    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    missing: tuple[str, ...] | None = None
    hash: int = 16  # buckets of a categorical column whose categories nobody agreed on
    unknown_nodes: str = "refuse"
    source: str | None = None
    target: str | None = None
    directed: bool = False
    edge_time: str | None = None
    edge_weight: str | None = None

    @property
    def missing_cells(self) -> tuple[str, ...]:
        """Returns what a cell without a value holds, in lower case."""
        return MISSING if self.missing is None else ("", *(text.strip().casefold() for text in self.missing))

    def kind_of(self, column: str) -> str | None:
        """Returns the declared kind of a column of nodes; None where it is to be inferred."""
        declared = {
            "number": (*self.numeric, *self.log),
            "category": self.categorical,
            "date": self.date,
            "ignored": self.ignore,
        }
        return next((kind for kind, names in declared.items() if column in names), None)

    def to_dict(self) -> dict[str, Any]:
        """Returns what a table [schema] would hold, without what is not set."""
        content: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name in _SPECIAL or value in (None, (), {}) or value == entry.default:
                continue
            content[entry.name] = list(value) if isinstance(value, tuple) else value
            if isinstance(value, Mapping):
                content[entry.name] = dict(value)
        if self.missing == ():
            content["missing"] = []
        content |= _declared_columns("categorical", self.categorical, self.categories)
        content |= _declared_columns("date", self.date, self.date_formats)
        edges = {"file": self.edges, "source": self.source, "target": self.target, "directed": self.directed or None}
        edges |= {"time": self.edge_time, "weight": self.edge_weight}
        given = {key: value for key, value in edges.items() if value is not None}
        return content | ({"edges": given} if given else {})

    def to_toml(self) -> str:
        """Returns the tables [schema] and [schema.edges] of a data file."""
        content = self.to_dict()
        edges = content.pop("edges", {})
        tables = {"schema": content, "schema.edges": edges}
        texts = [
            "".join([f"[{name}]\n", *(f"{key} = {_toml(value)}\n" for key, value in table.items())])
            for name, table in tables.items()
            if table
        ]
        return "\n".join(texts)

    def without_files(self) -> Schema:
        """Returns the schema without the names of files, for tables that are called otherwise."""
        return replace(self, nodes=None, edges=None)


_OF_EDGES = ("edges", "source", "target", "directed", "edge_time", "edge_weight")
_SPECIAL = (*_OF_EDGES, "categorical", "categories", "date", "date_formats")


def _toml(value: Any) -> str:
    """Returns a value as TOML in one line."""
    if isinstance(value, Mapping):
        entries = (f"{json.dumps(key, ensure_ascii=False)} = {_toml(entry)}" for key, entry in value.items())
        return f"{{ {', '.join(entries)} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _declared_columns(key: str, names: tuple[str, ...], details: Mapping[str, Any]) -> dict[str, Any]:
    if not names:
        return {}
    if not details:
        return {key: list(names)}
    plain = [] if key == "categorical" else ""
    declared = {name: details.get(name, plain) for name in names}
    return {key: {name: list(value) if isinstance(value, tuple) else value for name, value in declared.items()}}


def parse_schema(content: Any, where: str) -> Schema:
    """Returns the schema of a table [schema]; every value is checked, and `where` begins the sentence of a mistake."""
    if not isinstance(content, Mapping):
        raise InputError(f"{where}: schema is a table, not {_show(content)}.")
    check_keys(content, SCHEMA_KEYS, f"{where}, [schema]")
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key == "edges" and isinstance(value, Mapping):
            check_keys(value, EDGE_KEYS, f"{where}, [schema.edges]")
            for edge_key, edge_value in value.items():
                values |= EDGE_KEYS[edge_key](f"{where}, [schema.edges]", edge_key, edge_value)
        else:
            values |= SCHEMA_KEYS[key](f"{where}, [schema]", key, value)
    schema = Schema(**values)
    _check_columns_once(schema, where)
    return schema


def check_keys(content: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    """Refuses a key that does not exist, with those that do."""
    for key in content:
        if key not in keys:
            raise InputError(f"{where}: there is no key '{key}'{close_to(str(key), keys)}; keys are {', '.join(keys)}.")


def _check_columns_once(schema: Schema, where: str) -> None:
    """Refuses a column that was given two meanings."""
    groups: dict[str, tuple[str | None, ...]] = {name: (getattr(schema, name),) for name in ("id", "label", "split")}
    groups |= {name: getattr(schema, name) for name in ("numeric", "categorical", "date", "ignore")}
    meaning: dict[str, str] = {}
    for group, columns in groups.items():
        for column in filter(None, columns):
            if meaning.setdefault(column, group) != group:
                raise InputError(f"{where}, [schema]: column '{column}' is both {meaning[column]} and {group}.")
    both = next((name for name in schema.log if meaning.get(name, "numeric") != "numeric"), None)
    if both is not None:
        raise InputError(f"{where}, [schema]: column '{both}' is under log, but also {meaning[both]}.")
    if schema.source is not None and schema.source == schema.target:
        raise InputError(f"{where}, [schema.edges]: source and target are both '{schema.source}'.")


Parse = Callable[[str, str, Any], dict[str, Any]]


def _show(value: Any) -> str:
    return f"{value!r}"[:60]


def _text(where: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {key} is a text, not {_show(value)}.")
    return value


def _texts(where: str, key: str, value: Any) -> tuple[str, ...]:
    # Whole numbers are common categories, and people write them without quotes.
    if not isinstance(value, list | tuple) or not all(
        isinstance(entry, str) or (isinstance(entry, int) and not isinstance(entry, bool)) for entry in value
    ):
        raise InputError(f"{where}: {key} is a list of texts, not {_show(value)}.")
    return tuple(map(str, value))


def _columns(where: str, key: str, value: Any) -> tuple[str, ...]:
    names = tuple(map(canonical, _texts(where, key, value)))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{where}: {key} names the column '{twice}' twice.")
    return names


def _column_key(field_name: str) -> Parse:
    return lambda where, key, value: {field_name: canonical(_text(where, key, value))}


def _text_key(field_name: str) -> Parse:
    return lambda where, key, value: {field_name: _text(where, key, value)}


def _columns_key(field_name: str) -> Parse:
    return lambda where, key, value: {field_name: _columns(where, key, value)}


def _choice_key(field_name: str, choices: tuple[str, ...]) -> Parse:
    def parse(where: str, key: str, value: Any) -> dict[str, Any]:
        if value not in choices:
            raise InputError(f"{where}: {key} is one of {', '.join(map(repr, choices))}, not {_show(value)}.")
        return {field_name: value}

    return parse


def _categorical(where: str, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {"categorical": _columns(where, key, value)}
    names = _columns(where, key, list(value))
    lists = {name: _texts(where, f"{key}.{name}", entries) for name, entries in zip(names, value.values(), strict=True)}
    for name, entries in lists.items():
        if len(set(entries)) < len(entries):
            raise InputError(f"{where}: {key}.{name} names a category twice.")
    return {"categorical": names, "categories": {name: entries for name, entries in lists.items() if entries}}


def _date(where: str, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {"date": _columns(where, key, value)}
    names = _columns(where, key, list(value))
    formats = dict(zip(names, value.values(), strict=True))
    for name, text in formats.items():
        if not isinstance(text, str) or (text and "%" not in text):
            raise InputError(f"{where}: {key}.{name} is a form of dates such as '%d.%m.%Y', not {_show(text)}.")
    return {"date": names, "date_formats": {name: text for name, text in formats.items() if text}}


def _rename(where: str, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {key} is a table of names of columns, not {_show(value)}.")
    old = _columns(where, key, list(value))
    new = tuple(canonical(_text(where, f"{key}.{name}", entry)) for name, entry in value.items())
    return {"rename": dict(zip(old, new, strict=True))}


def _positive(where: str, key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise InputError(f"{where}: {key} is the text of a class, not {_show(value)}.")
    return {"positive": str(value)}


def _directed(where: str, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise InputError(f"{where}: {key} is true or false, not {_show(value)}.")
    return {"directed": value}


def _hash(where: str, key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_BUCKETS:
        raise InputError(f"{where}: {key} is a whole number from 1 to {MOST_BUCKETS}, not {_show(value)}.")
    return {"hash": value}


def _encoding(where: str, key: str, value: Any) -> dict[str, Any]:
    try:
        "".encode(_text(where, key, value))
    except LookupError:
        raise InputError(f"{where}: there is no encoding {_show(value)}; examples are utf-8 and cp1252.") from None
    return {"encoding": value}


SCHEMA_KEYS: dict[str, Parse] = {
    "nodes": _text_key("nodes"),
    "edges": _text_key("edges"),
    "id": _column_key("id"),
    "label": _column_key("label"),
    "positive": _positive,
    "numeric": _columns_key("numeric"),
    "categorical": _categorical,
    "date": _date,
    "log": _columns_key("log"),
    "ignore": _columns_key("ignore"),
    "rename": _rename,
    "split": _column_key("split"),
    "time": _column_key("time"),
    "separator": _choice_key("separator", SEPARATORS),
    "encoding": _encoding,
    "decimal": _choice_key("decimal", (".", ",")),
    "missing": lambda where, key, value: {"missing": _texts(where, key, value)},
    "hash": _hash,
    "unknown_nodes": _choice_key("unknown_nodes", UNKNOWN_NODES),
}
EDGE_KEYS: dict[str, Parse] = {
    "file": _text_key("edges"),
    "source": _column_key("source"),
    "target": _column_key("target"),
    "directed": _directed,
    "time": _column_key("edge_time"),
    "weight": _column_key("edge_weight"),
}
