"""Runs an experiment: builds the federation, runs its session and keeps the record."""

from __future__ import annotations

import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

import graft
from graft.data import cards
from graft.data.federation import Federation
from graft.engines.capture import capture_stream
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.engines.threads import choose_threads, read_cpu_usage, use_threads
from graft.errors import InputError, RunError
from graft.experiments.build import build_federation, build_setup
from graft.experiments.experiment import (
    Experiment,
    ExperimentSettings,
    make_experiment,
    read_experiment,
    write_experiment,
)
from graft.experiments.given import Given, describe
from graft.experiments.records import Checkpoint, RunDirectory
from graft.experiments.result import Result
from graft.experiments.scores import Scores, describe_clients, describe_run
from graft.federation.clients import Engine, Traffic
from graft.federation.evaluation import Best
from graft.federation.method import Method
from graft.federation.session import Session, SessionState
from graft.federation.setup import Setup
from graft.models import Model
from graft.tensors.trees import Tree, strip_architectures

ENGINES: dict[str, Callable[[Setup], Engine]] = {"in_process": InProcess, "loopback": Loopback}

Progress = Callable[[dict[str, Any]], None]


def run(
    method: str | Method = "fedgkc",
    dataset: Any = "digits",
    *,
    models: str | nn.Module | Model | Sequence[str | nn.Module | Model] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **settings: Unpack[ExperimentSettings],
) -> Result:
    """Run one experiment, described by the fields of `Experiment`; without `out` nothing is written.

    A dataset may be a name, a path or a PyG `Data`; a model a name or any `nn.Module`; a method a name or a `Method`.
    """
    experiment, given = describe(method, dataset, models, settings)
    return run_experiment(experiment, out, overwrite=overwrite, progress=progress, given=given)


def resume(
    out: str | Path,
    *,
    method: Method | None = None,
    dataset: Any = None,
    models: Any = None,
    progress: Progress | None = None,
) -> Result:
    """Go on with a run from its last checkpoint; what was given as an object must be given again."""
    directory = RunDirectory(Path(out))
    if not directory.experiment.exists():
        raise InputError(f"{out} is not a run directory: it holds no experiment.toml.")
    experiment = make_experiment(read_experiment(directory.experiment))
    checkpoint = directory.load()
    given = Given(method, dataset, models)
    given.check(experiment)
    return _start(experiment, directory, progress, given, checkpoint)


def run_experiment(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    given: Given | None = None,
) -> Result:
    directory = None if out is None else RunDirectory(Path(out))
    return _start(experiment, directory, progress, given or Given(), None, overwrite)


def _start(
    experiment: Experiment,
    directory: RunDirectory | None,
    progress: Progress | None,
    given: Given,
    checkpoint: Checkpoint | None,
    overwrite: bool = False,
) -> Result:
    begun, before = time.perf_counter(), read_cpu_usage()
    method = given.method_of(experiment)
    models = method.architecture or experiment.models
    experiment = replace(experiment, settings=asdict(method), models=models)
    shared = given.federation or build_federation(experiment, given.dataset)
    setup = build_setup(experiment, method, shared, given.models)
    if checkpoint is not None and checkpoint.facts["partition"] != shared.hash:
        raise InputError(
            "The data or its partition is not what this run began with: the partition's hash is "
            f"{shared.hash[:16]}, the checkpoint's {checkpoint.facts['partition'][:16]}."
        )
    if directory is not None and checkpoint is None:
        directory.create(overwrite)
        write_experiment(experiment, directory.experiment)
        cards.save(shared.card, shared.membership, directory.path / "partition.json")
    on_cpu = setup.device.type == "cpu"
    count = choose_threads(experiment.threads, before if on_cpu else None)
    with capture_stream(setup.device), products_in(experiment.precision), use_threads(count):
        session = Session(setup, ENGINES[experiment.engine](setup))
        try:
            return Run(experiment, shared, session, directory, progress).play(begun, checkpoint)
        finally:
            session.close()


