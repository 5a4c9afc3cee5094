"""Finds the forms of a method's messages by running the method itself on a few made-up clients.

A size that follows the number of clients, or of their nodes, is told from one that does not by federations of different
numbers of clients and of nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graft.data.graphs import Graph, make_graph
from graft.engines.forms import Audience, FieldForm, Fields, Forms, StepForm, dtype_of, is_finite
from graft.engines.in_process import InProcess
from graft.engines.threads import use_threads
from graft.errors import InputError
from graft.federation.clients import Mail, Replies, Request
from graft.federation.method import Method
from graft.federation.metric_names import ACCURACY
from graft.federation.peers import PeerMethod
from graft.federation.reveals import covering, declared
from graft.federation.session import Session
from graft.federation.setup import Setup
from graft.federation.topologies import Topology
from graft.models import assign_models
from graft.models.architecture import Model
from graft.tensors.trees import Tree, flatten
from graft.training.optimizers import Training

STAND_INS = ("gcn", "sage")  # for architectures that the one who rehearses does not know
LARGEST_STEP = 0.01  # learning rate of made-up clients, whose losses must stay finite
MOST_BATCHES = 2


@dataclass(frozen=True)
class Rehearsal:
    """A federation as its agreement describes it: all that the forms of its messages can depend on."""

    method: Method
    name: str  # of the method, for messages to people
    clients: int  # of the real federation
    features: int
    classes: int
    models: Sequence[str | Model] = ()  # the architectures that are known here; others are stood in for
    width: int = 64
    dropout: float = 0.5
    head: str = "linear"
    training: Training = field(default_factory=Training)
    rounds: int = 100
    topology: Topology | None = None
    metrics: tuple[str, ...] = ACCURACY
    positive: int | None = None


class Company(NamedTuple):
    """Made-up clients, and who of them takes part in which round."""

    sizes: tuple[int, ...]  # numbers of nodes
    casts: tuple[tuple[int, ...], ...]  # everybody at first, newcomers, all but newcomers, one alone


# Largest and total numbers of nodes do not go on in the third as they begin in the first two; numbers of clients do.
COMPANIES = (
    Company((5, 11, 7), ((0, 1, 2), (0, 1, 2), (0,), (1, 2), (0, 1, 2))),
    Company((5, 11, 7, 13), ((0, 1), (0, 1, 2, 3), (2, 3), (0, 1, 2), (0, 1, 2, 3))),
    Company((6, 19, 9, 8, 4), ((0,), (1, 2, 3), (0, 1, 2, 3, 4), (0, 4), (0, 1, 2, 3, 4))),
)


def rehearse(rehearsal: Rehearsal) -> Forms:
    """Returns what every step of a method may be told and may reply in a federation."""
    method = rehearsal.method
    if type(method).place is not Method.place:
        raise InputError(
            f"Method '{rehearsal.name}' needs the data of all clients in one place, so it cannot run where each keeps "
            "its own; `graft list methods` names others."
        )
    architectures = architectures_of(rehearsal)
    with use_threads(1):  # more would only wait for each other
        try:
            observed = observe(rehearsal, architectures)
        except InputError:
            if len(architectures) == 1:
                raise
            observed = observe(rehearsal, architectures[:1])  # with these settings it may want one architecture
    return {step: observed[step].form(rehearsal, step) for step in sorted(observed)}


def architectures_of(rehearsal: Rehearsal) -> list[str | Model]:
    """Returns the architectures to rehearse with: the one there must be, or at least two that are different."""
    method = rehearsal.method
    if method.architecture:
        return [method.architecture]
    default = str(method.experiment_defaults.get("models", STAND_INS[0]))
    known = list(rehearsal.models) or [default]
    if method.one_model:
        return known[:1]
    return [*known, *(name for name in STAND_INS if name not in known)][: max(2, len(set(map(str, known))))]


def observe(rehearsal: Rehearsal, architectures: Sequence[str | Model]) -> dict[str, Observed]:
    """Runs a few rounds of every company, with scores as a run has them, and returns what was said, step by step."""
    observed: dict[str, Observed] = defaultdict(Observed)
    last = max(rehearsal.rounds, 1)
    numbers = sorted({1, 2, 3, last // 2 + 1, last})  # methods may do something else in early and in late rounds
    for method in rehearsal.method.rehearsals():
        for position, company in enumerate(COMPANIES):
            setup = made_up(rehearsal, method, company, architectures)
            session = Staged(setup, Observing(setup, position, len(architectures), observed), company, numbers)
            session.count_nodes()
            for number in numbers:
                session.round(number)
    return dict(observed)


def made_up(rehearsal: Rehearsal, method: Method, company: Company, architectures: Sequence[str | Model]) -> Setup:
    """Returns a federation of made-up clients: the last one of more than three has no labels."""
    clients = len(company.sizes)
    graphs = [
        made_up_graph(rehearsal, nodes, client, labelled=client < 3) for client, nodes in enumerate(company.sizes)
    ]
    models = assign_models(
        list(architectures),
        clients,
        rehearsal.features,
        rehearsal.classes,
        width=rehearsal.width,
        dropout=rehearsal.dropout,
        head=rehearsal.head,
    )
    training = rehearsal.training
    return Setup(
        method=method,
        name=rehearsal.name,
        graphs=graphs,
        models=[method.model(model) for model in models],
        training=replace(
            training,
            epochs=1,
            batches=min(training.batches, MOST_BATCHES),
            learning_rate=min(training.learning_rate, LARGEST_STEP),
        ),
        width=rehearsal.width,
        dropout=rehearsal.dropout,
        participation=0.5,  # whoever it is: the engine must expect that some are not asked
        topology=rehearsal.topology and Topology("ring"),  # links have one form, whoever hears whom
        rounds=rehearsal.rounds,
        metrics=rehearsal.metrics,
        positive=rehearsal.positive,
    )


def made_up_graph(rehearsal: Rehearsal, nodes: int, client: int, *, labelled: bool) -> Graph:
    """Returns a small random graph; features of every other client are sparse, and its edges have weights."""
    random = np.random.default_rng([nodes, client])
    sparse = client % 2 == 0
    x = np.zeros((nodes, rehearsal.features), np.float32)
    if sparse:  # a few ones, and none at all for client 2: how many there are must not look like a form
        ones = 0 if client == 2 else max(1, x.size // 12)
        x.flat[random.permutation(x.size)[:ones]] = 1
    else:
        x[:] = random.random(x.shape)
    ends = random.integers(0, nodes, (2, 2 * nodes))
    part = np.arange(nodes) % 3
    y = random.integers(0, rehearsal.classes, nodes) if labelled else np.full(nodes, -1)
    masks = {name: (part == place) & labelled for place, name in enumerate(("train", "validation", "test"))}
    weights = None if sparse else random.random(2 * nodes) + 0.5
    return make_graph("rehearsal", x, ends, y, rehearsal.classes, masks, weights=weights)


class Staged(Session):
    """A session in which it is said who takes part."""

    def __init__(self, setup: Setup, engine: InProcess, company: Company, numbers: Sequence[int]) -> None:
        super().__init__(setup, engine)
        self._casts = dict(zip(numbers, company.casts, strict=False))

    def participants(self, round: int) -> list[int]:
        return list(self._casts[round])


class Observing(InProcess):
    """An engine of clients each alone, as they will be, that notes what is said."""

    def __init__(self, setup: Setup, company: int, kinds: int, observed: dict[str, Observed]) -> None:
        super().__init__(setup, alone=True)
        self._company, self._kinds, self._observed = company, kinds, observed
        self._asked: list[str] = []  # the steps since peers heard anything

    def ask(self, request: Request) -> Replies:
        replies = super().ask(request)
        step = self._observed[request.step]
        for position, client in enumerate(request.clients):
            if request.each is not None:
                message = request.each[client]
            else:
                message = inbox_like(request.mail, position) if request.mail else request.message
            where = self._company, client % self._kinds
            step.message.add(*where, message)
            step.reply.add(*where, replies[client])
        if request.mail is None:
            self._asked.append(request.step)
        else:
            self._hear(request.step, {path for path, _ in flatten(request.mail.sent)})
        return replies

    def _hear(self, receive: str, sent: set[str]) -> None:
        """Notes who hears what: an exchange asks for what is sent, perhaps for links, and lets it be received."""
        *_, last = self._asked
        chose = self._observed[last].reply.paths() == {"links"} != sent
        send = self._asked[-2] if chose else last
        for step in (send, last):
            self._observed[step].heard = True
        self._observed[receive].hears = send
        self._asked.clear()


def inbox_like(mail: Mail, position: int) -> Tree:
    """Returns an inbox of one recipient with everybody's messages: those that it does not hear have the same form."""
    return Tree(sent=mail.sent, links=mail.links[position], senders=torch.tensor(mail.senders))


