"""Optimisers that work element by element, so that one serves all clients of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from graft.tensors import kernels
from graft.tensors.trees import Owners, Tree, flatten, unflatten, unsqueeze_to

Flat = dict[str, Tensor]  # the leaves of a tree by their paths


@dataclass(frozen=True)
class Training:
    """How a client trains."""

    epochs: int = 3  # how often a round goes through a client's nodes
    optimizer: Literal["adam", "sgd", "momentum"] = "adam"
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    optimizer_state: Literal["persistent", "reset"] = "persistent"  # kept over rounds, or new in each
    weight_by: Literal["nodes", "train", "uniform"] = "nodes"  # what a client's vote in an average counts
    momentum: float = 0.9  # how much of its last step the optimiser of that name takes again
    clip_norm: float = 0.0  # the greatest norm that a client's gradient may have; 0 leaves it as it is
    batches: int = 1  # how many steps an epoch takes, each on another part of the nodes; 1 is full batch
    loss: Literal["cross_entropy", "focal"] = "cross_entropy"  # of labels
    focal_gamma: float = 2.0  # how much the focal loss looks away from nodes that are easy
    class_weights: Literal["none", "balanced"] = "none"  # balanced: every class of a client weighs the same in its loss
    # Where each client draws its own number of epochs in every round, the least; 0: all take `epochs`.
    least_epochs: int = 0
    # By which nodes a step may judge models: validation nodes, or training nodes that are held out of training.
    judge_on: Literal["validation", "training"] = "validation"

    @property
    def steps(self) -> int:
        """Returns how many steps a round takes, at most where clients differ in that."""
        return self.epochs * self.batches

    @property
    def uneven(self) -> bool:
        """Returns whether clients may take different numbers of epochs."""
        return 0 < self.least_epochs < self.epochs


class Optimizer(NamedTuple):
    """How an optimiser's state starts, and how it steps in place."""

    start: Callable[[Flat, Tree | None, int], Tree]
    update: Callable[[Flat, Flat, Flat, Training, Owners], None]


def start_adam(trained: Flat, saved: Tree | None = None, clients: int | None = None) -> Tree:
    """Returns Adam's state for some weights, as far as it was saved; a step count for every client."""
    saved = saved or Tree()
    any_leaf = next(iter(trained.values()))
    shape = (clients or len(any_leaf),)
    steps: Tensor = saved.steps if "steps" in saved else any_leaf.new_zeros(shape)
    check_shape("steps", steps, shape)
    return Tree(
        first=saved_or_zeros(trained, saved.get("first")),
        second=saved_or_zeros(trained, saved.get("second")),
        steps=steps,
    )


