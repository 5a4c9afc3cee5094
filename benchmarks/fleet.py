"""One fleet against a loop over clients with stock PyG layers: same work, same accuracy, in one run.

Both sides train FedAvg with a two-layer GCN of width 64: local epochs, averaging, and a score of every client's own
model and of the averaged one in every round. Rounds of both sides alternate, so that a busy machine disturbs both.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv

from graft.data import datasets, federation
from graft.data.graphs import Graph
from graft.engines.capture import capture_stream
from graft.engines.in_process import InProcess
from graft.federation.evaluation import accuracy
from graft.federation.exchange import Clients, Request, Server, Traffic
from graft.federation.setup import Setup
from graft.methods.fedavg import FedAvg
from graft.models import build_model
from graft.tensors.trees import Tree

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

    def __init__(self, graphs: list[Graph], device: torch.device, cached: bool) -> None:
        torch.manual_seed(0)
        self.data = [self.prepare(graph, device) for graph in graphs]
        self.server = LoopModel(graphs[0].features, graphs[0].classes, cached).to(device)
        self.models = [copy.deepcopy(self.server) for _ in graphs]
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4) for model in self.models]
        self.nodes = torch.tensor([graph.nodes for graph in graphs])

    def prepare(self, graph: Graph, device: torch.device) -> tuple[Tensor, ...]:
        x = torch.from_numpy(graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray()).to(device)
        rest = [torch.from_numpy(part).to(device) for part in (graph.edges, graph.y, graph.train, graph.validation)]
        return (x, *rest, torch.from_numpy(graph.test).to(device))

    def round(self) -> tuple[float, float]:
        for model, optimizer, (x, edges, y, train, *_) in zip(self.models, self.optimizers, self.data, strict=True):
            model.load_state_dict(self.server.state_dict())
            model.train()
            for _ in range(EPOCHS):
                optimizer.zero_grad()
                functional.cross_entropy(model(x, edges)[train], y[train]).backward()
                optimizer.step()
        own = self.score(self.models)
        shares = self.nodes / self.nodes.sum()
        with torch.no_grad():
            for name, parameter in self.server.named_parameters():
                parameter.zero_()
                for share, model in zip(shares.tolist(), self.models, strict=True):
                    parameter.add_(share * model.get_parameter(name))
        return own, self.score([self.server] * len(self.models))

    @torch.no_grad()
    def score(self, models: list[nn.Module]) -> float:
        found = []
        for model, (x, edges, y, _, _, test) in zip(models, self.data, strict=True):
            model.eval()
            if model is self.server:  # a cached layer remembers one graph; the server's model visits many
                for layer in (self.server.first, self.server.second):
                    layer._cached_edge_index = None
            found.append((model(x, edges).argmax(1) == y)[test].float().mean())
        return float(torch.stack(found).mean())


class OneFleet:
    """FedAvg in Graft."""

    def __init__(self, graphs: list[Graph], device: torch.device, width: int = 64) -> None:
        model = build_model("gcn", graphs[0].features, graphs[0].classes, width=width)
        method = FedAvg()
        self.setup = Setup(method, "fedavg", graphs, [model] * len(graphs), width=width, device=device)
        self.engine = InProcess(self.setup)
        self.server = Server(model, self.setup.models, len(graphs), 0, device, self.setup.architecture)
        method.start_server(self.server)
        counted = self.engine.ask(Request("count", 0, self.engine.members()))
        self.totals, self.nodes = counted.totals.cpu(), counted.nodes.cpu()
        self.number = 0

    def round(self) -> tuple[float, float]:
        self.number += 1
        self.server.round = self.number
        with capture_stream(self.setup.device):
            found, _ = self.engine.play(self.server, "round", self.play)
        scores = [accuracy(found[name], self.totals, self.nodes).mean("test") for name in ("own", "common")]
        return scores[0] or 0.0, scores[1] or 0.0

    def play(self) -> tuple[Tree, None]:
        everyone = self.engine.members()
        self.setup.method.round(self.server, Clients(self.engine, self.number, everyone, Traffic()))
        own = self.engine.ask(Request("score", self.number, everyone))
        common = self.engine.ask(Request("score_shared", self.number, everyone, self.server.state.model))
        return Tree(own=own.correct, common=common.correct), None


def compare(
    dataset: str, clients: int, rounds: int, device: torch.device, cached: bool = False, warm: int = 3, often: int = 1
) -> dict[str, Any]:
    """Time both sides in turn: one round of the loop, then `often` rounds of the fleet."""
    graphs = federation.build(datasets.load(dataset), clients, seed=0).clients
    sides = {"loop": Loop(graphs, device, cached), "fleet": OneFleet(graphs, device)}
    middle, scores = alternate(sides, rounds, warm, {"fleet": often})
    return {
        "dataset": dataset,
        "clients": clients,
        "loop_ms": middle["loop"],
        "fleet_ms": middle["fleet"],
        "ratio": middle["loop"] / middle["fleet"],
        "loop_accuracy": scores["loop"],
        "fleet_accuracy": scores["fleet"],
    }


def alternate(
    sides: dict[Any, Any], rounds: int, warm: int = 3, often: dict[Any, int] | None = None
) -> tuple[dict[Any, float], dict[Any, Any]]:
    """Play rounds of all sides in turn, of some sides several at a time; of each the median milliseconds of a round,
    and the last scores. The first turns warm up caches and record rounds."""
    times: dict[Any, list[float]] = {name: [] for name in sides}
    scores = {}
    for number in range(rounds + warm):
        for name, side in sides.items():
            for _ in range((often or {}).get(name, 1)):
                start = time.perf_counter()
                scores[name] = side.round()  # the scores are read, so the device has finished
                if number >= warm:
                    times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}, scores


def memory(side: str, dataset: str, clients: int, device: str, cached: bool, results: Any) -> None:
    """Peak memory of one side alone, above what the process held when the data had been loaded."""
    graphs = federation.build(datasets.load(dataset), clients, seed=0).clients
    build: dict[str, Callable[[], Any]] = {
        "loop": lambda: Loop(graphs, torch.device(device), cached),
        "fleet": lambda: OneFleet(graphs, torch.device(device)),
    }
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
    before = resident("VmRSS")
    playing = build[side]()
    for _ in range(4):
        playing.round()
    results.put(torch.cuda.max_memory_allocated() if device == "cuda" else resident("VmHWM") - before)


def resident(name: str) -> int:
    """Memory of this process in bytes: now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def peak_memory(*arguments: Any) -> int:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    worker = context.Process(target=memory, args=(*arguments, results))
    worker.start()
    peak = results.get()
    worker.join()
    return peak  # type: ignore[no-any-return]


