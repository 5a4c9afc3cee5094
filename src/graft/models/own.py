"""Any `nn.Module` with `forward(x, edge_index)`, as a fleet of one."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from graft.graphs.fleet_graph import FleetGraph
from graft.models.architecture import Model, Output
from graft.tensors.randomness import Stream
from graft.tensors.trees import Tree, Weights, flatten, unflatten


class OwnModel(Model):
    """Your module, untouched: it returns logits, or a pair of embedding and logits."""

    stackable: ClassVar[bool] = False
    name = "own"

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.frozen = frozenset(name.replace(".", "/") for name, _ in module.named_buffers())

    def __repr__(self) -> str:
        return repr(self.module)

    def start(self, generator: torch.Generator) -> Tree:  # noqa: ARG002
        """The weights that the module came with: its maker chose how to start it."""
        return unflatten(
            {name.replace(".", "/"): value.detach().clone() for name, value in self.module.state_dict().items()}
        )

    def __call__(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Output:
        flat = {path.replace("/", "."): leaf[0] for path, leaf in flatten(weights)}
        features = graph.features
        x = features[0] if isinstance(features, Tensor) else features.dense()[0]
        edges = torch.stack([graph.neighbours.row_of, graph.neighbours.columns.long()])
        if graph.neighbours.values is not None:
            edges = edges[:, graph.neighbours.values > 0]
        self.module.train(random is not None)
        if random is None:
            result = torch.func.functional_call(self.module, flat, (x, edges))
        else:
            # The module draws from PyTorch's global generator; lend it one seeded for this client and step.
            with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
                torch.manual_seed(int(random.bits(1)))
                result = torch.func.functional_call(self.module, flat, (x, edges))
        embedding, logits = result if isinstance(result, tuple) else (result, result)
        return Output(embedding.unsqueeze(0), logits.unsqueeze(0))
