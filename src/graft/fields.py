"""Bounds and choices of dataclass fields, declared by their types and checked in one place.

A field is declared as `Annotated[float, Ge(0), Lt(1)]`, with the `Ge`, `Gt`, `Le`, `Lt` and `Interval` of
`annotated_types`. Numbers must be finite, unless `Le(math.inf)` lets infinity in. A subclass that declares a field
again with a plain type gives it another default and keeps its bounds.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from operator import ge, gt, le, lt
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval, Le, Lt

from graft.errors import InputError


class Bound(NamedTuple):
    """One side of a range."""

    holds: Callable[[Any, Any], bool]
    limit: Any
    words: str


class Rule(NamedTuple):
    """What the values of a field must be: a number, or one of some choices."""

    whole: bool = False  # an int, where a float will not do
    optional: bool = False  # None is fine too
    bounds: tuple[Bound, ...] = ()
    choices: tuple[Any, ...] = ()

    def wanted(self, value: Any) -> str:
        """Returns what a value would have to be, as the end of a sentence; empty if it may be as it is."""
        if (value is None and self.optional) or value in self.choices:
            return ""
        if self.choices:
            return " or ".join(filter(None, [", ".join(map(str, self.choices[:-1])), str(self.choices[-1])]))
        if not isinstance(value, Integral if self.whole else Real):
            noun = "a whole number" if self.whole else "a number"
        elif not (isinstance(value, Integral) or math.isfinite(value) or (value == math.inf and self.infinite)):
            noun = "a number" if self.infinite else "a finite number"
        elif all(bound.holds(value, bound.limit) for bound in self.bounds):
            return ""
        else:
            noun = ""
        return ", ".join(part for part in (noun, in_words(self.bounds)) if part)

    @property
    def infinite(self) -> bool:
        return any(bound.holds is le and bound.limit == math.inf for bound in self.bounds)


def check_fields(instance: object) -> None:
    """Raises an InputError for the first field of a dataclass instance whose value is out of bounds."""
    kind: type = type(instance)
    for name, rule in rules(kind).items():
        check(rule, name, getattr(instance, name))


def check_field(kind: type, name: str, value: Any) -> None:
    """Raises an InputError if a field of a dataclass may not have that value."""
    if name in rules(kind):
        check(rules(kind)[name], name, value)


def check(rule: Rule, name: str, value: Any) -> None:
    if wanted := rule.wanted(value):
        shown = value if isinstance(value, Real) else repr(value)  # NumPy's repr of a number names its type
        raise InputError(f"{name} is {shown}; it must be {wanted}.")


def describe_bounds(annotation: Any) -> str:
    """Returns the bounds of an annotation in words, as "at least 0 and below 1"; empty without any."""
    rule = rule_of(annotation)
    return in_words(rule.bounds) if rule else ""


@cache
def rules(kind: type) -> dict[str, Rule]:
    """Returns the rules of all fields of a dataclass that have one, those of its bases included."""
    by_name: dict[str, Rule | None] = {}
    for base in reversed(kind.__mro__):
        try:
            types = get_type_hints(base, include_extras=True)
        except NameError as error:
            raise InputError(f"The types of the fields of {base.__name__} cannot be resolved: {error}.") from error
        for name in inspect.get_annotations(base):
            rule, inherited = rule_of(types[name]), by_name.get(name)
            if rule and inherited and not rule.bounds:
                rule = rule._replace(bounds=inherited.bounds)
            by_name[name] = rule
    return {field.name: rule for field in fields(kind) if (rule := by_name.get(field.name))}


def rule_of(annotation: Any) -> Rule | None:
    """Returns the rule of an annotation; None for one that is neither a number nor a choice."""
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        rule = rule_of(inner)
        return rule and rule._replace(bounds=(*rule.bounds, *bounds_in(notes)))
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        rule = rule_of(members[0]) if len(members) == 1 else None
        return rule and rule._replace(optional=True)
    if get_origin(annotation) is Literal:
        return Rule(choices=get_args(annotation))
    return Rule(whole=annotation is int) if annotation in (int, float) else None


def bounds_in(notes: list[Any]) -> Iterator[Bound]:
    for note in notes:
        match note:
            case Ge(ge=limit):
                yield Bound(ge, limit, f"at least {limit}")
            case Gt(gt=limit):
                yield Bound(gt, limit, f"above {limit}")
            case Le(le=limit):
                yield Bound(le, limit, f"at most {limit}")
            case Lt(lt=limit):
                yield Bound(lt, limit, f"below {limit}")
            case Interval():
                yield from bounds_in(list(note))


def in_words(bounds: tuple[Bound, ...]) -> str:
    finite = [bound.words for bound in bounds if bound.limit != math.inf]
    return " and ".join(finite) + (", or inf" if len(finite) < len(bounds) else "")