class Run:
    """The record that is kept around a session."""

    def __init__(
        self,
        experiment: Experiment,
        shared: Federation,
        session: Session,
        directory: RunDirectory | None,
        progress: Progress | None,
    ) -> None:
        self.experiment, self.shared, self.session = experiment, shared, session
        self.directory, self.progress = directory, progress
        if experiment.score == "global" and session.setup.method.shared(session.server) is None:
            raise InputError(f"score is global, but method '{session.setup.name}' has no global model.")
        self.scores = Scores(*session.count_nodes(), experiment.score)
        self.spent = 0.0  # seconds in rounds, those before a resume included

    def play(self, begun: float, checkpoint: Checkpoint | None) -> Result:
        """Runs the rounds that are left, and returns what all of them found out."""
        experiment, session = self.experiment, self.session
        first = 1 if checkpoint is None else self.restore(checkpoint) + 1
        setup_seconds = time.perf_counter() - begun
        with stop_politely() as asked_to_stop:
            for number in range(first, experiment.rounds + 1):
                record = self.round(number)
                patient = not experiment.patience or self.scores.stale < experiment.patience
                finished = number == experiment.rounds or not patient
                stopping = asked_to_stop.is_set()
                due = experiment.checkpoint_every and number % experiment.checkpoint_every == 0
                if self.directory is not None:
                    self.directory.append_round(record)
                    if due or finished or stopping:
                        self.save(number)
                if self.progress is not None:
                    self.progress(record)
                if finished or stopping:
                    break
        state = session.state()
        result = Result(
            summary=self.summary(setup_seconds, time.perf_counter() - begun),
            rounds=self.scores.records,
            server=state.server,
            clients={client: strip_architectures(tree) for client, tree in state.clients.items()},
            finished=finished,
        )
        if self.directory is not None and result.finished:
            self.directory.write_result(result.summary)
        return result

    def round(self, number: int) -> dict[str, Any]:
        """Runs a round and returns its record."""
        start = time.perf_counter()
        evaluate = number % self.experiment.evaluate_every == 0 or number == self.experiment.rounds
        try:
            outcome = self.session.round(number, evaluate=evaluate)
        except RunError as error:
            raise RunError(f"{error}{self.last_good()}") from error
        seconds = time.perf_counter() - start
        self.spent += seconds
        return self.scores.add(number, outcome, seconds)

    def summary(self, setup_seconds: float, total: float) -> dict[str, Any]:
        """Returns what result.json holds."""
        setup, scores = self.session.setup, self.scores
        best = scores.summary(len(self.shared.clients))
        return {
            "graft": graft.__version__,
            **describe_run(self.experiment, setup.name, self.shared),
            "rounds": scores.records[-1]["round"],
            **best,
            "per_client": describe_clients(self.shared, setup.models, best["per_client"]),
            "communication": {f"{way}_bytes": count for way, count in asdict(scores.traffic).items()},
            "seconds": {"total": total, "per_round": self.spent / len(scores.records), "setup": setup_seconds},
            "peak_memory_bytes": peak_memory(setup.device),
            "device": setup.device.type,
            "threads": torch.get_num_threads(),
        }

    def save(self, number: int) -> None:
        """Writes a checkpoint of this round."""
        assert self.directory is not None
        scores = self.scores
        facts = {
            "partition": self.shared.hash,
            "traffic": asdict(scores.traffic),
            "best": asdict(scores.best),
            "best_shared": asdict(scores.best_shared),
            "best_trained": asdict(scores.best_trained),
            "stale": scores.stale,
            "spent": self.spent,
        }
        state = self.session.state()
        self.directory.save(Checkpoint(number, state.server, dict(state.clients), facts))

    def restore(self, checkpoint: Checkpoint) -> int:
        """Puts everything back as it was after the checkpoint's round, whose number is returned."""
        assert self.directory is not None
        facts, scores = checkpoint.facts, self.scores
        self.session.restore(SessionState(checkpoint.server, checkpoint.clients))
        scores.traffic = Traffic(**facts["traffic"])
        scores.best, scores.best_shared = Best(**facts["best"]), Best(**facts["best_shared"])
        scores.best_trained = Best(**facts.get("best_trained", {}))
        scores.stale, self.spent = facts["stale"], facts["spent"]
        scores.records = self.directory.read_rounds(until=checkpoint.round)
        self.directory.rewrite_rounds(scores.records)
        if checkpoint.round >= self.experiment.rounds:
            raise InputError(f"{self.directory.path} has run all its {self.experiment.rounds} rounds already.")
        return checkpoint.round

    def last_good(self) -> str:
        if self.directory is None or not (self.directory.path / "checkpoint").exists():
            return ""
        return f" The checkpoint of round {self.directory.load().round} in {self.directory.path} is good."


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Compute matrix products on a GPU with this precision."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def stop_politely() -> Iterator[threading.Event]:
    """Ctrl-C lets the round finish and then stops; a second one stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def first(number: int, frame: Any) -> None:  # noqa: ARG001
        asked.set()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, first)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, previous)


def peak_memory(device: torch.device) -> int:
    """The most memory this process has held: on a GPU there, else in RAM."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
