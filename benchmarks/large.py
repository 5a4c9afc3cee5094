"""Large graphs: how long a round takes, how much memory, and how near to the memory's bandwidth its kernels come.

`arxiv` has the size of ogbn-arxiv (169,343 nodes, 1,166,243 edges) and plays FedGKC with ten clients and five
architectures; `products` that of ogbn-products (2.4 million nodes, 62 million edges) and plays FedAvg with twenty
clients and a GCN of width 64. Every client gets a generated graph of its own, so no edge is lost between clients.

On a GPU a few rounds are profiled. Bytes are counted call by call in a round that is not replayed. A sparse product
reads for each entry its column, its value if it has one, and a row of the dense matrix, and where each row begins, and
writes its result: that is what it moves, though caches serve a part of it. At least it must read the dense matrix once
instead. Attention reads for each entry its column, a number of its other end and, on the way back, a row of that, and
writes a number. Dropout reads and writes every number; Adam reads weights, gradients and two moments and writes all but
the gradients. All other operations read their arguments and write their results, once each: dense products, and the
rest. The time of a family of kernels is that in which at least one of them runs.
"""

from __future__ import annotations

import json
import math
import multiprocessing
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
from fleet import OneFleet, begun, options_of, resident
from methods import GraftFedGKC
from roofline import copy_bandwidth
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graft.data.graphs import Graph
from graft.data.splits import split
from graft.data.synthetic import generate
from graft.engines.threads import cores
from graft.methods.fedgkc import FedGKC
from graft.tensors import kernels
from graft.tensors.sparse import BlockSparse


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
    "attention": r"^shares|^sums",
    "dropout": r"^dropped",
    "adam": r"^adam",
    "dense": r"gemm|gemv|cutlass|splitK",
}
DENSE = ("mm", "bmm", "addmm", "baddbmm")  # operations that are dense products


