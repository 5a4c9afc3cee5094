"""Federations whose graphs are not in memory: what is known of them without reading any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, overload

from graft.data import OWN_GRAPHS
from graft.data.federation import FederationData
from graft.data.lazy_graphs import ClientGraphs
from graft.data.preparation import Preparation
from graft.data.scaling import Scaling
from graft.files import canonical


class SharedPreparations(Sequence[Preparation]):
    """A preparation for every client, of which few are different."""

    def __init__(self, different: Sequence[Preparation], of_client: Sequence[int] | None, clients: int) -> None:
        self.different = different
        self.of_client = of_client  # which of them each client has; None: all have the first
        self.clients = clients

    def __len__(self) -> int:
        return self.clients

    @overload
    def __getitem__(self, client: SupportsIndex) -> Preparation: ...

    @overload
    def __getitem__(self, client: slice) -> list[Preparation]: ...

    def __getitem__(self, client: SupportsIndex | slice) -> Preparation | list[Preparation]:
        numbers = range(self.clients)[client]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        return self.different[0 if self.of_client is None else self.of_client[numbers]]


def different_preparations(preparations: Sequence[Preparation]) -> tuple[list[dict[str, Any]], list[int]]:
    """Returns the preparations that differ, as JSON can hold them, and which of them each client has; no numbers where
    all share one object."""
    if isinstance(preparations, SharedPreparations) and preparations.of_client is None:
        return [preparations.different[0].to_json()], []
    positions: dict[str, int] = {}
    entries = [preparation.to_json() for preparation in preparations]
    of_client = [positions.setdefault(canonical(entry), len(positions)) for entry in entries]
    return [entries[of_client.index(position)] for position in range(len(positions))], of_client


def lazy_federation(
    graphs: ClientGraphs,
    *,
    seed: int = 0,
    card: Mapping[str, Any] | None = None,
    preparations: Sequence[Preparation] = (),
    positive: int | None = None,
) -> FederationData:
    """Returns the federation of graphs that are read or made one by one; nobody has them all in memory."""
    described = dict(card or describe(graphs, seed))
    plain = Preparation(None, Scaling("raw"), graphs.features, None, graphs.classes, graphs.class_names)
    federation = FederationData(
        None,
        None,
        graphs,
        described,
        names=graphs.names,
        preparations=preparations or SharedPreparations([plain], None, len(graphs)),
        positive=positive,
    )
    scored = graphs.scored
    if scored is None:
        return federation
    clean = FederationData(None, None, scored, described, names=graphs.names, preparations=federation.preparations)
    return FederationData(**{**vars(federation), "clean": clean})


def describe(graphs: ClientGraphs, seed: int) -> dict[str, Any]:
    """Returns the partition card of clients that bring their own graphs, without a row for each."""
    edges = int(graphs.edges().sum())
    return {
        "dataset": graphs.name,
        "method": OWN_GRAPHS,
        "clients": len(graphs),
        "seed": seed,
        "options": {},
        "hash": graphs.graph_hash,
        **({} if graphs.names is None else {"names": list(graphs.names)}),
        "nodes": int(graphs.nodes().sum()),
        "edges": {"total": edges, "kept": edges, "lost": 0, "lost_share": 0.0},
        "per_client": [],
    }
