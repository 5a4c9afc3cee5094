"""Messages as bytes: tensors in safetensors form, everything else in JSON, and no pickle anywhere.

A message is `length of the head (8 bytes, little-endian) | head (JSON) | tensors (safetensors)`.
"""

from __future__ import annotations

import json
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from graft.tensors.trees import Tree, flatten, unflatten


class DamagedMessage(ValueError):
    """Bytes that are not a message."""


def pack(head: dict[str, Any], tree: Any = None) -> bytes:
    """Returns the bytes of a message: a head of plain values, and a tree of tensors and numbers."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, int | float] = {}
    stored: set[int] = set()
    for path, leaf in flatten(tree or {}):
        if isinstance(leaf, Tensor):
            tensor = leaf.detach().cpu().contiguous()
            memory = tensor.untyped_storage().data_ptr()
            tensors[path] = tensor.clone() if memory in stored else tensor  # safetensors refuses shared memory
            stored.add(memory)
        else:
            numbers[path] = leaf
    # Order is part of a tree: the head lists the paths, since safetensors sorts them.
    order = [path for path, _ in flatten(tree or {})]
    text = json.dumps({"head": head, "numbers": numbers, "order": order, "empty": tree is None}).encode()
    return len(text).to_bytes(8, "little") + text + safetensors.torch.save(tensors)


def unpack(data: bytes) -> tuple[dict[str, Any], Any]:
    """Returns the head and the tree of a message; anything malformed raises `DamagedMessage`."""
    try:
        length = int.from_bytes(data[:8], "little")
        frame = json.loads(data[8 : 8 + length])
        pairs: dict[str, Any] = {**safetensors.torch.load(data[8 + length :]), **frame["numbers"]}
        tree = None if frame["empty"] else unflatten({path: pairs[path] for path in frame["order"]})
        return frame["head"], tree
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, safetensors.SafetensorError) as error:
        raise DamagedMessage(f"not a Graft message: {error}") from error


def drop_client_axis(reply: Any) -> Tree:
    """Returns the reply of a fleet of one without its client axis, as it travels."""
    return unflatten({path: leaf[0] for path, leaf in flatten(reply)})


def add_client_axis(reply: Any) -> Tree:
    """Returns the reply of one client with a client axis again."""
    return unflatten({path: torch.as_tensor(leaf).unsqueeze(0) for path, leaf in flatten(reply)})
