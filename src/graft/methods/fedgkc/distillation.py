"""The losses of self-mutual knowledge distillation (SMKD)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from graft.federation.fleet import pick_by_client
from graft.models.architecture import Output
from graft.tensors.trees import Tree, Weights, map_tree
from graft.training.losses import log_softmax, mean_over, mean_prediction

if TYPE_CHECKING:
    from collections.abc import Callable

    from graft.federation.fleet import Fleet
    from graft.graphs.fleet_graph import FleetGraph
    from graft.models.architecture import Model

VIEWS = {  # preset: (edges, features) dropped in the weak view, (edges, features) dropped in the strong one
    "graft": ((0.2, 0.2), (0.5, 0.4)),
    "fgssl": ((0.3, 0.3), (0.8, 0.5)),
    "light": ((0.1, 0.1), (0.3, 0.3)),
}


def neighbourhood_loss(
    graph: FleetGraph, teacher: Tensor, student: Tensor, reduction: Literal["sum", "mean"] = "sum"
) -> Tensor:
    """Eq. 1: every node is taught by the embeddings of its neighbours and its own."""
    log_targets = log_softmax(teacher.detach())
    targets = log_targets.exp()
    # sum_j KL(t_j || s_i) = sum_j t_j log t_j - (sum_j t_j) log s_i: a sparse product, nothing of edges by width.
    lessons = torch.cat([targets, (targets * log_targets).sum(2, keepdim=True)], dim=2)
    if graph.weighted:
        # Weights say which neighbours count more, not how much the loss counts: it stays a sum of as many terms.
        sums = graph.neighbour_counts.unsqueeze(2) * (graph.mean @ lessons) + lessons
    else:
        sums = graph.with_self_loops @ lessons
    per_node = sums[:, :, -1] - (sums[:, :, :-1] * log_softmax(student)).sum(2)
    if reduction == "mean":
        per_node = per_node / (graph.neighbour_counts + 1)
    return mean_over(per_node, graph.real)


def view_loss(graph: FleetGraph, weak: Output, strong: Output, reduction: Literal["mean", "sum_dim"]) -> Tensor:
    """Eq. 4: the squared error of embeddings and the divergence of predictions between two views of the graph."""
    squared = (weak.embedding - strong.embedding).square()
    errors = squared.mean(2) if reduction == "mean" else squared.sum(2)
    log_targets, log_predictions = log_softmax(weak.logits), log_softmax(strong.logits)
    return mean_over(errors + (log_targets.exp() * (log_targets - log_predictions)).sum(2), graph.real)


def student_outputs(
    fleet: Fleet, weights: Weights, model: Model | None = None, *, evaluate: bool
) -> tuple[Output, Output]:
    """Returns the outputs of a model in training mode and, with `evaluate`, in evaluation mode; else the former
    twice."""
    if evaluate:
        return fleet.forward_and_predict(weights, model)
    output = fleet.forward(weights, model)
    return output, output


def no_worse(fleet: Fleet, teacher: Output, student: Output) -> Tensor:
    """1 for a client whose validation nodes the teacher gets right at least as often as the student, else 0."""
    by_teacher, by_student = (fleet.count_validated(output.logits) for output in (teacher, student))
    return (by_teacher >= by_student).float()


def best_or_mean(fleet: Fleet, trained: Output, received: Output, *, best: bool) -> Output:
    """Returns the mean of what two copilots predict or, at every client, the best of both and their mean on its
    validation nodes; of equal ones the mean."""
    embedding = (trained.embedding + received.embedding) / 2
    mean = Output(embedding, mean_prediction(trained.logits, received.logits))
    if not best:
        return mean
    teachers = mean, trained, received
    chosen = fleet.best_place([teacher.logits for teacher in teachers])
    return Output(*(pick_by_client(chosen, values) for values in zip(*teachers, strict=True)))


def with_others(loss: Callable[[Tree, Fleet], Tensor], others: Weights, models: Tree, fleet: Fleet) -> Tensor:
    """Returns the loss of models of which some are not trained now."""
    return loss(Tree({**others, **models}), fleet)


def sum_of_terms(terms: Callable[[Fleet, Tree], Tree], sizes: Tree, models: Tree, fleet: Fleet) -> Tensor:
    """Returns the sum of some terms; `sizes` is updated, so that after training it holds the terms of the last
    epoch."""
    current = terms(fleet, models)
    sizes.update(map_tree(Tensor.detach, current))
    first, *others = current.values()
    total: Tensor = sum(others, start=first)
    return total
