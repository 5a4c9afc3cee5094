"""Run a published study as a grid of experiments: in parallel, cell by cell on disk, resumed where it stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from graft.errors import InputError
from graft.experiments.cluster_runs import run_missing
from graft.experiments.experiment import Experiment, make_experiment
from graft.experiments.given import Given
from graft.experiments.identity import comparable
from graft.experiments.make_method import make_method
from graft.experiments.many_runs import (
    Check,
    Federations,
    Message,
    Order,
    Outcome,
    Report,
    cached_federation,
    exclusive,
    file_name,
    one_line,
)
from graft.experiments.progress_log import logged
from graft.experiments.result import Result
from graft.experiments.run import run_experiment
from graft.experiments.run_cluster import RunCluster
from graft.experiments.studies import PORTRAITS, STUDIES
from graft.experiments.studies.study import Study
from graft.files import write_text
from graft.methods import METHODS
from graft.options import check_jobs
from graft.registry import close_to


@dataclass(frozen=True)
class Cell:
    """One experiment of a study and the file that holds its result."""

    row: str
    dataset: str
    clients: int
    seed: int
    experiment: dict[str, Any]  # everything resolved
    path: Path

    @property
    def column(self) -> tuple[str, int]:
        return self.dataset, self.clients

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.clients} {self.row} seed {self.seed}"

    def read(self) -> dict[str, Any] | None:
        """Returns what is stored for exactly this experiment: a result, a failure, or nothing."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            same = comparable(with_defaults(stored["experiment"])) == comparable(self.experiment)
            usable = "error" in stored or ("partition" in stored and "test" in stored["summary"]["accuracy"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return stored if same and usable else None

    @property
    def order(self) -> Order:
        """Returns what a worker needs to run it."""
        data = f"{self.dataset} {self.clients} {self.seed}"
        return Order(self.name, str(self.path), self.experiment, data)

    @property
    def done(self) -> bool:
        return "summary" in (self.read() or {})


@dataclass(frozen=True)
class Plan:
    """A study, or the part of it that was asked for."""

    name: str
    study: Study
    datasets: tuple[str, ...]
    clients: tuple[int, ...]
    rows: tuple[str, ...]
    seeds: tuple[int, ...]
    out: Path
    cells: list[Cell]
    device: str  # cpu or cuda

    @property
    def columns(self) -> list[tuple[str, int]]:
        return [(dataset, clients) for dataset in self.datasets for clients in self.clients]


def make_plan(
    name: str,
    out: str | Path | None = None,
    *,
    datasets: Sequence[str] | None = None,
    clients: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] = tuple(range(5)),
    rounds: int | None = None,
    device: str | None = None,
    engine: str | None = None,
) -> Plan:
    """Returns the plan of a study or a part of it, every experiment of it checked before anything runs."""
    study = find_study(name)
    folder = Path(out) if out is not None else Path("reproductions") / name
    chosen_datasets = choose("dataset", datasets, study.datasets, (*study.datasets, *study.on_request), name)
    chosen_clients = choose("number of clients", clients, study.clients, study.clients, name)
    chosen_rows = choose("method", methods, tuple(study.rows), tuple(study.rows), name)
    if not seeds:
        raise InputError("A study needs at least one seed.")
    own = {"rounds": rounds, "device": device, "engine": engine}
    extra = {key: value for key, value in own.items() if value is not None}
    seeds = tuple(dict.fromkeys(seeds))
    cells, device_type = [], ""
    for dataset in chosen_datasets:
        for count in chosen_clients:
            for seed in seeds:
                for row in chosen_rows:
                    experiment = make_experiment({**study.values(row, dataset, count, seed), **extra})
                    device_type = experiment.torch_device().type
                    values = asdict(experiment)
                    values["settings"] = asdict(make_method(experiment.method, experiment.settings, experiment.plug))
                    path = folder / "runs" / f"{file_name(dataset)}-{count}" / f"{file_name(row)}-{seed}.json"
                    cells.append(Cell(row, dataset, count, seed, values, path))
    return Plan(name, study, chosen_datasets, chosen_clients, chosen_rows, seeds, folder, cells, device_type)


def find_study(name: str) -> Study:
    if name not in STUDIES:
        names = [*STUDIES, *PORTRAITS]
        raise InputError(f"There is no study '{name}'{close_to(name, names)}: there are {', '.join(names)}.")
    return STUDIES[name]


Item = TypeVar("Item", str, int)


def choose(
    what: str, requested: Sequence[Item] | None, default: tuple[Item, ...], possible: tuple[Item, ...], name: str
) -> tuple[Item, ...]:
    """Returns the items that were asked for, in the order of the study, or its default."""
    if requested is None:
        return default
    for item in requested:
        if item not in possible:
            raise InputError(f"Study '{name}' has no {what} '{item}': it has {', '.join(map(str, possible))}.")
    if not requested:
        raise InputError(f"No {what} is left to run: study '{name}' has {', '.join(map(str, possible))}.")
    return tuple(item for item in possible if item in requested)


def with_defaults(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a stored experiment with the defaults of fields that were added since."""
    method = METHODS[experiment["method"]]
    return {**asdict(Experiment()), **experiment, "settings": {**asdict(method()), **experiment["settings"]}}


# Running the cells that are missing.


def reproduce(
    plan: Plan, jobs: int | None = None, report: Report | None = None, cluster: RunCluster | None = None
) -> Outcome:
    """Runs all cells of a plan that have no result yet, here or on a cluster; a failed cell does not keep the others
    from running."""
    check_jobs(jobs)
    if plan.out.is_dir() and any(plan.out.iterdir()) and not (plan.out / "runs").is_dir():
        raise InputError(f"{plan.out} holds something else than a reproduction; choose another --out.")
    try:
        (plan.out / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{plan.out} cannot be written to: {error.strerror}.") from error
    with exclusive(plan.out, "graft reproduce"):
        missing = [cell.order for cell in plan.cells if not cell.done]
        tell = logged(plan.out, len(plan.cells), report)
        outcome = run_missing(missing, run_cell, cluster, jobs=jobs, device=plan.device, report=tell)
    return replace(outcome, skipped=len(plan.cells) - len(missing))


def run_cell(order: Order, federations: Federations, check: Check) -> Message:
    """Runs a cell and writes its result, or why there is none, whole or not at all."""
    stored: dict[str, Any] = {"experiment": order.experiment}
    path = Path(order.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        experiment = make_experiment(order.experiment)
        federation = cached_federation(experiment, federations)
        result = run_experiment(experiment, callbacks=[check], given=Given(federation=federation))
        if not result.finished:
            raise KeyboardInterrupt
        stored |= {"partition": federation.hash, "summary": result.summary, "curve": accuracy_curve(result)}
    except Exception as error:
        write_text(path, json.dumps({**stored, "error": one_line(error)}, indent=1) + "\n")
        raise
    write_text(path, json.dumps(stored, indent=1) + "\n")
    return {"test": result.accuracy["test"]}


def accuracy_curve(result: Result) -> dict[str, list[float]]:
    """Returns test accuracy by round, of clients' own models and of what the server hands out, for a figure; nothing is
    selected by it."""
    scored = [record for record in result.rounds if record.get("test") is not None]
    return {
        "round": [record["round"] for record in scored],
        "test": [round(record["test"], 5) for record in scored],
        "test_served": [round(served(record), 5) for record in scored],
    }


def served(record: Mapping[str, Any]) -> float:
    """Returns the score of what clients are given after a round: the global model, or else a model of their own."""
    common = record.get("test_global")
    return float(record["test"] if common is None or "test_trained" in record else common)
