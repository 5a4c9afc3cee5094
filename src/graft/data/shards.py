"""Shards: the graphs of clients in files, of which each can be read alone, in a folder or below any URL."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from graft.data import PARTITIONS, SHARDS, cards
from graft.data.exchange import Exchange
from graft.data.federation import FederationData
from graft.data.graphs import Graph, Ints
from graft.data.lazy_federation import SharedPreparations, different_preparations, lazy_federation
from graft.data.lazy_graphs import ClientGraphs
from graft.data.preparation import Preparation
from graft.data.shard_manifest import (
    FORMAT,
    Agreed,
    Manifest,
    Shard,
    StoredFile,
    default_settings,
    read_manifest,
    write_manifest,
)
from graft.data.shard_records import (
    Arrays,
    Header,
    Packed,
    make_header,
    narrow,
    pack,
    scoring_arrays,
    to_graph,
    unpack,
)
from graft.data.stores import Store, open_store
from graft.errors import InputError
from graft.files import PART

FILE_BYTES = 64 * 10**6  # about how large a file gets
CLIENTS_A_FILE = 128  # at most, so that a header, which is read for any of them, stays small
HEADERS_KEPT = 8
MOST_DESCRIBED = 1000  # clients of which the partition card has a row
SIZES = "sizes.safetensors"
SHARD = "clients-"  # begins the names of files with graphs

Told = Callable[[int], None]  # is told how many clients are written


class ShardedGraphs(ClientGraphs):
    """The graphs of clients in shards; of a file, only the header and the bytes of the clients that are asked for are
    read, and all of these are checked."""

    def __init__(self, source: str | Path, expected: str | None = None) -> None:
        """Opens a folder or a URL; with `expected`, only shards of that hash."""
        self.store = open_store(source)
        self.manifest = read_manifest(self.store)
        if expected is not None and self.manifest.hash != expected:
            raise InputError(f"The shards in {self.store.url} are not those that this run began with.")
        manifest = self.manifest
        self.name, self.features, self.classes = manifest.name, manifest.features, manifest.classes
        self.names = None if manifest.names is None else tuple(manifest.names)
        self.feature_names = None if manifest.feature_names is None else tuple(manifest.feature_names)
        self.class_names = None if manifest.class_names is None else tuple(manifest.class_names)
        self._starts = np.array([shard.first for shard in manifest.files])
        self._headers: OrderedDict[int, Header] = OrderedDict()  # of the files that were used last

    def __reduce__(self) -> tuple[type[ShardedGraphs], tuple[str, str]]:
        return ShardedGraphs, (self.store.url, self.hash)

    def __repr__(self) -> str:
        return f"ShardedGraphs({self.store.url!r})"

    @property
    def hash(self) -> str:
        return self.manifest.hash

    @property
    def graph_hash(self) -> str:
        return self.manifest.graph_hash

    def __len__(self) -> int:
        return self.manifest.clients

    def read(self, client: int) -> Graph:
        return self._read(client, scored=False)

    def _read(self, client: int, *, scored: bool) -> Graph:
        """Returns one of the two graphs of a client."""
        number = int(np.searchsorted(self._starts, client, side="right")) - 1
        shard = self.manifest.files[number]
        try:
            record = self._header(number).record(client - shard.first)
            length = record.end - record.begin
            arrays = unpack(record, self.store.read(shard.name, shard.header + record.begin, length))
            names = {"feature_names": self.feature_names, "class_names": self.class_names}
            chosen = scoring_arrays(record, arrays) if scored else arrays
            return to_graph(record.name, chosen, self.features, self.classes, names)
        except ValueError as error:
            raise InputError(f"{self.store.url}/{shard.name} is damaged: of client {client}, {error}.") from error

    def _header(self, number: int) -> Header:
        """Returns what the header of a file says, read again only where many others were used since."""
        if number not in self._headers:
            shard = self.manifest.files[number]
            content = self.store.read(shard.name, 0, shard.header)
            if sha256(content).hexdigest() != shard.sha256:
                raise ValueError("the header is not what was written")
            self._headers[number] = Header(content, shard.first, shard.clients)
            if len(self._headers) > HEADERS_KEPT:
                self._headers.popitem(last=False)
        self._headers.move_to_end(number)
        return self._headers[number]

    @cached_property
    def sizes(self) -> Arrays:
        """Returns nodes and edges of every client, by name."""
        stored = self.manifest.sizes
        content = self.store.read(stored.name, 0, stored.size)
        try:
            if sha256(content).hexdigest() != stored.sha256:
                raise ValueError("its bytes are not those that were written")
            header = 8 + int.from_bytes(content[:8], "little")
            return unpack(Header(content[:header], 0, 1).record(0), content[header:])
        except ValueError as error:
            raise InputError(f"{self.store.url}/{stored.name} is damaged: {error}.") from error

    def nodes(self) -> Ints:
        return self.sizes["nodes"].astype(np.int64)

    def edges(self) -> Ints:
        return self.sizes["edges"].astype(np.int64)

    @cached_property
    def scored(self) -> ClientGraphs | None:
        return ScoringGraphs(self) if self.manifest.scoring else None

    def federation(self) -> FederationData:
        """Returns the federation that was written, without any graph in memory."""
        manifest = self.manifest
        different = [Preparation.from_json(entry) for entry in manifest.preparations]
        prepared = SharedPreparations(different, manifest.of_client or None, manifest.clients)
        federation = lazy_federation(self, card=manifest.card, preparations=prepared, positive=manifest.positive)
        return replace(federation, notes=manifest.notes, exchange=to_exchange(manifest.exchange, manifest.clients))


class ScoringGraphs(ClientGraphs):
    """The graphs in shards that models are scored on, where they train on others."""

    def __init__(self, trained_on: ShardedGraphs) -> None:
        self.trained_on = trained_on
        self.name, self.features, self.classes = trained_on.name, trained_on.features, trained_on.classes
        self.class_names, self.names = trained_on.class_names, trained_on.names

    @property
    def hash(self) -> str:
        return self.trained_on.hash

    @property
    def graph_hash(self) -> str:
        return self.trained_on.graph_hash

    def __len__(self) -> int:
        return len(self.trained_on)

    def read(self, client: int) -> Graph:
        return self.trained_on._read(client, scored=True)

    def nodes(self) -> Ints:
        return self.trained_on.sizes["scoring_nodes"].astype(np.int64)

    def edges(self) -> Ints:
        return self.trained_on.sizes["scoring_edges"].astype(np.int64)


def write_shards(
    data: FederationData | ClientGraphs,
    url: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    told: Told | None = None,
) -> ShardedGraphs:
    """Writes the graphs of all clients into a folder or below a URL, one at a time, and returns them.

    `settings` are those of an experiment that the data were prepared with. It is a dataset when its manifest is there,
    which comes last.
    """
    federation = lazy_federation(data) if isinstance(data, ClientGraphs) else data
    store = open_store(url)
    earlier = check_place(store, overwrite)
    if SHARDS in earlier:
        store.remove(SHARDS)
    writer = _Writer(store, federation, told)
    writer.write_clients()
    manifest = writer.manifest(dict(settings or {}))
    write_manifest(store, manifest)
    for name in set(earlier) - {SHARDS, manifest.sizes.name, *(shard.name for shard in manifest.files)}:
        store.remove(name)
    return ShardedGraphs(store.url)


def check_place(store: Store, overwrite: bool) -> list[str]:
    """Returns the files of earlier shards; refuses a place that holds others, or shards that nobody said to replace."""
    names = store.names()
    others = [name for name in names if not name.startswith(SHARD) and name.removesuffix(PART) not in (SHARDS, SIZES)]
    if others:
        raise InputError(f"{store.url} holds {others[0]}, which is no shard: choose an empty or a new place.")
    if SHARDS in names and not overwrite:
        raise InputError(f"{store.url} holds shards already; choose another --out, or --overwrite them.")
    return names


class _Writer:
    """Writes the graphs of a federation, a file at a time."""

    def __init__(self, store: Store, federation: FederationData, told: Told | None) -> None:
        self.store, self.federation, self.told = store, federation, told
        self.files: list[Shard] = []
        rows = federation.card["per_client"]
        self.describes = not rows and len(federation.clients) <= MOST_DESCRIBED
        self.rows: list[dict[str, Any]] = rows if len(rows) <= MOST_DESCRIBED else []
        self.counts = np.zeros((4, len(federation.clients)), np.int64)
        self.feature_names: tuple[str, ...] | None = None

    def write_clients(self) -> None:
        """Writes all graphs; no more than those of one file are in memory."""
        waiting: list[Packed] = []
        size = 0
        for client, (graph, scored) in enumerate(graphs_of(self.federation)):
            waiting.append(pack(graph, scored))
            size += waiting[-1].size
            self._describe(client, graph, scored or graph)
            if size >= FILE_BYTES or len(waiting) == CLIENTS_A_FILE:
                self._write(waiting, client + 1)
                waiting, size = [], 0
        if waiting:
            self._write(waiting, len(self.federation.clients))

    def _write(self, clients: list[Packed], upto: int) -> None:
        first = upto - len(clients)
        name = f"{SHARD}{first:07}.safetensors"
        header = make_header(first, clients)
        self.store.write(name, self._parts(header, clients))
        size = len(header) + sum(client.size for client in clients)
        self.files.append(Shard(name, size, sha256(header).hexdigest(), first, len(clients), len(header)))
        if self.told is not None:
            self.told(upto)

    def _parts(self, header: bytes, clients: list[Packed]) -> Iterator[bytes | memoryview]:
        yield header
        for client in clients:
            yield from client.content

    def _describe(self, client: int, graph: Graph, scored: Graph) -> None:
        """Notes what the manifest says of a client."""
        self.feature_names = graph.feature_names
        self.counts[:, client] = graph.nodes, graph.edge_count, scored.nodes, scored.edge_count
        if self.describes:
            described = scored if self.federation.card.get("inductive") else graph
            (row,) = cards.card(described, np.zeros(described.nodes, np.int64), "", 0, {})["per_client"]
            self.rows.append({**row, "client": self.federation.client_name(client)})

    def manifest(self, settings: dict[str, Any]) -> Manifest:
        """Returns what was written; the sizes of clients are a file beside it."""
        federation, clients = self.federation, len(self.federation.clients)
        names = ("nodes", "edges", "scoring_nodes", "scoring_edges")[: 4 if federation.clean is not None else 2]
        counted = Packed(SIZES, None, {name: narrow(row) for name, row in zip(names, self.counts, strict=False)})
        content = b"".join([make_header(0, [counted]), *counted.content])
        self.store.write(SIZES, [content])
        different, of_client = different_preparations(federation.preparations)
        card = {**federation.card, "per_client": self.rows}
        return Manifest(
            format=FORMAT,
            name=federation.name,
            clients=clients,
            features=federation.features,
            classes=federation.classes,
            feature_names=listed(self.feature_names),
            class_names=listed(federation.class_names),
            names=listed(federation.names),
            positive=federation.positive,
            scoring=federation.clean is not None,
            graph_hash=federation.graph_hash,
            card=card,
            settings=default_settings(card, clients, card["method"] in PARTITIONS) | settings,
            preparations=different,
            of_client=of_client,
            exchange={
                name: Agreed(field.up, field.down, field.reveals) for name, field in federation.exchange.fields.items()
            },
            notes=list(federation.notes),
            sizes=StoredFile(SIZES, len(content), sha256(content).hexdigest()),
            files=self.files,
        )


def graphs_of(federation: FederationData) -> Iterator[tuple[Graph, Graph | None]]:
    """Yields the two graphs of every client; the nodes of a graph that was shared out keep their numbers there."""
    clean = federation.clean
    owners = (clean or federation).membership
    places = None
    if owners is not None and federation.names is None:
        sizes = np.bincount(owners, minlength=len(federation.clients))
        places = np.split(np.argsort(owners, kind="stable"), np.cumsum(sizes)[:-1])
    for client in range(len(federation.clients)):
        graph, scored = federation.clients[client], None if clean is None else clean.clients[client]
        if places is not None and (scored or graph).ids is None:
            ids = places[client].astype(np.str_)
            graph, scored = (graph, replace(scored, ids=ids)) if scored else (replace(graph, ids=ids), None)
        yield graph, scored


def listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def to_exchange(fields: Mapping[str, Agreed], clients: int) -> Exchange:
    """Returns an exchange of so many bytes; what they were is known to nobody any more."""
    if not fields:
        return Exchange()
    blank = np.zeros(1, np.uint8)
    messages = (
        tuple(
            {
                name: np.broadcast_to(blank, (getattr(field, way)[client],))
                for name, field in fields.items()
                if getattr(field, way)[client]
            }
            for client in range(clients)
        )
        for way in ("up", "down")
    )
    up, down = messages
    return Exchange(up, down, {name: field.reveals for name, field in fields.items()})
