"""The run of a server between organisations: lets parties in, runs the rounds with who is there, keeps the record."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import MaxLen
from pydantic import TypeAdapter

import graft
from graft.data.exchange import Exchange
from graft.engines.parties import Parties
from graft.engines.remote import last_counted
from graft.engines.wire import Absent, Handler, Node, Patience
from graft.errors import InputError, RunError
from graft.experiments.best_models import GLOBAL, RoundModels
from graft.experiments.callbacks import AllCallbacks, Callback, Callbacks, RunStart
from graft.experiments.checkpoints import STRICT, Checkpoint, Count, Origin, read_sealed, write_sealed
from graft.experiments.experiment_files import experiment_text
from graft.experiments.federation_file import FederationFile
from graft.experiments.parties_setup import server_forms, server_setup
from graft.experiments.record_files import FEDERATION
from graft.experiments.recorder import Recorder
from graft.experiments.recovery import stop_politely
from graft.experiments.run_directory import RunDirectory
from graft.experiments.scores import Scores, describe_traffic
from graft.experiments.state_checks import check_state
from graft.experiments.welcome import Door
from graft.federation.clients import ClientsAbsent
from graft.federation.server import Server
from graft.federation.session import RoundOutcome, Session, SessionState
from graft.files import explained
from graft.machine import peak_ram
from graft.models.assigned import models_checksum
from graft.tensors.trees import Tree, flatten, map_tree, unflatten

log = logging.getLogger(__name__)
POLL_SECONDS = 0.1
MOST_FAILURES = 20  # of one round, each with enough parties to begin it
MOST_REQUESTS = 2**40  # of one process to one party
FORMAT = "graft-federation-1"


@dataclass(frozen=True)
class FederationRecord:
    """What federation.json in a server's or a party's folder holds: which run of which federation it is of."""

    format: str
    run: str
    hash: str  # of what all have agreed on
    parties: Annotated[list[str], MaxLen(100_000)]
    start: Count = 0  # what the numbers of a server's latest process are larger than

    __pydantic_config__ = STRICT


RECORD: TypeAdapter[FederationRecord] = TypeAdapter(FederationRecord)


def serve(
    file: FederationFile,
    content: Mapping[str, Any],
    out: Path,
    open_node: Callable[[Handler], Node],
    *,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Callbacks = (),
) -> dict[str, Any]:
    """Runs a federation as its server and returns its result; `content` is what its file holds, to be offered.

    `open_node` is given what answers parties, and connects to them.
    """
    directory, heard = RunDirectory(out), AllCallbacks(callbacks)
    with ExitStack() as stack:
        stack.callback(heard.close)
        if resume and not (out / FEDERATION).is_file():
            raise InputError(f"{out} holds no {FEDERATION}: it is not the folder of a server.")
        stack.enter_context(directory.lock() if resume else directory.claim(overwrite))
        record = begin_process(out, read_record(out, file) if resume else begin_record(out, file, directory))
        if not directory.experiment.is_file():  # it was stopped before it could begin
            directory.begin(experiment_text(file.experiment))
        heard.on_phase("rehearsing")
        door = Door(file, content, record.run)
        node = stack.enter_context(closing(open_node(door.handle)))
        return Coordinator(file, door, node, directory, heard, record).run(resume=resume)


def begin_record(out: Path, file: FederationFile, directory: RunDirectory) -> FederationRecord:
    """Puts a new run of a federation on record."""
    record = FederationRecord(FORMAT, f"{file.name}-{secrets.token_hex(8)}", file.hash, list(file.parties))
    with explained(f"{out / FEDERATION} cannot be written", InputError):
        write_sealed(out / FEDERATION, asdict(record))
    directory.begin(experiment_text(file.experiment))
    return record


def read_record(out: Path, file: FederationFile) -> FederationRecord:
    """Returns which run a folder is of; refuses one of another agreement."""
    with explained(f"{out / FEDERATION} cannot be read", InputError):
        record = read_sealed(out / FEDERATION, RECORD, FORMAT, "record of the federation")
    if record.hash != file.hash:
        raise InputError(f"{out} is of a federation with another method, other settings, parties or data.")
    return record


def begin_process(out: Path, record: FederationRecord) -> FederationRecord:
    """Puts on record that a process of the server begins, with a number after all of the one before it.

    That is the time, unless the clock was set back: parties refuse whatever an earlier process asks.
    """
    begun = replace(record, start=max(time.time_ns(), record.start + MOST_REQUESTS))
    with explained(f"{out / FEDERATION} cannot be written", InputError):
        write_sealed(out / FEDERATION, asdict(begun))
    return begun


class OnlyJoined:
    """A node through which nobody is asked who has not joined."""

    def __init__(self, node: Node, door: Door) -> None:
        self.name, self._node, self._door = node.name, node, door

    def present(self) -> set[str]:
        return self._node.present() & set(self._door.joined)

    def ask(self, requests: Mapping[str, bytes], patience: Patience) -> dict[str, bytes | Absent]:
        joined = {name: request for name, request in requests.items() if name in self._door.joined}
        strangers = {name: Absent("has not joined") for name in requests if name not in joined}
        return {**strangers, **(self._node.ask(joined, patience) if joined else {})}

    def close(self) -> None:
        self._node.close()


class Coordinator:
    """The rounds of a server."""

    def __init__(
        self,
        file: FederationFile,
        door: Door,
        node: Node,
        directory: RunDirectory,
        callbacks: Callback,
        record: FederationRecord,
    ) -> None:
        self.file, self.door, self.directory, self.callbacks = file, door, directory, callbacks
        self.node = OnlyJoined(node, door)
        self.setup, self.forms, self._record = server_setup(file), server_forms(file), record
        self.scores = self._no_scores()
        experiment = file.experiment
        origin = Origin(experiment_text(experiment), models_checksum(self.setup.models), file.hash, "cpu", 1, 0)
        self.recorder = Recorder(directory, origin, file.parties)
        self.best: dict[str, RoundModels] = {}
        self.session: Session
        self._asked_to_stop = threading.Event()

    def _no_scores(self) -> Scores:
        nothing, experiment = torch.zeros(0), self.file.experiment
        return Scores(nothing, nothing, experiment.score, self.setup.metrics, self.file.parties, of_participants=True)

    def run(self, *, resume: bool) -> dict[str, Any]:
        """Runs all rounds that are left, and returns the result."""
        begun = time.perf_counter()
        checkpoint = self.directory.load() if resume else None
        if checkpoint is not None and checkpoint.finished and self.directory.has_result():
            raise InputError(f"{self.directory.path} is a finished run: there is nothing to resume.")
        engine = Parties(
            self.setup,
            self.node,
            self.file.parties,
            self.file.rounds.patience(len(self.file.parties)),
            run=self._record.run,
            forms=self.forms,
            after=self._restore(checkpoint),
            start=self._record.start,
            max_norm=self.file.limits.max_norm,
        )
        self.session = Session(self.setup, engine)
        if checkpoint is None:
            self.recorder.save(0, self._state(), {})
        else:
            self.session.server.state = checkpoint.server
        self.callbacks.on_phase("waiting for parties")
        finished = checkpoint is not None and checkpoint.finished
        self._wait(len(self.file.parties), over=finished)
        parties = list(self.file.parties)
        records = tuple(self.scores.records)
        self.callbacks.on_start(RunStart(self.file.experiment, parties, self.directory.path, records))
        finished = checkpoint is not None and checkpoint.finished
        with stop_politely() as asked_to_stop:
            self._asked_to_stop = asked_to_stop
            while not finished:
                finished = self._next_round()
                if asked_to_stop.is_set() and not finished:
                    raise RunError(f"Stopped as asked.{self.recorder.last_good()}")
        engine.end()
        self.door.ended = True
        self._see_off()
        summary = self._summary(begun)
        self.recorder.finish(summary)
        return summary

    def _restore(self, checkpoint: Checkpoint | None) -> dict[int, int]:
        """Takes up the record of before; returns in which round each party took part last."""
        if checkpoint is None:
            return {}
        records = self.directory.restore_rounds(checkpoint)
        self.scores.restore(records)
        try:
            check_state(checkpoint.server, Server.of(self.setup).state, "the server")
        except ValueError as error:
            raise InputError(f"The checkpoint in {self.directory.path} is not one of this run: {error}.") from None
        self.best = self.recorder.restore_best(checkpoint, records)
        return last_counted(records, self.file.parties)

    def _state(self) -> SessionState:
        return SessionState(self.session.server.state, {})

    def _see_off(self) -> None:
        """Stays until all parties have ended; one that is gone has some seconds to come back and hear of the end."""
        rules, gone = self.file.rounds, dict[str, float]()
        end = time.monotonic() + rules.timeout
        while time.monotonic() < end:
            joined, present, now = list(self.door.joined), self.node.present(), time.monotonic()
            gone = {name: gone.get(name, now) for name in joined if name not in present}
            if all(name in gone and now - gone[name] >= rules.comeback for name in joined):
                return
            time.sleep(POLL_SECONDS)

    def _wait(self, wanted: int, *, over: bool = False) -> None:
        """Waits until so many parties are there, or as long as was agreed; fewer than the minimum end the run.

        Where all rounds are over, those who have heard so will not come any more.
        """
        rules = self.file.rounds
        end = time.monotonic() + (rules.comeback if over else rules.join_timeout)
        while len(self.node.present()) < wanted and time.monotonic() < end and not self._asked_to_stop.is_set():
            if len(self.file.parties) - len(self.door.left) < max(1, rules.minimum or 1):
                break
            time.sleep(POLL_SECONDS)
        present = self.node.present()
        if len(present) < max(1, rules.minimum or 1) and not over:
            names = ", ".join(sorted(present)) or "nobody"
            raise RunError(
                f"A round needs {rules.minimum} parties, but after {rules.join_timeout:g} s there are {len(present)} "
                f"({names}).{self.recorder.last_good()}"
            )

    def _next_round(self) -> bool:
        """Runs a round and puts it on record; returns whether it was the last one."""
        number, experiment = len(self.scores.records) + 1, self.file.experiment
        self.callbacks.on_phase("training")
        start = time.perf_counter()
        evaluate = number % experiment.evaluate_every == 0 or number == experiment.rounds
        outcome = self._insist(number, evaluate)
        record = self.scores.add(number, without_unknown(outcome))
        record["seconds"] = time.perf_counter() - start
        finished = number == experiment.rounds or bool(experiment.patience and self.scores.stale >= experiment.patience)
        self.recorder.add_round(record)
        self._keep_best(record)
        every = self.file.rounds.checkpoint
        if finished or (every and number % every == 0):
            self.recorder.save(number, self._state(), self.best, finished=finished)
            self.callbacks.on_checkpoint(number, self.directory.path)
        self.callbacks.on_round(record)
        return finished

    def _insist(self, number: int, evaluate: bool) -> RoundOutcome:
        """Returns what a round found out; one with too few parties is begun anew when enough of them are there."""
        failures = 0
        while True:
            try:
                return self.session.round(number, evaluate=evaluate)
            except ClientsAbsent as lost:
                failures += 1
                if failures == MOST_FAILURES or self._asked_to_stop.is_set():
                    raise RunError(
                        f"Round {number} had too few parties {failures} times in a row. The last time: {lost}"
                        f"{self.recorder.last_good()}"
                    ) from lost
                log.warning("Round %d waits for parties: %s", number, lost)
                self.callbacks.on_phase("waiting for parties")
                time.sleep(min(failures, 10) * POLL_SECONDS)
                self._wait(max(1, self.file.rounds.minimum or 1))

    def _keep_best(self, record: Mapping[str, Any]) -> None:
        """Keeps the global model of the best round, or of the last one where none was scored."""
        shared = self.setup.method.shared(self.session.server)
        if shared is not None and self.scores.best_shared.round in (0, record["round"]):
            self.best[GLOBAL] = RoundModels(record, Tree(shared=map_tree(torch.clone, shared)))

    def _summary(self, begun: float) -> dict[str, Any]:
        """Returns what result.json holds."""
        experiment, scores = self.file.experiment, self.scores
        best = scores.summary(len(self.file.parties))
        rows = []
        for position, row in enumerate(best["per_client"]):
            name = self.file.parties[row.get("client", position)]
            rows.append({**row, "client": name, "model": "its own", "nodes": None, "edges": None})
        return {
            "graft": graft.__version__,
            "method": self.setup.name,
            "dataset": self.file.name,
            "partition": "own",
            "clients": len(self.file.parties),
            "seed": experiment.seed,
            "rounds": scores.records[-1]["round"],
            **best,
            "per_client": rows,
            "communication": describe_traffic(scores.traffic, Exchange()),
            "seconds": {
                "total": time.perf_counter() - begun,
                "per_round": scores.seconds / len(scores.records),
                "setup": 0.0,
            },
            "peak_memory_bytes": peak_ram(),
            "device": "cpu",
            "threads": torch.get_num_threads(),
            "experiment": {**asdict(experiment), "evaluate_clients": "participants"},
            "hashes": {"federation": self.file.hash},
            "absences": count_absences(scores.records),
        }


def without_unknown(outcome: RoundOutcome) -> RoundOutcome:
    """Returns what a round found out without the numbers that parties kept to themselves."""
    details = outcome.tensors.get("details", Tree())
    known = unflatten({path: leaf for path, leaf in flatten(details) if bool(leaf.isfinite().all())})
    named = {name: value for name, value in outcome.facts.details.items() if not isinstance(value, torch.Tensor)}
    tensors = Tree({**outcome.tensors, "details": known})
    return outcome._replace(tensors=tensors, facts=replace(outcome.facts, details=named))


def count_absences(records: list[dict[str, Any]]) -> dict[str, int]:
    """Returns in how many rounds each party was absent."""
    counts: dict[str, int] = {}
    for record in records:
        for name in record.get("absent", {}):
            counts[name] = counts.get(name, 0) + 1
    return counts
