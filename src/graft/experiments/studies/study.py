"""A published table or figure as data: which experiments it runs, and what the paper prints for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from graft.data import default_root
from graft.errors import InputError
from graft.experiments.studies.paper_tables import Number, Paper


def curves(rows: Mapping[str, Variant], axis: str) -> dict[str, Any]:
    """Returns the fields of a study whose figure shows accuracy against a setting, where every row has its point."""
    return {"rows": rows, "figure": "lines", "axis": axis}


Measure = Literal[
    "test",
    "test_node_weighted",
    "test_global",
    "test_served",
    "test_trained",
    "auroc",
    "macro_f1",
    "milliseconds",
    "megabytes",
    "memory",
]
COSTS: tuple[Measure, ...] = ("milliseconds", "megabytes", "memory")  # no row is the best of a column by them
# How all studies train where they say nothing else: as when their results were made. Experiments have other defaults.
COMMON = {"optimizer": "adam", "learning_rate": 0.01, "clip_norm": 0.0, "feature_norm": 0.0}
# Values that defaults of methods had then.
FEDGKC_THEN = {"copilot": "gcn", "alpha": 0.8, "self_weight": 0.0, "teacher": "copilot", "answer": "local"}
EARLIER = dict.fromkeys(("fedgkc", "fedgkc_alone"), FEDGKC_THEN)
# Generated graphs. They are cut at random, which leaves a tenth of the neighbours, so that clients have all classes: by
# Louvain or Metis most have one, from homophily 0.5 on, and nothing is left to learn.
HOMOPHILY = {
    f"homophily-{share}": {"dataset": f"synthetic:nodes=3000,degree=40,homophily={share}", "partition": "random"}
    for share in (0.1, 0.3, 0.5, 0.7, 0.9)
}
ARXIV = {"ogbn-arxiv": {"split": "60/20/20"}}  # the papers' split of the one dataset that is not cut 20/40/40


@dataclass(frozen=True)
class Variant:
    """One row of a table: a method with settings."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # the method's own fields
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of the experiment that this row alone changes
    paper: str | None = None  # the paper's name for the row, where it is not ours
    reference: bool = False  # not a competitor, so never the best of a column
    point: tuple[str, float] | None = None  # its curve and its x on it, in a study that draws curves


@dataclass(frozen=True)
class Study:
    """A table: a row a variant, a column a (dataset, number of clients)."""

    meaning: str  # in one line
    datasets: tuple[str, ...]
    clients: tuple[int, ...]
    rows: Mapping[str, Variant]
    experiment: Mapping[str, Any] = field(default_factory=dict)  # fields that all its experiments share
    graphs: Mapping[str, str] = field(default_factory=dict)  # of a dataset, the files of its clients in the data root
    on_request: tuple[str, ...] = ()  # datasets that run only when they are named
    on_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields that go with a dataset
    as_shipped: bool = False  # whether all defaults are those of now, and not of when most studies were made
    paper: Paper = field(default_factory=dict)
    later: Paper = field(default_factory=dict)  # what a later version of the paper prints
    versions: tuple[str, str] = ("v1", "v2")  # how the two are called where there is a later one
    note: str = ""
    measure: Measure = "test"  # what the table shows
    beside: tuple[Measure, ...] = ()  # what further tables below it show
    figure: Literal["", "lines", "bars", "rounds"] = ""  # rounds: test accuracy as the rounds go by
    axis: str = ""  # what a figure's horizontal axis shows

    def values(self, row: str, dataset: str, clients: int, seed: int) -> dict[str, Any]:
        """Returns the fields of one experiment."""
        variant = self.rows[row]
        common = {} if self.as_shipped else COMMON
        earlier = {} if self.as_shipped else EARLIER.get(variant.method, {})
        data = {"graphs": self.files(dataset)} if dataset in self.graphs else {"dataset": dataset, "clients": clients}
        fields = {**data, **common, **self.experiment, **self.on_dataset.get(dataset, {}), **variant.changes}
        return {**fields, "method": variant.method, "settings": {**earlier, **variant.settings}, "seed": seed}

    def files(self, dataset: str) -> list[str]:
        """Returns the files of clients that bring their own graphs."""
        return find_files(self.graphs[dataset])

    def printed(self, row: str, dataset: str, clients: int, later: bool = False) -> Number | None:
        """Returns the paper's number for a row in a column, or that of its later version."""
        name = self.rows[row].paper or row
        return (self.later if later else self.paper).get((name, dataset, clients))


def find_files(pattern: str) -> list[str]:
    """Returns the files in the data root of clients that bring their own graphs."""
    root = default_root()
    files = sorted(map(str, root.glob(pattern)))
    if not files:
        raise InputError(f"There is no file {root / pattern}: GRAFT_DATA names the folder to look in.")
    return files


@dataclass(frozen=True)
class Portrait:
    """Pictures of the data itself, or of who hears whom: next to nothing is trained."""

    meaning: str
    datasets: tuple[str, ...]
    clients: tuple[int, ...]
    maps: tuple[Literal["labels", "homophily", "structure", "similarity"], ...] = ()
    experiment: Mapping[str, Any] = field(default_factory=dict)
    on_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    without: int | None = None  # a client that FedAvg is also trained without
    links_of: tuple[str, ...] = ()  # methods without a server that are run for pictures of who hears whom
    rounds: tuple[int, ...] = ()  # of which rounds
    note: str = ""

    def values(self, dataset: str, method: str = "fedavg") -> dict[str, Any]:
        """Returns the fields of the experiment whose data are shown, or whose links."""
        return {**COMMON, **self.experiment, **self.on_dataset.get(dataset, {}), "method": method}


CENTRALISED = {"centralised": Variant("centralised", changes={"models": "gcn"}, reference=True)}
