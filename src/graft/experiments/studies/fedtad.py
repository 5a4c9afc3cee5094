"""FedTAD, IJCAI 2024: its tables and figures.

The paper scores the global model (it prints 56.0 for FedAvg on Cora with 20 clients, where clients' own models are far
above): so does the first table of each study; the clients' own models are in the second. FedAvg, FedGTA and FedTAD are
the rows whose numbers we have. Its figure of ablations prints none. `fedtad-paper` is the method as published, from
which every study of its parts starts; `fedtad` has Graft's defaults.
"""

from __future__ import annotations

from typing import Any

from graft.experiments.studies.study import CENTRALISED, Portrait, Printed, Study, Variant, curves, numbers

MAIN: Printed = {
    "fedavg": {
        "cora": "80.6 73.6 56.0",
        "citeseer": "71.5 68.9 66.3",
        "pubmed": "85.6 82.9 80.6",
        "cs": "90.4 85.9 83.9",
        "physics": "94.7 91.6 90.3",
        "ogbn-arxiv": "60.3 58.4 55.7",
    },
    "fedgta": {
        "cora": "83.3 74.1 58.8",
        "citeseer": "72.4 70.5 68.3",
        "pubmed": "86.3 83.7 82.0",
        "cs": "92.0 88.7 85.2",
        "physics": "95.3 92.5 92.1",
        "ogbn-arxiv": "62.4 60.5 57.3",
    },
    "fedtad": {
        "cora": "85.1 75.3 61.3",
        "citeseer": "73.5 71.7 70.2",
        "pubmed": "87.9 84.4 83.5",
        "cs": "94.3 90.2 88.7",
        "physics": "96.2 94.1 93.3",
        "ogbn-arxiv": "63.2 62.0 59.5",
    },
}
NOISY: Printed = {
    "noise": {"cora": "84.8 75.1 60.9", "citeseer": "73.3 71.4 69.8", "pubmed": "87.7 84.3 83.2"},
    "full": {name: MAIN["fedtad"][name] for name in ("cora", "citeseer", "pubmed")},
    "fedavg": {name: MAIN["fedavg"][name] for name in ("cora", "citeseer", "pubmed")},
}
PLUGGED: Printed = {"fedgta": {"cora": "58.8"}, "fedgta+fedtad": {"cora": "62.5"}, "fedavg": {"cora": "56.0"}}
PARTICIPATION: Printed = {
    f"{name}-{share}": {"cora": accuracy}
    for name, accuracies in (
        ("fedavg", "44.5 50.3 51.8 53.1 56.0"),
        ("fedgta", "49.6 53.1 55.7 56.2 58.8"),
        ("fedtad", "51.5 54.2 57.4 58.5 61.3"),
    )
    for share, accuracy in zip((0.2, 0.4, 0.6, 0.8, 1.0), accuracies.split(), strict=True)
}

FIVE = ("cora", "citeseer", "pubmed", "cs", "physics")
HOSTS = ("fedavg", "fedprox", "scaffold", "moon", "feddc", "fedgta")
GLOBAL: Any = {"measure": "test_served", "beside": ("test", "test_node_weighted")}
FEDTAD = {"fedtad": Variant("fedtad"), "fedtad-paper": Variant("fedtad_paper", paper="fedtad")}
ABLATION_ROWS = {
    "fedavg": Variant("fedavg", reference=True),
    "full": Variant("fedtad_paper"),
    "released": Variant("fedtad_released"),
    "eq": Variant("fedtad_paper", {"reliability": "equal"}),
    "nv": Variant("fedtad_paper", {"reliability": "count"}),
    "r-eq": Variant("fedtad_paper", {"reliability": "equal", "distil_on": "real", "reveal_data": True}, reference=True),
    "no-semantic": Variant("fedtad_paper", {"semantic_weight": 0.0}),
    "no-diversity": Variant("fedtad_paper", {"diversity_weight": 0.0}),
    "no-divergence": Variant("fedtad_paper", {"adversarial": False}),
    "noise": Variant("fedtad_paper", {"reliability_noise": 0.1}),
}
LAMBDAS = (0.001, 0.01, 0.1, 1.0)
LAMBDA_ROWS = {
    f"lambda1-{first}-lambda2-{second}": Variant(
        "fedtad_paper", {"semantic_weight": first, "diversity_weight": second}, point=(f"lambda2 {second}", first)
    )
    for second in LAMBDAS
    for first in LAMBDAS
}
PARTICIPATION_ROWS = {
    f"{name}-{share}": Variant(
        name.replace("-", "_"),
        changes={"participation": share},
        paper=f"{name.removesuffix('-paper')}-{share}",
        point=(name, share),
    )
    for name in ("fedavg", "fedgta", "fedtad", "fedtad-paper")
    for share in (0.2, 0.4, 0.6, 0.8, 1.0)
}

STUDIES: dict[str, Study] = {
    "fedtad-main": Study(
        meaning="FedTAD and the methods it is compared with",
        datasets=FIVE,
        clients=(5, 10, 20),
        rows={
            "local": Variant("local", reference=True),
            **{name: Variant(name) for name in HOSTS},
            **FEDTAD,
            **CENTRALISED,
        },
        on_request=("ogbn-arxiv",),
        on_dataset={"ogbn-arxiv": {"split": "60/20/20"}},
        paper=numbers(MAIN),
        **GLOBAL,
    ),
    "fedtad-ablation": Study(
        meaning="FedTAD without one of its parts at a time, and with noise on its reliabilities",
        datasets=("cora", "citeseer", "pubmed"),
        clients=(5, 10, 20),
        rows=ABLATION_ROWS,
        paper=numbers(NOISY),
        figure="bars",
        note="r-eq distils on the real graph, which no server has: it is no competitor.",
        **GLOBAL,
    ),
    "fedtad-lambdas": Study(
        meaning="FedTAD's weights of semantics (lambda1) and diversity (lambda2)",
        datasets=("cora",),
        clients=(10,),
        **curves(LAMBDA_ROWS, "lambda1"),
        **GLOBAL,
    ),
    "fedtad-participation": Study(
        meaning="FedTAD, FedGTA and FedAvg with some of the clients in a round",
        datasets=("cora",),
        clients=(20,),
        **curves(PARTICIPATION_ROWS, "share of the clients"),
        paper=numbers(PARTICIPATION, (20,)),
        **GLOBAL,
    ),
    "fedtad-plug": Study(
        meaning="FedTAD's server phase plugged onto other methods",
        datasets=("cora",),
        clients=(20,),
        rows={
            f"{name}{plug}": Variant(
                name,
                changes={"plug": plug[1:].replace("-", "_")},
                paper=f"{name}{plug.removesuffix('-paper')}",
            )
            for name in HOSTS
            for plug in ("", "+fedtad", "+fedtad-paper")
        },
        paper=numbers(PLUGGED, (20,)),
        figure="bars",
        **GLOBAL,
    ),
    "fedtad-convergence": Study(
        meaning="Test accuracy of FedTAD and the methods it is compared with round by round",
        datasets=("cora", "citeseer", "pubmed"),
        clients=(10,),
        rows={**{name: Variant(name) for name in HOSTS}, **FEDTAD},
        figure="rounds",
        **GLOBAL,
    ),
}

PORTRAITS: dict[str, Portrait] = {
    "fedtad-investigation": Portrait(
        meaning="Labels and homophily of each client, and what the global model learns with and without client 1",
        datasets=("cora", "citeseer"),
        clients=(10,),
        maps=("labels", "homophily"),
        without=1,
        note="Homophily of a class: edges with both ends in it among those with at least one; blank without any.",
    ),
}
