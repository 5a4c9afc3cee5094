"""FedSage+: graphs mended with generated neighbours."""

from graft.methods.fedsage_plus.method import FedSagePlus

__all__ = ["FedSagePlus"]
