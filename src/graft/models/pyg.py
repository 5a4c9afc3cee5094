"""Models of PyG (`torch_geometric.nn.models`) by name: of the experiment's width and dropout, and of two layers unless
the name says otherwise, as `pyg:GCN3` does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch_geometric.nn import models

DEGREES = 17  # a histogram of one node each with 0 to 16 neighbours


def make(
    kind: type[nn.Module], features: int, classes: int, shape: tuple[int, int, float], **settings: Any
) -> nn.Module:
    """Returns a model of PyG whose last layer gives the classes."""
    width, depth, dropout = shape
    return kind(
        in_channels=features,
        hidden_channels=width,
        num_layers=depth,
        out_channels=classes,
        dropout=dropout,
        **settings,
    )


def gcn(features: int, classes: int, width: int = 64, dropout: float = 0.5, depth: int = 2) -> nn.Module:
    """PyG's GCN (Kipf and Welling, ICLR 2017)."""
    return make(models.GCN, features, classes, (width, depth, dropout))


def gat(features: int, classes: int, width: int = 64, dropout: float = 0.5, depth: int = 2) -> nn.Module:
    """PyG's GAT (Velickovic et al., ICLR 2018), with one head."""
    return make(models.GAT, features, classes, (width, depth, dropout))


def graph_sage(features: int, classes: int, width: int = 64, dropout: float = 0.5, depth: int = 2) -> nn.Module:
    """PyG's GraphSAGE (Hamilton et al., NIPS 2017), with the mean."""
    return make(models.GraphSAGE, features, classes, (width, depth, dropout))


def gin(features: int, classes: int, width: int = 64, dropout: float = 0.5, depth: int = 2) -> nn.Module:
    """PyG's GIN (Xu et al., ICLR 2019)."""
    return make(models.GIN, features, classes, (width, depth, dropout))


def pna(features: int, classes: int, width: int = 64, dropout: float = 0.5, depth: int = 2) -> nn.Module:
    """PyG's PNA (Corso et al., NeurIPS 2020): mean, least, greatest and deviation, scaled by the degree.

    The degrees that it is scaled by are fixed, every number of neighbours from 0 to 16 once: those of the clients would
    have to be shared before the first round.
    """
    return make(
        models.PNA,
        features,
        classes,
        (width, depth, dropout),
        aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification", "attenuation"],
        deg=torch.ones(DEGREES, dtype=torch.long),
    )
