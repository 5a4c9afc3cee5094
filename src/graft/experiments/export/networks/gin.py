"""Graph isomorphism network (Xu et al., ICLR 2019), with layer normalisation, for nodes."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SimpleConv


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


class GIN(nn.Module):
    """Sums over neighbours through perceptrons, then a linear classifier, or one more such layer in its place."""

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
        normalise: bool = True,
    ) -> None:
        super().__init__()
        self.dropout, self.conv_head, self.jump = dropout, head == "conv", depth >= 4
        hidden = depth - 1 if self.conv_head else depth
        self.layers = nn.ModuleList(
            [SumConv(width if index else features, width, width, normalise) for index in range(hidden)]
        )
        self.head: Any = SumConv(width, width, classes, normalise) if self.conv_head else nn.Linear(width, classes)

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


def load(folder: str | Path | None = None) -> GIN:
    """Returns the trained model in a folder, that of this file if none is given, in evaluation mode."""
    place = Path(__file__).parent if folder is None else Path(folder)
    model = GIN(**json.loads((place / "config.json").read_text(encoding="utf-8"))["model"])
    model.load_state_dict(load_file(place / "model.safetensors"))
    return model.eval()
