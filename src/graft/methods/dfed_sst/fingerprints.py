"""What a client's graph looks like from far: how scattered its classes are, as one number and as a matrix.

Distances come from breadth-first searches that start at many nodes at once, one bit a source: a pass over the edges
takes one step of all of them. The quantities are those of DFed-SST.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]
Floats = NDArray[np.floating[Any]]
Words = NDArray[np.uint64]  # [nodes, words]: bit b of word w says something about source 64 w + b
Disconnected = Literal["penalty", "ignore", "zero"]
LabelSource = Literal["mixed", "train", "oracle"]

WORD = 64
GATHERED = 4_000_000  # words read along the edges in one step of a search: 32 MB
EXACT_UP_TO = 20_000  # nodes; in larger graphs only some nodes of each class are searched from
SOURCES = 100  # how many
KEPT_UP_TO = 4_096  # nodes; of smaller graphs all distances are kept, for labels change and the graph does not
KEPT = 32  # so many graphs
NOBODY: Ints = np.empty(0, np.int64)
TINY = 1e-300  # keeps 0 / 0 at 0


@dataclass(frozen=True)
class Paths:
    """An undirected graph as neighbour lists, in CSR form."""

    starts: Ints  # [nodes + 1]
    columns: Ints  # [entries], both directions of every edge

    @property
    def nodes(self) -> int:
        return len(self.starts) - 1

    def waves(self, sources: Ints) -> Iterator[tuple[int, Words]]:
        """For every distance from 1 up, which nodes are just so far from which sources; a source of -1 is none."""
        place = np.flatnonzero(sources >= 0)
        new = np.zeros((self.nodes, -(-len(sources) // WORD)), np.uint64)
        bits = np.left_shift(np.uint64(1), (place % WORD).astype(np.uint64))
        np.bitwise_or.at(new, (sources[place], place // WORD), bits)
        linked = np.flatnonzero(np.diff(self.starts))  # `reduceat` cannot say that a row is empty
        seen = new.copy()
        distance = 0
        while len(linked):
            near = np.bitwise_or.reduceat(new[self.columns], self.starts[linked], axis=0)
            new = np.zeros_like(seen)
            new[linked] = near & ~seen[linked]
            if not new.any():
                return
            seen |= new
            distance += 1
            yield distance, new

    def batches(self, sources: Ints) -> Iterator[Ints]:
        """The sources in portions of whole words whose searches fit into memory."""
        words = max(1, GATHERED // max(len(self.columns), self.nodes, 1))
        for first in range(0, len(sources), words * WORD):
            yield sources[first : first + words * WORD]

    def farthest(self, sources: Ints) -> tuple[int, Ints]:
        """The largest finite distance from any of the sources, and some of the nodes that are so far away."""
        longest, ends = 0, NOBODY
        for part in self.batches(sources):
            for distance, new in self.waves(part):
                if distance > longest:
                    longest, ends = distance, some(new)
        return longest, ends

    def stretch(self, longest: int, ends: Ints) -> int:
        """A lower bound of the largest distance: search from the ends of a long path while that finds longer ones."""
        while True:
            found, others = self.farthest(ends)
            if found <= longest:
                return longest
            longest, ends = found, others

    def table(self) -> Ints:
        """All distances, [nodes, nodes], -1 where there is no path; kept for the next time this graph is asked."""
        return _table(*(np.ascontiguousarray(part, np.int64).tobytes() for part in (self.starts, self.columns)))


@lru_cache(maxsize=KEPT)
def _table(starts: bytes, columns: bytes) -> Ints:
    paths = Paths(np.frombuffer(starts, np.int64), np.frombuffer(columns, np.int64))
    distances = np.full((paths.nodes, paths.nodes), -1, np.int16)
    np.fill_diagonal(distances, 0)
    first = 0
    for part in paths.batches(np.arange(paths.nodes)):
        columns_of_part = distances[:, first : first + len(part)]
        first += len(part)
        for distance, new in paths.waves(part):
            reached = np.unpackbits(new.view(np.uint8), axis=1, count=len(part), bitorder="little")
            columns_of_part[reached.view(bool)] = distance
    return distances


def some(new: Words) -> Ints:
    """Nodes that were just reached, as many as fit into a word."""
    return np.flatnonzero(new.any(axis=1))[:WORD]


@dataclass(frozen=True)
class Scatter:
    """How far the nodes of each class are from those of its nodes that were searched from."""

    total: Floats  # [nodes]: the sum of a node's distances
    pairs: Floats  # [classes]: how many distances a class has
    sizes: Ints  # [classes]: nodes

    @property
    def emphasis(self) -> Floats:
        """Eq. 2: what each class counts, by the logarithm of its size."""
        logarithms: Floats = np.log1p(self.sizes)
        shares: Floats = logarithms / max(logarithms.sum(), TINY)
        return shares


def scatter(
    paths: Paths,
    classes: Ints,
    count: int,
    disconnected: Disconnected = "penalty",
    sources: int | None = None,
    priority: Ints | None = None,
) -> Scatter:
    """Distances between the nodes of each class; class -1 is none.

    Nodes that no path joins are as far apart as the largest distance in the graph plus one ("penalty"), left out
    ("ignore"), or in one place ("zero").

    With `sources`, only so many nodes of each class are searched from, those with the lowest `priority`. If that is
    random, the mean distance of a class is estimated without bias (but for "ignore", which makes it a ratio), and its
    standard error is that of a mean of draws without replacement, sd * sqrt((1 - sources / size) / sources): sd is the
    standard deviation, over the nodes of the class, of a node's mean distance to the others. In Cora, CiteSeer, PubMed,
    Photo and parts of them, with penalties, sd was 2 to 60 % of the mean; 100 sources gave WLSD with an error of at
    most 1.8 %, and CSE with one of at most 5 % of its largest entry. The penalty may come out too small, never too
    large: its distance is the largest that these searches meet, or that searches from the ends they find do. In 10 of
    those 12 graphs that was always the true one.
    """
    members = [np.flatnonzero(classes == one) for one in range(count)]
    sizes = np.array([len(own) for own in members], np.int64)
    if sources is not None:
        order = np.arange(paths.nodes) if priority is None else priority
        members = [own[np.argsort(order[own], kind="stable")[:sources]] for own in members]
    searched = np.array([len(own) for own in members], np.int64)
    kept = sources is None and paths.nodes <= KEPT_UP_TO
    total, reached, longest, ends = (_look_up if kept else _sums)(paths, classes, members)
    others = np.append(searched, 0)[classes]  # of its class; the last entry is for nodes without one
    others[np.concatenate(members)] -= 1
    pairs = searched * np.maximum(sizes - 1, 0)
    missing = others - reached
    if disconnected == "ignore":
        pairs = np.bincount(classes[classes >= 0], weights=reached[classes >= 0], minlength=count)
    elif disconnected == "penalty" and missing.any():
        if searched.sum() < paths.nodes and not kept:
            exact = sources is None
            longest = paths.farthest(np.arange(paths.nodes))[0] if exact else paths.stretch(longest, ends)
        total = total + (longest + 1) * missing
    return Scatter(total.astype(np.float64), pairs.astype(np.float64), sizes)


def _look_up(paths: Paths, classes: Ints, members: Sequence[Ints]) -> tuple[Ints, Ints, int, Ints]:  # noqa: ARG001
    """The same as `_sums` for all nodes of each class, from distances that are kept; the largest is the graph's own."""
    table = paths.table()
    total, reached = np.zeros(paths.nodes, np.int64), np.zeros(paths.nodes, np.int64)
    for own in members:
        distances = table[np.ix_(own, own)]
        total[own] = np.maximum(distances, 0).sum(axis=1, dtype=np.int64)
        reached[own] = (distances > 0).sum(axis=1)
    return total, reached, int(table.max(initial=0)), NOBODY


