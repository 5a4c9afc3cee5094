"""FIARSE, for one architecture and for groups of clients with one each."""

from graft.methods.fiarse.method import FIARSE, FIARSEGrouped

__all__ = ["FIARSE", "FIARSEGrouped"]
