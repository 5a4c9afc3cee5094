"""Runs an experiment: builds the federation, runs its session and keeps the record."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

import graft
from graft.data.federation import FederationData
from graft.engines.capture import capture_stream
from graft.engines.failures import EngineLost, WorkerLost
from graft.engines.memory import enough_memory, peak_memory
from graft.engines.precision import products_in
from graft.engines.state_files import ChangedStates
from graft.engines.threads import choose_threads, read_cpu_usage, use_threads
from graft.errors import InputError, RunError
from graft.experiments.best_models import GLOBAL, OWN, BestModels, last_models
from graft.experiments.build import build_federation, build_setup
from graft.experiments.callbacks import AllCallbacks, Callback, Callbacks, RunStart
from graft.experiments.checkpoints import Checkpoint
from graft.experiments.combinations import check_combination
from graft.experiments.engines import HOSTS, Host
from graft.experiments.experiment import Experiment, make_experiment
from graft.experiments.experiment_files import experiment_text, read_experiment
from graft.experiments.experiment_settings import ExperimentSettings
from graft.experiments.free_folder import check_free
from graft.experiments.given import Given, describe
from graft.experiments.identity import identify
from graft.experiments.prediction import RunModels
from graft.experiments.prepared_data import describe_data
from graft.experiments.recorder import Recorder, open_record
from graft.experiments.recovery import Recovery, begin_anew, stop_politely
from graft.experiments.result import Result
from graft.experiments.run_directory import RunDirectory
from graft.experiments.scores import (
    Scores,
    count_predicted,
    describe_clients,
    describe_run,
    describe_traffic,
    warn_of_one_class,
)
from graft.federation.method import Method
from graft.federation.session import Session, SessionState
from graft.federation.setup import Setup
from graft.files import explained
from graft.methods.majority import Majority
from graft.models import Model
from graft.tensors.trees import strip_architectures


def run(
    method: str | Method = "fedgkc",
    dataset: Any = "digits",
    *,
    models: str | nn.Module | Model | Sequence[str | nn.Module | Model] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    callbacks: Callbacks = (),
    **settings: Unpack[ExperimentSettings],
) -> Result:
    """Runs one experiment, described by the fields of `Experiment`; without `out` nothing is written.

    A dataset may be a name, a path or a PyG `Data`; a model a name or any `nn.Module`; a method a name or a `Method`.
    A callback is a `Callback`, or a function that is called with the record of every round.
    """
    experiment, given = describe(method, dataset, models, settings)
    return run_experiment(experiment, out, overwrite=overwrite, callbacks=callbacks, given=given)


def resume(
    out: str | Path,
    *,
    method: Method | None = None,
    dataset: Any = None,
    models: Any = None,
    callbacks: Callbacks = (),
    address: str | None = None,
) -> Result:
    """Go on with a run from its last checkpoint; what was given as an object must be given again.

    `address` is another Ray cluster than that which the run began on; empty starts one here.
    """
    directory = RunDirectory(Path(out))
    with explained(f"{out} cannot be read", InputError):
        if not directory.experiment.is_file():
            raise InputError(f"{out} is not a run directory: it holds no experiment.toml.")
        if directory.federation.is_file():
            raise InputError(
                f"{out} is of a federation between organisations, which goes on with the command that began it: graft "
                f"join or graft peer with the same --out, or graft serve --resume {out}."
            )
    with directory.lock():
        experiment = make_experiment(read_experiment(directory.experiment))
        if address is not None:
            if experiment.engine != "ray":
                raise InputError(f"{out} is a run of the engine {experiment.engine}, which has no address.")
            experiment = replace(experiment, address=address)
        given = Given(method, dataset, models)
        given.check(experiment)
        checkpoint = directory.load()
        if checkpoint is not None and checkpoint.finished and directory.has_result():
            raise InputError(f"{out} is a finished run of {checkpoint.round} rounds: there is nothing to resume.")
        return _start(experiment, directory, AllCallbacks(callbacks), given, checkpoint)


def run_experiment(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    callbacks: Callbacks = (),
    given: Given | None = None,
) -> Result:
    directory = None if out is None else RunDirectory(Path(out))
    return _start(experiment, directory, AllCallbacks(callbacks), given or Given(), None, overwrite)


def _start(
    experiment: Experiment,
    directory: RunDirectory | None,
    callbacks: Callback,
    given: Given,
    checkpoint: Checkpoint | None,
    overwrite: bool | None = None,
) -> Result:
    """Runs an experiment; where nothing is said about `overwrite`, the directory is a run's to resume, and locked."""
    begun, usage = time.perf_counter(), read_cpu_usage()
    with enough_memory(), ExitStack() as stack:
        stack.callback(callbacks.close)
        method = given.method_of(experiment)
        experiment = replace(experiment, settings=asdict(method), models=method.architecture or experiment.models)
        check_combination(experiment, method)
        if directory is not None and overwrite is not None:
            check_free(directory.path, overwrite)
        if checkpoint is not None:
            checkpoint.origin.check_experiment(experiment_text(experiment))  # before data of absurd sizes is made
        if given.federation is None:
            callbacks.on_phase("reading data")
        federation = given.federation or build_federation(experiment, given.dataset)
        callbacks.on_phase("setting up")
        setup = build_setup(experiment, method, federation, given.models)
        host = stack.enter_context(HOSTS[experiment.engine](experiment))
        if checkpoint is None:
            threads = choose_threads(experiment.threads or host.threads, usage if host.device == "cpu" else None)
            memory = host.memory() if setup.memory is None else setup.memory
        else:  # sums of floating-point numbers depend on what is computed together
            threads, memory = checkpoint.origin.threads, checkpoint.origin.memory
        setup = replace(setup, memory=memory)
        if directory is not None and overwrite is not None:
            stack.enter_context(directory.claim(overwrite))
        recorder = None
        if directory is not None:
            recorder = open_record(directory, experiment, setup, federation, threads, host.device, checkpoint)
        stack.enter_context(capture_stream(setup.device))
        stack.enter_context(products_in(experiment.precision))
        stack.enter_context(use_threads(threads))
        session = stack.enter_context(closing(Session(setup, host.open_engine(setup))))
        return Run(experiment, federation, session, recorder, callbacks, host).run_rounds(begun, checkpoint)


