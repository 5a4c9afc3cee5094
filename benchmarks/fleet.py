"""FedAvg in Graft against a loop over clients with stock PyG layers: same work, same accuracy, in one run.

Both sides train a two-layer GCN of width 64: local epochs, averaging, and a score of every client's own model and of
the averaged one in every round. Rounds of both sides alternate, so that a busy machine disturbs both.
"""

from __future__ import annotations

import copy
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import GraftSide, Scores, Side, alternate, make_parser, make_setup, parse, write_results
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv

from graft.data import datasets, federation
from graft.data.graphs import Graph
from graft.machine import peak_ram
from graft.methods.fedavg import FedAvg

EPOCHS = 3


class LoopModel(nn.Module):
    """The network of the loop: stock layers, which normalise the graph at every call unless told to cache."""

    def __init__(self, features: int, classes: int, cached: bool) -> None:
        super().__init__()
        self.first = GCNConv(features, 64, cached=cached)
        self.second = GCNConv(64, 64, cached=cached)
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        hidden = functional.dropout(torch.relu(self.first(x, edges)), training=self.training)
        hidden = functional.dropout(torch.relu(self.second(hidden, edges)), training=self.training)
        return self.head(hidden)


class Loop:
    """FedAvg as it is usually written: one client after another."""

    def __init__(self, graphs: list[Graph], device: torch.device, cached: bool = False) -> None:
        torch.manual_seed(0)
        self.data = [tensors_of(graph, device) for graph in graphs]
        self.server = LoopModel(graphs[0].features, graphs[0].classes, cached).to(device)
        self.models = [copy.deepcopy(self.server) for _ in graphs]
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4) for model in self.models]
        self.nodes = torch.tensor([graph.nodes for graph in graphs])

    def round(self) -> Scores:
        self.train_models()
        own = self.score(self.models)
        self.average_models()
        return {"own": own, "global": self.score([self.server] * len(self.models))}

    def train_models(self) -> None:
        for model, optimizer, (x, edges, y, train, *_) in zip(self.models, self.optimizers, self.data, strict=True):
            model.load_state_dict(self.server.state_dict())
            model.train()
            for _ in range(EPOCHS):
                optimizer.zero_grad()
                functional.cross_entropy(model(x, edges)[train], y[train]).backward()
                optimizer.step()

    @torch.no_grad()
    def average_models(self) -> None:
        shares = self.nodes / self.nodes.sum()
        for name, parameter in self.server.named_parameters():
            parameter.zero_()
            for share, model in zip(shares.tolist(), self.models, strict=True):
                parameter.add_(share * model.get_parameter(name))

    @torch.no_grad()
    def score(self, models: list[nn.Module]) -> float:
        accuracies = []
        for model, (x, edges, y, _, _, test) in zip(models, self.data, strict=True):
            model.eval()
            if model is self.server:  # a cached layer remembers one graph; the server's model visits many
                for layer in (self.server.first, self.server.second):
                    layer._cached_edge_index = None
            accuracies.append((model(x, edges).argmax(1) == y)[test].float().mean())
        return float(torch.stack(accuracies).mean())


def tensors_of(graph: Graph, device: torch.device) -> tuple[Tensor, ...]:
    """Returns features, edges, classes and the three masks."""
    x = graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray()
    arrays = (x, graph.edges, graph.y, graph.train, graph.validation, graph.test)
    return tuple(torch.from_numpy(array).to(device) for array in arrays)


def graft_fedavg(graphs: list[Graph], device: torch.device) -> GraftSide:
    return GraftSide(make_setup(FedAvg(), graphs, device))


def compare(
    dataset: str,
    clients: int,
    turns: int,
    device: torch.device,
    cached: bool = False,
    warmup: int = 3,
    graft_rounds: int = 1,
) -> dict[str, Any]:
    """Times both sides in turn: one round of the loop, then `graft_rounds` of Graft."""
    graphs = federation.build(datasets.load(dataset), clients, seed=0).clients
    sides = {"loop": Loop(graphs, device, cached), "graft": graft_fedavg(graphs, device)}
    medians, scores = alternate(sides, turns, warmup, {"graft": graft_rounds})
    return {
        "dataset": dataset,
        "clients": clients,
        "ms": medians,
        "ratio": medians["loop"] / medians["graft"],
        "accuracy": scores,
    }


def measure_memory(side: str, dataset: str, clients: int, device: str, cached: bool, results: Any) -> None:
    """Puts the peak memory of one side alone, above what the process held when the data had been loaded."""
    graphs = federation.build(datasets.load(dataset), clients, seed=0).clients
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading: it is what there is now
    before = peak_ram()
    on = torch.device(device)
    training: Side = Loop(graphs, on, cached) if side == "loop" else graft_fedavg(graphs, on)
    for _ in range(4):
        training.round()
    results.put(torch.cuda.max_memory_allocated() if device == "cuda" else peak_ram() - before)


def peak_memory(*arguments: Any) -> int:
    """Returns what `measure_memory` found in a process of its own."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    worker = context.Process(target=measure_memory, args=(*arguments, results))
    worker.start()
    peak: int = results.get()
    worker.join()
    return peak


def main() -> None:
    parser = make_parser(__doc__, Path("benchmarks/out/fleet.json"))
    parser.add_argument("--datasets", default="cora,photo")
    parser.add_argument("--clients", default="5,10,20,100")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cached", action="store_true", help="let the stock layers cache the normalised graph")
    options = parse(parser)
    rows = []
    print(
        f"{'dataset':10}{'clients':>8}{'loop ms':>10}{'Graft ms':>10}{'ratio':>8}{'loop MB':>9}{'Graft MB':>9}"
        f"{'memory':>8}   accuracy own / global: loop, Graft"
    )
    for dataset in options.datasets.split(","):
        for clients in map(int, options.clients.split(",")):
            row = compare(dataset, clients, options.rounds, torch.device(options.device), options.cached)
            for side in ("loop", "graft"):
                row[f"{side}_bytes"] = peak_memory(side, dataset, clients, options.device, options.cached)
            row["memory_ratio"] = row["graft_bytes"] / row["loop_bytes"]
            rows.append(row)
            accuracies = [
                " / ".join(f"{100 * row['accuracy'][side][kind]:.1f}" for kind in ("own", "global"))
                for side in ("loop", "graft")
            ]
            print(
                f"{dataset:10}{clients:8}{row['ms']['loop']:10.1f}{row['ms']['graft']:10.2f}{row['ratio']:8.1f}"
                f"{row['loop_bytes'] / 1e6:9.0f}{row['graft_bytes'] / 1e6:9.0f}{row['memory_ratio']:8.2f}   "
                f"{', '.join(accuracies)}",
                flush=True,
            )
    write_results(options, rows=rows)


if __name__ == "__main__":
    main()
