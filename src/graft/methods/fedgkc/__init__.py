"""FedGKC: clients of different architectures learn from each other through a small copilot model."""

from graft.methods.fedgkc.method import FedGKC
from graft.methods.fedgkc.variants import FedGKCAlone, FedGKCPaper

__all__ = ["FedGKC", "FedGKCAlone", "FedGKCPaper"]