class Leaf(NamedTuple):
    """What was seen of a leaf."""

    company: int
    kind: int  # of the client's architecture
    shape: tuple[int, ...]
    dtype: str
    finite: bool


class Observations:
    """All messages of a step, or all of its replies."""

    def __init__(self) -> None:
        self.leaves: dict[str, set[Leaf]] = defaultdict(set)
        self.layouts: Counter[tuple[int, frozenset[str]]] = Counter()  # by kind, which fields came together
        self.shapes: set[frozenset[tuple[str, tuple[int, ...]]]] = set()  # of the leaves that came together
        self.empty = False  # whether there was no message at all, once

    def add(self, company: int, kind: int, tree: Any) -> None:
        if tree is None:
            self.empty = True
            return
        leaves = dict(flatten(tree))
        self.layouts[kind, frozenset(leaves)] += 1
        shapes = {path: tuple(leaf.shape) if isinstance(leaf, Tensor) else () for path, leaf in leaves.items()}
        self.shapes.add(frozenset(shapes.items()))
        for path, leaf in leaves.items():
            self.leaves[path].add(Leaf(company, kind, shapes[path], str(dtype_of(leaf)), is_finite(leaf)))

    def paths(self) -> set[str]:
        return set(self.leaves)

    def fields(self, clients: int, where: str) -> Fields:
        """Returns the form of every field, in a federation of so many clients."""
        forms = {path: self._field(path, clients, f"'{path}' of {where}") for path in sorted(self.leaves)}
        return {path: replace(form, tied=self._tied(path, forms)) for path, form in forms.items()}

    def _tied(self, path: str, forms: Fields) -> str:
        """Returns the first field of the same branch whose one free size was always that of this one: factors of a
        matrix have one rank."""
        branch = path.rpartition("/")[0]
        if len(forms[path].free) != 1:
            return ""
        messages = [dict(shapes) for shapes in self.shapes]
        for other in forms:
            if other == path:
                return ""
            if other.rpartition("/")[0] != branch or len(forms[other].free) != 1:
                continue
            axis, other_axis = forms[path].free[0], forms[other].free[0]
            pairs = {
                (shapes[path][axis], shapes[other][other_axis])
                for shapes in messages
                if path in shapes and other in shapes
            }
            if len(pairs) > 1 and all(size == other_size for size, other_size in pairs):
                return other
        return ""

    def _field(self, path: str, clients: int, where: str) -> FieldForm:
        leaves = self.leaves[path]
        if len({len(leaf.shape) for leaf in leaves}) > 1:
            raise InputError(f"{where} comes with different numbers of axes, so it has no form that could be checked.")
        sizes = [size_along(axis, leaves, clients) for axis in range(len(next(iter(leaves)).shape))]
        sent_by = {
            kind: {path in layout for other, layout in self.layouts if other == kind} for kind, _ in self.layouts
        }
        always = all(path in layout for _, layout in self.layouts)
        unless = "" if always else self._alternative(path)
        return FieldForm(
            shape=tuple(size for size, _ in sizes),
            dtype=" or ".join(sorted({leaf.dtype for leaf in leaves})),
            always=always or bool(unless),
            unless=unless,
            finite=all(leaf.finite for leaf in leaves),
            by_model=any(by_model for _, by_model in sizes)
            or (
                len({True in sent for sent in sent_by.values()}) > 1
                and all(len(sent) == 1 for sent in sent_by.values())
            ),
        )

    def _alternative(self, path: str) -> str:
        """Returns the field that is there whenever this one is not: a matrix, and its factors in a branch."""
        related = (
            other for other in sorted(self.leaves) if other.startswith(f"{path}/") or path.startswith(f"{other}/")
        )
        return next(
            (other for other in related if all((path in layout) != (other in layout) for _, layout in self.layouts)), ""
        )


