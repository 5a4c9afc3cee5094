"""Published tables and figures as data: which experiments a study runs, and what the paper prints for them.

To add a study: its numbers in papers.py, if there are any, and one entry in STUDIES here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from graft.experiments import papers
from graft.experiments.papers import Paper, numbers


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
    figure: Literal["", "lines", "bars"] = ""
    axis: str = ""  # what a figure's horizontal axis shows

    def values(self, row: str, dataset: str, clients: int, seed: int) -> dict[str, Any]:
        """The fields of one experiment."""
        variant = self.rows[row]
        shared = {**self.experiment, **self.on_dataset.get(dataset, {}), **variant.changes}
        own = {"method": variant.method, "settings": dict(variant.settings)}
        return {**shared, **own, "dataset": dataset, "clients": clients, "seed": seed}

    def printed(self, row: str, dataset: str, clients: int, later: bool = False) -> papers.Number | None:
        name = self.rows[row].paper or row
        return (self.later if later else self.paper).get((name, dataset, clients))


# FedGKC, arXiv 2501.12624. Rounds, epochs, width, learning rate and seeds are Graft's: the paper gives none.


def as_in_the_paper(**changes: Any) -> Variant:
    return Variant("fedgkc_paper", changes, paper="fedgkc")


CENTRALISED = {"centralised": Variant("centralised", changes={"models": "gcn"}, reference=True)}
COMPARED = {
    **{name: Variant(name) for name in ("local", "lg_fedavg", "fedproto", "fml", "fedkd", "fedtgp", "fedgkc")},
    "fedgkc-paper": as_in_the_paper(),
}
ARXIV = {"ogbn-arxiv": {"split": "60/20/20"}}
SEVEN = ("cora", "citeseer", "pubmed", "photo", "computers", "cs", "physics")
THREE = SEVEN[:3]
TWO_VERSIONS = (
    "The paper's numbers are those of its first version (arXiv 2501.12624); table.csv has the second's where they "
    "differ. The baselines' numbers are from the same paper."
)
ALPHAS = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8)
BETAS = (0.0, 0.1, 0.2, 0.3, 0.4)
LAMBDAS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)

STUDIES: dict[str, Study] = {
    "fedgkc-architectures": Study(
        meaning="FedGKC and its baselines, clients with five different architectures",
        datasets=SEVEN,
        clients=(5, 10, 20),
        rows={**COMPARED, **CENTRALISED},
        experiment={"models": "architectures"},
        on_request=("ogbn-arxiv",),
        on_dataset=ARXIV,
        paper=numbers(papers.ARCHITECTURES),
        later=numbers(papers.ARCHITECTURES_LATER),
        note=TWO_VERSIONS,
    ),
    "fedgkc-scales": Study(
        meaning="FedGKC and its baselines, clients with networks of five depths",
        datasets=SEVEN,
        clients=(5, 10, 20),
        rows={**COMPARED, **CENTRALISED},
        experiment={"models": "scales"},
        on_request=("ogbn-arxiv",),
        on_dataset=ARXIV,
        paper=numbers(papers.SCALES),
        later=numbers(papers.SCALES_LATER),
        note=TWO_VERSIONS,
    ),
    "fedgkc-homogeneous": Study(
        meaning="FedGKC, FedAvg and the baselines, all clients with one architecture",
        datasets=("cs", "physics", "photo", "computers"),
        clients=(10,),
        rows={"local": COMPARED["local"], "fedavg": Variant("fedavg"), **COMPARED, **CENTRALISED},
        experiment={"models": "gcn"},
        paper=numbers(papers.HOMOGENEOUS, (10,)),
        note="Of the paper's table we have the rows of FedAvg and FedGKC.",
    ),
    "fedgkc-modules": Study(
        meaning="FedGKC's two modules, SMKD and KAMA, on and off",
        datasets=THREE,
        clients=(5, 10, 20),
        rows={
            "neither": Variant("fedgkc_paper", {"smkd": False, "kama": False}),
            "smkd": Variant("fedgkc_paper", {"kama": False}),
            "kama": Variant("fedgkc_paper", {"smkd": False}),
            "both": Variant("fedgkc_paper"),
        },
        experiment={"models": "architectures"},
        paper=numbers(papers.MODULES),
        note="The paper does not define its conventional dual model; here it is distillation of predictions alone.",
        figure="bars",
    ),
    "fedgkc-ablation": Study(
        meaning="FedGKC without one of its parts at a time",
        datasets=("citeseer",),
        clients=(10,),
        rows={
            "full": as_in_the_paper(),
            **{
                f"no-{part}": as_in_the_paper(**{part: False})
                for part in ("self_distill", "mutual", "strength", "clarity1", "clarity2")
            },
        },
        experiment={"models": "architectures"},
        note="The paper shows this as a figure, without numbers.",
        figure="bars",
    ),
    "fedgkc-copilots": Study(
        meaning="FedGKC with other architectures as the copilot",
        datasets=THREE,
        clients=(10,),
        rows={name: as_in_the_paper(copilot=name) for name in ("gcn", "gat", "sage", "gin", "sgc", "mlp")},
        experiment={"models": "architectures"},
        figure="bars",
    ),
    "fedgkc-alpha-beta": Study(
        meaning="FedGKC's weights of labels (alpha) and of neighbourhoods (beta)",
        datasets=("cs",),
        clients=(20,),
        rows={
            f"alpha{alpha}-beta{beta}": Variant(
                "fedgkc_paper", {"alpha": alpha, "beta": beta}, point=(f"beta {beta}", alpha)
            )
            for beta in BETAS
            for alpha in ALPHAS
            if alpha + beta <= 1 + 1e-9
        },
        experiment={"models": "architectures"},
        note="The paper shows this as a figure: best at alpha 0.6 to 0.7 and beta 0.1 to 0.2.",
        figure="lines",
        axis="alpha",
    ),
    "fedgkc-lambda": Study(
        meaning="FedGKC's weight of over-smoothing (lambda) in a client's knowledge",
        datasets=THREE,
        clients=(10,),
        rows={
            f"lambda{value}": Variant("fedgkc_paper", {"smoothing": value}, point=("fedgkc", value))
            for value in LAMBDAS
        },
        experiment={"models": "architectures"},
        figure="lines",
        axis="lambda",
    ),
}
