"""Who competes with whom, on what data, and what all of them search.

The search is the same for all methods of a family: the optimiser (Adam, SGD or momentum, each with its state kept over
rounds or made anew in each), its rate on one logarithmic range for all of them, weight decay, dropout and local epochs,
and beside these what every method declares of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graft.experiments.studies import dfed_sst, fedgkc, fedomd, general
from graft.experiments.studies.study import CENTRALISED, HOMOPHILY, Variant, find_files
from graft.experiments.tuning.design import Entrant
from graft.fields import Search
from graft.methods import METHODS, PLUGS

SEVEN = fedgkc.SEVEN
RATES = Search(1e-3, 1.0, log=True)  # wide enough for Adam at its low end and for plain SGD at its high end
PATIENCE = {"patience": 30}  # every run, of a trial and at the end, stops after so many rounds without progress
# FedGKC's searches began before its default was chosen by them, and go on from there.
FEDGKC_THEN: Mapping[str, Any] = {"self_weight": 0.0}
BEGINS = {"fedgkc": FEDGKC_THEN, "fedgkc_alone": FEDGKC_THEN}
ON_FEDGKC = "In brackets `fedgkc` and `fedgkc_alone` have no distillation between views, which is a default since."
ARCHITECTURE = ("models", "width")  # what a reference searches, and clients that train alone beside others do not
TWITCH = "twitch"
# What the name of a column stands for, where it is not the name of a dataset.
DATA: Mapping[str, Mapping[str, Any]] = {
    **{name: {"dataset": name} for name in SEVEN},
    **HOMOPHILY,
    TWITCH: {"graphs": "Twitch/*.npz", "metric": "auroc,macro_f1,accuracy"},
}


@dataclass(frozen=True)
class Family:
    """Methods that compete with each other."""

    meaning: str  # in a sentence
    entrants: Sequence[Entrant]
    leading: tuple[str, ...]  # rows that are compared with the best of the others, the published versions among them
    datasets: tuple[str, ...]  # that are run where nobody says which
    experiment: Mapping[str, Any] = field(default_factory=dict)  # fields that all its runs share
    on_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields that go with a dataset
    keep: tuple[str, ...] = ()  # fields that nobody searches
    note: str = ""

    def values(self, dataset: str, clients: int) -> dict[str, Any]:
        """Returns the fields of its experiments on a dataset."""
        fields = {"clients": clients, **self.experiment, **self.on_dataset.get(dataset, {}), **DATA[dataset]}
        if "graphs" in fields:  # every file is a client, and nothing is shared out
            own = {name: value for name, value in fields.items() if name not in ("clients", "partition")}
            return {**own, "graphs": find_files(str(fields["graphs"]))}
        return fields


def entrant(name: str, variant: Variant | None = None, keep: Sequence[str] = ()) -> Entrant:
    """Returns a row that is tuned; the architecture of clients that train alone is that of the others."""
    variant = variant or Variant(name)
    kept = (*keep, *(ARCHITECTURE if variant.method == "local" else ()))
    settings = {**BEGINS.get(variant.method, {}), **variant.settings}
    return Entrant(name, variant.method, settings, dict(variant.changes), kept)


def entrants(variants: Mapping[str, Variant], keep: Mapping[str, Sequence[str]] | None = None) -> list[Entrant]:
    """Returns the rows of a study, some with fields that make them what they are and are not searched."""
    return [entrant(name, variant, (keep or {}).get(name, ())) for name, variant in variants.items()]


DISTILLED = {"fml-all": ("kd_nodes",), "fedkd-all": ("kd_nodes",)}
ALONE = {"alone": Variant("local", changes=fedomd.ORTHOGONAL)}

FAMILIES: dict[str, Family] = {
    "general": Family(
        meaning="One architecture and a server",
        entrants=[
            *map(entrant, ("local", *general.GENERAL, *general.SUBGRAPH, "fedgta+fedtad")),
            *entrants({"fedtad-paper": Variant("fedtad_paper"), **fedgkc.CONTROL, **CENTRALISED}),
        ],
        leading=("fedgkc", "fedtad", "fedtad-paper", "fedgta+fedtad"),
        datasets=(*SEVEN, *HOMOPHILY, TWITCH),
        experiment=PATIENCE,
        note=ON_FEDGKC,
    ),
    "architectures": Family(
        meaning="Five different architectures and a server",
        entrants=entrants(
            {
                **fedgkc.COMPARED,
                **fedgkc.LATER_BASELINES,
                "fiarse": Variant("fiarse_grouped"),
                **fedgkc.CONTROL,
                **CENTRALISED,
            },
            DISTILLED,
        ),
        leading=("fedgkc", "fedgkc-paper"),
        datasets=(*SEVEN, *HOMOPHILY, TWITCH),
        experiment={"models": "architectures", **PATIENCE},
        note="Clients of fml-all and fedkd-all distil on all nodes, whatever is searched beside that; centralised "
        f"training has one architecture, which it searches. {ON_FEDGKC}",
    ),
    "peers": Family(
        meaning="No server, the graph cut by Metis",
        entrants=entrants(
            {
                **{name: Variant(name) for name in ("local", *dfed_sst.PEERS)},
                "dfed-sst-paper": Variant("dfed_sst_paper"),
                **CENTRALISED,
            }
        ),
        leading=("dfed_sst", "dfed-sst-paper"),
        datasets=SEVEN,
        experiment={**dfed_sst.METIS, **PATIENCE},
        note="Generated graphs, here as elsewhere, are cut at random: communities would have one class each.",
    ),
    "few-labels": Family(
        meaning="One per cent of the nodes for training, one step a round",
        entrants=entrants({**fedomd.COMPARED, **ALONE, "fedavg": Variant("fedavg"), **CENTRALISED}),
        leading=("fedomd", "fedomd-paper"),
        datasets=fedomd.FOUR,
        experiment={**fedomd.FEW_LABELS, "rounds": 500, "patience": 100},  # half of what FedOMD's study gives its rows
        on_dataset=fedomd.FINE,
        keep=("epochs",),
        note="Rows differ in their networks, as they do in FedOMD's paper; `alone` is FedOMD's network without a "
        "federation.",
    ),
}


def judges(experiment: Mapping[str, Any]) -> bool:
    """Returns whether a method reads validation labels while it trains or predicts, by all fields of its experiment."""
    if experiment["judge_on"] == "training":
        return False
    from graft.federation.method import judging_settings

    kinds = [METHODS[experiment["method"]], *([PLUGS[experiment["plug"]]] if experiment["plug"] else [])]
    settings, rules = experiment["settings"], [rule for kind in kinds for rule in judging_settings(kind).items()]
    return any(settings[name] not in values for name, values in rules if name in settings)
