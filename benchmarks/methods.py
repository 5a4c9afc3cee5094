"""Graft against the same work client by client with stock PyG layers, in one run.

`fedgkc` plays whole rounds with five architectures: copilots and local models in turn for three epochs, knowledge,
averaging, and a score of every local model. `fedtad_server` plays what FedTAD's server does in a round, with the models
of all clients on one made-up graph, and scores the corrected model. Rounds of both sides alternate, so that a busy
machine disturbs both.
"""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from fleet import EPOCHS, Loop, alternate, begun, options_of
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv, SGConv
from torch_geometric.utils import dropout_edge

from graft.data import datasets, federation
from graft.data.graphs import Graph
from graft.engines.capture import capture_stream
from graft.engines.in_process import InProcess
from graft.federation.evaluation import accuracy
from graft.federation.exchange import Clients, Request, Server, Traffic
from graft.federation.plug import Uploads
from graft.federation.setup import Setup
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC, FedGKCPaper
from graft.methods.fedgkc.distillation import VIEWS
from graft.methods.fedtad import FedTADPaper
from graft.models import assign_models, build_model
from graft.tensors.trees import Tree, Weights, select_clients, stack

ORDER = ("gcn", "gat", "sage", "gin", "sgc")


def perceptron(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64))


LAYERS = {
    "gcn": lambda inputs: GCNConv(inputs, 64),
    "gat": lambda inputs: GATConv(inputs, 16, heads=4),
    "sage": lambda inputs: SAGEConv(inputs, 64),
    "gin": lambda inputs: GINConv(perceptron(inputs)),
}


class Net(nn.Module):
    """Two stock layers and a linear head; SGC has one layer of two steps."""

    def __init__(self, kind: str, features: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [SGConv(features, 64, K=2)] if kind == "sgc" else [LAYERS[kind](features), LAYERS[kind](64)]
        )
        self.active = kind != "sgc"
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        hidden = x
        for layer in self.layers:
            if hidden is not x:
                hidden = functional.dropout(hidden, training=self.training)
            hidden = layer(hidden, edges)
            hidden = torch.relu(hidden) if self.active else hidden
        return hidden, self.head(functional.dropout(hidden, training=self.training))


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    return functional.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")


