"""The semantic contrast: nodes are pulled towards the teacher's embeddings of their class, away from all others."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from graft.training.losses import mean_over

Against = Literal["all", "others"]


def semantic_contrast(
    student: Tensor, teacher: Tensor, classes: Tensor, real: Tensor, temperature: float, against: Against = "all"
) -> Tensor:
    """Returns the contrast of [clients, some, width] embeddings with the teacher's of the same nodes, one number a
    client; no gradient reaches the teacher.

    A node and one of its class are a pair, the node and its own teacher embedding too. Against a pair stand `all` nodes
    of the client, or the pair itself and the nodes of `others`, the other classes.
    """
    cosines = unit(student) @ unit(teacher.detach()).mT / temperature
    known = real.unsqueeze(1)
    pairs = (classes.unsqueeze(2) == classes.unsqueeze(1)) & known
    against_nodes = known if against == "all" else known & ~pairs
    # Not minus infinity, of which a client without such a node would make nan.
    total = cosines.masked_fill(~against_nodes, torch.finfo(cosines.dtype).min).logsumexp(2, keepdim=True)
    # -log(e^s / (e^s + e^t)) is log(1 + e^(t - s)).
    by_pair = total - cosines if against == "all" else functional.softplus(total - cosines)
    return mean_over((by_pair * pairs).sum(2) / pairs.sum(2).clamp(min=1), real)


def unit(embedding: Tensor) -> Tensor:
    """Returns embeddings of length 1; one that is all zero, as after a ReLU, stays so."""
    return functional.normalize(embedding, dim=2, eps=1e-12)
