"""What networks whose layers read edges have in common: the file of each has only its layers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class LayeredNetwork(nn.Module):
    """Layers with ReLU, dropout between them, then a linear classifier, or one more layer in its place."""

    __constants__ = ("conv_head", "jump")  # TorchScript compiles only the branches that these take
    jumping = True  # whether the maximum over all layers is classified, from a depth of 4 on

    def __init__(
        self,
        features: int,
        classes: int,
        depth: int = 2,
        width: int = 64,
        dropout: float = 0.5,
        head: str = "linear",
        **settings: Any,
    ) -> None:
        super().__init__()
        self.dropout, self.conv_head, self.jump = dropout, head == "conv", self.jumping and depth >= 4
        self.layers = nn.ModuleList(self.make_layers(features, width, depth, **settings))
        self.head: Any = self.make_head(width, classes, **settings) if self.conv_head else nn.Linear(width, classes)

    def make_layers(self, features: int, width: int, depth: int, **settings: Any) -> list[nn.Module]:
        """Returns the layers before the head; a head that is a layer counts as one of `depth`."""
        hidden = depth - 1 if self.conv_head else depth
        return [self.make_layer(width if index else features, width, **settings) for index in range(hidden)]

    def make_layer(self, inputs: int, outputs: int, **settings: Any) -> nn.Module:
        raise NotImplementedError

    def make_head(self, width: int, classes: int, **settings: Any) -> nn.Module:
        """Returns the layer in the place of the classifier."""
        return self.make_layer(width, classes, **settings)

    def embed(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Returns the embedding of every node, which the head classifies."""
        outputs: list[Tensor] = []
        hidden = x
        for layer in self.layers:
            if outputs:
                hidden = functional.dropout(hidden, self.dropout, self.training)
            hidden = layer(hidden, edge_index, edge_weight).relu()
            outputs.append(hidden)
        if self.jump:  # jumping knowledge (Xu et al., ICML 2018): the element-wise maximum over all layers
            hidden = torch.stack(outputs).amax(0)
        return hidden

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Returns the logits of every node; edges are given in both directions and without self-loops."""
        hidden = self.embed(x, edge_index, edge_weight)
        hidden = functional.dropout(hidden, self.dropout, self.training)
        if self.conv_head:
            return self.head(hidden, edge_index, edge_weight)
        return self.head(hidden)
