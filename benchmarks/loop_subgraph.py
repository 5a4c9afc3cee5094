"""Fed-PUB and GCFL+ as they would usually be written: client by client with stock PyG layers."""

from __future__ import annotations

import copy

import numpy as np
import torch
from fleet import EPOCHS, Loop, tensors_of
from harness import Scores
from stock import StockNet
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch_geometric.utils import stochastic_blockmodel_graph

from graft.data.graphs import Graph
from graft.methods.fed_pub import FedPUB
from graft.methods.gcfl import GCFLPlus

Tensors = dict[str, Tensor]


class LoopFedPUB:
    """Clients with masks, whose models are mixed by how alike they embed a random graph."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FedPUB) -> None:
        torch.manual_seed(0)
        self.method = method
        self.data = [tensors_of(graph, device) for graph in graphs]
        features, classes = graphs[0].features, graphs[0].classes
        start = StockNet("gcn", features, classes).to(device)
        self.models = [copy.deepcopy(start) for _ in graphs]
        self.masks = [
            {name: torch.ones_like(leaf, requires_grad=True) for name, leaf in matrices(start).items()} for _ in graphs
        ]
        self.optimizers = [
            torch.optim.Adam([*model.parameters(), *masks.values()], lr=0.01, weight_decay=5e-4)
            for model, masks in zip(self.models, self.masks, strict=True)
        ]
        self.received: list[Tensors] = [dict(start.state_dict()) for _ in graphs]
        self.begun = False
        sizes = torch.full((method.proxy_blocks,), method.proxy_nodes)
        chances = method.proxy_edges * torch.eye(method.proxy_blocks)
        self.proxy_edges = stochastic_blockmodel_graph(sizes, chances).to(device)
        self.proxy = torch.randn(int(sizes.sum()), features, device=device)

    def round(self) -> Scores:
        embeddings = []
        for client in range(len(self.models)):
            self.train(client)
            embeddings.append(self.predict(client, self.proxy, self.proxy_edges)[0].mean(0))
        own = self.score()
        self.mix(functional.normalize(torch.stack(embeddings), dim=1))
        self.begun = True
        return {"own": own}

    def train(self, client: int) -> None:
        model, masks, (x, edges, y, train, *_) = self.models[client], self.masks[client], self.data[client]
        before = {name: leaf.clone() for name, leaf in self.received[client].items()}
        model.load_state_dict(before)
        model.train()
        for _ in range(EPOCHS):
            self.optimizers[client].zero_grad()
            weights = dict(model.named_parameters())
            logits = functional_call(model, masked(weights, masks), (x, edges))[1]
            loss = functional.cross_entropy(logits[train], y[train])
            loss = loss + self.method.mask_penalty * sum(mask.norm(1) for mask in masks.values())
            if self.begun:
                loss = loss + self.method.proximal * sum((leaf - before[name]).norm() for name, leaf in weights.items())
            loss.backward()
            self.optimizers[client].step()

    @torch.no_grad()
    def predict(self, client: int, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Returns embeddings and logits by the masks' large entries."""
        model, least = self.models[client].eval(), self.method.mask_penalty
        kept = {name: functional.hardshrink(mask, least) for name, mask in self.masks[client].items()}
        return functional_call(model, masked(dict(model.named_parameters()), kept), (x, edges))

    @torch.no_grad()
    def mix(self, directions: Tensor) -> None:
        shares = (self.method.scale * directions @ directions.T).softmax(1)
        parameters = [dict(model.named_parameters()) for model in self.models]
        for client, own in enumerate(shares):
            self.received[client] = {
                name: sum(share * weights[name] for share, weights in zip(own, parameters, strict=True))
                for name in parameters[0]
            }

    def score(self) -> float:
        accuracies = []
        for client, (x, edges, y, _, _, test) in enumerate(self.data):
            accuracies.append((self.predict(client, x, edges)[1].argmax(1) == y)[test].float().mean())
        return float(torch.stack(accuracies).mean())


def matrices(model: StockNet) -> Tensors:
    return {name: leaf for name, leaf in model.named_parameters() if leaf.dim() > 1}


def masked(weights: Tensors, masks: Tensors) -> Tensors:
    return {name: leaf * masks[name] if name in masks else leaf for name, leaf in weights.items()}


class LoopGCFLPlus(Loop):
    """FedAvg that watches updates and gradients, and compares their sequences once there are enough.

    It never splits, so that both sides train alike; Graft's side is given thresholds under which it does not either.
    """

    def __init__(self, graphs: list[Graph], device: torch.device, method: GCFLPlus) -> None:
        super().__init__(graphs, device)
        self.method = method
        self.norms: list[list[float]] = [[] for _ in graphs]

    def round(self) -> Scores:
        before = {name: leaf.clone() for name, leaf in self.server.named_parameters()}
        self.train_models()
        updates = []
        for client, model in enumerate(self.models):
            gradient = torch.cat([leaf.grad.flatten() for leaf in model.parameters() if leaf.grad is not None])
            self.norms[client].append(float(gradient.norm()))
            with torch.no_grad():
                updates.append(torch.cat([(leaf - before[name]).flatten() for name, leaf in model.named_parameters()]))
        self.largest, self.mean = max(float(update.norm()) for update in updates), float(sum(updates).norm())
        self.distances()
        self.average_models()
        return {"own": self.score([self.server] * len(self.models))}

    def distances(self) -> np.ndarray:
        """Returns the distances of the clients' last norms under dynamic time warping."""
        sequences = [norms[-self.method.length :] for norms in self.norms]
        return np.array([[warping(first, second) for second in sequences] for first in sequences])


def warping(first: list[float], second: list[float]) -> float:
    best = np.full((len(first) + 1, len(second) + 1), np.inf)
    best[0, 0] = 0
    for i, left in enumerate(first):
        for j, right in enumerate(second):
            best[i + 1, j + 1] = (left - right) ** 2 + min(best[i, j], best[i, j + 1], best[i + 1, j])
    return float(best[-1, -1] ** 0.5)
