"""Run a published study as a grid of experiments: in parallel, cell by cell on disk, resumed where it stopped."""

from __future__ import annotations

import fcntl
import json
import math
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from graft.data import datasets
from graft.data.federation import FederationData
from graft.data.graphs import Graph
from graft.engines.threads import cores
from graft.errors import GraftError, InputError
from graft.experiments.build import build_federation
from graft.experiments.experiment import Experiment, data_settings, make_experiment
from graft.experiments.given import Given
from graft.experiments.identity import comparable
from graft.experiments.make_method import make_method
from graft.experiments.result import Result
from graft.experiments.run import run_experiment
from graft.experiments.studies import PORTRAITS, STUDIES
from graft.experiments.studies.study import Study
from graft.files import write_text
from graft.methods import METHODS
from graft.registry import close_to

GPU_JOBS = 6  # processes that share one GPU: a federation of this size leaves most of it idle

Report = Callable[[dict[str, Any]], None]  # called with every cell that is done: its path, accuracy or error, time


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


@dataclass(frozen=True)
class Outcome:
    """How a call went; the results themselves are on disk."""

    ran: int = 0
    skipped: int = 0  # finished earlier
    stopped: bool = False  # by Ctrl-C
    failures: dict[str, str] = field(default_factory=dict)  # cell -> one sentence


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
) -> Plan:
    """Returns the plan of a study or a part of it, every experiment of it checked before anything runs."""
    study = find_study(name)
    folder = Path(out) if out is not None else Path("reproductions") / name
    chosen_datasets = choose("dataset", datasets, study.datasets, (*study.datasets, *study.on_request), name)
    chosen_clients = choose("number of clients", clients, study.clients, study.clients, name)
    chosen_rows = choose("method", methods, tuple(study.rows), tuple(study.rows), name)
    if not seeds:
        raise InputError("A study needs at least one seed.")
    extra = {key: value for key, value in (("rounds", rounds), ("device", device)) if value is not None}
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


def parse_seeds(text: str) -> tuple[int, ...]:
    """Returns the seeds of a text: '5' means 0 to 4; a list such as '0,3' or '7,' means these."""
    parts = [part.strip() for part in text.split(",")]
    try:
        numbers = [int(part) for part in parts if part]
    except ValueError:
        raise InputError(f"--seeds is '{text}'; it should be a number, as 5, or a list, as 0,1,7.") from None
    seeds = tuple(range(numbers[0])) if len(parts) == 1 and numbers else tuple(numbers)
    if not seeds or min(seeds) < 0:
        raise InputError(f"--seeds is '{text}'; a study needs at least one seed, and none below 0.")
    return seeds


def file_name(text: str) -> str:
    """Returns a text as a file name that every file system accepts."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "_", text)


def with_defaults(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a stored experiment with the defaults of fields that were added since."""
    method = METHODS[experiment["method"]]
    return {**asdict(Experiment()), **experiment, "settings": {**asdict(method()), **experiment["settings"]}}


# Running the cells that are missing.