def options_of(doc: str | None, out: Path | None) -> argparse.ArgumentParser:
    """The options that all measurements have; each adds its own."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=out)
    return parser


def begun(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What was asked for, with so many threads from here on."""
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


def main() -> None:
    parser = options_of(__doc__, Path("benchmarks/out/fleet.json"))
    parser.add_argument("--datasets", default="cora,photo")
    parser.add_argument("--clients", default="5,10,20,100")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cached", action="store_true", help="let the stock layers cache the normalised graph")
    options = begun(parser)
    rows = []
    print(
        f"{'dataset':10}{'clients':>8}{'loop ms':>10}{'fleet ms':>10}{'ratio':>8}{'loop MB':>9}{'fleet MB':>9}"
        f"{'memory':>8}   accuracy own/global: loop, fleet"
    )
    for dataset in options.datasets.split(","):
        for clients in map(int, options.clients.split(",")):
            row = compare(dataset, clients, options.rounds, torch.device(options.device), options.cached)
            for side in ("loop", "fleet"):
                row[f"{side}_bytes"] = peak_memory(side, dataset, clients, options.device, options.cached)
            row["memory_ratio"] = row["fleet_bytes"] / row["loop_bytes"]
            rows.append(row)
            pairs = [
                " / ".join(f"{100 * value:.1f}" for value in row[f"{side}_accuracy"]) for side in ("loop", "fleet")
            ]
            print(
                f"{dataset:10}{clients:8}{row['loop_ms']:10.1f}{row['fleet_ms']:10.2f}{row['ratio']:8.1f}"
                f"{row['loop_bytes'] / 1e6:9.0f}{row['fleet_bytes'] / 1e6:9.0f}{row['memory_ratio']:8.2f}   "
                f"{pairs[0]}, {pairs[1]}",
                flush=True,
            )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"device": options.device, "threads": options.threads, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
