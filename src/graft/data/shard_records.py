"""A client's graph as the bytes of a shard: arrays one after the other, as the header of a safetensors file lists."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from graft.data.graphs import MASKS, Graph
from graft.files import parse_json

FORMAT = "graft-shard-1"
SCORING = "scoring/"  # begins the names of arrays of the graph that models are scored on
PADDING = "padding"  # so that every client begins at a multiple of 8 bytes, and no array lies askew
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
AS_THEY_ARE = (*MASKS, "weights", "node_times", "edge_times")  # fields of a graph that are arrays

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Stored:
    """An array as a header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int  # after the header
    end: int


@dataclass(frozen=True)
class Record:
    """A client as a header describes it."""

    name: str  # of its graph
    sha256: str
    scoring: tuple[str, ...] | None  # all arrays of the graph to be scored on; those not stored are as in the other
    arrays: tuple[Stored, ...]

    @property
    def begin(self) -> int:
        return self.arrays[0].begin

    @property
    def end(self) -> int:
        return self.arrays[-1].end


@dataclass(frozen=True)
class Packed:
    """A client ready to be written."""

    name: str
    scoring: list[str] | None
    arrays: Arrays

    @property
    def size(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def content(self) -> list[memoryview]:
        """Returns the bytes of all arrays, which are not copied."""
        return [array.reshape(-1).view(np.uint8).data for array in self.arrays.values()]


def pack(graph: Graph, scored: Graph | None) -> Packed:
    """Returns a client's graph, and the one that its models are scored on if that is another, as arrays."""
    arrays = to_arrays(graph)
    scoring: list[str] | None = None
    if scored is not None:
        others = to_arrays(scored)
        scoring = list(others)
        for name, array in others.items():
            if name not in arrays or not same(array, arrays[name]):
                arrays[SCORING + name] = array
    largest_first = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    ordered = {name: np.ascontiguousarray(arrays[name]) for name in largest_first}
    ordered[PADDING] = np.zeros(-sum(array.nbytes for array in ordered.values()) % 8, np.uint8)
    return Packed(graph.name, scoring, ordered)


def same(array: NDArray[Any], other: NDArray[Any]) -> bool:
    return array.dtype == other.dtype and np.array_equal(array, other)


def to_arrays(graph: Graph) -> Arrays:
    """Returns the arrays of a graph by name; numbers of nodes and classes take four bytes where that is enough."""
    arrays: Arrays = {"y": narrow(graph.y), "edges": narrow(graph.edges)}
    if issparse(graph.x):
        arrays |= {f"x.{part}": narrow(getattr(graph.x, part)) for part in ("indptr", "indices")}
        arrays["x.data"] = graph.x.data.astype("<f4", copy=False)
    else:
        arrays["x"] = graph.x.astype("<f4", copy=False)
    for name in AS_THEY_ARE:
        values = getattr(graph, name)
        if values is not None:
            arrays[name] = values.astype(values.dtype.newbyteorder("<"), copy=False)
    if graph.ids is not None:
        texts = [text.encode("utf-8", "surrogatepass") for text in graph.ids.tolist()]
        arrays["ids"] = np.frombuffer(b"".join(texts), np.uint8)
        arrays["ids.ends"] = np.cumsum([len(text) for text in texts]).astype("<i8")
    return arrays


def narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    few = not numbers.size or (numbers.max() < 2**31 and numbers.min() >= -(2**31))
    return numbers.astype("<i4" if few else "<i8", copy=False)


def make_header(first: int, clients: Sequence[Packed]) -> bytes:
    """Returns the header of a safetensors file with some clients, the first of which has that number."""
    table: dict[str, Any] = {}
    records, upto = [], 0
    for number, client in enumerate(clients, first):
        for name, array in client.arrays.items():
            offsets = [upto, upto + array.nbytes]
            table[f"{number}/{name}"] = {
                "dtype": CODES[array.dtype],
                "shape": list(array.shape),
                "data_offsets": offsets,
            }
            upto = offsets[1]
        digest = sha256()
        for content in client.content:
            digest.update(content)
        records.append({"name": client.name, "sha256": digest.hexdigest(), "scoring": client.scoring})
    metadata = {"format": FORMAT, "first": str(first), "clients": json.dumps(records)}
    text = json.dumps({"__metadata__": metadata, **table}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class Header:
    """The header of a file, of which only what is said of the clients that are asked for is looked at."""

    def __init__(self, content: bytes, first: int, clients: int) -> None:
        """Parses a header; a `ValueError` where it does not describe those clients."""
        if int.from_bytes(content[:8], "little") != len(content) - 8:
            raise ValueError("its header has another length")
        table = parse_json(content[8:].decode())
        try:
            self.entries = parse_json(table.pop("__metadata__")["clients"])
            self.arrays: list[dict[str, Any]] = [{} for _ in range(clients)]
            for path, entry in table.items():
                number, _, name = path.partition("/")
                self.arrays[int(number) - first][name] = entry
            if len(self.entries) != clients:
                raise ValueError(f"its header describes {len(self.entries)} clients instead of {clients}")
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"its header cannot be read ({type(error).__name__})") from None

    def record(self, position: int) -> Record:
        """Returns what is said of one client; a `ValueError` where that cannot be."""
        try:
            entry, arrays = self.entries[position], list[Stored]()
            for name, stored in self.arrays[position].items():
                shape, (begin, end) = tuple(map(int, stored["shape"])), stored["data_offsets"]
                size = prod(shape) * DTYPES[stored["dtype"]].itemsize
                follows = not arrays or begin == arrays[-1].end
                if not follows or end - begin != size or min(0, begin, *shape) < 0:
                    raise ValueError(f"its array {name!r} has no place")
                arrays.append(Stored(name, stored["dtype"], shape, begin, end))
            scoring = None if entry["scoring"] is None else tuple(entry["scoring"])
            if not arrays:
                raise ValueError("it has no arrays")
            return Record(entry["name"], entry["sha256"], scoring, tuple(arrays))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"its header cannot be read ({type(error).__name__})") from None


