"""Data made worse on purpose, client by client, to see what a method can bear.

The definitions are those of OpenFGL. Every client is perturbed once, after the partition and the split, and every
kind of perturbation draws from a stream of its own, which depends on its strength, the client and the seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from math import floor, isfinite
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from graft.data.graphs import Features, Graph, Ints, normalise
from graft.data.streams import stream
from graft.errors import InputError

LEAST_TRAIN = 1  # training nodes that label sparsity leaves to a client


@dataclass(frozen=True)
class Perturbation:
    """What is done to the clients' data; with the defaults, nothing."""

    label_sparsity: float = 0.0  # share of the training nodes that become unlabelled
    label_noise: float = 0.0  # share of the training labels that become another class
    edge_sparsity: float = 0.0  # share of the edges that are taken away
    edge_noise: float = 0.0  # share of the edges that are replaced by edges between other nodes
    feature_sparsity: float = 0.0  # share of every node's non-zero features that become zero
    feature_noise: float = 0.0  # standard deviation of what is added to every feature
    perturbed_clients: str = "all"  # or their numbers, as 0,3
    evaluate_on: Literal["clean", "perturbed"] = "clean"  # the data that models are scored on

    def __post_init__(self) -> None:
        for name, ratio in self.strengths.items():
            most = float("inf") if name == "feature_noise" else 1
            if not (0 <= ratio <= most and isfinite(ratio)):
                up_to = "" if most > 1 else " and at most 1"
                raise InputError(f"{name} is {ratio}; it must be at least 0{up_to}.")
        self.chosen(None)

    @property
    def strengths(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in KINDS}

    def __str__(self) -> str:
        """What differs from the defaults."""
        usual = {one.name: one.default for one in fields(self)}
        return " ".join(f"{name}={value}" for name, value in vars(self).items() if value != usual[name])

    @property
    def active(self) -> bool:
        return any(self.strengths.values())

    def chosen(self, clients: int | None) -> list[int]:
        """The clients that are perturbed."""
        if self.perturbed_clients == "all":
            return list(range(clients or 0))
        try:
            numbers = sorted({int(part) for part in self.perturbed_clients.split(",")})
        except ValueError:
            numbers = [-1]
        if numbers[0] < 0 or (clients is not None and numbers[-1] >= clients):
            possible = "" if clients is None else f" from 0 to {clients - 1}"
            raise InputError(
                f"perturbed_clients is '{self.perturbed_clients}'; it should be all, or numbers of clients{possible}, "
                f"as 0,3."
            )
        return numbers


def perturb(graphs: Sequence[Graph], how: Perturbation, seed: int, features: str = "raw") -> list[Graph]:
    """The clients' graphs, perturbed; `features` says how rows were scaled, and they are scaled so again."""
    chosen = how.chosen(len(graphs))
    return [
        _perturbed(graph, how, seed, client, features) if client in chosen else graph
        for client, graph in enumerate(graphs)
    ]


def _perturbed(graph: Graph, how: Perturbation, seed: int, client: int, features: str) -> Graph:
    before = graph.x
    for number, (name, change) in enumerate(KINDS.items()):
        strength = Fraction(str(getattr(how, name)))  # as it was written: 0.3 of 10 is 3, and not a little less
        if strength:
            ids = (number, strength.numerator, strength.denominator, client)
            graph = change(graph, strength, stream("perturbation", seed, *ids))
    return graph if graph.x is before or features not in BY_ROW else normalise(graph, features)


# Labels.


def drop_labels(graph: Graph, share: Fraction, random: np.random.Generator) -> Graph:
    """Take nodes out of the training mask; they stay in the graph."""
    nodes = _train_nodes(graph)
    count = min(round(share * len(nodes)), max(len(nodes) - LEAST_TRAIN, 0))
    train = np.zeros(graph.nodes, bool)
    train[random.permutation(nodes)[count:]] = True
    return replace(graph, train=train)


def confuse_labels(graph: Graph, share: Fraction, random: np.random.Generator) -> Graph:
    """Give training nodes another class, any of the others with equal chance."""
    nodes = _train_nodes(graph)
    wrong = random.permutation(nodes)[: round(share * len(nodes))]
    if graph.classes < 2 and len(wrong):
        raise InputError(f"label_noise puts another class in place of a label, and '{graph.name}' has only one.")
    labels = graph.y.copy()
    labels[wrong] = (labels[wrong] + random.integers(1, max(graph.classes, 2), len(wrong))) % graph.classes
    return replace(graph, y=labels)


def _train_nodes(graph: Graph) -> Ints:
    if graph.train is None:
        raise InputError(f"'{graph.name}' has no training nodes yet: split it before it is perturbed.")
    return np.flatnonzero(graph.train)


# Edges.


def drop_edges(graph: Graph, share: Fraction, random: np.random.Generator) -> Graph:
    """Keep a share of the undirected edges; all nodes stay."""
    return _with_edges(graph, _kept(graph, round((1 - share) * graph.edge_count), random))


def exchange_edges(graph: Graph, share: Fraction, random: np.random.Generator) -> Graph:
    """Take edges away, and put as many between nodes that had none; fewer where there are not enough of those."""
    count = round(share * graph.edge_count)
    kept = _kept(graph, graph.edge_count - count, random)
    return _with_edges(graph, np.concatenate([kept, _unlinked(graph, count, random)], axis=1))


