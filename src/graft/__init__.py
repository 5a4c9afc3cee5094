"""Graft: graph federated training."""

__version__ = "0.1.0"
