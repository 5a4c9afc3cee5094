"""Small deterministic federations: three clients of 12, 9 and 7 nodes, so that every fleet of them is padded.

The last node of every client is isolated, and the last client of three never sees the last class.
"""

import itertools
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from graft.data import cards
from graft.data.federation import Federation
from graft.data.graphs import cut, make_graph
from graft.engines.capture import capture_stream
from graft.engines.in_process import InProcess
from graft.federation.clients import Traffic
from graft.federation.method import Placement
from graft.federation.session import Session
from graft.federation.setup import Setup
from graft.models.build import assign_models
from graft.tensors.trees import flatten, map_tree, stack, strip_architectures
from graft.training.optimizers import Training

SIZES = (12, 9, 7)
CLASSES = 3


def toy_graph(nodes=12, seed=0, sparse=False, edgeless=False, missing=None):
    """A random graph with masks; its last node has no neighbour, and class `missing` does not occur."""
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


def toy_graphs(clients=3, sizes=SIZES, sparse=False):
    """One graph a client."""
    sizes = [sizes[client % len(sizes)] for client in range(clients)]
    return [
        toy_graph(size, seed=client, sparse=sparse, missing=CLASSES - 1 if client == 2 else None)
        for client, size in enumerate(sizes)
    ]


def toy_federation(clients=3, sizes=SIZES, sparse=False, crossing=6):
    """The clients of `toy_graphs`, their nodes shuffled into one graph with a few edges between clients."""
    parts = toy_graphs(clients, sizes, sparse)
    owner = np.repeat(np.arange(clients), [part.nodes for part in parts])
    random = np.random.default_rng(clients)
    membership = random.permutation(owner)
    place = np.argsort(membership, kind="stable")  # where the nodes of client 0, then 1, ... are in the whole graph
    offsets = np.cumsum([0] + [part.nodes for part in parts])
    edges = [place[part.edges + offset] for part, offset in zip(parts, offsets, strict=False)]
    if clients > 1:
        starts = [random.integers(offsets[c], offsets[c + 1] - 1, crossing) for c in range(clients)]
        edges += [place[np.stack([one, other])] for one, other in itertools.pairwise(starts)]

    def whole(pieces):
        pieces = np.concatenate(pieces)
        back = np.empty_like(pieces)
        back[place] = pieces
        return back

    graph = make_graph(
        "toy",
        whole([part.x.toarray() if sparse else part.x for part in parts]),
        np.concatenate(edges, axis=1),
        whole([part.y for part in parts]),
        CLASSES,
        {name: whole([getattr(part, name) for part in parts]) for name in ("train", "validation", "test")},
    )
    card = cards.card(graph, membership, "toy", 0, {})
    return Federation(graph, membership, cut(graph, membership), card)


def toy_setup(
    method,
    clients=3,
    models="gcn",
    *,
    sizes=SIZES,
    sparse=False,
    width=8,
    dropout=0.0,
    head="linear",
    seed=0,
    participation=1.0,
    topology=None,
    graphs=None,
    **training,
):
    """A federation ready to run; further settings are those of `Training`, and `graphs` replaces the toy graphs."""
    federation = toy_federation(clients, sizes, sparse)
    own_graphs = Placement(graphs) if graphs is not None else None
    graphs, scoring, groups = own_graphs or method.place(federation)
    assigned = assign_models(
        method.architecture or models,
        len(graphs),
        graphs[0].features,
        graphs[0].classes,
        width=width,
        dropout=dropout,
        head=head,
    )
    return Setup(
        method=method,
        name=type(method).__name__.lower(),
        graphs=graphs,
        models=list(map(method.model, assigned)),
        training=Training(**training),
        width=width,
        dropout=dropout,
        seed=seed,
        participation=participation,
        topology=topology,
        scoring=scoring,
        groups=groups,
    )


@dataclass
class Played:
    """A federation after some rounds."""

    session: Session
    traffic: Traffic
    records: dict  # what the method recorded, later rounds over earlier ones

    @property
    def server(self):
        return self.session.server

    @property
    def engine(self):
        return self.session.engine

    def client(self, number):
        """All that one client keeps."""
        return strip_architectures(self.engine.state()[number])


def play(setup, rounds=2, engine=None, first=1, state=None, whole=True):
    """Runs rounds without scores, as a run does; with `state` the server goes on from there.

    On a GPU rounds are captured as a whole where their method allows it, unless `whole` is off.
    """
    if not whole:
        setup = replace(setup, method=stepwise(setup.method))
    session = Session(setup, engine or InProcess(setup))
    session.server.state = state or session.server.state
    played = Played(session, Traffic(), {})
    with capture_stream(setup.device):
        for number in range(first, first + rounds):
            outcome = session.round(number, evaluate=False)
            played.traffic.add(outcome.facts.traffic)
            played.records |= outcome.details
    return played


def stepwise(method):
    """The same method with rounds that are not captured as a whole."""
    kind = type(type(method).__name__, (type(method),), {"capturable": False})
    return kind(**{field.name: getattr(method, field.name) for field in fields(method)})


def unbroken_and_resumed(setup, make=InProcess):
    """Four rounds in one go, and two and two with another engine that takes over what the first one kept."""
    unbroken, half = play(setup, rounds=4, engine=make(setup)), play(setup, rounds=2, engine=make(setup))
    engine = make(setup)
    engine.restore(half.engine.state())
    return unbroken, play(setup, rounds=2, engine=engine, first=3, state=half.server.state)


def random_weights(model, clients=1, seed=0):
    """Different weights for every client, biases included (which start at zero in some layers)."""
    generator = torch.Generator().manual_seed(seed)
    weights = stack([model.start(generator) for _ in range(clients)])
    for path, leaf in flatten(weights):
        if path.endswith("bias"):
            leaf.uniform_(-0.5, 0.5, generator=generator)
    return weights


def trained_tree(weights):
    """A copy whose floating-point leaves want gradients, and those leaves in order."""
    tree = map_tree(lambda leaf: leaf.detach().clone().requires_grad_(leaf.is_floating_point()), weights)
    return tree, [leaf for _, leaf in flatten(tree) if leaf.requires_grad]


def gap(first, second):
    """The largest difference between two trees of the same paths."""
    one, other = dict(flatten(first)), dict(flatten(second))
    assert one.keys() == other.keys()
    return max(float((leaf.double() - other[path].double()).abs().max()) for path, leaf in one.items())


def same(first, second):
    """Whether two trees are equal bit for bit, in their order too."""
    one, other = list(flatten(first)), list(flatten(second))
    return [path for path, _ in one] == [path for path, _ in other] and all(
        mine.dtype == yours.dtype and torch.equal(mine, yours) for (_, mine), (_, yours) in zip(one, other, strict=True)
    )
