"""Where a round of FedAvg on PubMed with 50 clients goes on one thread, where features are a tenth full: as dense ones
and as sparse ones, against the usual loop, and against what must at least be moved and done.

Times are CPU time, the least of many rounds; rounds of all sides alternate. The profiler's table counts every operation
with the least time that it took at its place in a round; it is wall time, so on a machine that is busy throughout long
operations come out too long.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fleet import Loop, graft_fedavg
from harness import make_parser, parse, write_results
from roofline import copy_bandwidth, fedavg_cost, product_rate
from torch.profiler import ProfilerActivity, profile, record_function

from graft.data import datasets, federation
from graft.federation.fleet import Fleet
from graft.graphs import fleet_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness import GraftSide, Side

    from graft.data.graphs import Graph

CPU = torch.device("cpu")
SCORING = "scoring"  # how the profiler marks what `Fleet.predict` runs
FAMILIES = {  # by the names of PyTorch's operations; products are told apart by their shapes
    "Adam": ("aten::_fused_adam_",),
    "bias and activation": ("aten::add", "aten::clamp_min", "aten::threshold_backward", "aten::sum"),
    "dropout": (
        "aten::mul",
        "aten::mul_",
        "aten::ge_",
        "aten::copy_",
        "aten::__rshift__",
        "aten::bitwise_xor",
        "aten::bitwise_xor_",
        "aten::bitwise_and_",
    ),
}
FAMILY_OF = {operation: family for family, operations in FAMILIES.items() for operation in operations}
PRODUCTS = {"aten::bmm", "aten::mm", "aten::_embedding_bag_forward_only"}


@contextmanager
def sparse_below(share: float) -> Iterator[None]:
    """Lays features out as sparse ones below this share of entries, for a while."""
    before, fleet_graph.SPARSE_ON_CPU = fleet_graph.SPARSE_ON_CPU, share
    yield
    fleet_graph.SPARSE_ON_CPU = before


def least_cpu_times(sides: dict[str, Side], turns: int, warmup: int = 3) -> dict[str, float]:
    """Returns the least milliseconds of CPU time that a round of every side took; rounds alternate."""
    least = dict.fromkeys(sides, float("inf"))
    for turn in range(turns + warmup):
        for name, side in sides.items():
            start = time.process_time()
            side.round()
            if turn >= warmup:
                least[name] = min(least[name], 1000 * (time.process_time() - start))
    return least


def family(name: str, shapes: list[list[int]], features: int, entries: int) -> str:
    """Returns what an operation belongs to."""
    if name not in PRODUCTS:
        return FAMILY_OF.get(name, "rest")
    lengths = {length for shape in shapes for length in shape}
    if features in lengths or entries in lengths:
        return "features by weights, and the gradient"
    return "products with the graph" if "embedding_bag" in name else "dense products of later layers"


def parts_of_a_round(side: GraftSide, graphs: list[Graph], rounds: int) -> dict[str, float]:
    """Returns the milliseconds of every family, with the passes of scoring apart."""
    entries = sum(int((graph.x != 0).sum()) for graph in graphs)
    runs = []
    for _ in range(rounds):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as watched:
            side.round()
        events = sorted(watched.events(), key=lambda event: event.time_range.start)
        scored = [event.time_range for event in events if event.name == SCORING]
        runs.append([(name_of(event, scored), event) for event in events])
    usual = Counter(tuple(name for name, _ in run) for run in runs).most_common(1)[0][0]
    alike = [[event for _, event in run] for run in runs if tuple(name for name, _ in run) == usual]
    parts: Counter[str] = Counter()
    for (name, scoring), *events in zip(usual, *alike, strict=True):
        kind = family(name, events[0].input_shapes, graphs[0].features, entries)
        least = min(event.self_cpu_time_total for event in events) / 1000
        parts[f"scoring: {kind}" if scoring else kind] += least
    return dict(parts.most_common())


def name_of(event: Any, scored: list[Any]) -> tuple[str, bool]:
    """Returns the name of an operation, and whether it belongs to scoring."""
    start = event.time_range.start
    return event.name, any(span.start <= start <= span.end for span in scored)


def mark_scoring() -> None:
    """Has the profiler see which operations belong to scoring."""
    plain = Fleet.predict

    def marked(*arguments: Any, **named: Any) -> Any:
        with record_function(SCORING):
            return plain(*arguments, **named)

    Fleet.predict = marked  # type: ignore[method-assign]


def bound(graphs: list[Graph]) -> dict[str, float]:
    """Returns what a round must at least take, in milliseconds, by bytes and by operations."""
    cost, kept = fedavg_cost(graphs)
    bandwidth, rate = max(copy_bandwidth(CPU), copy_bandwidth(CPU, kept, 20)), product_rate(CPU)
    dense = 2.0 * 64 * sum(graph.nodes * graph.features for graph in graphs) * 8  # three epochs, twice each; two scores
    return {
        "copy_gb_s": bandwidth / 1e9,
        "product_gflop_s": rate / 1e9,
        "bytes_ms": 1000 * cost.bytes / bandwidth,
        "operations_ms": 1000 * cost.operations / rate,
        "dense_features_ms": 1000 * dense / rate,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    graphs = list(federation.build(datasets.load(options.dataset), options.clients, seed=0).clients)
    with sparse_below(0.0):
        sides: dict[str, Any] = {"dense": graft_fedavg(graphs, CPU)}
    sides = {"loop": Loop(graphs, CPU)} | sides | {"sparse": graft_fedavg(graphs, CPU)}
    times = least_cpu_times(sides, options.rounds)
    mark_scoring()
    parts = {name: parts_of_a_round(sides[name], graphs, options.rounds) for name in ("dense", "sparse")}
    return {"ms": times, "parts": parts, "bound": bound(graphs)}


def main() -> None:
    parser = make_parser(__doc__, Path("benchmarks/out/pubmed.json"))
    parser.set_defaults(threads=1)
    parser.add_argument("--dataset", default="pubmed", help="one whose features are given as dense ones")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=15)
    options = parse(parser)
    results = measure(options)
    for name, milliseconds in results["ms"].items():
        print(f"{name:8}{milliseconds:8.1f} ms a round{results['ms']['loop'] / milliseconds:8.1f} times the loop")
    families = sorted({*results["parts"]["dense"], *results["parts"]["sparse"]})
    print(f"{'ms of a round':55}{'dense':>8}{'sparse':>8}")
    for kind in families:
        before, after = (results["parts"][name].get(kind, 0.0) for name in ("dense", "sparse"))
        print(f"{kind:55}{before:8.1f}{after:8.1f}")
    print("at least: " + ", ".join(f"{name} {value:.1f}" for name, value in results["bound"].items()))
    write_results(options, **results)


if __name__ == "__main__":
    main()
