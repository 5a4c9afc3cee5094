"""General methods of federated learning beside those made for subgraphs, on one architecture. No paper prints this
table: methods are as they ship, and none was tuned for it.
"""

from __future__ import annotations

from graft.experiments.studies.study import CENTRALISED, Study, Variant

GENERAL = (
    "fedavg",
    "fedprox",
    "scaffold",
    "moon",
    "feddc",
    "feddyn",
    "fednova",
    "fedavgm",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "ditto",
    "fedrep",
    "pfedme",
)
SUBGRAPH = (
    "fedgta",
    "fed_pub",
    "fedsage_plus",
    "fgssl",
    "adafgl",
    "gcfl",
    "gcfl_plus",
    "fedtad",
    "fedgkc",
)
NORMALISED = {"models": "gin"}  # the one architecture of Graft's own that has normalisation layers

STUDIES: dict[str, Study] = {
    "general-methods": Study(
        meaning="General and personalised methods, and those made for subgraphs, all clients with one architecture",
        datasets=("cora", "citeseer", "pubmed", "photo"),
        clients=(10,),
        rows={
            "local": Variant("local"),
            **{name: Variant(name) for name in (*GENERAL, *SUBGRAPH)},
            **{f"{name}-gin": Variant(name, changes=NORMALISED) for name in ("local", "fedavg", "fedbn")},
            **CENTRALISED,
        },
        beside=("test_served", "test_global", "test_node_weighted"),
        note="All rows have a GCN; those that end in -gin have a GIN, whose normalisation layers FedBN is about.",
    ),
}
