"""Large graphs: how long a round takes, how much memory, and how near to the memory's bandwidth its kernels come.

`arxiv` has the size of ogbn-arxiv (169,343 nodes, 1,166,243 edges) and plays FedGKC with ten clients and five
architectures; `products` that of ogbn-products (2.4 million nodes, 62 million edges) and plays FedAvg with twenty
clients and a GCN of width 64. Every client gets a generated graph of its own, so no edge is lost between clients.

On a GPU a few rounds are profiled. Bytes are counted call by call in a round that is not replayed. A sparse product
reads for each entry its column, its value if it has one, and a row of the dense matrix, and where each row begins, and
writes its result: that is what it moves, though caches serve a part of it. At least it must read the dense matrix once
instead. Dropout reads and writes every number; Adam reads weights, gradients and two moments and writes all but the
gradients. The time of a family of kernels is that in which at least one of them runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from fleet import OneFleet, resident
from methods import GraftFedGKC
from roofline import copy_bandwidth
from torch import Tensor

from graft import kernels
from graft.data.graphs import Graph
from graft.data.splits import split
from graft.data.synthetic import generate
from graft.methods.fedgkc import FedGKC
from graft.sparse import BlockSparse


class Size(NamedTuple):
    nodes: int
    edges: int
    features: int
    classes: int
    clients: int


SIZES = {
    "arxiv": Size(169_343, 1_166_243, 128, 40, 10),
    "products": Size(2_400_000, 62_000_000, 100, 47, 20),
}
FAMILIES = {"product": r"^product_\d|csrmm", "dropout": r"^dropped", "adam": r"^adam"}  # by the names of kernels


def build_graphs(size: Size, scale: float = 1.0) -> list[Graph]:
    """The graphs of all clients, each made by a process of its own."""
    nodes, left = divmod(int(size.nodes * scale), size.clients)
    degree = 2 * size.edges / size.nodes
    classes = max(2, min(size.classes, int(nodes / (2 * degree))))  # few in a small graph, or it would be too dense
    wanted = [(nodes + (seed < left), degree, classes, size.features, seed) for seed in range(size.clients)]
    # Forked, so that nothing is imported again; what is made there never touches a GPU.
    with multiprocessing.get_context("fork").Pool(min(len(os.sched_getaffinity(0)), size.clients)) as workers:
        graphs = workers.starmap(one_graph, wanted, chunksize=1)
    return split(graphs, "20/40/40", seed=0)


def one_graph(nodes: int, degree: float, classes: int, features: int, seed: int) -> Graph:
    return generate(nodes=nodes, degree=degree, classes=classes, homophily=0.8, features=features, seed=seed)


def measure(name: str, device: torch.device, scale: float = 1.0, rounds: int = 10) -> dict[str, Any]:
    """Time and memory of the rounds of one size; on a GPU also what its kernels do."""
    started = time.perf_counter()
    graphs = build_graphs(SIZES[name], scale)
    generated = time.perf_counter() - started
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    side = GraftFedGKC(graphs, device, FedGKC()) if name == "arxiv" else OneFleet(graphs, device)
    about: dict[str, Any] = {
        "size": name,
        "scale": scale,
        "clients": len(graphs),
        "nodes": sum(graph.nodes for graph in graphs),
    }
    about |= {"edges": sum(graph.edge_count for graph in graphs), "features": graphs[0].features}
    about |= {"classes": graphs[0].classes, "generated_s": generated}
    del graphs
    side.round()
    with counted() as moved:  # the second round is not replayed either, and does what all others do
        side.round()
    for _ in range(3 if device.type == "cuda" else 0):
        side.round()
    about["built_s"] = time.perf_counter() - started - generated
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        side.round()
        times.append(1000 * (time.perf_counter() - start))
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else resident("VmHWM")
    about |= {"ms": statistics.median(times), "peak_bytes": peak, "moved": moved}
    about["whole_rounds"] = side.engine.rounds is not None and bool(side.engine.rounds.recordings)
    if device.type == "cuda":
        about |= {"copy_gb_s": copy_bandwidth(device) / 1e9}
        about |= profiled(side, moved, about["copy_gb_s"])
    return about


@contextmanager
def counted() -> Iterator[dict[str, dict[str, float]]]:
    """Count what sparse products, dropout and Adam move in a round."""
    moved: dict[str, dict[str, float]] = defaultdict(lambda: {"calls": 0, "bytes": 0, "least_bytes": 0})

    def add(family: str, size: float, least: float) -> None:
        for name, value in (("calls", 1), ("bytes", size), ("least_bytes", least)):
            moved[family][name] += value

    times, drop, adam = BlockSparse.times, kernels.drop, kernels.adam

    def counting_times(self: BlockSparse, dense: Tensor) -> Tensor:
        if self.entries and not (self.blocks > 1 and dense.stride(0) == 0):  # which comes back here as one block
            wide, rows = 4 * dense.shape[-1], self.blocks * self.rows
            pattern = self.entries * (4 if self.values is None else 8) + 4 * rows
            out = rows * wide
            add("product", pattern + self.entries * wide + out, pattern + self.blocks * self.width * wide + out)
        return times(self, dense)

    def counting_drop(keys: Tensor, draws: int, values: Tensor, *rest: Any) -> Tensor | None:
        add("dropout", 8 * values.numel(), 8 * values.numel())
        return drop(keys, draws, values, *rest)

    def counting_adam(rate: float, decay: float, steps: Tensor, weights: Tensor, *rest: Any) -> None:
        add("adam", 28 * weights.numel(), 28 * weights.numel())
        adam(rate, decay, steps, weights, *rest)

    with (
        patch.object(BlockSparse, "times", counting_times),
        patch.object(kernels, "drop", counting_drop),
        patch.object(kernels, "adam", counting_adam),
    ):
        yield moved


def profiled(side: Any, moved: dict[str, dict[str, float]], copy: float, rounds: int = 3) -> dict[str, Any]:
    """Which kernels the time of a round goes to, and how fast those move bytes whose bytes were counted."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(rounds):
            side.round()
        torch.cuda.synchronize()
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in profiler.events():
        if event.device_type.name == "CUDA":
            spans[event.name].append((event.time_range.start, event.time_range.end))
    busy = covered([span for found in spans.values() for span in found])
    lasting = {name: sum(stop - start for start, stop in found) for name, found in spans.items()}
    kernel_rows = [
        {
            "kernel": name,
            "calls": len(spans[name]) / rounds,
            "ms": lasting[name] / 1000 / rounds,
            "share": lasting[name] / sum(lasting.values()),
        }
        for name in sorted(spans, key=lasting.__getitem__, reverse=True)
    ]
    families = []
    for family, pattern in FAMILIES.items():
        own = [span for name, found in spans.items() if re.search(pattern, name) for span in found]
        if not own or family not in moved:
            continue
        seconds = covered(own) / 1e6 / rounds
        rate, least = (moved[family][kind] / seconds / 1e9 for kind in ("bytes", "least_bytes"))
        row = {"family": family, "calls": len(own) / rounds, "ms": 1000 * seconds, "share": covered(own) / busy}
        row |= {"gb_s": rate, "of_copy": rate / copy, "least_gb_s": least, "least_of_copy": least / copy}
        families.append(row)
    return {"busy_ms": busy / 1000 / rounds, "kernels": kernel_rows[:25], "families": families}


