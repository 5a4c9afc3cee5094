"""Topology adaptive graph convolution (Du, Zhang, Wu, Moura and Kar, 2017), as one layer without activation."""

from torch import Tensor, nn
from torch_geometric.nn import TAGConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from graft.experiments.export.networks.layered import LayeredNetwork


class HopsConv(nn.Module):
    """PyG's TAGConv, over edges and self-loops normalised by both degrees, as in GCN."""

    def __init__(self, inputs: int, outputs: int, steps: int) -> None:
        super().__init__()
        self.sum = TAGConv(inputs, outputs, K=steps, normalize=False)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        edges, weights = gcn_norm(edge_index, edge_weight, x.size(0), dtype=x.dtype)
        return self.sum(x, edges, weights)


class TAG(LayeredNetwork):
    """Linear maps of a node and of each step of propagation, then a linear classifier, or one more such layer."""

    def make_layers(self, features: int, width: int, depth: int) -> list[nn.Module]:
        return [HopsConv(features, width, depth - 1 if self.conv_head else depth)]

    def make_head(self, width: int, classes: int) -> nn.Module:
        return HopsConv(width, classes, 1)

    def embed(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Returns the embedding of every node, which has no activation."""
        return self.layers[0](x, edge_index, edge_weight)
