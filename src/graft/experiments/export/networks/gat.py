"""Graph attention network (Velickovic et al., ICLR 2018)."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.utils import scatter, softmax


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


class GAT(nn.Module):
    """Attention layers whose heads share the width, then a linear classifier, or a layer of one head in its place."""

    conv_head: Final[bool]
    jump: Final[bool]

    def __init__(
        self,
        features: int,
        classes: int,
        depth: int = 2,
        width: int = 64,
        dropout: float = 0.5,
        head: str = "linear",
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.dropout, self.conv_head, self.jump = dropout, head == "conv", depth >= 4
        hidden = depth - 1 if self.conv_head else depth
        self.layers = nn.ModuleList(
            [AttentionConv(width if index else features, width, heads) for index in range(hidden)]
        )
        self.head: Any = AttentionConv(width, classes, 1) if self.conv_head else nn.Linear(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Returns the logits of every node; edges are given in both directions and without self-loops."""
        outputs: list[Tensor] = []
        hidden = x
        for layer in self.layers:
            if outputs:
                hidden = functional.dropout(hidden, self.dropout, self.training)
            hidden = layer(hidden, edge_index, edge_weight).relu()
            outputs.append(hidden)
        if self.jump:  # jumping knowledge (Xu et al., ICML 2018): the element-wise maximum over all layers
            hidden = torch.stack(outputs).amax(0)
        hidden = functional.dropout(hidden, self.dropout, self.training)
        if self.conv_head:
            return self.head(hidden, edge_index, edge_weight)
        return self.head(hidden)


def load(folder: str | Path | None = None) -> GAT:
    """Returns the trained model in a folder, that of this file if none is given, in evaluation mode."""
    place = Path(__file__).parent if folder is None else Path(folder)
    model = GAT(**json.loads((place / "config.json").read_text(encoding="utf-8"))["model"])
    model.load_state_dict(load_file(place / "model.safetensors"))
    return model.eval()