class LoopFedGKC(Loop):
    """FedGKC as it would usually be written."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FedGKC) -> None:
        torch.manual_seed(0)
        self.method = method
        self.data = [self.prepare(graph, device) for graph in graphs]
        features, classes = graphs[0].features, graphs[0].classes
        self.server = Net("gcn", features, classes).to(device)
        self.copilots = [copy.deepcopy(self.server) for _ in graphs]
        self.models = [Net(ORDER[place % 5], features, classes).to(device) for place in range(len(graphs))]
        self.optimizers = [
            [torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4) for model in pair]
            for pair in zip(self.copilots, self.models, strict=True)
        ]
        self.nodes = torch.tensor([float(graph.nodes) for graph in graphs], device=device)

    def lessons(self, teacher: tuple[Tensor, Tensor], student: tuple[Tensor, Tensor], edges: Tensor) -> Tensor:
        method = self.method
        loss = (1 - method.alpha - method.beta) * divergence(teacher[1], student[1])
        if method.beta:
            loops = torch.arange(len(student[0]), device=edges.device).expand(2, -1)
            source, target = torch.cat([edges, loops], 1)
            wanted, found = teacher[0].log_softmax(1), student[0].log_softmax(1)
            gap = (wanted[source].exp() * (wanted[source] - found[target])).sum(1)
            loss = loss + method.beta * gap.sum() / len(student[0])
        return loss

    def view(self, x: Tensor, edges: Tensor, rates: tuple[float, float]) -> tuple[Tensor, Tensor]:
        kept, _ = dropout_edge(edges, p=rates[0], force_undirected=True)
        return x * (torch.rand(x.shape[1], device=x.device) >= rates[1]), kept

    def round(self) -> float:
        method, knowledge = self.method, []
        for copilot, local, optimizers, (x, edges, y, train, validation, _) in zip(
            self.copilots, self.models, self.optimizers, self.data, strict=True
        ):
            copilot.load_state_dict(self.server.state_dict())
            for _ in range(EPOCHS):
                for student, teacher, optimizer, share in (
                    (copilot, local, optimizers[0], method.feedback),
                    (local, copilot, optimizers[1], 1.0),
                ):
                    student.train()
                    output = student(x, edges)
                    loss = method.alpha * functional.cross_entropy(output[1][train], y[train])
                    if share:
                        teacher.eval()
                        with torch.no_grad():
                            taught = teacher(x, edges)
                            if method.gate:
                                student.eval()
                                own = student(x, edges)
                                student.train()
                                right = [(answer[1].argmax(1) == y)[validation].sum() for answer in (taught, own)]
                                share = share * (right[0] >= right[1])
                        loss = loss + share * self.lessons(taught, output, edges)
                    if student is local and method.self_weight:
                        weak_rates, strong_rates = VIEWS[method.views]
                        local.eval()
                        with torch.no_grad():
                            weak = local(*self.view(x, edges, weak_rates))
                        local.train()
                        strong = local(*self.view(x, edges, strong_rates))
                        gap = functional.mse_loss(strong[0], weak[0]) + divergence(weak[1], strong[1])
                        loss = loss + method.self_weight * gap
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            knowledge.append(self.knowledge(copilot, x, edges))
        trusted = torch.stack(knowledge).clamp(min=0)
        shares = (self.nodes / self.nodes.sum() + trusted / trusted.sum()) / 2
        with torch.no_grad():
            for name, parameter in self.server.named_parameters():
                stacked = torch.stack([copilot.get_parameter(name) for copilot in self.copilots])
                parameter.copy_(torch.tensordot(shares, stacked, dims=1))
            found = []
            for model, (x, edges, y, _, _, test) in zip(self.models, self.data, strict=True):
                model.eval()
                found.append((model(x, edges)[1].argmax(1) == y)[test].float().mean())
        return float(torch.stack(found).mean())

    @torch.no_grad()
    def knowledge(self, copilot: Net, x: Tensor, edges: Tensor) -> Tensor:
        copilot.eval()
        chances = copilot(x, edges)[1].softmax(1)
        best = chances.amax(1)
        alike = functional.cosine_similarity(chances[edges[0]], chances[edges[1]])
        degree = torch.bincount(edges[0], minlength=len(x)).clamp(min=1)
        around = torch.zeros(len(x), device=x.device).index_add_(0, edges[0], alike) / degree
        return (best + (2 * best - 1) / (chances.shape[1] - 1) - self.method.smoothing * around).mean()


class GraftFedGKC:
    """FedGKC in Graft."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FedGKC) -> None:
        models = assign_models("architectures", len(graphs), graphs[0].features, graphs[0].classes)
        self.setup = Setup(method, "fedgkc", graphs, models, device=device)
        self.engine = InProcess(self.setup)
        self.server = Server(None, models, len(graphs), 0, device, self.setup.architecture)
        method.start_server(self.server)
        counted = self.engine.ask(Request("count", 0, self.engine.members()))
        self.totals, self.nodes = counted.totals.cpu(), counted.nodes.cpu()
        self.number = 0

    def round(self) -> float:
        self.number += 1
        self.server.round = self.number
        with capture_stream(self.setup.device):
            found, _ = self.engine.play(self.server, "round", self.play)
        return accuracy(found.correct, self.totals, self.nodes).mean("test") or 0.0

    def play(self) -> tuple[Tree, None]:
        everyone = self.engine.members()
        self.setup.method.round(self.server, Clients(self.engine, self.number, everyone, Traffic()))
        own = self.engine.ask(Request("score", self.number, everyone))
        self.engine.losses()
        return Tree(correct=own.correct), None


