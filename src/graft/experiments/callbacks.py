"""What is told of a run while it goes on, to whoever wants to hear it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graft.experiments.experiment import Experiment
    from graft.experiments.result import Result

Record = dict[str, Any]  # of a round, as a line of rounds.jsonl


@dataclass(frozen=True)
class RunStart:
    """A run whose first round is about to begin, or the first after a resume."""

    experiment: Experiment  # every field resolved
    clients: Sequence[str | int]  # names, or numbers where they have none
    directory: Path | None  # where the record is; None where nothing is written
    records: Sequence[Record]  # of the rounds before, where the run is resumed


class Callback:
    """Hears of a run; override what you need. An exception in it ends the run, whose record stays good."""

    def on_phase(self, phase: str) -> None:
        """A part of the run begins that has a name: reading data, setting up, training, ..."""

    def on_start(self, start: RunStart) -> None:
        """The first round is about to begin, or the first after a resume; everything is resolved."""

    def on_round(self, record: Record) -> None:
        """A round is over and on record."""

    def on_checkpoint(self, number: int, directory: Path) -> None:
        """The checkpoint of a round is on the disk, in the run's directory."""

    def on_recovery(self, reason: str, records: Sequence[Record]) -> None:
        """A worker was lost, and the run goes on after these records: rounds that callbacks were told of come again."""

    def on_end(self, result: Result) -> None:
        """The last round is over, or a run that was asked to stop has stopped; its record is on the disk."""

    def close(self) -> None:
        """Nothing more will come, whether the run ended well or not."""


class EachRound(Callback):
    """A plain function that hears of every round."""

    def __init__(self, function: Callable[[Record], object]) -> None:
        self.function = function

    def on_round(self, record: Record) -> None:
        self.function(record)


Callbacks = Sequence[Callback | Callable[[Record], object]]


class AllCallbacks(Callback):
    """Passes everything on to some callbacks, in their order; all of them are closed whatever happens."""

    def __init__(self, callbacks: Callbacks = ()) -> None:
        self.callbacks = [entry if isinstance(entry, Callback) else EachRound(entry) for entry in callbacks]

    def on_phase(self, phase: str) -> None:
        for callback in self.callbacks:
            callback.on_phase(phase)

    def on_start(self, start: RunStart) -> None:
        for callback in self.callbacks:
            callback.on_start(start)

    def on_round(self, record: Record) -> None:
        for callback in self.callbacks:
            callback.on_round(record)

    def on_checkpoint(self, number: int, directory: Path) -> None:
        for callback in self.callbacks:
            callback.on_checkpoint(number, directory)

    def on_recovery(self, reason: str, records: Sequence[Record]) -> None:
        for callback in self.callbacks:
            callback.on_recovery(reason, records)

    def on_end(self, result: Result) -> None:
        for callback in self.callbacks:
            callback.on_end(result)

    def close(self) -> None:
        errors = []
        for callback in self.callbacks:
            try:
                callback.close()
            except Exception as error:  # the others have to be closed too
                errors.append(error)
        if errors:
            raise errors[0]
