"""Run a published study as a grid of experiments: in parallel, cell by cell on disk, and on from where it stopped."""

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
from graft.data.federation import Federation
from graft.data.graphs import Graph
from graft.data.perturbations import FIELDS as PERTURBATION
from graft.engines.threads import cores
from graft.errors import GraftError, InputError
from graft.experiments.experiment import Experiment, close_to, make_experiment, make_method
from graft.experiments.build import build_federation
from graft.experiments.run import Given, Result, run_experiment
from graft.experiments.studies import PORTRAITS, STUDIES
from graft.experiments.studies.study import Study
from graft.files import write_text
from graft.methods import METHODS

GPU_JOBS = 6  # processes that share one GPU: a federation of this size leaves most of it idle
NOT_COMPARED = ("device", "threads", "checkpoint_every")  # fields that say how a cell is computed, not what
DATA_FIELDS = ("dataset", "clients", "partition", "split", "features", "seed", *PERTURBATION)  # what data depend on

Report = Callable[[dict[str, Any]], None]  # told of every cell that is done: its key, accuracy or error, and seconds


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
        """What is stored for exactly this experiment: a result, a failure, or nothing."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            same = compared(filled(stored["experiment"])) == compared(self.experiment)
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
    """Check what was asked for, down to every single experiment, before anything runs."""
    study = find_study(name)
    place = Path(out) if out is not None else Path("reproductions") / name
    chosen_datasets = choose("dataset", datasets, study.datasets, (*study.datasets, *study.on_request), name)
    chosen_clients = choose("number of clients", clients, study.clients, study.clients, name)
    chosen_rows = choose("method", methods, tuple(study.rows), tuple(study.rows), name)
    if not seeds:
        raise InputError("A study needs at least one seed.")
    extra = {key: value for key, value in (("rounds", rounds), ("device", device)) if value is not None}
    cells, where = [], ""
    for dataset in chosen_datasets:
        for count in chosen_clients:
            for seed in dict.fromkeys(seeds):
                for row in chosen_rows:
                    experiment = make_experiment({**study.values(row, dataset, count, seed), **extra})
                    where = experiment.torch_device().type
                    values = asdict(experiment)
                    values["settings"] = asdict(make_method(experiment.method, experiment.settings, experiment.plug))
                    path = place / "runs" / f"{plain(dataset)}-{count}" / f"{plain(row)}-{seed}.json"
                    cells.append(Cell(row, dataset, count, seed, values, path))
    kept = tuple(dict.fromkeys(seeds))
    return Plan(name, study, chosen_datasets, chosen_clients, chosen_rows, kept, place, cells, where)


def find_study(name: str) -> Study:
    if name not in STUDIES:
        known = [*STUDIES, *PORTRAITS]
        raise InputError(f"There is no study '{name}'{close_to(name, known)}: there are {', '.join(known)}.")
    return STUDIES[name]


Item = TypeVar("Item", str, int)


def choose(
    what: str, asked: Sequence[Item] | None, usual: tuple[Item, ...], possible: tuple[Item, ...], name: str
) -> tuple[Item, ...]:
    """What was asked for, in the order of the study."""
    if asked is None:
        return usual
    for item in asked:
        if item not in possible:
            raise InputError(f"Study '{name}' has no {what} '{item}': it has {', '.join(map(str, possible))}.")
    if not asked:
        raise InputError(f"No {what} is left to run: study '{name}' has {', '.join(map(str, possible))}.")
    return tuple(item for item in possible if item in asked)


def parse_seeds(text: str) -> tuple[int, ...]:
    """'5' means the seeds 0 to 4; a list such as '0,3' or '7,' means these."""
    parts = [part.strip() for part in text.split(",")]
    try:
        chosen = [int(part) for part in parts if part]
    except ValueError:
        raise InputError(f"--seeds is '{text}'; it should be a number, as 5, or a list, as 0,1,7.") from None
    seeds = tuple(range(chosen[0])) if len(parts) == 1 and chosen else tuple(chosen)
    if not seeds or min(seeds) < 0:
        raise InputError(f"--seeds is '{text}'; a study needs at least one seed, and none below 0.")
    return seeds


def plain(text: str) -> str:
    """A name that every file system takes."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "_", text)


def compared(experiment: Mapping[str, Any]) -> Any:
    """The part of a description that decides a result, as JSON would give it back."""
    return json.loads(json.dumps({key: value for key, value in experiment.items() if key not in NOT_COMPARED}))