class Federated:
    """A federation after a few rounds of FedAvg, whose models are the teachers, and the score of a student."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FedTADPaper) -> None:
        self.model = build_model("gcn", graphs[0].features, graphs[0].classes)
        models = [self.model] * len(graphs)
        setup = Setup(method, "fedtad", graphs, models, device=device)
        self.engine = InProcess(setup)
        self.server = Server(self.model, models, len(graphs), 0, device, setup.architecture)
        method.start_server(self.server)
        self.everyone = self.engine.members()
        self.clients = Clients(self.engine, 1, self.everyone, Traffic())
        for number in range(1, 11):
            self.server.round = number
            FedAvg.round(method, self.server, Clients(self.engine, number, self.everyone, Traffic()))
        self.teachers = stack([state.model for _, state in sorted(self.engine.state().items())])
        self.average = self.server.state.model
        self.told = self.clients.ask(method.tell_reliability)
        counted = self.engine.ask(Request("count", 0, self.everyone))
        self.totals, self.nodes = counted.totals, counted.nodes

    def score(self, student: Weights) -> float:
        common = self.engine.ask(Request("score_shared", 1, self.everyone, student))
        return accuracy(common.correct, self.totals, self.nodes).mean("test") or 0.0


class GraftServerPhase(Federated):
    """What FedTAD's server does in a round, in Graft: all teachers are one stack."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FedTADPaper) -> None:
        super().__init__(graphs, device, method)
        self.method = method

    def round(self) -> float:
        self.server.round += 1
        self.server.state.model = self.average
        with capture_stream(self.server.device):
            self.method.after_round(self.server, self.clients, Uploads(self.everyone, self.teachers))
            return self.score(self.server.state.model)


