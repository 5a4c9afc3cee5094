"""Predictions of one model for the nodes of a graph, and the table they are written as."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graft.data.graphs import Floats, Ints
from graft.errors import InputError
from graft.files import PART, explained, printable, sync_folder

ROWS = 65_536  # that are turned into text at a time


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model predicts for every node of a graph."""

    ids: NDArray[Any]  # [N]: what the owner calls the nodes, or their numbers
    classes: Ints  # [N]: the likeliest class of each
    probabilities: Floats  # [N, C]
    class_names: tuple[str, ...]  # [C]

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Predictions({len(self)} nodes, classes {printable(', '.join(self.class_names))})"

    @property
    def labels(self) -> NDArray[np.str_]:
        """Returns the name of the likeliest class of every node."""
        return np.array(self.class_names, np.str_)[self.classes]

    def to_csv(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes a table with the columns id, class and, for every class, its probability p(name)."""
        file = Path(path)
        check_out(file, overwrite)
        part = file.with_name(file.name + PART)
        with explained(f"{path} cannot be written", InputError):
            try:
                with part.open("w", encoding="utf-8", newline="") as stream:
                    for text in self._texts():
                        stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                part.replace(file)
            finally:
                part.unlink(missing_ok=True)
            sync_folder(file.parent)

    def _texts(self) -> Iterator[str]:
        """Yields the table, some rows at a time."""
        yield _lines([["id", "class", *(f"p({name})" for name in self.class_names)]])
        labels = self.labels
        for start in range(0, len(self), ROWS):
            rows = slice(start, start + ROWS)
            shares = ([format(share, ".9g") for share in row] for row in self.probabilities[rows].tolist())
            cells = zip(self.ids[rows].tolist(), labels[rows].tolist(), shares, strict=True)
            yield _lines([node, label, *row] for node, label, row in cells)


def _lines(rows: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def check_out(path: Path, overwrite: bool) -> None:
    """Refuses a file that cannot be written, or is there already, before anything is computed for it."""
    with explained(f"{path} cannot be written", InputError):
        if path.is_dir():
            raise InputError(f"{path} is a folder; predictions go into a file.")
        if path.exists() and not overwrite:
            raise InputError(f"{path} exists already; choose another --out, or --overwrite it.")
        if not path.parent.is_dir():
            raise InputError(f"{path} cannot be written: there is no folder {path.parent}.")
        if not os.access(path.parent, os.W_OK):
            raise InputError(f"{path} cannot be written: the folder {path.parent} is not writable.")