def unpack(record: Record, content: bytes) -> Arrays:
    """Returns the arrays of a client in its bytes; a `ValueError` where these are not what was written."""
    if len(content) != record.end - record.begin or sha256(content).hexdigest() != record.sha256:
        raise ValueError("its bytes are not those that were written")
    memory = bytearray(content)  # arrays that can be written to, as those of any other graph
    arrays = {}
    for stored in record.arrays:
        dtype, begin, count = DTYPES[stored.dtype], stored.begin - record.begin, prod(stored.shape)
        flat = np.frombuffer(memory, dtype, count, begin) if count else np.empty(0, dtype)
        if stored.dtype == "BOOL" and count and flat.view(np.uint8).max() > 1:
            raise ValueError(f"its {stored.name} are neither true nor false")
        arrays[stored.name] = flat.reshape(stored.shape)
    return arrays


def scoring_arrays(record: Record, arrays: Arrays) -> Arrays:
    """Returns those arrays of a client that are of the graph which its models are scored on."""
    return {name: arrays.get(SCORING + name, arrays.get(name, np.empty(0))) for name in record.scoring or ()}


def to_graph(name: str, arrays: Arrays, features: int, classes: int, names: Mapping[str, Any]) -> Graph:
    """Returns the graph of some arrays; a `ValueError` where they cannot be one's."""
    try:
        y, edges = arrays["y"].astype(np.int64), arrays["edges"].astype(np.int64)
        nodes = len(y)
        if "x" in arrays:
            x: Any = arrays["x"]
        else:
            data, indices, indptr = (arrays[f"x.{part}"] for part in ("data", "indices", "indptr"))
            x = csr_array((data, indices, indptr), shape=(nodes, features))
            x.check_format(full_check=True)
        ids = None
        if "ids" in arrays:
            content, ends = arrays["ids"].tobytes(), arrays["ids.ends"].tolist()
            parts = [content[begin:end] for begin, end in pairwise([0, *ends])]
            ids = np.array([part.decode("utf-8", "surrogatepass") for part in parts], np.str_)
        fields: dict[str, Any] = {field: arrays[field] for field in AS_THEY_ARE if field in arrays}
    except (KeyError, ValueError) as error:
        raise ValueError(f"its arrays are not those of a graph ({error})") from None
    check_shapes(
        nodes, features, classes, {"x": x, "y": y, "edges": edges, **fields, **({} if ids is None else {"ids": ids})}
    )
    return Graph(name, x, edges, y, classes, ids=ids, **fields, **names)


def check_shapes(nodes: int, features: int, classes: int, arrays: Mapping[str, Any]) -> None:
    """Refuses arrays of shapes or values that no graph has."""
    edges, y = arrays["edges"], arrays["y"]
    count = edges.shape[-1]
    shapes = {"x": (nodes, features), "edges": (2, count), "weights": (count,), "edge_times": (count,)}
    for name, array in arrays.items():
        if array.shape != shapes.get(name, (nodes,)):
            raise ValueError(f"its {name} have the shape {array.shape}")
    if edges.size and (edges.min() < 0 or edges.max() >= nodes):
        raise ValueError("its edges join nodes that it does not have")
    if not nodes or y.min() < -1 or y.max() >= classes:
        raise ValueError("its labels are of classes that it does not have")
