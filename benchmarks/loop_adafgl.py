"""The second step of AdaFGL as it would usually be written: client by client, on concatenated features."""

from __future__ import annotations

import torch
from fleet import EPOCHS, Loop
from harness import Scores
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.utils import to_dense_adj

from graft.data.graphs import Graph
from graft.methods.adafgl import AdaFGL

HOMOPHILY = 0.5  # of every client; it is measured once, before the rounds that are timed


class LoopAdaFGL:
    """Both branches of every client on what one round of FedAvg knows."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: AdaFGL) -> None:
        self.federated = Loop(graphs, device)
        self.federated.round()
        self.clients = [
            LoopClient(data, self.federated.server, graphs[0].classes, method) for data in self.federated.data
        ]

    def round(self) -> Scores:
        for client in self.clients:
            client.train()
        own = float(torch.stack([client.score() for client in self.clients]).mean())
        # The averaged model stays as it is, and Graft scores it in every round.
        return {"own": own, "global": self.federated.score([self.federated.server] * len(self.clients))}


class LoopClient:
    """The personal model of one client."""

    def __init__(self, data: tuple[Tensor, ...], extractor: nn.Module, classes: int, method: AdaFGL) -> None:
        self.method = method
        self.x, edges, self.y, self.train_mask, _, self.test_mask = data
        nodes, features = self.x.shape
        with torch.no_grad():
            extractor.eval()
            self.chances = extractor(self.x, edges).softmax(1)
            unit = functional.normalize(self.chances.softmax(1), dim=1)
            self.similar = (unit @ unit.T >= method.similar).float().fill_diagonal_(0)
            mixed = (
                method.adjacency * to_dense_adj(edges, max_num_nodes=nodes)[0] + (1 - method.adjacency) * self.similar
            )
            mixed.fill_diagonal_(1)
            scale = mixed.sum(1).rsqrt()
            matrix = scale.unsqueeze(1) * mixed * scale
            smoothed = [self.x]
            for _ in range(method.hops):
                smoothed.append(matrix @ smoothed[-1])
        self.smoothed = torch.cat(smoothed, 1)
        wide = features * (method.hops + 1)
        self.parts = nn.ModuleList([perceptron(inputs, classes) for inputs in (features, wide, wide, wide)])
        self.prelu = nn.PReLU()
        self.model = nn.ModuleList([self.parts, self.prelu]).to(self.x.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01, weight_decay=5e-4)

    def train(self) -> None:
        self.model.train()
        for _ in range(EPOCHS):
            self.optimizer.zero_grad()
            outputs = self.outputs()
            loss = functional.mse_loss(outputs[0], self.chances)
            for logits in outputs:
                loss = loss + functional.cross_entropy(logits[self.train_mask], self.y[self.train_mask])
            loss.backward()
            self.optimizer.step()

    def outputs(self) -> list[Tensor]:
        """Returns the homophilous logits and the three heterophilous ones."""
        own, homophilous, heterophilous, signed = self.parts
        embedding = signed(self.smoothed)
        unit = functional.normalize(embedding.softmax(1), dim=1)
        share = self.method.signed_share
        mixed = share * self.similar + (1 - share) * unit @ unit.T
        mean = mixed.mean().detach()
        centred = mixed - mean
        scaled = torch.where(centred > 0, centred / (mixed.max().detach() - mean), centred / mean)
        scaled = scaled + torch.eye(len(scaled), device=scaled.device)
        alike, unlike = self.prelu(scaled) @ embedding, self.prelu(-scaled) @ embedding
        messages = (alike.softmax(1) - unlike.softmax(1) + embedding) / 2
        return [homophilous(self.smoothed), own(self.x), heterophilous(self.smoothed), messages]

    @torch.no_grad()
    def score(self) -> Tensor:
        self.model.eval()
        homophilous, *heterophilous = (logits.softmax(1) for logits in self.outputs())
        homophilous = (homophilous + self.chances.softmax(1)) / 2
        mixed = HOMOPHILY * homophilous + (1 - HOMOPHILY) * sum(heterophilous) / 3
        return (mixed.argmax(1) == self.y)[self.test_mask].float().mean()


def perceptron(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.PReLU(), nn.Dropout(0.5), nn.Linear(64, classes))
