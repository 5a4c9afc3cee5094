"""TRUST: a travelling proxy that learns from a private model, easy nodes first."""

from graft.methods.trust.method import TRUST

__all__ = ["TRUST"]
