"""Simplified graph convolution (Wu et al., ICML 2019)."""

from torch import Tensor, nn
from torch_geometric.nn import SGConv

from graft.experiments.export.networks.layered import LayeredNetwork


class SGC(LayeredNetwork):
    """Steps of propagation and one linear map, then a linear classifier, before which may come the last step."""

    def make_layers(self, features: int, width: int, depth: int) -> list[nn.Module]:
        return [SGConv(features, width, K=depth - 1 if self.conv_head else depth)]

    def make_head(self, width: int, classes: int) -> nn.Module:
        return SGConv(width, classes, K=1)

    def embed(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Returns the embedding of every node, which has no activation."""
        return self.layers[0](x, edge_index, edge_weight)
