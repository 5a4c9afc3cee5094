"""FedLIT: edges clustered into latent types, with a channel of graph convolutions for each."""

from graft.methods.fedlit.method import FedLIT

__all__ = ["FedLIT"]
