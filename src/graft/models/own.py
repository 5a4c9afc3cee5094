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
    """A user's module as it is: it returns logits, or a pair of embedding and logits."""

    stackable: ClassVar[bool] = False
    name = "own"

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.frozen = frozenset(name.replace(".", "/") for name, _ in module.named_buffers())

    def __repr__(self) -> str:
        return repr(self.module)

    def start(self, generator: torch.Generator) -> Tree:  # noqa: ARG002
        """Returns the module's own state dict, as it was initialised by its author."""
        return unflatten(
            {name.replace(".", "/"): value.detach().clone() for name, value in self.module.state_dict().items()}
        )

    def __call__(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Output:
        parameters = {path.replace("/", "."): leaf[0] for path, leaf in flatten(weights)}
        features = graph.features
        x = features[0] if isinstance(features, Tensor) else features.dense()[0]
        edge_index = torch.stack([graph.neighbours.row_of, graph.neighbours.columns.long()])
        if graph.neighbours.values is not None:
            edge_index = edge_index[:, graph.neighbours.values > 0]
        self.module.train(random is not None)
        if random is None:
            output = torch.func.functional_call(self.module, parameters, (x, edge_index))
        else:
            # The module draws from PyTorch's global generator; lend it one seeded for this client and step.
            with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
                torch.manual_seed(int(random.bits(1)))
                output = torch.func.functional_call(self.module, parameters, (x, edge_index))
        embedding, logits = output if isinstance(output, tuple) else (output, output)
        return Output(embedding.unsqueeze(0), logits.unsqueeze(0))
