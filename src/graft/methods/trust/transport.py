"""Affinity distillation (WDAD): entropic optimal transport between the predictions of two models, which costs little
between classes that are alike to the private one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from graft.errors import InputError
from graft.models.assigned import different_models
from graft.tensors.trees import Tree, Weights, flatten

if TYPE_CHECKING:
    from graft.federation.server import Server
    from graft.models.architecture import Model


def check_heads(server: Server) -> None:
    """Refuses architectures without a linear head: its weights are what classes are compared by."""
    for model in different_models(server.models):
        head = dict(flatten(server.initial(model).get("head", Tree())))
        # The last layer of a GCN has a weight too, but it is a convolution.
        if getattr(model, "head", "linear") != "linear" or sorted(head) != ["bias", "weight"]:
            raise InputError(
                f"TRUST compares classes by the weights of the linear head, and {model.name} has none: use head = "
                "linear, call the last linear layer of your own module 'head', or set w_wd to 0."
            )


def class_costs(model: Model, weights: Weights, kappa: float) -> Tensor:
    """Returns what it costs to move from class to class, [clients, classes, classes]: the less, the more alike the
    weights of their logits are."""
    cosines = torch.cat([class_cosines(branch["head"]["weight"], model) for branch in branches(model, weights)])
    return 1 - torch.exp(-kappa * (1 - cosines))


def branches(model: Model, weights: Weights) -> list[Any]:
    """Returns the weights of every architecture of a fleet, in the order of its clients."""
    return [weights[name] for name in model.kinds] if model.kinds else [weights]


def class_cosines(head: Tensor, model: Model) -> Tensor:
    # A class is a column of the heads of Graft's models, and a row of those of modules.
    by_class = head.mT if model.stackable else head
    unit = functional.normalize(by_class, dim=2, eps=1e-12)
    return unit @ unit.mT


def transport_value(teacher: Tensor, student: Tensor, costs: Tensor, eta: float, iterations: int) -> Tensor:
    """Returns the least of <q, costs> + eta <q, log q> over plans q between two distributions of each node, [clients,
    nodes], from their logarithms.

    No gradient reaches the teacher. That with respect to the student is the dual potential, so nothing of the
    iterations is kept for the backward pass.
    """
    with torch.no_grad():
        rows, columns = potentials(teacher, student, costs, eta, iterations)
        value = (teacher.exp() * rows).sum(2) + (student.exp() * columns).sum(2)
    change = (columns * student.exp()).sum(2)
    return value + (change - change.detach())


def potentials(
    log_rows: Tensor, log_columns: Tensor, costs: Tensor, eta: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """Returns the dual potentials f and g by Sinkhorn's iterations; the plan is exp((f_i + g_j - costs_ij) / eta).

    Costs are below 1, so with an eta of 0.03 and more the scaling needs no logarithms in single precision; but the
    potentials are taken as logarithms, since probabilities may be 0 in it.
    """
    kernel = torch.exp(-costs / eta)
    rows, columns = log_rows.exp(), log_columns.exp()
    v = torch.ones_like(columns)
    for _ in range(iterations):
        row_sums = v @ kernel.mT
        u = rows / row_sums
        column_sums = u @ kernel
        v = columns / column_sums
    return eta * (log_rows - row_sums.log()), eta * (log_columns - column_sums.log())
