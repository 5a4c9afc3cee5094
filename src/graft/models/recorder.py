"""Recording a module's forward pass: what it does with its weights is noted, what it does with the graph alone is
kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from graft.models.own_random import Draw, draw_dropout, drawing, generator_states, have_moved, stream_dropout
from graft.models.recording import Recording, Slot, Step, leaves, name_of, reads_of
from graft.models.sparse_steps import PRODUCTS, as_sparse, fuse_messages, is_sparse_enough
from graft.tensors.randomness import Stream
from graft.tensors.sparse import BlockSparse

# What is known of a tensor without its values.
METADATA = frozenset(
    {"size", "dim", "ndim", "shape", "dtype", "device", "layout", "numel", "nelement", "stride", "storage_offset"}
    | {"element_size", "itemsize", "nbytes", "__len__", "get_device", "requires_grad", "has_names"}
    | {"is_cuda", "is_cpu", "is_mps", "is_xpu", "is_meta", "is_mkldnn", "is_sparse", "is_sparse_csr", "is_quantized"}
    | {"is_nested", "is_leaf", "is_floating_point", "is_complex", "is_signed", "is_contiguous", "is_conj", "is_neg"}
)
# Made of the shape of a tensor alone.
SHAPED = frozenset({"new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"})
IN_PLACE = frozenset(
    {"__setitem__"} | {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "pow", "and", "or")}
)
# How many elements they return depends on values.
OF_UNKNOWN_SIZE = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"})


class NotRecordable(Exception):
    """A forward pass that cannot be recorded, and why."""


class Constants(NamedTuple):
    """What does not change from pass to pass."""

    tensors: Sequence[Tensor]  # that a module is given, or holds
    sparse: Mapping[int, BlockSparse]  # what some of them are as sparse matrices, by their identities
    seek_sparse: bool = True  # whether others that turn out to be mostly empty are multiplied as such, too


class Recorder(TorchFunctionMode):
    """Sees all that a module asks of PyTorch in one pass, and notes what depends on its weights."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        constants: Constants,
        draw: Draw | None,
    ) -> None:
        super().__init__()
        self.names = list(parameters)
        self.steps: list[Step] = []
        self.failure = ""
        self._draw = draw
        self._slots = {id(leaf): Slot(number) for number, leaf in enumerate(parameters.values())}
        self._shapes = {number: leaf.shape for number, leaf in enumerate(parameters.values())}
        self._constants = {id(constant) for constant in constants.tensors}
        self._sparse: dict[int, BlockSparse | None] = dict(constants.sparse)
        self._seek_sparse = constants.seek_sparse
        self._alive: list[Any] = []  # or another tensor might get the identity of one that is gone
        self._pinned: list[tuple[Tensor, int]] = []  # constants that steps read, and their versions then
        self._grad = torch.is_grad_enabled()

    def draw(self, values: Tensor, rate: float) -> Tensor:
        """Draws dropout, and notes it as one step."""
        assert self._draw is not None
        within = not torch._C._len_torch_function_stack()  # an operation, which will draw again when it is repeated
        with torch._C.DisableTorchFunction():
            dropped = self._draw(values, rate)
            if not within:
                self._check_inputs("dropout", [values])
                self._note(draw_dropout, (values, rate), {}, dropped)
        return dropped

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.failure:
            return func(*args, **kwargs)
        name = name_of(func)
        if name in METADATA:
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        self._check_inputs(name, tensors)
        constant = (
            not any(id(leaf) in self._slots for leaf in tensors)
            or name in SHAPED
            or (name == "expand_as" and id(args[0]) in self._constants)
        )
        in_place = name in IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        if in_place and not constant and id(args[0]) in self._constants:
            self._make_varying(args[0])
        result = func(*args, **kwargs)
        if constant:
            made = tensors_in(result)
            self._constants |= {id(leaf) for leaf in made}
            self._alive += made
        else:
            self._note(func, args, kwargs, result)
        return result

    def _check_inputs(self, name: str, tensors: Iterable[Tensor]) -> None:
        if not all(id(leaf) in self._slots or id(leaf) in self._constants for leaf in tensors):
            self._fail(f"{name} reads a tensor that is neither an input nor a parameter")

    def _note(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Notes an operation on what depends on the weights, with what it returned."""
        name = name_of(function)
        made = tensors_in(result)
        if torch.is_grad_enabled() != self._grad:
            self._fail(f"{name} is run without gradients")
        elif not made and name not in IN_PLACE:
            self._fail(f"Python reads a value ({name})")
        elif name in OF_UNKNOWN_SIZE or (name == "__getitem__" and self._selects_by_values(args[1])):
            self._fail(f"{name} returns as many elements as values say")
        elif any(id(leaf) in self._constants for leaf in made):
            self._fail(f"{name} returns a constant")
        if self.failure:
            return
        self._alive += made
        if function in PRODUCTS and not kwargs:
            matrix = self._as_sparse(args[0])
            if matrix is not None:
                function, args = PRODUCTS[function], (matrix, *args[1:])
        keywords = {key: self._template(value) for key, value in kwargs.items()}
        self.steps.append(Step(function, [self._template(part) for part in args], keywords, self._output(result)))

    def _as_sparse(self, matrix: Tensor) -> BlockSparse | None:
        """Returns a constant as a sparse matrix; None where it is none, or is not sparse enough."""
        if id(matrix) not in self._constants:
            return None
        if id(matrix) not in self._sparse:
            with torch._C.DisableTorchFunction():
                sparse = self._seek_sparse and is_sparse_enough(matrix)
                self._sparse[id(matrix)] = as_sparse(matrix) if sparse else None
        return self._sparse[id(matrix)]

    def _selects_by_values(self, index: Any) -> bool:
        masks = [leaf for leaf in tensors_in(index) if leaf.dtype in (torch.bool, torch.uint8)]
        return any(id(mask) in self._slots for mask in masks)

    def _output(self, result: Any) -> Any:
        if isinstance(result, Tensor):
            return self._slots.get(id(result)) or self._new_slot(result)
        if isinstance(result, list | tuple):
            return [self._output(part) for part in result]
        return None

    def _new_slot(self, tensor: Tensor) -> Slot:
        slot = self._slots[id(tensor)] = Slot(len(self._shapes))
        self._shapes[slot.number] = tensor.shape
        return slot

    def _template(self, argument: Any) -> Any:
        """Returns an argument with slots where it varies; constants are kept as they are."""
        if isinstance(argument, Tensor):
            slot = self._slots.get(id(argument))
            if slot is None:
                self._pinned.append((argument, argument._version))
            return slot or argument
        if isinstance(argument, list | tuple) and tensors_in(argument):
            parts = [self._template(part) for part in argument]
            return parts if isinstance(argument, list) else tuple(parts)
        return argument

    def _make_varying(self, constant: Tensor) -> None:
        """Notes that a constant is about to be written into: every pass needs another one."""
        if constant._is_view():
            self._fail("a part of a constant is written into")
        before = constant.clone()
        self._constants.remove(id(constant))
        slot = self._new_slot(constant)
        if bool(before.any()):
            self.steps.append(Step(torch.clone, (before,), {}, slot))
        else:
            keywords = {"dtype": before.dtype, "device": before.device}
            self.steps.append(Step(torch.zeros, (before.shape,), keywords, slot))

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason

    def finish(self, output: Any) -> Recording:
        """Returns the recording of a pass that returned this."""
        if any(constant._version != version for constant, version in self._pinned):
            self._fail("a constant is written into after it was read")
        if not all(id(leaf) in self._slots for leaf in leaves(output)):
            self._fail("it returns what does not depend on its weights")
        if self.failure:
            raise NotRecordable(self.failure)
        template = fill_in(output, self._slots)
        steps = fuse_messages(self.steps, reads_of(self.steps, template), self._shapes)
        return Recording(self.names, len(self._shapes), steps, template, self._shapes)


def tensors_in(tree: Any) -> list[Tensor]:
    """Returns the tensors in nested lists, tuples and dictionaries."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def fill_in(output: Any, slots: Mapping[int, Slot]) -> Any:
    """Returns a module's output with slots for its tensors."""
    if isinstance(output, tuple):
        return tuple(fill_in(part, slots) for part in output)
    return slots[id(output)]


Parameters = Mapping[str, Tensor]
Run = Callable[[Parameters], Any]


def record(
    module: nn.Module,
    run: Run,
    parameters: Parameters,
    constants: Constants,
    random: Stream | None,
    *,
    check: bool = True,
) -> Recording:
    """Returns the recorded forward pass of a module that `run` runs, or says why there can be none.

    It leaves no trace: buffers and random numbers are those of the pass to come.
    """
    device = constants.tensors[0].device
    trial = copies(parameters)
    recorder = Recorder(trial, constants, None if random is None else stream_dropout(again(random)))
    host, generators = python_state(module), generator_states(device)
    with drawing(None if random is None else recorder.draw), recorder:
        output = run(trial)
    if python_state(module) != host:
        raise NotRecordable("it changes what it keeps in Python")
    if have_moved(device, generators):
        raise NotRecordable("it draws random numbers other than dropout")
    recording = recorder.finish(output)
    if check:
        trained = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        check_recording(recording, run, copies(parameters, negated=trained), random)
    return recording


def check_recording(recording: Recording, run: Run, parameters: Parameters, random: Stream | None) -> None:
    """Refuses a recording that does not give what the module gives with these parameters, or not its gradients."""
    results = []
    for function in (run, recording):
        trial = copies(parameters)
        with drawing(None if random is None else stream_dropout(again(random))):
            outputs = tensors_in(function(trial))
        results.append((outputs, gradients(outputs, list(trial.values())), list(trial.values())))
    if not all(map(are_close, *results)):
        raise NotRecordable("what it does depends on the values of its weights")


def copies(parameters: Parameters, negated: Collection[str] = (), scale: float = 1.0) -> dict[str, Tensor]:
    """Returns copies of parameters and buffers, some of them negated and scaled."""
    return {
        name: (leaf.detach() * -scale if name in negated else leaf.detach().clone()).requires_grad_(leaf.requires_grad)
        for name, leaf in parameters.items()
    }


def gradients(outputs: list[Tensor], parameters: list[Tensor]) -> list[Tensor]:
    """Returns the gradients of a sum of squares of the outputs."""
    trained = [leaf for leaf in parameters if leaf.requires_grad]
    total = sum(output.square().sum() for output in outputs if output.requires_grad)
    if not isinstance(total, Tensor) or not trained:
        return []
    made = torch.autograd.grad(total, trained, allow_unused=True)
    return [torch.zeros_like(leaf) if part is None else part for leaf, part in zip(trained, made, strict=True)]


def are_close(wanted: list[Tensor], given: list[Tensor]) -> bool:
    """Returns whether tensors are equal up to rounding, which the largest of their numbers says."""
    largest = [leaf.detach().abs().nan_to_num(posinf=0).max() for leaf in wanted if leaf.numel()]
    scale = max(map(float, largest), default=0.0)
    return len(wanted) == len(given) and all(
        first.shape == second.shape and torch.allclose(first, second, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)
        for first, second in zip(wanted, given, strict=True)
    )


def again(random: Stream) -> Stream:
    """Returns a stream that draws what this one will draw."""
    copied = Stream(random.keys)
    copied.draws = random.draws
    return copied


def python_state(module: nn.Module) -> Any:
    """Returns all that a module keeps beside its tensors, to compare."""
    own = {"_parameters", "_buffers", "_modules", "training"}
    return [
        {name: snapshot(value) for name, value in vars(part).items() if name not in own} for part in module.modules()
    ]


def snapshot(value: Any, depth: int = 3) -> Any:
    """Returns a value to compare: what it holds, as far as that is plain, and otherwise which object it is."""
    if isinstance(value, bool | int | float | str | bytes | None):
        return value
    if isinstance(value, list | tuple) and depth:
        return [snapshot(part, depth - 1) for part in value]
    if isinstance(value, dict) and depth:
        return {name: snapshot(part, depth - 1) for name, part in value.items()}
    return Same(value)


class Same:
    """Equal to what holds the very same object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]
