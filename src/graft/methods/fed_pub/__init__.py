"""Fed-PUB: a mean of its own for every client, and a sparse mask on top of it."""

from graft.methods.fed_pub.method import FedPUB

__all__ = ["FedPUB"]
