"""What a tuning tries: fields of an experiment and of a method, changed as a person wants it. Imports no PyTorch
for methods whose source can be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from graft.errors import InputError
from graft.experiments.experiment import Experiment, fields_of_group
from graft.field_docs import describe_field
from graft.fields import Search, search_spaces
from graft.methods import METHODS, PLUGS
from graft.options import parse_value
from graft.registry import close_to

FIELDS = tuple(entry.name for entry in fields(Experiment))
# What decides about data, scores and the budget is the same for all trials.
SEARCHABLE = tuple(
    name
    for group in ("Models", "Training", "Federation")
    for name in fields_of_group(group)
    if name not in ("rounds", "seed")
)
OWN = "settings."  # in front of a method's field that an experiment has too

Space = Mapping[str, Search]  # by the name of a field: of the experiment, or of the method

# A reference is to show what can be reached, with all data in one place or with one's own alone: so architecture and
# width are searched, too, where a federation is compared at those that were asked for.
ARCHITECTURES = Search(
    choices=("gcn", "gcn3", "gcn4", "gcn8", "gat", "gat3", "sage", "sage3", "gin", "sgc", "sgc3", "tag", "tag3", "mlp")
)
WIDTHS = Search(choices=(32, 64, 128, 256))
OF_REFERENCES: Mapping[str, Space] = {
    name: {"models": ARCHITECTURES, "width": WIDTHS} for name in ("centralised", "local")
}


@dataclass(frozen=True)
class Changes:
    """What a person wants otherwise than methods declare it."""

    space: Mapping[str, Search] = field(default_factory=dict)  # other values to try, or of other fields
    fix: Mapping[str, Any] = field(default_factory=dict)  # fields that stay, at this value
    keep: Sequence[str] = ()  # fields that stay as they are
    only: Sequence[str] = ()  # no other fields than these are searched; none: all that have a space

    def __post_init__(self) -> None:
        fixed = {*self.fix, *self.keep}
        for name in (*self.space, *self.only):
            if name in fixed:
                raise InputError(f"{name} is to be fixed and to be searched: leave one of them out.")
        for name in (*self.space, *self.only):
            if name in FIELDS and name not in SEARCHABLE:
                raise InputError(
                    f"{name} cannot be searched: data, scores, rounds and seeds are the same for all trials. Of an "
                    f"experiment these can be: {', '.join(SEARCHABLE)}."
                )

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.space, *self.fix, *self.keep, *self.only]))


def parse_changes(space: Iterable[str], fix: Iterable[str], search: Iterable[str]) -> Changes:
    """Returns the changes of `--space name=low..high:log`, `--fix name=value,other` and `--search name,other`."""
    fixed: dict[str, Any] = {}
    keep: list[str] = []
    for word in split_words(fix):
        name, equals, text = word.partition("=")
        if equals:
            fixed[field_name(name)] = parse_value(text.strip())
        else:
            keep.append(field_name(name))
    return Changes(dict(map(parse_space, space)), fixed, keep, list(map(field_name, split_words(search))))


def field_name(text: str) -> str:
    """Returns the field of a name that may be written as a flag, with dashes."""
    return text.strip().replace("-", "_")


def split_words(texts: Iterable[str]) -> list[str]:
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def parse_space(text: str) -> tuple[str, Search]:
    """Returns the name and the values of `learning_rate=0.001..0.1:log` or `optimizer=adam,sgd`."""
    name, equals, values = text.partition("=")
    if not (equals and name.strip() and values.strip()):
        raise InputError(f"--space {text} should read name=low..high, name=low..high:log, or name=one,other.")
    return field_name(name), parse_search(values, f"--space {text}")


def parse_search(text: str, whole: str = "") -> Search:
    """Returns the space of a text such as 0.001..0.1:log, 1..5 or adam,sgd."""
    span, colon, scale = text.partition(":")
    low, dots, high = span.partition("..")
    try:
        if not dots:
            return Search(choices=tuple(parse_value(part.strip()) for part in text.split(",") if part.strip()))
        if colon and scale.strip() != "log":
            raise InputError(f"after a range there may be ':log', and not ':{scale}'.")
        return Search(parse_value(low.strip()), parse_value(high.strip()), log=bool(colon))
    except (InputError, TypeError) as error:
        raise InputError(f"{whole or text} is no search space: {error}") from None


def declared_space(method: Any, plug: str = "") -> dict[str, Search]:
    """Returns what a method, by its name or as an object, and its plug declare, and the experiment with them."""
    label = METHODS.label(method) if isinstance(method, str) else METHODS.label_of(type(method))
    spaces = {**search_spaces(Experiment), **OF_REFERENCES.get(label, {})}
    own: dict[str, Search] = {} if isinstance(method, str) else dict(search_spaces(type(method)))
    for table, name in ((METHODS, method if isinstance(method, str) else ""), (PLUGS, plug)):
        source = table.source(name) if name else None
        if source and source.complete:
            docs = [describe_field(entry, written) for entry, written in source.fields.items()]
            own |= {doc.name: doc.search for doc in docs if doc.search}
        elif name:
            own |= search_spaces(table[name])
    return spaces | {key_of(name): space for name, space in own.items()}


def key_of(name: str) -> str:
    """Returns what a method's own field is called beside those of an experiment."""
    return OWN + name if name in FIELDS else name


def choose_space(declared: Space, possible: Iterable[str], changes: Changes) -> dict[str, Search]:
    """Returns what is searched: what is declared, with the changes that concern these fields."""
    names = {*possible, *SEARCHABLE}
    spaces = {**declared, **{name: space for name, space in changes.space.items() if name in names}}
    for name in changes.only:
        if name in names and name not in spaces:
            raise InputError(f"{name} has no search space of its own: give one, as --space {name}=low..high.")
    if changes.only:
        spaces = {name: space for name, space in spaces.items() if name in {*changes.only, *changes.space}}
    return {name: space for name, space in spaces.items() if name not in changes.fix and name not in changes.keep}


def check_changes(changes: Changes, own: Iterable[str]) -> None:
    """Refuses changes of fields that neither the experiment nor any of the methods has."""
    possible = [*FIELDS, *dict.fromkeys(own)]
    for name in changes.names:
        if name not in possible:
            raise InputError(f"There is no field '{name}' to tune{close_to(name, possible)}: see `graft list methods`.")


def with_values(variant: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of an experiment with others in their place, those of the method's own fields among its
    settings."""
    experiment = {name: value for name, value in values.items() if name in FIELDS}
    own = {name.removeprefix(OWN): value for name, value in values.items() if name not in FIELDS}
    return {**variant, **experiment, "settings": {**variant.get("settings", {}), **own}}


def describe_space(space: Space) -> dict[str, dict[str, Any]]:
    """Returns a space as tuning.json holds it."""
    return {
        name: {"choices": list(search.choices)}
        if search.choices
        else {"low": search.low, "high": search.high, "log": search.log}
        for name, search in space.items()
    }
