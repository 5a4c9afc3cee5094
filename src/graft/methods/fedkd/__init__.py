"""FedKD: a private mentor and a small mentee whose compressed updates are sent."""

from graft.methods.fedkd.method import FedKD

__all__ = ["FedKD"]
