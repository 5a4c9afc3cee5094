"""Large graphs: how long a round takes, how much memory, and how near to the memory's bandwidth its kernels come.

`arxiv` has the size of ogbn-arxiv (169,343 nodes, 1,166,243 edges) and runs FedGKC with ten clients and five
architectures; `products` that of ogbn-products (2.4 million nodes, 62 million edges) and runs FedAvg with twenty
clients and a GCN of width 64. Every client gets a generated graph of its own, so no edge is lost between clients.

On a GPU a few rounds are profiled; `traffic.py` counts their bytes, call by call, in a round that is not replayed. The
time of a family of kernels is that in which at least one of them runs.
"""

from __future__ import annotations

import multiprocessing
import re
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fleet import graft_fedavg
from harness import GraftSide, Side, make_parser, parse, write_results
from methods import five_architectures
from roofline import copy_bandwidth
from traffic import Moved, count_bytes_moved

from graft.data.graphs import Graph
from graft.data.splits import split
from graft.data.synthetic import generate
from graft.engines.in_process import InProcess
from graft.engines.memory import peak_memory
from graft.engines.threads import cores
from graft.methods.fedgkc import FedGKC


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
FAMILIES = {  # by the names of kernels; the rest is one more
    "product": r"^product_\d|cusparse",
    "attention": r"^attention_weights|^row_sums",
    "dropout": r"^dropout",
    "adam": r"^adam",
    "dense": r"gemm|gemv|cutlass|splitK",
}


def build_graphs(size: Size, scale: float = 1.0) -> list[Graph]:
    """Returns the graphs of all clients, each made by a process of its own."""
    nodes, left = divmod(int(size.nodes * scale), size.clients)
    degree = 2 * size.edges / size.nodes
    classes = max(2, min(size.classes, int(nodes / (2 * degree))))  # few in a small graph, or it would be too dense
    sizes = [(nodes + (seed < left), degree, classes, size.features, seed) for seed in range(size.clients)]
    # Forked, so that nothing is imported again; what is made there never touches a GPU.
    with multiprocessing.get_context("fork").Pool(min(cores(), size.clients)) as workers:
        graphs = workers.starmap(build_graph, sizes, chunksize=1)
    return split(graphs, "20/40/40", seed=0)


def build_graph(nodes: int, degree: float, classes: int, features: int, seed: int) -> Graph:
    return generate(nodes=nodes, degree=degree, classes=classes, homophily=0.8, features=features, seed=seed)


def measure(name: str, device: torch.device, scale: float = 1.0, rounds: int = 10) -> dict[str, Any]:
    """Returns time and memory of the rounds of one size; on a GPU also what its kernels do."""
    start = time.perf_counter()
    graphs = build_graphs(SIZES[name], scale)
    generated = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    method = FedGKC(copilot="gcn", self_weight=0.0)  # as on docs/performance.md
    side = five_architectures(graphs, device, method) if name == "arxiv" else graft_fedavg(graphs, device)
    row: dict[str, Any] = {
        "size": name,
        "scale": scale,
        "clients": len(graphs),
        "nodes": sum(graph.nodes for graph in graphs),
        "edges": sum(graph.edge_count for graph in graphs),
        "features": graphs[0].features,
        "classes": graphs[0].classes,
        "generated_s": generated - start,
    }
    del graphs
    side.round()
    with count_bytes_moved() as moved:  # the second round is not replayed either, and does what all others do
        side.round()
    for _ in range(3 if device.type == "cuda" else 0):
        side.round()
    row["built_s"] = time.perf_counter() - generated
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        side.round()
        times.append(1000 * (time.perf_counter() - begun))
    peak = peak_memory(device)
    row |= {"ms": statistics.median(times), "peak_bytes": peak, "moved": moved, "captured": is_captured(side)}
    if device.type == "cuda":
        row["copy_gb_s"] = copy_bandwidth(device) / 1e9
        row |= profile(side, moved, row["copy_gb_s"])
    return row


def is_captured(side: GraftSide) -> bool:
    """Returns whether whole rounds are replayed."""
    engine = side.session.engine
    return isinstance(engine, InProcess) and engine.rounds is not None and bool(engine.rounds.captured)


