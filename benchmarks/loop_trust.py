"""TRUST as it would usually be written: client by client with stock PyG layers.

Sets of classes, ranking and transport are Graft's own functions, on one client at a time: the usual loops over nodes
would only make this side slower.
"""

from __future__ import annotations

import copy
import math

import torch
from fleet import EPOCHS, tensors_of
from harness import Scores
from stock import ARCHITECTURES, StockNet
from torch import Tensor
from torch.nn import functional

from graft.data.graphs import Graph
from graft.methods.trust import TRUST
from graft.methods.trust.conformal import Calibration, calibrate, prediction_sets, ranking_loss, transfer_weights
from graft.methods.trust.transport import transport_value

ROUNDS = 100  # of the schedule of the temperature, as a setup of Graft has them


class LoopTRUST:
    """Private models of five architectures and proxies of one that teach each other, one client after another."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: TRUST) -> None:
        torch.manual_seed(0)
        self.method, self.rounds = method, 0
        self.data = [tensors_of(graph, device) for graph in graphs]
        features, classes = graphs[0].features, graphs[0].classes
        self.server = StockNet("gcn", features, classes, depth=3).to(device)
        self.proxies = [copy.deepcopy(self.server) for _ in graphs]
        self.models = [
            StockNet(ARCHITECTURES[client % len(ARCHITECTURES)], features, classes).to(device)
            for client in range(len(graphs))
        ]
        self.optimizers = [
            [torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4) for model in pair]
            for pair in zip(self.proxies, self.models, strict=True)
        ]
        self.temperatures = [torch.ones(1, device=device, requires_grad=True) for _ in graphs]
        self.heaters = [
            torch.optim.SGD([each], lr=method.tau_rate, momentum=method.tau_momentum, weight_decay=method.tau_decay)
            for each in self.temperatures
        ]
        self.places = [self.easiest_first(client) for client in range(len(graphs))]
        self.nodes = torch.tensor([float(graph.nodes) for graph in graphs], device=device)

    def easiest_first(self, client: int) -> Tensor:
        """Returns the places of the nodes in the order of difficulty, by a model that is trained alone and put
        aside."""
        model, (x, edges, y, train, *_) = copy.deepcopy(self.models[client]), self.data[client]
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
        for _ in range(self.method.pretrain_epochs):
            optimizer.zero_grad()
            functional.cross_entropy(model(x, edges)[1][train], y[train]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            embedding, logits = model(x, edges)
            one_hot = functional.one_hot(torch.where(train, y, logits.argmax(1)), logits.shape[1]).float()
            counts = one_hot.index_add(0, edges[0], one_hot[edges[1]])
            shares = counts / counts.sum(1, keepdim=True)
            means = one_hot.T @ embedding / one_hot.sum(0).clamp(min=1).unsqueeze(1)
            distance = 1 - functional.cosine_similarity(one_hot @ means, embedding)
            difficulty = self.method.distance * distance - torch.special.xlogy(shares, shares).sum(1)
        return difficulty.argsort().argsort()

    def round(self) -> Scores:
        for client, proxy in enumerate(self.proxies):
            proxy.load_state_dict(self.server.state_dict())
            self.teach_private(client)
            self.teach_proxy(client)
        self.rounds += 1
        shares = self.nodes / self.nodes.sum()
        with torch.no_grad():
            for name, parameter in self.server.named_parameters():
                stacked = torch.stack([proxy.get_parameter(name) for proxy in self.proxies])
                parameter.copy_(torch.tensordot(shares, stacked, dims=1))
        return {"own": self.score()}

    def teach_private(self, client: int) -> None:
        method, model, (x, edges, y, train, validation, _) = self.method, self.models[client], self.data[client]
        taught, own = (self.evaluate(each, client) for each in (self.proxies[client], model))
        draws = torch.rand(1, len(x), device=x.device)

        def fitted(logits: Tensor, penalty: float) -> Calibration:
            given = (logits, y.unsqueeze(0), validation.unsqueeze(0), draws)
            penalties = torch.full((1,), penalty, device=x.device)
            return calibrate(*given, error=method.error, penalty=penalties, free=method.free_ranks)

        inside = prediction_sets(taught, draws, fitted(taught, method.proxy_penalty))
        private = fitted(own, method.private_penalty)
        for _ in range(EPOCHS):
            weights = transfer_weights(inside, prediction_sets(self.evaluate(model, client), draws, private))
            logits = model.train()(x, edges)[1]
            ranked = (weights * ranking_loss(logits.unsqueeze(0), inside)).mean()
            self.optimizers[client][1].zero_grad()
            (functional.cross_entropy(logits[train], y[train]) + method.w_back * ranked).backward()
            self.optimizers[client][1].step()

    def teach_proxy(self, client: int) -> None:
        method, proxy, (x, edges, y, train, *_) = self.method, self.proxies[client], self.data[client]
        teacher, temperature = self.evaluate(self.models[client], client)[0], self.temperatures[client]
        unit = functional.normalize(self.models[client].head.weight.detach(), dim=1)
        costs = 1 - torch.exp(-method.kappa * (1 - unit @ unit.T))
        for epoch in range(self.rounds * EPOCHS, (self.rounds + 1) * EPOCHS):
            logits = proxy.train()(x, edges)[1]
            share = min(1.0, method.start_share + (1 - method.start_share) * epoch / method.curriculum)
            nodes = self.places[client] < int(share * len(x))
            tau = method.tau_min + (method.tau_max - method.tau_min) * temperature.sigmoid()
            target, predicted = ((each[nodes] / tau).log_softmax(1) for each in (teacher, logits))
            divergence = tau.square().squeeze() * (target.exp() * (target - predicted)).sum(1).mean()
            (slope,) = torch.autograd.grad(divergence, temperature, retain_graph=True)
            temperature.grad = -slope * (1 - math.cos(math.pi * epoch / (ROUNDS * EPOCHS))) / 2
            between = (each.log_softmax(1).unsqueeze(0) for each in (teacher, logits))
            moved = transport_value(*between, costs.unsqueeze(0), method.eta, method.iterations).mean()
            loss = functional.cross_entropy(logits[train], y[train]) + method.w_kl * divergence + method.w_wd * moved
            self.optimizers[client][0].zero_grad()
            loss.backward(inputs=list(proxy.parameters()))
            self.optimizers[client][0].step()
            self.heaters[client].step()

    @torch.no_grad()
    def evaluate(self, model: StockNet, client: int) -> Tensor:
        """Returns the logits in evaluation mode, with a client axis."""
        x, edges, *_ = self.data[client]
        logits: Tensor = model.eval()(x, edges)[1]
        return logits.unsqueeze(0)

    def score(self) -> float:
        accuracies = []
        for client, (model, (_, _, y, _, _, test)) in enumerate(zip(self.models, self.data, strict=True)):
            accuracies.append((self.evaluate(model, client)[0].argmax(1) == y)[test].float().mean())
        return float(torch.stack(accuracies).mean())
