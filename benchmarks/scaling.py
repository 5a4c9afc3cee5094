"""How the time of a round grows with nodes, edges, clients and width: a few sizes of each, the rest held fixed.

The last column is the slope between the smallest and the largest size on a logarithmic scale: 1 is linear.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from harness import GraftSide, alternate, make_parser, make_setup, parse, write_results
from large import Size, build_graphs

from graft.methods.fedavg import FedAvg

FIXED = {"nodes": 80_000, "degree": 20, "clients": 20, "width": 64}
VARIED = {
    "nodes": (100_000, 200_000, 400_000),
    "degree": (10, 20, 40, 80),
    "clients": (10, 40, 160),
    "width": (32, 64, 128, 256),
}


def build(nodes: int, degree: int, clients: int, width: int, device: torch.device) -> GraftSide:
    """Returns a federation in which every client has a graph of its own, so that no edge is lost between clients."""
    size = Size(nodes, nodes * degree // 2, features=64, classes=10, clients=clients)
    return GraftSide(make_setup(FedAvg(), build_graphs(size), device, width=width))


def main() -> None:
    parser = make_parser(__doc__, Path("benchmarks/out/scaling.json"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--vary", default=",".join(VARIED))
    parser.add_argument("--scale", type=float, default=1.0, help="of all numbers of nodes, to try it out")
    options = parse(parser)
    rows = []
    print(f"{'what grows':12}{'sizes':>34}{'ms a round':>42}{'slope':>8}")
    for name in options.vary.split(","):
        sizes = VARIED[name]
        sides = {}
        for size in sizes:
            settings = FIXED | {name: size}
            settings["nodes"] = int(options.scale * settings["nodes"])
            sides[size] = build(**settings, device=torch.device(options.device))
        medians = list(alternate(sides, options.rounds)[0].values())
        slope = math.log(medians[-1] / medians[0]) / math.log(sizes[-1] / sizes[0])
        rows.append({"grows": name, "sizes": sizes, "ms": medians, "slope": slope})
        times = " ".join(f"{value:9.1f}" for value in medians)
        print(f"{name:12}{', '.join(map(str, sizes)):>34}{times:>42}{slope:8.2f}", flush=True)
    write_results(options, rows=rows)


if __name__ == "__main__":
    main()
