"""What all trackers have in common: what they are told of a run, and how they find it again when it is resumed."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import graft
from graft.errors import GraftWarning, InputError, RunError
from graft.experiments.callbacks import Callback, Record, RunStart
from graft.experiments.identity import experiment_hash
from graft.federation.metric_names import parse_metrics
from graft.files import parse_json, read_text, write_text

if TYPE_CHECKING:
    from graft.experiments.result import Result

FILE = "trackers.json"  # in a run directory: what each tracker needs to go on with the same run
MOST_CLIENTS = 32  # whose scores are told one by one
WAYS = ("up", "down", "peer")
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"

Kept = dict[str, Any]  # what a tracker needs to find a run again
Numbers = dict[str, float]


class Tracker(Callback):
    """Tells a package of runs, one after the other: parameters, metrics by round, the summary, and how each ended."""

    name: ClassVar[str]  # of the extra, and on the command line
    package: ClassVar[str]  # that must be installed

    def __init__(self, destination: str | Path | None = None) -> None:
        if find_spec(self.package) is None:
            raise InputError(f"{self.name} is not installed: pip install 'graft-fgl[{self.name}]'.")
        self.destination = None if destination is None else str(destination)
        self._open = False
        self._told = 0  # the last round
        self._status = FAILED
        self._clients: Sequence[str | int] = ()
        self._metric = "accuracy"
        self._summary: Numbers = {}

    @property
    def text(self) -> str:
        """Returns the tracker as `graft run --track` takes it."""
        return self.name if self.destination is None else f"{self.name}:{self.destination}"

    # What a package has to do.

    def begin(self, start: RunStart, kept: Kept) -> Kept:
        """Opens a run, or goes on with the one that was kept; returns what to keep."""
        raise NotImplementedError

    def log(self, numbers: Numbers, step: int) -> None:
        """Puts numbers of a round on record."""
        raise NotImplementedError

    def end(self, summary: Numbers, status: str) -> None:
        """Closes the run: finished, stopped by somebody, or failed; a run that failed has no summary."""
        raise NotImplementedError

    # What a run tells.

    def on_start(self, start: RunStart) -> None:
        self._clients, self._metric = start.clients, parse_metrics(start.experiment.metric)[0]
        self._status, self._summary, self._told = FAILED, {}, 0
        kept = read_kept(start.directory) if start.directory else {}
        try:
            opened = self.begin(start, kept.get(self.text, {}))
        except (InputError, RunError):
            raise
        except Exception as error:  # whatever the package raises
            raise RunError(f"{self.name} cannot track this run: {first_line(error)}") from error
        self._open = True
        if start.directory:
            write_kept(start.directory, {**kept, self.text: opened})

    def on_round(self, record: Record) -> None:
        if record["round"] > self._told:  # rounds come again, with the same numbers, where a worker was lost
            self._told = record["round"]
            self._attempt(lambda: self.log(numbers_of(record, self._metric, self._clients), record["round"]))

    def on_end(self, result: Result) -> None:
        self._status = FINISHED if result.finished else STOPPED
        self._summary = summary_of(result.summary)

    def close(self) -> None:
        self._attempt(lambda: self.end(self._summary, self._status))
        self._open = False

    def _attempt(self, action: Callable[[], None]) -> None:
        """Tells the package something; where it fails, the run goes on without it, after one warning."""
        if not self._open:
            return
        try:
            action()
        except Exception as error:  # whatever the package raises
            self._open = False
            warnings.warn(
                f"{self.name} failed, and the run goes on without it: {first_line(error)}", GraftWarning, stacklevel=3
            )


def parameters_of(start: RunStart) -> dict[str, Any]:
    """Returns every field of the experiment by its name, a method's own as settings.mu, and the hash of all of them."""
    values = asdict(start.experiment)
    settings = values.pop("settings")
    own = {f"settings.{name}": value for name, value in settings.items()}
    return {**values, **own, "experiment_hash": experiment_hash({**values, "settings": settings})}


def links_of(start: RunStart) -> dict[str, str]:
    """Returns where the record of a run is, and which Graft made it."""
    folder = {} if start.directory is None else {"graft.directory": str(start.directory.resolve())}
    return {"graft.version": graft.__version__, **folder}


def run_name(start: RunStart) -> str:
    """Returns what a run is called: the method, the data, how many clients, and the seed."""
    experiment = start.experiment
    return f"{experiment.label}-{experiment.data_label}-{experiment.clients}-{experiment.seed}"


def numbers_of(record: Record, metric: str, clients: Sequence[str | int]) -> Numbers:
    """Returns the numbers of a round under the names that they are tracked by."""
    numbers = {"loss": record.get("loss"), "seconds": record.get("seconds")}
    numbers |= {f"bytes/{way}": record[f"{way}_bytes"] for way in WAYS}
    kinds = ("train", "validation", "test")
    numbers |= {f"accuracy/{name}": value for name, value in record.items() if name.startswith(kinds)}
    for name, scores in record.get("metrics", {}).items():
        numbers |= {f"{name}/{kind}": value for kind, value in scores.items() if kind != "per_client"}
    scores = record.get("metrics", {}).get(metric, record)
    if "per_client" in scores and len(clients) <= MOST_CLIENTS:
        scored = [clients[number] for number in record.get("scored", range(len(clients)))]
        for kind, values in scores["per_client"].items():
            numbers |= {
                f"clients/{client}/{kind}_{metric}": value for client, value in zip(scored, values, strict=False)
            }
    numbers |= {f"details/{name}": value for name, value in record.get("details", {}).items()}
    return finite(numbers)


def summary_of(summary: Mapping[str, Any]) -> Numbers:
    """Returns the numbers of result.json, by their paths: accuracy/test, seconds/total."""
    parts = ("accuracy", "metrics", "communication", "seconds")
    flat = {name: summary.get(name) for name in ("best_round", "rounds", "peak_memory_bytes")}
    for part in parts:
        flat |= flattened(summary.get(part, {}), part)
    return finite(flat)


def flattened(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Returns the values of nested dictionaries by their paths."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}/{name}"
        flat |= flattened(value, path) if isinstance(value, Mapping) else {path: value}
    return flat


def finite(values: Mapping[str, Any]) -> Numbers:
    """Returns those of some values that are finite numbers."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def first_line(error: Exception) -> str:
    """Returns the first line of an error, with its kind where it says little."""
    text = str(error).strip().split("\n")[0]
    return text if " " in text else f"{type(error).__name__} {text}".strip()


def read_kept(directory: Path) -> dict[str, Kept]:
    """Returns what trackers kept of a run, by their texts; nothing where the file is missing or damaged."""
    try:
        content = parse_json(read_text(directory / FILE))
    except (OSError, ValueError):
        return {}
    entries = content if isinstance(content, dict) else {}
    return {name: entry for name, entry in entries.items() if isinstance(entry, dict)}


def write_kept(directory: Path, kept: Mapping[str, Kept]) -> None:
    """Puts what trackers need to go on with a run into its directory."""
    write_text(directory / FILE, json.dumps(kept, indent=1) + "\n")
