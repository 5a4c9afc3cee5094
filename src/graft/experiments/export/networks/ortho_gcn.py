"""Orthogonal graph convolutional network (Guo, Zhou, Hu, Li, Chang and Wang, AAAI 2022)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from graft.experiments.export.networks.layered import LayeredNetwork


class OrthogonalLinear(nn.Module):
    """A square matrix that is made orthogonal by Newton's iteration whenever it is applied."""

    def __init__(self, width: int, newton_steps: int, hybrid: float, center: bool, bound: str) -> None:
        super().__init__()
        self.newton_steps, self.hybrid, self.center, self.gram = newton_steps, hybrid, center, bound == "gram"
        self.weight = nn.Parameter(torch.eye(width))

    def forward(self, x: Tensor) -> Tensor:
        identity = torch.eye(self.weight.size(0), dtype=x.dtype, device=x.device)
        matrix = self.hybrid * self.weight + (1 - self.hybrid) * identity
        if self.center:
            matrix = matrix - matrix.mean(1, keepdim=True)
        if self.gram:
            matrix = matrix / (matrix.t() @ matrix).square().sum().sqrt().sqrt()
        else:
            matrix = matrix / matrix.square().sum().sqrt()
        for _ in range(self.newton_steps):
            matrix = 1.5 * matrix - 0.5 * matrix @ (matrix.t() @ matrix)
        return x @ matrix


class OrthogonalLayer(nn.Module):
    """An orthogonal layer that does not propagate along edges."""

    def __init__(self, lin: OrthogonalLinear) -> None:
        super().__init__()
        self.lin = lin

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.lin(x)


class ScaleFreeConv(GCNConv):  # type: ignore[misc]  # PyG has no types
    """A graph convolution whose rows are divided by their root mean square before the bias is added."""

    def update(self, inputs: Tensor) -> Tensor:
        return inputs * inputs.square().mean(1, keepdim=True).clamp(min=1e-12).rsqrt()


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
        scale_free: bool = False,
        newton_bound: str = "gram",
        propagated: bool = True,
    ) -> list[nn.Module]:
        layers: list[nn.Module] = [(ScaleFreeConv if scale_free else GCNConv)(features, width)]
        for _ in range(depth):
            layer = GCNConv(width, width, bias=not orthogonal)
            if orthogonal:
                layer.lin = OrthogonalLinear(width, newton_steps, hybrid, center, newton_bound)
            layers.append(layer if propagated or not orthogonal else OrthogonalLayer(layer.lin))
        return layers

    def make_head(self, width: int, classes: int, **settings: Any) -> nn.Module:
        return GCNConv(width, classes)
