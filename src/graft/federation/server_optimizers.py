"""Steps of a server from its model towards the average of its clients'.

FedAvgM, `momentum`: Hsu, Qi and Brown: Measuring the effects of non-identical data distribution for federated visual
classification. arXiv 1909.06335, 2019. FedAdagrad, FedYogi and FedAdam: Reddi, Charles, Zaheer, Garrett, Rush, Konecny,
Kumar and McMahan: Adaptive federated optimization. ICLR 2021.

The average less the model of before takes the place of a gradient's negative. Every number is stepped alone, and
nothing here reads a value back from a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from graft.federation.server_optimizer_names import ServerOptimizer
from graft.tensors.trees import Tree, Weights, flatten, map_tree, trainable, unflatten


class Move(NamedTuple):
    """One leaf after a step: its new value, and its moments by name."""

    leaf: Tensor
    moments: dict[str, Tensor]


def start_moments(how: ServerOptimizer, model: Weights, frozen: frozenset[str]) -> Tree:
    """Returns the moments of an averaged model before its first step; none with plain SGD."""
    starts: dict[str, float] = dict.fromkeys(MOMENTS[how.name], 0.0)
    if "square" in starts:
        starts["square"] = how.tau**2  # as the paper has it: a first step is of the size of those that follow
    trained = trainable(model, frozen)
    return Tree({name: map_tree(partial(torch.full_like, fill_value=start), trained) for name, start in starts.items()})


def step(
    how: ServerOptimizer, before: Weights, average: Weights, moments: Weights, frozen: frozenset[str]
) -> tuple[Tree, Tree]:
    """Returns the server's next model and moments; buffers and integers are those of the average."""
    start, by_name = dict(flatten(before)), {name: dict(flatten(moments[name])) for name in MOMENTS[how.name]}
    model, after = dict(flatten(average)), {name: dict[str, Tensor]() for name in by_name}
    for path, end in flatten(trainable(average, frozen)):
        moved = STEPS[how.name](how, start[path], end, **{name: leaves[path] for name, leaves in by_name.items()})
        model[path] = moved.leaf
        for name, leaf in moved.moments.items():
            after[name][path] = leaf
    return unflatten(model), Tree({name: unflatten(leaves) for name, leaves in after.items()})


def step_sgd(how: ServerOptimizer, start: Tensor, end: Tensor) -> Move:
    return Move(torch.lerp(start, end, how.rate), {})  # with a rate of 1 the average itself, bit for bit


def step_momentum(how: ServerOptimizer, start: Tensor, end: Tensor, velocity: Tensor) -> Move:
    velocity = how.momentum * velocity + (end - start)
    return Move(start + how.rate * velocity, {"velocity": velocity})


def step_adam(how: ServerOptimizer, start: Tensor, end: Tensor, direction: Tensor, square: Tensor) -> Move:
    return adaptive(how, start, end, direction, how.beta2 * square + (1 - how.beta2) * (end - start).square())


def step_yogi(how: ServerOptimizer, start: Tensor, end: Tensor, direction: Tensor, square: Tensor) -> Move:
    update = (end - start).square()
    return adaptive(how, start, end, direction, square - (1 - how.beta2) * update * (square - update).sign())


def step_adagrad(how: ServerOptimizer, start: Tensor, end: Tensor, direction: Tensor, square: Tensor) -> Move:
    return adaptive(how, start, end, direction, square + (end - start).square())


def adaptive(how: ServerOptimizer, start: Tensor, end: Tensor, direction: Tensor, square: Tensor) -> Move:
    """A step along the mean direction, over the root of the new mean square; no bias is corrected."""
    direction = how.momentum * direction + (1 - how.momentum) * (end - start)
    moved = start + how.rate * direction / (square.sqrt() + how.tau)
    return Move(moved, {"direction": direction, "square": square})


STEPS: dict[str, Callable[..., Move]] = {
    "sgd": step_sgd,
    "momentum": step_momentum,
    "adam": step_adam,
    "yogi": step_yogi,
    "adagrad": step_adagrad,
}
ADAPTIVE = ("direction", "square")
MOMENTS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("velocity",),
    "adam": ADAPTIVE,
    "yogi": ADAPTIVE,
    "adagrad": ADAPTIVE,
}