class Run:
    """The rounds of a session, and what is found out in them."""

    def __init__(
        self,
        experiment: Experiment,
        federation: FederationData,
        session: Session,
        recorder: Recorder | None,
        callbacks: Callback,
        host: Host,
    ) -> None:
        self.experiment, self.federation, self.session = experiment, federation, session
        self.recorder, self.callbacks, self.host = recorder, callbacks, host
        if experiment.score == "global" and session.setup.method.shared(session.server) is None:
            raise InputError(f"score is global, but method '{session.setup.name}' has no global model.")
        self.scores: Scores  # this and what follows is set by `begin`
        self.best = BestModels()
        self.finished = False  # whether there are no more rounds to run
        self.recovery = Recovery(experiment.max_failures)
        self.first_phases = list(first_phases(session.setup))  # of the rounds to come that are not just training
        self.phase = ""

    def run_rounds(self, begun: float, checkpoint: Checkpoint | None) -> Result:
        """Runs the rounds that are left, and returns what all of them found out."""
        self.recovery.insist(lambda: self.begin(checkpoint), self.go_back, self.last_good)
        setup_seconds = time.perf_counter() - begun
        self.callbacks.on_start(self.start())

        def rounds_and_result() -> Result:
            self.train()
            return self.conclude(begun, setup_seconds)

        with self.keeping_the_best():
            return self.recovery.insist(rounds_and_result, self.go_back, self.last_good)

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Makes everything as it was after a checkpoint, or before the first round."""
        session = self.session
        counts = session.count_nodes()
        setup = session.setup
        self.scores = Scores(*counts, self.experiment.score, setup.metrics, setup.names, setup.on_demand)
        self.best, self.finished, self.phase = BestModels(), False, ""
        if checkpoint is not None:
            self.restore(checkpoint)
        elif self.recorder is not None:
            self.recorder.save(0, session.state(), self.best.kept)

    def go_back(self, lost: WorkerLost) -> None:
        """Goes back to the last checkpoint, or to the beginning where there is none."""
        directory = None if self.recorder is None else self.recorder.directory
        self.recovery.announce(None if directory is None else directory.last_checkpoint())
        self.callbacks.on_phase("replacing workers")
        self.best = BestModels()  # those that workers held are lost; those on the disk stay there
        begin_anew(self.session)
        self.begin(None if directory is None else directory.load())
        self.callbacks.on_recovery(str(lost), tuple(self.scores.records))

    def last_good(self) -> str:
        """Returns a sentence about the last checkpoint; empty where there is none."""
        return "" if self.recorder is None else self.recorder.last_good()

    def train(self) -> None:
        """Runs the rounds that are left, or as many as there are until somebody asks to stop."""
        with stop_politely() as asked_to_stop:
            try:
                while not self.finished and self.next_round(asked_to_stop):
                    pass
            except EngineLost as error:
                if not asked_to_stop.is_set():
                    raise
                raise RunError(f"{error}{self.last_good()}") from error

    def conclude(self, begun: float, setup_seconds: float) -> Result:
        """Returns what all rounds found out, and puts it on record where all are run."""
        state = self.session.state()
        summary = self.summary(setup_seconds, time.perf_counter() - begun)
        models = self.models(summary, state)
        self.callbacks.on_phase("checking predictions")
        summary["warnings"] = self.warnings(models, summary["per_client"])
        result = Result(
            summary=summary,
            rounds=self.scores.records,
            server=state.server,
            clients=ChangedStates(state.clients, strip_architectures),
            finished=self.finished,
            models=models,
        )
        if self.recorder is not None and self.finished:
            self.callbacks.on_phase("writing")
            self.recorder.finish(result.summary)
        self.callbacks.on_end(result)
        return result

    def start(self) -> RunStart:
        """Returns what callbacks are told before the first round of this process."""
        directory = None if self.recorder is None else self.recorder.directory.path
        clients: Sequence[str | int] = self.session.setup.names or range(len(self.federation.clients))
        return RunStart(self.experiment, clients, directory, tuple(self.scores.records))

    def tell_phase(self) -> None:
        """Tells callbacks what the next round is about, where that is something new."""
        phase = self.first_phases.pop(0) if self.first_phases else "training"
        if phase != self.phase:
            self.callbacks.on_phase(phase)
        self.phase = phase

    def models(self, summary: dict[str, Any], state: SessionState) -> RunModels:
        """Returns the models of the best round and of the last one, ready to predict."""
        setup, server, record = self.session.setup, self.session.server, self.scores.records[-1]
        self.best.bring_here()
        last = last_models(setup.method, server, state, record)
        return RunModels(
            self.experiment,
            setup,
            describe_data(self.federation, self.experiment, setup.membership is not None),
            self.best.kept,
            lambda: last,
            lambda: self.federation,
            summary,
            lambda: [{"labels": row["labels"]} for row in self.federation.card["per_client"]],
        )

    def next_round(self, asked_to_stop: threading.Event) -> bool:
        """Runs a round and puts it on record, with a checkpoint where one is due; returns whether to go on."""
        experiment = self.experiment
        self.tell_phase()
        record = self.round(len(self.scores.records) + 1)
        number = record["round"]
        patient = not experiment.patience or self.scores.stale < experiment.patience
        self.finished = number == experiment.rounds or not patient
        stopping = asked_to_stop.is_set()
        due = experiment.checkpoint_every and number % experiment.checkpoint_every == 0
        if self.recorder is not None:
            self.recorder.add_round(record)
        if "validation" in record:
            self.best.see(self.session, record, self.best_rounds)
        if self.recorder is not None and (due or self.finished or stopping):
            self.recorder.save(number, self.session.state(), self.best.kept, finished=self.finished)
            self.recovery.note_checkpoint()
            self.callbacks.on_checkpoint(number, self.recorder.directory.path)
        self.callbacks.on_round(record)
        return not (self.finished or stopping)

    @contextmanager
    def keeping_the_best(self) -> Iterator[None]:
        """Puts the best models on record if a run fails, or is stopped at once."""
        try:
            yield
        except BaseException:
            if self.recorder is not None and self.best.kept:
                self.recorder.save_best(self.best.kept)
            raise

    @property
    def best_rounds(self) -> dict[str, int]:
        """Returns the round that is the best so far, for each kind of models; 0 where none is."""
        scores = self.scores
        picked = scores.best_shared if scores.score == "global" else scores.best
        return {OWN: picked.round, GLOBAL: scores.best_shared.round}

    def round(self, number: int) -> dict[str, Any]:
        """Runs a round and returns its record."""
        start = time.perf_counter()
        evaluate = number % self.experiment.evaluate_every == 0 or number == self.experiment.rounds
        try:
            outcome = self.session.round(number, evaluate=evaluate)
        except EngineLost:
            raise
        except RunError as error:
            raise RunError(f"{error}{self.last_good()}") from error
        record = self.scores.add(number, outcome)
        record["seconds"] = time.perf_counter() - start
        return record

    def restore(self, checkpoint: Checkpoint) -> None:
        """Puts everything back as it was after the checkpoint's round."""
        assert self.recorder is not None
        state, records = self.recorder.restore(checkpoint, self.session.likeness(checkpoint.clients))
        self.session.restore(state)
        self.scores.restore(records)
        kept = self.recorder.restore_best(checkpoint, records)
        try:
            self.best.restore(kept, self.session, self.best_rounds)
        except ValueError as error:
            raise self.recorder.damaged_best(error) from None
        self.recorder.list_best(kept)
        self.finished = checkpoint.finished

    def summary(self, setup_seconds: float, total: float) -> dict[str, Any]:
        """Returns what result.json holds."""
        setup, scores = self.session.setup, self.scores
        best = scores.summary(len(self.federation.clients))
        return {
            "graft": graft.__version__,
            **describe_run(self.experiment, setup.name, self.federation),
            "rounds": scores.records[-1]["round"],
            **best,
            "per_client": describe_clients(self.federation, setup.models, best["per_client"]),
            "communication": describe_traffic(scores.traffic, self.federation.exchange),
            "seconds": {"total": total, "per_round": scores.seconds / len(scores.records), "setup": setup_seconds},
            "peak_memory_bytes": peak_memory(setup.device),
            "device": self.host.device,
            "threads": torch.get_num_threads(),
            **identify(self.experiment, setup, self.federation),
            **({"recoveries": self.recovery.rounds} if self.recovery.rounds else {}),
        }

    def warnings(self, models: RunModels, rows: Sequence[dict[str, Any]]) -> list[str]:
        """Returns what a person should know of the models of the best round; `rows` are those of the clients."""
        if isinstance(self.session.setup.method, Majority):
            return []
        accuracies, clients = [row["test"] for row in rows], self.scores.scored_clients(len(rows))
        predicted = count_predicted(models, self.federation, accuracies, clients)
        return warn_of_one_class(predicted, accuracies, self.federation, self.experiment, clients)


def first_phases(setup: Setup) -> tuple[str, ...]:
    """Returns the names of the first rounds: on a GPU, one is run, one watched and one captured."""
    if setup.device.type != "cuda":
        return ()
    return ("compiling kernels", "capturing", "capturing") if setup.capture else ("compiling kernels",)
