"""FedOMD, ICPP Workshops 2024: its tables and figures.

One gradient step a round, at most 1,000 rounds, 1 % of the nodes for training. One number of the paper (FedGCN on
CiteSeer with 9 parties) is missing from the text that we have, and one (FedOMD on Photo with 9) is filled in from its
table of depths. The two tables differ in one cell (FedOMD on Computers with 5 parties: 71.40 and 70.40). FedProx and
SCAFFOLD run on an MLP there, which explains their low level. All networks are as deep as the paper's: the head is the
last layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graft.experiments.studies.paper_tables import printed
from graft.experiments.studies.study import CENTRALISED, Portrait, Study, Variant, curves

MODULES = {
    **printed("fedomd_table6", {"fedomd": "orthogonal"}, ortho="1", cmd="0"),
    **printed("fedomd_table6", {"fedomd": "moments"}, ortho="0", cmd="1"),
    **printed("fedomd_table6", {"fedomd": "both"}, ortho="1", cmd="1"),
}
DEPTHS = (2, 4, 6, 8, 10)
DEPTH = {
    **printed("fedomd_table7", gcn_layers="2"),
    **{
        cell: number
        for depth in DEPTHS
        for cell, number in printed("fedomd_table7", {"fedomd": f"depth{depth}"}, hidden_layers=str(depth)).items()
    },
}

PARTIES = (3, 5, 7, 9)
FEW_LABELS = {
    "split": "1/20/20",
    "rounds": 1000,
    "patience": 200,
    "epochs": 1,
    "weight_decay": 1e-4,
    "head": "conv",
}
FINE = {name: {"partition": "louvain:resolution=20"} for name in ("computers", "photo")}
ON_MLP = {"models": "mlp"}
ORTHOGONAL = {"models": "ortho_gcn"}


def fedomd(point: tuple[str, float] | None = None, **settings: Any) -> Variant:
    """FedOMD with some settings, on its own architecture."""
    return Variant("fedomd", settings, changes=ORTHOGONAL, point=point)


def few_labels(meaning: str, datasets: tuple[str, ...], clients: tuple[int, ...], **fields: Any) -> Study:
    """Returns a study with 1 % of the nodes for training."""
    return Study(meaning, datasets, clients, experiment=FEW_LABELS, **fields)


COMPARED = {
    "fedmlp": Variant("fedmlp"),
    "scaffold": Variant("scaffold", changes=ON_MLP),
    "fedprox": Variant("fedprox", {"mu": 0.01}, changes=ON_MLP),
    "loc_gcn": Variant("loc_gcn"),
    "fedgcn": Variant("fedgcn"),
    "fedlit": Variant("fedlit", {"types": 2}),  # as the published rows were run; its own default is the paper's 4
    "fedsage_plus": Variant("fedsage_plus"),
    "fedomd": fedomd(),
    "fedomd-paper": Variant("fedomd_paper", changes=ORTHOGONAL, paper="fedomd"),
}
FOUR = ("cora", "citeseer", "computers", "photo")
MODULE_ROWS = {
    "alone": Variant("local", changes=ORTHOGONAL),
    "neither": fedomd(orthogonal=False, beta=0.0),
    "orthogonal": fedomd(beta=0.0),
    "moments": fedomd(orthogonal=False),
    "both": fedomd(),
}
DEPTH_ROWS = {
    **{
        f"depth{depth}": Variant("fedomd", changes={"models": f"ortho_gcn{depth}"}, point=("fedomd", depth))
        for depth in DEPTHS
    },
    "fedgcn": Variant("fedgcn", point=("fedgcn", 2)),
}
WEIGHT_ROWS = {
    f"alpha{alpha:g}-beta{beta:g}": fedomd(point=(f"beta {beta:g}", alpha), alpha=alpha, beta=beta)
    for beta in (0.0, 0.01, 0.1, 1.0, 10.0)
    for alpha in (0.0, 1e-4, 5e-4, 1e-3, 1e-2)
}
RESOLUTION_ROWS = {
    f"{name}-resolution{resolution}": Variant(
        name, changes={"partition": f"louvain:resolution={resolution}", **changes}, point=(name, resolution)
    )
    for name, changes in (("fedomd", ORTHOGONAL), ("fedgcn", {}), ("loc_gcn", {}))
    for resolution in (1, 5, 10, 20, 50)
}

MAIN_STUDY = few_labels(
    "FedOMD and its baselines with 1 % of labels",
    FOUR,
    PARTIES,
    rows={**COMPARED, **CENTRALISED},
    on_dataset=FINE,
    paper=printed("fedomd_table4"),
    beside=("test_global", "test_node_weighted"),
)
STUDIES: dict[str, Study] = {
    "fedomd-main": MAIN_STUDY,
    "fedomd-parties": replace(
        MAIN_STUDY,
        meaning="FedOMD and its baselines with 20 and 50 parties",
        datasets=("cs",),
        clients=(20, 50),
        on_dataset={},
        paper=printed("fedomd_table5"),
    ),
    "fedomd-scattered": replace(
        MAIN_STUDY,
        meaning="FedOMD and its baselines where each party's nodes are drawn from everywhere in the graph",
        experiment={**FEW_LABELS, "partition": "random"},
        on_dataset={},
        note="The paper says that it cuts by Louvain communities; its numbers are nearer to these than to ours there.",
        beside=("test_global",),
    ),
    "fedomd-modules": few_labels(
        "FedOMD's two parts, orthogonal layers and moments, on and off",
        ("cora", "citeseer"),
        PARTIES,
        rows=MODULE_ROWS,
        paper=MODULES,
        figure="bars",
    ),
    "fedomd-depth": few_labels(
        "FedOMD with 2 to 10 orthogonal layers, and a FedGCN of two layers",
        ("computers", "photo"),
        PARTIES,
        **curves(DEPTH_ROWS, "layers"),
        on_dataset=FINE,
        paper=DEPTH,
    ),
    "fedomd-alpha-beta": few_labels(
        "FedOMD's weights of orthogonality (alpha) and of moments (beta)",
        ("cora", "computers"),
        (3,),
        **curves(WEIGHT_ROWS, "alpha"),
        on_dataset=FINE,
    ),
    "fedomd-resolution": few_labels(
        "FedOMD on finer and finer communities",
        FOUR,
        (3, 5),
        **curves(RESOLUTION_ROWS, "resolution"),
    ),
    "fedomd-cost": Study(
        meaning="What FedOMD and its baselines cost: time, traffic and memory",
        datasets=("cora", "photo"),
        clients=(3,),
        rows=COMPARED,
        experiment={**FEW_LABELS, "patience": 0, "rounds": 100},
        on_dataset=FINE,
        measure="milliseconds",
        beside=("megabytes", "memory"),
        figure="bars",
        note="The paper gives orders of time, as formulas. Times and memory of one machine compare only if nothing "
        "else runs: use --jobs 1.",
    ),
    "fedomd-convergence": Study(
        meaning="Test accuracy of FedOMD and its baselines round by round",
        datasets=("cora", "photo"),
        clients=(3, 5),
        rows=COMPARED,
        experiment={**FEW_LABELS, "patience": 0, "rounds": 300},
        on_dataset=FINE,
        figure="rounds",
    ),
}

PORTRAITS: dict[str, Portrait] = {
    "fedomd-labels": Portrait(
        meaning="The labels of each party",
        datasets=FOUR,
        clients=(3, 9),
        maps=("labels",),
        experiment={"split": "1/20/20"},
        on_dataset=FINE,
    ),
}
