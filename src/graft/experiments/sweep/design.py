"""What a sweep varies: methods, data, fields of an experiment and settings of methods. Imports no PyTorch for names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from graft.errors import InputError
from graft.experiments.experiment import GIVEN, Experiment, check_names, draft_experiment
from graft.experiments.identity import NOT_COMPARED
from graft.experiments.make_method import setting_names
from graft.experiments.run_cluster import refuse_cluster_of_clients
from graft.options import parse_value
from graft.registry import close_to

FIELDS = [entry.name for entry in fields(Experiment)]
BY_ITSELF = {"seed": "--seeds, or seeds=", "settings": "the name of the setting itself"}  # what a grid has no place for


@dataclass(frozen=True)
class Design:
    """What a sweep varies, and what all of its runs have in common."""

    methods: Sequence[Any]  # names or, in Python, methods; so are the data names, paths or objects
    datasets: Sequence[Any] = ()  # none: the data that `values` name
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # fields of experiments, or settings of methods
    seeds: Sequence[int] = (0,)
    values: Mapping[str, Any] = field(default_factory=dict)  # of fields that all runs share
    settings: Mapping[str, Any] = field(default_factory=dict)  # of those methods that have them
    keep_models: bool = False

    def __post_init__(self) -> None:
        for name in self.grid:
            if name in BY_ITSELF:
                raise InputError(f"{name} cannot be in the grid; use {BY_ITSELF[name]}.")
            if not self.grid[name]:
                raise InputError(f"The grid has no values of {name}.")
        for name, chosen in (("method", self.methods), ("dataset", self.datasets)):
            if name in self.grid and len(chosen):
                raise InputError(f"{name}s are given twice, in the grid and beside it: leave one of them out.")
        if not self.seeds:
            raise InputError("A sweep needs at least one seed.")
        refuse_cluster_of_clients("The grid", *self.grid.get("engine", ()))

    def variants(self) -> list[dict[str, Any]]:
        """Returns the values of all experiments; a setting is left out for methods that do not have it, and refused
        where none has."""
        single = {name: [value] for name, value in self.settings.items()}
        wanted = {**single, **{name: values for name, values in self.grid.items() if name not in FIELDS}}
        possible: dict[str, None] = {}
        variants = []
        for chosen in self._chosen_fields():
            own = setting_names_of(chosen.get("method", Experiment.method), chosen.get("plug", ""))
            possible |= dict.fromkeys(own)
            axes = {name: values for name, values in wanted.items() if name in own}
            variants += [
                {**chosen, "settings": dict(zip(axes, settings, strict=True))} for settings in product(*axes.values())
            ]
        for name in wanted:
            if name not in possible:
                raise InputError(
                    f"'{name}' is neither a field of an experiment nor a setting of a method of this sweep"
                    f"{close_to(name, [*possible, *FIELDS])}; the settings are {', '.join(possible) or 'none at all'}."
                )
        data = [{"dataset": dataset} for dataset in self.datasets] or [{}]
        return [{**variant, **dataset, "seed": seed} for variant in variants for dataset in data for seed in self.seeds]

    def _chosen_fields(self) -> Iterator[dict[str, Any]]:
        """Goes through the methods, and for each through the fields in the grid."""
        axes = {name: values for name, values in self.grid.items() if name in FIELDS}
        for method in [{"method": method} for method in self.methods] or [{}]:
            for values in product(*axes.values()):
                yield {**self.values, **method, **dict(zip(axes, values, strict=True))}

    def describe(self) -> dict[str, Any]:
        """Returns what the file of a sweep holds: all that decides which experiments it has."""
        compared = {name: value for name, value in self.values.items() if name not in NOT_COMPARED}
        return {
            "methods": spell(self.methods),
            "datasets": spell(self.datasets),
            "seeds": list(self.seeds),
            "keep_models": self.keep_models,
            "grid": spell(self.grid),
            "experiment": spell(compared),
            "settings": spell(self.settings),
        }


def setting_names_of(method: Any, plug: str) -> list[str]:
    """Returns the settings of a method, which may be an object, and of its plug."""
    if isinstance(method, str):
        return setting_names(method, plug)
    own = [entry.name for entry in fields(method)] if is_dataclass(method) else []
    return own + (setting_names("", plug) if plug else [])


def with_settings(method: Any, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns a method that is an object with those of the settings that are its own, and the others: of its plug."""
    own = {entry.name for entry in fields(method)}
    changed = {name: value for name, value in settings.items() if name in own}
    return replace(method, **changed), {name: value for name, value in settings.items() if name not in own}


def spell(value: Any) -> Any:
    """Returns a value as TOML can hold it; an object by the name of its class."""
    match value:
        case dict():
            return {str(name): spell(entry) for name, entry in value.items()}
        case list() | tuple():
            return [spell(entry) for entry in value]
        case bool() | int() | float() | str():
            return value
        case Path() | None:
            return str(value)
        case _ if is_dataclass(value):
            return repr(value)
        case _:
            return f"{GIVEN}: {type(value).__name__}"


def check_variants(variants: Sequence[Mapping[str, Any]]) -> None:
    """Refuses values that no experiment can have, as far as that can be told without PyTorch; seeds do not matter."""
    checked: set[str] = set()
    for variant in variants:
        key = repr({**variant, "seed": 0})
        if key not in checked:
            checked.add(key)
            check_names(draft_experiment(variant))


def parse_grid(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """Returns the values of `--grid name=value,value`; values with commas in them are written as a TOML list."""
    grid: dict[str, list[Any]] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not text.strip() or not name:
            raise InputError(f"--grid {pair} should read --grid name=value,value.")
        if name in grid:
            raise InputError(f"--grid {name} is given twice; give all of its values at once.")
        whole = parse_value(text)
        grid[name] = whole if isinstance(whole, list) else [parse_value(part.strip()) for part in text.split(",")]
        if "" in grid[name] and getattr(Experiment, name, None) != "":  # as with plug, where it means none
            raise InputError(f"--grid {pair} has an empty value.")
    return grid
