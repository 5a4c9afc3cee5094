"""Shortest paths in an undirected graph, by breadth-first searches from many sources at once.

A source is one bit of a word: a pass over the edges takes one step of 64 searches a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]
Words = NDArray[np.uint64]  # [nodes, words]: bit b of word w is about source 64 w + b

WORD = 64
GATHERED = 4_000_000  # words read along the edges in one step of a search: 32 MB
KEPT = 32  # so many distance tables are cached
NO_NODES: Ints = np.empty(0, np.int64)


@dataclass(frozen=True)
class Paths:
    """An undirected graph as neighbour lists, in CSR form."""

    starts: Ints  # [nodes + 1]
    columns: Ints  # [entries], both directions of every edge

    @property
    def nodes(self) -> int:
        return len(self.starts) - 1

    def waves(self, sources: Ints) -> Iterator[tuple[int, Words]]:
        """For every distance from 1 up, which nodes are just so far from which sources; -1 pads the sources."""
        position = np.flatnonzero(sources >= 0)
        new = np.zeros((self.nodes, -(-len(sources) // WORD)), np.uint64)
        bits = np.left_shift(np.uint64(1), (position % WORD).astype(np.uint64))
        np.bitwise_or.at(new, (sources[position], position // WORD), bits)
        linked = np.flatnonzero(np.diff(self.starts))  # `reduceat` has no empty rows
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
        """Returns the sources in portions of whole words whose searches fit into memory."""
        words = max(1, GATHERED // max(len(self.columns), self.nodes, 1))
        for first in range(0, len(sources), words * WORD):
            yield sources[first : first + words * WORD]

    def farthest(self, sources: Ints) -> tuple[int, Ints]:
        """Returns the largest finite distance from any of the sources, and some of the nodes that are so far away."""
        longest, ends = 0, NO_NODES
        for part in self.batches(sources):
            for distance, new in self.waves(part):
                if distance > longest:
                    longest, ends = distance, some_nodes(new)
        return longest, ends

    def stretch(self, longest: int, ends: Ints) -> int:
        """Returns a lower bound of the largest distance: search from the ends of a long path while that gives longer
        ones."""
        while True:
            distance, others = self.farthest(ends)
            if distance <= longest:
                return longest
            longest, ends = distance, others

    def table(self) -> Ints:
        """Returns all distances, [nodes, nodes], -1 where there is no path; cached by the graph."""
        return distance_table(*(np.ascontiguousarray(part, np.int64).tobytes() for part in (self.starts, self.columns)))


@lru_cache(maxsize=KEPT)
def distance_table(starts: bytes, columns: bytes) -> Ints:
    """Returns all distances of a graph that is given by the bytes of its CSR form, which can be hashed."""
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


def some_nodes(new: Words) -> Ints:
    """Returns nodes that were just reached, as many as fit into a word."""
    return np.flatnonzero(new.any(axis=1))[:WORD]
