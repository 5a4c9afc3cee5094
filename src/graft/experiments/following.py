"""Runs that another process works on, as their folders tell it: read little by little, nothing of it believed blindly.

Imports no PyTorch. Nothing is written, and what is damaged or half written is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graft.errors import InputError
from graft.experiments.experiment import Experiment, draft_experiment
from graft.experiments.experiment_files import read_experiment
from graft.experiments.progress_log import FILE as PROGRESS
from graft.experiments.progress_log import parse_entry, read_log
from graft.experiments.record_files import RoundRecord, check_record
from graft.files import is_locked, parse_json, read_text

EXPERIMENT, ROUNDS, RESULT, LOCK = "experiment.toml", "rounds.jsonl", "result.json", ".lock"
TUNING, TRIALS, SWEEP = "tuning.json", "trials.jsonl", "sweep.toml"
LARGEST_READ = 2**26  # bytes of new lines that are read at once
DEEPEST = 3  # folders below a sweep in which its runs are
PATIENCE = 10.0  # seconds without news after which a run that nobody here holds has stopped

NETWORK_DISKS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "beegfs",
    "gpfs",
    "fuse.glusterfs",
    "fuse.sshfs",
}

FINISHED, RUNNING, STOPPED = "finished", "running", "stopped"


class FollowedRun:
    """A run directory: its experiment, the rounds that were added since one last looked, and whether it goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.experiment: Experiment = draft_experiment(read_experiment(folder / EXPERIMENT))
        self.damaged = 0  # lines that could not be read
        self.round = 0  # the last that was read
        self.seconds = 0.0  # that it took
        self._read = 0  # bytes of rounds.jsonl
        self._file = 0  # its inode

    def new_rounds(self) -> Iterator[tuple[bool, list[dict[str, Any]]]]:
        """Yields the records that were added, and whether they begin anew because earlier ones were dropped."""
        while True:
            anew, lines = self._new_lines()
            if anew:
                self.round, self.damaged = 0, 0
            records = list(self._records(lines))
            if anew or records:
                yield anew, records
            if not lines:
                return

    def _new_lines(self) -> tuple[bool, list[bytes]]:
        try:
            with (self.folder / ROUNDS).open("rb") as file:
                state = os.fstat(file.fileno())
                anew = self._read > 0 and (state.st_size < self._read or state.st_ino != self._file)
                file.seek(0 if anew else self._read)
                content = file.read(LARGEST_READ)
        except OSError:
            anew, self._read = self._read > 0, 0
            return anew, []
        complete = content.rfind(b"\n") + 1  # what follows is being written
        self._read, self._file = (0 if anew else self._read) + complete, state.st_ino
        return anew, content[:complete].splitlines()

    def _records(self, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        for line in lines:
            record = parse_entry(line.decode("utf-8", errors="replace"))
            try:
                check_record(RoundRecord, record)
                if record["round"] <= self.round:
                    raise ValueError("it is a round of before")
            except ValueError:
                self.damaged += 1
                continue
            self.round, self.seconds = record["round"], record["seconds"]
            yield record

    def names(self) -> Sequence[str | int]:
        """Returns the clients' names, or their numbers."""
        prepared = read_values(self.folder / "preparation.json")
        names = prepared.get("names")
        return list(names) if isinstance(names, list) else range(self.experiment.clients)

    def status(self) -> str:
        """Returns whether the run is finished, running or stopped, as far as that can be seen from here."""
        if (self.folder / RESULT).exists():
            return FINISHED
        if is_locked(self.folder / LOCK):
            return RUNNING
        # On a disk that machines share, locks of others may not be seen; what they write is.
        return RUNNING if self.silence() < PATIENCE + 3 * self.seconds and not self.is_local() else STOPPED

    def silence(self) -> float:
        """Returns the seconds since something was last written."""
        times = [modified(self.folder / name) for name in (ROUNDS, EXPERIMENT)]
        return max(time.time() - max(times), 0.0)

    def is_local(self) -> bool:
        """Returns whether the folder is on a disk of this machine, where a lock that is free says that nobody runs."""
        return kind_of_disk(self.folder) not in NETWORK_DISKS


@dataclass
class ManyRuns:
    """How far the runs of a sweep, a study or a tuning are."""

    done: int = 0
    total: int | None = None
    ended: list[dict[str, Any]] = field(default_factory=list)  # what came of them, the latest last
    running: list[tuple[str, int, int]] = field(default_factory=list)  # name, round and rounds
    stopped: list[Path] = field(default_factory=list)  # begun, not finished, and nobody works on them
    failures: dict[str, str] = field(default_factory=dict)
    locked: bool = False  # by a process that works on all of them

    @property
    def status(self) -> str:
        """Returns whether they are finished, running or stopped."""
        if self.locked or self.running:
            return RUNNING
        missing = self.total is not None and self.done + len(self.failures) < self.total
        return STOPPED if missing or self.stopped else FINISHED


class FollowedRuns:
    """A folder of many runs: of a sweep, of several seeds, of a study, or of methods that are compared."""

    unit = "run"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cells: dict[Path, tuple[float, dict[str, Any]]] = {}  # of a study, and when each was written

    def look(self) -> ManyRuns:
        """Returns how far they are now."""
        planned, messages = read_log(self.folder)
        runs = list(find_folders(self.folder))
        begun = [run for run in runs if not (run / RESULT).exists()]
        running = [run for run in begun if is_locked(run / LOCK)]
        cells = {} if runs else self.study_cells()
        failed = {name: cell["error"] for name, cell in cells.items() if isinstance(cell.get("error"), str)}
        failed |= {str(entry.get("cell")): entry["error"] for entry in messages if isinstance(entry.get("error"), str)}
        return ManyRuns(
            done=len(runs) - len(begun) + sum("summary" in cell for cell in cells.values()),
            total=planned,
            ended=messages,
            running=[self.describe(run) for run in running],
            stopped=[run for run in begun if run not in running],
            failures=failed,
            locked=is_locked(self.folder),
        )

    def study_cells(self) -> dict[str, dict[str, Any]]:
        """Returns the results and failures of a study by their names; each file is read once."""
        for file in cell_files(self.folder):
            written = modified(file)
            if self._cells.get(file, (0.0, {}))[0] != written:
                values = read_values(file)
                self._cells[file] = (written, {name: values[name] for name in ("summary", "error") if name in values})
        return {f"{file.parent.name} {file.stem}": cell for file, (_, cell) in self._cells.items()}

    def describe(self, run: Path) -> tuple[str, int, int]:
        """Returns the name of a run, how many rounds it has done and how many it will do."""
        try:
            rounds = draft_experiment(read_experiment(run / EXPERIMENT)).rounds
            lines = (run / ROUNDS).read_bytes().count(b"\n") if (run / ROUNDS).exists() else 0
        except (InputError, OSError):
            rounds = lines = 0
        return str(run.relative_to(self.folder)), lines, rounds


class FollowedTuning:
    """The folder of a tuning: trials instead of runs."""

    unit = "trial"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look(self) -> ManyRuns:
        """Returns how far it is now."""
        total, messages = read_log(self.folder)
        rows = [row for row in messages if "trial" in row]
        if not rows:  # the record of a call that had nothing left to do, or of an earlier version
            total, rows = self.finished_trials()
            messages = rows
        ended = [
            {**row, "cell": row.get("cell") or f"{row.get('method')}, trial {row.get('trial')}"} for row in messages
        ]
        counts = [count for row in rows if isinstance(count := row.get("done"), int)]
        failures = {
            row["cell"]: str(row.get("error") or row.get("reason") or "failed")
            for row in ended
            if row.get("state") == "failed" or "error" in row
        }
        # A trial that failed is one of those that were planned.
        done = max(counts, default=len(rows)) - len(failures)
        return ManyRuns(done, total, ended, failures=failures, locked=is_locked(self.folder))

    def finished_trials(self) -> tuple[int | None, list[dict[str, Any]]]:
        """Returns how many trials were planned and those that ended, as tuning.json tells it."""
        values = read_values(self.folder / TUNING)
        methods, trials = values.get("methods"), values.get("trials")
        rows = []
        for label, entry in (methods if isinstance(methods, dict) else {}).items():
            history = entry.get("history") if isinstance(entry, dict) else None
            for row in history if isinstance(history, list) else []:
                rows.append({"method": label, **row} if isinstance(row, dict) else {})
        return (trials * len(methods) if isinstance(trials, int) and isinstance(methods, dict) else None), rows


def follow(folder: Path) -> FollowedRun | FollowedRuns | FollowedTuning:
    """Returns what is in a folder, to be looked at again and again; one that Graft did not write is refused."""
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}.")
    if (folder / TUNING).exists() or (folder / TRIALS).exists():
        return FollowedTuning(folder)
    if (folder / EXPERIMENT).exists():
        return FollowedRun(folder)
    marks = (PROGRESS, SWEEP)
    if any((folder / name).exists() for name in marks) or any(find_folders(folder)) or cell_files(folder):
        return FollowedRuns(folder)
    raise InputError(
        f"{folder} holds no run, sweep, study or tuning: none of {EXPERIMENT}, {SWEEP}, {TUNING} and runs/ is there."
    )


def find_folders(folder: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """Yields the run directories below a folder, but none within another."""
    try:
        children = sorted(child for child in folder.iterdir() if child.is_dir())
    except OSError:
        return
    for child in children:
        if (child / EXPERIMENT).exists():
            yield child
        elif depth > 1:
            yield from find_folders(child, depth - 1)


def cell_files(folder: Path) -> list[Path]:
    """Returns the files of a study's results."""
    return sorted((folder / "runs").glob("*/*.json"))


def read_values(path: Path) -> dict[str, Any]:
    """Returns what a JSON file holds; nothing where it cannot be read, as while it is being written."""
    try:
        values = parse_json(read_text(path))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def modified(path: Path) -> float:
    """Returns when a file was last written; 0 where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def kind_of_disk(folder: Path) -> str:
    """Returns the kind of file system that a folder is on, as Linux calls it; empty where that cannot be told."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return ""
    parents = {str(parent) for parent in (folder.resolve(), *folder.resolve().parents)}
    matching = [(len(mount), kind) for mount, kind in mounts if mount in parents]
    return max(matching)[1] if matching else ""
