"""What a client costs in a round as their number grows, with a tenth of them in every round: flat is the aim.

All of a round counts: the draw, training, averaging, and a score of every client's own model, whether it took part or
not. Every client has a graph of its own; FedGKC's clients have five architectures in turn. The last column is the slope
of the cost of a client between the fewest and the most on a logarithmic scale: 0 is flat. Rounds of all sizes
alternate, so that a busy machine disturbs all of them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from fleet import alternate, begun, options_of

from graft.data.graphs import Graph
from graft.data.splits import split
from graft.data.synthetic import generate
from graft.engines.capture import capture_stream
from graft.engines.in_process import InProcess
from graft.experiments.run import participants
from graft.federation.evaluation import accuracy, gather_losses
from graft.federation.exchange import Request, Server, Traffic
from graft.federation.method import Method
from graft.federation.peers import play_round
from graft.federation.setup import Setup
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC
from graft.models import assign_models

CASES: dict[str, tuple[Method, str]] = {"fedavg": (FedAvg(), "gcn"), "fedgkc": (FedGKC(), "architectures")}


class Federation:
    """Clients of which some take part in a round."""

    def __init__(self, method: Method, models: str, graphs: list[Graph], share: float, device: torch.device) -> None:
        assigned = assign_models(models, len(graphs), graphs[0].features, graphs[0].classes)
        self.setup = Setup(method, "", graphs, assigned, device=device, participation=share)
        self.engine = InProcess(self.setup)
        one = assigned[0] if len(set(assigned)) == 1 else None
        self.server = Server(one, assigned, len(graphs), 0, device, self.setup.architecture)
        method.start_server(self.server)
        counted = self.engine.ask(Request("count", 0, self.engine.members()))
        self.totals, self.nodes = counted.totals, counted.nodes

    def round(self) -> float | None:
        with capture_stream(self.setup.device):
            self.server.round += 1
            number, everyone = self.server.round, self.engine.members()
            members = participants(everyone, self.setup.participation, 0, number)
            play_round(self.setup.method, self.server, self.engine, members, Traffic())
            gather_losses(self.engine.losses(), self.setup.device)[1].cpu()
            self.server.take_records()
            scores = self.engine.ask(Request("score", number, everyone))
            return accuracy(scores.correct, self.totals, self.nodes).mean("test")


def build_graphs(clients: int, nodes: int) -> list[Graph]:
    graphs = [
        generate(nodes=nodes, degree=6, classes=5, homophily=0.8, features=64, seed=client) for client in range(clients)
    ]
    return split(graphs, "20/40/40", seed=0)


def measure(
    name: str, graphs: list[Graph], counts: list[int], share: float, rounds: int, device: torch.device
) -> dict[str, Any]:
    """What rounds of so many clients cost, in all and for each."""
    method, models = CASES[name]
    sides = {count: Federation(method, models, graphs[:count], share, device) for count in counts}
    middle = list(alternate(sides, rounds)[0].values())
    each = [1000 * time / count for time, count in zip(middle, counts, strict=True)]
    slope = math.log(each[-1] / each[0]) / math.log(counts[-1] / counts[0])
    return {"method": name, "clients": counts, "ms": middle, "us_a_client": each, "slope": slope}


def main() -> None:
    parser = options_of(__doc__, Path("benchmarks/out/clients.json"))
    parser.add_argument("--methods", default=",".join(CASES))
    parser.add_argument("--clients", default="100,300,1000")
    parser.add_argument("--nodes", type=int, default=100, help="of a client")
    parser.add_argument("--participation", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=7)
    options = begun(parser)
    counts = [int(count) for count in options.clients.split(",")]
    graphs = build_graphs(max(counts), options.nodes)
    rows = []
    print(f"{'method':10}{'clients':>20}{'ms a round':>30}{'us a client':>30}{'slope':>8}")
    for name in options.methods.split(","):
        row = measure(name, graphs, counts, options.participation, options.rounds, torch.device(options.device))
        rows.append(row)
        shown, apiece = (" ".join(f"{value:9.1f}" for value in row[times]) for times in ("ms", "us_a_client"))
        print(f"{name:10}{', '.join(map(str, counts)):>20}{shown:>30}{apiece:>30}{row['slope']:8.2f}", flush=True)
    about = {"device": options.device, "threads": options.threads, "participation": options.participation}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**about, "nodes": options.nodes, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