def build_graphs(size: Size, scale: float = 1.0) -> list[Graph]:
    """The graphs of all clients, each made by a process of its own."""
    nodes, left = divmod(int(size.nodes * scale), size.clients)
    degree = 2 * size.edges / size.nodes
    classes = max(2, min(size.classes, int(nodes / (2 * degree))))  # few in a small graph, or it would be too dense
    wanted = [(nodes + (seed < left), degree, classes, size.features, seed) for seed in range(size.clients)]
    # Forked, so that nothing is imported again; what is made there never touches a GPU.
    with multiprocessing.get_context("fork").Pool(min(cores(), size.clients)) as workers:
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

    times, drop, adam = BlockSparse.times, kernels.dropout, kernels.adam
    shares, shares_back, sums = kernels.attention_weights, kernels.attention_weights_backward, kernels.sums

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

    def counting_shares(starts: Tensor, columns: Tensor, *rest: Any) -> Tensor:
        size = 12 * columns.numel() + 8 * starts.numel()
        add("attention", size, size)
        return shares(starts, columns, *rest)

    def counting_back(starts: Tensor, columns: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        dense = 2 * 4 * rest[-2].numel()
        size, wide = 16 * columns.numel() + 12 * starts.numel(), 4 * rest[-2].shape[1]
        add("attention", size + wide * columns.numel() + dense / 2, size + dense)
        return shares_back(starts, columns, *rest)

    def counting_sums(starts: Tensor, values: Tensor, order: Tensor) -> Tensor:
        size = 12 * order.numel() + 8 * starts.numel()
        add("attention", size, size)
        return sums(starts, values, order)

    class Operations(TorchDispatchMode):
        """Sees all operations but the kernels of our own."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            name = function.overloadpacket.__name__
            size = moved_by(name, args, result)
            if size:
                add("dense" if name in DENSE else "rest", size, size)
            return result

    with (
        Operations(),
        patch.object(kernels, "shares", counting_shares),
        patch.object(kernels, "shares_back", counting_back),
        patch.object(kernels, "sums", counting_sums),
        patch.object(BlockSparse, "times", counting_times),
        patch.object(kernels, "drop", counting_drop),
        patch.object(kernels, "adam", counting_adam),
    ):
        yield moved


def moved_by(name: str, args: Any, result: Any) -> int:
    """Bytes of the arguments and results of an operation; none of one that gives a view, or memory to fill."""
    if name.startswith(("empty", "new_empty", "_local_scalar", "sparse", "_sparse")):
        return 0  # sparse products are counted where they are asked for
    given = {id(one): one for one in flat_tensors(args)}.values()
    made = flat_tensors(result)
    places = {one.untyped_storage().data_ptr() for one in given}
    if not name.endswith("_") and any(one.untyped_storage().data_ptr() in places for one in made):
        return 0
    return sum(map(stored, given)) + sum(map(stored, made))


def flat_tensors(values: Any) -> list[Tensor]:
    found = values if isinstance(values, list | tuple) else [values]
    tensors = [one for part in found for one in (part if isinstance(part, list | tuple) else [part])]
    return [one for one in tensors if isinstance(one, Tensor) and one.layout == torch.strided]


def stored(tensor: Tensor) -> int:
    """Bytes that a tensor is: an axis along which it repeats itself costs nothing."""
    own = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size == 1)
    return math.prod(own) * tensor.element_size() if tensor.numel() else 0


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
    for family in [*FAMILIES, "rest"]:
        own = [span for name, found in spans.items() if family_of(name) == family for span in found]
        if not own or family not in moved:
            continue
        seconds = covered(own) / 1e6 / rounds
        rate, least = (moved[family][kind] / seconds / 1e9 for kind in ("bytes", "least_bytes"))
        row = {"family": family, "calls": len(own) / rounds, "ms": 1000 * seconds, "share": covered(own) / busy}
        row |= {"gb_s": rate, "of_copy": rate / copy, "least_gb_s": least, "least_of_copy": least / copy}
        families.append(row)
    everything = sum(one["bytes"] for one in moved.values()) / (busy / 1e6 / rounds) / 1e9
    about = {"gb_s": everything, "of_copy": everything / copy}
    return {"busy_ms": busy / 1000 / rounds, "all": about, "kernels": kernel_rows[:25], "families": families}


def family_of(kernel: str) -> str:
    return next((family for family, pattern in FAMILIES.items() if re.search(pattern, kernel)), "rest")


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
            f"  a kernel runs for {row['busy_ms']:.2f} ms of a round; {row['all']['gb_s']:.0f} GB/s are moved, "
            f"{100 * row['all']['of_copy']:.1f} % of a copy's {row['copy_gb_s']:.0f}"
        )
        lines += [
            f"  {one['family']:10}{one['calls']:7.0f} calls{one['ms']:9.3f} ms, {100 * one['share']:5.1f} % of the "
            f"busy time: {one['gb_s']:7.0f} GB/s, {100 * one['of_copy']:5.1f} % of a copy's (at least "
            f"{100 * one['least_of_copy']:.1f} %)"
            for one in row["families"]
        ]
        lines += [
            f"  {short(one['kernel']):76}{one['calls']:7.0f}{one['ms']:9.3f} ms{100 * one['share']:7.1f} %"
            for one in row["kernels"][:12]
        ]
    return "\n".join(lines)


def short(kernel: str) -> str:
    """A name without what all kernels of PyTorch have in common."""
    for common in ("void ", "at::native::", "at_cuda_detail::", "(anonymous namespace)::", "gpu_kernel_impl_nocast"):
        kernel = kernel.replace(common, "")
    return kernel[:74]


def main() -> None:
    parser = options_of(__doc__, Path("benchmarks/out/large.json"))
    cuda = torch.cuda.is_available()
    parser.add_argument("--sizes", default="arxiv,products" if cuda else "arxiv")
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the size, to try it out")
    parser.add_argument("--rounds", type=int, default=10 if cuda else 5)
    options = begun(parser)
    rows = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.sizes.split(","):
        rows.append(measure(name, torch.device(options.device), options.scale, options.rounds))
        print(show(rows[-1]), flush=True)
        about = {"device": options.device, "threads": options.threads, "rows": rows}
        options.out.write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
