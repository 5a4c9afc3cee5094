"""Which labels a method looks at before it is scored: never those of test nodes, and those of validation nodes as it
declares in `judges_unless`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor

from graft.data.graphs import Graph
from graft.federation.method import Method, judging_settings
from graft.fields import search_spaces
from graft.tensors.trees import Tree
from graft.testing.claim import claim, contract_setup, require
from graft.testing.contract import predictions
from graft.testing.leaks import SIZES, Watching
from graft.testing.toy import join_graphs, run_rounds, same, toy_graphs

ROUNDS = 2
Nodes = Literal["validation", "test"]


@claim
def labels_of_test_nodes_change_nothing(method: Method) -> None:
    """Whatever the labels of test nodes are, rounds send, leave and predict the same."""
    check_blind(method, "test", "")


@claim
def labels_of_validation_nodes_are_read_as_declared(method: Method) -> None:
    """With the values of `judges_unless`, or where it judges by training nodes, a method does not read them."""
    declared = judging_settings(type(method))
    unknown = sorted(declared.keys() - {field.name for field in fields(method)})
    require(not unknown, f"{', '.join(unknown)} is declared in `judges_unless`, but is no field")
    blind = replace(method, **{name: values[0] for name, values in declared.items()})
    with_values = ", ".join(f"{name} = {values[0]!r}" for name, values in declared.items())
    check_blind(blind, "validation", f" with {with_values}, as `judges_unless` has it" if declared else "")
    if declared:
        judging = judging_method(method)
        check_blind(judging, "validation", " where models are judged by training nodes", judge_on="training")


def judging_method(method: Method, names: Iterable[str] | None = None) -> Method:
    """Returns a method that judges models, by all settings that may have it do so or by some: of several choices with
    the last that does, of a number with the last that tunings try or else the one that it has."""
    types, spaces = get_type_hints(type(method)), search_spaces(type(method))
    declared = judging_settings(type(method))
    values = {}
    for name in declared if names is None else names:
        choices = (False, True) if types[name] is bool else spaces[name].choices if name in spaces else ()
        if get_origin(types[name]) is Literal:
            choices = get_args(types[name])
        judging = [choice for choice in choices if choice not in declared[name]]
        values[name] = judging[-1] if judging else getattr(method, name)
    return replace(method, **values)


class Learned(NamedTuple):
    """All that some rounds leave, but what is only put on record."""

    server: Tree
    clients: list[Tree]
    predicted: list[Tensor]
    sent: list[tuple[Any, ...]]  # client, round, turn and field of every leaf that left a client
    leaves: list[Tensor]


def check_blind(method: Method, nodes: Nodes, where: str, **training: Any) -> None:
    """Requires that nothing changes with the labels of some nodes."""
    before, after = (learned(method, graphs, **training) for graphs in right_and_wrong(nodes))
    for what, one, other in differences(before, after):
        require(same(one, other), f"{what} changes with the labels of {nodes} nodes{where}")


def differences(before: Learned, after: Learned) -> Iterator[tuple[str, Any, Any]]:
    """Yields what has to be the same, with what it was before and after."""
    yield "what the server keeps", before.server, after.server
    for client, (state, other_state) in enumerate(zip(before.clients, after.clients, strict=True)):
        yield f"what client {client} keeps", state, other_state
    require(before.sent == after.sent, "which messages there are changes with labels that are not to be read")
    for (_, _, _, field), one, other in zip(before.sent, before.leaves, after.leaves, strict=True):
        yield field, Tree(leaf=one), Tree(leaf=other)
    for client, (one, other) in enumerate(zip(before.predicted, after.predicted, strict=True)):
        yield f"what client {client} predicts", Tree(leaf=one), Tree(leaf=other)


def learned(method: Method, graphs: list[Graph], **training: Any) -> Learned:
    """Returns what rounds without scores leave."""
    setup = contract_setup(method, federation=join_graphs(graphs), dropout=0.5, **training)
    engine = Watching(setup)
    finished = run_rounds(setup, ROUNDS, engine)
    sent = [entry for entry in engine.sent if not entry.field.startswith(tuple(method.logged))]
    return Learned(
        finished.server.state,
        [finished.client(client) for client in engine.members()],
        predictions(finished),
        [entry[:4] for entry in sent],
        [entry.leaf for entry in sent],
    )


def right_and_wrong(nodes: Nodes) -> tuple[list[Graph], list[Graph]]:
    """Returns toy graphs, and the same ones with wrong labels at their validation or test nodes."""
    graphs = toy_graphs(sizes=SIZES)
    return graphs, [with_wrong_labels(graph, nodes) for graph in graphs]


def with_wrong_labels(graph: Graph, nodes: Nodes) -> Graph:
    return replace(graph, y=np.where(graph.masks[nodes], (graph.y + 1) % graph.classes, graph.y))
