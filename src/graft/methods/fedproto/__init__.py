"""FedProto, and what is common to methods that send prototypes."""

from graft.methods.fedproto.method import FedProto, PrototypeExchange, PrototypeMethod

__all__ = ["FedProto", "PrototypeExchange", "PrototypeMethod"]
