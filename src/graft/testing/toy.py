"""Small deterministic federations: three clients of 12, 9 and 7 nodes, so that every fleet of them is padded.

The last node of every client is isolated, and the last client of three never sees the last class.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from graft.data import cards
from graft.data.federation import FederationData
from graft.data.graphs import MASKS, Graph, cut, edge_weights, make_graph
from graft.engines.capture import capture_stream
from graft.engines.in_process import InProcess
from graft.federation.clients import Engine, Traffic
from graft.federation.method import Method, Placement
from graft.federation.server import Server
from graft.federation.server_optimizer_names import ServerOptimizer
from graft.federation.session import Session
from graft.federation.setup import Setup
from graft.federation.topologies import Topology
from graft.models.build import assign_models
from graft.tensors.trees import Tree, flatten, strip_architectures
from graft.training.optimizers import Training

SIZES = (12, 9, 7)
CLASSES = 3


def toy_graph(
    nodes: int = 12, seed: int = 0, *, sparse: bool = False, edgeless: bool = False, missing: int | None = None
) -> Graph:
    """Returns a random graph with masks; its last node has no neighbour, and class `missing` does not occur."""
    random = np.random.default_rng([nodes, seed])
    width = 24 if sparse else 6
    x = random.normal(size=(nodes, width))
    if sparse:  # at most two features a node, and none at all for the last one
        rank = random.random(x.shape).argsort(axis=1)
        x[rank >= 2] = 0
        x[-1] = 0
    edges = np.empty((2, 0), int) if edgeless else random.integers(0, nodes - 1, (2, 2 * nodes))
    y = random.permutation(nodes) % CLASSES
    if missing is not None:
        y[y == missing] = (missing + 1) % CLASSES
    part = np.arange(nodes) % 5
    return replace(make_graph("toy", x, edges, y, CLASSES), train=part <= 1, validation=part == 2, test=part >= 3)


def toy_graphs(clients: int = 3, sizes: Sequence[int] = SIZES, *, sparse: bool = False) -> list[Graph]:
    """Returns one graph a client."""
    return [
        toy_graph(size, seed=client, sparse=sparse, missing=CLASSES - 1 if client == 2 else None)
        for client, size in zip(range(clients), itertools.cycle(sizes), strict=False)
    ]


def with_weights(graph: Graph, seed: int = 0) -> Graph:
    """Returns the same graph with weights of edges, from a tenth to ten, the same in both directions."""
    low, high = np.sort(graph.edges, axis=0)
    drawn = 10 ** np.random.default_rng([graph.nodes, seed]).uniform(-1, 1, (graph.nodes, graph.nodes))
    return replace(graph, weights=drawn[low, high].astype(np.float32))


def toy_federation(
    clients: int = 3, sizes: Sequence[int] = SIZES, *, sparse: bool = False, crossing: int = 6
) -> FederationData:
    """Returns the clients of `toy_graphs`, their nodes shuffled into one graph with a few edges between clients."""
    return join_graphs(toy_graphs(clients, sizes, sparse=sparse), crossing)


def join_graphs(parts: Sequence[Graph], crossing: int = 6) -> FederationData:
    """Returns the federation of some clients' graphs: one graph, their nodes shuffled, with edges between clients."""
    owner = np.repeat(np.arange(len(parts)), [part.nodes for part in parts])
    random = np.random.default_rng(len(parts))
    membership = random.permutation(owner)
    position = np.argsort(membership, kind="stable")  # of the nodes of client 0, then 1, ... in the whole graph
    offsets = np.cumsum([0] + [part.nodes for part in parts])
    edges = [position[part.edges + offset] for part, offset in zip(parts, offsets, strict=False)]
    if len(parts) > 1:
        ends = [random.integers(offsets[c], offsets[c + 1] - 1, crossing) for c in range(len(parts))]
        edges += [position[np.stack(pair)] for pair in itertools.pairwise(ends)]
        edges += [position[np.stack(pair[::-1])] for pair in itertools.pairwise(ends)]
    joined = np.concatenate(edges, axis=1)
    weights = None
    if any(part.weights is not None for part in parts):  # edges between clients have weight 1
        inside = np.concatenate([edge_weights(part) for part in parts])
        weights = np.concatenate([inside, np.ones(joined.shape[1] - len(inside), np.float32)])

    def whole(pieces: list[Any]) -> Any:
        joined = np.concatenate(pieces)
        shuffled = np.empty_like(joined)
        shuffled[position] = joined
        return shuffled

    graph = make_graph(
        "toy",
        whole([part.x if isinstance(part.x, np.ndarray) else part.x.toarray() for part in parts]),
        joined,
        whole([part.y for part in parts]),
        parts[0].classes,
        {name: whole([getattr(part, name) for part in parts]) for name in MASKS},
        weights=weights,
    )
    return FederationData(graph, membership, cut(graph, membership), cards.card(graph, membership, "toy", 0, {}))


