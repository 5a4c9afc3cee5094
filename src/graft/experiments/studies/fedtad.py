"""FedTAD, IJCAI 2024: its tables and figures.

The paper scores the global model (it prints 56.0 for FedAvg on Cora with 20 clients, where clients' own models are far
above): so does the first table of each study; the clients' own models are in the second. Its figures print no numbers.
`fedtad-paper` is the method as published, from which every study of its parts starts; `fedtad` has Graft's defaults.
"""

from __future__ import annotations

from typing import Any

from graft.experiments.studies.paper_tables import printed
from graft.experiments.studies.study import ARXIV, CENTRALISED, Portrait, Study, Variant, curves

FIVE = ("cora", "citeseer", "pubmed", "cs", "physics")
HOSTS = ("fedavg", "fedprox", "scaffold", "moon", "feddc", "fedgta", "fedsage_plus", "fed_pub", "gcfl_plus")
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
PARTICIPATING = ("fedavg", "fedgta", "fed_pub", "fedsage_plus", "fedtad")
MAIN = printed("fedtad_table2", noise="0")
ABLATED = {
    **printed("fedtad_table2", {"fedtad": "full", "fedavg": "fedavg"}, noise="0"),
    **printed("fedtad_table2", {"fedtad": "noise"}, noise="10%"),
}
# Hosts alone are in both tables, and alike.
PLUGGED = {
    **{cell: number for cell, number in MAIN.items() if cell[0] in HOSTS and cell[1:] == ("cora", 20)},
    **printed("fedtad_table3", plug="none"),
    **printed("fedtad_table3", {host: f"{host}+fedtad" for host in HOSTS}, plug="fedtad"),
}
PARTICIPATION = {
    cell: number
    for share in SHARES
    for cell, number in printed(
        "fedtad_table4", {name: f"{name}-{share}" for name in PARTICIPATING}, participation=f"{share:.0%}"
    ).items()
}
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
    for name in (*PARTICIPATING, "fedtad-paper")
    for share in SHARES
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
            "fedtad-noise": Variant("fedtad_paper", {"reliability_noise": 0.1}),
            **CENTRALISED,
        },
        on_request=("ogbn-arxiv",),
        on_dataset=ARXIV,
        paper={**MAIN, **printed("fedtad_table2", {"fedtad": "fedtad-noise"}, noise="10%")},
        note="fedtad-noise: 10 % of noise on the reliabilities that fedtad-paper's clients send.",
        **GLOBAL,
    ),
    "fedtad-ablation": Study(
        meaning="FedTAD without one of its parts at a time, and with noise on its reliabilities",
        datasets=("cora", "citeseer", "pubmed"),
        clients=(5, 10, 20),
        rows=ABLATION_ROWS,
        on_request=("cs", "physics", "ogbn-arxiv"),
        on_dataset=ARXIV,
        paper=ABLATED,
        figure="bars",
        note="r-eq distils on the real graph, which no server has: it is no competitor.",
        **GLOBAL,
    ),
    "fedtad-lambdas": Study(
        meaning="FedTAD's weights of semantics (lambda1) and diversity (lambda2)",
        datasets=("cora",),
        clients=(10, 20),
        **curves(LAMBDA_ROWS, "lambda1"),
        **GLOBAL,
    ),
    "fedtad-participation": Study(
        meaning="FedTAD and the methods it is compared with, with some of the clients in a round",
        datasets=("cora",),
        clients=(20,),
        **curves(PARTICIPATION_ROWS, "share of the clients"),
        paper=PARTICIPATION,
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
        on_request=("ogbn-arxiv",),
        on_dataset=ARXIV,
        paper=PLUGGED,
        figure="bars",
        **GLOBAL,
    ),
    "fedtad-convergence": Study(
        meaning="Test accuracy of FedTAD and the methods it is compared with round by round",
        datasets=("cora", "citeseer", "pubmed", "cs"),
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
        clients=(3, 10),
        maps=("labels", "homophily"),
        without=1,
        note="The two maps take apart how nodes vary over clients (labels) and how graphs do (homophily). "
        "Homophily of a class: edges with both ends in it among those with at least one; blank without any.",
    ),
}
