"""TensorBoard: event files in a folder, which `tensorboard --logdir FOLDER` shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graft.errors import InputError
from graft.experiments.callbacks import RunStart
from graft.experiments.trackers.tracker import (
    FINISHED,
    Kept,
    Numbers,
    Tracker,
    links_of,
    parameters_of,
    run_name,
)

FOLDER = "tensorboard"  # in a run directory


class TensorBoard(Tracker):
    """Writes every run into a folder of event files: below `directory`, or within the run's own directory."""

    name = "tensorboard"
    package = "tensorboard"

    def __init__(self, directory: str | Path | None = None) -> None:
        super().__init__(directory)

    def begin(self, start: RunStart, kept: Kept) -> Kept:
        from torch.utils.tensorboard.writer import SummaryWriter

        folder = Path(kept["folder"]) if "folder" in kept else self.choose_folder(start)
        # What was written of rounds that a resumed run plays again is hidden.
        first = len(start.records) + 1
        self._writer = SummaryWriter(str(folder), purge_step=first if kept else None, flush_secs=10)
        self._parameters = parameters_of(start)
        if not kept:
            self._writer.add_text("experiment", as_table(self._parameters | links_of(start)), 0)
        return {"folder": str(folder.resolve())}

    def choose_folder(self, start: RunStart) -> Path:
        """Returns a folder that no other run has written into."""
        if self.destination is None:
            if start.directory is None:
                raise InputError(
                    "TensorBoard needs a folder for a run that keeps no record, as graft.TensorBoard('logs')."
                )
            return start.directory / FOLDER
        folder = named = Path(self.destination) / run_name(start)
        number = 2
        while folder.exists():
            folder, number = named.with_name(f"{named.name}-{number}"), number + 1
        return folder

    def log(self, numbers: Numbers, step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def end(self, summary: Numbers, status: str) -> None:
        self._writer.add_text("status", status, 0)
        if status == FINISHED:
            plain = {
                name: value if isinstance(value, bool | int | float | str) else str(value)
                for name, value in self._parameters.items()
            }
            results = {f"result/{name}": value for name, value in summary.items()}
            self._writer.add_hparams(plain, results, run_name=".")
        self._writer.close()


def as_table(values: Mapping[str, Any]) -> str:
    """Returns values as a table of Markdown, which TensorBoard shows."""
    rows = (f"| {name} | `{str(value).replace('|', '/')}` |" for name, value in values.items())
    return "\n".join(["| field | value |", "| --- | --- |", *rows])
