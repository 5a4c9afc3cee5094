"""The one training loop: a method changes the loss, never the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graft.tensors.trees import Owners, Tree, Weights, flatten, map_tree, unflatten
from graft.training.optimizers import (
    OPTIMIZERS,
    Flat,
    Training,
    clip_gradients,
    keeping,
    skip_clients,
    skip_without_gradient,
)

Loss = Callable[[Tree, Any], Tensor]  # of all parts by name, and of the batch; one number a client


@dataclass(frozen=True)
class Part:
    """One model in training: its stacked weights, its loss and its optimiser."""

    weights: Weights
    loss: Loss
    state: Tree | None = None  # of the optimiser, None before its first step
    frozen: frozenset[str] = frozenset()  # paths that are not trained
    training: Training | None = None  # how its optimiser steps, where not as all others; epochs are those of all


class Turn(NamedTuple):
    """One step of an epoch: what the losses are given as their batch."""

    batch: Any
    without_labels: Tensor | None = None  # bool [clients]: who has no training node in it; None: nobody


class Fitted(NamedTuple):
    """What training returns, part by part."""

    weights: Tree
    states: Tree  # of the optimisers
    losses: dict[str, Tensor]  # each client's last, a mean over the batches of its last epoch


def full_batch(epoch: int) -> Iterable[Turn]:  # noqa: ARG001
    """Yields the one turn of an epoch on all nodes, for losses that have no batch."""
    return (Turn(None),)


def fit(
    parts: dict[str, Part],
    training: Training,
    turns: Callable[[int], Iterable[Turn]] = full_batch,
    owners: Owners | None = None,
    epochs: Tensor | None = None,
    *,
    simultaneous: bool = False,
) -> Fitted:
    """Trains for a few epochs.

    In every turn each part takes one step, against the others as they are by then or, if steps are simultaneous, as
    they were before the turn. A loss returns one number a client: their sum gives every client exactly its own
    gradient, and all optimisers work element by element, so a fleet trains as its clients would alone. `owners` are the
    clients that have rows in a leaf, where not all do. `epochs`, int64 [clients], is after how many of them each client
    is done, where they differ in that.
    """
    owners = owners or Owners(len(next(leaf for part in parts.values() for _, leaf in flatten(part.weights))))
    models = {name: _Model(part, part.training or training, owners) for name, part in parts.items()}
    tree = Tree({name: model.weights for name, model in models.items()})
    groups = [list(models)] if simultaneous else [[name] for name in models]
    losses: dict[str, Tensor] = {}
    for epoch in range(training.epochs):
        by_turn: dict[str, list[Tensor]] = {name: [] for name in parts}
        done = None if epochs is None or not epoch else epochs <= epoch  # nobody is in the first
        for turn in turns(epoch):
            for group in groups:
                differentiated = {name: models[name].differentiate(tree, turn, done) for name in group}
                for name in group:
                    loss, gradients = differentiated.pop(name)
                    models[name].step(gradients, turn, done)
                    by_turn[name].append(loss)
                    del gradients
        last = {name: mean_loss(values) for name, values in by_turn.items()}
        losses = last if done is None else {name: torch.where(done, losses[name], last[name]) for name in last}
    states = Tree({name: model.state for name, model in models.items()})
    return Fitted(map_tree(Tensor.detach, tree), states, losses)


class _Model:
    """A part while it trains: copies of its weights that want gradients, and its optimiser's state."""

    def __init__(self, part: Part, training: Training, owners: Owners) -> None:
        self._part, self._training, self._owners = part, training, owners
        self._optimizer = OPTIMIZERS[training.optimizer]
        # Fused kernels walk over raw memory, so weights and gradients must be contiguous.
        self._all = flat = {
            path: leaf.detach().clone(memory_format=torch.contiguous_format) for path, leaf in flatten(part.weights)
        }
        floating = {path: leaf for path, leaf in flat.items() if leaf.is_floating_point()}
        self._trained = {path: leaf.requires_grad_() for path, leaf in floating.items() if path not in part.frozen}
        saved = part.state if training.optimizer_state == "persistent" else None
        self.weights = unflatten(flat)
        self.state = self._optimizer.start(self._trained, saved, owners.clients)
        self._flat_state: Flat = dict(flatten(self.state))

    def differentiate(self, models: Tree, turn: Turn, done: Tensor | None = None) -> tuple[Tensor, Flat]:
        """Returns each client's loss of all models, and its gradient by the path of the weight."""
        losses = self._loss(models, turn.batch, done)
        gradients = torch.autograd.grad(losses.sum(), list(self._trained.values()), allow_unused=True)
        by_path = zip(self._trained, gradients, strict=True)
        return losses.detach(), {path: gradient.contiguous() for path, gradient in by_path if gradient is not None}

    @torch.no_grad()
    def step(self, gradients: Flat, turn: Turn, done: Tensor | None = None) -> None:
        """Takes one step along the gradients, but for clients that are done."""
        if self._training.clip_norm:
            gradients = clip_gradients(gradients, self._training.clip_norm, self._owners)
        update = self._optimizer.update
        if turn.without_labels is not None:
            update = skip_without_gradient(update, turn.without_labels)
        if done is not None:
            update = skip_clients(update, done)
        update(self._trained, gradients, self._flat_state, self._training, self._owners)

    def _loss(self, models: Tree, batch: Any, done: Tensor | None) -> Tensor:
        """Returns each client's loss; buffers, which it may update, stay as they are for clients that are done."""
        if done is None:
            return self._part.loss(models, batch)
        buffers = {path: leaf for path, leaf in self._all.items() if path not in self._trained}
        with torch.no_grad(), keeping(buffers, done, self._owners), torch.enable_grad():
            return self._part.loss(models, batch)


def mean_loss(losses: list[Tensor]) -> Tensor:
    """Returns the mean over the turns of an epoch."""
    return losses[0] if len(losses) == 1 else torch.stack(losses).mean(0)
