"""A session: the one place where rounds are run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graft.errors import RunError
from graft.federation.clients import Clients, ClientsAbsent, Engine, Traffic
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
    scored: list[int] | None = None  # whose models were scored, where not everybody's
    absent: Mapping[int, str] = field(default_factory=dict)  # who did not take part although drawn, and why


class RoundOutcome(NamedTuple):
    """What a round found out."""

    # On the host: `losses`, `details` and, where models were scored, `correct`; where those of some clients were,
    # `counts` of what `Session.count_nodes` gives of them.
    tensors: Tree
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
            return list(members)
        count = max(1, int(share * len(members) + 1e-9))
        random = np.random.default_rng(seed_for(self.setup.seed, round, "participants"))
        # A few of a million are drawn without a list of all of them.
        return sorted(members[position] for position in random.choice(len(members), count, replace=False).tolist())

    def round(self, number: int, *, evaluate: bool = True) -> RoundOutcome:
        """Runs a round and, with `evaluate`, scores the models after it."""
        method, server = self.setup.method, self.server
        drawn = self.participants(number)
        server.begin(number)

        def run() -> tuple[Tree, RoundFacts]:
            traffic = Traffic()
            links, absent = self._conduct(number, drawn, traffic)
            members = [client for client in drawn if client not in absent]
            owners, losses = gather_losses(self.engine.losses(), self.setup.device)
            details = server.take_records()
            tensors = Tree({name: value for name, value in details.items() if isinstance(value, Tensor)})
            results, scored = Tree(losses=losses, details=tensors, correct=Tree()), None
            if evaluate:
                present = [client for client in self.engine.members() if client not in absent] if absent else None
                scores, scored = self._score(number, members if self.setup.on_demand else present)
                results |= scores
            return results, RoundFacts(members, traffic, links, owners, details, scored, absent)

        outcome = RoundOutcome(*self.engine.execute(server, evaluate if method.capturable else None, run))
        diverged = outcome.losses.first_not_finite()
        if diverged is not None:
            step, client = diverged
            raise RunError(
                f"The loss of client {self.setup.client_name(client)} is no longer a finite number in step '{step}' of "
                f"{self.setup.name}, round {number}; a smaller learning_rate may help."
            )
        scored = outcome.facts.scored
        if not evaluate or self.setup.metrics == ACCURACY or scored == []:
            return outcome
        return outcome._replace(measured=self._measure(number, scored))

    def _conduct(self, number: int, drawn: Sequence[int], traffic: Traffic) -> tuple[LinkRecord, dict[int, str]]:
        """Runs what the method does in a round; where clients are lost in it, all of it again without them."""
        method, server, minimum = self.setup.method, self.server, self.setup.minimum
        before = None if minimum is None else copy_tree(server.state)
        absent: dict[int, str] = {}
        while True:
            present = [client for client in drawn if client not in absent]
            try:
                clients = Clients(self.engine, number, present, traffic, average=self.setup.average)
                return method.conduct(server, clients, self.setup.topology), absent
            except ClientsAbsent as lost:
                absent |= lost.reasons
                if before is None:
                    raise
                server.state, traffic.up, traffic.down, traffic.peer = copy_tree(before), 0, 0, 0
                server.cache.clear()
                server.take_records()
                lost.rewind()
                if len(drawn) - len(absent) < max(1, minimum or 1):
                    raise ClientsAbsent(absent, str(lost)) from lost

    def _score(self, number: int, clients: Sequence[int] | None) -> tuple[Tree, list[int] | None]:
        """Returns the scores of all or some clients, with what they are divided by where not of all, and whose they
        are: those of clients that do not answer, or keep their scores to themselves, are left out, and so is a model of
        the server's that not all of them score."""
        everything = True
        while True:
            try:
                scores = Tree(correct=self.evaluate(number, clients) if everything else self._own(number, clients))
                if clients is None:
                    return scores, None
                scores.counts = self._count(number, clients)
                return scores, list(clients)
            except ClientsAbsent as lost:
                if self.setup.minimum is None:
                    raise
                if everything and self._of_server(lost.step):
                    everything = False
                    continue
                asked = self.engine.members() if clients is None else clients
                clients = [client for client in asked if client not in lost.reasons]
                if not clients:
                    return Tree(), []

    def _of_server(self, step: str) -> bool:
        """Returns whether a step scores a model that the server sends beside those that clients hold."""
        return step in ("score_shared", "measure_shared") and self.setup.method.personalised(self.server) is None

    def _own(self, number: int, clients: Sequence[int] | None) -> Tree:
        """Returns what `evaluate` does of the models alone that clients hold."""
        method = self.setup.method
        replies = method.ask_own_models(self.server, self._clients(number, clients), method.score, method.score_shared)
        return Tree(own=replies.correct)

    def _measure(self, number: int, clients: Sequence[int] | None) -> Mapping[str, Measured]:
        """Returns the metrics of clients; of the models alone that they hold where not all measure the server's, and
        none where not all measure these."""
        try:
            return self.measure(number, clients)
        except ClientsAbsent as lost:
            if self.setup.minimum is None:
                raise
            if not self._of_server(lost.step):
                return {}
        method, asked = self.setup.method, self._clients(number, clients)
        try:
            reply = method.ask_own_models(self.server, asked, method.measure, method.measure_shared).stacked()
        except ClientsAbsent:
            return {}
        return {"own": Measured.of(reply, self.setup.metrics, self.setup.positive)}

    def evaluate(self, number: int, clients: Sequence[int] | None = None) -> Tree:
        """Returns how many nodes of all or some clients are classified correctly, by every kind of model the method
        has."""
        return self.setup.method.evaluate(self.server, self._clients(number, clients))

    def measure(self, number: int, clients: Sequence[int] | None = None) -> dict[str, Measured]:
        """Returns the metrics of the nodes of all or some clients, by every kind of model the method has."""
        replies = self.setup.method.evaluate_metrics(self.server, self._clients(number, clients))
        metrics, positive = self.setup.metrics, self.setup.positive
        return {models: Measured.of(reply, metrics, positive) for models, reply in replies.items()}

    def _clients(self, number: int, clients: Sequence[int] | None) -> Clients:
        return Clients(self.engine, number, self.engine.members() if clients is None else clients)

    def count_nodes(self) -> tuple[Tensor, Tensor]:
        """Returns how many nodes every client has, in all [clients, pooled] and in each mask [clients, pooled, 3]; of
        no client where they are read on demand: those of the ones that are scored come with their scores."""
        if self.setup.on_demand:
            return torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, 1, 3, dtype=torch.int64)
        counts = self._count(0)
        return counts.nodes.cpu(), counts.totals.cpu()

    def _count(self, number: int, clients: Sequence[int] | None = None) -> Tree:
        replies = self._clients(number, clients).ask(self.setup.method.count)
        return Tree(nodes=replies.nodes, totals=replies.totals)

    def state(self) -> SessionState:
        """Returns what a checkpoint holds; where clients are read on demand, only of those that were ever asked."""
        return SessionState(self.server.state, self.engine.state())

    def likeness(self, clients: Collection[int]) -> SessionState:
        """Returns a state with the names, shapes and dtypes that one of before must have: of everybody, or where
        clients are read on demand, of these, of which one for each architecture is read."""
        if not self.setup.on_demand:
            return self.state()
        models = {client: self.setup.models[client] for client in clients if client < len(self.setup.models)}
        examples = {model: client for client, model in models.items()}
        states = self.engine.copy_state(None, list(examples.values()))
        by_model = {model: states[client] for model, client in examples.items()}
        return SessionState(self.server.state, {client: by_model[model] for client, model in models.items()})

    def copy_state(
        self, fields: Collection[str] | None = None, clients: Collection[int] | None = None
    ) -> Mapping[int, Tree]:
        """Returns a copy of what all or some clients keep, of these fields or of all but the optimisers."""
        return self.engine.copy_state(fields, clients)

    def restore(self, state: SessionState) -> None:
        """Goes on from a state of before."""
        self.server.state = map_tree(
            lambda leaf: leaf.to(self.setup.device) if isinstance(leaf, torch.Tensor) else leaf, state.server
        )
        self.server.cache.clear()
        self.engine.restore(state.clients)

    def close(self) -> None:
        self.engine.close()


def copy_tree(tree: Tree) -> Tree:
    """Returns a tree of its own memory."""
    return map_tree(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)
