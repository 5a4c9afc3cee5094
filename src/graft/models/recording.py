"""A module's forward pass on one graph as a list of operations, without the Python around them.

A graph does not change in a run. So all that a layer works out of the graph alone (degrees, normalisation, self-loops,
on which a GPU would have to wait; the mean of its neighbours' features) is the same in every pass: it is computed while
the pass is recorded, and kept as far as something that is trained reads it. What is left is run again with other
weights, products with mostly empty matrices as sparse ones.

A recording is right for a module whose operations do not depend on the values of its weights, on random numbers other
than dropout, or on what it keeps in Python. Whether that is so is found out while recording, and by running the
recording with other weights against the module; where it is not, there is no recording, and the module itself is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Slot(NamedTuple):
    """A tensor that is another one in every pass, by its number."""

    number: int


class Step(NamedTuple):
    """One operation."""

    function: Callable[..., Any]
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    output: Any  # the slots of what it returns, in its shape; None of what is no tensor
    last: tuple[int, ...] = ()  # slots that nobody reads after it
    slots: tuple[tuple[int, int], ...] | None = None  # which arguments are slots, and which; None where lists hold some


class Recording:
    """The operations of a forward pass."""

    def __init__(
        self,
        names: Sequence[str],
        slots: int,
        steps: list[Step],
        output: Any,
        shapes: Mapping[int, Any],
        first: int = -1,
    ) -> None:
        """The first slots are those of parameters; from `first` on, others are given, too."""
        self.names, self.slots, self.output, self.shapes = names, slots, output, shapes
        self._first = slots if first < 0 else first
        self.steps = with_last_uses(steps, output)

    def with_steps(self, steps: list[Step]) -> Recording:
        """Returns the same recording with other constants in its steps."""
        return Recording(self.names, self.slots, steps, self.output, self.shapes, self._first)

    def __call__(self, parameters: Mapping[str, Tensor]) -> Any:
        """Returns what the module returns with these parameters and buffers, which it may change in place."""
        return self.run([parameters[name] for name in self.names])

    def run(self, given: Sequence[Tensor]) -> Any:
        """Returns the output for the values of all slots that are given."""
        count = len(self.names)
        values: list[Any] = [*given[:count], *[None] * (self._first - count), *given[count:]]
        for function, arguments, keywords, output, last, slots in self.steps:
            if slots is None:
                filled = [fill(argument, values) for argument in arguments]
            else:
                filled = list(arguments)
                for position, number in slots:
                    filled[position] = values[number]
            if keywords:
                result = function(*filled, **{name: fill(value, values) for name, value in keywords.items()})
            else:
                result = function(*filled)
            if type(output) is Slot:
                values[output.number] = result
            elif output is not None:
                assign(output, result, values)
            for number in last:
                values[number] = None
        return fill(self.output, values)


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of an operation; of the getter of an attribute, that of the attribute."""
    name = getattr(function, "__name__", type(function).__name__)
    return getattr(getattr(function, "__self__", None), "__name__", name) if name == "__get__" else name


def leaves(tree: Any) -> list[Any]:
    """Returns what some nested lists, tuples and dictionaries hold."""
    if isinstance(tree, list | tuple) and type(tree) is not Slot:
        return [leaf for part in tree for leaf in leaves(part)]
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    return [tree]


def fill(template: Any, values: Sequence[Any]) -> Any:
    """Returns a template with the values of its slots."""
    kind = type(template)
    if kind is Slot:
        return values[template.number]
    if kind is list or kind is tuple:
        return kind(fill(part, values) for part in template)
    return template


def assign(output: Any, result: Any, values: list[Any]) -> None:
    """Puts what an operation returned into its slots."""
    if type(output) is Slot:
        values[output.number] = result
    elif output is not None:
        for slot, part in zip(output, result, strict=True):
            assign(slot, part, values)


def reads_of(steps: Sequence[Step], output: Any) -> Counter[int]:
    """Returns how often each slot is read."""
    templates = [(step.arguments, dict(step.keywords)) for step in steps]
    return Counter(leaf.number for leaf in leaves([templates, output]) if type(leaf) is Slot)


def with_last_uses(steps: Sequence[Step], output: Any) -> list[Step]:
    """Returns the steps, each with the slots that can be freed after it."""
    needed = {leaf.number for leaf in leaves(output) if type(leaf) is Slot}
    ended = []
    for step in reversed(steps):
        touched = leaves([step.arguments, dict(step.keywords), step.output])
        last = {leaf.number for leaf in touched if type(leaf) is Slot} - needed
        needed |= last
        ended.append(step._replace(last=tuple(last), slots=slots_of(step.arguments)))
    return ended[::-1]


def slots_of(arguments: Sequence[Any]) -> tuple[tuple[int, int], ...] | None:
    """Returns the positions and numbers of slots among some arguments; None where one holds slots inside."""
    plain = [argument for argument in arguments if type(argument) is not Slot]
    if any(type(leaf) is Slot for leaf in leaves(plain)):
        return None
    return tuple((index, part.number) for index, part in enumerate(arguments) if type(part) is Slot)
