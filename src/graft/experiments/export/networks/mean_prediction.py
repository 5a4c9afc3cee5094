"""Two networks that predict together."""

from math import log
from typing import Any

import torch
from torch import Tensor, nn


class MeanPrediction(nn.Module):
    """Predicts the mean of the probabilities of two networks; its logits are the logarithms of that."""

    __constants__ = ("weighted",)

    def __init__(self, first: nn.Module, second: nn.Module, weighted: tuple[bool, bool] = (True, True)) -> None:
        super().__init__()
        self.first, self.second, self.weighted = first, second, weighted  # whether each takes the weights of edges

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Returns the logits of every node; edges are given in both directions and without self-loops."""
        first = self.first(x, edge_index, edge_weight) if self.weighted[0] else self.first(x, edge_index)
        second = self.second(x, edge_index, edge_weight) if self.weighted[1] else self.second(x, edge_index)
        return torch.logaddexp(log_probabilities(first), log_probabilities(second)) - log(2.0)


def log_probabilities(output: Any) -> Tensor:
    """Returns those of a network that returns logits, or a pair of embedding and logits."""
    logits = output[1] if isinstance(output, tuple) else output
    return logits.log_softmax(1)
