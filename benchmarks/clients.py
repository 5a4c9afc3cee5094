"""The cost of a client in a round as their number grows, with a tenth of them in every round: flat is the aim.

All of a round counts: the draw of participants, training, averaging, and a score of every client's own model, whether
it took part or not. Every client has a graph of its own; FedGKC's clients have five architectures in turn. The last
column is the slope of the cost of a client between the fewest and the most on a logarithmic scale: 0 is flat.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from harness import GraftSide, Scores, alternate, make_parser, make_setup, parse, write_results

from graft.data.graphs import Graph
from graft.data.splits import split
from graft.data.synthetic import generate
from graft.engines.capture import capture_stream
from graft.federation.clients import Clients
from graft.federation.evaluation import accuracy
from graft.federation.method import Method
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC

CASES: dict[str, tuple[Method, str]] = {
    "fedavg": (FedAvg(), "gcn"),
    "fedgkc": (FedGKC(copilot="gcn", self_weight=0.0), "architectures"),
}


class OwnModels(GraftSide):
    """Rounds after which every client's own model is scored, and no model of the server."""

    def round(self) -> Scores:
        self.rounds += 1
        session = self.session
        with capture_stream(self.device):
            session.round(self.rounds, evaluate=False)
            everyone = Clients(session.engine, self.rounds, session.engine.members())
            correct = everyone.ask(session.setup.method.score).correct
            return {"own": accuracy(correct, self.totals, self.nodes).mean("test") or 0.0}


def build_graphs(clients: int, nodes: int) -> list[Graph]:
    graphs = [
        generate(nodes=nodes, degree=6, classes=5, homophily=0.8, features=64, seed=client) for client in range(clients)
    ]
    return split(graphs, "20/40/40", seed=0)


def measure(
    name: str, graphs: list[Graph], counts: list[int], participation: float, rounds: int, device: torch.device
) -> dict[str, Any]:
    """Returns what rounds of so many clients cost, in all and for each."""
    method, models = CASES[name]
    sides = {
        count: OwnModels(make_setup(method, graphs[:count], device, models, participation=participation))
        for count in counts
    }
    medians = list(alternate(sides, rounds)[0].values())
    per_client = [1000 * time / count for time, count in zip(medians, counts, strict=True)]
    slope = math.log(per_client[-1] / per_client[0]) / math.log(counts[-1] / counts[0]) if len(counts) > 1 else 0.0
    return {"method": name, "clients": counts, "ms": medians, "us_a_client": per_client, "slope": slope}


def main() -> None:
    parser = make_parser(__doc__, Path("benchmarks/out/clients.json"))
    parser.add_argument("--methods", default=",".join(CASES))
    parser.add_argument("--clients", default="100,300,1000")
    parser.add_argument("--nodes", type=int, default=100, help="of a client")
    parser.add_argument("--participation", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=7)
    options = parse(parser)
    counts = [int(count) for count in options.clients.split(",")]
    graphs = build_graphs(max(counts), options.nodes)
    rows = []
    print(f"{'method':10}{'clients':>20}{'ms a round':>30}{'us a client':>30}{'slope':>8}")
    for name in options.methods.split(","):
        row = measure(name, graphs, counts, options.participation, options.rounds, torch.device(options.device))
        rows.append(row)
        total, per_client = (" ".join(f"{value:9.1f}" for value in row[times]) for times in ("ms", "us_a_client"))
        print(f"{name:10}{', '.join(map(str, counts)):>20}{total:>30}{per_client:>30}{row['slope']:8.2f}", flush=True)
    write_results(options, participation=options.participation, nodes=options.nodes, rows=rows)


if __name__ == "__main__":
    main()
