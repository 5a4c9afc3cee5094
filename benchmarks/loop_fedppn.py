"""FedPPN as it would usually be written: client by client with stock PyG layers."""

from __future__ import annotations

import torch
from fleet import EPOCHS, tensors_of
from harness import Scores
from stock import ARCHITECTURES, StockNet
from torch import Tensor
from torch.nn import functional
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import scatter

from graft.data.graphs import Graph
from graft.methods.fedppn import FedPPN


class LoopFedPPN:
    """Models of five architectures whose heads classify prototypes that every client propagates."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FedPPN) -> None:
        torch.manual_seed(0)
        self.method, self.classes = method, graphs[0].classes
        self.data = [tensors_of(graph, device) for graph in graphs]
        self.models = [
            StockNet(ARCHITECTURES[client % len(ARCHITECTURES)], graphs[0].features, self.classes).to(device)
            for client in range(len(graphs))
        ]
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4) for model in self.models]
        self.prototypes = torch.zeros(self.classes, 64, device=device)
        self.known = torch.zeros(self.classes, dtype=torch.bool, device=device)
        self.validated = torch.zeros(len(graphs), 2, device=device)  # accuracies of both parts

    def round(self) -> Scores:
        received, any_known = self.prototypes, bool(self.known.any())
        sums, owners = torch.zeros_like(received), torch.zeros(self.classes, device=received.device)
        accuracies = []
        for client, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            x, edges, y, train, validation, test = self.data[client]
            model.train()
            for _ in range(EPOCHS):
                optimizer.zero_grad()
                self.loss(model, client, received, any_known).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                embedding, logits = model(x, edges)
                for label in y[train].unique().tolist():
                    sums[label] += embedding[train & (y == label)].mean(0)
                    owners[label] += 1
                # Of the model alone and of the prototypes alone, as FedPPN puts on record.
                self.validated[client, 0] = (logits.argmax(1) == y)[validation].float().mean()
                if any_known:
                    by_prototypes = model.head(self.propagate(client, received))
                    self.validated[client, 1] = (by_prototypes.argmax(1) == y)[validation].float().mean()
                    logits = self.method.own_share * logits + (1 - self.method.own_share) * by_prototypes
                accuracies.append((logits.argmax(1) == y)[test].float().mean())
        owned = owners > 0
        self.prototypes = torch.where(owned[:, None], sums / owners.clamp(min=1)[:, None], received)
        self.known = self.known | owned
        return {"own": float(torch.stack(accuracies).mean())}

    def loss(self, model: StockNet, client: int, received: Tensor, any_known: bool) -> Tensor:
        x, edges, y, train, *_ = self.data[client]
        own = model(x, edges)[1]
        loss = functional.cross_entropy(own[train], y[train])
        if not any_known:
            return loss
        by_prototypes = model.head(self.propagate(client, received))
        ensemble = self.method.own_share * own + (1 - self.method.own_share) * by_prototypes
        taught, together = (functional.cross_entropy(part[train], y[train]) for part in (by_prototypes, ensemble))
        return loss + self.method.prototype_weight * taught + self.method.ensemble_weight * together

    @torch.no_grad()
    def propagate(self, client: int, received: Tensor) -> Tensor:
        _, edges, y, train, *_ = self.data[client]
        (source, target), weights = gcn_norm(edges, num_nodes=len(y), add_self_loops=False)
        start = received[y] * (train & self.known[y])[:, None]
        points = start
        for _ in range(self.method.propagation_steps):
            arrived = scatter(points[source] * weights[:, None], target, dim=0, dim_size=len(y))
            points = self.method.propagation * arrived + (1 - self.method.propagation) * start
        return points
