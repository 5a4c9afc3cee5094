"""Averages over clients, some of which stay near the honest clients whatever a few of the others send.

Median and trimmed mean: Yin, Chen, Ramchandran and Bartlett: Byzantine-robust distributed learning: towards optimal
statistical rates. ICML 2018. Krum: Blanchard, El Mhamdi, Guerraoui and Stainer: Machine learning with adversaries:
Byzantine tolerant gradient descent. NeurIPS 2017.

But for the mean they do not weigh clients by their votes, which a client says of itself: a client without a vote, that
has nothing to train on, does not count, and all others count alike. Nothing here reads a value back from a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graft.federation.average_names import MEAN, Average
from graft.tensors.trees import flatten, map_tree, unsqueeze_to, weighted_mean


def average(models: Any, weights: Tensor, how: Average = MEAN) -> Any:
    """Returns the average of stacked models over the client axis; integer leaves are the first client's.

    Where no client has a vote, all count.
    """
    if not how.robust:
        return weighted_mean(models, weights)
    counted = weights > 0
    return ROBUST[how.kind](models, counted | ~counted.any(), how.amount)


def median(models: Any, counted: Tensor, amount: float = 0.0) -> Any:  # noqa: ARG001
    """Returns the middle value of those that count, number by number; of two middle ones their mean."""
    count = counted.sum()
    middle = torch.stack([(count - 1) // 2, count // 2])
    return by_leaf(models, lambda leaf: 0.5 * in_order(leaf, counted).index_select(0, middle).sum(0))


def trimmed_mean(models: Any, counted: Tensor, share: float) -> Any:
    """Returns the mean of those that count, number by number, without the lowest and the highest share of them."""
    count = counted.sum()
    cut = torch.minimum((count * share + 1e-9).long(), (count - 1) // 2)  # as `count_cut`
    rank = torch.arange(len(counted), device=counted.device)
    kept = (rank >= cut) & (rank < count - cut)

    def mean(leaf: Tensor) -> Tensor:
        total: Tensor = in_order(leaf, counted).masked_fill(unsqueeze_to(~kept, leaf), 0).sum(0)
        return total / kept.sum().to(leaf)

    return by_leaf(models, mean)


def krum(models: Any, counted: Tensor, bad: float) -> Any:
    """Returns the model that is closest to the others, of which so many may be bad."""
    chosen = crowding(models, counted, int(bad)).argmin(0, keepdim=True)
    return by_leaf(models, lambda leaf: leaf.index_select(0, chosen)[0])


def multi_krum(models: Any, counted: Tensor, bad: float) -> Any:
    """Returns the mean of the models that are closest to the others: of all that count but so many."""
    rank = crowding(models, counted, int(bad)).argsort(stable=True).argsort()
    kept = rank < (counted.sum() - int(bad)).clamp(min=1)

    def mean(leaf: Tensor) -> Tensor:
        total: Tensor = leaf.masked_fill(unsqueeze_to(~kept, leaf), 0).sum(0)
        return total / kept.sum().to(leaf)

    return by_leaf(models, mean)


Robust = Callable[[Any, Tensor, float], Any]  # of stacked models, who counts, and the amount
ROBUST: dict[str, Robust] = {"median": median, "trimmed": trimmed_mean, "krum": krum, "multi_krum": multi_krum}


def by_leaf(models: Any, combine: Callable[[Tensor], Tensor]) -> Any:
    """Returns stacked models combined over the client axis, leaf by leaf; integer leaves are the first client's."""
    return map_tree(lambda leaf: combine(leaf) if leaf.is_floating_point() else leaf[0].clone(), models)


def in_order(leaf: Tensor, counted: Tensor) -> Tensor:
    """Returns the values of each number, the lowest first; what is not a number, or does not count, is last."""
    usable = unsqueeze_to(counted, leaf) & ~leaf.isnan()
    return leaf.masked_fill(~usable, float("inf")).sort(0).values


def crowding(models: Any, counted: Tensor, bad: int) -> Tensor:
    """Returns how far each client is from its neighbours: the sum of the squared distances to the nearest others, as
    many as all that count less the bad ones and two; infinite for those that do not count."""
    clients = len(counted)
    rows = [leaf.reshape(clients, -1).double() for _, leaf in flatten(models) if leaf.is_floating_point()]
    flat = torch.cat(rows, 1) if rows else torch.zeros(clients, 1, dtype=torch.float64, device=counted.device)
    products = flat @ flat.T
    squares = products.diagonal()
    distances = (squares.unsqueeze(1) + squares - 2 * products).clamp(min=0).nan_to_num(nan=torch.inf, posinf=torch.inf)
    itself = torch.eye(clients, dtype=torch.bool, device=counted.device)
    distances = distances.masked_fill(itself | ~counted, torch.inf).sort(1).values
    near = torch.arange(clients, device=counted.device) < (counted.sum() - bad - 2).clamp(min=1)
    score = distances.masked_fill(~near, 0).sum(1)
    worst = torch.finfo(score.dtype).max  # a client alone, or one whose numbers are none, is still before those others
    return score.clamp(max=worst).masked_fill(~counted, torch.inf)
