"""Many experiments, one after the other or in several processes: data that they share are built once, a failure keeps
none of the others from running, and Ctrl-C lets each finish the round it is in."""

from __future__ import annotations

import fcntl
import math
import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

from graft.data import cards
from graft.data.federation import FederationData
from graft.data.sources import Opened, open_data
from graft.engines.threads import cores
from graft.errors import GraftError, InputError, RunError
from graft.experiments.build import build_federation
from graft.experiments.callbacks import Callbacks
from graft.experiments.experiment import Experiment, data_settings
from graft.experiments.experiment_files import experiment_text
from graft.experiments.free_folder import EXPERIMENT
from graft.experiments.given import Given
from graft.experiments.result import Result
from graft.experiments.run import resume, run_experiment
from graft.experiments.run_directory import RunDirectory
from graft.files import PART, checksum, explained, read_text, sync_folder
from graft.options import check_jobs

GPU_JOBS = 6  # processes that share one GPU: a federation of this size leaves most of it idle
RESULT = "result.json"
LONGEST_NAME = 120  # characters of a file name; file systems allow 255 bytes

Message = dict[str, Any]  # what is told of a run that is over: its name and path, a score or an error, seconds
Report = Callable[[Message], None]


@dataclass(frozen=True)
class Order:
    """A run that somebody wants: plain values, for they are sent to other processes, and perhaps objects."""

    name: str  # for people
    path: str  # the file or folder that gets the result
    experiment: dict[str, Any]  # everything resolved
    data: str  # orders that share it share their data
    given: Given = field(default_factory=Given)  # objects that stand in for names


@dataclass(frozen=True)
class Outcome:
    """How a call went; the results themselves are on disk."""

    ran: int = 0
    skipped: int = 0  # finished earlier
    stopped: bool = False  # by Ctrl-C
    failures: dict[str, str] = field(default_factory=dict)  # name of a run -> one sentence


Federations = dict[str, FederationData | Exception]  # of the latest data, or why they cannot be built
Check = Callable[[dict[str, Any]], None]  # a callback of each round, which ends the run where somebody wants it to stop
Perform = Callable[[Order, Federations, Check], Message]  # runs an order, stores the result and says what came of it


class Workers(Protocol):
    """Where chunks of orders are run: processes here, or the workers of a cluster."""

    @property
    def count(self) -> int:
        """Returns how many orders are run at the same time."""
        ...

    def run(self, chunks: Sequence[list[Order]], perform: Perform, report: Report) -> None:
        """Runs all orders; Ctrl-C lets each that is under way finish its round."""
        ...


def run_orders(
    orders: Sequence[Order],
    perform: Perform,
    *,
    jobs: int | None = None,
    device: str = "cpu",
    report: Report | None = None,
    workers: Workers | None = None,
) -> Outcome:
    """Runs all orders; whatever one of them fails of, the others run.

    With several jobs `perform` is called in other processes, so it is a function of a module.
    """
    if workers is None:
        workers = Processes(check_jobs(jobs) or default_jobs(device))
    paths = {order.path: order.name for order in orders}
    failures: dict[str, str] = {}
    finished: set[str] = set()
    stopped = False

    def receive(message: Message) -> None:
        finished.add(message["path"])
        if "error" in message:
            failures[paths[message["path"]]] = message["error"]
        if report is not None:
            report({"cell": paths[message["path"]], "total": len(orders), "done": len(finished), **message})

    try:
        workers.run(group_orders(orders, workers.count), perform, receive)
    except KeyboardInterrupt:
        stopped = True
    except BrokenProcessPool:
        reason = "Not run: a worker process died, perhaps for want of memory."
        failures |= {order.name: reason for order in orders if order.path not in finished}
    return Outcome(len(finished), 0, stopped, failures)


def default_jobs(device: str) -> int:
    return GPU_JOBS if device == "cuda" else cores()


def group_orders(orders: Sequence[Order], jobs: int) -> list[list[Order]]:
    """Returns chunks of orders for the workers: those on the same data stay together, unless workers would idle."""
    groups: dict[str, list[Order]] = {}
    for order in orders:
        groups.setdefault(order.data, []).append(order)
    pieces = 1 if jobs == 1 or not groups else math.ceil(2 * jobs / len(groups))
    return [chunk for group in groups.values() for start in range(pieces) if (chunk := group[start::pieces])]


def run_chunk(orders: Sequence[Order], perform: Perform, stop: Callable[[], bool] = lambda: False) -> Iterator[Message]:
    """Runs orders one after the other in this process, and tells of each."""
    federations: Federations = {}

    def check(record: dict[str, Any]) -> None:  # noqa: ARG001
        if stop():
            raise KeyboardInterrupt

    for order in orders:
        check({})
        start = time.perf_counter()
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()  # every run says how much it needed itself
        try:
            message = perform(order, federations, check)
        except Exception as error:  # whatever it is, the other orders can still run
            message = {"error": one_line(error)}
        yield {"path": order.path, **message, "seconds": time.perf_counter() - start}


def cached_federation(experiment: Experiment, federations: Federations, dataset: Any = None) -> FederationData:
    """Returns the federation of an experiment, of a dataset that was given as an object if there is one, built once for
    all that share it; raises why it cannot be built."""
    key = f"{data_settings(experiment)} {id(dataset)}"
    if key not in federations:
        federations.clear()
        try:
            data = open_once(experiment.dataset) if dataset is None and experiment.dataset else dataset
            federations[key] = build_federation(experiment, data)
        except Exception as error:
            federations[key] = error
    federation = federations[key]
    if isinstance(federation, Exception):
        raise federation
    return federation


