"""Losses that two or more methods use; each gives one number a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from graft.fleet import Fleet

Nodes = Literal["train", "all"]


def nodes_of(fleet: Fleet, which: Nodes) -> Tensor:
    """The nodes that are meant, [clients, nodes]: those with a label to train on, or all but the spare ones."""
    return fleet.labels.masks[:, 0] if which == "train" else fleet.graph.real


def mean_over(values: Tensor, nodes: Tensor) -> Tensor:
    """The mean of [clients, nodes] over some nodes of each client; zero for a client without any."""
    return (values * nodes).sum(1) / nodes.sum(1).clamp(min=1)


def divergence(teacher: Tensor, student: Tensor, nodes: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student), both given as logits: a sum over classes and a mean over nodes.

    The teacher is a fixed target, so no gradient reaches it. A temperature softens both, and its square keeps the
    gradient as large as without (Hinton, Vinyals and Dean, 2015).
    """
    wanted = functional.log_softmax(teacher.detach() / temperature, 2)
    found = functional.log_softmax(student / temperature, 2)
    return temperature**2 * mean_over((wanted.exp() * (wanted - found)).sum(2), nodes)
