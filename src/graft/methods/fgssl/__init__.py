"""FGSSL."""

from graft.methods.fgssl.method import FGSSL

__all__ = ["FGSSL"]
