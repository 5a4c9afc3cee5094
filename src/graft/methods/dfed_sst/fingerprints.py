"""The fingerprint of a client's graph: how scattered its classes are, as one number (WLSD) and as a matrix (CSE)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graft.methods.dfed_sst.paths import NO_NODES, WORD, Ints, Paths, some_nodes

Bools = NDArray[np.bool_]
Floats = NDArray[np.floating[Any]]
Disconnected = Literal["penalty", "ignore", "zero"]
LabelSource = Literal["mixed", "train", "oracle"]

EXACT_UP_TO = 20_000  # nodes; in larger graphs only some nodes of each class are searched from
SOURCES = 100  # how many
KEPT_UP_TO = 4_096  # nodes; of smaller graphs all distances are kept, for labels change and the graph does not
TINY = 1e-300  # keeps 0 / 0 at 0


@dataclass(frozen=True)
class Fingerprint:
    """What a client reveals of its graph."""

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
    sampled = None if paths.nodes <= exact_up_to else sources
    distances = scatter(paths, classes, count, disconnected, sampled, priority)
    labelled = np.flatnonzero(classes >= 0)
    weight = np.zeros((len(labelled), count))
    weight[np.arange(len(labelled)), classes[labelled]] = distances.total[labelled]
    cse = weight.T @ soft[labelled] / np.maximum(distances.pairs, 1)[:, None]
    mean = weight.sum(axis=0) / np.maximum(distances.pairs, 1)  # Eq. 1; the row sums of the matrix, but for rounding
    return Fingerprint(float(distances.emphasis @ mean), cse)


def assumed_classes(truth: Ints, masks: Bools, soft: Floats, source: LabelSource) -> Ints:
    """Returns the class of every node as a client may use it: true where it trains; elsewhere as predicted ("mixed") or
    none ("train"). "oracle" uses the labels of all three masks [3, nodes], and is for analysis only."""
    train = masks[0]
    if source == "mixed":
        return np.where(train, truth, soft.argmax(axis=1))
    return np.where(train if source == "train" else masks.any(axis=0), truth, -1)


@dataclass(frozen=True)
class Scatter:
    """How far the nodes of each class are from those of its nodes that were searched from."""

    total: Floats  # [nodes]: the sum of a node's distances
    pairs: Floats  # [classes]: how many distances a class has
    sizes: Ints  # [classes]: nodes

    @property
    def emphasis(self) -> Floats:
        """Eq. 2: the weight of each class, by the logarithm of its size."""
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
    """Returns distances between the nodes of each class; class -1 is none.

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
    members = [np.flatnonzero(classes == index) for index in range(count)]
    sizes = np.array([len(own) for own in members], np.int64)
    if sources is not None:
        order = np.arange(paths.nodes) if priority is None else priority
        members = [own[np.argsort(order[own], kind="stable")[:sources]] for own in members]
    searched = np.array([len(own) for own in members], np.int64)
    from_table = sources is None and paths.nodes <= KEPT_UP_TO
    sums = sums_from_table(paths, members) if from_table else sums_by_search(paths, classes, members)
    total, longest = sums.total, sums.longest
    others = np.append(searched, 0)[classes]  # of its class; the last entry is for nodes without one
    others[np.concatenate(members)] -= 1
    pairs = searched * np.maximum(sizes - 1, 0)
    missing = others - sums.reached
    if disconnected == "ignore":
        pairs = np.bincount(classes[classes >= 0], weights=sums.reached[classes >= 0], minlength=count)
    elif disconnected == "penalty" and missing.any():
        if searched.sum() < paths.nodes and not from_table:
            exact = sources is None
            longest = paths.farthest(np.arange(paths.nodes))[0] if exact else paths.stretch(longest, sums.ends)
        total = total + (longest + 1) * missing
    return Scatter(total.astype(np.float64), pairs.astype(np.float64), sizes)


class DistanceSums(NamedTuple):
    """Finite distances from every node to the given nodes of its class."""

    total: Ints  # [nodes]: their sum
    reached: Ints  # [nodes]: their number
    longest: int  # the largest distance that was met
    ends: Ints  # some nodes that are so far away


def sums_from_table(paths: Paths, members: Sequence[Ints]) -> DistanceSums:
    """Returns sums for all nodes of each class, from cached distances; the largest is that of the whole graph."""
    table = paths.table()
    total, reached = np.zeros(paths.nodes, np.int64), np.zeros(paths.nodes, np.int64)
    for own in members:
        distances = table[np.ix_(own, own)]
        total[own] = np.maximum(distances, 0).sum(axis=1, dtype=np.int64)
        reached[own] = (distances > 0).sum(axis=1)
    return DistanceSums(total, reached, int(table.max(initial=0)), NO_NODES)


def sums_by_search(paths: Paths, classes: Ints, members: Sequence[Ints]) -> DistanceSums:
    """Returns sums for the given nodes of each class, from searches that start at them."""
    # Every class begins with a new word, so that a word is counted or not, never a part of it.
    padded = [np.pad(own, (0, -len(own) % WORD), constant_values=-1) for own in members]
    owner = np.repeat(np.arange(len(members)), [len(own) // WORD for own in padded])
    total, reached = np.zeros(paths.nodes, np.int64), np.zeros(paths.nodes, np.int64)
    longest, ends, first = 0, NO_NODES, 0
    for part in paths.batches(np.concatenate(padded)):
        own_class = classes[:, None] == owner[first : first + len(part) // WORD]
        first += len(part) // WORD
        for distance, new in paths.waves(part):
            # The graph is undirected: as many sources are so far from a node as it is from them.
            count = (np.bitwise_count(new) * own_class).sum(axis=1, dtype=np.int64)
            total += distance * count
            reached += count
            if distance > longest:
                longest, ends = distance, some_nodes(new)
    return DistanceSums(total, reached, longest, ends)
