"""A graph in two tables: a folder with nodes.csv and edges.csv."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from graft.data.graphs import MASKS, Bools, Graph, Ints, clean
from graft.errors import InputError

Line = tuple[int, dict[str, str]]  # its number in the file, and its cells by column


def read_tables(folder: Path) -> Graph:
    """The graph of nodes.csv (id, label, perhaps split, and the features) and edges.csv (source, target)."""
    for name in ("nodes.csv", "edges.csv"):
        if not (folder / name).is_file():
            raise InputError(f"The folder {folder} has no {name}: a dataset needs nodes.csv and edges.csv.")
    nodes = folder / "nodes.csv"
    lines = list(_lines(nodes, ("id", "label")))
    if not lines:
        raise InputError(f"{nodes} has a header but no node.")
    columns = [column for column in lines[0][1] if column not in ("id", "label", "split")]
    if not columns:
        raise InputError(f"{nodes} has no feature: it needs at least one column beside id, label and split.")
    ids = _ids(nodes, lines)
    x = np.array([_features(nodes, number, cells, columns) for number, cells in lines])
    y, classes = _labels(nodes, [cells["label"] for _, cells in lines])
    masks = _masks(nodes, lines) if "split" in lines[0][1] else None
    return clean(folder.resolve().name, x, _edges(folder / "edges.csv", ids), y, classes, masks)


def _lines(path: Path, required: tuple[str, ...]) -> Iterator[Line]:
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


def _ids(path: Path, lines: list[Line]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for number, cells in lines:
        if not cells["id"]:
            raise InputError(f"{path}, line {number}: the id is empty.")
        if cells["id"] in ids:
            raise InputError(f"{path}, line {number}: the id '{cells['id']}' was used before; ids must be unique.")
        ids[cells["id"]] = len(ids)
    return ids


def _features(path: Path, number: int, cells: dict[str, str], columns: list[str]) -> np.ndarray:
    try:
        row = np.array([float(cells[column]) for column in columns], np.float32)
        if np.isfinite(row).all():
            return row
    except ValueError:
        pass
    bad = next(column for column in columns if not _is_number(cells[column]))
    raise InputError(f"{path}, line {number}, column {bad}: '{cells[bad]}' is not a finite number.")


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(np.float32(cell)))
    except ValueError:
        return False


def _labels(path: Path, cells: list[str]) -> tuple[Ints, int]:
    found = {cell for cell in cells if cell}
    if not found:
        raise InputError(f"{path} has no label at all: every cell of the column label is empty.")
    try:
        # By value, so that 2 comes before 10 and 01 is the same class as 1.
        numbers = {cell: int(cell) for cell in found}
        rank = {number: place for place, number in enumerate(sorted(set(numbers.values())))}
        classes = {cell: rank[number] for cell, number in numbers.items()}
    except ValueError:
        classes = {cell: place for place, cell in enumerate(sorted(found))}
    return np.array([classes.get(cell, -1) for cell in cells], np.int64), max(classes.values()) + 1


def _masks(path: Path, lines: list[Line]) -> dict[str, Bools]:
    for number, cells in lines:
        if cells["split"] not in ("", *MASKS):
            raise InputError(
                f"{path}, line {number}: the split '{cells['split']}' is not one of {', '.join(MASKS)} or empty."
            )
    splits = np.array([cells["split"] for _, cells in lines])
    return {name: splits == name for name in MASKS}


def _edges(path: Path, ids: dict[str, int]) -> Ints:
    ends = []
    for number, cells in _lines(path, ("source", "target")):
        for end in (cells["source"], cells["target"]):
            if end not in ids:
                raise InputError(f"{path}, line {number}: there is no node '{end}' in nodes.csv.")
            ends.append(ids[end])
    return np.array(ends, np.int64).reshape(-1, 2).T
