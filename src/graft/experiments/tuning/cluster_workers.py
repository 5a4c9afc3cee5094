"""Trials on a cluster: workers that are actors, with the data and the code that they need of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, ClassVar
from uuid import uuid4

import torch

from graft.data.sources import open_data
from graft.engines.lines import Line, Lines
from graft.engines.ray import Resources, send_code
from graft.engines.tasks import RETRIES, capacity
from graft.experiments.cluster_runs import Code, connect, lies_in_files, own_modules, pack_code
from graft.experiments.run_cluster import RunCluster
from graft.experiments.sweep.plan import PlannedRun
from graft.experiments.tuning.trial import TrialOrder
from graft.experiments.tuning.workers import converse


class TrialActor:
    """A worker of a cluster that runs trials in a thread, and answers every message with what the trial says next."""

    def __init__(self, threads: int, code: Code, dataset: Any) -> None:
        self.dataset = dataset
        self.received: SimpleQueue[Any] = SimpleQueue()
        self.said: SimpleQueue[Any] = SimpleQueue()
        Thread(target=self._work, args=(threads, code), daemon=True).start()

    def answer(self, message: Any) -> Any:
        if isinstance(message, TrialOrder) and self.dataset is not None:
            message = replace(message, variant={**message.variant, "dataset": self.dataset})
        self.received.put(message)
        return self.said.get()

    def _work(self, threads: int, code: Code) -> None:
        torch.set_num_threads(threads)
        # The actor is ended from outside, so a folder is made only where this machine lacks the files.
        with code.unpacked(Path(tempfile.gettempdir(), f"graft-code-{uuid4().hex}")):
            converse(self.received.get, self.said.put)


@dataclass(frozen=True, eq=False)
class ClusterWorker:
    """A line to a worker; data that all trials share are there already."""

    line: Line
    changes: Mapping[str, Any]  # of the values of every trial
    there: Sequence[str]  # values that it has

    def send(self, message: Any) -> None:
        if isinstance(message, TrialOrder):
            kept = {name: value for name, value in message.variant.items() if name not in self.there}
            message = replace(message, variant={**kept, **self.changes})
        self.line.send(message)

    def receive(self) -> Any:
        return self.line.receive()

    def close(self) -> None:
        self.line.close()


class ClusterCrew:
    """Workers of a cluster."""

    retries: ClassVar[int] = RETRIES

    def __init__(self, ray: Any, resources: Resources, defaults: Sequence[PlannedRun]) -> None:
        """Makes them ready for trials of some runs, which share their data."""
        first, dataset = defaults[0].experiment, defaults[0].given.dataset
        if dataset is None and lies_in_files(first):
            dataset = open_data(first.dataset, first.graphs)
        send_code(ray, own_modules([run.given for run in defaults]))
        code = pack_code([run.experiment for run in defaults])
        self._lines = Lines(ray, TrialActor, (resources.cpus, code, dataset), resources)
        self._changes = {"device": resources.device}
        self._there = () if dataset is None else ("dataset", "graphs")

    def start(self) -> ClusterWorker:
        return ClusterWorker(self._lines.open(), self._changes, self._there)

    def wait(self, workers: Sequence[ClusterWorker]) -> Sequence[ClusterWorker]:
        by_line = {worker.line: worker for worker in workers}
        return [by_line[line] for line in self._lines.wait(by_line)]


@contextmanager
def open_crew(
    cluster: RunCluster, jobs: int | None, defaults: Sequence[PlannedRun]
) -> Iterator[tuple[ClusterCrew, int]]:
    """Joins or starts a cluster for trials of some runs; gives its workers and how many of them there are."""
    with connect(cluster, jobs) as (ray, resources):
        room = max(1, capacity(ray, resources))
        yield ClusterCrew(ray, resources, defaults), room if jobs is None else min(jobs, room)
