"""How long the fingerprint of a client's graph takes, exactly and from a sample of nodes in a large graph; and what
choosing partners by fingerprints adds to the rounds of DFed-SST.

The graphs of the first table are generated, with homophilous classes; one core does it all. In the sampled rows the
error is the standard deviation of WLSD over draws, in percent of its mean. The second table runs ten rounds, the usual
time between two choices, with a choice and without one in turn.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from harness import alternate, make_parser, parse, write_results

from graft.data.federation import FederationData
from graft.data.graphs import adjacency
from graft.data.synthetic import generate
from graft.engines.in_process import InProcess
from graft.experiments.build import build_federation, build_setup
from graft.experiments.experiment import Experiment, make_experiment
from graft.federation.session import Session
from graft.methods.dfed_sst import DFedSST
from graft.methods.dfed_sst.fingerprints import EXACT_UP_TO, fingerprint
from graft.methods.dfed_sst.paths import Paths, distance_table

SIZES = ((2_000, 6_000), (17_000, 60_000), (170_000, 600_000), (170_000, 1_160_000))  # nodes and edges
ROUNDS = 10  # between two choices of partners


class TenRounds:
    """Peers that run ten rounds at a time."""

    def __init__(self, experiment: Experiment, federation: FederationData, method: DFedSST) -> None:
        setup = build_setup(experiment, method, federation)
        self.session = Session(setup, InProcess(setup))
        self.rounds = 0

    def round(self) -> None:
        for _ in range(ROUNDS):
            self.rounds += 1
            self.session.round(self.rounds, evaluate=False)


def measure_fingerprint(nodes: int, edges: int, classes: int, repeats: int) -> dict[str, Any]:
    graph = generate(nodes=nodes, degree=2 * edges / nodes, classes=classes, homophily=0.8, seed=0)
    matrix = adjacency(graph.nodes, graph.edges)
    paths = Paths(matrix.indptr, matrix.indices)
    soft = np.random.default_rng(0).dirichlet(np.ones(classes), graph.nodes)
    seconds, scatters = [], []
    for seed in range(repeats):
        priority = np.random.default_rng(seed).permutation(graph.nodes)
        distance_table.cache_clear()  # or the second draw would find the distances of the first
        start = time.perf_counter()
        scatters.append(fingerprint(paths, graph.y, soft, priority=priority).wlsd)
        seconds.append(time.perf_counter() - start)
    return {
        "nodes": graph.nodes,
        "edges": graph.edge_count,
        "how": "exact" if graph.nodes <= EXACT_UP_TO else "sampled",
        "seconds": min(seconds),
        "error": 100 * stdev(scatters) / mean(scatters) if repeats > 1 else None,
    }


def measure_choice(dataset: str, repeats: int) -> dict[str, Any]:
    """Returns the time of ten rounds of ten peers with one choice of partners, against ten without."""
    experiment = make_experiment({"dataset": dataset, "clients": 10, "partition": "metis", "device": "cpu"})
    federation = build_federation(experiment)
    sides = {
        "with": TenRounds(experiment, federation, DFedSST(k_topo=ROUNDS)),
        "without": TenRounds(experiment, federation, DFedSST(k_topo=10**9)),
    }
    medians, _ = alternate(sides, repeats)
    added = 100 * (medians["with"] / medians["without"] - 1)
    print(f"{dataset}: ten rounds {medians['without']:.0f} ms, with a choice of partners {added:+.1f} %", flush=True)
    return {"dataset": dataset, "ms_with": medians["with"], "ms_without": medians["without"], "added_percent": added}


def main() -> None:
    parser = make_parser(__doc__, Path("benchmarks/out/fingerprints.json"))
    parser.set_defaults(device="cpu", threads=1)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of the graphs, the smallest first")
    parser.add_argument("--datasets", default="cora,pubmed")
    options = parse(parser)
    rows = []
    print(f"{'nodes':>8}{'edges':>10}  {'how':8}{'seconds':>9}{'error %':>9}")
    for nodes, edges in SIZES[: options.sizes]:
        row = measure_fingerprint(nodes, edges, options.classes, options.repeats)
        rows.append(row)
        error = "-" if row["error"] is None else f"{row['error']:.2f}"
        print(f"{row['nodes']:8}{row['edges']:10}  {row['how']:8}{row['seconds']:9.2f}{error:>9}", flush=True)
    updates = [measure_choice(name, options.repeats) for name in options.datasets.split(",")]
    write_results(options, classes=options.classes, rows=rows, updates=updates)


if __name__ == "__main__":
    main()
