"""Perturbations of the clients' labels, edges and features, to measure how robust a method is.

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
from scipy.sparse import csr_array, issparse

from graft.data.edges import with_both_directions
from graft.data.graphs import (
    Graph,
    Ints,
    concatenate_features,
    edge_weights,
    keep_edges,
    undirected,
    with_edges,
)
from graft.data.scaling import Scaling
from graft.data.streams import stream
from graft.errors import InputError

LEAST_TRAIN = 1  # training nodes that label sparsity leaves to a client


@dataclass(frozen=True)
class Perturbation:
    """How strongly each kind of data is perturbed, and on which clients; with the defaults, not at all."""

    label_sparsity: float = 0.0  # share of the training nodes that become unlabelled
    label_noise: float = 0.0  # share of the training labels that become another class
    edge_sparsity: float = 0.0  # share of the edges that are removed
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
        self.client_ids(None)

    @property
    def strengths(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in KINDS}

    def __str__(self) -> str:
        """Returns what differs from the defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        return " ".join(f"{name}={value}" for name, value in vars(self).items() if value != defaults[name])

    @property
    def active(self) -> bool:
        return any(self.strengths.values())

    def client_ids(self, clients: int | None) -> list[int]:
        """Returns the clients that are perturbed, out of so many; with None only the setting itself is checked."""
        if self.perturbed_clients == "all":
            return list(range(clients or 0))
        try:
            ids = sorted({int(part) for part in self.perturbed_clients.split(",")})
        except ValueError:
            ids = [-1]
        if ids[0] < 0 or (clients is not None and ids[-1] >= clients):
            possible = "" if clients is None else f" from 0 to {clients - 1}"
            raise InputError(
                f"perturbed_clients is '{self.perturbed_clients}'; it should be all, or numbers of clients{possible}, "
                f"as 0,3."
            )
        return ids


def perturb(
    graphs: Sequence[Graph], perturbation: Perturbation, seed: int, scalings: Sequence[Scaling] | None = None
) -> list[Graph]:
    """Returns the clients' graphs, perturbed; features that were normalised row by row are normalised again."""
    ids = perturbation.client_ids(len(graphs))
    scalings = scalings or [Scaling("raw")] * len(graphs)
    return [
        _perturb_client(graph, perturbation, seed, client, scaling) if client in ids else graph
        for client, (graph, scaling) in enumerate(zip(graphs, scalings, strict=True))
    ]


def _perturb_client(graph: Graph, perturbation: Perturbation, seed: int, client: int, scaling: Scaling) -> Graph:
    original = graph.x
    for index, (kind, apply) in enumerate(KINDS.items()):
        # As it was written: 0.3 of 10 is 3, and not a little less.
        strength = Fraction(str(getattr(perturbation, kind)))
        if strength:
            ids = (index, strength.numerator, strength.denominator, client)
            graph = apply(graph, strength, stream("perturbation", seed, *ids))
    if graph.x is original or scaling.features not in ROWWISE:
        return graph
    return replace(graph, x=scaling.apply(graph.x))


# Labels.


def drop_labels(graph: Graph, share: Fraction, random: np.random.Generator) -> Graph:
    """Removes nodes from the training mask; they stay in the graph."""
    nodes = _train_nodes(graph)
    count = min(round(share * len(nodes)), max(len(nodes) - LEAST_TRAIN, 0))
    train = np.zeros(graph.nodes, bool)
    train[random.permutation(nodes)[count:]] = True
    return replace(graph, train=train)


def flip_labels(graph: Graph, share: Fraction, random: np.random.Generator) -> Graph:
    """Replaces labels of training nodes by another class, drawn uniformly."""
    nodes = _train_nodes(graph)
    flipped = random.permutation(nodes)[: round(share * len(nodes))]
    if graph.classes < 2 and len(flipped):
        raise InputError(f"label_noise puts another class in place of a label, and '{graph.name}' has only one.")
    labels = graph.y.copy()
    labels[flipped] = (labels[flipped] + random.integers(1, max(graph.classes, 2), len(flipped))) % graph.classes
    return replace(graph, y=labels)


def _train_nodes(graph: Graph) -> Ints:
    if graph.train is None:
        raise InputError(f"'{graph.name}' has no training nodes yet: split it before it is perturbed.")
    return np.flatnonzero(graph.train)


# Edges.


def drop_edges(graph: Graph, share: Fraction, random: np.random.Generator) -> Graph:
    """Keeps a share of the undirected edges; all nodes stay."""
    kept = _shuffled_edges(graph, random)[: round((1 - share) * graph.edge_count)]
    return _with_edges(graph, graph.edges[:, kept], kept)


def rewire_edges(graph: Graph, share: Fraction, random: np.random.Generator) -> Graph:
    """Replaces edges by as many between nodes that had none, of the same weights and times; by fewer where there are
    not enough of those."""
    shuffled = _shuffled_edges(graph, random)
    count = round(share * graph.edge_count)
    kept, replaced = np.split(shuffled, [graph.edge_count - count])
    drawn = _sample_non_edges(graph, count, random)
    edges = np.concatenate([graph.edges[:, kept], drawn], axis=1)
    return _with_edges(graph, edges, np.concatenate([kept, replaced[: drawn.shape[1]]]))


