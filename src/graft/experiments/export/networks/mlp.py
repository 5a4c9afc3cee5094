"""Multilayer perceptron: it ignores the graph."""

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional


class MLP(nn.Module):
    """Linear layers over each node's own features."""

    jump: Final[bool]

    def __init__(
        self, features: int, classes: int, depth: int = 2, width: int = 64, dropout: float = 0.5, head: str = "linear"
    ) -> None:
        super().__init__()
        self.dropout, self.jump = dropout, depth >= 4
        hidden = depth - 1 if head == "conv" else depth
        self.layers = nn.ModuleList([nn.Linear(width if index else features, width) for index in range(hidden)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor | None = None, edge_weight: Tensor | None = None) -> Tensor:
        """Returns the logits of every node; edges may be given, and are not looked at."""
        outputs: list[Tensor] = []
        hidden = x
        for layer in self.layers:
            if outputs:
                hidden = functional.dropout(hidden, self.dropout, self.training)
            hidden = layer(hidden).relu()
            outputs.append(hidden)
        if self.jump:  # jumping knowledge (Xu et al., ICML 2018): the element-wise maximum over all layers
            hidden = torch.stack(outputs).amax(0)
        return self.head(functional.dropout(hidden, self.dropout, self.training))
