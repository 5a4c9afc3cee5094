"""FedTAD's generator: features of synthetic nodes from their classes and noise."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from graft.models.architecture import Model, linear, start_linear
from graft.tensors.trees import Tree, Weights

HIDDEN = (64, 128, 256)  # widths of the hidden layers


@dataclass(frozen=True)
class Generator(Model):
    """A vector for every class, concatenated with noise, and four linear layers that give the features of a node."""

    features: int
    classes: int
    noise: int

    name = "generator"

    def start(self, generator: torch.Generator) -> Tree:
        weights = Tree(classes=torch.randn(self.classes, self.classes, generator=generator))
        widths = pairwise((self.classes + self.noise, *HIDDEN, self.features))
        for index, (inputs, outputs) in enumerate(widths):
            weights[f"layer{index}"] = start_linear(inputs, outputs, generator)
        return weights


def generate(weights: Weights, labels: Tensor, noise: Tensor) -> Tensor:
    """Features of synthetic nodes with the given labels, [nodes, features]."""
    hidden = torch.cat([weights["classes"][0][labels], noise], dim=1).unsqueeze(0)
    for index in range(len(HIDDEN)):
        hidden = torch.tanh(linear(hidden, weights[f"layer{index}"]))
    return linear(hidden, weights[f"layer{len(HIDDEN)}"]).squeeze(0)


def pseudo_labels(usable: Tensor, nodes: int) -> Tensor:
    """Labels of synthetic nodes, [nodes]: usable classes in equal numbers, the first ones with one more where that
    does not divide.

    The number of usable classes changes values, never shapes, so nothing is read back from the device.
    """
    classes = usable_first(usable)
    count = usable.sum().clamp(min=1)
    each, rest = nodes // count, nodes % count
    node = torch.arange(nodes, device=usable.device)
    within_larger = node // (each + 1)
    within_smaller = rest + (node - rest * (each + 1)) // each.clamp(min=1)
    return classes[torch.where(node < rest * (each + 1), within_larger, within_smaller)]


def drawn_labels(usable: Tensor, uniform: Tensor) -> Tensor:
    """Labels of synthetic nodes, [nodes]: for each a usable class, drawn by a number in [0, 1)."""
    place = (uniform * usable.sum().clamp(min=1)).long()
    return usable_first(usable)[place]


def usable_first(usable: Tensor) -> Tensor:
    """Returns all classes, the usable ones first."""
    return (~usable).to(torch.int8).argsort(stable=True)