def _shuffled_edges(graph: Graph, random: np.random.Generator) -> Ints:
    """Returns the positions of all undirected edges, the lower node first, in random order."""
    return np.flatnonzero(graph.edges[0] < graph.edges[1])[random.permutation(graph.edge_count)]


def _sample_non_edges(graph: Graph, count: int, random: np.random.Generator) -> Ints:
    """Returns different pairs of nodes without an edge, the lower node first."""
    # All pairs are numbered row by row; pair (i, j) has number row_start[i] + j - i - 1.
    rows = np.arange(graph.nodes)
    row_start = rows * (graph.nodes - 1) - rows * (rows - 1) // 2
    low, high = undirected(graph.edges)
    taken = row_start[low] + high - low - 1  # sorted, as the edges are
    free = graph.nodes * (graph.nodes - 1) // 2 - len(taken)
    drawn = random.choice(free, min(count, free), replace=False) if free else np.empty(0, np.int64)
    # The number of the k-th free pair is k plus the taken ones before it.
    pairs = drawn + np.searchsorted(taken - np.arange(len(taken)), drawn, side="right")
    low = np.searchsorted(row_start, pairs, side="right") - 1
    return np.stack([low, pairs - row_start[low] + low + 1])


def _with_edges(graph: Graph, edges: Ints, like: Ints) -> Graph:
    """Returns the graph with other edges, each given once, with the weights and times of edges at some positions."""
    weights = None if graph.weights is None else graph.weights[like]
    times = None if graph.edge_times is None else graph.edge_times[like]
    return with_edges(graph, with_both_directions(edges, graph.nodes, weights, times))


# Features.


def drop_features(graph: Graph, share: Fraction, random: np.random.Generator) -> Graph:
    """Sets a share of every node's non-zero features to zero, rounded down."""
    x = csr_array(graph.x, copy=True)
    counts = np.diff(x.indptr)
    rows = np.repeat(np.arange(graph.nodes), counts)
    order = np.lexsort((random.random(len(rows)), rows))
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    dropped = np.array([floor(share * int(count)) for count in counts], np.int64)
    x.data[order[rank < dropped[rows]]] = 0
    x.eliminate_zeros()
    return replace(graph, x=x if issparse(graph.x) else x.toarray())


def add_feature_noise(graph: Graph, deviation: Fraction, random: np.random.Generator) -> Graph:
    """Adds Gaussian noise to all features; they do not stay sparse."""
    dense = graph.x.toarray() if issparse(graph.x) else graph.x
    return replace(graph, x=dense + np.float32(deviation) * random.standard_normal(dense.shape, np.float32))


Change = Callable[[Graph, Fraction, np.random.Generator], Graph]
KINDS: dict[str, Change] = {  # in the order in which they are applied; the index of a kind is part of its seed
    "label_sparsity": drop_labels,
    "label_noise": flip_labels,
    "edge_sparsity": drop_edges,
    "edge_noise": rewire_edges,
    "feature_sparsity": drop_features,
    "feature_noise": add_feature_noise,
}
ROWWISE = ("row", "l2")  # normalisations that depend on one node alone
FIELDS = tuple(field.name for field in fields(Perturbation))


# The whole graph, and its record.


def assemble(whole: Graph, parts: Sequence[Graph], membership: Ints) -> Graph:
    """Returns the whole graph made of the clients' parts; edges between clients stay as they are."""
    nodes = [np.flatnonzero(membership == client) for client in range(len(parts))]
    inverse = np.argsort(np.concatenate(nodes))
    between = keep_edges(whole, membership[whole.edges[0]] != membership[whole.edges[1]])
    inside = [ids[part.edges] for ids, part in zip(nodes, parts, strict=True)]
    edges = np.concatenate([between.edges, *inside], axis=1)
    once = edges[0] < edges[1]
    weights = None if whole.weights is None else np.concatenate([edge_weights(part) for part in (between, *parts)])
    times = None
    if whole.edge_times is not None:
        times = np.concatenate([part.edge_times for part in (between, *parts) if part.edge_times is not None])
    joined = with_both_directions(
        edges[:, once],
        whole.nodes,
        None if weights is None else weights[once],
        None if times is None else times[once],
    )
    masks: dict[str, Any] = {
        name: np.concatenate([part.masks[name] for part in parts])[inverse] for name in parts[0].masks
    }
    return replace(
        with_edges(whole, joined),
        x=concatenate_features([part.x for part in parts])[inverse],
        y=np.concatenate([part.y for part in parts])[inverse],
        **masks,
    )


def describe(parts: Sequence[Graph], perturbation: Perturbation) -> dict[str, Any]:
    """Returns a perturbation's entry in a partition card: its settings, and a SHA-256 of them and of the perturbed
    data."""
    digest = hashlib.sha256(json.dumps(asdict(perturbation), sort_keys=True).encode())
    for part in parts:
        x = csr_array(part.x)
        assert part.train is not None
        for values, dtype in ((part.edges, "<i8"), (part.y, "<i8"), (part.train, "|b1")):
            digest.update(np.ascontiguousarray(values, dtype).tobytes())
        for values, dtype in ((x.indptr, "<i8"), (x.indices, "<i8"), (x.data, "<f4")):
            digest.update(np.ascontiguousarray(values, dtype).tobytes())
        if part.weights is not None:
            digest.update(np.ascontiguousarray(part.weights, "<f4").tobytes())
    return {"summary": str(perturbation), **asdict(perturbation), "hash": digest.hexdigest()}
