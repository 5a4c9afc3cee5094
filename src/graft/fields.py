"""Bounds, choices and search spaces of dataclass fields, declared by their types and checked in one place.

A field is declared as `Annotated[float, Ge(0), Lt(1), Search(0.1, 0.9)]`, with the `Ge`, `Gt`, `Le`, `Lt` and
`Interval` of `annotated_types`. Numbers must be finite, unless `Le(math.inf)` lets infinity in. A subclass that
declares a field again with a plain type gives it another default and keeps its bounds and its search space.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral, Real
from operator import ge, gt, le, lt
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval, Le, Lt

from graft.errors import InputError


@dataclass(frozen=True)
class Search:
    """The values of a field that a tuning tries: a range of numbers, or some choices.

    `Search()` is no values at all: a subclass keeps a field as it is which its base class lets vary.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False  # whether factors count, not differences
    choices: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise InputError(f"A search space cannot be {self}: {problem}.")

    def _problem(self) -> str:
        low, high = self.low, self.high
        if low is None and high is None:
            if self.log:
                return "log is for a range"
            several = len({(type(choice), choice) for choice in self.choices}) == len(self.choices) > 1
            return "" if several or not self.choices else "there must be several choices, each of them once"
        if self.choices:
            return "it is a range or some choices, and not both"
        if low is None or high is None or not (is_finite(low) and is_finite(high)) or low >= high:
            return "a range goes from one finite number to a greater one"
        return "factors need a range above 0" if self.log and low <= 0 else ""

    def __bool__(self) -> bool:
        return bool(self.choices) or self.low is not None

    def __contains__(self, value: Any) -> bool:
        if self.low is None or self.high is None:
            return any(choice == value and type(choice) is type(value) for choice in self.choices)
        return is_finite(value) and self.low <= value <= self.high

    @property
    def ends(self) -> tuple[Any, ...]:
        """Returns both ends of a range, or all choices."""
        return self.choices if self.low is None else (self.low, self.high)

    def __str__(self) -> str:
        """As `graft tune --space name=` takes it: 0.001..1:log, or adam,sgd."""
        if self.low is None and self.high is None:
            return ",".join(str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in self.choices)
        low, high = (f"{end:.10g}" if is_finite(end) else end for end in (self.low, self.high))
        return f"{low}..{high}{':log' if self.log else ''}"


def is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


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


def rules(kind: type) -> dict[str, Rule]:
    """Returns the rules of all fields of a dataclass that have one, those of its bases included."""
    return read_types(kind)[0]


def search_spaces(kind: type) -> dict[str, Search]:
    """Returns what a tuning tries of the fields of a dataclass, those of its bases included; empty where it keeps all
    as they are."""
    return read_types(kind)[1]


@cache
def read_types(kind: type) -> tuple[dict[str, Rule], dict[str, Search]]:
    """Returns the rules and the search spaces of the fields of a dataclass; a space that breaks a rule is refused."""
    by_name: dict[str, Rule | None] = {}
    spaces: dict[str, Search] = {}
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
            spaces.update((name, note) for note in notes_of(types[name]) if isinstance(note, Search))
            if name in spaces:
                check_space(f"{name} of {kind.__name__}", spaces[name], rule, plain_type(types[name]))
    names = [field.name for field in fields(kind)]
    rules_of_fields = {name: rule for name in names if (rule := by_name.get(name))}
    return rules_of_fields, {name: space for name in names if (space := spaces.get(name))}


def check_space(what: str, space: Search, rule: Rule | None, plain: Any) -> None:
    """Refuses a search space with values that its field may not have."""
    if rule is None and space and (plain not in (bool, str) or not space.choices):
        raise InputError(f"The search space {space} of {what} cannot be: only numbers have a range.")
    for value in space.ends:
        wanted = rule.wanted(value) if rule else "" if isinstance(value, plain) else f"a {plain.__name__}"
        if wanted or (rule and not rule.choices and isinstance(value, bool)):
            raise InputError(f"The search space {space} of {what} has {value!r}; it must be {wanted or 'a number'}.")


def notes_of(annotation: Any) -> list[Any]:
    """Returns all that a type is annotated with."""
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        return [*notes_of(inner), *notes]
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    return [note for member in members for note in notes_of(member)]


def plain_type(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


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
