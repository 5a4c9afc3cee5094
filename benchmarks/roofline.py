"""What a round must at least move and do, from its shapes, against what it takes: FedAvg and FedGKC on Cora.

Every pass reads weights, features (in sparse form) and graph once; activations are written once forwards and read once
backwards, those of the last layer only for the nodes that the loss asks about; gradients are written once; Adam reads
and writes weights and both moments and reads gradients. The bound is the larger of bytes over the bandwidth of a copy
and operations over the rate of a product of matrices, both measured here. What twenty clients keep may fit into a
cache, so the copy is timed at that size too, and the faster one counts.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fleet import EPOCHS, OneFleet, begun, options_of
from methods import ORDER, GraftFedGKC

from graft.data import datasets, federation
from graft.data.graphs import Graph
from graft.engines.memory import parameters_of
from graft.methods.fedgkc import FedGKC
from graft.models import build_model

WIDTH = 64
ADAM_OPERATIONS = 12  # a parameter: two moments, their corrections, a root, a division


class Cost(NamedTuple):
    """Bytes to move and operations to do."""

    bytes: float = 0.0
    operations: float = 0.0

    def plus(self, *others: Cost) -> Cost:
        costs = (self, *others)
        return Cost(sum(cost.bytes for cost in costs), sum(cost.operations for cost in costs))

    def times(self, count: float) -> Cost:
        return Cost(count * self.bytes, count * self.operations)


class Made(NamedTuple):
    """What an architecture of two layers is made of."""

    wide: int  # maps of the features
    narrow: int  # maps of hidden nodes
    layers: int  # outputs that are kept
    spreads: int = 2  # products with the graph


MADE = {"gcn": Made(1, 1, 2), "gat": Made(1, 1, 2), "sage": Made(2, 2, 2), "gin": Made(1, 3, 2), "sgc": Made(1, 0, 1)}


class Client:
    """The costs of one client's passes."""

    def __init__(self, graph: Graph, architecture: str) -> None:
        self.made = MADE[architecture]
        self.nodes, self.classes = graph.nodes, graph.classes
        self.entries = graph.edges.shape[1] + graph.nodes  # of the graph, with every node's edge to itself
        self.stored: int = graph.x.nnz if hasattr(graph.x, "nnz") else graph.x.size  # of the features
        self.inputs = graph.features
        self.weights = parameters_of(build_model(architecture, graph.features, graph.classes))
        # A column and a value an entry; where rows begin is little beside it.
        self.data = 8.0 * (self.stored + self.entries)
        self.asked = float(graph.train.mean()) if graph.train is not None else 0.0  # the share of training nodes

    def outputs(self, asked: float) -> float:
        """Bytes of what all layers say, the last one of a share of the nodes."""
        return 4.0 * self.nodes * ((self.made.layers - 1) * WIDTH + asked * (WIDTH + self.classes))

    def forward(self, asked: float = 1.0) -> Cost:
        """The last layer is asked about a share of the nodes; that is where all narrow maps are counted."""
        made, head = self.made, 2 * asked * self.nodes * WIDTH * self.classes
        narrow, spread = asked * made.narrow * self.nodes * WIDTH, (made.spreads - 1 + asked) * self.entries
        done = 2 * WIDTH * (made.wide * self.stored + narrow + spread) + head
        return Cost(4 * self.weights + self.data + self.outputs(asked), done)

    def second_look(self) -> Cost:
        """Forwards from what the first layer said, which is the same with dropout and without."""
        first = 4 * self.made.wide * self.inputs * WIDTH + 8 * self.stored + 4 * self.nodes * WIDTH
        done = 2 * WIDTH * (self.made.wide * self.stored + self.entries)
        whole = self.forward()
        return Cost(whole.bytes - first, whole.operations - done)

    def backward(self, asked: float = 1.0) -> Cost:
        made, head = self.made, 4 * asked * self.nodes * WIDTH * self.classes
        narrow, spread = 2 * asked * made.narrow * self.nodes * WIDTH, (made.spreads - 1 + asked) * self.entries
        done = 2 * WIDTH * (made.wide * self.stored + narrow + spread) + head
        return Cost(8 * self.weights + self.data + self.outputs(asked), done)

    def epoch(self, asked: float = 1.0) -> Cost:
        adam = Cost(28 * self.weights, ADAM_OPERATIONS * self.weights)
        return self.forward(asked).plus(self.backward(asked), adam)

    def average(self) -> Cost:
        """The weights go to the server and come back."""
        return Cost(8 * self.weights, 2 * self.weights)

    @property
    def kept(self) -> float:
        """Weights, gradients and moments, and the data."""
        return float(16 * self.weights + self.data)


