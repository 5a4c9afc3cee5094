"""Bounds and choices of fields: worked out by hand, inherited, of plugged classes, and of every method."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from annotated_types import Ge, Gt, Interval, Le, Lt

from graft.errors import InputError
from graft.experiments.make_method import make_method
from graft.federation.method import Method
from graft.federation.plug import plugged
from graft.fields import Search, check_field, check_fields, describe_bounds, search_spaces
from graft.methods import METHODS, PLUGS
from graft.methods.fedavg import FedAvg
from graft.methods.fedprox import FedProx

UNBOUNDED = {("FedGTA", "threshold")}  # a cosine; above 1 nobody mixes, below -1 everybody does


@dataclass(frozen=True)
class Checked:
    limit: ClassVar[int] = -1

    mu: Annotated[float, Ge(0)] = 1.0
    share: Annotated[float, Ge(0), Lt(1)] = 0.5
    steps: Annotated[int, Ge(1)] = 1
    rate: Annotated[float, Interval(gt=0, le=2)] = 1.0
    cap: Annotated[float, Gt(0), Le(math.inf)] = 1.0
    clip: Annotated[float, Gt(0)] | None = None
    offset: float = 0.0
    mode: Literal["fast", "slow", "off"] = "fast"
    name: str = ""
    flag: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class OtherDefault(Checked):
    mu: float = 2.0


@dataclass(frozen=True)
class OtherBounds(Checked):
    mu: Annotated[float, Ge(-1)] = 2.0


@dataclass(frozen=True)
class Bounded(Method):
    """A method with a condition between two of its fields."""

    low: Annotated[float, Ge(0)] = 0.0
    high: Annotated[float, Ge(0)] = 1.0

    def check(self) -> None:
        if self.low > self.high:
            raise InputError(f"low is {self.low}, above high, which is {self.high}.")


REFUSED = [
    ("mu", -5, "mu is -5; it must be at least 0."),
    ("mu", -1e-9, "mu is -1e-09; it must be at least 0."),
    ("mu", math.nan, "mu is nan; it must be a finite number, at least 0."),
    ("mu", math.inf, "mu is inf; it must be a finite number, at least 0."),
    ("mu", "much", "mu is 'much'; it must be a number, at least 0."),
    ("mu", None, "mu is None; it must be a number, at least 0."),
    ("mu", np.float64(-5), "mu is -5.0; it must be at least 0."),
    ("share", 1.0, "share is 1.0; it must be at least 0 and below 1."),
    ("share", -0.1, "share is -0.1; it must be at least 0 and below 1."),
    ("steps", 0, "steps is 0; it must be at least 1."),
    ("steps", 1.5, "steps is 1.5; it must be a whole number, at least 1."),
    ("rate", 0, "rate is 0; it must be above 0 and at most 2."),
    ("rate", 2.1, "rate is 2.1; it must be above 0 and at most 2."),
    ("cap", 0, "cap is 0; it must be above 0, or inf."),
    ("cap", math.nan, "cap is nan; it must be a number, above 0, or inf."),
    ("clip", 0, "clip is 0; it must be above 0."),
    ("offset", math.inf, "offset is inf; it must be a finite number."),
    ("offset", -math.inf, "offset is -inf; it must be a finite number."),
    ("mode", "quick", "mode is 'quick'; it must be fast, slow or off."),
]
TAKEN = [
    ("mu", 0),
    ("mu", np.float32(0.5)),
    ("share", 0),
    ("share", math.nextafter(1, 0)),
    ("steps", 1),
    ("steps", 10**400),
    ("rate", math.nextafter(0, 1)),
    ("rate", 2),
    ("cap", math.inf),
    ("clip", None),
    ("clip", 3),
    ("offset", -1e300),
    ("mode", "off"),
    ("name", "-5"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), REFUSED)
def test_value_out_of_bounds_is_refused_in_one_sentence(name, value, sentence):
    with pytest.raises(InputError) as refusal:
        Checked(**{name: value})
    assert str(refusal.value) == sentence
    with pytest.raises(InputError) as refusal:
        check_field(Checked, name, value)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(("name", "value"), TAKEN)
def test_value_within_bounds_is_taken(name, value):
    assert getattr(Checked(**{name: value}), name) == value
    check_field(Checked, name, value)


def test_subclass_with_another_default_keeps_the_bounds():
    assert OtherDefault().mu == 2
    with pytest.raises(InputError, match="mu is -1; it must be at least 0"):
        OtherDefault(mu=-1)
    with pytest.raises(InputError, match="steps is 0; it must be at least 1"):
        OtherDefault(steps=0)
    assert OtherBounds(mu=-1).mu == -1  # unless it declares its own
    with pytest.raises(InputError, match="mu is -2; it must be at least -1"):
        OtherBounds(mu=-2)


def test_condition_between_fields_is_checked_after_each_of_them():
    assert Bounded(low=1.0, high=1.0).low == 1
    with pytest.raises(InputError, match=r"low is 2\.0, above high, which is 1\.0"):
        Bounded(low=2.0, high=1.0)
    with pytest.raises(InputError, match="high is -1; it must be at least 0"):
        Bounded(low=0.0, high=-1)


def test_plugged_class_checks_the_fields_of_host_and_plug():
    both = plugged(FedProx, PLUGS["fedtad"])
    assert both(mu=0.0, iterations=0).mu == 0
    with pytest.raises(InputError, match="mu is -5; it must be at least 0"):
        both(mu=-5)
    with pytest.raises(InputError, match="iterations is -1; it must be at least 0"):
        both(iterations=-1)
    with pytest.raises(InputError, match="1 synthetic nodes cannot have 5 neighbours"):
        both(pseudo_nodes=1)


def test_type_that_cannot_be_resolved_is_said():
    @dataclass(frozen=True)
    class Local:
        pass

    @dataclass(frozen=True)
    class Unresolved(FedAvg):
        part: Local | None = None  # a name of this function, which no annotation can refer to

    with pytest.raises(InputError, match="types of the fields of Unresolved cannot be resolved: name 'Local'"):
        Unresolved()


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Annotated[float, Ge(0), Lt(1)], "at least 0 and below 1"),
        (Annotated[int, Gt(0)], "above 0"),
        (Annotated[float, Interval(ge=0, le=1)], "at least 0 and at most 1"),
        (Annotated[Annotated[float, Ge(0)], Le(1)], "at least 0 and at most 1"),
        (Annotated[float, Gt(0), Le(math.inf)], "above 0, or inf"),
        (Annotated[float, Ge(0)] | None, "at least 0"),
        (float, ""),
        (Literal["a", "b"], ""),
        (str, ""),
    ],
)
def test_bounds_in_words(annotation, words):
    assert describe_bounds(annotation) == words


KINDS = [table[name] for table in (METHODS, PLUGS) for name in sorted(table)]


def declared_types(kind):
    """The type of every field of a class; one that is declared again with a plain type keeps its bounds."""
    types = {}
    for base in reversed(kind.__mro__):
        resolved = get_type_hints(base, include_extras=True)
        for name in vars(base).get("__annotations__", {}):
            if name not in types or describe_bounds(resolved[name]):
                types[name] = resolved[name]
    return {field.name: types[field.name] for field in fields(kind)}


def edges(annotation):
    """For each bound of a field a value just outside and one just inside."""
    kind, *notes = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]

    def beyond(limit, direction):
        return limit + direction if kind is int else math.nextafter(limit, direction * math.inf)

    for note in notes:
        match note:
            case Ge(ge=limit):
                yield beyond(limit, -1), limit
            case Gt(gt=limit):
                yield limit, beyond(limit, 1)
            case Le(le=limit) if limit != math.inf:
                yield beyond(limit, 1), limit
            case Lt(lt=limit):
                yield limit, beyond(limit, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_method_takes_the_edge_of_its_bounds_and_nothing_beyond(kind):
    for name, annotation in declared_types(kind).items():
        for outside, inside in edges(annotation):
            with pytest.raises(InputError, match=rf"^{name} is .*; it must be "):
                kind(**{name: outside})
            assert not refusal(kind, **{name: inside}).startswith(f"{name} is"), (name, inside)


def refusal(kind, **values):
    """Why a class does not take some values, as where they do not go together with other fields; empty if it does."""
    try:
        kind(**values)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_a_method_has_bounds(kind):
    for name, annotation in declared_types(kind).items():
        if annotation in (int, float):
            assert (kind.__name__, name) in UNBOUNDED, f"{name} of {kind.__name__} has no bounds"


def test_bounds_of_methods_are_what_they_were():
    """Beside what is derived from the declarations, some that are written down again."""
    for name, field, value in (
        ("fedprox", "mu", -1e-9),
        ("dfedavgm", "momentum", 1.0),
        ("dis_pfl", "density", 0.0),
        ("fml", "alpha", 1.1),
        ("gossip", "segments", 0),
        ("fedomd_paper", "beta", -0.1),
        ("fedtad_released", "iterations", -1),
        ("fedlit", "types", 65),
        ("fedsage_plus", "hidden", 1.1),
        ("dfed_sst", "k_topo", 0),
    ):
        with pytest.raises(InputError, match=f"^{field} is {value}; it must be "):
            METHODS[name](**{field: value})


@pytest.mark.parametrize(("name", "value"), [("mu", -5), ("mu", math.nan), ("mu", math.inf)])
def test_setting_is_refused_in_the_words_of_the_class(name, value):
    with pytest.raises(InputError) as by_class:
        FedProx(**{name: value})
    with pytest.raises(InputError) as by_name:
        make_method("fedprox", {name: value})
    assert str(by_name.value) == str(by_class.value)
    assert make_method("fedprox", {name: 5}) == FedProx(mu=5.0)


# Search spaces.


@dataclass(frozen=True)
class Searched(Method):
    mu: Annotated[float, Ge(0), Search(1e-3, 1.0, log=True)] = 0.1
    steps: Annotated[int, Ge(1), Search(1, 8)] = 3
    mode: Annotated[Literal["fast", "slow", "off"], Search(choices=("fast", "slow"))] = "fast"
    center: Annotated[bool, Search(choices=(True, False))] = True
    clip: Annotated[float, Gt(0), Search(0.5, 2.0)] | None = None
    fixed: float = 1.0


@dataclass(frozen=True)
class SearchedElsewhere(Searched):
    mu: float = 5.0  # out of the space of the base class, which stays
    steps: Annotated[int, Search()] = 4
    mode: Annotated[Literal["fast", "slow", "off"], Search(choices=("slow", "off"))] = "off"


def test_search_spaces_are_declared_beside_fields():
    assert search_spaces(Searched) == {
        "mu": Search(1e-3, 1.0, log=True),
        "steps": Search(1, 8),
        "mode": Search(choices=("fast", "slow")),
        "center": Search(choices=(True, False)),
        "clip": Search(0.5, 2.0),
    }


def test_subclass_keeps_drops_or_replaces_a_search_space():
    spaces = search_spaces(SearchedElsewhere)
    assert spaces["mu"] == Search(1e-3, 1.0, log=True)
    assert "steps" not in spaces
    assert spaces["mode"] == Search(choices=("slow", "off"))


@pytest.mark.parametrize(
    ("kind", "space", "reason"),
    [
        (Annotated[float, Ge(0)], Search(-1.0, 1.0), "has -1.0; it must be at least 0"),
        (Annotated[float, Ge(0), Lt(1)], Search(0.0, 1.0), "has 1.0; it must be at least 0 and below 1"),
        (int, Search(0.5, 2.0), "has 0.5; it must be a whole number"),
        (Literal["a", "b"], Search(choices=("a", "c")), "has 'c'; it must be a or b"),
        (Literal["a", "b"], Search(0.0, 1.0), "has 0.0; it must be a or b"),
        (bool, Search(choices=(0, 1)), "has 0; it must be a bool"),
        (bool, Search(0.0, 1.0), "only numbers have a range"),
        (str, Search(choices=("gcn", 3)), "has 3; it must be a str"),
        (float, Search(choices=(True, False)), "has True; it must be a number"),
        (list[str], Search(choices=("a", "b")), "only numbers have a range"),
    ],
)
def test_space_that_its_field_cannot_have_is_an_error_in_the_method(kind, space, reason):
    annotations = {"value": Annotated[kind, space]}
    broken = dataclass(frozen=True)(type("Broken", (Method,), {"__annotations__": annotations, "value": None}))
    with pytest.raises(InputError, match=f"search space .* of value of Broken.*{reason}"):
        broken()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"low": 1.0}, "from one finite number to a greater one"),
        ({"low": 1.0, "high": 1.0}, "from one finite number to a greater one"),
        ({"low": 0.0, "high": math.inf}, "from one finite number to a greater one"),
        ({"low": 0.0, "high": 1.0, "log": True}, "factors need a range above 0"),
        ({"low": 0.0, "high": 1.0, "choices": (0.0, 1.0)}, "and not both"),
        ({"choices": ("a",)}, "there must be several choices"),
        ({"choices": ("a", "a")}, "each of them once"),
        ({"log": True, "choices": (1, 2)}, "log is for a range"),
    ],
)
def test_space_that_cannot_be_is_refused(arguments, reason):
    with pytest.raises(InputError, match=reason):
        Search(**arguments)


def test_space_says_itself_as_the_command_line_takes_it():
    assert str(Search(1e-4, 1.0, log=True)) == "0.0001..1:log"
    assert str(Search(1, 10)) == "1..10"
    assert str(Search(choices=("adam", "sgd"))) == "adam,sgd"
    assert str(Search(choices=(True, False))) == "true,false"
    assert str(Search(choices=(0, 1, 2.5))) == "0,1,2.5"


def test_values_lie_in_a_space_or_not():
    assert 1.0 in Search(0.0, 1.0)
    assert 1.1 not in Search(0.0, 1.0)
    assert "sgd" in Search(choices=("adam", "sgd"))
    assert 1 not in Search(choices=(True, False))
    assert None not in Search(0.0, 1.0)
    assert not Search()
