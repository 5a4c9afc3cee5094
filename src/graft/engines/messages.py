"""Messages as bytes: tensors in safetensors form, everything else in JSON, and no pickle anywhere.

A message is `length of the head (8 bytes, little-endian) | head (JSON) | tensors (safetensors)`. Whoever reads one
trusts nothing of it: what is not exactly as `pack` writes it is damaged, and no more memory is taken than a small
multiple of the bytes that came.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from graft.engines.wire import MOST_BYTES
from graft.tensors.trees import Tree, flatten, unflatten

MOST_HEAD = 2**20  # bytes of JSON, which takes up to some thirty times as much memory once it is read
MOST_PATHS = 10_000
DEEPEST = 32  # levels of a tree, or of a head
LARGEST = 2**63  # size of a whole number
MOST_CELLS = 2**62  # of a shape, axes of length 0 left out
DTYPES = {
    torch.float64: ("F64", 8),
    torch.float32: ("F32", 4),
    torch.float16: ("F16", 2),
    torch.bfloat16: ("BF16", 2),
    torch.int64: ("I64", 8),
    torch.int32: ("I32", 4),
    torch.int16: ("I16", 2),
    torch.int8: ("I8", 1),
    torch.uint8: ("U8", 1),
    torch.bool: ("BOOL", 1),
}
WIDTHS = dict(DTYPES.values())
KINDS = {name: dtype for dtype, (name, _) in DTYPES.items()}


class DamagedMessage(ValueError):
    """Bytes that are not a message."""


def pack(head: dict[str, Any], tree: Any = None) -> bytes:
    """Returns the bytes of a message: a head of plain values, and a tree of tensors and finite numbers."""
    return b"".join(message_parts(head, tree))


def message_parts(head: dict[str, Any], tree: Any = None) -> list[Any]:
    """Returns the bytes of a message in parts that are still to be joined, in which tensors are not copied."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, int | float] = {}
    leaves = list(flatten(tree or {}))
    for path, leaf in leaves:
        if isinstance(leaf, Tensor):
            if leaf.dtype not in DTYPES:
                raise TypeError(f"a message cannot hold '{path}', whose dtype is {leaf.dtype}")
            tensors[path] = leaf
        else:
            check_number(path, leaf)
            numbers[path] = leaf
    # Order is part of a tree: the head lists the paths, since numbers are elsewhere than tensors.
    order = [path for path, _ in leaves]
    text = json.dumps({"head": head, "numbers": numbers, "order": order, "empty": tree is None}).encode()
    return [len(text).to_bytes(8, "little"), text, *tensor_bytes(tensors)]


def tensor_bytes(tensors: Mapping[str, Tensor]) -> list[Any]:
    """Returns the safetensors form of some tensors in parts that are still to be joined: the library itself would copy
    them several times."""
    table: dict[str, Any] = {}
    contents = []
    end = 0
    for path, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        table[path] = {"dtype": DTYPES[tensor.dtype][0], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        contents.append(raw_bytes(tensor))
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)  # as the library pads it
    return [len(text).to_bytes(8, "little"), text, *contents]


def raw_bytes(tensor: Tensor) -> memoryview:
    """Returns the bytes of a tensor, without a copy where they lie in order already."""
    ordered = tensor.detach().cpu().contiguous()
    flat = ordered.as_strided((ordered.numel(),), (1,))  # an axis of one entry may have any stride
    content: Any = flat.view(torch.uint8).numpy()
    return memoryview(content)


def unpack(data: bytes, most_bytes: int = MOST_BYTES) -> tuple[dict[str, Any], Any]:
    """Returns the head and the tree of a message; anything malformed raises `DamagedMessage`, and nothing else does.

    Values of tensors may be anything. A head is a table of plain values, which may be nested, and in which alone a
    number may be infinite or nan, as a loss may.
    """
    try:
        require(len(data) <= most_bytes, f"{len(data)} bytes are more than the {most_bytes} that are taken")
        frame, body = read_table(memoryview(data), "head")
        require(frame.keys() == {"head", "numbers", "order", "empty"}, "its frame has other fields")
        head, numbers, order, empty = frame["head"], frame["numbers"], frame["order"], frame["empty"]
        require(isinstance(head, dict) and isinstance(numbers, dict), "its head or its numbers are not a table")
        require(isinstance(order, list) and isinstance(empty, bool), "its order is not a list, or empty is not a bool")
        check_plain(head, DEEPEST)
        check_paths(order)
        for path, number in numbers.items():
            check_number(path, number)
        tensors = read_tensors(body)
        require(len(numbers) + len(tensors) == len(order), "its order does not list every leaf once")
        require(numbers.keys() | tensors.keys() == set(order), "its order lists other leaves than there are")
        require(not (empty and order), "it says that there is no tree, and has leaves")
        leaves: dict[str, Any] = {**tensors, **numbers}
        tree = unflatten({path: leaves[path] for path in order})
        require([path for path, _ in flatten(tree)] == order, "its order leaves a branch and comes back to it")
        return head, None if empty else tree
    except Exception as error:  # whatever it is, it is about these bytes: nothing else is read
        raise DamagedMessage(f"not a Graft message: {str(error)[:200] or type(error).__name__}") from error


