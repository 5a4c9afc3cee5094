"""Twitch: the users of five countries as five clients, each with a graph of its own.

Rozemberczki, Allen and Sarkar: Multi-scale attributed node embedding. Journal of Complex Networks, 2021. No paper
prints numbers for this federation.
"""

from __future__ import annotations

from graft.experiments.studies.study import CENTRALISED, Study, Variant

FIVE = {"models": "architectures"}

STUDIES: dict[str, Study] = {
    "twitch": Study(
        meaning="Five countries with graphs of their own, where data really differ",
        datasets=("twitch",),
        clients=(5,),
        rows={
            "majority": Variant("majority", changes={"rounds": 1}, reference=True),
            "local": Variant("local"),
            "fedavg": Variant("fedavg"),
            "fedgkc": Variant("fedgkc"),
            "dfed_sst": Variant("dfed_sst"),
            "local, five architectures": Variant("local", changes=FIVE),
            "fedgkc, five architectures": Variant("fedgkc", changes=FIVE),
            **CENTRALISED,
        },
        graphs={"twitch": "Twitch/*.npz"},
        experiment={"metric": "auroc,macro_f1,accuracy"},
        measure="auroc",
        beside=("macro_f1", "test", "test_node_weighted"),
        note="The best round is the one with the best validation AUROC; two classes, 24 to 60 % of them positive.",
    ),
}
