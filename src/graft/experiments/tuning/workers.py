"""Trials one after the other in this process, or several at a time in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from graft.engines.threads import choose_threads, cores, read_cpu_usage, use_threads
from graft.experiments.many_runs import apart_from_main, begin_worker
from graft.experiments.tuning.trial import HiddenTests, TrialOrder, TrialOutcome, run_trial

Hears = Callable[[TrialOrder, int, float], bool]  # of a score after so many rounds; says whether the trial ends there
Ends = Callable[[TrialOrder, TrialOutcome], None]

DIED = "Its process died, perhaps for want of memory."


def run_trials(orders: Iterator[TrialOrder], hears: Hears, ends: Ends, jobs: int) -> None:
    """Runs trials as they are asked for; with several jobs, in so many processes."""
    if jobs > 1:
        run_in_processes(orders, hears, ends, jobs)
        return
    data = HiddenTests()
    with use_threads(choose_threads(0, read_cpu_usage())):
        for order in orders:
            ends(order, run_trial(order, data, partial(hears, order)))


@dataclass(frozen=True)
class Worker:
    """A process that runs trials, and the line to it."""

    process: Any
    line: Connection[Any, Any]

    def stop(self) -> None:
        """Ends it at once; what it was at is lost."""
        self.process.terminate()
        self.process.join()
        self.line.close()


def run_in_processes(orders: Iterator[TrialOrder], hears: Hears, ends: Ends, jobs: int) -> None:
    idle: list[Worker] = []
    busy: dict[Connection[Any, Any], tuple[Worker, TrialOrder]] = {}
    try:
        while True:
            while len(busy) < jobs and (order := next(orders, None)) is not None:
                worker = idle.pop() if idle else start_worker(max(1, cores() // jobs))
                worker.line.send(order)
                busy[worker.line] = worker, order
            if not busy:
                return
            for line in wait(list(busy)):
                worker, order = busy[line]  # type: ignore[index]  # it is one of those that were waited for
                outcome = answer(worker, partial(hears, order))
                if outcome is not None:
                    del busy[worker.line]
                    if outcome.reason == DIED:
                        worker.stop()
                    else:
                        idle.append(worker)
                    ends(order, outcome)
    finally:
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.stop()


def answer(worker: Worker, prunes: Callable[[int, float], bool]) -> TrialOutcome | None:
    """Takes what a worker says: a score, which is answered, or the outcome of its trial, which is returned."""
    try:
        message = worker.line.recv()
        if isinstance(message, TrialOutcome):
            return message
        worker.line.send(prunes(*message))
    except (EOFError, OSError):
        return TrialOutcome("failed", None, 0, 0.0, DIED)
    return None


def start_worker(threads: int) -> Worker:
    context = multiprocessing.get_context("spawn")  # a fork would break CUDA and PyTorch's threads
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, threads))
    with apart_from_main():
        process.start()
    there.close()
    return Worker(process, here)


def work(line: Connection[Any, Any], threads: int) -> None:
    """Runs the trials that come along a line, in a process of its own."""
    begin_worker(threads)
    data = HiddenTests()

    def prunes(rounds: int, score: float) -> bool:
        line.send((rounds, score))
        ended: bool = line.recv()
        return ended

    while True:
        line.send(run_trial(line.recv(), data, prunes))
