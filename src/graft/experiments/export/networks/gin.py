"""Graph isomorphism network (Xu et al., ICLR 2019), with layer normalisation, for nodes."""

from torch import Tensor, nn
from torch_geometric.nn import SimpleConv

from graft.experiments.export.networks.layered import LayeredNetwork


class SumConv(nn.Module):
    """A perceptron of the sum of a node and its neighbours: PyG's GINConv, with weights of edges."""

    def __init__(self, inputs: int, width: int, outputs: int, normalise: bool) -> None:
        super().__init__()
        self.sum = SimpleConv(aggr="sum")
        self.first = nn.Linear(inputs, width)
        self.norm = nn.LayerNorm(width) if normalise else nn.Identity()
        self.second = nn.Linear(width, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        total = x + self.sum(x, edge_index, edge_weight)
        return self.second(self.norm(self.first(total)).relu())


class GIN(LayeredNetwork):
    """Sums over neighbours through perceptrons, then a linear classifier, or one more such layer in its place."""

    def make_layer(self, inputs: int, outputs: int, normalise: bool = True) -> nn.Module:
        return SumConv(inputs, outputs, outputs, normalise)

    def make_head(self, width: int, classes: int, normalise: bool = True) -> nn.Module:
        return SumConv(width, width, classes, normalise)
