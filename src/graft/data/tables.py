"""A graph in two tables: a folder with nodes.csv and edges.csv."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graft.data.graphs import MASKS, Graph, Ints, make_graph
from graft.errors import InputError


def read_tables(folder: Path) -> Graph:
    """Returns the graph of nodes.csv (id, label, perhaps split, and the features) and edges.csv (source, target)."""
    for name in ("nodes.csv", "edges.csv"):
        if not (folder / name).is_file():
            raise InputError(f"The folder {folder} has no {name}: a dataset needs nodes.csv and edges.csv.")
    nodes = folder / "nodes.csv"
    ids: dict[str, int] = {}
    rows, labels, splits = [], [], []
    with np.errstate(over="ignore"):
        for number, cells in _rows(nodes, ("id", "label")):
            location = f"{nodes}, line {number}"
            _add_id(location, cells.pop("id"), ids)
            labels.append(cells.pop("label"))
            splits.append(_check_split(location, cells.pop("split", None)))
            rows.append(_features(location, cells))
    if not rows:
        raise InputError(f"{nodes} has a header but no node.")
    y, classes = _labels(nodes, labels)
    masks = {name: np.array(splits) == name for name in MASKS} if splits[0] is not None else None
    return make_graph(folder.resolve().name, np.array(rows), _edges(folder / "edges.csv", ids), y, classes, masks)


def _rows(path: Path, required: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Returns the rows below the header: their line numbers in the file, and their cells by column."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [cell.strip() for cell in next(reader, [])]
            missing = [column for column in required if column not in header]
            if missing:
                raise InputError(f"{path}, line 1: the header lacks {' and '.join(missing)}.")
            if len(set(header)) < len(header):
                raise InputError(f"{path}, line 1: two columns of the header have the same name.")
            for row in reader:
                if row and len(row) != len(header):
                    raise InputError(f"{path}, line {reader.line_num}: {len(row)} cells, but {len(header)} columns.")
                if row:
                    yield reader.line_num, dict(zip(header, map(str.strip, row), strict=True))
    except (csv.Error, UnicodeError, OSError) as error:
        raise InputError(f"{path} is not a readable CSV file in UTF-8: {error}.") from error


def _add_id(location: str, node_id: str, ids: dict[str, int]) -> None:
    if not node_id:
        raise InputError(f"{location}: the id is empty.")
    if node_id in ids:
        raise InputError(f"{location}: the id '{node_id}' was used before; ids must be unique.")
    ids[node_id] = len(ids)


def _check_split(location: str, mask: str | None) -> str | None:
    if mask not in (None, "", *MASKS):
        raise InputError(f"{location}: the split '{mask}' is not one of {', '.join(MASKS)} or empty.")
    return mask


def _features(location: str, cells: dict[str, str]) -> NDArray[np.float32]:
    if not cells:
        raise InputError(f"{location}: there is no feature; at least one column is needed beside id, label and split.")
    try:
        row = np.array([float(cell) for cell in cells.values()], np.float32)
        if np.isfinite(row).all():
            return row
    except ValueError:
        pass  # the sentence below names the cell
    column, cell = next((column, cell) for column, cell in cells.items() if not _is_number(cell))
    raise InputError(f"{location}, column {column}: '{cell}' is not a finite number.")


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(np.float32(cell)))
    except ValueError:
        return False


def _labels(path: Path, cells: list[str]) -> tuple[Ints, int]:
    names = {cell for cell in cells if cell}
    if not names:
        raise InputError(f"{path} has no label at all: every cell of the column label is empty.")
    try:
        # By value, so that 2 comes before 10 and 01 is the same class as 1.
        numbers = {cell: int(cell) for cell in names}
        rank = {number: label for label, number in enumerate(sorted(set(numbers.values())))}
        classes = {cell: rank[number] for cell, number in numbers.items()}
    except ValueError:
        classes = {cell: label for label, cell in enumerate(sorted(names))}
    return np.array([classes.get(cell, -1) for cell in cells], np.int64), max(classes.values()) + 1


def _edges(path: Path, ids: dict[str, int]) -> Ints:
    ends = []
    for number, cells in _rows(path, ("source", "target")):
        for end in (cells["source"], cells["target"]):
            if end not in ids:
                raise InputError(f"{path}, line {number}: there is no node '{end}' in nodes.csv.")
            ends.append(ids[end])
    return np.array(ends, np.int64).reshape(-1, 2).T
