"""What a round must at least move and do, from its shapes, against what it takes: FedAvg and FedGKC on Cora.

Every pass reads weights, features (in sparse form) and graph once; activations are written once forwards and read once
backwards, those of the last layer only for the nodes of the loss; gradients are written once; Adam reads
and writes weights and both moments and reads gradients. The bound is the larger of bytes over the bandwidth of a copy
and operations over the rate of a product of matrices, both measured here. What twenty clients keep may fit into a
cache, so the copy is timed at that size too, and the faster one counts.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fleet import EPOCHS, graft_fedavg
from harness import make_parser, parse, write_results
from methods import five_architectures
from stock import ARCHITECTURES

from graft.data import datasets, federation
from graft.data.graphs import Graph
from graft.engines.memory import parameters_of
from graft.methods.fedgkc import FedGKC
from graft.models import build_model

WIDTH = 64
COPILOT = "gcn"  # of FedGKC, as on docs/performance.md
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


class Operations(NamedTuple):
    """What a forward pass of two layers is made of."""

    input_maps: int  # linear maps of the features
    hidden_maps: int  # linear maps of hidden nodes
    outputs: int  # activations that are kept
    propagations: int = 2  # products with the graph


OPERATIONS = {
    "gcn": Operations(1, 1, 2),
    "gat": Operations(1, 1, 2),
    "sage": Operations(2, 2, 2),
    "gin": Operations(1, 3, 2),
    "sgc": Operations(1, 0, 1),
}


class Client:
    """The costs of one client's passes; `share` is that of the nodes whose logits are wanted."""

    def __init__(self, graph: Graph, architecture: str) -> None:
        self.operations = OPERATIONS[architecture]
        self.nodes, self.classes = graph.nodes, graph.classes
        self.entries = graph.edges.shape[1] + graph.nodes  # of the graph, with self-loops
        self.stored = int(graph.x.nnz if hasattr(graph.x, "nnz") else np.count_nonzero(graph.x))  # of the features
        self.inputs = graph.features
        self.weights = parameters_of(build_model(architecture, graph.features, graph.classes))
        # A column and a value an entry; where rows begin is little beside it.
        self.data = 8.0 * (self.stored + self.entries)
        self.train_share = float(graph.train.mean()) if graph.train is not None else 0.0

    def outputs(self, share: float) -> float:
        """Returns the bytes of all activations, those of the last layer for a share of the nodes."""
        return 4.0 * self.nodes * ((self.operations.outputs - 1) * WIDTH + share * (WIDTH + self.classes))

    def forward(self, share: float = 1.0) -> Cost:
        """The last layer, where all maps of hidden nodes are counted, is computed for a share of the nodes."""
        operations, head = self.operations, 2 * share * self.nodes * WIDTH * self.classes
        hidden = share * operations.hidden_maps * self.nodes * WIDTH
        propagated = (operations.propagations - 1 + share) * self.entries
        done = 2 * WIDTH * (operations.input_maps * self.stored + hidden + propagated) + head
        return Cost(4 * self.weights + self.data + self.outputs(share), done)

    def forward_again(self) -> Cost:
        """Forward from the output of the first layer, which is the same with dropout and without."""
        maps = self.operations.input_maps
        first = 4 * maps * self.inputs * WIDTH + 8 * self.stored + 4 * self.nodes * WIDTH
        done = 2 * WIDTH * (maps * self.stored + self.entries)
        whole = self.forward()
        return Cost(whole.bytes - first, whole.operations - done)

    def backward(self, share: float = 1.0) -> Cost:
        operations, head = self.operations, 4 * share * self.nodes * WIDTH * self.classes
        hidden = 2 * share * operations.hidden_maps * self.nodes * WIDTH
        propagated = (operations.propagations - 1 + share) * self.entries
        done = 2 * WIDTH * (operations.input_maps * self.stored + hidden + propagated) + head
        return Cost(8 * self.weights + self.data + self.outputs(share), done)

    def epoch(self, share: float = 1.0) -> Cost:
        adam = Cost(28 * self.weights, ADAM_OPERATIONS * self.weights)
        return self.forward(share).plus(self.backward(share), adam)

    def average(self) -> Cost:
        """The weights go to the server and come back."""
        return Cost(8 * self.weights, 2 * self.weights)

    @property
    def kept(self) -> float:
        """Returns the bytes of weights, gradients and moments, and of the data."""
        return float(16 * self.weights + self.data)


