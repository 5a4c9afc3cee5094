"""FedTAD, as a method and as a plug on any aggregator of one architecture."""

from graft.methods.fedtad.distillation import Distillation, PaperDistillation, ReleasedDistillation
from graft.methods.fedtad.method import FedTAD, FedTADPaper, FedTADReleased

__all__ = [
    "Distillation",
    "FedTAD",
    "FedTADPaper",
    "FedTADReleased",
    "PaperDistillation",
    "ReleasedDistillation",
]
