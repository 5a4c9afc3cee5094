"""Graphs of clients that are not in memory: each is read or made when it is asked for, wherever that is."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import SupportsIndex, overload

from graft.data.graphs import Graph, Ints


class ClientGraphs(Sequence[Graph]):
    """The graphs of all clients, of which none is kept: small, and can be pickled, so workers are sent it instead of
    graphs."""

    name: str
    features: int
    classes: int
    class_names: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None  # of the clients; None: they have numbers only

    @property
    @abstractmethod
    def hash(self) -> str:
        """Returns the SHA-256 of what the graphs hold, or of all that they are generated from."""

    @property
    def graph_hash(self) -> str:
        """Returns a SHA-256 of the graphs that runs share whatever their seed is."""
        return self.hash

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, client: int) -> Graph:
        """Returns the graph that a client trains on, read or made now."""

    @abstractmethod
    def nodes(self) -> Ints:
        """Returns the number of nodes of every client, [clients], without reading a graph."""

    @abstractmethod
    def edges(self) -> Ints:
        """Returns the number of undirected edges of every client, [clients], without reading a graph."""

    @property
    def scored(self) -> ClientGraphs | None:
        """Returns the graphs that models are scored on; None where these are the ones that they train on."""
        return None

    def scoring(self, client: int) -> Graph | None:
        """Returns the graph that a client's models are scored on; None where it is the one that they train on."""
        return None if self.scored is None else self.scored[client]

    @overload
    def __getitem__(self, client: SupportsIndex) -> Graph: ...

    @overload
    def __getitem__(self, client: slice) -> list[Graph]: ...

    def __getitem__(self, client: SupportsIndex | slice) -> Graph | list[Graph]:
        if isinstance(client, slice):
            return [self.read(number) for number in range(*client.indices(len(self)))]
        number = operator.index(client)
        if not -len(self) <= number < len(self):
            raise IndexError(f"There is no client {number} among {len(self)}.")
        return self.read(number % len(self))

    def __iter__(self) -> Iterator[Graph]:
        return (self.read(client) for client in range(len(self)))


class ChangedGraphs(ClientGraphs):
    """The graphs of other `ClientGraphs`, each changed by a function that keeps its size when it is read."""

    def __init__(self, graphs: ClientGraphs, change: Callable[[Graph], Graph]) -> None:
        self.graphs, self.change = graphs, change  # a function of a module, which can be pickled
        self.name, self.features, self.classes = graphs.name, graphs.features, graphs.classes
        self.class_names, self.names = graphs.class_names, graphs.names

    @property
    def hash(self) -> str:
        return sha256(f"{self.graphs.hash} {self.change.__module__}.{self.change.__qualname__}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.graphs)

    def read(self, client: int) -> Graph:
        return self.change(self.graphs.read(client))

    def nodes(self) -> Ints:
        return self.graphs.nodes()

    def edges(self) -> Ints:
        return self.graphs.edges()

    @property
    def scored(self) -> ClientGraphs | None:
        scored = self.graphs.scored
        return None if scored is None else ChangedGraphs(scored, self.change)


class SelectedGraphs(ClientGraphs):
    """The graphs of some of the clients of other `ClientGraphs`, with numbers from 0."""

    def __init__(self, graphs: ClientGraphs, clients: Sequence[int]) -> None:
        self.graphs, self.clients = graphs, clients
        self.name, self.features, self.classes = graphs.name, graphs.features, graphs.classes
        self.class_names = graphs.class_names
        self.names = None if graphs.names is None else tuple(graphs.names[client] for client in clients)

    @property
    def hash(self) -> str:
        return sha256(f"{self.graphs.hash} {list(self.clients)}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.clients)

    def read(self, client: int) -> Graph:
        return self.graphs.read(self.clients[client])

    def nodes(self) -> Ints:
        return self.graphs.nodes()[list(self.clients)]

    def edges(self) -> Ints:
        return self.graphs.edges()[list(self.clients)]

    @property
    def scored(self) -> ClientGraphs | None:
        scored = self.graphs.scored
        return None if scored is None else SelectedGraphs(scored, self.clients)
