"""Orthogonal graph convolutional network (Guo, Zhou, Hu, Li, Chang and Wang, AAAI 2022)."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv


class OrthogonalLinear(nn.Module):
    """A square matrix that is made orthogonal by Newton's iteration whenever it is applied."""

    def __init__(self, width: int, newton_steps: int, hybrid: float, center: bool) -> None:
        super().__init__()
        self.newton_steps, self.hybrid, self.center = newton_steps, hybrid, center
        self.weight = nn.Parameter(torch.eye(width))

    def forward(self, x: Tensor) -> Tensor:
        identity = torch.eye(self.weight.size(0), dtype=x.dtype, device=x.device)
        matrix = self.hybrid * self.weight + (1 - self.hybrid) * identity
        if self.center:
            matrix = matrix - matrix.mean(1, keepdim=True)
        matrix = matrix / (matrix.t() @ matrix).square().sum().sqrt().sqrt()
        for _ in range(self.newton_steps):
            matrix = 1.5 * matrix - 0.5 * matrix @ (matrix.t() @ matrix)
        return x @ matrix


class OrthoGCN(nn.Module):
    """A graph convolution, `depth` orthogonal ones, then a linear classifier or one more convolution."""

    conv_head: Final[bool]

    def __init__(
        self,
        features: int,
        classes: int,
        depth: int = 2,
        width: int = 64,
        dropout: float = 0.5,
        head: str = "linear",
        orthogonal: bool = True,
        newton_steps: int = 4,
        hybrid: float = 0.2,
        center: bool = False,
    ) -> None:
        super().__init__()
        self.dropout, self.conv_head = dropout, head == "conv"
        self.layers = nn.ModuleList([GCNConv(features, width)])
        for _ in range(depth):
            layer = GCNConv(width, width, bias=not orthogonal)
            if orthogonal:
                layer.lin = OrthogonalLinear(width, newton_steps, hybrid, center)
            self.layers.append(layer)
        self.head: Any = GCNConv(width, classes) if self.conv_head else nn.Linear(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Returns the logits of every node; edges are given in both directions and without self-loops."""
        hidden = x
        for layer in self.layers:
            hidden = layer(hidden, edge_index, edge_weight).relu()
            hidden = functional.dropout(hidden, self.dropout, self.training)
        if self.conv_head:
            return self.head(hidden, edge_index, edge_weight)
        return self.head(hidden)


def load(folder: str | Path | None = None) -> OrthoGCN:
    """Returns the trained model in a folder, that of this file if none is given, in evaluation mode."""
    place = Path(__file__).parent if folder is None else Path(folder)
    model = OrthoGCN(**json.loads((place / "config.json").read_text(encoding="utf-8"))["model"])
    model.load_state_dict(load_file(place / "model.safetensors"))
    return model.eval()
