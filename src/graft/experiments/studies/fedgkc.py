"""FedGKC, arXiv 2501.12624: its tables and figures.

The paper exists in two versions. The first is the target: between the versions the row of FedGKC rises in every cell
while those of the baselines stay, and the second version's own ablation still shows the first's values. Baselines carry
the deviations of the second version, which alone prints any; the few cells whose mean it changed, and its row of
FedGKC, are in the tables named LATER. All baselines are as FedGKC's authors ran them. Rounds, epochs, width, learning
rate and seeds are Graft's: the paper gives none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graft.experiments.studies.study import CENTRALISED, Printed, Study, Variant, curves, numbers

# Clients of five architectures; 5, 10 and 20 clients.
ARCHITECTURES: Printed = {
    "lg_fedavg": {
        "cora": "78.78±0.33 78.11±0.12 70.52±0.58",
        "citeseer": "65.64±0.47 62.74±0.29 58.57±0.64",
        "pubmed": "84.52±0.36 82.74±0.52 80.95±0.27",
        "ogbn-arxiv": "61.32±0.41 61.29±0.38 61.62±0.49",
        "cs": "89.07 87.16±0.31 82.69±0.57",
        "physics": "94.26±0.28 93.79 92.24±0.46",
        "photo": "90.41±0.53 86.81±0.40 85.11±0.48",
        "computers": "87.42±0.42 85.99±0.37 83.79±0.55",
    },
    "fedproto": {
        "cora": "78.50±0.77 77.75±0.22 74.13±0.27",
        "citeseer": "59.77±1.17 59.26±0.77 57.28±0.81",
        "pubmed": "84.71±0.25 82.77±0.04 81.74±0.13",
        "ogbn-arxiv": "38.26±2.13 44.82±1.92 48.19±0.73",
        "cs": "84.09±0.38 83.49±0.46 81.24±0.24",
        "physics": "92.87±0.11 92.54±0.11 91.81±0.10",
        "photo": "71.93±0.06 75.38±1.52 79.37±1.22",
        "computers": "57.61±2.55 75.55±2.04 71.35±0.74",
    },
    "fml": {
        "cora": "80.33±0.44 79.90±0.39 75.37±0.52",
        "citeseer": "64.67±0.46 62.52±0.41 60.39±0.57",
        "pubmed": "84.39±0.33 83.05±0.48 82.23±0.36",
        "ogbn-arxiv": "52.15±0.71 58.25±0.65 60.98±0.49",
        "cs": "87.34±0.42 85.93±0.36 83.34±0.49",
        "physics": "93.03±0.27 92.58±0.33 92.11±0.39",
        "photo": "89.80±0.44 86.84±0.41 79.97±0.52",
        "computers": "87.64±0.47 83.08±0.46 78.18±0.40",
    },
    "fedkd": {
        "cora": "80.32±1.07 78.64±0.43 73.01±0.75",
        "citeseer": "65.19±0.64 62.22±0.57 59.58±1.00",
        "pubmed": "85.37±0.09 83.21±0.16 82.19±0.17",
        "ogbn-arxiv": "51.77±2.22 61.31±0.25 63.34±0.19",
        "cs": "88.47±0.15 86.46±0.31 83.43±0.28",
        "physics": "93.21±0.36 92.81±0.20 91.86±0.12",
        "photo": "89.90±0.32 84.96±1.18 85.37",
        "computers": "78.53±4.60 83.69±0.85 78.47±1.34",
    },
    "fedtgp": {
        "cora": "79.50±1.40 78.47±0.64 74.58±0.35",
        "citeseer": "61.10±0.72 59.47±0.77 59.30±0.48",
        "pubmed": "85.01±0.20 83.36±0.13 81.34±0.13",
        "ogbn-arxiv": "42.08±1.93 49.43±2.00 54.24±0.45",
        "cs": "85.88±0.15 84.99±0.24 82.29±0.32",
        "physics": "93.42±0.19 93.12±0.12 92.26±0.10",
        "photo": "75.31±3.61 81.04±1.19 80.13±0.30",
        "computers": "67.30±4.97 73.76±1.58 71.85±1.64",
    },
    "fedgkc": {
        "cora": "81.42 80.71 75.38",
        "citeseer": "65.78 64.96 61.40",
        "pubmed": "85.54 83.48 82.42",
        "ogbn-arxiv": "61.47 61.58 64.29",
        "cs": "88.62 87.31 84.04",
        "physics": "94.41 93.65 92.66",
        "photo": "91.19 89.65 88.71",
        "computers": "88.17 86.80 85.84",
    },
}

# Clients of five depths; 5, 10 and 20 clients.
SCALES: Printed = {
    "lg_fedavg": {
        "cora": "79.50±0.42 79.90±0.37 73.43±0.55",
        "citeseer": "66.16±0.44 65.47±0.39 58.62±0.52",
        "pubmed": "84.48±0.41 83.17±0.46 80.70±0.38",
        "ogbn-arxiv": "62.24±0.47 65.05±0.51 65.32±0.43",
        "cs": "90.64±0.47 88.04±0.42 85.32±0.54",
        "physics": "94.42±0.33 93.87±0.39 93.45±0.28",
        "photo": "89.96±0.52 87.91±0.44 85.59±0.49",
        "computers": "85.77±0.41 85.53±0.46 84.76±0.50",
    },
    "fedproto": {
        "cora": "77.59±0.61 78.19±0.57 72.55±0.21",
        "citeseer": "62.08±0.91 57.70±1.47 57.03±0.33",
        "pubmed": "84.71±3.32 83.08±0.30 81.27±0.27",
        "ogbn-arxiv": "50.06±1.34 53.92±0.91 57.04±0.25",
        "cs": "83.95±0.28 83.08±0.08 81.80±0.38",
        "physics": "93.12±0.15 92.42±0.13 91.86±0.08",
        "photo": "71.35±3.39 73.48±2.00 80.17±0.57",
        "computers": "48.34 70.88±1.73 73.44±0.79",
    },
    "fml": {
        "cora": "80.42±0.48 79.18±0.39 74.23±0.44",
        "citeseer": "66.23±0.36 64.30±0.41 61.10±0.52",
        "pubmed": "84.76±0.47 83.13±0.42 81.43±0.38",
        "ogbn-arxiv": "54.89±0.56 62.43±0.49 64.62±0.45",
        "cs": "89.23±0.46 86.65±0.42 85.76±0.51",
        "physics": "94.60±0.29 93.91±0.36 92.11±0.33",
        "photo": "82.65±0.44 87.68±0.47 85.50±0.39",
        "computers": "86.19±0.48 85.28±0.40 84.60±0.45",
    },
    "fedkd": {
        "cora": "80.23±0.47 79.81±0.56 74.13±0.39",
        "citeseer": "66.46±0.94 65.92±1.26 60.30±0.58",
        "pubmed": "85.08±2.51 83.25±0.16 82.21±0.66",
        "ogbn-arxiv": "59.71±0.87 61.06±6.22 63.68±5.00",
        "cs": "89.48±0.14 87.03±0.14 85.88±0.11",
        "physics": "94.51±0.33 94.00±0.23 92.76±0.08",
        "photo": "84.66±0.42 85.70±0.63 86.01±0.61",
        "computers": "77.84±3.61 80.35±2.23 81.90±1.08",
    },
    "fedtgp": {
        "cora": "78.23±0.75 78.65±0.66 73.25±0.44",
        "citeseer": "63.12±0.61 58.60±0.73 58.55±0.65",
        "pubmed": "84.43±2.95 83.32±0.16 81.12±0.33",
        "ogbn-arxiv": "53.02±2.57 58.10±0.72 59.23±0.18",
        "cs": "86.84±0.41 85.49±0.28 83.81±0.11",
        "physics": "93.92±0.15 92.57±0.05 93.03±0.07",
        "photo": "71.42±3.05 73.72±1.67 81.81±0.61",
        "computers": "66.73±3.67 67.63±0.53 70.27±1.28",
    },
    "fedgkc": {
        "cora": "80.05 80.25 74.31",
        "citeseer": "67.80 66.07 61.75",
        "pubmed": "85.25 83.94 81.61",
        "ogbn-arxiv": "63.15 65.80 66.09",
        "cs": "90.74 88.92 86.50",
        "physics": "94.62 94.18 93.54",
        "photo": "90.87 89.78 89.06",
        "computers": "87.69 86.51 85.50",
    },
}

ARCHITECTURES_LATER: Printed = {
    "fedgkc": {
        "cora": "83.42±0.45 82.71±0.62 76.38±0.38",
        "citeseer": "68.19±0.46 66.15±0.73 63.40±0.67",
        "pubmed": "87.54±0.16 85.48±0.25 84.42±0.11",
        "ogbn-arxiv": "63.47±1.90 62.58±1.60 65.29±4.98",
        "cs": "89.62±0.15 88.31±0.27 86.04±0.14",
        "physics": "95.71±0.27 94.75±0.15 93.56±0.26",
        "photo": "93.19±0.67 91.65±0.32 89.76±0.43",
        "computers": "88.57±0.34 87.90±0.32 86.84±0.32",
    },
    "lg_fedavg": {"cs": "88.07±0.44 - -", "physics": "- 91.79±0.35 -"},
    "fedkd": {"photo": "- - 86.74±0.58"},
}

SCALES_LATER: Printed = {
    "fedgkc": {
        "cora": "82.35±0.32 81.25±0.51 77.29±0.34",
        "citeseer": "68.79±0.37 67.27±0.74 63.45±0.43",
        "pubmed": "87.35±0.23 86.94±0.36 84.61±0.31",
        "ogbn-arxiv": "64.25±0.32 67.65±0.88 68.09±1.04",
        "cs": "92.58±0.42 90.91±0.18 88.50±0.15",
        "physics": "95.35±0.23 94.78±0.15 93.84±0.15",
        "photo": "92.87±0.28 90.54±0.31 89.86±0.36",
        "computers": "89.54±0.31 87.64±0.40 86.48±0.32",
    },
    "fedproto": {"computers": "73.38±0.48 - -"},
}

# One architecture; 10 clients. Of this table we have two rows.
HOMOGENEOUS: Printed = {
    "fedavg": {"cs": "81.06", "physics": "92.71", "photo": "78.02", "computers": "66.90"},
    "fedgkc": {"cs": "88.73", "physics": "94.47", "photo": "90.30", "computers": "87.16"},
}

# The two modules of FedGKC on and off; 5, 10 and 20 clients.
MODULES: Printed = {
    "neither": {"cora": "80.50 79.54 75.21", "citeseer": "64.74 62.73 60.90", "pubmed": "84.64 83.15 81.87"},
    "smkd": {"cora": "81.42 80.44 74.50", "citeseer": "64.44 64.29 60.88", "pubmed": "84.54 83.37 82.51"},
    "kama": {"cora": "81.24 79.73 75.03", "citeseer": "65.04 63.11 61.03", "pubmed": "85.05 83.20 82.27"},
    "both": {"cora": "81.42 80.71 75.38", "citeseer": "65.78 64.96 61.40", "pubmed": "85.54 83.48 82.42"},
}


def as_in_the_paper(**settings: Any) -> Variant:
    """FedGKC as it was published, but for some settings."""
    return Variant("fedgkc_paper", settings, paper="fedgkc")


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
MODULE_ROWS = {
    "neither": Variant("fedgkc_paper", {"smkd": False, "kama": False}),
    "smkd": Variant("fedgkc_paper", {"kama": False}),
    "kama": Variant("fedgkc_paper", {"smkd": False}),
    "both": Variant("fedgkc_paper"),
}
PARTS = ("self_distill", "mutual", "strength", "clarity1", "clarity2")
ABLATION_ROWS = {"full": as_in_the_paper(), **{f"no-{part}": as_in_the_paper(**{part: False}) for part in PARTS}}
WEIGHT_ROWS = {
    f"alpha{alpha}-beta{beta}": Variant("fedgkc_paper", {"alpha": alpha, "beta": beta}, point=(f"beta {beta}", alpha))
    for beta in (0.0, 0.1, 0.2, 0.3, 0.4)
    for alpha in (0.2, 0.4, 0.5, 0.6, 0.7, 0.8)
    if alpha + beta <= 1 + 1e-9
}
LAMBDA_ROWS = {
    f"lambda{value}": Variant("fedgkc_paper", {"smoothing": value}, point=("fedgkc", value))
    for value in (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
}


def five_architectures(meaning: str, datasets: tuple[str, ...], clients: tuple[int, ...], **fields: Any) -> Study:
    """Returns a study of clients with five different architectures."""
    return Study(meaning, datasets, clients, experiment={"models": "architectures"}, **fields)


MAIN_STUDY = five_architectures(
    "FedGKC and its baselines, clients with five different architectures",
    SEVEN,
    (5, 10, 20),
    rows={**COMPARED, **CENTRALISED},
    on_request=("ogbn-arxiv",),
    on_dataset=ARXIV,
    paper=numbers(ARCHITECTURES),
    later=numbers(ARCHITECTURES_LATER),
    note=TWO_VERSIONS,
)

STUDIES: dict[str, Study] = {
    "fedgkc-architectures": MAIN_STUDY,
    "fedgkc-scales": replace(
        MAIN_STUDY,
        meaning="FedGKC and its baselines, clients with networks of five depths",
        experiment={"models": "scales"},
        paper=numbers(SCALES),
        later=numbers(SCALES_LATER),
    ),
    "fedgkc-homogeneous": Study(
        meaning="FedGKC, FedAvg and the baselines, all clients with one architecture",
        datasets=("cs", "physics", "photo", "computers"),
        clients=(10,),
        rows={"local": COMPARED["local"], "fedavg": Variant("fedavg"), **COMPARED, **CENTRALISED},
        experiment={"models": "gcn"},
        paper=numbers(HOMOGENEOUS, (10,)),
        note="Of the paper's table we have the rows of FedAvg and FedGKC.",
    ),
    "fedgkc-modules": five_architectures(
        "FedGKC's two modules, SMKD and KAMA, on and off",
        THREE,
        (5, 10, 20),
        rows=MODULE_ROWS,
        figure="bars",
        paper=numbers(MODULES),
        note="The paper does not define its conventional dual model; here it is distillation of predictions alone.",
    ),
    "fedgkc-ablation": five_architectures(
        "FedGKC without one of its parts at a time",
        ("citeseer",),
        (10,),
        rows=ABLATION_ROWS,
        note="The paper shows this as a figure, without numbers.",
        figure="bars",
    ),
    "fedgkc-copilots": five_architectures(
        "FedGKC with other architectures as the copilot",
        THREE,
        (10,),
        rows={name: as_in_the_paper(copilot=name) for name in ("gcn", "gat", "sage", "gin", "sgc", "mlp")},
        figure="bars",
    ),
    "fedgkc-alpha-beta": five_architectures(
        "FedGKC's weights of labels (alpha) and of neighbourhoods (beta)",
        ("cs",),
        (20,),
        **curves(WEIGHT_ROWS, "alpha"),
        note="The paper shows this as a figure: best at alpha 0.6 to 0.7 and beta 0.1 to 0.2.",
    ),
    "fedgkc-lambda": five_architectures(
        "FedGKC's weight of over-smoothing (lambda) in a client's knowledge",
        THREE,
        (10,),
        **curves(LAMBDA_ROWS, "lambda"),
    ),
}
