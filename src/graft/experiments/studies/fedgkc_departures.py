"""What each of Graft's departures from FedGKC's paper is worth: the same rows with one of them taken back at a time.

The paper does not say how its clients' models start, whether its GIN is normalised, whether two layers are counted
with the classifier, or how its communities are packed. Sizes of its Photo are those of the largest component.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graft.experiments.studies.paper_tables import printed
from graft.experiments.studies.study import Study, Variant

COMPARED = {
    "fedgkc": Variant("fedgkc", paper="fedgkc"),
    # The order of steps is spelled out, so that a default cannot change what was run.
    "fedgkc-paper": Variant("fedgkc_paper", {"schedule": "local_first"}, paper="fedgkc"),
    "local": Variant("local"),
}
DEPARTURES: dict[str, Mapping[str, Any]] = {
    "own-start": {"initial_weights": "own"},
    "plain-gin": {"models": "gcn,gat,sage,gin_plain,sgc"},
    "conv-head": {"head": "conv"},
    "packing": {"partition": "louvain:cut=order,packing=fedsage"},
}
DATASETS, CLIENTS = ("cora", "citeseer"), (10, 20)
PAPER = {
    cell: number
    for cell, number in printed("fedgkc_v1_table2", {"fedgkc": "fedgkc"}).items()
    if cell[1] in DATASETS and cell[2] in CLIENTS
}

STUDIES: dict[str, Study] = {
    "fedgkc-departures": Study(
        meaning="FedGKC and training alone with one departure from the paper taken back at a time",
        datasets=DATASETS,
        clients=CLIENTS,
        rows={
            name if not departure else f"{name}-{departure}": replace(row, changes=DEPARTURES.get(departure, {}))
            for departure in ("", *DEPARTURES)
            for name, row in COMPARED.items()
        },
        experiment={"models": "architectures"},
        on_request=tuple(name + component for name in ("photo", "computers") for component in ("", ":lcc")),
        paper=PAPER,
        note="Rows without a suffix are as Graft has it. own-start: clients' models start apart. plain-gin: no "
        "normalisation in the GIN. conv-head: the second convolution classifies, without a linear head; the copilot "
        "keeps its own. packing: communities are cut in stored order and packed as in FedSage and OpenFGL.",
    ),
}
