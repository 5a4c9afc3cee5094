"""What leaves a client is what its method declares: every field, what it depends on, and no raw data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graft.data.edges import clean_edges
from graft.data.graphs import Bools, Graph, keep_edges, with_edges
from graft.engines.in_process import InProcess
from graft.federation.clients import Replies, Request
from graft.federation.method import Method
from graft.federation.reveals import Reveals, covering, declared
from graft.federation.session import Session
from graft.federation.setup import Setup
from graft.tensors.trees import flatten
from graft.testing.claim import claim, contract_setup, require
from graft.testing.raw_data import find_raw_data
from graft.testing.toy import join_graphs, toy_graphs

SIZES = (29, 23, 19)  # numbers of nodes that nothing else has, so that a field of one entry a node is seen as that
ROUNDS = 3


class Sent(NamedTuple):
    """A leaf of a reply, as it left a client."""

    client: int
    round: int
    turn: int  # how often the step was asked in this round before
    field: str  # "step/path"
    leaf: Tensor


Change = Callable[[Graph], Graph]


@claim
def every_field_that_leaves_is_declared(method: Method) -> None:
    """Every field of every reply is declared, and every declaration is of a field that is sent."""
    table, replies = declared(method), observe(method, toy_graphs(sizes=SIZES))
    undeclared = sorted({sent.field for sent in replies.sent if covering(table, sent.field) is None})
    require(
        not undeclared,
        f"{', '.join(undeclared)} leaves a client but is not declared in `reveals`, which has {', '.join(table)}",
    )
    seen = {covering(table, sent.field) for sent in replies.sent}
    own = vars(type(method)).get("reveals", {})
    for field, reveals in table.items():
        # A method may inherit declarations of steps that it never asks for.
        expected = field in own or field.partition("/")[0] in replies.steps
        require(
            field in seen or bool(reveals.when) or not expected,
            f"{field} is declared in `reveals` but was not sent in {ROUNDS} rounds: say with `when` when it is",
        )


@claim
def fields_depend_on_what_they_declare(method: Method) -> None:
    """A field changes with no data of its client but those that it declares, and with some of those."""
    parts, table = toy_graphs(sizes=SIZES), declared(method)
    unproven = {field for field, reveals in table.items() if reveals.depends_on and not (reveals.model or reveals.when)}
    before = observe(method, parts, rounds=1)
    unproven &= {str(covering(table, sent.field)) for sent in before.sent if sent.client == 0 and sent.leaf.numel()}
    for kind, change in ONE_CHANGE:
        after = observe(method, [change(parts[0]), *parts[1:]], rounds=1)
        unproven -= check_moved(table, kind, moved_fields(before, after))
    if not unproven:
        return
    # Counts need not change with a single node, and some messages only from the second round on.
    before = observe(method, parts)
    for kind, change in LARGE_CHANGE:
        moved = moved_fields(before, observe(method, [change(parts[0]), *parts[1:]]))
        unproven -= {str(covering(table, field)) for field in moved if kind in of(table, field).depends_on}
    for field in sorted(unproven):
        require(False, f"{field} is declared to depend on {', '.join(table[field].depends_on)}, but on none it does")


@claim
def no_message_holds_raw_data(method: Method) -> None:
    """No field holds the features, edges or labels of its client in any form, unless it is declared to."""
    table, replies = declared(method), observe(method, toy_graphs(sizes=SIZES))
    for sent in replies.sent:
        if of(table, sent.field).raw:
            continue
        form = find_raw_data(sent.leaf.detach().cpu().numpy(), replies.setup.graphs[sent.client])
        require(form is None, f"{sent.field} of client {sent.client} in round {sent.round} holds {form}")


class Observed(NamedTuple):
    """A federation whose replies were watched."""

    setup: Setup
    sent: list[Sent]
    steps: set[str]  # that were asked


class Watching(InProcess):
    """An engine that keeps every reply."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.sent: list[Sent] = []
        self.steps: set[str] = set()

    def ask(self, request: Request) -> Replies:
        replies = super().ask(request)
        self.steps.add(request.step)
        for client in replies.clients:
            for path, leaf in flatten(replies[client]):
                field = f"{request.step}/{path}"
                self.sent.append(Sent(client, request.round, request.turn, field, torch.as_tensor(leaf).clone()))
        return replies


