"""The recorded forward passes of several clients as one: every operation runs for all of them at once.

Clients of one module do the same operations with other weights on other graphs. Their graphs are padded to one size, by
nodes and edges that touch nothing else, so that their recordings differ in the values of their constants alone; these
are put side by side, and `torch.vmap` runs the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graft.models.own_random import DRAW, draw_dropout
from graft.models.recorder import NotRecordable
from graft.models.recording import Recording, Slot, Step, leaves, name_of
from graft.models.sparse_steps import block_of, is_row_index, multiply, multiply_linear
from graft.tensors.autograd import apply_function
from graft.tensors.sparse import BlockSparse

LinearMap = Callable[[Tensor], Tensor]


class StackedRecording:
    """One recording for several clients."""

    def __init__(self, recording: Recording, constants: list[Tensor]) -> None:
        self._recording = recording
        self._constants = constants  # each with a client axis

    def __call__(self, parameters: Mapping[str, Tensor]) -> Any:
        """Returns what the module returns for every client, with a client axis, as the parameters have."""
        stacked = [*(parameters[name] for name in self._recording.names), *self._constants]
        return torch.vmap(self._recording.run)(stacked)

    def select(self, chosen: list[int]) -> StackedRecording:
        """Returns the recording of some of the clients."""

        def pick(argument: Any) -> Any:
            if isinstance(argument, RowIndex | BlockSparse):
                return argument.select(chosen)
            return argument

        steps = [step._replace(arguments=[pick(part) for part in step.arguments]) for step in self._recording.steps]
        return StackedRecording(self._recording.with_steps(steps), [part[chosen] for part in self._constants])


class RowIndex:
    """Which of the nodes each edge of every client touches, for all clients at once."""

    def __init__(self, index: Tensor, nodes: int) -> None:
        self.index, self.nodes = index, nodes  # [clients, edges]
        first = torch.arange(len(index), device=index.device).unsqueeze(1) * nodes
        self.flat = (index + first).flatten()
        self.sums = block_of(self.flat, torch.arange(index.numel(), device=index.device), None, self.shape)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.index) * self.nodes, self.index.numel()

    def select(self, chosen: list[int]) -> RowIndex:
        return RowIndex(self.index[chosen], self.nodes)

    def gather(self, values: Tensor) -> Tensor:
        """Returns the values [clients, nodes, ...] at the edges, [clients, edges, ...]."""
        rows = values.reshape(self.shape[0], -1).index_select(0, self.flat)
        return rows.view(*self.index.shape, *values.shape[2:])

    def add_up(self, values: Tensor) -> Tensor:
        """Returns the sums [clients, nodes, ...] of values of edges."""
        sums = self.sums.times(values.reshape(1, self.shape[1], -1))
        return sums.view(len(self.index), self.nodes, *values.shape[2:])


class _LinearMap(torch.autograd.Function):
    """Applies a linear map, and its transpose to the gradient."""

    @staticmethod
    def forward(ctx: Any, apply: LinearMap, transpose: LinearMap, values: Tensor) -> Tensor:
        ctx.transpose = transpose
        return apply(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.transpose(gradient)


class _ForAllClients(torch.autograd.Function):
    """Calls a function with the whole of a tensor that `vmap` shows one client of."""

    @staticmethod
    def forward(function: Any, constant: Any, values: Tensor) -> Tensor:  # noqa: ARG004
        raise NotRecordable("it is run for one client alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps nothing: the function that is called has its own gradient."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Any, constant: Any, values: Tensor) -> tuple[Tensor, int]:
        axis = in_dims[2]
        whole = values.expand(info.batch_size, *values.shape) if axis is None else values.movedim(axis, 0)
        return function(constant, whole), 0


def for_all(function: Any, constant: Any, values: Tensor) -> Tensor:
    """Returns what a function makes of a constant and of the values of all clients, within `vmap`."""
    return apply_function(_ForAllClients, function, constant, values)


def product(matrix: BlockSparse, dense: Tensor) -> Tensor:
    return matrix @ dense.contiguous()


def stacked_multiply(matrix: BlockSparse, dense: Tensor) -> Tensor:
    return for_all(product, matrix, dense)


def stacked_linear(matrix: BlockSparse, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    projected = for_all(product, matrix, weight.mT)
    return projected if bias is None else projected + bias


def stacked_dropout(values: Tensor, rate: float) -> Tensor:
    return for_all(lambda rate, whole: whole_dropout(whole, rate), rate, values)


def whole_dropout(values: Tensor, rate: float) -> Tensor:
    """Draws the dropout of all clients, as each would draw it alone."""
    draw = DRAW.get()
    assert draw is not None
    return draw(values, rate)


def gather_rows(values: Tensor, rows: RowIndex) -> Tensor:
    return for_all(
        lambda constant, whole: apply_function(_LinearMap, constant.gather, constant.add_up, whole), rows, values
    )


def add_rows(rows: RowIndex, values: Tensor) -> Tensor:
    return for_all(
        lambda constant, whole: apply_function(_LinearMap, constant.add_up, constant.gather, whole), rows, values
    )


STACKED: dict[Any, Callable[..., Tensor]] = {
    multiply: stacked_multiply,
    multiply_linear: stacked_linear,
    draw_dropout: stacked_dropout,
}


def stack_recordings(recordings: Sequence[Recording], nodes: int) -> StackedRecording:
    """Returns recordings that differ in the values of constants alone as one; refuses others."""
    first = recordings[0]
    merger = _Merger(first.slots)
    if len({len(recording.steps) for recording in recordings}) > 1:
        raise NotRecordable("clients do not do the same operations")
    steps = []
    for parts in zip(*(recording.steps for recording in recordings), strict=True):
        same = all(part.function == parts[0].function and part.output == parts[0].output for part in parts)
        if not same or (parts[0].function is draw_dropout and not of_nodes(parts[0], first, nodes)):
            raise NotRecordable("clients do not do the same operations, or draw numbers for edges")
        arguments = [merger.merge(arguments) for arguments in zip(*(part.arguments for part in parts), strict=True)]
        keywords = {key: merger.merge([part.keywords[key] for part in parts]) for key in parts[0].keywords}
        steps.append(Step(parts[0].function, arguments, keywords, parts[0].output))
    changed = [for_clients(step, first, merger, nodes) for step in without_writing(steps)]
    return StackedRecording(
        Recording(first.names, first.slots + len(merger.constants), changed, first.output, first.shapes, first.slots),
        merger.constants,
    )


class _Merger:
    """Puts the constants of several recordings side by side, and gives each a slot."""

    def __init__(self, slots: int) -> None:
        self._first = slots
        self.constants: list[Tensor] = []

    def merge(self, parts: Sequence[Any]) -> Any:
        """Returns one argument for those of several recordings."""
        example = parts[0]
        if any(type(part) is not type(example) for part in parts):
            raise NotRecordable("clients do not do the same operations")
        if isinstance(example, Tensor):
            return self._merge_tensors(list(parts))
        if isinstance(example, BlockSparse):
            return side_by_side(list(parts))
        if type(example) in (list, tuple) and any(isinstance(leaf, Tensor) for leaf in leaves(example)):
            return type(example)(self.merge(inner) for inner in zip(*parts, strict=True))
        if any(part != example for part in parts):
            raise NotRecordable("clients do not do the same operations")
        return example

    def _merge_tensors(self, parts: list[Tensor]) -> Tensor | Slot:
        example = parts[0]
        if any(part.shape != example.shape or part.dtype != example.dtype for part in parts):
            raise NotRecordable("what clients compute of their graphs has not the same size")
        if all(torch.equal(part, example) for part in parts):
            return example
        # What is repeated along an axis need not be written out.
        repeated = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in example.stride())
        stacked = torch.stack([part[repeated] for part in parts]).expand(len(parts), *example.shape)
        self.constants.append(stacked)
        return Slot(self._first + len(self.constants) - 1)

    def constant(self, slot: Any) -> Tensor | None:
        """Returns the constant of a slot; None where it is none."""
        if type(slot) is not Slot or slot.number < self._first:
            return None
        return self.constants[slot.number - self._first]


def of_nodes(step: Step, recording: Recording, nodes: int) -> bool:
    """Returns whether dropout is drawn for nodes: clients have different numbers of edges, and would draw others."""
    values = step.arguments[0]
    shape = recording.shapes[values.number] if type(values) is Slot else values.shape
    return int(shape[0]) == nodes


def without_writing(steps: Sequence[Step]) -> list[Step]:
    """Returns the steps with new tensors instead of changed ones."""
    changed = []
    for step in steps:
        name = name_of(step.function)
        if name.endswith("_") and not name.endswith("__"):
            step = step._replace(function=getattr(Tensor, name[:-1]))
        changed.append(step)
    return changed


def for_clients(step: Step, recording: Recording, merger: _Merger, nodes: int) -> Step:
    """Returns a step that is run for all clients at once in the way that is fastest."""
    name, arguments = name_of(step.function), step.arguments
    if step.function in STACKED:
        return step._replace(function=STACKED[step.function])
    if name == "index_select" and len(arguments) == 3 and type(arguments[0]) is Slot:
        index, shape = merger.constant(arguments[2]), recording.shapes[arguments[0].number]
        if index is not None and arguments[1] % len(shape) == 0 and shape[0] == nodes:
            return step._replace(function=gather_rows, arguments=[arguments[0], RowIndex(index, nodes)])
    if name == "scatter_add" and len(arguments) == 4 and type(arguments[3]) is Slot and arguments[1] == 0:
        index, shape = merger.constant(arguments[2]), recording.shapes[step.output.number]
        if index is not None and is_row_index(index[0]) and shape[0] == nodes:
            rows = index.flatten(2)[:, :, 0] if len(shape) > 1 else index
            return step._replace(function=add_rows, arguments=[RowIndex(rows, nodes), arguments[3]])
    return step


def side_by_side(parts: Sequence[BlockSparse]) -> BlockSparse:
    """Returns matrices of one block each as one of several."""
    example = parts[0]
    if len({(part.rows, part.width, part.values is None) for part in parts}) > 1:
        raise NotRecordable("what clients compute of their graphs has not the same size")
    rows = torch.cat([part.row_of + index * part.rows for index, part in enumerate(parts)])
    counts = torch.bincount(rows, minlength=len(parts) * example.rows)
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
    columns = torch.cat([part.columns + index * part.width for index, part in enumerate(parts)])
    values = None if example.values is None else torch.cat([part.values for part in parts if part.values is not None])
    return BlockSparse(starts, columns, values, len(parts), (example.rows, example.width))
