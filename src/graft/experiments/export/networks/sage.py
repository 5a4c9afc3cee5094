"""GraphSAGE with the mean aggregator (Hamilton, Ying and Leskovec, NeurIPS 2017)."""

import torch
from torch import Tensor, nn
from torch_geometric.nn import SimpleConv

from graft.experiments.export.networks.layered import LayeredNetwork

SMALLEST = torch.finfo(torch.float32).tiny


class MeanConv(nn.Module):
    """Linear maps of a node and of the mean of its neighbours: PyG's SAGEConv, with weights of edges."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.sum = SimpleConv(aggr="sum")
        self.neighbours = nn.Linear(inputs, outputs)
        self.own = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        amount = self.sum(torch.ones_like(x[:, :1]), edge_index, edge_weight)
        mean = self.sum(x, edge_index, edge_weight) / amount.clamp(min=SMALLEST)  # 0 for a node without neighbours
        return self.neighbours(mean) + self.own(x)


class SAGE(LayeredNetwork):
    """GraphSAGE layers, then a linear classifier, or one more layer in its place."""

    def make_layer(self, inputs: int, outputs: int) -> nn.Module:
        return MeanConv(inputs, outputs)