def reproduce(plan: Plan, jobs: int | None = None, report: Report | None = None) -> Outcome:
    """Runs all cells of a plan that have no result yet; a failed cell does not keep the others from running."""
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs is {jobs}; it must be at least 1.")
    if plan.out.is_dir() and any(plan.out.iterdir()) and not (plan.out / "runs").is_dir():
        raise InputError(f"{plan.out} holds something else than a reproduction; choose another --out.")
    try:
        (plan.out / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{plan.out} cannot be written to: {error.strerror}.") from error
    with exclusive(plan.out):
        missing = [cell for cell in plan.cells if not cell.done]
        names = {str(cell.path): cell.name for cell in missing}
        failures: dict[str, str] = {}
        finished: set[str] = set()

        def receive(message: dict[str, Any]) -> None:
            finished.add(message["path"])
            if "error" in message:
                failures[names[message["path"]]] = message["error"]
            if report is not None:
                report({"cell": names[message["path"]], "total": len(missing), "done": len(finished), **message})

        workers = jobs or default_jobs(plan.device)
        chunks = group_cells(missing, workers)
        stopped = False
        try:
            if workers == 1 or len(chunks) < 2:
                for chunk in chunks:
                    run_cells(chunk, receive)
            else:
                run_in_pool(chunks, min(workers, len(chunks)), receive)
        except KeyboardInterrupt:
            stopped = True
        except BrokenProcessPool:
            lost = [cell for cell in missing if str(cell.path) not in finished and not cell.done]
            failures |= {cell.name: "Not run: a worker process died, perhaps for want of memory." for cell in lost}
        return Outcome(len(finished), len(plan.cells) - len(missing), stopped, failures)


@contextmanager
def exclusive(out: Path) -> Iterator[None]:
    """Locks a folder for one process at a time; the lock ends with the process."""
    lock = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise InputError(f"Another `graft reproduce` works in {out}; wait for it, or choose another --out.") from None
    except OSError:  # some network drives cannot lock
        pass
    try:
        yield
    finally:
        os.close(lock)


def default_jobs(device: str) -> int:
    return GPU_JOBS if device == "cuda" else cores()


def group_cells(cells: Sequence[Cell], jobs: int) -> list[list[dict[str, Any]]]:
    """Chunks of cells for the workers: those of one (dataset, clients, seed) stay together unless workers would idle.

    Their data is then loaded once.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        order = {"path": str(cell.path), "experiment": cell.experiment}
        groups.setdefault((cell.dataset, cell.clients, cell.seed), []).append(order)
    pieces = 1 if jobs == 1 or not groups else math.ceil(2 * jobs / len(groups))
    return [chunk for group in groups.values() for start in range(pieces) if (chunk := group[start::pieces])]


def run_cells(orders: Sequence[dict[str, Any]], report: Report, stop: Callable[[], bool] = lambda: False) -> None:
    """Runs cells one after the other and writes each result whole or not at all."""
    federations: Federations = {}

    def check(record: dict[str, Any]) -> None:  # noqa: ARG001
        if stop():
            raise KeyboardInterrupt

    for order in orders:
        check({})
        start = time.perf_counter()
        message: dict[str, Any] = {"path": order["path"]}
        stored: dict[str, Any] = {"experiment": order["experiment"]}
        try:
            experiment = make_experiment(order["experiment"])
            federation = cached_federation(experiment, federations)
            if experiment.torch_device().type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            result = run_experiment(experiment, callbacks=[check], given=Given(federation=federation))
            if not result.finished:
                raise KeyboardInterrupt
            stored |= {"partition": federation.hash, "summary": result.summary, "curve": accuracy_curve(result)}
            message["test"] = result.accuracy["test"]
        except Exception as error:  # whatever it is, the other cells can still run
            stored["error"] = message["error"] = one_line(error)
        path = Path(order["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(stored, indent=1) + "\n")
        report({**message, "seconds": time.perf_counter() - start})


def accuracy_curve(result: Result) -> dict[str, list[float]]:
    """Test accuracy by round, for a figure; nothing is selected by it."""
    scored = [record for record in result.rounds if record.get("test") is not None]
    return {
        "round": [record["round"] for record in scored],
        "test": [round(record["test"], 5) for record in scored],
    }


Federations = dict[str, FederationData | Exception]  # of the latest data, or why they cannot be built


def cached_federation(experiment: Experiment, federations: Federations) -> FederationData:
    """Returns the federation of an experiment, built once for all that share it; the error, where it cannot be
    built."""
    key = data_settings(experiment)
    if key not in federations:
        federations.clear()
        try:
            graph = load_graph(experiment.dataset) if experiment.dataset else None
            federations[key] = build_federation(experiment, graph)
        except Exception as error:
            federations[key] = error
    federation = federations[key]
    if isinstance(federation, Exception):
        raise federation
    return federation


@lru_cache(maxsize=1)
def load_graph(dataset: str) -> Graph:
    return datasets.load(dataset)


def one_line(error: Exception) -> str:
    """Returns an error in one line."""
    text = " ".join(str(error).split()) or "no reason given"
    return text if isinstance(error, GraftError) else f"{type(error).__name__}: {text[:300]}"


# Worker processes.


def run_in_pool(chunks: Sequence[list[dict[str, Any]]], jobs: int, report: Report) -> None:
    """Runs chunks in several processes; Ctrl-C lets each finish the round it is in."""
    context = multiprocessing.get_context("spawn")  # a fork would break CUDA and PyTorch's threads
    stop, reports = context.Event(), context.SimpleQueue()
    threads = max(1, cores() // jobs)
    with ProcessPoolExecutor(jobs, context, prepare_worker, (stop, reports, threads)) as pool:
        try:
            pending = {pool.submit(run_chunk, chunk) for chunk in chunks}
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                while not reports.empty():
                    report(reports.get())
                for future in done:
                    future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


WORKER: dict[str, Any] = {}  # what a worker process was given when it started


def prepare_worker(stop: Any, reports: Any, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells when to stop
    torch.set_num_threads(threads)
    WORKER.update(stop=stop, reports=reports)
    threading.Thread(target=exit_with_parent, daemon=True).start()


def exit_with_parent() -> None:
    """End a worker whose parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_chunk(chunk: list[dict[str, Any]]) -> None:
    try:
        run_cells(chunk, WORKER["reports"].put, WORKER["stop"].is_set)
    except KeyboardInterrupt:
        return  # the parent has been told too
