"""What a tournament runs: a tuning for each family and dataset, checked before the first of them starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graft.errors import InputError
from graft.experiments.tournament.families import DATA, FAMILIES, RATES, Family
from graft.experiments.tuning.design import Design
from graft.experiments.tuning.space import Changes
from graft.registry import close_to

TRIALS, SEEDS, FINAL_SEEDS, CLIENTS = 40, 2, 5, 10


@dataclass(frozen=True)
class Event:
    """The methods of a family on a dataset: one tuning."""

    family: str
    dataset: str
    design: Design

    @property
    def name(self) -> str:
        """Returns what it is called, which is its folder too."""
        return f"{self.family}/{self.dataset}"


def plan_events(
    families: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    *,
    trials: int = TRIALS,
    seeds: Sequence[int] = tuple(range(SEEDS)),
    final_seeds: int = FINAL_SEEDS,
    clients: int = CLIENTS,
    table: Mapping[str, Family] = FAMILIES,
    **values: Any,
) -> list[Event]:
    """Returns the events of a tournament or a part of it; `values` are fields of the experiment that all runs share."""
    chosen = pick("family", families, list(table))
    everyone = [entry.label for name in chosen for entry in table[name].entrants]
    rows = pick("method", methods, list(dict.fromkeys(everyone)))
    events = []
    for name in chosen:
        family = table[name]
        entrants = [entry for entry in family.entrants if entry.label in rows]
        wanted = family.datasets if datasets is None else pick("dataset", datasets, list(DATA))
        for dataset in wanted if entrants else ():
            design = Design(
                entrants,
                values={**family.values(dataset, clients), **values},
                changes=Changes(space={"learning_rate": RATES}, keep=family.keep),
                trials=trials,
                seeds=tuple(seeds),
                final_seeds=range(max(seeds) + 1, max(seeds) + 1 + final_seeds),
            )
            events.append(Event(name, dataset, design))
    return events


def pick(what: str, wanted: Sequence[str] | None, possible: Sequence[str]) -> list[str]:
    """Returns what was asked for in the order of the table, or all of it."""
    for name in wanted or ():
        if name not in possible:
            raise InputError(
                f"A tournament has no {what} '{name}'{close_to(name, possible)}: it has {', '.join(possible)}."
            )
    return [name for name in possible if wanted is None or name in wanted]
