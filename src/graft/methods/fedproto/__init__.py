"""FedProto, and what is common to methods that send prototypes."""

from graft.methods.fedproto.method import FedProto, PrototypeMethod

__all__ = ["FedProto", "PrototypeMethod"]