def update_adam(trained: Flat, gradients: Flat, state: Flat, training: Training, owners: Owners) -> None:
    """Adam (Kingma and Ba, ICLR 2015) with L2 weight decay, in a fused kernel."""
    steps = state["steps"]
    steps += 1
    moments = [[state[f"{moment}/{path}"] for path in gradients] for moment in ("first", "second")]
    tensors = [[trained[path] for path in gradients], list(gradients.values()), *moments]
    if steps.is_cuda and kernels.supports_adam(tensors[0]):
        steps_by_leaf = [owners.select(path, steps) for path in gradients]
        for leaf in zip(steps_by_leaf, *tensors, strict=True):
            kernels.adam(training.learning_rate, training.weight_decay, *leaf)
        return
    if steps.device.type == "cpu" and bool((steps == steps[0]).all()):
        counts = [steps[0]] * len(gradients)
    else:  # clients that missed rounds have counts of their own: each gets its own slices
        tensors = [[row for leaf in leaves for row in leaf.unbind(0)] for leaves in tensors]
        step_of = steps.unbind(0)
        counts = [step_of[client] for path in gradients for client in owners(path)]
    torch._fused_adam_(  # type: ignore[call-overload]
        *tensors,
        [],
        counts,
        lr=training.learning_rate,
        beta1=0.9,
        beta2=0.999,
        weight_decay=training.weight_decay,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def start_sgd(trained: Flat, saved: Tree | None, clients: int) -> Tree:  # noqa: ARG001
    """Returns the empty state of plain SGD."""
    return Tree()


def update_sgd(trained: Flat, gradients: Flat, state: Flat, training: Training, owners: Owners) -> None:  # noqa: ARG001
    for path, gradient in gradients.items():
        trained[path] -= training.learning_rate * (gradient + training.weight_decay * trained[path])


def start_momentum(trained: Flat, saved: Tree | None, clients: int) -> Tree:  # noqa: ARG001
    return Tree(velocity=saved_or_zeros(trained, (saved or Tree()).get("velocity")))


def update_momentum(
    trained: Flat,
    gradients: Flat,
    state: Flat,
    training: Training,
    owners: Owners,
) -> None:
    """SGD with Polyak's heavy ball (1964), in PyTorch's form and its fused kernel."""
    if not training.momentum:  # which that kernel wants no velocities for
        update_sgd(trained, gradients, state, training, owners)
        return
    torch._fused_sgd_(
        [trained[path] for path in gradients],
        list(gradients.values()),
        [state[f"velocity/{path}"] for path in gradients],
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


OPTIMIZERS = {
    "adam": Optimizer(start_adam, update_adam),
    "sgd": Optimizer(start_sgd, update_sgd),
    "momentum": Optimizer(start_momentum, update_momentum),
}


def saved_or_zeros(trained: Flat, saved: Tree | None) -> Tree:
    """Returns a moment of every weight: the saved one, or zeros for an architecture that has not trained yet.

    Fused kernels walk over raw memory, so a moment of another shape than its weight must be refused here.
    """
    moments = dict(flatten(saved or {}))
    for path in moments.keys() & trained.keys():
        check_shape(path, moments[path], trained[path].shape)
    if saved is not None and moments.keys() == trained.keys():
        return saved
    return unflatten({path: moments.get(path, torch.zeros_like(leaf)) for path, leaf in trained.items()})


def check_shape(path: str, leaf: Tensor, shape: tuple[int, ...]) -> None:
    """Refuses optimiser state that does not belong to the weights it is to train."""
    if tuple(leaf.shape) != tuple(shape):
        raise ValueError(f"the optimiser's state '{path}' has the shape {tuple(leaf.shape)}, not {tuple(shape)}")


def skip_without_gradient(update: Callable[..., Any], without_labels: Tensor) -> Callable[..., Any]:
    """Returns an update that leaves a client without labels as it is, moments included, where its gradient is zero.

    Without this, momentum and weight decay would still move the client, and Adam takes full steps after either.
    """

    def guarded(trained: Flat, gradients: Flat, state: Flat, training: Training, owners: Owners) -> None:
        nonzero = {path: leaf.reshape(len(leaf), -1).any(1) for path, leaf in gradients.items()}
        has_gradient = per_client(nonzero, owners).any(0) | ~without_labels
        skip_clients(update, ~has_gradient)(trained, gradients, state, training, owners)

    return guarded


def skip_clients(update: Callable[..., Any], skipped: Tensor) -> Callable[..., Any]:
    """Returns an update that leaves some clients, bool [clients], as they are, moments included."""

    def guarded(trained: Flat, gradients: Flat, state: Flat, training: Training, owners: Owners) -> None:
        with keeping({**trained, **state}, skipped, owners):
            update(trained, gradients, state, training, owners)

    return guarded


@contextmanager
def keeping(leaves: Flat, clients: Tensor, owners: Owners) -> Iterator[None]:
    """Puts back what some clients, bool [clients], had in these leaves, if that is changed in place meanwhile."""
    before = {path: leaf.clone() for path, leaf in leaves.items()}
    yield
    for path, leaf in leaves.items():
        leaf.copy_(torch.where(unsqueeze_to(owners.select(path, clients), leaf), before[path], leaf))


def clip_gradients(gradients: Flat, max_norm: float, owners: Owners) -> Flat:
    """Returns gradients whose norm, client by client and over all weights, is at most `max_norm`."""
    norms = {path: torch.linalg.vector_norm(leaf.reshape(len(leaf), -1), dim=1) for path, leaf in gradients.items()}
    norm = torch.linalg.vector_norm(per_client(norms, owners), dim=0)
    # An infinite gradient must not become a step of zero, which nobody would notice.
    scale = torch.where(norm.isfinite(), (max_norm / (norm + 1e-6)).clamp(max=1), torch.nan)
    return {path: leaf * unsqueeze_to(owners.select(path, scale), leaf) for path, leaf in gradients.items()}


def per_client(values: Flat, owners: Owners) -> Tensor:
    """Returns one number a leaf and client, [leaves, clients], zero where a client has no such leaf."""
    ranges = {path: owners(path) for path in values}
    rows = [
        functional.pad(leaf, (ranges[path].start, owners.clients - ranges[path].stop)) for path, leaf in values.items()
    ]
    return torch.stack(rows)