def observe(method: Method, parts: list[Graph], rounds: int = ROUNDS) -> Observed:
    """Runs rounds with scores as a run does, and returns all that left clients."""
    setup = contract_setup(method, federation=join_graphs(parts), dropout=0.5)
    engine = Watching(setup)
    session = Session(setup, engine)
    session.count_nodes()
    for number in range(1, rounds + 1):
        session.round(number)
    return Observed(setup, engine.sent, engine.steps)


def of(table: Mapping[str, Reveals], field: str) -> Reveals:
    """Returns what is declared of a field; one that is not declared depends on nothing."""
    key = covering(table, field)
    return Reveals("nothing", ()) if key is None else table[key]


def moved_fields(before: Observed, after: Observed) -> set[str]:
    """Returns the fields of client 0 that differ between two runs."""
    leaves, others = (
        {(sent.round, sent.turn, sent.field): sent.leaf for sent in run.sent if sent.client == 0}
        for run in (before, after)
    )
    common = leaves.keys() & others.keys()
    changed = {key for key in common if moved(leaves[key], others[key])} | (leaves.keys() ^ others.keys())
    return {field for _, _, field in changed}


def moved(before: Tensor, after: Tensor) -> bool:
    """Returns whether a leaf is another, by more than the rounding of a sum in another order."""
    if before.shape != after.shape:
        return True
    return not torch.allclose(before.double(), after.double(), rtol=1e-5, atol=1e-7, equal_nan=True)


def check_moved(table: Mapping[str, Reveals], kind: str, fields: set[str]) -> set[str]:
    """Requires that fields which moved with some data declare them; returns the keys of those declarations."""
    for field in sorted(fields):
        reveals = of(table, field)
        if not reveals.model:
            require(
                kind in reveals.depends_on,
                f"{field} changes with the {kind} of one node of its client, but is declared as {reveals}",
            )
    return {str(covering(table, field)) for field in fields}


def add_edge(graph: Graph) -> Graph:
    """Returns a graph in which node 0, on which its client trains, has one neighbour more."""
    neighbours = graph.edges[1, graph.edges[0] == 0]
    stranger = next(node for node in range(1, graph.nodes) if node not in neighbours)
    return with_edges(
        graph, clean_edges(graph.name, np.concatenate([graph.edges, [[0], [stranger]]], axis=1), graph.nodes)
    )


def first_node(graph: Graph) -> Bools:
    selected: Bools = np.arange(graph.nodes) == 0
    return selected


def relabel(graph: Graph, step: int) -> Graph:
    """Returns a graph in which node 0 is of another class."""
    return replace(graph, y=np.where(first_node(graph), (graph.y + step) % graph.classes, graph.y))


ONE_CHANGE: list[tuple[str, Change]] = [  # of one node on which the client trains, or of one edge
    ("features", lambda graph: replace(graph, x=np.where(first_node(graph)[:, None], -graph.x, graph.x))),
    ("edges", add_edge),
    ("labels", partial(relabel, step=1)),  # the class of the node becomes each of the others,
    ("labels", partial(relabel, step=2)),  # for a field may be about a single class
]
LARGE_CHANGE: list[tuple[str, Change]] = [
    ("features", lambda graph: replace(graph, x=1 - 2 * graph.x)),
    ("edges", lambda graph: keep_edges(graph, np.arange(0))),
    ("labels", lambda graph: replace(graph, y=(graph.y + 1) % graph.classes)),
    ("labels", lambda graph: replace(graph, y=np.zeros_like(graph.y))),  # for a field may be of which classes there are
]
