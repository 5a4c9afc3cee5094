"""Graph convolutional network (Kipf and Welling, ICLR 2017)."""

from torch import nn
from torch_geometric.nn import GCNConv

from graft.experiments.export.networks.layered import LayeredNetwork


class GCN(LayeredNetwork):
    """Graph convolutions, then a linear classifier, or one more convolution in its place."""

    def make_layer(self, inputs: int, outputs: int) -> nn.Module:
        return GCNConv(inputs, outputs)
