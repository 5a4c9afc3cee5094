"""The tables of methods and plugs: a name, and the class that is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graft.registry import Registry

if TYPE_CHECKING:
    from graft.federation.method import Method
    from graft.federation.plug import Plug


class Family(NamedTuple):
    """Methods of one kind."""

    meaning: str  # in a sentence
    methods: dict[str, str]  # a name, and where its class is


# Every method is in one family; lists are in this order.
METHOD_FAMILIES = {
    "One model, a server": Family(
        "All clients train one architecture, and a server makes one model of what they send.",
        {
            "fedavg": "graft.methods.fedavg:FedAvg",
            "feddc": "graft.methods.feddc:FedDC",
            "fedprox": "graft.methods.fedprox:FedProx",
            "moon": "graft.methods.moon:MOON",
            "scaffold": "graft.methods.scaffold:SCAFFOLD",
        },
    ),
    "One model, clients adapt it": Family(
        "All clients train one architecture, and each makes a model of its own of what it receives.",
        {
            "ditto": "graft.methods.ditto:Ditto",
            "fedbn": "graft.methods.fedbn:FedBN",
            "fedrep": "graft.methods.fedrep:FedRep",
            "pfedme": "graft.methods.pfedme:PFedMe",
        },
    ),
    "Subgraphs": Family(
        "Made for parts of one graph: for edges that were cut, graphs that differ, or few labels.",
        {
            "adafgl": "graft.methods.adafgl:AdaFGL",
            "fed_pub": "graft.methods.fed_pub:FedPUB",
            "fedgcn": "graft.methods.fedgcn:FedGCN",
            "fedgta": "graft.methods.fedgta:FedGTA",
            "fedlit": "graft.methods.fedlit:FedLIT",
            "fedmlp": "graft.methods.fedmlp:FedMLP",
            "fedomd": "graft.methods.fedomd:FedOMD",
            "fedomd_paper": "graft.methods.fedomd:FedOMDPaper",
            "fedsage_plus": "graft.methods.fedsage_plus:FedSagePlus",
            "fedtad": "graft.methods.fedtad:FedTAD",
            "fedtad_paper": "graft.methods.fedtad:FedTADPaper",
            "fedtad_released": "graft.methods.fedtad:FedTADReleased",
            "fgssl": "graft.methods.fgssl:FGSSL",
            "gcfl": "graft.methods.gcfl:GCFL",
            "gcfl_plus": "graft.methods.gcfl:GCFLPlus",
        },
    ),
    "Different architectures": Family(
        "Clients may differ in architecture; what travels is something that they have in common.",
        {
            "fedgkc": "graft.methods.fedgkc:FedGKC",
            "fedgkc_alone": "graft.methods.fedgkc:FedGKCAlone",
            "fedgkc_paper": "graft.methods.fedgkc:FedGKCPaper",
            "fedkd": "graft.methods.fedkd:FedKD",
            "fedproto": "graft.methods.fedproto:FedProto",
            "fedtgp": "graft.methods.fedtgp:FedTGP",
            "fml": "graft.methods.fml:FML",
            "lg_fedavg": "graft.methods.lg_fedavg:LGFedAvg",
        },
    ),
    "No server": Family(
        "Peers send to each other, along links that the method draws or that a topology gives.",
        {
            "dfed_sst": "graft.methods.dfed_sst:DFedSST",
            "dfed_sst_paper": "graft.methods.dfed_sst:DFedSSTPaper",
            "dfedavgm": "graft.methods.dfedavgm:DFedAvgM",
            "dis_pfl": "graft.methods.dis_pfl:DisPFL",
            "dpsgd": "graft.methods.dpsgd:DPSGD",
            "feddual": "graft.methods.feddual:FedDual",
            "gossip": "graft.methods.gossip:Gossip",
            "osgp": "graft.methods.osgp:OSGP",
            "pens": "graft.methods.pens:PENS",
        },
    ),
    "References": Family(
        "Nothing is exchanged.",
        {
            "centralised": "graft.methods.centralised:Centralised",
            "loc_gcn": "graft.methods.loc_gcn:LocGCN",
            "local": "graft.methods.local:Local",
            "majority": "graft.methods.majority:Majority",
        },
    ),
}

METHODS: Registry[type[Method]] = Registry(
    "method",
    {name: where for family in METHOD_FAMILIES.values() for name, where in family.methods.items()},
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
