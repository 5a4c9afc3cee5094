"""Saved partitions: a client for each node, by number or by name, in JSON, text or numpy files."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graft.data.cards import content_hash
from graft.data.data_file import check_names
from graft.data.graphs import Graph, Ints
from graft.errors import InputError
from graft.files import parse_json, read_text


class Assignment(NamedTuple):
    """Which client has which node."""

    membership: Ints  # [N], a number for each node, from 0
    names: tuple[str, ...] | None = None  # of the clients; None: they have numbers only


def read_partition(path: Path, graph: Graph) -> Assignment:
    """Returns the clients of a graph's nodes in a file: numbers from 0 without a gap, or names; each has a node."""
    try:
        content = READERS[path.suffix](path)
        if isinstance(content, dict):
            content = _in_order(content, graph)
        values = np.asarray(content)
    except Exception as error:  # a damaged file can fail in any way in numpy's parsers
        raise InputError(f"{path} is not a readable file of client ids: {error or type(error).__name__}.") from error
    if values.ndim != 1 or values.dtype.kind not in "iuU" or not len(values):
        raise InputError(f"{path} must hold one client id, a whole number or a name, for each node.")
    if len(values) != graph.nodes:
        raise InputError(f"{path} has client ids for {len(values)} nodes, but '{graph.name}' has {graph.nodes}.")
    if values.dtype.kind == "U":
        names, membership = np.unique(values, return_inverse=True)
        if not names[0].strip():
            raise InputError(f"{path} names no client for node {int(np.flatnonzero(values == names[0])[0])}.")
        check_names(str(path), names.tolist())
        return Assignment(membership.astype(np.int64), tuple(names.tolist()))
    clients = int(values.max()) + 1
    if values.min() < 0 or clients > len(values) or len(np.unique(values)) != clients:
        raise InputError(f"The client ids in {path} must be 0 to {clients - 1}, each of them with at least one node.")
    return Assignment(values.astype(np.int64))


def _in_order(client_of: dict[str, str], graph: Graph) -> list[int] | list[str]:
    """Returns the clients in the order of the nodes."""
    ids = [str(node) for node in (range(graph.nodes) if graph.ids is None else graph.ids)]
    missing = next((node for node in ids if node not in client_of), None)
    if missing is not None:
        raise ValueError(f"it has no client for the node '{missing}'")
    if len(client_of) > len(ids):
        more = next(iter(client_of.keys() - set(ids)))
        raise ValueError(f"it has a client for '{more}', which is no node of '{graph.name}'")
    return _numbers_or_names([client_of[node] for node in ids])


def _numbers_or_names(cells: list[str]) -> list[int] | list[str]:
    return [int(cell) for cell in cells] if all(cell.isdecimal() for cell in cells) else cells


def _read_array(path: Path) -> Any:
    # Mapped, so that a header that promises more than the file holds is refused before anything is allocated.
    return np.array(np.lib.format.open_memmap(path, mode="r"))


def _read_rows(path: Path) -> Any:
    """Returns a client a line, or the client of each node where there is a header with `id` and `client`."""
    text = read_text(path).removeprefix("\ufeff")
    if all(map(_is_number, text.split())):
        return [int(word) for word in text.split()]
    rows = [row for row in csv.reader(text.splitlines()) if row]
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    if "client" not in header:
        if any(len(row) > 1 for row in rows):
            raise ValueError("it has several columns and no header with id and client")
        return [row[0].strip() for row in rows]
    short = next((number for number, row in enumerate(rows[1:], 2) if len(row) < len(header)), None)
    if short is not None:
        raise ValueError(f"row {short} has fewer cells than the header")
    columns = {name: [row[index].strip() for row in rows[1:]] for index, name in enumerate(header)}
    if "id" not in columns:
        return _numbers_or_names(columns["client"])
    client_of = dict(zip(columns["id"], columns["client"], strict=True))
    if len(client_of) < len(rows) - 1:
        raise ValueError("it has two rows for one id")
    return client_of


def _is_number(cell: str) -> bool:
    return cell.removeprefix("-").isdecimal()


def _read_json(path: Path) -> Any:
    content = parse_json(read_text(path))
    if not isinstance(content, dict):
        return content
    if "membership" not in content:
        raise ValueError("it has no list called membership")
    membership = np.asarray(content["membership"])
    if content.keys() == {"membership"}:  # written by hand
        return membership
    if "hash" not in content:
        raise ValueError("it has no hash of its membership")
    if membership.dtype.kind not in "iu" or content_hash(membership) != content["hash"]:
        raise ValueError("its membership does not belong to its hash")
    names = content.get("names")
    return membership if names is None else np.asarray(names, np.str_)[membership]


READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": _read_array,
    ".json": _read_json,
    ".csv": _read_rows,
    ".txt": _read_rows,
}
