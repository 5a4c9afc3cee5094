"""Simplified graph convolution (Wu et al., ICML 2019)."""

import json
from pathlib import Path
from typing import Any, Final

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SGConv


class SGC(nn.Module):
    """Steps of propagation and one linear map, then a linear classifier, before which may come the last step."""

    conv_head: Final[bool]

    def __init__(
        self, features: int, classes: int, depth: int = 2, width: int = 64, dropout: float = 0.5, head: str = "linear"
    ) -> None:
        super().__init__()
        self.dropout, self.conv_head = dropout, head == "conv"
        self.layers = nn.ModuleList([SGConv(features, width, K=depth - 1 if self.conv_head else depth)])
        self.head: Any = SGConv(width, classes, K=1) if self.conv_head else nn.Linear(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Returns the logits of every node; edges are given in both directions and without self-loops."""
        hidden = x
        for layer in self.layers:
            hidden = layer(hidden, edge_index, edge_weight)
        hidden = functional.dropout(hidden, self.dropout, self.training)
        if self.conv_head:
            return self.head(hidden, edge_index, edge_weight)
        return self.head(hidden)


def load(folder: str | Path | None = None) -> SGC:
    """Returns the trained model in a folder, that of this file if none is given, in evaluation mode."""
    place = Path(__file__).parent if folder is None else Path(folder)
    model = SGC(**json.loads((place / "config.json").read_text(encoding="utf-8"))["model"])
    model.load_state_dict(load_file(place / "model.safetensors"))
    return model.eval()
