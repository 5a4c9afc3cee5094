"""The table of methods: a name a class, a file a method."""

from __future__ import annotations

from graft.method import Method
from graft.methods.centralised import Centralised
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC, FedGKCPaper
from graft.methods.fedkd import FedKD
from graft.methods.fedproto import FedProto
from graft.methods.fedprox import FedProx
from graft.methods.fedtgp import FedTGP
from graft.methods.fml import FML
from graft.methods.lg_fedavg import LGFedAvg
from graft.methods.local import Local

METHODS: dict[str, type[Method]] = {
    "centralised": Centralised,
    "fedavg": FedAvg,
    "fedgkc": FedGKC,
    "fedgkc_paper": FedGKCPaper,
    "fedkd": FedKD,
    "fedproto": FedProto,
    "fedprox": FedProx,
    "fedtgp": FedTGP,
    "fml": FML,
    "lg_fedavg": LGFedAvg,
    "local": Local,
}