class LoopServerPhase(Federated):
    """The same as it would usually be written: one teacher after another, anew in every step."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FedTADPaper) -> None:
        super().__init__(graphs, device, method)
        torch.manual_seed(0)
        self.method, self.device = method, device
        self.features, self.classes = graphs[0].features, graphs[0].classes
        self.nets = [self.net(select_clients(self.teachers, client)) for client in self.everyone]
        self.student = self.net(self.average)
        self.embedding = nn.Embedding(self.classes, self.classes).to(device)
        widths = (self.classes + method.noise_width, 64, 128, 256)
        hidden = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.Tanh())]
        self.generator = nn.Sequential(*hidden, nn.Linear(256, self.features)).to(device)
        decay = method.distil_decay
        made = [*self.embedding.parameters(), *self.generator.parameters()]
        self.generator_optimizer = torch.optim.Adam(made, lr=method.pseudo_learning_rate, weight_decay=decay)
        self.student_optimizer = torch.optim.Adam(
            self.student.parameters(), lr=method.student_learning_rate, weight_decay=decay
        )
        told = self.told.reliability
        self.shares = told / told.sum(0)
        self.labels = torch.arange(method.pseudo_nodes, device=device) % self.classes
        self.norm = (self.told.norm * self.told.size).sum() / self.told.size.sum()

    def net(self, weights: Weights) -> Net:
        net = Net("gcn", self.model.features, self.model.classes)  # type: ignore[attr-defined]
        self.load(net, weights)
        return net.to(self.engine.fleets[0].device)

    def load(self, net: Net, weights: Weights) -> None:
        with torch.no_grad():
            for layer, name in zip(net.layers, ("layer0", "layer1"), strict=True):
                layer.lin.weight.copy_(weights[name]["weight"].T)
                layer.bias.copy_(weights[name]["bias"])
            net.head.weight.copy_(weights["head"]["weight"].T)
            net.head.bias.copy_(weights["head"]["bias"])

    def weights_of(self, net: Net) -> Tree:
        layers = {
            f"layer{place}": Tree(weight=layer.lin.weight.detach().T, bias=layer.bias.detach())
            for place, layer in enumerate(net.layers)
        }
        return Tree(**layers, head=Tree(weight=net.head.weight.detach().T, bias=net.head.bias.detach()))

    def make_up(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        x = self.generator(torch.cat([self.embedding(self.labels), noise], 1))
        x = self.norm * functional.normalize(x, dim=1)
        near = (x.detach() @ x.detach().T).topk(self.method.pseudo_neighbours, dim=1).indices
        chosen = torch.zeros(len(x), len(x), device=x.device).scatter_(1, near, 1.0)
        edges = torch.maximum(chosen, chosen.T).fill_diagonal_(0).nonzero().T
        return x, edges

    def divergence(self, x: Tensor, edges: Tensor, student: Tensor) -> tuple[Tensor, Tensor]:
        """The two terms that look at teachers, teacher by teacher and class by class."""
        apart, missed = torch.zeros((), device=x.device), torch.zeros((), device=x.device)
        for share, net in zip(self.shares, self.nets, strict=True):
            net.eval()
            answer = net(x, edges)[1]
            gaps = functional.kl_div(answer.log_softmax(1), student.softmax(1), reduction="none").sum(1)
            misses = functional.cross_entropy(answer, self.labels, reduction="none")
            for kind in range(self.classes):
                chosen = self.labels == kind
                apart = apart + share[kind] * gaps[chosen].mean()
                missed = missed + share[kind] * misses[chosen].mean()
        return apart, missed

    def round(self) -> float:
        method, student = self.method, self.student
        self.load(student, self.average)
        for _ in range(method.iterations):
            noise = torch.randn(method.pseudo_nodes, method.noise_width, device=self.device)
            for _ in range(method.generator_steps):
                student.eval()
                x, edges = self.make_up(noise)
                apart, missed = self.divergence(x, edges, student(x, edges)[1])
                alike = functional.normalize(x, dim=1).mean(0).square().sum()
                self.generator_optimizer.zero_grad()
                (method.semantic_weight * missed + method.diversity_weight * alike - apart).backward()
                self.generator_optimizer.step()
            with torch.no_grad():
                x, edges = self.make_up(noise)
            for _ in range(method.student_steps):
                student.train()
                self.student_optimizer.zero_grad()
                apart, _ = self.divergence(x, edges, student(x, edges)[1])
                apart.backward()
                self.student_optimizer.step()
        return self.score(self.weights_of(student))


CASES: dict[str, tuple[Any, Any, Any]] = {  # the method, and the two sides that are timed
    "fedgkc": (FedGKC(), LoopFedGKC, GraftFedGKC),
    "fedgkc_paper": (FedGKCPaper(), LoopFedGKC, GraftFedGKC),
    "fedtad_server": (FedTADPaper(), LoopServerPhase, GraftServerPhase),
}


def compare(
    name: str, dataset: str, clients: int, rounds: int, device: torch.device, warm: int = 3, often: int = 1
) -> dict[str, Any]:
    """Time both sides of a case in turn: one round of the loop, then `often` rounds of Graft."""
    method, loop, graft = CASES[name]
    graphs = federation.build(datasets.load(dataset), clients, seed=0).clients
    sides = {"loop": loop(graphs, device, method), "graft": graft(graphs, device, method)}
    middle, scores = alternate(sides, rounds, warm, {"graft": often})
    ratio = middle["loop"] / middle["graft"]
    return {"method": name, "clients": clients, "ms": middle, "ratio": ratio, "accuracy": scores}


def main() -> None:
    parser = options_of(__doc__, Path("benchmarks/out/methods.json"))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--clients", default="20")
    parser.add_argument("--rounds", type=int, default=5)
    options = begun(parser)
    device = torch.device(options.device)
    rows: list[dict[str, Any]] = []
    print(f"{'method':26}{'clients':>8}{'loop ms':>10}{'graft ms':>10}{'ratio':>8}   accuracy: loop, graft")
    for name in options.cases.split(","):
        for clients in map(int, options.clients.split(",")):
            row = compare(name, options.dataset, clients, options.rounds, device)
            rows.append(row)
            shown = ", ".join(f"{100 * score:.1f}" for score in row["accuracy"].values())
            times = f"{row['ms']['loop']:10.1f}{row['ms']['graft']:10.2f}"
            print(f"{name:26}{clients:8}{times}{row['ratio']:8.1f}   {shown}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"device": options.device, "threads": options.threads, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
