"""How a method behaves: it trains, is reproducible, and does the same however its clients are grouped or resumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from operator import ge, gt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graft.data.graphs import Graph
from graft.engines.in_process import InProcess
from graft.engines.messages import pack, unpack
from graft.errors import InputError
from graft.experiments.validation import validated
from graft.federation.clients import Replies, Request
from graft.federation.method import Method
from graft.federation.session import Session, SessionState
from graft.federation.setup import Setup
from graft.fields import Bound, rules, search_spaces
from graft.tensors.trees import Tree, check_message, flatten, map_tree
from graft.testing.claim import claim, contract_setup, require
from graft.testing.toy import (
    FinishedRounds,
    gap,
    join_graphs,
    run_rounds,
    run_session,
    same,
    toy_graph,
    toy_graphs,
    with_weights,
)

LEAST_CHANGE = 1e-5  # of logits after two rounds in which a client learnt other labels


@claim
def training_changes_predictions(method: Method) -> None:
    """What every client predicts after two rounds depends on the labels that it has."""
    parts = toy_graphs()
    before = predictions(run_rounds(contract_setup(method, federation=join_graphs(parts))))
    for client, graph in enumerate(parts):
        relabelled = [*parts[:client], other_labels(graph), *parts[client + 1 :]]
        after = predictions(run_rounds(contract_setup(method, federation=join_graphs(relabelled))))
        position = client if len(before) > 1 else 0
        require(
            float((after[position] - before[position]).abs().max()) > LEAST_CHANGE,
            f"client {client} predicts the same after two rounds whatever the labels of its training nodes are, so it "
            "did not train the model that it predicts with",
        )


@claim
def same_seed_same_weights(method: Method) -> None:
    """Two runs of one seed are equal bit for bit, and one of another seed is not."""
    runs = [run_rounds(contract_setup(method, dropout=0.5, seed=seed)) for seed in (0, 0, 1)]
    for client in runs[0].engine.members():
        require(same(runs[0].client(client), runs[1].client(client)), f"client {client} differs from run to run")
    require(same(runs[0].server.state, runs[1].server.state), "the server differs from run to run")
    require(not same(runs[0].client(0), runs[2].client(0)), "another seed gives the same client")


@claim
def a_fleet_equals_its_clients_one_by_one(method: Method) -> None:
    """Clients that are trained together end where they would alone, with dropout and without."""
    for dropout in (0.0, 0.5):
        # With seed 0 two synthetic nodes of fedtad_released are so equally near that rounding chooses the neighbour.
        setup = contract_setup(method, dropout=dropout, seed=1)
        together, alone = run_rounds(setup, rounds=3), run_rounds(setup, rounds=3, engine=InProcess(setup, alone=True))
        check_equal(together, alone, f"with dropout {dropout}")


@claim
def resumed_equals_unbroken(method: Method) -> None:
    """Two rounds and, from their state as bytes, two more are four rounds, whoever takes part."""
    for participation in (1.0, 0.5):
        setup = contract_setup(method, clients=4, dropout=0.5, participation=participation)
        unbroken, half = run_rounds(setup, rounds=4), run_rounds(setup, rounds=2)
        session = Session(setup, InProcess(setup))
        session.restore(through_bytes(half.session.state()))
        resumed = run_session(session, first=3, rounds=2)
        where = f"after a resume, with participation {participation}"
        require(same(unbroken.server.state, resumed.server.state), f"the server differs {where}")
        for client in resumed.engine.members():
            require(same(unbroken.client(client), resumed.client(client)), f"client {client} differs {where}")


@claim
def clients_that_are_not_asked_keep_their_state(method: Method) -> None:
    """A round changes the clients that take part in it, and nobody else."""
    setup = contract_setup(method, clients=4, participation=0.25)
    engine = InProcess(setup)
    before = {client: map_tree(torch.clone, state) for client, state in engine.state().items()}
    finished = run_rounds(setup, rounds=1, engine=engine)
    changed = [client for client, state in engine.state().items() if differs(before[client], state)]
    participants = finished.session.participants(1)
    require(changed == participants, f"clients {participants} took part in a round, and {changed} were changed by it")


@claim
def messages_are_trees(method: Method) -> None:
    """Every message and every reply is a tree of tensors and numbers."""
    setup = contract_setup(method)
    engine = KeepsMessages(setup)
    run_rounds(setup, engine=engine)
    for step, message in engine.messages:
        check_message(message, f"a message of step '{step}'")


@claim
def no_state_appears_after_the_first_round(method: Method) -> None:
    """Every field that the server or a client keeps is there after one round."""
    setup = contract_setup(method)
    finished = run_rounds(setup, rounds=1)
    before = state_paths(finished)
    run_session(finished.session, first=2, rounds=2)
    for keeper, paths in state_paths(finished).items():
        late = ", ".join(path for path in paths if path not in before[keeper])
        require(paths == before[keeper], f"{keeper} keeps another state in round 3 than in round 1: {late or 'less'}")


@claim
def settings_are_checked(method: Method) -> None:
    """Unknown settings are refused, and so are values of another type or out of bounds."""
    kind: Any = type(method)

    def checked(**settings: Any) -> Any:
        return validated(kind, settings, kind.__name__)

    refuses(checked, "no_such_field", 1)
    for field in fields(method):
        refuses(checked, field.name, object())
    for name, rule in rules(kind).items():
        for value in outside(rule.bounds, whole=rule.whole):
            refuses(checked, name, value)
            refuses(partial(replace, method), name, value)


@claim
def search_spaces_can_be_tried(method: Method) -> None:
    """Every end and every choice of a declared search space makes a method, and so does what the field is now: it lies
    in the space, or is a first trial of its own."""
    for name, space in search_spaces(type(method)).items():
        for value in (*space.ends, getattr(method, name)):
            try:
                replace(method, **{name: value})
            except InputError as error:
                require(False, f"the search space {space} of {name} holds {value!r}, which is refused: {error}")


@claim
def a_federation_of_one_trains(method: Method) -> None:
    """A single client runs its rounds, and learns from its labels."""
    graph = toy_graph()
    learnt = [
        predictions(run_rounds(contract_setup(method, federation=join_graphs([part]))))
        for part in (graph, other_labels(graph))
    ]
    require(gap({"": learnt[0][0]}, {"": learnt[1][0]}) > LEAST_CHANGE, "a client alone does not train")


@claim
def a_client_without_edges_is_fine(method: Method) -> None:
    """A client whose nodes have no neighbours leaves everything finite."""
    parts = [toy_graph(9), toy_graph(8, edgeless=True)]
    check_finite(run_rounds(contract_setup(method, federation=join_graphs(parts, crossing=0))))


@claim
def a_client_without_labels_is_fine(method: Method) -> None:
    """A client that has nothing to train on, or to be scored on, has a model, and leaves everything finite; beside it
    is one that lacks a class."""
    parts = [toy_graph(9), unlabelled(toy_graph(8)), toy_graph(10, missing=1)]
    setup = contract_setup(method, federation=join_graphs(parts, crossing=0), weight_decay=0.01)
    together = run_rounds(setup)
    check_finite(together)
    for client, logits in enumerate(predictions(together)):
        require(
            bool(logits.isfinite().all()), f"client {client} predicts what is not finite, beside one without labels"
        )
    check_equal(together, run_rounds(setup, engine=InProcess(setup, alone=True)), "beside one without labels")


@claim
def weights_of_edges_are_fine(method: Method) -> None:
    """Edges of any weights, and clients without any beside others with them, leave everything finite, and clients that
    are trained together end where they would alone."""
    federation = join_graphs([with_weights(part, seed) for seed, part in enumerate(toy_graphs())])
    first, second, *rest = federation.clients
    federation = replace(federation, clients=[first, replace(second, weights=None), *rest])
    setup = contract_setup(method, federation=federation, seed=1)
    together = run_rounds(setup)
    check_finite(together)
    check_equal(together, run_rounds(setup, engine=InProcess(setup, alone=True)), "where edges have weights")


class KeepsMessages(InProcess):
    """An engine that keeps what is said between the server, or peers, and clients."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.messages: list[tuple[str, Any]] = []  # the step, and what it was given or returned

    def ask(self, request: Request) -> Replies:
        replies = super().ask(request)
        given = [request.message, *(request.each or {}).values(), request.mail and request.mail.sent]
        returned = [replies[client] for client in replies.clients]
        self.messages += [(request.step, message) for message in (*given, *returned) if message is not None]
        return replies


