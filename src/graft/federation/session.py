"""A session: the one place where rounds are run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graft.errors import RunError
from graft.federation.clients import Clients, Engine, Traffic
from graft.federation.evaluation import Losses, gather_losses
from graft.federation.method import LinkRecord
from graft.federation.metric_names import ACCURACY
from graft.federation.metrics import Measured
from graft.federation.server import Server
from graft.federation.setup import Setup
from graft.tensors.randomness import seed_for
from graft.tensors.trees import Tree, flatten, map_tree


@dataclass(frozen=True)
class RoundFacts:
    """What is known of a round without reading a tensor."""

    participants: list[int]
    traffic: Traffic
    links: LinkRecord
    loss_owners: list[tuple[str, int]]  # the step and the client of every loss
    details: dict[str, Any]  # what the method recorded; tensors of it are in `RoundOutcome.tensors.details`


class RoundOutcome(NamedTuple):
    """What a round found out."""

    tensors: Tree  # on the host: `losses`, `details` and, where models were scored, `correct`
    facts: RoundFacts
    measured: Mapping[str, Measured] = {}  # other metrics than the accuracy, by whose models they are of

    @property
    def losses(self) -> Losses:
        return Losses(self.facts.loss_owners, self.tensors.losses)

    @property
    def details(self) -> dict[str, Any]:
        """Returns what the method recorded, tensors read."""
        return self.facts.details | dict(flatten(self.tensors.get("details", Tree())))


class SessionState(NamedTuple):
    """All that a session needs to go on: state is data, and random draws need no state."""

    server: Tree
    clients: Mapping[int, Tree]


class Session:
    """A federation in progress: its server, its engine, who takes part, its rounds, scores and state."""

    def __init__(self, setup: Setup, engine: Engine) -> None:
        self.setup = setup
        self.engine = engine
        self.server = Server.of(setup)

    def participants(self, round: int) -> list[int]:
        """Returns the clients of a round: all, or a fair draw of floor(share * clients), at least one, sorted."""
        members, share = self.engine.members(), self.setup.participation
        if share == 1:
            return members
        count = max(1, int(share * len(members) + 1e-9))
        random = np.random.default_rng(seed_for(self.setup.seed, round, "participants"))
        return sorted(members[position] for position in random.choice(len(members), count, replace=False))

    def round(self, number: int, *, evaluate: bool = True) -> RoundOutcome:
        """Runs a round and, with `evaluate`, scores the models after it."""
        method, server = self.setup.method, self.server
        members = self.participants(number)
        server.begin(number)

        def run() -> tuple[Tree, RoundFacts]:
            traffic = Traffic()
            links = method.conduct(server, Clients(self.engine, number, members, traffic), self.setup.topology)
            owners, losses = gather_losses(self.engine.losses(), self.setup.device)
            details = server.take_records()
            tensors = Tree({name: value for name, value in details.items() if isinstance(value, Tensor)})
            correct = self.evaluate(number) if evaluate else Tree()
            facts = RoundFacts(members, traffic, links, owners, details)
            return Tree(losses=losses, details=tensors, correct=correct), facts

        outcome = RoundOutcome(*self.engine.execute(server, evaluate if method.capturable else None, run))
        diverged = outcome.losses.first_not_finite()
        if diverged is not None:
            step, client = diverged
            raise RunError(
                f"The loss of client {self.setup.client_name(client)} is no longer a finite number in step '{step}' of "
                f"{self.setup.name}, round {number}; a smaller learning_rate may help."
            )
        measuring = evaluate and self.setup.metrics != ACCURACY
        return outcome._replace(measured=self.measure(number)) if measuring else outcome

    def evaluate(self, number: int) -> Tree:
        """Returns how many nodes of each client are classified correctly, by every kind of model the method has."""
        everyone = Clients(self.engine, number, self.engine.members())
        return self.setup.method.evaluate(self.server, everyone)

    def measure(self, number: int) -> dict[str, Measured]:
        """Returns the metrics of every client's nodes, by every kind of model the method has."""
        everyone = Clients(self.engine, number, self.engine.members())
        replies = self.setup.method.evaluate_metrics(self.server, everyone)
        metrics, positive = self.setup.metrics, self.setup.positive
        return {models: Measured.of(reply, metrics, positive) for models, reply in replies.items()}

    def count_nodes(self) -> tuple[Tensor, Tensor]:
        """Returns how many nodes every client has, in all [clients, pooled] and in each mask [clients, pooled, 3]."""
        replies = Clients(self.engine, 0, self.engine.members()).ask(self.setup.method.count)
        return replies.nodes.cpu(), replies.totals.cpu()

    def state(self) -> SessionState:
        """Returns what a checkpoint holds."""
        return SessionState(self.server.state, self.engine.state())

    def copy_state(self, fields: Collection[str] | None = None) -> dict[int, Tree]:
        """Returns a copy of what clients keep, of these fields or of all but the optimisers."""
        return self.engine.copy_state(fields)

    def restore(self, state: SessionState) -> None:
        """Goes on from a state of before."""
        self.server.state = map_tree(
            lambda leaf: leaf.to(self.setup.device) if isinstance(leaf, torch.Tensor) else leaf, state.server
        )
        self.server.cache.clear()
        self.engine.restore(state.clients)

    def close(self) -> None:
        self.engine.close()