def fedavg_cost(graphs: list[Graph]) -> tuple[Cost, float]:
    """Returns what a round costs, and how much is kept in memory for it."""
    clients = [Client(graph, "gcn") for graph in graphs]
    rounds = [
        client.epoch(client.train_share).times(EPOCHS).plus(client.forward().times(2), client.average())
        for client in clients
    ]
    return Cost().plus(*rounds), sum(client.kept for client in clients)


def fedgkc_cost(graphs: list[Graph]) -> tuple[Cost, float]:
    """The copilot trains; the local model trains, is judged, and learns from the copilot; then knowledge and scores."""
    rounds, kept = [], 0.0
    for number, graph in enumerate(graphs):
        copilot, local = Client(graph, COPILOT), Client(graph, ARCHITECTURES[number % len(ARCHITECTURES)])
        epoch = copilot.epoch().plus(local.epoch(), local.forward_again(), copilot.forward())
        knowledge = Cost(8 * copilot.entries + 4 * graph.nodes * graph.classes, 2 * copilot.entries * graph.classes)
        rounds.append(epoch.times(EPOCHS).plus(knowledge, copilot.average(), local.forward()))
        kept += copilot.kept + local.kept
    return Cost().plus(*rounds), kept


def least_seconds(function: Any, device: torch.device, repeats: int) -> float:
    """Returns the least seconds of several calls."""
    best = float("inf")
    for _ in range(repeats + 2):
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def copy_bandwidth(device: torch.device, size: float = 0.0, repeats: int = 10) -> float:
    """Returns the bytes a second that a copy reads and writes; without a size, of one larger than any cache."""
    size = size or (4e9 if device.type == "cuda" else 5e8)
    source = torch.zeros(int(size) // 8, device=device)  # half of it, in numbers of four bytes
    target = torch.ones_like(source)
    copies = max(1, int(1e9 // size)) if device.type == "cuda" else 1  # or the launch would count

    def copy() -> None:
        for _ in range(copies):
            target.copy_(source)

    return copies * 8 * len(source) / least_seconds(copy, device, repeats)


def product_rate(device: torch.device, repeats: int = 5) -> float:
    """Returns the operations a second of a large product of matrices."""
    size = 8192 if device.type == "cuda" else 1536
    matrix = torch.rand(size, size, device=device)
    return 2 * size**3 / least_seconds(lambda: matrix @ matrix, device, repeats)


def measure(device: torch.device, clients: int = 20, rounds: int = 10, warmup: int = 5) -> list[dict[str, Any]]:
    graphs = federation.build(datasets.load("cora"), clients, seed=0).clients
    bandwidth, rate = copy_bandwidth(device), product_rate(device)
    rows = []
    for name, cost_of in (("fedavg", fedavg_cost), ("fedgkc", fedgkc_cost)):
        cost, kept = cost_of(graphs)
        bandwidth_of_kept = copy_bandwidth(device, kept, 20)
        method = FedGKC(copilot=COPILOT, self_weight=0.0)
        side = graft_fedavg(graphs, device) if name == "fedavg" else five_architectures(graphs, device, method)
        times = []
        for _ in range(rounds + warmup):
            start = time.perf_counter()
            side.round()
            times.append(1000 * (time.perf_counter() - start))
        milliseconds = statistics.median(times[warmup:])
        bytes_ms = 1000 * cost.bytes / max(bandwidth, bandwidth_of_kept)
        operations_ms = 1000 * cost.operations / rate
        bound = max(bytes_ms, operations_ms)
        row = {"method": name, "dataset": "cora", "clients": clients, "bytes": cost.bytes, "kept_bytes": kept}
        row |= {"operations": cost.operations, "copy_gb_s": bandwidth / 1e9}
        row |= {"copy_of_kept_gb_s": bandwidth_of_kept / 1e9, "product_gflop_s": rate / 1e9}
        row |= {"bytes_ms": bytes_ms, "operations_ms": operations_ms}
        rows.append(row | {"bound_ms": bound, "ms": milliseconds, "share": bound / milliseconds})
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
    parser = make_parser(__doc__, Path("benchmarks/out/roofline.json"))
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    options = parse(parser)
    rows = measure(torch.device(options.device), options.clients, options.rounds)
    print(HEADER, *map(show, rows), sep="\n")
    write_results(options, rows=rows)


if __name__ == "__main__":
    main()
