"""The tables of methods and plugs: a name, and the class that is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graft.registry import Registry

if TYPE_CHECKING:
    from graft.federation.method import Method
    from graft.federation.plug import Plug

METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "centralised": "graft.methods.centralised:Centralised",
        "dfed_sst": "graft.methods.dfed_sst:DFedSST",
        "dfed_sst_paper": "graft.methods.dfed_sst:DFedSSTPaper",
        "dfedavgm": "graft.methods.dfedavgm:DFedAvgM",
        "dis_pfl": "graft.methods.dis_pfl:DisPFL",
        "dpsgd": "graft.methods.dpsgd:DPSGD",
        "fedavg": "graft.methods.fedavg:FedAvg",
        "feddc": "graft.methods.feddc:FedDC",
        "feddual": "graft.methods.feddual:FedDual",
        "fedgcn": "graft.methods.fedgcn:FedGCN",
        "fedgkc": "graft.methods.fedgkc:FedGKC",
        "fedgkc_alone": "graft.methods.fedgkc:FedGKCAlone",
        "fedgkc_paper": "graft.methods.fedgkc:FedGKCPaper",
        "fedgta": "graft.methods.fedgta:FedGTA",
        "fedkd": "graft.methods.fedkd:FedKD",
        "fedlit": "graft.methods.fedlit:FedLIT",
        "fedmlp": "graft.methods.fedmlp:FedMLP",
        "fedomd": "graft.methods.fedomd:FedOMD",
        "fedomd_paper": "graft.methods.fedomd:FedOMDPaper",
        "fedproto": "graft.methods.fedproto:FedProto",
        "fedprox": "graft.methods.fedprox:FedProx",
        "fedsage_plus": "graft.methods.fedsage_plus:FedSagePlus",
        "fedtad": "graft.methods.fedtad:FedTAD",
        "fedtad_paper": "graft.methods.fedtad:FedTADPaper",
        "fedtad_released": "graft.methods.fedtad:FedTADReleased",
        "fedtgp": "graft.methods.fedtgp:FedTGP",
        "fml": "graft.methods.fml:FML",
        "gossip": "graft.methods.gossip:Gossip",
        "lg_fedavg": "graft.methods.lg_fedavg:LGFedAvg",
        "loc_gcn": "graft.methods.loc_gcn:LocGCN",
        "local": "graft.methods.local:Local",
        "majority": "graft.methods.majority:Majority",
        "moon": "graft.methods.moon:MOON",
        "osgp": "graft.methods.osgp:OSGP",
        "pens": "graft.methods.pens:PENS",
        "scaffold": "graft.methods.scaffold:SCAFFOLD",
    },
    group="graft.methods",
    base="graft.federation.method:Method",
)

# Rows of a comparison that are never its best, and why: they show what is possible, and what is easy.
REFERENCES = {
    "centralised": "it sees the data of all clients",
    "majority": "it looks at labels only",
}

# What can be added to a method, see graft.federation.plug.
PLUGS: Registry[type[Plug]] = Registry(
    "plug",
    {
        "fedtad": "graft.methods.fedtad:Distillation",
        "fedtad_paper": "graft.methods.fedtad:PaperDistillation",
        "fedtad_released": "graft.methods.fedtad:ReleasedDistillation",
    },
    group="graft.plugs",
    base="graft.federation.plug:Plug",
)