def _once(graph: Graph) -> Ints:
    """Every undirected edge once, the lower node first."""
    return graph.edges[:, graph.edges[0] < graph.edges[1]]


def _kept(graph: Graph, count: int, random: np.random.Generator) -> Ints:
    once = _once(graph)
    return once[:, random.permutation(once.shape[1])[:count]]


def _unlinked(graph: Graph, count: int, random: np.random.Generator) -> Ints:
    """Different pairs of nodes without an edge, the lower node first."""
    # All pairs are numbered row by row; pair (i, j) has number first[i] + j - i - 1.
    rows = np.arange(graph.nodes)
    first = rows * (graph.nodes - 1) - rows * (rows - 1) // 2
    low, high = _once(graph)
    taken = first[low] + high - low - 1  # sorted, as the edges are
    free = graph.nodes * (graph.nodes - 1) // 2 - len(taken)
    drawn = random.choice(free, min(count, free), replace=False) if free else np.empty(0, np.int64)
    # The number of the k-th free pair is k plus the taken ones before it.
    pairs = drawn + np.searchsorted(taken - np.arange(len(taken)), drawn, side="right")
    low = np.searchsorted(first, pairs, side="right") - 1
    return np.stack([low, pairs - first[low] + low + 1])


def _with_edges(graph: Graph, once: Ints) -> Graph:
    keys = np.concatenate([once[0] * graph.nodes + once[1], once[1] * graph.nodes + once[0]])
    keys.sort()
    return replace(graph, edges=np.stack(np.divmod(keys, graph.nodes)))


# Features.


def drop_features(graph: Graph, share: Fraction, random: np.random.Generator) -> Graph:
    """Set a share of every node's non-zero features to zero, rounded down."""
    x = csr_array(graph.x, copy=True)
    counts = np.diff(x.indptr)
    rows = np.repeat(np.arange(graph.nodes), counts)
    order = np.lexsort((random.random(len(rows)), rows))
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    wanted = np.array([floor(share * int(count)) for count in counts], np.int64)
    x.data[order[rank < wanted[rows]]] = 0
    x.eliminate_zeros()
    return replace(graph, x=x if issparse(graph.x) else x.toarray())


def blur_features(graph: Graph, deviation: Fraction, random: np.random.Generator) -> Graph:
    """Add normal noise to all features; they do not stay sparse."""
    dense = graph.x.toarray() if issparse(graph.x) else graph.x
    return replace(graph, x=dense + np.float32(deviation) * random.standard_normal(dense.shape, np.float32))


Change = Callable[[Graph, Fraction, np.random.Generator], Graph]
KINDS: dict[str, Change] = {  # in the order in which they act; the place of a kind is part of its seed
    "label_sparsity": drop_labels,
    "label_noise": confuse_labels,
    "edge_sparsity": drop_edges,
    "edge_noise": exchange_edges,
    "feature_sparsity": drop_features,
    "feature_noise": blur_features,
}
BY_ROW = ("row", "l2")  # ways to scale features that look at one node alone
FIELDS = tuple(one.name for one in fields(Perturbation))


# The whole graph, and its record.


def assemble(whole: Graph, parts: Sequence[Graph], membership: Ints) -> Graph:
    """The whole graph with what the clients hold now; edges between clients stay as they are."""
    nodes = [np.flatnonzero(membership == client) for client in range(len(parts))]
    back = np.argsort(np.concatenate(nodes))
    crossing = whole.edges[:, membership[whole.edges[0]] != membership[whole.edges[1]]]
    inside = [own[part.edges] for own, part in zip(nodes, parts, strict=True)]
    edges = np.concatenate([crossing, *inside], axis=1)
    masks: dict[str, Any] = {
        name: np.concatenate([part.masks[name] for part in parts])[back] for name in parts[0].masks
    }
    return replace(
        _with_edges(whole, edges[:, edges[0] < edges[1]]),
        x=_stacked([part.x for part in parts])[back],
        y=np.concatenate([part.y for part in parts])[back],
        **masks,
    )


def _stacked(features: Sequence[Features]) -> Features:
    if all(issparse(x) for x in features):
        return csr_array(vstack(features, "csr"))
    return np.concatenate([x.toarray() if issparse(x) else x for x in features])


def describe(parts: Sequence[Graph], how: Perturbation) -> dict[str, Any]:
    """What a partition card says of a perturbation: its settings, and a SHA-256 of them and of the data it made."""
    found = hashlib.sha256(json.dumps(asdict(how), sort_keys=True).encode())
    for part in parts:
        x = csr_array(part.x)
        assert part.train is not None
        for values, kind in ((part.edges, "<i8"), (part.y, "<i8"), (part.train, "|b1")):
            found.update(np.ascontiguousarray(values, kind).tobytes())
        for values, kind in ((x.indptr, "<i8"), (x.indices, "<i8"), (x.data, "<f4")):
            found.update(np.ascontiguousarray(values, kind).tobytes())
    return {"summary": str(how), **asdict(how), "hash": found.hexdigest()}