def covered(spans: list[tuple[float, float]]) -> float:
    """How long at least one of them lasts."""
    total, until = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return total


def show(row: dict[str, Any]) -> str:
    """A few lines about one size."""
    lines = [
        f"{row['size']}: {row['clients']} clients, {row['nodes']:,} nodes, {row['edges']:,} edges: {row['ms']:.1f} ms "
        f"a round, {row['peak_bytes'] / 1e9:.2f} GB (generated in {row['generated_s']:.1f} s, built in "
        f"{row['built_s']:.1f} s)"
    ]
    if "kernels" in row:
        lines.append(
            f"  a kernel runs for {row['busy_ms']:.2f} ms of a round; a copy moves {row['copy_gb_s']:.0f} GB/s"
        )
        lines += [
            f"  {one['family']:10}{one['calls']:7.0f} calls{one['ms']:9.3f} ms, {100 * one['share']:5.1f} % of the "
            f"busy time: {one['gb_s']:7.0f} GB/s, {100 * one['of_copy']:5.1f} % of a copy's (at least "
            f"{100 * one['least_of_copy']:.1f} %)"
            for one in row["families"]
        ]
        lines += [
            f"  {one['kernel'][:76]:76}{one['calls']:7.0f}{one['ms']:9.3f} ms{100 * one['share']:7.1f} %"
            for one in row["kernels"][:12]
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    cuda = torch.cuda.is_available()
    parser.add_argument("--sizes", default="arxiv,products" if cuda else "arxiv")
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the size, to try it out")
    parser.add_argument("--rounds", type=int, default=10 if cuda else 5)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/large.json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.sizes.split(","):
        rows.append(measure(name, torch.device(options.device), options.scale, options.rounds))
        print(show(rows[-1]), flush=True)
        about = {"device": options.device, "threads": options.threads, "rows": rows}
        options.out.write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
