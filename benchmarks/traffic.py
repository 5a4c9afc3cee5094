"""Counts the bytes that the operations of a round move.

A sparse product reads for each entry its column, its value if it has one, and a row of the dense matrix, and where each
row begins, and writes its result: that is what it moves, though caches serve a part of it. At least it must read the
dense matrix once instead. Attention reads for each entry its column, a number of its other end and, in the backward
pass, a row of that, and writes a number. Dropout reads and writes every number; Adam reads weights, gradients and two
moments and writes all but the gradients. All other operations read their arguments and write their results, once each:
dense products, and the rest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graft.tensors import kernels
from graft.tensors.sparse import BlockSparse

DENSE = ("mm", "bmm", "addmm", "baddbmm")  # operations that are dense products

Moved = dict[str, dict[str, float]]  # by family of operations: calls, bytes, and the least bytes there could be


class Counter(TorchDispatchMode):
    """Counts all operations of PyTorch; Graft's own kernels are counted by the methods of this class."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: Moved = defaultdict(lambda: {"calls": 0, "bytes": 0, "least_bytes": 0})

    def add(self, family: str, size: float, least: float | None = None) -> None:
        counts = self.moved[family]
        counts["calls"] += 1
        counts["bytes"] += size
        counts["least_bytes"] += size if least is None else least

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        size = moved_by(name, args, result)
        if size:
            self.add("dense" if name in DENSE else "rest", size)
        return result

    def product(self, matrix: BlockSparse, dense: Tensor) -> None:
        if not matrix.entries or (matrix.blocks > 1 and dense.stride(0) == 0):  # which comes back here as one block
            return
        row_bytes, rows = 4 * dense.shape[-1], matrix.blocks * matrix.rows
        pattern = matrix.entries * (4 if matrix.values is None else 8) + 4 * rows
        out = rows * row_bytes
        least = pattern + matrix.blocks * matrix.width * row_bytes + out
        self.add("product", pattern + matrix.entries * row_bytes + out, least)

    def dropout(self, keys: Tensor, draws: int, values: Tensor, *rest: Any) -> None:  # noqa: ARG002
        self.add("dropout", 8 * values.numel())

    def adam(self, rate: float, decay: float, steps: Tensor, weights: Tensor, *rest: Any) -> None:  # noqa: ARG002
        self.add("adam", 28 * weights.numel())

    def attention_weights(self, starts: Tensor, columns: Tensor, *rest: Any) -> None:  # noqa: ARG002
        self.add("attention", 12 * columns.numel() + 8 * starts.numel())

    def attention_weights_backward(self, starts: Tensor, columns: Tensor, *rest: Any) -> None:
        dense = 2 * 4 * rest[-2].numel()
        size, row_bytes = 16 * columns.numel() + 12 * starts.numel(), 4 * rest[-2].shape[1]
        self.add("attention", size + row_bytes * columns.numel() + dense / 2, size + dense)

    def row_sums(self, starts: Tensor, values: Tensor, order: Tensor) -> None:  # noqa: ARG002
        self.add("attention", 12 * order.numel() + 8 * starts.numel())


@contextmanager
def count_bytes_moved() -> Iterator[Moved]:
    """Yields what has been counted, by family, while a round runs inside."""
    counter = Counter()

    def counted(function: Any, count: Any) -> Any:
        def call(*arguments: Any) -> Any:
            count(*arguments)
            return function(*arguments)

        return call

    own_kernels = ("dropout", "adam", "attention_weights", "attention_weights_backward", "row_sums")
    patches = {name: counted(getattr(kernels, name), getattr(counter, name)) for name in own_kernels}
    with (
        counter,
        patch.multiple(kernels, **patches),
        patch.object(BlockSparse, "times", counted(BlockSparse.times, counter.product)),
    ):
        yield counter.moved


def moved_by(name: str, args: Any, result: Any) -> int:
    """Returns the bytes of arguments and results of an operation; none of one that gives a view, or memory to fill."""
    if name.startswith(("empty", "new_empty", "_local_scalar", "sparse", "_sparse")):
        return 0  # sparse products are counted where they are called
    inputs = {id(tensor): tensor for tensor in flat_tensors(args)}.values()
    outputs = flat_tensors(result)
    storages = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    if not name.endswith("_") and any(tensor.untyped_storage().data_ptr() in storages for tensor in outputs):
        return 0
    return sum(map(stored_bytes, inputs)) + sum(map(stored_bytes, outputs))


def flat_tensors(values: Any) -> list[Tensor]:
    entries = values if isinstance(values, list | tuple) else [values]
    flat = [leaf for entry in entries for leaf in (entry if isinstance(entry, list | tuple) else [entry])]
    return [leaf for leaf in flat if isinstance(leaf, Tensor) and leaf.layout == torch.strided]


def stored_bytes(tensor: Tensor) -> int:
    """Returns the bytes of a tensor; an axis along which it is expanded costs nothing."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size == 1)
    return math.prod(sizes) * tensor.element_size() if tensor.numel() else 0