def fedavg(graphs: list[Graph]) -> tuple[Cost, float]:
    """What a round costs, and how much is kept in memory for it."""
    clients = [Client(graph, "gcn") for graph in graphs]
    rounds = [one.epoch(one.asked).times(EPOCHS).plus(one.forward().times(2), one.average()) for one in clients]
    return Cost().plus(*rounds), sum(one.kept for one in clients)


def fedgkc(graphs: list[Graph]) -> tuple[Cost, float]:
    """The copilot trains; the local model trains, is judged, and hears the copilot; then knowledge and a score."""
    rounds, kept = [], 0.0
    for place, graph in enumerate(graphs):
        copilot, local = Client(graph, "gcn"), Client(graph, ORDER[place % len(ORDER)])
        epoch = copilot.epoch().plus(local.epoch(), local.second_look(), copilot.forward())
        knowledge = Cost(8 * copilot.entries + 4 * graph.nodes * graph.classes, 2 * copilot.entries * graph.classes)
        rounds.append(epoch.times(EPOCHS).plus(knowledge, copilot.average(), local.forward()))
        kept += copilot.kept + local.kept
    return Cost().plus(*rounds), kept


def timed(function: Any, device: torch.device, repeats: int) -> float:
    """The least seconds of several calls."""
    best = float("inf")
    for _ in range(repeats + 2):
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def copy_bandwidth(device: torch.device, size: float = 0.0, repeats: int = 10) -> float:
    """Bytes a second that a copy reads and writes; as much as a GPU or a CPU streams, unless a size is given."""
    size = size or (4e9 if device.type == "cuda" else 5e8)
    source = torch.zeros(int(size) // 8, device=device)  # half of it, in numbers of four bytes
    into = torch.ones_like(source)
    many = max(1, int(1e9 // size)) if device.type == "cuda" else 1  # or the launch would count

    def copies() -> None:
        for _ in range(many):
            into.copy_(source)

    return many * 8 * len(source) / timed(copies, device, repeats)


def product_rate(device: torch.device, repeats: int = 5) -> float:
    """Operations a second of a large product of matrices."""
    size = 8192 if device.type == "cuda" else 1536
    one = torch.rand(size, size, device=device)
    return 2 * size**3 / timed(lambda: one @ one, device, repeats)


def measure(device: torch.device, clients: int = 20, rounds: int = 10) -> list[dict[str, Any]]:
    graphs = federation.build(datasets.load("cora"), clients, seed=0).clients
    bandwidth, rate = copy_bandwidth(device), product_rate(device)
    rows = []
    for name, count in (("fedavg", fedavg), ("fedgkc", fedgkc)):
        cost, kept = count(graphs)
        near = copy_bandwidth(device, kept, 20)
        side = OneFleet(graphs, device) if name == "fedavg" else GraftFedGKC(graphs, device, FedGKC())
        times = []
        for _ in range(rounds + 5):
            start = time.perf_counter()
            side.round()
            times.append(1000 * (time.perf_counter() - start))
        took = statistics.median(times[5:])
        moving, doing = 1000 * cost.bytes / max(bandwidth, near), 1000 * cost.operations / rate
        row = {"method": name, "dataset": "cora", "clients": clients, "bytes": cost.bytes, "kept_bytes": kept}
        row |= {"operations": cost.operations, "copy_gb_s": bandwidth / 1e9, "copy_of_kept_gb_s": near / 1e9}
        row |= {"product_gflop_s": rate / 1e9, "bytes_ms": moving, "operations_ms": doing}
        rows.append(row | {"bound_ms": max(moving, doing), "ms": took, "share": max(moving, doing) / took})
    return rows


def show(row: dict[str, Any]) -> str:
    return (
        f"{row['method']:8}{row['bytes'] / 1e6:9.1f}{row['operations'] / 1e9:9.3f}{row['copy_gb_s']:11.1f}"
        f"{row['copy_of_kept_gb_s']:13.1f}{row['product_gflop_s']:9.0f}{row['bytes_ms']:10.3f}"
        f"{row['operations_ms']:9.3f}{row['ms']:9.2f}{100 * row['share']:8.1f}"
    )


HEADER = (
    f"{'method':8}{'MB':>9}{'Gflop':>9}{'copy GB/s':>11}{'in cache':>13}{'Gflop/s':>9}{'bytes ms':>10}"
    f"{'flop ms':>9}{'ms':>9}{'share %':>8}"
)


def main() -> None:
    parser = options_of(__doc__, Path("benchmarks/out/roofline.json"))
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    options = begun(parser)
    rows = measure(torch.device(options.device), options.clients, options.rounds)
    print(HEADER, *map(show, rows), sep="\n")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"device": options.device, "threads": options.threads, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
