"""The table of methods: a name a class, a file a method."""

from __future__ import annotations

from graft.method import Method
from graft.methods.centralised import Centralised
from graft.methods.fedavg import FedAvg
from graft.methods.fedprox import FedProx
from graft.methods.local import Local

METHODS: dict[str, type[Method]] = {
    "centralised": Centralised,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "local": Local,
}
