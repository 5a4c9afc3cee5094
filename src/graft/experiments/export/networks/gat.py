"""Graph attention network (Velickovic et al., ICLR 2018)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.utils import scatter, softmax

from graft.experiments.export.networks.layered import LayeredNetwork


class AttentionConv(nn.Module):
    """Averages neighbours and the node itself by attention: PyG's GATConv, with weights of edges.

    Shares are proportional to the weight of an edge times the exponential of its score; a self-loop has weight 1.
    """

    def __init__(self, inputs: int, outputs: int, heads: int) -> None:
        super().__init__()
        self.lin = nn.Linear(inputs, outputs, bias=False)
        self.target = nn.Parameter(torch.zeros(heads, outputs // heads))
        self.source = nn.Parameter(torch.zeros(heads, outputs // heads))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        nodes = x.size(0)
        itself = torch.arange(nodes, device=x.device)
        source, target = torch.cat([edge_index[0], itself]), torch.cat([edge_index[1], itself])
        hidden = self.lin(x).view(nodes, self.target.size(0), -1)
        scores = (hidden * self.source).sum(2)[source] + (hidden * self.target).sum(2)[target]
        scores = functional.leaky_relu(scores, 0.2)
        if edge_weight is not None:
            scores = scores + torch.cat([edge_weight, torch.ones_like(x[:, 0])]).log().unsqueeze(1)
        shares = softmax(scores, target, num_nodes=nodes)
        attended = scatter(hidden[source] * shares.unsqueeze(2), target, 0, nodes, reduce="sum")
        return attended.flatten(1) + self.bias


class GAT(LayeredNetwork):
    """Attention layers whose heads share the width, then a linear classifier, or a layer of one head in its place."""

    def make_layer(self, inputs: int, outputs: int, heads: int = 4) -> nn.Module:
        return AttentionConv(inputs, outputs, heads)

    def make_head(self, width: int, classes: int, **settings: Any) -> nn.Module:
        return AttentionConv(width, classes, heads=1)
