"""How the time of a round grows with nodes, edges, clients and width: a few sizes of each, the rest held fixed.

The last column is the slope between the smallest and the largest size on a logarithmic scale: 1 is linear.
Rounds of all sizes alternate, so that a busy machine disturbs all of them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from fleet import OneFleet, alternate, begun, options_of
from large import Size, build_graphs

FIXED = {"nodes": 80_000, "degree": 20, "clients": 20, "width": 64}
VARIED = {
    "nodes": (100_000, 200_000, 400_000),
    "degree": (10, 20, 40, 80),
    "clients": (10, 40, 160),
    "width": (32, 64, 128, 256),
}


def build(nodes: int, degree: int, clients: int, width: int, device: torch.device) -> OneFleet:
    """Every client gets a graph of its own, so that no edge is lost between clients."""
    size = Size(nodes, nodes * degree // 2, features=64, classes=10, clients=clients)
    return OneFleet(build_graphs(size), device, width)


def main() -> None:
    parser = options_of(__doc__, Path("benchmarks/out/scaling.json"))
    parser.add_argument("--rounds", type=int, default=7)
    options = begun(parser)
    rows = []
    print(f"{'what grows':12}{'sizes':>34}{'ms a round':>42}{'slope':>8}")
    for name, sizes in VARIED.items():
        sides = {size: build(**(FIXED | {name: size}), device=torch.device(options.device)) for size in sizes}
        middle = list(alternate(sides, options.rounds)[0].values())
        slope = math.log(middle[-1] / middle[0]) / math.log(sizes[-1] / sizes[0])
        rows.append({"grows": name, "sizes": sizes, "ms": middle, "slope": slope})
        shown = " ".join(f"{value:9.1f}" for value in middle)
        print(f"{name:12}{', '.join(map(str, sizes)):>34}{shown:>42}{slope:8.2f}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"device": options.device, "threads": options.threads, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
