"""The run directory: experiment.toml, rounds.jsonl, result.json, partition.json, checkpoint/, best/ and report.html."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graft.errors import InputError
from graft.experiments.best_files import NAME, load_best
from graft.experiments.best_models import RoundModels
from graft.experiments.checkpoints import Checkpoint, Origin, load_checkpoint, read_contents, save_checkpoint
from graft.experiments.free_folder import check_free
from graft.experiments.record_files import FEDERATION, RoundLog, experiment_checksum, read_result, write_result
from graft.experiments.state_log import StateLog
from graft.files import Lock, explained, parse_json, read_text, unseal, write_text

RECORDS = (
    *("rounds.jsonl", "result.json", "report.html", "partition.json", "preparation.json", "verdicts.json"),
    "trackers.json",
)
OLD_FOLDERS = ("checkpoint.old", "checkpoint.new")  # which earlier versions left
FOLDERS = ("best", "checkpoint", "tensorboard", *OLD_FOLDERS)


class RunDirectory:
    """Where a run keeps its record; every file is replaced whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.toml"
        self.partition = path / "partition.json"
        self.result = path / "result.json"
        self.report = path / "report.html"
        self.checkpoint = path / "checkpoint"
        self.best = path / "best"
        self.preparation = path / "preparation.json"
        self.federation = path / FEDERATION
        self.log = RoundLog(path / "rounds.jsonl", self.experiment)

    def lock(self) -> Lock:
        """Takes the directory for one process, to write into a run that is there."""
        return Lock(self.path)

    def claim(self, overwrite: bool) -> Lock:
        """Takes the directory for a new run: one that holds something is refused, or may be overwritten if a run."""
        check_free(self.path, overwrite)
        with explained(f"{self.path} cannot be written to", InputError):
            self.path.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.path)
        try:
            check_free(self.path, overwrite)  # again: another run may have come first
        except InputError:
            lock.release()
            raise
        return lock

    def begin(self, experiment: str) -> None:
        """Puts the experiment of a new run on record, and removes all of an earlier one."""
        with explained(f"{self.path} cannot be written to", InputError):
            # Without an experiment nothing can be resumed, so whenever this is killed, the two runs never mix.
            for name in (self.experiment.name, *RECORDS):
                (self.path / name).unlink(missing_ok=True)
            for folder in (self.path / name for name in FOLDERS):
                if folder.exists():
                    shutil.rmtree(folder)
            write_text(self.experiment, experiment)
        self.log.begin()

    def append_round(self, record: Mapping[str, Any]) -> None:
        self.log.append(record)

    def read_rounds(self) -> list[dict[str, Any]]:
        """Returns the rounds on record; a last line that was cut off by a crash is none."""
        return self.log.read()

    def restore_rounds(self, checkpoint: Checkpoint) -> list[dict[str, Any]]:
        """Returns the rounds that a checkpoint covers, and drops those that came after it."""
        return self.log.restore(checkpoint.round, checkpoint.rounds_checksum)

    def write_result(self, summary: Mapping[str, Any]) -> None:
        """Writes result.json; it belongs to the rounds on record."""
        self.log.sync()
        write_result(self.result, summary, self.log.checksum)

    def read_record(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Returns the result and the rounds of a finished run."""
        if not self.result.exists():
            raise InputError(f"{self.path} holds no result.json: it is not a finished run.")
        rounds = self.log.read()
        return read_result(self.result, rounds, self.log.checksum), rounds

    def read_result(self) -> dict[str, Any]:
        return self.read_record()[0]

    def save(self, checkpoint: Checkpoint, log: StateLog | None = None) -> StateLog:
        """Writes a checkpoint in the place of the last one, when the rounds that it covers are on the disk."""
        self.log.sync()
        return save_checkpoint(self.checkpoint, checkpoint, log)

    def read_best(self, records: list[dict[str, Any]]) -> tuple[Origin, dict[str, RoundModels]] | None:
        """Returns the models of the best round on record, by kind, and where they come from; None where none are."""
        if not (self.best / NAME).exists():
            return None
        return load_best(self.best, records, self.experiment_checksum())

    def read_baselines(self) -> list[dict[str, Any]]:
        """Returns what is on record of every client to compare its model with: how many labels of each class it has
        and, if the run was compared with training alone, the verdict; empty where nothing can be read."""
        try:
            rows = [{"labels": row["labels"]} for row in parse_json(read_text(self.partition))["per_client"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        try:
            verdicts = unseal(parse_json(read_text(self.path / "verdicts.json")))["clients"]
            return [{**row, **verdict} for row, verdict in zip(rows, verdicts, strict=True)]
        except (OSError, ValueError, KeyError, TypeError):
            return rows

    def experiment_checksum(self) -> str:
        """Returns a checksum of the settings of the run."""
        return experiment_checksum(self.experiment)

    def load(self) -> Checkpoint | None:
        """Returns the last checkpoint; None for a run that was stopped before it wrote its first."""
        if (self.checkpoint / "checkpoint.json").exists():
            return load_checkpoint(self.checkpoint)
        if self.log.path.exists() or self.result.exists():
            raise InputError(f"{self.path} holds no checkpoint to resume from.")
        return None

    def last_checkpoint(self) -> int | None:
        """Returns the round of the checkpoint that is there; None where none can be read."""
        try:
            return read_contents(self.checkpoint / "checkpoint.json").round
        except (OSError, ValueError, InputError):
            return None

    def has_result(self) -> bool:
        """Returns whether the result of the rounds on record is there, undamaged."""
        try:
            self.read_record()
        except InputError:
            return False
        return True
