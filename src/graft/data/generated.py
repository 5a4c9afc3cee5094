"""Clients that each have a random graph of their own, made from its number wherever it is needed.

The graphs are drawn from the model of `graft.data.synthetic`, with class means that all clients have in common.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graft.data import splits
from graft.data.datasets import parse_settings
from graft.data.graphs import Graph, Ints, make_graph
from graft.data.lazy_graphs import ClientGraphs
from graft.data.streams import check_seed, stream
from graft.data.synthetic import check_model, draw_edges, draw_features, draw_means
from graft.errors import InputError
from graft.files import canonical

MOST_CLIENTS = 10**6
CLIENTS_AT_ONCE = 1 << 16  # whose sizes are computed together
VERSION = 1  # of the graphs that are made from the same settings
KINDS = {"int": int, "float": float}  # of settings, as annotations spell them


@dataclass(frozen=True)
class Generated:
    """Every client's own random graph, made where it trains; settings as 'nodes=1000,degree=10', up to 1,000,000
    clients."""

    nodes: int = 1000  # of a client, in the mean
    degree: float = 10.0  # the mean number of neighbours
    classes: int = 10  # of equal size
    homophily: float = 0.8  # the share of edges inside a class
    features: int = 64
    spread: float = 0.5  # sizes of clients lie between (1 - spread) and (1 + spread) times nodes
    signal: float = 2.0  # the distance between two class means, in standard deviations of the noise
    exponent: float = 2.5  # of the degrees' power law
    seed: int = 0  # of the graphs; the experiment's is that of the split

    def __post_init__(self) -> None:
        if not 0 <= self.spread < 1:
            raise InputError(f"Generated clients cannot have spread={self.spread}: it must be at least 0 and below 1.")
        check_seed(self.seed)
        smallest = int(self.sizes_between(np.zeros(1))[0])
        settings = self.degree, self.classes, self.homophily, self.features, self.signal, self.exponent
        check_model("The smallest generated client", smallest, *settings)

    @classmethod
    def parse(cls, settings: str) -> Generated:
        """Returns what a dataset's text, after 'generated:', asks for."""
        kinds = {field.name: KINDS[str(field.type)] for field in fields(cls)}
        return cls(**parse_settings("A generated client", kinds, settings))

    @property
    def name(self) -> str:
        """Returns the name of the dataset, with the settings that are not the usual ones."""
        changed = [
            f"{field.name}={getattr(self, field.name):g}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return ":".join(filter(None, ["generated", ",".join(changed)]))

    def sizes_between(self, positions: NDArray[np.float64]) -> Ints:
        """Returns the nodes of clients at some positions between the smallest possible one, 0, and the largest, 1."""
        return np.rint(self.nodes * (1 + self.spread * (2 * positions - 1))).astype(np.int64)

    def sizes(self, clients: Ints) -> Ints:
        """Returns the numbers of nodes of some clients."""
        return self.sizes_between(hashed_uniform(self.seed, clients))

    def make(self, client: int) -> Graph:
        """Returns the graph of a client, without masks."""
        rng = stream("generated", self.seed, client)
        nodes = int(self.sizes(np.array([client]))[0])
        y, ends = draw_edges(nodes, self.degree, self.classes, self.homophily, self.exponent, rng)
        return make_graph(self.name, draw_features(y, class_means(self), rng), ends, y, self.classes)


@lru_cache(maxsize=1)
def class_means(model: Generated) -> NDArray[np.float32]:
    """Returns the means of the classes, which are the same for all clients."""
    return draw_means(model.classes, model.features, model.signal, stream("class means", model.seed))


class GeneratedGraphs(ClientGraphs):
    """The graphs of generated clients with the masks of a split; a client's depend on the seeds and its number only."""

    def __init__(self, model: Generated, clients: int, split: str = "20/40/40", seed: int = 0) -> None:
        if not 1 <= clients <= MOST_CLIENTS:
            raise InputError(f"{clients:,} clients cannot be generated: at least 1 and at most {MOST_CLIENTS:,} can.")
        if split == "own" or splits.is_by_time(split):
            raise InputError(
                f"split is {split}, but generated clients bring neither masks nor times: choose one such as 20/40/40."
            )
        splits.parse(split)
        self.model, self.clients, self.split, self.seed = model, clients, split, check_seed(seed)
        self.name, self.features, self.classes = model.name, model.features, model.classes

    @property
    def hash(self) -> str:
        return self._hash(split=self.split, split_seed=self.seed)

    @property
    def graph_hash(self) -> str:
        return self._hash()

    def _hash(self, **more: Any) -> str:
        described = {"version": VERSION, "clients": self.clients, **asdict(self.model), **more}
        return sha256(canonical(described).encode()).hexdigest()

    def __len__(self) -> int:
        return self.clients

    def read(self, client: int) -> Graph:
        return splits.split_client(self.model.make(client), client, self.split, self.seed)

    def nodes(self) -> Ints:
        sizes = np.empty(self.clients, np.int64)
        for first in range(0, self.clients, CLIENTS_AT_ONCE):  # so that little is held beside the result
            stop = min(first + CLIENTS_AT_ONCE, self.clients)
            sizes[first:stop] = self.model.sizes(np.arange(first, stop))
        return sizes

    def edges(self) -> Ints:
        counts = self.nodes()
        for first in range(0, self.clients, CLIENTS_AT_ONCE):
            some = slice(first, first + CLIENTS_AT_ONCE)
            counts[some] = np.rint(counts[some] * self.model.degree / 2)
        return counts


def hashed_uniform(seed: int, numbers: Ints) -> NDArray[np.float64]:
    """Returns a number from 0 to below 1 for each of some whole numbers, which depends on it and the seed alone."""
    key = _mixed(np.array([seed % 2**64], np.uint64))
    return (_mixed(key ^ numbers.astype(np.uint64)) >> np.uint64(11)) / 2.0**53


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns the words as the finaliser of SplitMix64 mixes them (Steele, Lea and Flood, OOPSLA 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