def predictions(finished: FinishedRounds) -> list[Tensor]:
    """Returns every client's logits of its nodes, as the method itself predicts."""
    setup, logits = finished.session.setup, dict[int, Tensor]()
    for fleet in finished.engine.fleets:
        stacked = setup.method.logits(fleet.on(fleet.scoring)).detach()
        logits |= {client: stacked[row, : setup.graphs[client].nodes] for row, client in enumerate(fleet.clients)}
    return [logits[client] for client in setup.clients]


def other_labels(graph: Graph) -> Graph:
    """Returns a graph whose training nodes have other labels, and other numbers of each."""
    last = graph.classes - 1  # becomes the class before it, and every other one the next
    return replace(graph, y=np.where(np.asarray(graph.train), np.where(graph.y < last, graph.y + 1, last - 1), graph.y))


def through_bytes(state: SessionState) -> SessionState:
    """Returns a state as it would come out of a file."""

    def copied(tree: Tree) -> Tree:
        read: Tree = unpack(pack({}, tree))[1]
        return read

    return SessionState(copied(state.server), {client: copied(own) for client, own in state.clients.items()})


def differs(before: Tree, after: Tree) -> bool:
    """Returns whether any leaf changed that was there before."""
    leaves = dict(flatten(after))
    return any(not torch.equal(leaf, leaves[path]) for path, leaf in flatten(before))


