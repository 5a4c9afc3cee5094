"""The record of one organisation: its own model, scored on its own nodes, round by round, in an ordinary run directory.

What it finds out about its model is nobody else's business; the round that is best by its own validation nodes is the
one whose model it ends with.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from graft.data.federation import FederationData
from graft.engines.client_group import select_fields
from graft.engines.fetching import fetch
from graft.engines.messages import drop_client_axis
from graft.errors import InputError
from graft.experiments.callbacks import Callback
from graft.experiments.engines import Host
from graft.experiments.experiment import Experiment
from graft.experiments.recorder import open_record
from graft.experiments.result import Result
from graft.experiments.run import Run
from graft.experiments.run_directory import RunDirectory
from graft.federation.clients import Replies, Request, Round, StepLosses, Traffic
from graft.federation.fleet import Fleet
from graft.federation.method import Method, find_step
from graft.federation.metrics import Measured
from graft.federation.server import Server
from graft.federation.session import RoundFacts, RoundOutcome, Session, SessionState
from graft.federation.setup import Setup
from graft.tensors.trees import Tree

Losses = Mapping[str, float | None]


class OwnModel:
    """An engine with one client, whose model is scored and whose steps somebody else runs."""

    def __init__(self, fleet: Fleet, method: Method) -> None:
        self.fleet, self._method = fleet, method

    def members(self) -> list[int]:
        return [0]

    def ask(self, request: Request) -> Replies:
        function, _ = find_step(self._method, request.step)
        return Replies([([0], function(self.fleet.for_call(request.round, request.step, request.turn)))])

    def execute(self, server: Server, kind: Any, round: Round) -> tuple[Tree, Any]:  # noqa: ARG002
        return fetch(*round())

    def losses(self) -> StepLosses:
        return []

    def state(self) -> dict[int, Tree]:
        return {0: drop_client_axis(self.fleet.state)}

    def copy_state(
        self,
        fields: Collection[str] | None = None,
        clients: Collection[int] | None = None,  # noqa: ARG002
    ) -> dict[int, Tree]:
        copied: Tree = Tree(drop_client_axis(select_fields(self.fleet.state, fields)))
        return {0: copied}

    def restore(self, state: Mapping[int, Tree]) -> None:
        """Restores nothing: the state is where its steps are run."""

    def close(self) -> None: ...


class OwnRounds(Session):
    """A session that runs no round: it finds out how good the own model is after one that was run."""

    def __init__(self, setup: Setup, fleet: Fleet) -> None:
        method = own_models_only(setup.method)
        alone = replace(setup, method=method, numbers=None, federation=0, topology=None, participation=1.0, names=None)
        super().__init__(alone, OwnModel(fleet, method))
        self.last: tuple[int, Losses, Traffic] = (0, {}, Traffic())  # the round that counted last

    def round(self, number: int, *, evaluate: bool = True) -> RoundOutcome:
        """Returns what is known of a round: nothing but its number where the organisation was absent."""
        counted, losses, traffic = self.last
        if number != counted:
            return RoundOutcome(
                Tree(losses=torch.empty(0), details=Tree(), correct=Tree()), RoundFacts([], Traffic(), {}, [], {})
            )
        values = torch.tensor([float("nan") if loss is None else loss for loss in losses.values()])
        facts = RoundFacts([0], traffic, {}, [(step, 0) for step in losses], {})
        correct = self.evaluate(number) if evaluate else Tree()
        outcome = RoundOutcome(Tree(losses=values, details=Tree(), correct=correct), facts)
        measuring = evaluate and self.setup.metrics != ("accuracy",)
        return outcome._replace(measured=self.measure(number)) if measuring else outcome

    def likeness(self, clients: Collection[int]) -> SessionState:
        """Returns the state without optimisers: in its first round an organisation has one, and its record not yet."""
        return SessionState(self.server.state, self.copy_state(None, clients))

    def evaluate(self, number: int, clients: Sequence[int] | None = None) -> Tree:
        return Tree(own=self._clients(number, clients).ask(self.setup.method.score).correct)

    def measure(self, number: int, clients: Sequence[int] | None = None) -> dict[str, Measured]:
        reply = self._clients(number, clients).ask(self.setup.method.measure).stacked()
        return {"own": Measured.of(reply, self.setup.metrics, self.setup.positive)}


def own_models_only(method: Method) -> Method:
    """Returns the method as a single organisation sees it: what a server would keep is not there."""
    nothing = {name: lambda self, server: None for name in ("shared", "personalised")}  # noqa: ARG005
    namespace = {**nothing, "__module__": type(method).__module__, "__qualname__": type(method).__qualname__}
    kind = type(type(method).__name__, (type(method),), namespace)
    same: Method = kind(**{entry.name: getattr(method, entry.name) for entry in fields(method)})
    return same


class OwnRecord:
    """What one organisation puts on record while rounds count, and in the end."""

    def __init__(
        self, out: Path, experiment: Experiment, data: FederationData, setup: Setup, fleet: Fleet, callbacks: Callback
    ) -> None:
        directory = RunDirectory(out)
        self.begun = time.perf_counter()
        self.session = OwnRounds(setup, fleet)
        checkpoint = directory.load() if directory.experiment.is_file() else None
        threads = torch.get_num_threads()
        experiment = replace(experiment, threads=0)
        recorder = open_record(directory, experiment, self.session.setup, data, threads, "cpu", checkpoint)
        host = Host(setup.device.type, lambda: 0, lambda setup: self.session.engine)  # noqa: ARG005
        self.run = Run(experiment, data, self.session, recorder, callbacks, host)
        self.run.begin(checkpoint)
        callbacks.on_start(self.run.start())

    @property
    def rounds(self) -> int:
        """Returns how many rounds are on record."""
        return len(self.run.scores.records)

    def add(self, round: int, losses: Losses, traffic: Traffic) -> None:
        """Puts a round that counted on record, and those before it in which the organisation was absent."""
        self.session.last = round, losses, traffic
        while self.rounds < round:
            self.run.next_round(threading.Event())

    def finish(self) -> Result:
        """Writes the result of all rounds."""
        if not self.rounds:
            raise InputError("No round has counted for this party: there is nothing to write.")
        self.run.finished = True
        assert self.run.recorder is not None
        self.run.recorder.save(self.rounds, self.session.state(), self.run.best.kept, finished=True)
        return self.run.conclude(self.begun, 0.0)
