"""The one training loop: a method changes the loss, never the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from graft.tensors import kernels
from graft.tensors.trees import Owners, Tree, Weights, flatten, map_tree, unflatten, unsqueeze_to


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
    clip: float = 0.0  # the greatest norm that a client's gradient may have; 0 leaves it as it is
    batches: int = 1  # how many steps an epoch takes, each on another part of the nodes; 1 is full batch

    @property
    def steps(self) -> int:
        """How many steps a round takes."""
        return self.epochs * self.batches


@dataclass(frozen=True)
class Part:
    """One model in training: its stacked weights, its loss and its optimiser."""

    weights: Weights
    loss: Callable[[Tree], Tensor]  # of all parts, by name; gives one number a client
    state: Tree | None = None  # of the optimiser, None before its first step
    frozen: frozenset[str] = frozenset()  # paths that are not trained


Flat = dict[str, Tensor]  # the leaves of a tree by their paths


def full_batch(epoch: int) -> Iterable[bool]:  # noqa: ARG001
    """One turn an epoch, on all nodes."""
    return (False,)


def fit(
    parts: dict[str, Part],
    training: Training,
    turns: Callable[[int], Iterable[bool]] = full_batch,
    owners: Owners | None = None,
) -> tuple[Tree, Tree, dict[str, Tensor]]:
    """Train for a few epochs; returns weights, optimiser states and each client's last losses, part by part.

    In every epoch each part takes one step in turn, against the others as they are by then. A loss returns one
    number a client: their sum gives every client exactly its own gradient, and all optimisers work element by
    element, so a fleet trains as its clients would alone.

    `turns` are those of an epoch: before each the data may change that the losses see, and it is true where some
    client may have nothing to learn from them. `owners` are the clients that have rows in a leaf, where not all do.
    """
    start, update = OPTIMIZERS[training.optimizer]
    owners = owners or Owners(len(next(leaf for part in parts.values() for _, leaf in flatten(part.weights))))
    tree, states, last = Tree(), Tree(), {}
    trained: dict[str, Flat] = {}
    memory: dict[str, Flat] = {}
    for name, part in parts.items():
        # The fused kernels walk over raw memory, so weights and gradients must be laid out plainly.
        flat = {
            path: leaf.detach().clone(memory_format=torch.contiguous_format) for path, leaf in flatten(part.weights)
        }
        floating = {path: leaf for path, leaf in flat.items() if leaf.is_floating_point()}
        trained[name] = {path: leaf.requires_grad_() for path, leaf in floating.items() if path not in part.frozen}
        known = part.state if training.optimizer_state == "persistent" else None
        tree[name], states[name] = unflatten(flat), start(trained[name], known, owners.clients)
        memory[name] = dict(flatten(states[name]))
    for epoch in range(training.epochs):
        seen: dict[str, list[Tensor]] = {name: [] for name in parts}
        for doubtful in turns(epoch):
            for name, part in parts.items():
                values = part.loss(tree)
                gradients = torch.autograd.grad(values.sum(), list(trained[name].values()), allow_unused=True)
                found = zip(trained[name], gradients, strict=True)
                used = {path: gradient.contiguous() for path, gradient in found if gradient is not None}
                with torch.no_grad():
                    if training.clip:
                        used = clip_gradients(used, training.clip, owners)
                    take = skip_without_gradient(update) if doubtful else update
                    take(trained[name], used, memory[name], training, owners)
                seen[name].append(values.detach())
                del values, gradients, found, used  # or the next step would hold two sets of gradients
        last = {name: mean_loss(losses) for name, losses in seen.items()}
    return map_tree(Tensor.detach, tree), states, last


def mean_loss(losses: list[Tensor]) -> Tensor:
    return losses[0] if len(losses) == 1 else torch.stack(losses).mean(0)


def skip_without_gradient(update: Callable[..., Any]) -> Callable[..., Any]:
    """An optimiser that leaves a client as it is, moments and all, where its loss says nothing.

    Without this, momentum and weight decay would still move the client, and Adam takes full steps after either.
    """

    def careful(trained: Flat, gradients: Flat, memory: Flat, training: Training, owners: Owners) -> None:
        found = {path: leaf.reshape(len(leaf), -1).any(1) for path, leaf in gradients.items()}
        told = per_client(found, owners).any(0)
        changing = [*trained.items(), *memory.items()]
        before = [leaf.clone() for _, leaf in changing]
        update(trained, gradients, memory, training, owners)
        for (path, leaf), old in zip(changing, before, strict=True):
            leaf.copy_(torch.where(unsqueeze_to(owners.of(path, told), leaf), leaf, old))

    return careful


def clip_gradients(gradients: Flat, most: float, owners: Owners) -> Flat:
    """Gradients whose norm, client by client and over all weights, is no greater than this."""
    squares = {path: leaf.reshape(len(leaf), -1).square().sum(1) for path, leaf in gradients.items()}
    scale = (most / (per_client(squares, owners).sum(0).sqrt() + 1e-6)).clamp(max=1)
    return {path: leaf * unsqueeze_to(owners.of(path, scale), leaf) for path, leaf in gradients.items()}


def per_client(values: Flat, owners: Owners) -> Tensor:
    """One number a leaf and client, [leaves, clients], with zeros where a client has no such leaf."""
    mine = {path: owners(path) for path in values}
    rows = [functional.pad(leaf, (mine[path].start, owners.clients - mine[path].stop)) for path, leaf in values.items()]
    return torch.stack(rows)


def restored_moments(trained: Flat, known: Tree | None) -> Tree:
    """What an optimiser remembers of every weight; of a kind of model that has not trained yet, nothing."""
    old = dict(flatten(known or {}))
    if known is not None and old.keys() == trained.keys():
        return known
    return unflatten({path: old[path] if path in old else torch.zeros_like(leaf) for path, leaf in trained.items()})


def start_adam(trained: Flat, known: Tree | None = None, clients: int | None = None) -> Tree:
    known = known or Tree()
    any_leaf = next(iter(trained.values()))
    steps = known.get("steps")
    return Tree(
        first=restored_moments(trained, known.get("first")),
        second=restored_moments(trained, known.get("second")),
        steps=any_leaf.new_zeros(clients or len(any_leaf)) if steps is None else steps,
    )


def update_adam(trained: Flat, gradients: Flat, memory: Flat, training: Training, owners: Owners) -> None:
    """Adam (Kingma and Ba, ICLR 2015) with L2 weight decay, in a kernel that does it all."""
    steps = memory["steps"]
    steps += 1
    moments = [[memory[f"{moment}/{path}"] for path in gradients] for moment in ("first", "second")]
    parts = [[trained[path] for path in gradients], list(gradients.values()), *moments]
    if steps.is_cuda and kernels.supports_adam(parts[0]):
        rates = training.learning_rate, training.weight_decay
        taken = [owners.of(path, steps) for path in gradients]
        for leaf in zip(taken, *parts, strict=True):
            kernels.adam(*rates, *leaf)
        return
    if steps.device.type == "cpu" and bool((steps == steps[0]).all()):
        counts = [steps[0]] * len(gradients)
    else:  # clients that missed rounds have counts of their own: each gets its own slices
        parts = [[piece for leaf in part for piece in leaf.unbind(0)] for part in parts]
        apiece = steps.unbind(0)
        counts = [apiece[client] for path in gradients for client in owners(path)]
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


def start_sgd(trained: Flat, known: Tree | None, clients: int) -> Tree:  # noqa: ARG001
    return Tree()


def update_sgd(trained: Flat, gradients: Flat, memory: Flat, training: Training, owners: Owners) -> None:  # noqa: ARG001
    for path, gradient in gradients.items():
        trained[path] -= training.learning_rate * (gradient + training.weight_decay * trained[path])


def start_momentum(trained: Flat, known: Tree | None, clients: int) -> Tree:  # noqa: ARG001
    return Tree(velocity=restored_moments(trained, (known or Tree()).get("velocity")))


def update_momentum(trained: Flat, gradients: Flat, memory: Flat, training: Training, owners: Owners) -> None:  # noqa: ARG001
    """SGD that rolls on (Polyak's heavy ball, 1964), in PyTorch's form."""
    for path, gradient in gradients.items():
        velocity = memory[f"velocity/{path}"]
        velocity.mul_(training.momentum).add_(gradient + training.weight_decay * trained[path])
        trained[path] -= training.learning_rate * velocity


OPTIMIZERS: dict[str, tuple[Callable[..., Tree], Callable[..., Any]]] = {
    "adam": (start_adam, update_adam),
    "sgd": (start_sgd, update_sgd),
    "momentum": (start_momentum, update_momentum),
}
