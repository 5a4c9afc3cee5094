"""Finished runs as they lie on the disk, of every kind of folder that Graft writes. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from graft.errors import InputError
from graft.experiments.experiment import DATA_FIELDS, Experiment
from graft.experiments.experiment_files import read_experiment
from graft.experiments.identity import comparable
from graft.experiments.record_files import RoundLog, read_result
from graft.federation.metric_names import METRICS
from graft.files import canonical, parse_json, read_text

DEFAULTS = asdict(Experiment())  # of fields that were added since a run ended
WHERE = (*DATA_FIELDS, "seed")  # the fields that say what a run was trained and scored on


def no_rounds() -> list[dict[str, Any]]:
    return []


@dataclass(frozen=True)
class FinishedRun:
    """A run that ended: its whole experiment, and what result.json says of it."""

    experiment: dict[str, Any]  # every field, resolved
    summary: dict[str, Any]
    path: Path | None = None  # its folder or file
    read_rounds: Callable[[], list[dict[str, Any]]] = field(default=no_rounds, repr=False, compare=False)

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """Returns the records of all rounds; of a cell of a study, only the test accuracy is left of them."""
        return self.read_rounds()

    @property
    def seed(self) -> int:
        return int(self.experiment["seed"])

    @property
    def name(self) -> str:
        """Returns where the run lies, or else what it is."""
        return str(self.path) if self.path else f"{self.summary['method']}, seed {self.seed}"

    @property
    def metric(self) -> str:
        """Returns the metric that picked the best round."""
        return str(self.summary.get("metric", "accuracy"))

    @cached_property
    def data_key(self) -> str:
        """Returns all that decides about the data but the seed, as a text: runs that share it are of one column."""
        chosen = {name: value for name, value in comparable(self.experiment).items() if name in WHERE}
        return canonical([{**chosen, "seed": None}, self.hashes.get("graph")])

    @cached_property
    def row_key(self) -> str:
        """Returns all else that decides about the result, as a text: runs that share it are of one row."""
        chosen = {name: value for name, value in comparable(self.experiment).items() if name not in WHERE}
        return canonical([chosen, self.hashes.get("code")])

    @property
    def hashes(self) -> dict[str, str]:
        hashes: dict[str, str] = self.summary.get("hashes", {})
        return hashes

    def score(self, metric: str | None = None, name: str = "test") -> float | None:
        """Returns a score at the best round, as test, validation or test_global; None where there is none."""
        metric = metric or self.metric
        scores = self.summary.get("metrics", {}).get(metric)
        if scores is None or (metric == "accuracy" and name not in scores):
            scores = self.summary["accuracy"] if metric == "accuracy" else {}
        value: float | None = scores.get(name)
        return value


def find_runs(paths: Iterable[Path]) -> list[FinishedRun]:
    """Returns the finished runs in some folders, of studies and sweeps too, each once; none at all is refused."""
    paths = list(paths)
    runs: dict[Path, FinishedRun] = {}
    for path in paths:
        if not path.exists():
            raise InputError(f"There is no folder {path}.")
        for file in sorted(path.rglob("result.json")):
            runs.setdefault(file.resolve(), read_run(file.parent))
        for file in sorted(path.rglob("runs/*/*.json")) + sorted(path.glob("*.json")):
            run = read_cell(file) if file.name != "result.json" else None
            if run is not None:
                runs.setdefault(file.resolve(), run)
    if not runs:
        raise InputError(f"There is no finished run in {', '.join(map(str, paths))}.")
    return list(runs.values())


def read_run(folder: Path) -> FinishedRun:
    """Returns the run of a run directory."""
    log = RoundLog(folder / "rounds.jsonl", folder / "experiment.toml")
    rounds = log.read()
    summary = read_result(folder / "result.json", rounds, log.checksum)
    experiment = summary.get("experiment") or read_experiment(folder / "experiment.toml")
    return FinishedRun({**DEFAULTS, **experiment}, summary, folder, lambda: rounds)


def read_cell(file: Path) -> FinishedRun | None:
    """Returns the run of a cell of a study; None where the file is something else, or of a run that failed."""
    try:
        stored = parse_json(read_text(file))
        experiment, summary = stored["experiment"], stored["summary"]
        curve = stored.get("curve") or {"round": [], "test": []}
        hashes = {"partition": stored["partition"], **summary.get("hashes", {})}
        int(experiment["seed"])
        summary["accuracy"]["test"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    rounds = [{"round": n, "test": test} for n, test in zip(curve["round"], curve["test"], strict=False)]
    return FinishedRun({**DEFAULTS, **experiment}, {**summary, "hashes": hashes}, file, lambda: rounds)


def common_metric(runs: Iterable[FinishedRun]) -> str:
    """Returns the metric that runs are compared by: the one that picked their best rounds, if it is one."""
    metrics = {run.metric for run in runs}
    chosen = metrics.pop() if len(metrics) == 1 else "accuracy"
    return chosen if chosen in METRICS else "accuracy"
