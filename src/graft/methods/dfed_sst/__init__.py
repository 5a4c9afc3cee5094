"""DFed-SST: peers choose whom to hear by structural and semantic fingerprints."""

from graft.methods.dfed_sst.method import DFedSST, DFedSSTPaper

__all__ = ["DFedSST", "DFedSSTPaper"]
