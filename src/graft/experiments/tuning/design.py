"""What is tuned, with what budget: checked as far as that goes before PyTorch is imported."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graft.errors import InputError
from graft.experiments.experiment import check_names, draft_experiment
from graft.experiments.sweep.design import setting_names_of
from graft.experiments.tuning.space import (
    FIELDS,
    Changes,
    check_changes,
    choose_space,
    declared_space,
    key_of,
    with_values,
)
from graft.fields import Search
from graft.methods import METHODS, PLUGS
from graft.registry import close_to, parse_reference

TRIALS, SEEDS, FINAL_SEEDS = 30, 2, 5


@dataclass(frozen=True)
class Entrant:
    """A method that is tuned under a name of its own, from values of its own on."""

    label: str
    method: str  # perhaps as fedavg+fedtad
    settings: Mapping[str, Any] = field(default_factory=dict)  # the method's own fields
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of the experiment that it alone changes
    keep: Sequence[str] = ()  # fields that are not searched, beside those that nobody searches


@dataclass(frozen=True)
class Candidate:
    """A method that is tuned."""

    label: str
    variant: Mapping[str, Any]  # the values of its experiment, with which the first trial is run
    space: Mapping[str, Search]

    def __post_init__(self) -> None:
        if not self.space:
            raise InputError(f"There is nothing to search for {self.label}: every field of it is fixed.")

    def without(self, names: Collection[str]) -> Candidate:
        """Returns it with some fields as they are."""
        return replace(self, space={name: search for name, search in self.space.items() if name not in names})


@dataclass(frozen=True)
class Design:
    """Methods to tune, each with the same trials, rounds and seeds, and on the same data."""

    methods: Sequence[Any]  # names, perhaps as fedavg+fedtad, entrants or, in Python, methods
    values: Mapping[str, Any] = field(default_factory=dict)  # of the experiment that all share
    settings: Mapping[str, Any] = field(default_factory=dict)  # of those methods that have them
    changes: Changes = field(default_factory=Changes)
    trials: int = TRIALS
    seeds: Sequence[int] = tuple(range(SEEDS))
    final_seeds: Sequence[int] = ()  # of the runs at the end, which are scored on test nodes

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise InputError(f"trials is {self.trials}; it must be at least 1.")
        if not self.methods or not self.seeds:
            raise InputError(f"A tuning needs at least one {'seed' if self.methods else 'method'}.")
        used = [seed for seed in self.final_seeds if seed in self.seeds]
        if used:
            raise InputError(
                f"Seed {used[0]} is tuned with, so it says nothing new at the end: give other final seeds."
            )

    def candidates(self) -> list[Candidate]:
        """Returns the methods with what is tried of each; what cannot be is refused."""
        chosen = [self._variant(method) for method in self.methods]
        own = [list(map(key_of, setting_names_of(variant["method"], variant.get("plug", "")))) for variant in chosen]
        possible = list(dict.fromkeys(name for names in own for name in names))
        check_changes(self.changes, possible)
        for name in self.settings:
            if key_of(name) not in possible:
                raise InputError(f"No method of this tuning has a setting '{name}'{close_to(name, possible)}.")
        candidates = [
            self._candidate(method, variant, names)
            for method, variant, names in zip(self.methods, chosen, own, strict=True)
        ]
        labels = [candidate.label for candidate in candidates]
        repeated = next((label for label in labels if labels.count(label) > 1), None)
        if repeated is not None:
            raise InputError(f"'{repeated}' is named twice; each method is tuned once.")
        return candidates

    def _variant(self, method: Any) -> dict[str, Any]:
        """Returns the values that a method is tuned with, its plug among them where it is written as host+plug."""
        if isinstance(method, Entrant):
            return {**self._variant(method.method), **method.changes}
        name, plus, plug = method.partition("+") if isinstance(method, str) else (method, "", "")
        if not plus or parse_reference(method) or method in METHODS:
            return {**self.values, "method": method}
        if self.values.get("plug", plug) != plug:
            raise InputError(
                f"'{method}' names a plug, and so does --plug {self.values['plug']}: leave one of them out."
            )
        return {**self.values, "method": name, "plug": plug}

    def _candidate(self, entry: Any, variant: dict[str, Any], own: Sequence[str]) -> Candidate:
        entrant = entry if isinstance(entry, Entrant) else None
        method, plug = variant["method"], variant.get("plug", "")
        if isinstance(method, str):
            METHODS.check(method)
        if plug:
            PLUGS.check(plug)
        settings = {name: value for name, value in self.settings.items() if key_of(name) in own}
        settings |= entrant.settings if entrant else {}
        fixed = {name: value for name, value in self.changes.fix.items() if name in own or name in FIELDS}
        variant = with_values({**variant, "settings": settings}, fixed)
        if isinstance(method, str) and all(
            isinstance(variant.get(name, ""), str | list) for name in ("dataset", "models")
        ):
            draft = draft_experiment(variant)
            check_names(draft)
            label = draft.label
        else:
            host = METHODS.label(method) if isinstance(method, str) else METHODS.label_of(type(method))
            label = f"{host}+{PLUGS.label(plug)}" if plug else host
        space = choose_space(declared_space(method, plug), own, self.changes)
        if entrant:
            label, space = entrant.label, {name: values for name, values in space.items() if name not in entrant.keep}
        return Candidate(label, variant, space)
