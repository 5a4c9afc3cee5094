"""Sets of classes that hold the true one with a given probability (regularised adaptive prediction sets; Angelopoulos,
Bates, Malik and Jordan, ICLR 2021), and what a private model learns from a proxy's (FedType; Wang, Zhao, Lyu, You,
Huai and Ma, ICML 2024)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from graft.training.losses import log_softmax

COLDEST, HOTTEST, HALVINGS = 0.05, 20.0, 20  # bounds of the temperature, and how often the interval is halved
DECIMALS = 4  # that scores are compared to: most are near 0 or 1, where rounding would decide


class Calibration(NamedTuple):
    """How the logits of a model become sets of classes."""

    sharpness: Tensor  # [clients]: what logits are multiplied by, the inverse of a temperature
    penalties: Tensor  # [clients, classes]: of the first class, the second and so on, in the order of probability
    threshold: Tensor  # [clients]: the largest score of a class in the set


def calibrate(
    logits: Tensor, classes: Tensor, nodes: Tensor, draws: Tensor, *, error: float, penalty: Tensor, free: int
) -> Calibration:
    """Returns what makes sets miss the true class at a share `error` of some nodes, [clients, nodes].

    The penalty [clients] is of every place beyond `free`, or beyond the last but one where there are fewer classes. A
    client without such nodes takes the nominal threshold, and its logits as they are.
    """
    count = nodes.sum(1)
    place = torch.arange(logits.shape[2], device=logits.device)
    penalties = penalty.unsqueeze(1) * (place + 1 - min(free, logits.shape[2] - 1)).clamp(min=0)
    sharpness = torch.where(count > 0, best_sharpness(logits, classes, nodes), 1.0)
    scores, order = class_scores(logits, draws, sharpness, penalties)
    of_classes = torch.empty_like(scores).scatter(2, order, scores)
    own = of_classes.gather(2, classes.unsqueeze(2)).squeeze(2).masked_fill(~nodes, torch.inf)
    position = ((1 - error) * (count - 1) - 1e-6).ceil().long().clamp(min=0)
    quantile = own.sort(1).values.gather(1, position.unsqueeze(1)).squeeze(1)
    return Calibration(sharpness, penalties, torch.where(count > 0, quantile, 1 - error))


def best_sharpness(logits: Tensor, classes: Tensor, nodes: Tensor) -> Tensor:
    """Returns the factor of the logits with the least cross-entropy at some nodes, [clients]: that is convex in the
    factor, so the sign of its slope says on which side the factor is."""
    low = logits.new_full(logits.shape[:1], HOTTEST).reciprocal().log()
    high = logits.new_full(logits.shape[:1], COLDEST).reciprocal().log()
    at_class = logits.gather(2, classes.unsqueeze(2)).squeeze(2)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        expected = (log_softmax(logits * middle.exp().view(-1, 1, 1)).exp() * logits).sum(2)
        too_sharp = ((expected - at_class) * nodes).sum(1) > 0
        low, high = torch.where(too_sharp, low, middle), torch.where(too_sharp, middle, high)
    return ((low + high) / 2).exp()


def class_scores(logits: Tensor, draws: Tensor, sharpness: Tensor, penalties: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the scores of the classes of every node, the most probable first, and these classes in that order.

    A score is the probability of all classes before, a random share `draws` [clients, nodes] of the own one, and the
    penalties of all up to its place.
    """
    probabilities = log_softmax(logits * sharpness.view(-1, 1, 1)).exp()
    ordered, order = probabilities.sort(dim=2, descending=True, stable=True)
    before = ordered.cumsum(2) - ordered
    scores = before + draws.unsqueeze(2) * ordered + penalties.unsqueeze(1)
    return scores.mul(10**DECIMALS).round().div(10**DECIMALS), order


def prediction_sets(logits: Tensor, draws: Tensor, calibration: Calibration) -> Tensor:
    """Returns which classes are in the set of every node, bool [clients, nodes, classes]: the most probable one
    always."""
    sharpness, penalties, threshold = calibration
    scores, order = class_scores(logits, draws, sharpness, penalties)
    inside = scores <= threshold.view(-1, 1, 1)
    first = torch.arange(logits.shape[2], device=logits.device) == 0
    return torch.empty_like(inside).scatter(2, order, inside | first)


def transfer_weights(proxy: Tensor, private: Tensor) -> Tensor:
    """Returns how much a node of two sets is taught, [clients, nodes]: the share of what they have in common, in both
    together where the private model is at least as sure as the proxy, and in the proxy's set otherwise."""
    common, either = (proxy & private).sum(2), (proxy | private).sum(2)
    sizes, own = proxy.sum(2), private.sum(2)
    return torch.where(own <= sizes, common / either, common / sizes)


def ranking_loss(logits: Tensor, inside: Tensor) -> Tensor:
    """Returns, node by node, the mean of relu(z_b - z_a) over all pairs of a class a of the set and another class b
    outside of it; 0 where the set holds all classes."""
    ordered, order = logits.sort(dim=2)
    member = inside.gather(2, order).to(logits)
    # Sorted, the members below a class are those before it: their number and their sum replace all pairs.
    above = (ordered * member.cumsum(2) - (member * ordered).cumsum(2)) * (1 - member)
    pairs = inside.sum(2) * (~inside).sum(2)
    return above.sum(2) / pairs.clamp(min=1)