def state_paths(finished: FinishedRounds) -> dict[str, list[str]]:
    """Returns the paths of what the server and every client keep."""
    states = {"the server": finished.server.state}
    states |= {f"client {client}": finished.client(client) for client in finished.engine.members()}
    return {keeper: [path for path, _ in flatten(state)] for keeper, state in states.items()}


def refuses(make: Callable[..., Any], name: str, value: Any) -> None:
    """Requires a setting to be refused by an InputError that names it."""
    try:
        make(**{name: value})
    except InputError as error:
        require(name in str(error), f"{name} = {value!r} is refused without its name: {error}")
        return
    require(False, f"the setting {name} = {value!r} is not refused")


def outside(bounds: tuple[Bound, ...], *, whole: bool) -> list[float]:
    """Returns a number beyond each bound."""
    values = []
    for bound in bounds:
        step = 0 if bound.words.startswith(("above", "below")) else 1
        sign = -1 if bound.holds in (ge, gt) else 1
        if abs(bound.limit) != float("inf"):
            values.append(bound.limit + sign * step)
    return [int(value) if whole else float(value) for value in values]


def unlabelled(graph: Graph) -> Graph:
    """Returns a graph without any label."""
    nowhere = np.zeros(graph.nodes, bool)
    return replace(graph, y=np.full_like(graph.y, -1), train=nowhere, validation=nowhere, test=nowhere)


def check_equal(together: FinishedRounds, alone: FinishedRounds, where: str) -> None:
    """Requires that clients of a fleet are what they are alone."""
    for client in together.engine.members():
        difference = gap(together.client(client), alone.client(client), relative=True)
        require(difference < 1e-5, f"client {client} differs by {difference:.1e} in a fleet {where}")


def check_finite(finished: FinishedRounds) -> None:
    """Requires that all which clients and server keep is finite."""
    states = {"the server": finished.server.state}
    states |= {f"client {client}": finished.client(client) for client in finished.engine.members()}
    for keeper, state in states.items():
        for path, leaf in flatten(state):
            require(bool(torch.as_tensor(leaf).isfinite().all()), f"'{path}' of {keeper} is not finite")
