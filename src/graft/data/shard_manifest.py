"""The file that makes a folder or a URL a dataset of shards; reading it imports neither NumPy nor PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from pydantic import ConfigDict, TypeAdapter

from graft.data import OWN_GRAPHS, SHARDS
from graft.data.stores import Store, open_store
from graft.errors import InputError
from graft.files import canonical, parse_json, parse_sealed, printable, seal

FORMAT = "graft-shards-1"
LARGEST = 2**40  # bytes of a file

Count = Annotated[int, Ge(0), Le(LARGEST)]
Numbers = list[Annotated[int, Ge(0)]]


@dataclass(frozen=True)
class StoredFile:
    """A file that the manifest accounts for."""

    name: str
    size: Count
    sha256: str  # of all of it; of a shard, of its header, which has those of its clients


@dataclass(frozen=True)
class Shard(StoredFile):
    """A file with the graphs of some clients, one after the other."""

    first: Count  # the number of its first client
    clients: Annotated[int, Ge(1), Le(10**6)]
    header: Count  # bytes before the first graph


@dataclass(frozen=True)
class Agreed:
    """The bytes of one field that clients exchanged before they trained, client by client."""

    up: Numbers
    down: Numbers
    reveals: str


@dataclass(frozen=True)
class Manifest:
    """All that is known of the graphs without reading one."""

    format: str
    name: str  # of the dataset
    clients: Annotated[int, Ge(1), Le(10**6)]
    features: Annotated[int, Ge(1)]
    classes: Annotated[int, Ge(1)]
    feature_names: list[str] | None
    class_names: list[str] | None
    names: list[str] | None  # of the clients
    positive: Annotated[int, Ge(0)] | None  # the class of interest
    scoring: bool  # whether models are scored on other graphs than they train on
    graph_hash: str  # of the edges and labels of all nodes
    card: dict[str, Any]  # of the partition
    settings: dict[str, Any]  # of the data, as an experiment has them
    preparations: list[dict[str, Any]]  # those that differ
    of_client: Numbers  # which of them each client has; empty: all have the first
    exchange: dict[str, Agreed]
    notes: list[str]
    sizes: StoredFile  # nodes and edges of every client
    files: list[Shard]

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @cached_property
    def hash(self) -> str:
        """Returns the SHA-256 of all that the shards hold, since the manifest has those of its files."""
        return sha256(canonical({field.name: asdict(self)[field.name] for field in fields(self)}).encode()).hexdigest()


SCHEMA = TypeAdapter(Manifest)


def write_manifest(store: Store, manifest: Manifest) -> None:
    """Makes the files of a store a dataset."""
    store.write(SHARDS, [(json.dumps(seal(asdict(manifest)), allow_nan=False) + "\n").encode()])


def read_manifest(store: Store) -> Manifest:
    """Returns the manifest of a store, of which every byte is what was written."""
    if SHARDS not in store.names():
        raise InputError(
            f"{store.url} holds no {SHARDS}: it is no dataset, or `graft shard` did not come to its end there."
        )
    where = f"{store.url}/{SHARDS}"
    try:
        manifest = parse_sealed(parse_json(store.read(SHARDS).decode()), SCHEMA, FORMAT, where)
        _check(manifest)
    except ValueError as error:
        raise InputError(f"{where} is damaged or not Graft's: {printable(error)}.") from error
    return manifest


def _check(manifest: Manifest) -> None:
    """Refuses what does not fit together."""
    clients, counted = manifest.clients, 0
    for shard in manifest.files:
        if shard.first != counted or shard.header > shard.size:
            raise ValueError(f"its file {shard.name!r} does not follow the one before")
        counted += shard.clients
    lists = (("of_client", manifest.of_client or None), ("names", manifest.names))
    lengths = {name: len(entries) for name, entries in lists if entries is not None}
    wrong = [name for name, length in {**lengths, "files": counted}.items() if length != clients]
    if wrong:
        raise ValueError(f"its {wrong[0]} are not those of {clients} clients")
    if not manifest.preparations or max(manifest.of_client, default=0) >= len(manifest.preparations):
        raise ValueError("a client's preparation is missing")
    if any(Path(file.name).name != file.name for file in (*manifest.files, manifest.sizes)):
        raise ValueError("one of its files lies elsewhere")


def open_manifest(source: str) -> Manifest:
    """Returns the manifest in a folder or below a URL."""
    return read_manifest(open_store(source))


def default_settings(card: Mapping[str, Any], clients: int, named: bool) -> dict[str, Any]:
    """Returns the settings of data of which nothing is known but their partition card."""
    return {"clients": clients, "partition": card["method"] if named else OWN_GRAPHS, "split": "own"}
