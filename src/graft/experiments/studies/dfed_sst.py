"""DFed-SST: peers without a server; its tables, ablation, time and convergence, and pictures of its data and links.

The paper's text that we have lacks the numbers of three methods on four datasets. Its tables for sparse labels and
edges give neither the share removed nor the number of peers, and repeat numbers of the clean table to the last digit:
the number stands beside each of our shares, with ten peers, and is no target.
"""

from __future__ import annotations

from graft.experiments.studies.paper_tables import Paper, printed
from graft.experiments.studies.study import ARXIV, CENTRALISED, Portrait, Study, Variant, curves

PEERS = ("gossip", "pens", "dfedavgm", "feddual", "dpsgd", "osgp", "dis_pfl", "dfed_sst")
OWN_RATE = {"dfedavgm": {"learning_rate": 0.1}}  # the rate of its momentum, not that of the others' Adam
COMPARED = {
    **{name: Variant(name, changes=OWN_RATE.get(name, {})) for name in ("local", *PEERS)},
    # At the rate of all others: three steps of its momentum at 0.01 get nowhere in 100 rounds.
    "dfedavgm-common": Variant("dfedavgm", paper="dfedavgm"),
    "dfed-sst-paper": Variant("dfed_sst_paper", paper="dfed_sst"),
}
SEVEN = ("cora", "citeseer", "pubmed", "computers", "photo", "cs", "physics")
FOUR = ("cora", "citeseer", "pubmed", "photo")  # of figures with four datasets that are not named in our text
METIS = {"partition": "metis"}
MOMENTUM = {"optimizer": "momentum", "learning_rate": 0.1, "optimizer_state": "reset"}
SEARCH = {"search": 4}
# The same search for all, so that what is left of a difference is whom a peer hears and how much it weighs them.
EQUALLY_INFORMED = {
    "dfed_sst": Variant("dfed_sst"),
    "random-partners": Variant("dfed_sst", {"select": "random", "degree": "half"}),
    **{f"{name}-search": Variant(name, SEARCH) for name in ("dpsgd", "gossip", "dis_pfl")},
}
SHARES = (0.1, 0.3, 0.5)


def sparsity_study(removed: str, field: str, paper: Paper) -> Study:
    """Every method with a share of the edges or labels removed at random."""
    rows = {
        f"{name}-{share}": Variant(
            name, changes={field: share, **OWN_RATE.get(name, {})}, paper=name, point=(name, share)
        )
        for name in ("local", *PEERS)
        for share in SHARES
    }
    return Study(
        meaning=f"DFed-SST and its baselines with {removed} removed at random",
        datasets=SEVEN,
        clients=(10,),
        **curves(rows, f"share of {removed} removed"),
        experiment=METIS,
        on_request=("ogbn-arxiv",),
        on_dataset=ARXIV,
        paper=paper,
        note="The paper says neither which share is removed nor how many peers there are: its one number stands beside "
        "every share.",
    )


STUDIES: dict[str, Study] = {
    "dfed-sst-main": Study(
        meaning="DFed-SST and seven methods without a server",
        datasets=SEVEN,
        clients=(10, 20),
        rows={**COMPARED, **CENTRALISED},
        experiment=METIS,
        on_request=("ogbn-arxiv",),
        on_dataset=ARXIV,
        paper=printed("dfed_sst_table2"),
        beside=("test_trained", "test_node_weighted"),
        note="The models are those after mixing, which the paper's algorithm returns; it names no point of evaluation. "
        "FedDual follows an abstract: its article could not be read.",
    ),
    "dfed-sst-ablation": Study(
        meaning="DFed-SST without one of its parts at a time",
        datasets=("cora", "citeseer", "pubmed", "photo", "computers"),
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
    "dfed-sst-worth": Study(
        meaning="DFed-SST beside partners drawn at random and baselines with its search, under two optimisers",
        datasets=FOUR,
        clients=(10, 20),
        rows={
            **EQUALLY_INFORMED,
            **{
                f"{name}-momentum": Variant(row.method, row.settings, MOMENTUM)
                for name, row in EQUALLY_INFORMED.items()
            },
        },
        experiment=METIS,
        beside=("test_trained",),
        note="Rows that end in -momentum train by momentum at 0.1, the others by Adam at 0.01; every row searches on "
        "validation nodes how far a peer goes towards the mean. random-partners: half of all peers, drawn every tenth "
        "round, weighed as DFed-SST weighs those it chooses.",
    ),
    "dfed-sst-topology-sparsity": sparsity_study("edges", "edge_sparsity", printed("dfed_sst_table3", clients=10)),
    "dfed-sst-label-sparsity": sparsity_study(
        "training labels", "label_sparsity", printed("dfed_sst_table4", clients=10)
    ),
    "dfed-sst-time": Study(
        meaning="Time of a round of DFed-SST and its baselines",
        datasets=FOUR,
        clients=(10, 20),
        rows=COMPARED,
        experiment=METIS,
        measure="milliseconds",
        figure="bars",
        note="Times of one machine compare only if nothing else runs: use --jobs 1.",
    ),
    "dfed-sst-convergence": Study(
        meaning="Test accuracy of DFed-SST and its baselines round by round",
        datasets=FOUR,
        clients=(10,),
        rows=COMPARED,
        experiment=METIS,
        figure="rounds",
    ),
}

PORTRAITS: dict[str, Portrait] = {
    "dfed-sst-heterogeneity": Portrait(
        meaning="Labels, homophily and structure of each peer, and how similar their fingerprints are",
        datasets=("cora", "citeseer", "pubmed"),
        clients=(10,),
        maps=("labels", "homophily", "structure", "similarity"),
        experiment=METIS,
        note="Colours of structural numbers run from the lowest to the highest peer; a class without edges is blank. "
        "WLSD and the similarity of fingerprints (CSE) are those of the true labels of all nodes, which no peer knows.",
    ),
    "dfed-sst-topologies": Portrait(
        meaning="Which peers hear which, and with what weight, as DFed-SST goes on",
        datasets=("photo", "cora"),
        clients=(10,),
        experiment=METIS,
        links_of=("dfed_sst_paper", "dfed_sst"),
        rounds=(1, 2, 12, 52, 100),
        note="In the first round every peer hears half of the others at random; links change after every tenth round.",
    ),
}