def toy_setup(
    method: Method,
    clients: int = 3,
    models: Any = "gcn",
    *,
    sizes: Sequence[int] = SIZES,
    sparse: bool = False,
    width: int = 8,
    dropout: float = 0.0,
    head: str = "linear",
    own_start: bool = False,
    seed: int = 0,
    participation: float = 1.0,
    topology: Topology | None = None,
    rounds: int = 100,
    server_optimizer: ServerOptimizer | None = None,
    graphs: Sequence[Graph] | None = None,
    federation: FederationData | None = None,
    **training: Any,
) -> Setup:
    """Returns a federation ready to run; further settings are those of `Training`.

    `federation` replaces the toy federation, and `graphs` are trained on as they are, wherever the method would train.
    """
    if graphs is None:
        placement = method.place(federation or toy_federation(clients, sizes, sparse=sparse))
    else:
        placement = Placement(list(graphs))
    example = placement.graphs[0]
    assigned = assign_models(
        method.architecture or models,
        len(placement.graphs),
        example.features,
        example.classes,
        width=width,
        dropout=dropout,
        head=head,
    )
    return Setup(
        method=method,
        name=type(method).__name__.lower(),
        graphs=placement.graphs,
        models=list(map(method.model, assigned)),
        training=Training(**training),
        width=width,
        dropout=dropout,
        own_start=own_start,
        seed=seed,
        participation=participation,
        topology=topology,
        server_optimizer=server_optimizer,
        scoring=placement.scoring,
        membership=placement.membership,
        scoring_membership=placement.scoring_membership,
        rounds=rounds,
    )


@dataclass
class FinishedRounds:
    """A federation after some rounds."""

    session: Session
    traffic: Traffic
    records: dict[str, Any]  # what the method recorded, later rounds over earlier ones

    @property
    def server(self) -> Server:
        return self.session.server

    @property
    def engine(self) -> Any:
        return self.session.engine

    def client(self, number: int) -> Tree:
        """Returns all that one client keeps."""
        return strip_architectures(self.session.engine.state()[number])


def run_rounds(
    setup: Setup,
    rounds: int = 2,
    engine: Engine | None = None,
    first: int = 1,
    state: Tree | None = None,
    *,
    whole: bool = True,
) -> FinishedRounds:
    """Runs rounds without scores, as a run does; with `state` the server goes on from there.

    On a GPU rounds are captured as a whole where their method allows it, unless `whole` is off.
    """
    if not whole:
        setup = replace(setup, method=declaring(setup.method, capturable=False))
    session = Session(setup, engine or InProcess(setup))
    session.server.state = state or session.server.state
    return run_session(session, first, rounds)


def run_session(session: Session, first: int, rounds: int) -> FinishedRounds:
    """Runs rounds of a session, from that number on."""
    finished = FinishedRounds(session, Traffic(), {})
    with capture_stream(session.setup.device):
        for number in range(first, first + rounds):
            outcome = session.round(number, evaluate=False)
            finished.traffic.add(outcome.facts.traffic)
            finished.records |= outcome.details
    return finished


def declaring(method: Method, **declarations: Any) -> Method:
    """Returns the same method with other class variables, such as `capturable`."""
    kind = type(type(method).__name__, (type(method),), declarations)
    same_settings: Method = kind(**{field.name: getattr(method, field.name) for field in fields(method)})
    return same_settings


def unbroken_and_resumed(
    setup: Setup, make: Callable[[Setup], Engine] = InProcess
) -> tuple[FinishedRounds, FinishedRounds]:
    """Returns four rounds in one go, and two and two with another session that takes over what the first one kept."""
    unbroken, half = run_rounds(setup, rounds=4, engine=make(setup)), run_rounds(setup, rounds=2, engine=make(setup))
    session = Session(setup, make(setup))
    session.restore(half.session.state())
    return unbroken, run_session(session, first=3, rounds=2)


def gap(first: Any, second: Any, *, relative: bool = False) -> float:
    """Returns the largest difference between two trees of the same paths; not a number if any value is none.

    With `relative`, differences in a leaf that holds larger numbers than 1 are divided by its largest: fifth moments
    and squared gradients may be in the thousands, and rounding is as much larger there.
    """
    leaves, others = dict(flatten(first)), dict(flatten(second))
    if leaves.keys() != others.keys():
        raise AssertionError(f"one tree has {', '.join(leaves)}, the other {', '.join(others)}")
    gaps = []
    for path, leaf in leaves.items():
        if leaf.numel():
            scale = max(1.0, float(leaf.double().abs().max())) if relative else 1.0
            gaps.append(float((leaf.double() - others[path].double()).abs().max()) / scale)
    return math.nan if any(map(math.isnan, gaps)) else max(gaps, default=0.0)


def same(first: Any, second: Any) -> bool:
    """Returns whether two trees are equal bit for bit, in their order too."""
    leaves, others = list(flatten(first)), list(flatten(second))
    return [path for path, _ in leaves] == [path for path, _ in others] and all(
        leaf.dtype == other.dtype and torch.equal(leaf, other)
        for (_, leaf), (_, other) in zip(leaves, others, strict=True)
    )
