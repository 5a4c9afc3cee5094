"""GraphSAGE with the mean aggregator (Hamilton, Ying and Leskovec, NeurIPS 2017)."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SimpleConv

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


class SAGE(nn.Module):
    """GraphSAGE layers, then a linear classifier, or one more layer in its place."""

    conv_head: Final[bool]
    jump: Final[bool]

    def __init__(
        self, features: int, classes: int, depth: int = 2, width: int = 64, dropout: float = 0.5, head: str = "linear"
    ) -> None:
        super().__init__()
        self.dropout, self.conv_head, self.jump = dropout, head == "conv", depth >= 4
        hidden = depth - 1 if self.conv_head else depth
        self.layers = nn.ModuleList([MeanConv(width if index else features, width) for index in range(hidden)])
        self.head: Any = MeanConv(width, classes) if self.conv_head else nn.Linear(width, classes)

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


def load(folder: str | Path | None = None) -> SAGE:
    """Returns the trained model in a folder, that of this file if none is given, in evaluation mode."""
    place = Path(__file__).parent if folder is None else Path(folder)
    model = SAGE(**json.loads((place / "config.json").read_text(encoding="utf-8"))["model"])
    model.load_state_dict(load_file(place / "model.safetensors"))
    return model.eval()