def size_along(axis: int, leaves: Iterable[Leaf], clients: int) -> tuple[int | None, bool]:
    """Returns the size that a leaf has along an axis, or None, and whether it depends on the architecture."""
    seen: dict[tuple[int, int], set[int]] = defaultdict(set)
    for leaf in leaves:
        seen[leaf.company, leaf.kind].add(leaf.shape[axis])
    by_company, by_kind = (
        {
            key[part]: set[int]().union(*(sizes for other, sizes in seen.items() if other[part] == key[part]))
            for key in seen
        }
        for part in (0, 1)
    )
    sizes = set[int]().union(*seen.values())
    if len(sizes) == 1 and sizes != {0}:  # of what was always empty nobody knows how large it can be
        return next(iter(sizes)), False
    if len(by_company) == len(COMPANIES) and all(len(sizes) == 1 for sizes in by_company.values()):
        first, second, third = (next(iter(by_company[company])) for company in range(len(COMPANIES)))
        growth = second - first
        if growth > 0 and third - second == growth:
            return first + growth * (clients - len(COMPANIES[0].sizes)), False
    return None, len(by_kind) > 1 and all(len(sizes) == 1 for sizes in by_kind.values())


@dataclass
class Observed:
    """What was said to a step and by it."""

    message: Observations = field(default_factory=Observations)
    reply: Observations = field(default_factory=Observations)
    heard: bool = False  # by peers
    hears: str = ""

    def form(self, rehearsal: Rehearsal, step: str) -> StepForm:
        method, clients = rehearsal.method, rehearsal.clients
        audience: Audience = "server"
        if isinstance(method, PeerMethod):  # each peer keeps its own record, and scores itself
            audience = "peers" if self.heard else "nobody"
        table = declared(method)

        def described(path: str, form: FieldForm) -> FieldForm:
            key = covering(table, f"{step}/{path}")
            logged = covering(dict.fromkeys(method.logged, ""), f"{step}/{path}") is not None
            return replace(form, raw=key is not None and table[key].raw, logged=logged)

        replied = self.reply.fields(clients, f"the reply of step '{step}'")
        return StepForm(
            message=self.message.fields(clients, f"the message to step '{step}'"),
            reply={path: described(path, form) for path, form in replied.items()},
            empty=self.message.empty,
            audience=audience,
            hears=self.hears,
        )
