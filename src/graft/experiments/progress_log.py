"""How far many runs of one folder are, on the disk: a line a run, for whoever looks on from another process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graft.errors import RunError
from graft.files import explained, parse_json, read_text, write_text

FILE = "progress.jsonl"

Report = Callable[[dict[str, Any]], None]


def logged(folder: Path, planned: int, report: Report | None = None) -> Report:
    """Returns a function that puts what is told of every run on record in a folder, and passes it on.

    The record is of one call: it begins anew, with how many runs are planned, those that are done already included.
    """
    path = folder / FILE
    write_text(path, json.dumps({"planned": planned}) + "\n")

    def tell(message: dict[str, Any]) -> None:
        with explained(f"{path} cannot be written", RunError), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(message) + "\n")
        if report is not None:
            report(message)

    return tell


def read_log(folder: Path) -> tuple[int | None, list[dict[str, Any]]]:
    """Returns how many runs are planned and what is on record of those that ended; what cannot be read is left out."""
    try:
        lines = read_text(folder / FILE).split("\n")[:-1]  # what follows the last line break is being written
    except (OSError, ValueError):
        return None, []
    entries = [entry for entry in map(parse_entry, lines) if entry]
    planned = next((entry["planned"] for entry in entries if isinstance(entry.get("planned"), int)), None)
    return planned, [entry for entry in entries if "cell" in entry or "trial" in entry]


def parse_entry(line: str) -> dict[str, Any]:
    """Returns the values of a line; none where it is damaged."""
    try:
        entry = parse_json(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
