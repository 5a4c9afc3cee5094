"""Orthogonal graph convolutional network (Guo, Zhou, Hu, Li, Chang and Wang, AAAI 2022)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from graft.experiments.export.networks.layered import LayeredNetwork


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


class OrthoGCN(LayeredNetwork):
    """A graph convolution, `depth` orthogonal ones, then a linear classifier or one more convolution."""

    jumping = False

    def make_layers(
        self,
        features: int,
        width: int,
        depth: int,
        orthogonal: bool = True,
        newton_steps: int = 4,
        hybrid: float = 0.2,
        center: bool = False,
    ) -> list[nn.Module]:
        layers = [GCNConv(features, width)]
        for _ in range(depth):
            layer = GCNConv(width, width, bias=not orthogonal)
            if orthogonal:
                layer.lin = OrthogonalLinear(width, newton_steps, hybrid, center)
            layers.append(layer)
        return layers

    def make_head(self, width: int, classes: int, **settings: Any) -> nn.Module:
        return GCNConv(width, classes)
