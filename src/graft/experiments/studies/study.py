"""A published table or figure as data: which experiments it runs, and what the paper prints for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Printed = Mapping[str, Mapping[str, str]]  # row -> dataset -> a number for each count of clients, "-" for none


@dataclass(frozen=True)
class Number:
    """An accuracy as printed."""

    mean: float
    deviation: float | None = None


Paper = Mapping[tuple[str, str, int], Number]  # (row, dataset, clients)


def numbers(printed: Printed, clients: Sequence[int] = (5, 10, 20)) -> dict[tuple[str, str, int], Number]:
    """A printed table, cell by cell."""
    return {
        (row, dataset, count): number(cell)
        for row, datasets in printed.items()
        for dataset, cells in datasets.items()
        for count, cell in zip(clients, cells.split(), strict=True)
        if cell != "-"
    }


def number(cell: str) -> Number:
    mean, _, deviation = cell.partition("±")
    return Number(float(mean), float(deviation) if deviation else None)


Measure = Literal["test", "test_node_weighted", "test_global", "test_served", "test_trained", "milliseconds"]


@dataclass(frozen=True)
class Variant:
    """One row of a table: a method with settings."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # the method's own fields
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of the experiment that this row alone changes
    paper: str | None = None  # the paper's name for the row, where it is not ours
    reference: bool = False  # not a competitor, so never the best of a column
    point: tuple[str, float] | None = None  # its curve and its place on it, in a study that draws curves


@dataclass(frozen=True)
class Study:
    """A table: a row a variant, a column a (dataset, number of clients)."""

    meaning: str  # in one line
    datasets: tuple[str, ...]
    clients: tuple[int, ...]
    rows: Mapping[str, Variant]
    experiment: Mapping[str, Any] = field(default_factory=dict)  # fields that all its experiments share
    on_request: tuple[str, ...] = ()  # datasets that run only when they are named
    on_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields that go with a dataset
    paper: Paper = field(default_factory=dict)
    later: Paper = field(default_factory=dict)  # where a later version of the paper prints something else
    note: str = ""
    measure: Measure = "test"  # what the table shows
    beside: tuple[Measure, ...] = ()  # what further tables below it show
    figure: Literal["", "lines", "bars", "rounds"] = ""  # rounds: test accuracy as the rounds go by
    axis: str = ""  # what a figure's horizontal axis shows

    def values(self, row: str, dataset: str, clients: int, seed: int) -> dict[str, Any]:
        """The fields of one experiment."""
        variant = self.rows[row]
        shared = {**self.experiment, **self.on_dataset.get(dataset, {}), **variant.changes}
        own = {"method": variant.method, "settings": dict(variant.settings)}
        return {**shared, **own, "dataset": dataset, "clients": clients, "seed": seed}

    def printed(self, row: str, dataset: str, clients: int, later: bool = False) -> Number | None:
        name = self.rows[row].paper or row
        return (self.later if later else self.paper).get((name, dataset, clients))


@dataclass(frozen=True)
class Portrait:
    """Pictures of the data itself: nothing, or next to nothing, is trained."""

    meaning: str
    datasets: tuple[str, ...]
    clients: tuple[int, ...]
    maps: tuple[Literal["labels", "homophily", "structure"], ...]
    experiment: Mapping[str, Any] = field(default_factory=dict)
    on_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    without: int | None = None  # a client that FedAvg is also trained without
    note: str = ""

    def values(self, dataset: str) -> dict[str, Any]:
        return {"method": "fedavg", **self.experiment, **self.on_dataset.get(dataset, {})}


CENTRALISED = {"centralised": Variant("centralised", changes={"models": "gcn"}, reference=True)}