def profile(side: Side, moved: Moved, copy: float, rounds: int = 3) -> dict[str, Any]:
    """Returns which kernels the time of a round goes to, and how fast those move bytes whose bytes were counted."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(rounds):
            side.round()
        torch.cuda.synchronize()
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in profiler.events():
        if event.device_type.name == "CUDA":
            spans[event.name].append((event.time_range.start, event.time_range.end))
    busy = covered([span for kernel_spans in spans.values() for span in kernel_spans])
    total = {name: sum(stop - start for start, stop in kernel_spans) for name, kernel_spans in spans.items()}
    kernel_rows = [
        {
            "kernel": name,
            "calls": len(spans[name]) / rounds,
            "ms": total[name] / 1000 / rounds,
            "share": total[name] / sum(total.values()),
        }
        for name in sorted(spans, key=total.__getitem__, reverse=True)
    ]
    families = []
    for family in [*FAMILIES, "rest"]:
        own = [span for name, kernel_spans in spans.items() if family_of(name) == family for span in kernel_spans]
        if not own or family not in moved:
            continue
        seconds = covered(own) / 1e6 / rounds
        rate, least = (moved[family][kind] / seconds / 1e9 for kind in ("bytes", "least_bytes"))
        row = {"family": family, "calls": len(own) / rounds, "ms": 1000 * seconds, "share": covered(own) / busy}
        row |= {"gb_s": rate, "of_copy": rate / copy, "least_gb_s": least, "least_of_copy": least / copy}
        families.append(row)
    rate_of_all = sum(counts["bytes"] for counts in moved.values()) / (busy / 1e6 / rounds) / 1e9
    everything = {"gb_s": rate_of_all, "of_copy": rate_of_all / copy}
    return {"busy_ms": busy / 1000 / rounds, "all": everything, "kernels": kernel_rows[:25], "families": families}


def family_of(kernel: str) -> str:
    return next((family for family, pattern in FAMILIES.items() if re.search(pattern, kernel)), "rest")


def covered(spans: list[tuple[float, float]]) -> float:
    """Returns how long at least one of them lasts."""
    total, until = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return total


def show(row: dict[str, Any]) -> str:
    """Returns a few lines about one size."""
    lines = [
        f"{row['size']}: {row['clients']} clients, {row['nodes']:,} nodes, {row['edges']:,} edges: {row['ms']:.1f} ms "
        f"a round, {row['peak_bytes'] / 1e9:.2f} GB (generated in {row['generated_s']:.1f} s, built in "
        f"{row['built_s']:.1f} s)"
    ]
    if "kernels" in row:
        lines.append(
            f"  a kernel runs for {row['busy_ms']:.2f} ms of a round; {row['all']['gb_s']:.0f} GB/s are moved, "
            f"{100 * row['all']['of_copy']:.1f} % of a copy's {row['copy_gb_s']:.0f}"
        )
        lines += [
            f"  {family['family']:10}{family['calls']:7.0f} calls{family['ms']:9.3f} ms, {100 * family['share']:5.1f} "
            f"% of the busy time: {family['gb_s']:7.0f} GB/s, {100 * family['of_copy']:5.1f} % of a copy's (at least "
            f"{100 * family['least_of_copy']:.1f} %)"
            for family in row["families"]
        ]
        lines += [
            f"  {short(kernel['kernel']):76}{kernel['calls']:7.0f}{kernel['ms']:9.3f} ms{100 * kernel['share']:7.1f} %"
            for kernel in row["kernels"][:12]
        ]
    return "\n".join(lines)


def short(kernel: str) -> str:
    """Returns a name without what all kernels of PyTorch have in common."""
    for common in ("void ", "at::native::", "at_cuda_detail::", "(anonymous namespace)::", "gpu_kernel_impl_nocast"):
        kernel = kernel.replace(common, "")
    return kernel[:74]


def main() -> None:
    parser = make_parser(__doc__, Path("benchmarks/out/large.json"))
    cuda = torch.cuda.is_available()
    parser.add_argument("--sizes", default="arxiv,products" if cuda else "arxiv")
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the size, to try it out")
    parser.add_argument("--rounds", type=int, default=10 if cuda else 5)
    options = parse(parser)
    rows = []
    for name in options.sizes.split(","):
        rows.append(measure(name, torch.device(options.device), options.scale, options.rounds))
        print(show(rows[-1]), flush=True)
        write_results(options, rows=rows)


if __name__ == "__main__":
    main()
