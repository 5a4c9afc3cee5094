"""Products with mostly empty matrices in a recorded forward pass: features times weights, and sums over neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from graft.models.recording import Slot, Step, name_of
from graft.tensors.autograd import apply_function
from graft.tensors.sparse import BlockSparse

DENSITY = 0.1  # of the elements of a matrix; with more that are not zero, it is multiplied as a dense one


def multiply(matrix: BlockSparse, dense: Tensor) -> Tensor:
    """Returns the product of a matrix of one block with [width, d]."""
    return apply_function(_Product, matrix, dense)


def multiply_linear(matrix: BlockSparse, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns what `functional.linear` returns for a dense matrix."""
    product = apply_function(_Linear, matrix, weight)
    return product if bias is None else product + bias


class _Product(torch.autograd.Function):
    """One operation, where that of a fleet would be four with its client axis."""

    @staticmethod
    def forward(ctx: Any, matrix: BlockSparse, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix.times(dense.unsqueeze(0))[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix.transpose.times(gradient.contiguous().unsqueeze(0))[0]


class _Linear(torch.autograd.Function):
    """The product with a transpose. The rows of a table are what can be summed up fast, so it is written out."""

    @staticmethod
    def forward(ctx: Any, matrix: BlockSparse, weight: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix.times(weight.t().contiguous().unsqueeze(0))[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix.transpose.times(gradient.contiguous().unsqueeze(0))[0].t()


PRODUCTS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    functional.linear: multiply_linear,
    torch.matmul: multiply,
    torch.mm: multiply,
    Tensor.matmul: multiply,
    Tensor.mm: multiply,
    Tensor.__matmul__: multiply,
}


def is_sparse_enough(matrix: Tensor) -> bool:
    """Returns whether a product with a matrix is faster if it is kept as a sparse one."""
    if matrix.dim() != 2 or matrix.dtype != torch.float32 or not matrix.numel():
        return False
    return int(torch.count_nonzero(matrix)) <= DENSITY * matrix.numel()


def as_sparse(dense: Tensor) -> BlockSparse:
    """Returns a matrix as one sparse block."""
    rows, columns = dense.nonzero(as_tuple=True)
    return block_of(rows, columns, dense[rows, columns], (dense.shape[0], dense.shape[1]))


def block_of(rows: Tensor, columns: Tensor, values: Tensor | None, shape: tuple[int, int]) -> BlockSparse:
    """Returns the sparse block of some entries, those of a row in the order given; equal ones are added up."""
    order = torch.argsort(rows, stable=True)
    starts = functional.pad(torch.bincount(rows, minlength=shape[0]).cumsum(0), (1, 0)).to(torch.int32)
    ordered = None if values is None else values[order].contiguous()
    return BlockSparse(starts, columns[order].to(torch.int32), ordered, 1, shape)


class Message(NamedTuple):
    """What reaches nodes along edges: rows of a slot, each with a weight."""

    source: Slot
    columns: Tensor
    weights: Tensor | None
    steps: tuple[int, ...]  # that work it out


def fuse_messages(steps: Sequence[Step], reads: Mapping[int, int], shapes: Mapping[int, torch.Size]) -> list[Step]:
    """Returns the steps with sums over neighbours as one product each, without a tensor of edges by width.

    PyG's layers select the neighbours' rows (`index_select`), may weight them (`mul`) and add them up (`scatter_add_`).
    """
    writers: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        if type(step.output) is Slot:
            writers.setdefault(step.output.number, []).append(index)
    replaced: dict[int, Step | None] = {}
    for index, step in enumerate(steps):
        if name_of(step.function) != "scatter_add_" or len(step.arguments) != 4 or step.keywords:
            continue
        target, dim, rows, source = step.arguments
        message = find_message(source, steps, writers, reads)
        if message is None or dim != 0 or not is_row_index(rows) or rows.dim() != 2:
            continue
        start, *later = writers[target.number]
        rewritten = [writer for writer in writers.get(message.source.number, []) if writer > message.steps[0]]
        if steps[start].function is not torch.zeros or later[:1] != [index] or rewritten:
            continue
        shape = shapes[target.number][0], shapes[message.source.number][0]
        matrix = block_of(rows[:, 0], message.columns, message.weights, shape)
        replaced |= dict.fromkeys((*message.steps, start))
        replaced[index] = Step(multiply, (matrix, message.source), {}, step.output)
    fused = [replaced.get(index, step) for index, step in enumerate(steps)]
    return [step for step in fused if step is not None]


def is_row_index(index: Any) -> bool:
    """Returns whether a tensor says for each edge, and not for each of its columns, where it is added."""
    if not isinstance(index, Tensor):
        return False
    later = zip(index.stride()[1:], index.shape[1:], strict=True)
    return all(stride == 0 or size == 1 for stride, size in later)


def find_message(
    source: Any, steps: Sequence[Step], writers: Mapping[int, list[int]], reads: Mapping[int, int]
) -> Message | None:
    """Returns the message that a slot holds; None where it is anything else, or is read elsewhere too."""
    if type(source) is not Slot or reads[source.number] != 1 or len(writers.get(source.number, ())) != 1:
        return None
    (index,) = writers[source.number]
    step = steps[index]
    name = name_of(step.function)
    if name == "mul" and not step.keywords:
        weights = [part for part in step.arguments if isinstance(part, Tensor) and part.shape[1:] == (1,)]
        rows = [part for part in step.arguments if type(part) is Slot]
        message = find_message(rows[0], steps, writers, reads) if weights and rows else None
        if message is None or message.weights is not None:
            return None
        return message._replace(weights=weights[0][:, 0], steps=(*message.steps, index))
    if name == "index_select" and len(step.arguments) == 3 and not step.keywords:
        nodes, dim, columns = step.arguments
        if type(nodes) is Slot and dim in (0, -2) and isinstance(columns, Tensor):
            return Message(nodes, columns, None, (index,))
    return None
