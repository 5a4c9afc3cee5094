"""Trees in safetensors files that are known by their content, and checked before anything is made of them."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from graft.files import parse_json, write_bytes
from graft.tensors.trees import Tree, flatten, unflatten

FILE_BYTES = 256 * 10**6  # about how large a file of tensors may get
LARGEST_HEADER = 2**27  # bytes; a client takes a few thousand
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


@dataclass(frozen=True)
class StoredFile:
    """One file of tensors, as the JSON file beside it lists it."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class StoredTree:
    """What a JSON file says of a tree whose tensors are in files."""

    order: list[str]  # the paths of all leaves: safetensors sorts, and order is part of a tree
    numbers: dict[str, bool | int | float]  # leaves that are no tensors
    files: list[StoredFile]


def write_tree(tree: Any, folder: Path) -> StoredTree:
    """Writes the tensors of a tree into a folder; returns what is needed to read them back."""
    files = [write_tensors(tensors, folder) for tensors in in_files(tree)]
    numbers = {path: leaf for path, leaf in flatten(tree) if not isinstance(leaf, Tensor)}
    return StoredTree([path for path, _ in flatten(tree)], numbers, files)


def read_tree(stored: StoredTree, folder: Path) -> Tree:
    """Returns the tree that was written, its tensors as `read_tensors` gives them; a `ValueError` if it is damaged."""
    leaves: dict[str, Any] = dict(stored.numbers)
    for file in stored.files:
        leaves |= read_tensors(folder, file)
    if sorted(leaves) != sorted(stored.order):
        raise ValueError("its tensors are not those that it lists")
    return unflatten({path: leaves[path] for path in stored.order})


def in_files(tree: Any) -> Iterator[dict[str, Tensor]]:
    """Yields copies of all tensors, so many at a time that state on disk is never in memory as a whole."""
    waiting: dict[str, Tensor] = {}
    size = 0
    for path, leaf in flatten(tree):
        if isinstance(leaf, Tensor):
            waiting[path] = leaf.detach().cpu().contiguous().clone()
            size += leaf.nbytes
        if size >= FILE_BYTES:
            yield waiting
            waiting, size = {}, 0
    yield waiting


def write_tensors(tensors: Mapping[str, Tensor], folder: Path) -> StoredFile:
    """Writes tensors into a file that is named after its content, so it never takes the place of another."""
    content = safetensors.torch.save(dict(tensors))
    digest = hashlib.sha256(content).hexdigest()
    stored = StoredFile(f"state-{digest[:16]}.safetensors", len(content), digest)
    write_bytes(folder / stored.name, content)
    return stored


def read_tensors(folder: Path, stored: StoredFile) -> dict[str, Tensor]:
    """Returns the tensors of a file, as views of it that are read when they are used; a `ValueError` if it is damaged.

    They lie in memory as they lie in the file, which is not where PyTorch would put them: copy what is computed with.
    """
    if Path(stored.name).name != stored.name:
        raise ValueError(f"its file {stored.name!r} lies elsewhere")
    path = folder / stored.name
    if not path.is_file() or path.stat().st_size != stored.size or not stored.size:
        raise ValueError(f"its file {stored.name} is missing or has another size")
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if hashlib.sha256(content).hexdigest() != stored.sha256:
        raise ValueError(f"its file {stored.name} is not what was written")
    return view_tensors(content, stored.name)


def view_tensors(content: mmap.mmap | bytearray, name: str) -> dict[str, Tensor]:
    """Returns the tensors in the bytes of a safetensors file, whose header must account for every byte once."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, LARGEST_HEADER):
        raise ValueError(f"{name} begins with an impossible length")
    try:
        header = parse_json(bytes(content[8 : 8 + length]).decode())
    except ValueError as error:
        raise ValueError(f"the header of {name} cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise ValueError(f"the header of {name} is not a table")
    header.pop("__metadata__", None)
    tensors = {}
    upto = 8 + length
    for path, entry in sorted(header.items(), key=lambda item: _begin(item[1], name)):
        dtype, shape, size = _described(entry, upto - 8 - length, f"tensor {path!r} of {name}")
        if size > len(content) - upto or upto % dtype.itemsize:
            raise ValueError(f"tensor {path!r} of {name} does not lie within the file")
        tensors[path] = _view(content, upto, shape, dtype, f"tensor {path!r} of {name}")
        upto += size
    if upto != len(content):
        raise ValueError(f"{name} has {len(content) - upto} bytes that belong to no tensor")
    return tensors


def _begin(entry: Any, name: str) -> int:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(offset) is int for offset in offsets):
        raise ValueError(f"the header of {name} has a tensor without a place")
    begin: int = offsets[0]
    return begin


def _described(entry: dict[str, Any], begin: int, what: str) -> tuple[torch.dtype, list[int], int]:
    """Returns dtype, shape and bytes of a tensor, checked against its offsets."""
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{what} is of the unknown dtype {dtype!r}")
    if not isinstance(shape, list) or not all(type(length) is int and 0 <= length < 2**48 for length in shape):
        raise ValueError(f"{what} has the impossible shape {shape!r}")
    size = prod(shape) * DTYPES[dtype].itemsize
    if entry["data_offsets"] != [begin, begin + size]:
        raise ValueError(f"{what} has another size than its dtype and shape say")
    return DTYPES[dtype], shape, size


def _view(content: mmap.mmap | bytearray, begin: int, shape: list[int], dtype: torch.dtype, what: str) -> Tensor:
    count = prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    if dtype == torch.bool:
        plain = torch.frombuffer(content, dtype=torch.uint8, count=count, offset=begin)
        if int(plain.max()) > 1:
            raise ValueError(f"{what} holds truth values that are neither true nor false")
        return plain.view(torch.bool).view(shape)
    return torch.frombuffer(content, dtype=dtype, count=count, offset=begin).view(shape)
