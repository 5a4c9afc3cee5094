"""The numbers that papers print: a file of `printed/` a table, a line a cell, as they stand there.

A cell that is lost in the text that we have is empty. One that was filled in from another table of the same paper is
not sure: it is shown with a question mark. Means over datasets or clients (`avg`) are the paper's own and are skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "printed"
COLUMNS = ("method", "dataset", "clients", "accuracy", "deviation", "sure")  # all others tell apart lines of a method
MEAN = "avg"


@dataclass(frozen=True)
class Number:
    """An accuracy as printed."""

    mean: float
    deviation: float | None = None
    sure: bool = True  # False where it was filled in from another table


Paper = Mapping[tuple[str, str, int], Number]  # (row, dataset, clients)


def printed(
    table: str, rows: Mapping[str, str] | None = None, clients: int | None = None, **settings: str
) -> dict[tuple[str, str, int], Number]:
    """Returns the cells of a printed table that have a number.

    `rows` chooses methods and names their rows. `clients` stands where the paper does not give the number of clients.
    `settings` chooses lines by the table's other columns, as `noise="10%"`.
    """
    lines = read_table(table)
    if unknown := settings.keys() - (lines[0].keys() - set(COLUMNS)):
        raise ValueError(f"The printed table '{table}' has no column {', '.join(sorted(unknown))}.")
    cells = {}
    for line in lines:
        chosen = all(line[name] == value for name, value in settings.items())
        if not chosen or not line["accuracy"] or MEAN in (line["dataset"], line["clients"]):
            continue
        row = line["method"] if rows is None else rows.get(line["method"])
        count = int(line["clients"]) if line["clients"] else clients
        if row is None or count is None:
            continue
        cell = (row, line["dataset"], count)
        if cell in cells:
            raise ValueError(f"The printed table '{table}' has {cell} more than once: choose by another column.")
        deviation = float(line["deviation"]) if line["deviation"] else None
        cells[cell] = Number(float(line["accuracy"]), deviation, line["sure"] == "yes")
    return cells


@cache
def read_table(table: str) -> list[dict[str, str]]:
    """Returns the lines of a file, lost cells and means among them."""
    with (FOLDER / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