def filled(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """A stored description with the defaults of fields that are younger than it."""
    method = METHODS[experiment["method"]]
    return {**asdict(Experiment()), **experiment, "settings": {**asdict(method()), **experiment["settings"]}}


# Running the cells that are missing.


def reproduce(plan: Plan, jobs: int | None = None, report: Report | None = None) -> Outcome:
    """Run all cells of a plan that have no result yet; a failed cell does not keep the others from running."""
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs is {jobs}; it must be at least 1.")
    if plan.out.is_dir() and any(plan.out.iterdir()) and not (plan.out / "runs").is_dir():
        raise InputError(f"{plan.out} holds something else than a reproduction; choose another --out.")
    try:
        (plan.out / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{plan.out} cannot be written to: {error.strerror}.") from error
    with alone(plan.out):
        missing = [cell for cell in plan.cells if not cell.done]
        names = {str(cell.path): cell.name for cell in missing}
        failures: dict[str, str] = {}
        told: set[str] = set()

        def hear(message: dict[str, Any]) -> None:
            told.add(message["path"])
            if "error" in message:
                failures[names[message["path"]]] = message["error"]
            if report is not None:
                report({"cell": names[message["path"]], "total": len(missing), "done": len(told), **message})

        wanted = jobs or default_jobs(plan.device)
        chunks = share_out(missing, wanted)
        stopped = False
        try:
            if wanted == 1 or len(chunks) < 2:
                for chunk in chunks:
                    run_cells(chunk, hear)
            else:
                run_in_pool(chunks, min(wanted, len(chunks)), hear)
        except KeyboardInterrupt:
            stopped = True
        except BrokenProcessPool:
            lost = [cell for cell in missing if str(cell.path) not in told and not cell.done]
            failures |= {cell.name: "Not run: a worker process died, perhaps for want of memory." for cell in lost}
        return Outcome(len(told), len(plan.cells) - len(missing), stopped, failures)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """One process at a time works in a folder; the lock goes when the process does."""
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


def share_out(cells: Sequence[Cell], jobs: int) -> list[list[dict[str, Any]]]:
    """Cells of one (dataset, clients, seed) stay together, so that data is loaded once, unless workers would idle."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        order = {"path": str(cell.path), "experiment": cell.experiment}
        groups.setdefault((cell.dataset, cell.clients, cell.seed), []).append(order)
    pieces = 1 if jobs == 1 or not groups else math.ceil(2 * jobs / len(groups))
    return [part for group in groups.values() for first in range(pieces) if (part := group[first::pieces])]


def run_cells(orders: Sequence[dict[str, Any]], report: Report, stop: Callable[[], bool] = lambda: False) -> None:
    """Run cells one after the other and write each result whole or not at all."""
    known: dict[tuple[Any, ...], Federation | Exception] = {}

    def check(record: dict[str, Any]) -> None:  # noqa: ARG001
        if stop():
            raise KeyboardInterrupt

    for order in orders:
        check({})
        begun = time.perf_counter()
        message: dict[str, Any] = {"path": order["path"]}
        stored: dict[str, Any] = {"experiment": order["experiment"]}
        try:
            experiment = make_experiment(order["experiment"])
            shared = federation_of(experiment, known)
            if experiment.torch_device().type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            result = run_experiment(experiment, progress=check, given=Given(federation=shared))
            if not result.finished:
                raise KeyboardInterrupt
            stored |= {"partition": shared.hash, "summary": result.summary, "curve": curve_of(result)}
            message["test"] = result.accuracy["test"]
        except Exception as error:  # whatever it is, the other cells can still run
            stored["error"] = message["error"] = sentence(error)
        path = Path(order["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(stored, indent=1) + "\n")
        report({**message, "seconds": time.perf_counter() - begun})


def curve_of(result: Result) -> dict[str, list[float]]:
    """Test accuracy as the rounds go by, for a picture; nothing is chosen by it."""
    scored = [record for record in result.rounds if record.get("test") is not None]
    return {
        "round": [record["round"] for record in scored],
        "test": [round(record["test"], 5) for record in scored],
    }


def federation_of(experiment: Experiment, known: dict[tuple[Any, ...], Federation | Exception]) -> Federation:
    """The federation of an experiment, built once for all that share it; so is the reason why it cannot be built."""
    key = tuple(getattr(experiment, name) for name in DATA_FIELDS)
    if key not in known:
        known.clear()
        try:
            known[key] = build_federation(experiment, graph_of(experiment.dataset))
        except Exception as error:
            known[key] = error
    found = known[key]
    if isinstance(found, Exception):
        raise found
    return found


@lru_cache(maxsize=1)
def graph_of(dataset: str) -> Graph:
    return datasets.load(dataset)


def sentence(error: Exception) -> str:
    """An error in one line."""
    text = " ".join(str(error).split()) or "no reason given"
    return text if isinstance(error, GraftError) else f"{type(error).__name__}: {text[:300]}"


# Worker processes.


def run_in_pool(chunks: Sequence[list[dict[str, Any]]], jobs: int, report: Report) -> None:
    """Run chunks in several processes; Ctrl-C lets each finish the round it is in."""
    context = multiprocessing.get_context("spawn")  # a fork would break CUDA and PyTorch's threads
    stop, reports = context.Event(), context.SimpleQueue()
    threads = max(1, cores() // jobs)
    with ProcessPoolExecutor(jobs, context, prepare_worker, (stop, reports, threads)) as pool:
        try:
            waiting = {pool.submit(work, chunk) for chunk in chunks}
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
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
    threading.Thread(target=follow_parent, daemon=True).start()


def follow_parent() -> None:
    """A worker whose parent was killed has nobody to work for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def work(chunk: list[dict[str, Any]]) -> None:
    try:
        run_cells(chunk, WORKER["reports"].put, WORKER["stop"].is_set)
    except KeyboardInterrupt:
        return  # the parent has been told too