def _sums(paths: Paths, classes: Ints, members: Sequence[Ints]) -> tuple[Ints, Ints, int, Ints]:
    """For every node the sum of its finite distances to the given nodes of its class and their number; and the
    largest distance to any of them, with some nodes that are so far away."""
    # Every class begins with a new word, so that a word is counted or not, never a part of it.
    padded = [np.pad(own, (0, -len(own) % WORD), constant_values=-1) for own in members]
    owner = np.repeat(np.arange(len(members)), [len(own) // WORD for own in padded])
    total, reached = np.zeros(paths.nodes, np.int64), np.zeros(paths.nodes, np.int64)
    longest, ends, first = 0, NOBODY, 0
    for part in paths.batches(np.concatenate(padded)):
        own_class = classes[:, None] == owner[first : first + len(part) // WORD]
        first += len(part) // WORD
        for distance, new in paths.waves(part):
            # The graph is undirected: as many sources are so far from a node as it is from them.
            found = (np.bitwise_count(new) * own_class).sum(axis=1, dtype=np.int64)
            total += distance * found
            reached += found
            if distance > longest:
                longest, ends = distance, some(new)
    return total, reached, longest, ends


@dataclass(frozen=True)
class Fingerprint:
    """What a client tells about its graph."""

    wlsd: float  # Eq. 3: the mean distance between nodes of a class, over all classes
    cse: Floats  # Eq. 5, [classes, classes]: the mean soft label of a class, weighted by distance


def fingerprint(
    paths: Paths,
    classes: Ints,
    soft: Floats,
    disconnected: Disconnected = "penalty",
    *,
    exact_up_to: int = EXACT_UP_TO,
    sources: int = SOURCES,
    priority: Ints | None = None,
) -> Fingerprint:
    """Eqs. 1 to 5 for nodes with classes (-1 is none) and soft labels [nodes, classes]; sampled in large graphs.

    With r_u the sum of the distances from u to the other nodes of its class, the means over ordered pairs are sums of
    r_u and of r_u Y_u. A sample of sources estimates r at every node, so all soft labels count in it.
    """
    count = soft.shape[1]
    few = None if paths.nodes <= exact_up_to else sources
    found = scatter(paths, classes, count, disconnected, few, priority)
    known = np.flatnonzero(classes >= 0)
    weight = np.zeros((len(known), count))
    weight[np.arange(len(known)), classes[known]] = found.total[known]
    cse = weight.T @ soft[known] / np.maximum(found.pairs, 1)[:, None]
    distance = weight.sum(axis=0) / np.maximum(found.pairs, 1)  # Eq. 1; the row sums of the matrix, but for rounding
    return Fingerprint(float(found.emphasis @ distance), cse)


def known_classes(truth: Ints, masks: Bools, soft: Floats, source: LabelSource) -> Ints:
    """The class of every node as a client may know it: true where it trains; elsewhere as predicted ("mixed") or none
    ("train"). "oracle" looks at the labels of all three masks [3, nodes], and is for analysis only."""
    train = masks[0]
    if source == "mixed":
        return np.where(train, truth, soft.argmax(axis=1))
    return np.where(train if source == "train" else masks.any(axis=0), truth, -1)


def adaptive_degree(own: Tensor, others: Tensor) -> Tensor:
    """Eq. 6: how many peers have a lower WLSD than one's own; [...] against [..., peers]."""
    return (others < own.unsqueeze(-1)).sum(-1)


def similarity(own: Tensor, others: Tensor) -> Tensor:
    """Eq. 7: the cosine between fingerprints [..., size] and [..., peers, size]; 0 with one that is all zeros."""
    unit, units = (functional.normalize(one.double(), dim=-1, eps=TINY) for one in (own, others))
    return (units @ unit.unsqueeze(-1)).squeeze(-1)


def most_similar(similar: Tensor, degree: Tensor) -> Tensor:
    """Which peers have the `degree` largest similarities; of equal ones, those with the lower number."""
    order = similar.argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1) < degree.unsqueeze(-1)


def mixing_shares(similar: Tensor, wlsd: Tensor, chosen: Tensor) -> Tensor:
    """Eq. 8 over the chosen peers: exp(similarity) times their WLSD, as shares; equal ones where every WLSD is 0."""
    raw = similar.exp() * wlsd * chosen
    total = raw.sum(-1, keepdim=True)
    raw = torch.where(total > 0, raw, chosen.to(raw))
    return raw / raw.sum(-1, keepdim=True).clamp(min=TINY)
