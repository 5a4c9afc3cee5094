"""FedTAD's server phase, written a second time with stock layers, teacher by teacher and class by class."""

import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GCNConv

from graft.methods.fedavg import FedAvg
from graft.methods.fedtad import FedTADPaper
from graft.methods.fedtad.generator import pseudo_labels
from tests.methods.fedtad.cases import reported_by, server_for
from tests.toy import CLASSES, gap, run_rounds, toy_setup


class StockNet(nn.Module):
    def __init__(self, weights):
        super().__init__()
        features, width = weights.layer0.weight.shape
        self.layers = nn.ModuleList([GCNConv(features, width), GCNConv(width, width)])
        self.head = nn.Linear(width, CLASSES)
        with torch.no_grad():
            for layer, mine in zip(self.layers, (weights.layer0, weights.layer1), strict=True):
                layer.lin.weight.copy_(mine.weight.T)
                layer.bias.copy_(mine.bias)
            self.head.weight.copy_(weights.head.weight.T)
            self.head.bias.copy_(weights.head.bias)

    def forward(self, x, edges):
        for layer in self.layers:
            x = torch.relu(layer(x, edges))
        return self.head(x)


class StockGenerator(nn.Module):
    def __init__(self, weights, norm):
        super().__init__()
        self.classes = nn.Parameter(weights.classes[0].clone())
        self.layers = nn.ModuleList([nn.Linear(*weights[f"layer{i}"].weight[0].shape) for i in range(4)])
        self.norm = norm
        with torch.no_grad():
            for i, layer in enumerate(self.layers):
                layer.weight.copy_(weights[f"layer{i}"].weight[0].T)
                layer.bias.copy_(weights[f"layer{i}"].bias[0])

    def forward(self, noise, labels, count):
        x = torch.cat([self.classes[labels], noise], 1)
        for layer in self.layers[:3]:
            x = torch.tanh(layer(x))
        x = self.norm * functional.normalize(self.layers[3](x), dim=1)
        near = (x @ x.T).topk(count, 1).indices.tolist()
        pairs = {(u, v) for u, row in enumerate(near) for v in row if u != v}
        edges = torch.tensor(sorted(pairs | {(v, u) for u, v in pairs})).T
        return x, edges


def stock_phase(method, generator, student, teachers, reliability, labels, draws):
    """The student after one server phase."""
    settings = {"weight_decay": method.distil_decay}
    make = torch.optim.Adam(generator.parameters(), lr=method.pseudo_learning_rate, **settings)
    learn = torch.optim.Adam(student.parameters(), lr=method.student_learning_rate, **settings)

    def losses(x, edges):
        apart = missed = 0.0
        for teacher, mine in zip(teachers, reliability, strict=True):
            answer, own = teacher(x, edges), student(x, edges)
            for kind in range(CLASSES):
                chosen = labels == kind
                share = mine[kind] / reliability[:, kind].sum()
                gap = functional.kl_div(answer[chosen].log_softmax(1), own[chosen].softmax(1), reduction="batchmean")
                apart += share * gap
                missed += share * functional.cross_entropy(answer[chosen], labels[chosen])
        return apart, missed

    for noise in draws:
        for _ in range(method.generator_steps):
            x, edges = generator(noise, labels, method.pseudo_neighbours)
            apart, missed = losses(x, edges)
            alike = functional.cosine_similarity(x.unsqueeze(0), x.unsqueeze(1), dim=2).mean()
            make.zero_grad()
            (method.semantic_weight * missed + method.diversity_weight * alike - apart).backward()
            make.step()
        with torch.no_grad():
            x, edges = generator(noise, labels, method.pseudo_neighbours)
        for _ in range(method.student_steps):
            learn.zero_grad()
            losses(x, edges)[0].backward()
            learn.step()
    return student


def test_server_phase_equals_one_written_with_stock_layers():
    nodes = {"pseudo_nodes": 14, "pseudo_neighbours": 4, "bound": "norm", "pseudo_classes": "balanced"}
    steps = {"iterations": 3, "generator_steps": 2, "student_steps": 5}
    method = FedTADPaper(**nodes, **steps, semantic_weight=0.7, class_losses="mean", include_self=True)
    setup = toy_setup(method)
    server = server_for(setup)
    plain = run_rounds(toy_setup(FedAvg()), rounds=1)
    teachers = [StockNet(plain.client(client).model) for client in range(3)]
    report = reported_by(setup.graphs)
    norm = (report.norm * report.size).sum() / report.size.sum()
    generator = StockGenerator(server.state.distillation.generator, norm)
    labels = pseudo_labels(torch.ones(CLASSES, dtype=torch.bool), 14)
    draws = server.random("noise").normal(3 * 14 * 32).view(3, 14, 32)
    start = StockNet(plain.server.state.model)
    expected = stock_phase(method, generator, start, teachers, report.reliability, labels, draws)
    ours = run_rounds(setup, rounds=1).server.state.model
    for layer, mine in zip((*expected.layers, expected.head), (ours.layer0, ours.layer1, ours.head), strict=True):
        stock = layer.weight if isinstance(layer, nn.Linear) else layer.lin.weight
        torch.testing.assert_close(mine.weight, stock.T, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(mine.bias, layer.bias, atol=2e-5, rtol=1e-5)
    assert gap(ours, plain.server.state.model) > 1e-3
