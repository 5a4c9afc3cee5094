"""What FedTAD's server does in a round, in Graft and as it would usually be written."""

from __future__ import annotations

from itertools import pairwise

import torch
from harness import GraftSide, Scores, make_setup
from stock import StockNet
from torch import Tensor, nn
from torch.nn import functional

from graft.data.graphs import Graph
from graft.engines.capture import capture_stream
from graft.federation.clients import Clients, Replies
from graft.federation.evaluation import accuracy
from graft.methods.fedavg import FedAvg
from graft.methods.fedtad import FedTAD
from graft.tensors.trees import Tree, Weights, select_clients, stack

ROUNDS = 10  # of FedAvg, before the server distils


class TrainedFederation:
    """A federation after some rounds of FedAvg, whose models are the teachers, and the score of a student."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FedTAD) -> None:
        self.method, self.device = method, device
        trained = GraftSide(make_setup(FedAvg(), graphs, device))
        for _ in range(ROUNDS):
            trained.round()
        self.nodes, self.totals = trained.nodes, trained.totals
        states = trained.session.state()
        self.teachers = stack([state.model for _, state in sorted(states.clients.items())])
        self.average = states.server.model
        self.session = GraftSide(make_setup(method, graphs, device)).session
        self.members = self.session.engine.members()

    def clients(self, round: int = 1) -> Clients:
        return Clients(self.session.engine, round, self.members)

    def score(self, student: Weights) -> Scores:
        correct = self.clients().ask(self.method.score_shared, student).correct
        return {"global": accuracy(correct, self.totals, self.nodes).mean("test") or 0.0}


class GraftServerPhase(TrainedFederation):
    """Graft: all teachers are one stack."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FedTAD) -> None:
        super().__init__(graphs, device, method)
        self.rounds = ROUNDS

    def round(self) -> Scores:
        self.rounds += 1
        server = self.session.server
        server.begin(self.rounds)
        server.state.model = self.average
        replies = Replies([(self.members, Tree(model=self.teachers))])
        with capture_stream(self.device):
            self.method.after_aggregation(server, self.clients(self.rounds), replies)
            return self.score(server.state.model)


class LoopServerPhase(TrainedFederation):
    """The usual way: one teacher after another, anew in every step."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FedTAD) -> None:
        super().__init__(graphs, device, method)
        torch.manual_seed(0)
        self.features, self.classes = graphs[0].features, graphs[0].classes
        self.nets = [self.make_net(select_clients(self.teachers, client)) for client in self.members]
        self.student = self.make_net(self.average)
        self.embedding = nn.Embedding(self.classes, self.classes).to(device)
        widths = (self.classes + method.noise_width, 64, 128, 256)
        hidden = [module for pair in pairwise(widths) for module in (nn.Linear(*pair), nn.Tanh())]
        self.generator = nn.Sequential(*hidden, nn.Linear(256, self.features)).to(device)
        decay = method.distil_decay
        generated = [*self.embedding.parameters(), *self.generator.parameters()]
        self.generator_optimizer = torch.optim.Adam(generated, lr=method.pseudo_learning_rate, weight_decay=decay)
        self.student_optimizer = torch.optim.Adam(
            self.student.parameters(), lr=method.student_learning_rate, weight_decay=decay
        )
        reports = self.clients().ask(method.tell_reliability)
        self.shares = reports.reliability / reports.reliability.sum(0)
        self.labels = torch.arange(method.pseudo_nodes, device=device) % self.classes
        self.norm = (reports.norm * reports.size).sum() / reports.size.sum()

    def make_net(self, weights: Weights) -> StockNet:
        net = StockNet("gcn", self.features, self.classes).to(self.device)
        load_weights(net, weights)
        return net

    def synthesize(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Returns features and edges of synthetic nodes."""
        x = self.generator(torch.cat([self.embedding(self.labels), noise], 1))
        x = self.norm * functional.normalize(x, dim=1)
        nearest = (x.detach() @ x.detach().T).topk(self.method.pseudo_neighbours, dim=1).indices
        chosen = torch.zeros(len(x), len(x), device=x.device).scatter_(1, nearest, 1.0)
        edges = torch.maximum(chosen, chosen.T).fill_diagonal_(0).nonzero().T
        return x, edges

    def teacher_losses(self, x: Tensor, edges: Tensor, student: Tensor) -> tuple[Tensor, Tensor]:
        """Returns divergence and recognition, teacher by teacher and class by class."""
        divergence, recognition = torch.zeros((), device=x.device), torch.zeros((), device=x.device)
        for share, net in zip(self.shares, self.nets, strict=True):
            net.eval()
            logits = net(x, edges)[1]
            gaps = functional.kl_div(logits.log_softmax(1), student.softmax(1), reduction="none").sum(1)
            misses = functional.cross_entropy(logits, self.labels, reduction="none")
            for label in range(self.classes):
                chosen = self.labels == label
                divergence = divergence + share[label] * gaps[chosen].mean()
                recognition = recognition + share[label] * misses[chosen].mean()
        return divergence, recognition

    def round(self) -> Scores:
        method, student = self.method, self.student
        load_weights(student, self.average)
        for _ in range(method.iterations):
            noise = torch.randn(method.pseudo_nodes, method.noise_width, device=self.device)
            for _ in range(method.generator_steps):
                student.eval()
                x, edges = self.synthesize(noise)
                divergence, recognition = self.teacher_losses(x, edges, student(x, edges)[1])
                similarity = functional.normalize(x, dim=1).mean(0).square().sum()
                self.generator_optimizer.zero_grad()
                (method.semantic_weight * recognition + method.diversity_weight * similarity - divergence).backward()
                self.generator_optimizer.step()
            with torch.no_grad():
                x, edges = self.synthesize(noise)
            for _ in range(method.student_steps):
                student.train()
                self.student_optimizer.zero_grad()
                divergence, _ = self.teacher_losses(x, edges, student(x, edges)[1])
                divergence.backward()
                self.student_optimizer.step()
        return self.score(weights_of(student))


@torch.no_grad()
def load_weights(net: StockNet, weights: Weights) -> None:
    """Copies the weights of Graft's GCN into stock layers."""
    for layer, name in zip(net.layers, ("layer0", "layer1"), strict=True):
        layer.lin.weight.copy_(weights[name]["weight"].T)
        layer.bias.copy_(weights[name]["bias"])
    net.head.weight.copy_(weights["head"]["weight"].T)
    net.head.bias.copy_(weights["head"]["bias"])


def weights_of(net: StockNet) -> Tree:
    """Returns the weights of stock layers as those of Graft's GCN."""
    layers = {
        f"layer{index}": Tree(weight=layer.lin.weight.detach().T, bias=layer.bias.detach())
        for index, layer in enumerate(net.layers)
    }
    return Tree(**layers, head=Tree(weight=net.head.weight.detach().T, bias=net.head.bias.detach()))
