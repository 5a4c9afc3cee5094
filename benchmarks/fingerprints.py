"""How long the fingerprint of a client's graph takes: exactly, and from a sample of nodes in a large graph; and what
choosing partners by fingerprints adds to the rounds of DFed-SST.

The graphs of the first table are synthetic, with classes that hold together; one core does it all. In the sampled rows
the error is the spread of WLSD over draws, in percent of its mean. The second table plays ten rounds, the usual time
between two choices, with a choice and without one in turn.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from fleet import alternate

from graft.data.federation import Federation
from graft.data.graphs import adjacency
from graft.data.synthetic import generate
from graft.engines.in_process import InProcess
from graft.experiments.experiment import Experiment, make_experiment
from graft.experiments.run import build_federation, build_setup
from graft.federation.exchange import Server, Traffic
from graft.federation.peers import play_round
from graft.methods.dfed_sst import DFedSST
from graft.methods.dfed_sst.fingerprints import EXACT_UP_TO, fingerprint
from graft.methods.dfed_sst.paths import Paths, distance_table

SIZES = ((2_000, 6_000), (17_000, 60_000), (170_000, 600_000), (170_000, 1_160_000))  # nodes and edges


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/fingerprints.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"{'nodes':>8}{'edges':>10}  {'how':8}{'seconds':>9}{'error %':>9}")
    for nodes, edges in SIZES:
        graph = generate(nodes=nodes, degree=2 * edges / nodes, classes=options.classes, homophily=0.8, seed=0)
        matrix = adjacency(graph.nodes, graph.edges)
        paths = Paths(matrix.indptr, matrix.indices)
        soft = np.random.default_rng(0).dirichlet(np.ones(options.classes), graph.nodes)
        seconds, found = [], []
        for seed in range(options.repeats):
            priority = np.random.default_rng(seed).permutation(graph.nodes)
            distance_table.cache_clear()  # what was kept of the last draw
            begun = time.perf_counter()
            found.append(fingerprint(paths, graph.y, soft, priority=priority).wlsd)
            seconds.append(time.perf_counter() - begun)
        row = {
            "nodes": graph.nodes,
            "edges": graph.edge_count,
            "how": "exact" if graph.nodes <= EXACT_UP_TO else "sampled",
            "seconds": min(seconds),
            "error": 100 * stdev(found) / mean(found) if options.repeats > 1 else None,
        }
        rows.append(row)
        error = "-" if row["error"] is None else f"{row['error']:.2f}"
        print(f"{row['nodes']:8}{row['edges']:10}  {row['how']:8}{row['seconds']:9.2f}{error:>9}", flush=True)
    updates = [cost_of_choosing(name, options.repeats) for name in ("cora", "pubmed")]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"classes": options.classes, "rows": rows, "updates": updates}, indent=1))


def cost_of_choosing(dataset: str, repeats: int) -> dict[str, Any]:
    """Ten rounds of ten peers with one choice of partners, against ten without."""
    experiment = make_experiment({"dataset": dataset, "clients": 10, "partition": "metis", "device": "cpu"})
    federation = build_federation(experiment)
    sides = {
        "with": Ten(experiment, federation, DFedSST(k_topo=10)),
        "without": Ten(experiment, federation, DFedSST(k_topo=10**9)),
    }
    middle = alternate(sides, repeats)[0]
    added = 100 * (middle["with"] / middle["without"] - 1)
    print(f"{dataset}: ten rounds {middle['without']:.0f} ms, with a choice of partners {added:+.1f} %", flush=True)
    return {"dataset": dataset, "ms_with": middle["with"], "ms_without": middle["without"], "added_percent": added}


class Ten:
    """Peers that play ten rounds at a time."""

    def __init__(self, experiment: Experiment, federation: Federation, method: DFedSST) -> None:
        setup = build_setup(experiment, method, federation)
        self.method, self.engine = method, InProcess(setup)
        model = setup.models[0]
        self.server = Server(model, setup.models, 10, 0, setup.device, setup.architecture)

    def round(self) -> None:
        for _ in range(10):
            self.server.round += 1
            play_round(self.method, self.server, self.engine, self.engine.members(), Traffic())
            self.engine.losses()


if __name__ == "__main__":
    main()