def require(fits: bool, otherwise: str) -> None:
    if not fits:
        raise ValueError(otherwise)


def read_table(data: memoryview, what: str) -> tuple[dict[str, Any], memoryview]:
    """Returns the JSON table that begins some bytes, after its length, and the rest of them."""
    length = int.from_bytes(data[:8], "little")
    require(len(data) >= 8 and length <= len(data) - 8, f"its {what} is longer than the message")
    require(length <= MOST_HEAD, f"its {what} is longer than {MOST_HEAD} bytes")
    table = json.loads(bytes(data[8 : 8 + length]).decode(), object_pairs_hook=unique)
    require(isinstance(table, dict), f"its {what} is not a table")
    return table, data[8 + length :]


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a table in which no name comes twice; JSON would take the last."""
    table = dict(pairs)
    require(len(table) == len(pairs), "a name comes twice in one table")
    return table


def check_plain(value: Any, levels: int) -> None:
    """Refuses a value of a head that is nested too deeply, not text that can be written, or too large a number."""
    require(levels > 0, f"its head is nested more than {DEEPEST} levels deep")
    if isinstance(value, str):
        value.encode()  # half a character, as JSON may escape it, is an error
    elif isinstance(value, dict):
        for name, entry in value.items():
            name.encode()
            check_plain(entry, levels - 1)
    elif isinstance(value, list):
        for entry in value:
            check_plain(entry, levels - 1)
    elif isinstance(value, int):
        require(-LARGEST <= value < LARGEST, "its head has a number of more than 64 bits")


def check_number(path: str, number: Any) -> None:
    """Refuses what is not a number of 64 bits, or not a finite one."""
    if isinstance(number, int):  # so is a bool
        require(-LARGEST <= number < LARGEST, f"'{path:.99}' is a number of more than 64 bits")
    else:
        finite = isinstance(number, float) and math.isfinite(number)
        require(finite, f"'{path:.99}' is {number!r:.99}, not a finite number")


def check_paths(paths: Iterable[Any]) -> None:
    """Refuses paths that no tree has: a leaf that comes twice or is a branch as well, a name that is none."""
    leaves: set[str] = set()
    branches: set[str] = set()
    for path in paths:
        names = path.split("/")
        require(len(names) <= DEEPEST, f"a path is more than {DEEPEST} levels deep")
        require(all(name and name.isprintable() for name in names), f"{path!r:.99} is not a path of names")
        require(path not in leaves, f"'{path:.99}' is there twice")
        leaves.add(path)
        branches.update("/".join(names[:level]) for level in range(1, len(names)))
        require(len(leaves) <= MOST_PATHS, f"there are more than {MOST_PATHS} paths")
    require(leaves.isdisjoint(branches), "a leaf is also a branch")


def read_tensors(body: memoryview) -> dict[str, Tensor]:
    """Returns copies of tensors whose header tells the truth about the bytes that follow it.

    Each is where the one before it ends, is as long as its shape says, and the last ends where the message does.
    """
    header, values = read_table(body, "table of tensors")
    places: list[tuple[int, int]] = []
    for entry in header.values():
        require(entry.keys() == {"dtype", "shape", "data_offsets"}, "a tensor is described otherwise")
        (begin, end), width = whole_numbers(entry["data_offsets"]), WIDTHS[entry["dtype"]]
        shape = whole_numbers(entry["shape"])
        require(math.prod(filter(None, shape)) < MOST_CELLS, "a shape is too large")
        require(begin <= end <= len(values), "a tensor lies beyond the message")
        require(math.prod(shape) * width == end - begin, "a tensor is not as long as its shape says")
        if entry["dtype"] == "BOOL":  # PyTorch would calculate with any byte
            require(not bytes(values[begin:end]).translate(None, b"\0\1"), "a boolean is neither true nor false")
        places.append((begin, end))
    expected = 0
    for begin, end in sorted(places):
        require(begin == expected, "tensors overlap, or leave gaps")
        expected = end
    require(expected == len(values), "bytes belong to no tensor")
    return {name: read_tensor(entry, values) for name, entry in header.items()}


def read_tensor(entry: Mapping[str, Any], values: memoryview) -> Tensor:
    """Returns a tensor as a header that was checked describes it."""
    begin, end = entry["data_offsets"]
    dtype = KINDS[entry["dtype"]]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    return torch.frombuffer(bytearray(values[begin:end]), dtype=dtype).reshape(entry["shape"])


def whole_numbers(values: Any) -> list[int]:
    """Returns a list of few whole numbers that are not negative, of which it must be one."""
    fits = isinstance(values, list) and len(values) <= DEEPEST and all(type(value) is int for value in values)
    require(fits and all(value >= 0 for value in values), "a shape or a place in the message is no list of numbers")
    checked: list[int] = values
    return checked


def drop_client_axis(reply: Any) -> Tree:
    """Returns the reply of a fleet of one without its client axis, as it travels."""
    return unflatten({path: leaf[0] for path, leaf in flatten(reply)})


def add_client_axis(reply: Any) -> Tree:
    """Returns the reply of one client with a client axis again."""
    return unflatten({path: torch.as_tensor(leaf).unsqueeze(0) for path, leaf in flatten(reply)})