@lru_cache(maxsize=1)
def open_once(dataset: str) -> Opened:
    return open_data(dataset)


def one_line(error: Exception) -> str:
    """Returns an error in one line."""
    text = " ".join(str(error).split()) or "no reason given"
    return text if isinstance(error, GraftError) else f"{type(error).__name__}: {text[:300]}"


# Worker processes.


@dataclass(frozen=True)
class Processes:
    """Processes on this machine; one is this process itself."""

    count: int

    def run(self, chunks: Sequence[list[Order]], perform: Perform, report: Report) -> None:
        if self.count > 1 and len(chunks) > 1:
            run_in_pool(chunks, perform, min(self.count, len(chunks)), report)
            return
        for chunk in chunks:
            for message in run_chunk(chunk, perform):
                report(message)


def run_in_pool(chunks: Sequence[list[Order]], perform: Perform, jobs: int, report: Report) -> None:
    """Runs chunks in several processes."""
    context = multiprocessing.get_context("spawn")  # a fork would break CUDA and PyTorch's threads
    stop, reports = context.Event(), context.SimpleQueue()
    threads = max(1, cores() // jobs)
    with ProcessPoolExecutor(jobs, context, prepare_worker, (stop, reports, threads)) as pool:
        try:
            with apart_from_main():
                pending = {pool.submit(run_in_worker, chunk, perform) for chunk in chunks}
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


@contextmanager
def apart_from_main() -> Iterator[None]:
    """Starts processes that do not import the script which starts them, so that it needs no guard against that."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


WORKER: dict[str, Any] = {}  # what a worker process was given when it started


def prepare_worker(stop: Any, reports: Any, threads: int) -> None:
    begin_worker(threads)
    WORKER.update(stop=stop, reports=reports)


def begin_worker(threads: int) -> None:
    """Makes this process one that works for its parent: it stops when that says so, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells when to stop
    torch.set_num_threads(threads)
    threading.Thread(target=exit_with_parent, daemon=True).start()


def exit_with_parent() -> None:
    """Ends a worker whose parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_in_worker(chunk: list[Order], perform: Perform) -> None:
    try:
        for message in run_chunk(chunk, perform, WORKER["stop"].is_set):
            WORKER["reports"].put(message)
    except KeyboardInterrupt:
        return  # the parent has been told too


# What is kept of a run.


def perform_run(
    order: Order,
    federations: Federations,
    check: Check,
    *,
    keep_models: bool = False,
    callbacks: Callbacks = (),
) -> Message:
    """Runs an order and keeps its record in a folder: that of any run with its models, or only what can be compared."""
    experiment, folder, given = Experiment(**order.experiment), Path(order.path), order.given
    hear = [check, *callbacks]
    if keep_models and can_go_on(folder, experiment):
        result = resume(folder, method=given.method, dataset=given.dataset, models=given.models, callbacks=hear)
    else:
        federation = cached_federation(experiment, federations, given.dataset)
        given = replace(given, federation=federation)
        out = folder if keep_models else None
        result = run_experiment(experiment, out, overwrite=keep_models, callbacks=hear, given=given)
    if not result.finished:
        raise KeyboardInterrupt
    if not keep_models:
        write_record(folder, result, federation)
    metric = result.summary.get("metric", "accuracy")
    scores = result.accuracy if metric == "accuracy" else result.metrics[metric]
    return {"test": scores["test"], "metric": metric}


def can_go_on(folder: Path, experiment: Experiment) -> bool:
    """Returns whether a folder holds this experiment, begun and not finished."""
    try:
        return read_text(folder / EXPERIMENT) == experiment_text(experiment) and not (folder / RESULT).exists()
    except (OSError, ValueError):
        return False


def write_record(folder: Path, result: Result, federation: FederationData) -> None:
    """Writes the record of a run without its models, whole or not at all."""
    with replaced_folder(folder) as part:
        directory = RunDirectory(part)
        directory.begin(experiment_text(Experiment(**result.summary["experiment"])))
        cards.save(federation.card, (federation.clean or federation).membership, directory.partition)
        for record in result.rounds:
            directory.append_round(record)
        directory.write_result(result.summary)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Gives an empty folder that takes the place of another when all is written into it."""
    part = folder.with_name(folder.name + PART)
    with explained(f"{folder} cannot be written to", RunError):
        if part.exists():
            shutil.rmtree(part)
        part.mkdir(parents=True)
        yield part
        if folder.exists():
            shutil.rmtree(folder)  # of an earlier version, or damaged
        part.rename(folder)
        sync_folder(folder.parent)


# Folders of many results.


@contextmanager
def exclusive(out: Path, command: str) -> Iterator[None]:
    """Locks a folder for one process at a time; the lock ends with the process."""
    lock = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise InputError(f"Another `{command}` works in {out}; wait for it, or choose another --out.") from None
    except OSError:  # some network drives cannot lock
        pass
    try:
        yield
    finally:
        os.close(lock)


def file_name(text: str) -> str:
    """Returns a text as a file name that every file system accepts."""
    name = re.sub(r"[^A-Za-z0-9.=_-]+", "_", text)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}-{checksum(name)[:8]}"
