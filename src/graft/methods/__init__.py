"""The table of methods: a name a class, a file a method."""

from __future__ import annotations

from graft.federation.method import Method
from graft.federation.plug import Plug
from graft.methods.centralised import Centralised
from graft.methods.dfed_sst import DFedSST, DFedSSTPaper
from graft.methods.dfedavgm import DFedAvgM
from graft.methods.dis_pfl import DisPFL
from graft.methods.dpsgd import DPSGD
from graft.methods.fedavg import FedAvg
from graft.methods.feddc import FedDC
from graft.methods.feddual import FedDual
from graft.methods.fedgcn import FedGCN
from graft.methods.fedgkc import FedGKC, FedGKCPaper
from graft.methods.fedgta import FedGTA
from graft.methods.fedkd import FedKD
from graft.methods.fedlit import FedLIT
from graft.methods.fedmlp import FedMLP
from graft.methods.fedomd import FedOMD, FedOMDPaper
from graft.methods.fedproto import FedProto
from graft.methods.fedprox import FedProx
from graft.methods.fedsage_plus import FedSagePlus
from graft.methods.fedtad import (
    Distillation,
    FedTAD,
    FedTADPaper,
    FedTADReleased,
    PaperDistillation,
    ReleasedDistillation,
)
from graft.methods.fedtgp import FedTGP
from graft.methods.fml import FML
from graft.methods.gossip import Gossip
from graft.methods.lg_fedavg import LGFedAvg
from graft.methods.loc_gcn import LocGCN
from graft.methods.local import Local
from graft.methods.moon import MOON
from graft.methods.osgp import OSGP
from graft.methods.pens import PENS
from graft.methods.scaffold import SCAFFOLD

METHODS: dict[str, type[Method]] = {
    "centralised": Centralised,
    "dfed_sst": DFedSST,
    "dfed_sst_paper": DFedSSTPaper,
    "dfedavgm": DFedAvgM,
    "dis_pfl": DisPFL,
    "dpsgd": DPSGD,
    "fedavg": FedAvg,
    "feddc": FedDC,
    "feddual": FedDual,
    "fedgcn": FedGCN,
    "fedgkc": FedGKC,
    "fedgkc_paper": FedGKCPaper,
    "fedgta": FedGTA,
    "fedkd": FedKD,
    "fedlit": FedLIT,
    "fedmlp": FedMLP,
    "fedomd": FedOMD,
    "fedomd_paper": FedOMDPaper,
    "fedproto": FedProto,
    "fedprox": FedProx,
    "fedsage_plus": FedSagePlus,
    "fedtad": FedTAD,
    "fedtad_paper": FedTADPaper,
    "fedtad_released": FedTADReleased,
    "fedtgp": FedTGP,
    "fml": FML,
    "gossip": Gossip,
    "lg_fedavg": LGFedAvg,
    "loc_gcn": LocGCN,
    "local": Local,
    "moon": MOON,
    "osgp": OSGP,
    "pens": PENS,
    "scaffold": SCAFFOLD,
}

# What can be added to a method, see graft.federation.plug.
PLUGS: dict[str, type[Plug]] = {
    "fedtad": Distillation,
    "fedtad_paper": PaperDistillation,
    "fedtad_released": ReleasedDistillation,
}
