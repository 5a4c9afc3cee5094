"""Which peers a peer of DFed-SST hears, and with what weight, from the fingerprints of all."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

TINY = 1e-300  # keeps 0 / 0 at 0


def adaptive_degree(own: Tensor, others: Tensor) -> Tensor:
    """Eq. 6: how many peers have a lower WLSD than one's own; [...] against [..., peers]."""
    return (others < own.unsqueeze(-1)).sum(-1)


def similarity(own: Tensor, others: Tensor) -> Tensor:
    """Eq. 7: the cosine between fingerprints [..., size] and [..., peers, size]; 0 with one that is all zeros."""
    unit, units = (functional.normalize(values.double(), dim=-1, eps=TINY) for values in (own, others))
    return (units @ unit.unsqueeze(-1)).squeeze(-1)


def top_mask(scores: Tensor, degree: Tensor) -> Tensor:
    """Returns which peers have the `degree` largest scores; of equal ones, those with the lower number."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1) < degree.unsqueeze(-1)


def mixing_shares(similar: Tensor, wlsd: Tensor, selected: Tensor) -> Tensor:
    """Eq. 8 over the selected peers: exp(similarity) times their WLSD, as shares; equal ones where every WLSD is 0."""
    raw = similar.exp() * wlsd * selected
    total = raw.sum(-1, keepdim=True)
    raw = torch.where(total > 0, raw, selected.to(raw))
    return raw / raw.sum(-1, keepdim=True).clamp(min=TINY)
