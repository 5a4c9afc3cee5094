"""The trials of a tuning on the disk: a line of JSON for each thing that happened, appended and never changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from graft.errors import InputError, RunError
from graft.files import explained, parse_json, read_text

FILE = "trials.jsonl"


class Entry(TypedDict, total=False):
    """What happened to a method's trials: what is tuned is on record, a trial has values, or it is over."""

    method: str
    identity: dict[str, Any]  # of what is tuned, in the first line of a method
    trial: int
    values: dict[str, Any]  # that were drawn for it
    scores: dict[str, float]  # by rounds: those that it was measured by while it ran; with them it is over
    state: str
    validation: float | None
    rounds: int
    seconds: float
    reason: str


class Journal:
    """The entries of a folder, or of none, which are kept in memory alone.

    Whoever kills this process loses nothing that was appended, but perhaps the line that was being written; a machine
    that loses its power may lose the last lines.
    """

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / FILE
        self.entries: list[Entry] = []
        if self.path is None:
            return
        with explained(f"{self.path} cannot be read", InputError):
            try:
                text = read_text(self.path) if self.path.exists() else ""
                whole = text[: text.rfind("\n") + 1]
                self.entries = list(map(parse_entry, whole.splitlines()))
                if text and not text.startswith("{"):
                    raise ValueError("it does not begin with an entry")
            except ValueError as error:
                raise InputError(f"{self.path} is damaged, or not the trials of a tuning: {error}.") from error
            if whole != text:  # the last line was being written when its process was killed
                self.path.write_text(whole, encoding="utf-8")

    def of(self, method: str) -> list[Entry]:
        """Returns what happened to the trials of a method so far."""
        return [entry for entry in self.entries if entry["method"] == method]

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        if self.path is not None:
            with (
                explained(f"{self.path} cannot be written to", RunError),
                self.path.open("a", encoding="utf-8") as file,
            ):
                file.write(json.dumps(entry) + "\n")


def parse_entry(line: str) -> Entry:
    """Returns the entry of a line; a `ValueError` where it is something else."""
    entry = parse_json(line)
    if not isinstance(entry, dict) or "method" not in entry:
        raise ValueError("a line of it is no entry")
    return Entry(**entry)  # type: ignore[typeddict-item]
