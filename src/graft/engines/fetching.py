"""A round's tensors on the way to the host: packed into one, copied once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graft.tensors.trees import Tree, flatten, unflatten

Layout = list[tuple[str, torch.Size, torch.dtype]]


def fetch(tensors: Tree, facts: Any) -> tuple[Tree, Any]:
    """Copies a round's tensors to the host in one go; what a method computed on the host is there already."""
    on_gpu = Tree({path: leaf for path, leaf in flatten(tensors) if leaf.is_cuda})
    if not on_gpu:
        return tensors, facts
    data, layout = pack_bytes(on_gpu)
    return unflatten(dict(flatten(tensors)) | dict(flatten(unpack_bytes(data.cpu(), layout)))), facts


def pack_bytes(tensors: Tree) -> tuple[Tensor, Layout]:
    """Returns a tree of tensors as bytes, the widest numbers first so that each begins at a multiple of its size."""
    flat = sorted(flatten(tensors), key=lambda pair: -pair[1].element_size())
    layout = [(path, leaf.shape, leaf.dtype) for path, leaf in flat]
    # A view, such as a diagonal, may stay one when it is reshaped.
    parts = [leaf.detach().reshape(-1).contiguous().view(torch.uint8) for _, leaf in flat]
    return (torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)), layout


def unpack_bytes(data: Tensor, layout: Layout) -> Tree:
    """Returns the tree that `pack_bytes` made these bytes of."""
    tensors, start = {}, 0
    for path, shape, dtype in layout:
        size = shape.numel() * dtype.itemsize
        tensors[path] = data[start : start + size].view(dtype).view(shape)
        start += size
    return unflatten(tensors)
