"""The one training loop: a method changes the loss, never the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from graft.weights import Tree, Weights, grow, leaves, map_tree


@dataclass(frozen=True)
class Training:
    """How a client trains."""

    epochs: int = 3  # full-batch steps a round
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    optimizer_state: Literal["persistent", "reset"] = "persistent"  # kept over rounds, or new in each
    weight_by: Literal["nodes", "train", "uniform"] = "nodes"  # what a client's vote in an average counts


def fit(
    weights: Weights,
    loss: Callable[[Tree], Tensor],
    training: Training,
    state: Tree | None,
    *,
    frozen: frozenset[str] = frozenset(),
) -> tuple[Tree, Tree, Tensor]:
    """Train stacked weights for a few epochs; returns weights, optimiser state and each client's last loss.

    The loss returns one number a client. Their sum gives every client exactly its own gradient, and both
    optimisers work element by element, so a fleet trains as its clients would alone.
    """
    flat = {path: leaf.detach().clone(memory_format=torch.contiguous_format) for path, leaf in leaves(weights)}
    trained = {path: leaf for path, leaf in flat.items() if leaf.is_floating_point() and path not in frozen}
    for leaf in trained.values():
        leaf.requires_grad_()
    tree = grow(flat)
    start, update = OPTIMIZERS[training.optimizer]
    if state is None or training.optimizer_state == "reset":
        state = start(trained)
    clients = len(next(iter(flat.values())))
    last = torch.zeros(clients)
    for _ in range(training.epochs):
        values = loss(tree)
        gradients = torch.autograd.grad(values.sum(), list(trained.values()), allow_unused=True)
        # The fused kernel walks over raw memory: a gradient that is a slice of another must be laid out anew.
        used = {path: part.contiguous() for path, part in zip(trained, gradients, strict=True) if part is not None}
        with torch.no_grad():
            update(trained, used, state, training)
        last = values.detach()
        del values, gradients, used  # or the next epoch would hold two sets of gradients
    return map_tree(Tensor.detach, tree), state, last


def start_adam(trained: dict[str, Tensor]) -> Tree:
    first, second = (grow({path: torch.zeros_like(leaf) for path, leaf in trained.items()}) for _ in range(2))
    any_leaf = next(iter(trained.values()))
    return Tree(first=first, second=second, steps=any_leaf.new_zeros(len(any_leaf)))


def update_adam(trained: dict[str, Tensor], gradients: dict[str, Tensor], state: Tree, training: Training) -> None:
    """Adam (Kingma and Ba, ICLR 2015) with L2 weight decay, in PyTorch's fused kernel."""
    first, second, steps = dict(leaves(state.first)), dict(leaves(state.second)), state.steps
    steps += 1
    parts = [[tree[path] for path in gradients] for tree in (trained, gradients, first, second)]
    if steps.device.type == "cpu" and bool((steps == steps[0]).all()):
        counts = [steps[0]] * len(gradients)
    else:  # clients that missed rounds have counts of their own: each gets its own slices
        parts = [[piece for leaf in part for piece in leaf.unbind(0)] for part in parts]
        counts = [count for _ in gradients for count in steps.unbind(0)]
    torch._fused_adam_(  # type: ignore[call-overload]
        *parts,
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


def start_sgd(trained: dict[str, Tensor]) -> Tree:  # noqa: ARG001
    return Tree()


def update_sgd(
    trained: dict[str, Tensor],
    gradients: dict[str, Tensor],
    state: Tree,  # noqa: ARG001
    training: Training,
) -> None:
    for path, gradient in gradients.items():
        trained[path] -= training.learning_rate * (gradient + training.weight_decay * trained[path])


OPTIMIZERS: dict[str, tuple[Callable[..., Tree], Callable[..., Any]]] = {
    "adam": (start_adam, update_adam),
    "sgd": (start_sgd, update_sgd),
}
