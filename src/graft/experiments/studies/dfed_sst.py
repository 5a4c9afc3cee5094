"""DFed-SST: peers without a server; its table, ablation, robustness, time and convergence, and pictures of its data.

The paper's text that we have lacks the numbers of three methods on four datasets. Its tables for sparse labels and
edges give neither the share removed nor the number of peers, and repeat numbers of the clean table to the last digit:
we show our own curves and no number of theirs.
"""

from __future__ import annotations

from graft.experiments.studies.study import CENTRALISED, Portrait, Printed, Study, Variant, curves, numbers

MAIN: Printed = {
    "gossip": {
        "cora": "79.97 74.94",
        "citeseer": "66.94 65.81",
        "pubmed": "84.88 84.64",
        "computers": "83.53 81.41",
        "physics": "94.34 93.55",
        "cs": "89.33 86.98",
        "photo": "86.88 85.43",
    },
    "pens": {
        "cora": "79.95 75.78",
        "citeseer": "69.97 67.19",
        "pubmed": "85.10 84.67",
        "computers": "84.16 82.84",
        "physics": "94.37 93.71",
        "cs": "89.39 87.23",
        "photo": "90.62 87.04",
    },
    "dfedavgm": {
        "cora": "77.41 68.74",
        "citeseer": "58.97 59.93",
        "pubmed": "76.95 77.74",
        "computers": "80.52 80.78",
        "physics": "87.99 89.61",
        "cs": "80.92 80.42",
        "photo": "85.65 85.50",
    },
    "feddual": {
        "cora": "78.98 74.21",
        "citeseer": "67.38 63.57",
        "pubmed": "84.29 83.97",
        "computers": "83.29 81.73",
        "physics": "94.19 93.24",
        "cs": "87.24 86.06",
        "photo": "87.46 86.06",
    },
    "dpsgd": {
        "cora": "78.32 72.89",
        "citeseer": "68.78 65.55",
        "pubmed": "82.20 81.83",
        "computers": "81.65 79.10",
        "physics": "- 93.66",
        "cs": "89.06 86.61",
        "photo": "85.08 85.18",
    },
    "osgp": {
        "cora": "79.10 74.21",
        "citeseer": "68.87 67.63",
        "pubmed": "84.89 84.69",
        "computers": "84.65 79.55",
    },
    "dis_pfl": {
        "cora": "78.86 74.89",
        "citeseer": "67.58 64.52",
        "pubmed": "83.75 83.15",
        "computers": "82.91 81.19",
    },
    "dfed_sst": {
        "cora": "81.16 76.97",
        "citeseer": "70.48 69.41",
        "pubmed": "86.40 86.27",
        "computers": "87.90 84.17",
    },
}

PEERS = ("gossip", "pens", "dfedavgm", "feddual", "dpsgd", "osgp", "dis_pfl", "dfed_sst")
COMPARED = {
    **{name: Variant(name) for name in ("local", *PEERS)},
    # Three steps of plain momentum at the common rate of 0.01 get nowhere in 100 rounds.
    "dfedavgm-tuned": Variant("dfedavgm", changes={"learning_rate": 0.1}, paper="dfedavgm"),
    "dfed-sst-paper": Variant("dfed_sst_paper", paper="dfed_sst"),
}
SEVEN = ("cora", "citeseer", "pubmed", "computers", "photo", "cs", "physics")
METIS = {"partition": "metis"}
SHARES = (0.1, 0.3, 0.5)


def sparsity_study(removed: str, field: str) -> Study:
    """Every method with a share of the edges or labels removed at random."""
    rows = {
        f"{name}-{share}": Variant(name, changes={field: share}, point=(name, share))
        for name in ("local", *PEERS)
        for share in SHARES
    }
    return Study(
        meaning=f"DFed-SST and its baselines with {removed} removed at random",
        datasets=SEVEN,
        clients=(10,),
        **curves(rows, f"share of {removed} removed"),
        experiment=METIS,
    )


STUDIES: dict[str, Study] = {
    "dfed-sst-main": Study(
        meaning="DFed-SST and seven methods without a server",
        datasets=SEVEN,
        clients=(10, 20),
        rows={**COMPARED, **CENTRALISED},
        experiment=METIS,
        on_request=("ogbn-arxiv",),
        on_dataset={"ogbn-arxiv": {"split": "60/20/20"}},
        paper=numbers(MAIN, (10, 20)),
        beside=("test_trained", "test_node_weighted"),
        note="The models are those after mixing, which the paper's algorithm returns; it names no point of evaluation.",
    ),
    "dfed-sst-ablation": Study(
        meaning="DFed-SST without one of its parts at a time",
        datasets=("cora", "citeseer", "pubmed"),
        clients=(10,),
        rows={
            "ours": Variant("dfed_sst"),
            "no-search": Variant("dfed_sst", {"search": 0}),
            "no-minimum": Variant("dfed_sst", {"min_share": 0.0}),
            "paper": Variant("dfed_sst_paper"),
            "no-degree": Variant("dfed_sst_paper", {"degree": "half"}),
            "no-cse": Variant("dfed_sst_paper", {"similar_by": "features"}),
            "no-selection": Variant("dfed_sst_paper", {"select": "random"}),
            "to-the-letter": Variant("dfed_sst_paper", {"include_self": False}),
            "local": Variant("local", reference=True),
        },
        experiment=METIS,
        beside=("test_trained",),
        figure="bars",
        note="no-degree, no-cse, no-selection and to-the-letter change the row `paper`; the last leaves a peer's own "
        "model out of its mean, as Eq. 8 does.",
    ),
    "dfed-sst-topology-sparsity": sparsity_study("edges", "edge_sparsity"),
    "dfed-sst-label-sparsity": sparsity_study("training labels", "label_sparsity"),
    "dfed-sst-time": Study(
        meaning="Time of a round of DFed-SST and its baselines",
        datasets=("cora", "pubmed"),
        clients=(10,),
        rows=COMPARED,
        experiment=METIS,
        measure="milliseconds",
        figure="bars",
        note="Times of one machine compare only if nothing else runs: use --jobs 1.",
    ),
    "dfed-sst-convergence": Study(
        meaning="Test accuracy of DFed-SST and its baselines round by round",
        datasets=("cora", "citeseer", "pubmed"),
        clients=(10,),
        rows=COMPARED,
        experiment=METIS,
        figure="rounds",
    ),
}

PORTRAITS: dict[str, Portrait] = {
    "dfed-sst-heterogeneity": Portrait(
        meaning="Labels, homophily and structure of each peer",
        datasets=("cora", "citeseer", "pubmed"),
        clients=(10,),
        maps=("labels", "homophily", "structure"),
        experiment=METIS,
        note="Colours of structural numbers run from the lowest to the highest peer; a class without edges is blank.",
    ),
}
