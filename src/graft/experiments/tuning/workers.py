"""Trials one after the other in this process, or several at a time: in processes of their own, or on a cluster."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar, Protocol, TypeVar

from graft.engines.threads import choose_threads, cores, read_cpu_usage, use_threads
from graft.experiments.many_runs import apart_from_main, begin_worker
from graft.experiments.tuning.trial import HiddenTests, TrialOrder, TrialOutcome, run_trial

Hears = Callable[[TrialOrder, int, float], bool]  # of a score after so many rounds; says whether the trial ends there
Ends = Callable[[TrialOrder, TrialOutcome], None]

DIED = "Its process died, perhaps for want of memory."


class Worker(Protocol):
    """Somebody elsewhere who is sent an order, tells of scores, each of which is answered, and then of the outcome."""

    def send(self, message: Any) -> None: ...

    def receive(self) -> Any:
        """Returns what was said, or raises an `EOFError` or `OSError` where nobody is there any more."""
        ...

    def close(self) -> None:
        """Ends the worker at once; what it was at is lost."""
        ...


AnyWorker = TypeVar("AnyWorker", bound=Worker)


class Crew(Protocol[AnyWorker]):
    """Workers of one kind."""

    retries: ClassVar[int]  # times that a trial is begun again whose worker has died

    def start(self) -> AnyWorker: ...

    def wait(self, workers: Sequence[AnyWorker]) -> Sequence[AnyWorker]:
        """Returns those who have something to say, as soon as there is one."""
        ...


def run_trials(orders: Iterator[TrialOrder], hears: Hears, ends: Ends, jobs: int) -> None:
    """Runs trials as they are asked for; with several jobs, in so many processes."""
    if jobs > 1:
        run_with(Processes(max(1, cores() // jobs)), orders, hears, ends, jobs)
        return
    data = HiddenTests()
    with use_threads(choose_threads(0, read_cpu_usage())):
        for order in orders:
            ends(order, run_trial(order, data, partial(hears, order)))


def run_with(crew: Crew[AnyWorker], orders: Iterator[TrialOrder], hears: Hears, ends: Ends, jobs: int) -> None:
    """Runs trials as they are asked for, so many at a time; where a worker dies, perhaps once more."""
    idle: list[AnyWorker] = []
    busy: dict[AnyWorker, tuple[TrialOrder, int]] = {}  # what each is at, and how often that was begun before
    again: list[tuple[TrialOrder, int]] = []
    try:
        while True:
            while len(busy) < jobs:
                entry = again.pop() if again else next(((order, 0) for order in orders), None)
                if entry is None:
                    break
                worker = idle.pop() if idle else crew.start()
                worker.send(entry[0])
                busy[worker] = entry
            if not busy:
                return
            for worker in crew.wait(list(busy)):
                order, deaths = busy[worker]
                outcome = answer(worker, partial(hears, order))
                if outcome is None:
                    continue
                del busy[worker]
                if outcome.reason != DIED:
                    idle.append(worker)
                else:
                    worker.close()
                    if deaths < crew.retries:
                        again.append((order, deaths + 1))
                        continue
                ends(order, outcome)
    finally:
        for worker in (*idle, *busy):
            worker.close()


def answer(worker: Worker, prunes: Callable[[int, float], bool]) -> TrialOutcome | None:
    """Takes what a worker says: a score, which is answered, or the outcome of its trial, which is returned."""
    try:
        message = worker.receive()
        if isinstance(message, TrialOutcome):
            return message
        worker.send(prunes(*message))
    except (EOFError, OSError):
        return TrialOutcome("failed", None, 0, 0.0, DIED)
    return None


def converse(receive: Callable[[], Any], send: Callable[[Any], None]) -> None:
    """Runs the trials that are received, and sends scores, which are answered, and outcomes; never returns."""
    data = HiddenTests()

    def prunes(rounds: int, score: float) -> bool:
        send((rounds, score))
        ended: bool = receive()
        return ended

    while True:
        send(run_trial(receive(), data, prunes))


# Processes.


@dataclass(frozen=True, eq=False)
class Process:
    """A process that runs trials, and the line to it."""

    process: Any
    line: Connection[Any, Any]

    def send(self, message: Any) -> None:
        self.line.send(message)

    def receive(self) -> Any:
        return self.line.recv()

    def close(self) -> None:
        self.process.terminate()
        self.process.join()
        self.line.close()


@dataclass(frozen=True)
class Processes:
    """Processes on this machine, each with so many threads."""

    threads: int
    retries: ClassVar[int] = 0

    def start(self) -> Process:
        context = multiprocessing.get_context("spawn")  # a fork would break CUDA and PyTorch's threads
        here, there = context.Pipe()
        process = context.Process(target=work, args=(there, self.threads))
        with apart_from_main():
            process.start()
        there.close()
        return Process(process, here)

    def wait(self, workers: Sequence[Process]) -> Sequence[Process]:
        ready = wait([worker.line for worker in workers])
        return [worker for worker in workers if worker.line in ready]


def work(line: Connection[Any, Any], threads: int) -> None:
    """Runs the trials that come along a line, in a process of its own."""
    begin_worker(threads)
    converse(line.recv, line.send)
