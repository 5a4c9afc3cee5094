"""Graft against the same work client by client with stock PyG layers, in one run.

`fedgkc` runs whole rounds with five architectures: copilots and local models in turn for three epochs, knowledge,
averaging, and a score of every local model. `fedadam`, `feddyn` and `fednova` run whole rounds with one.
`fedtad_server` runs what FedTAD's server does in a round, with the models of all clients on one synthetic graph, and
scores the corrected model. Rounds of both sides alternate, so that a busy machine disturbs both.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fedtad_server import GraftServerPhase, LoopServerPhase
from harness import GraftSide, alternate, make_parser, make_setup, parse, write_results
from loop_averaging import LoopFedAdam, LoopFedDyn, LoopFedNova
from loop_fedgkc import LoopFedGKC

from graft.data import datasets, federation
from graft.data.graphs import Graph
from graft.federation.method import Method
from graft.federation.server_optimizer_names import suiting_optimizer
from graft.methods.feddyn import FedDyn
from graft.methods.fedgkc import FedGKC, FedGKCPaper
from graft.methods.fednova import FedNova
from graft.methods.fedopt import FedAdam
from graft.methods.fedtad import FedTADPaper


def graft_fedgkc(graphs: list[Graph], device: torch.device, method: FedGKC) -> GraftSide:
    """FedGKC in Graft, with five architectures."""
    return GraftSide(make_setup(method, graphs, device, "architectures"))


def graft_one_model(graphs: list[Graph], device: torch.device, method: Method) -> GraftSide:
    """A method in Graft whose clients all train a GCN, with the server's optimiser that it sets."""
    optimizer = suiting_optimizer(method.experiment_defaults.get("server_optimizer", "none"))
    return GraftSide(replace(make_setup(method, graphs, device), server_optimizer=optimizer))


CASES: dict[str, tuple[Any, Any, Any]] = {  # the method, and the two sides that are timed
    "fedgkc": (FedGKC(), LoopFedGKC, graft_fedgkc),
    "fedgkc_paper": (FedGKCPaper(), LoopFedGKC, graft_fedgkc),
    "fedadam": (FedAdam(), LoopFedAdam, graft_one_model),
    "feddyn": (FedDyn(), LoopFedDyn, graft_one_model),
    "fednova": (FedNova(), LoopFedNova, graft_one_model),
    "fedtad_server": (FedTADPaper(), LoopServerPhase, GraftServerPhase),
}


def compare(
    name: str, dataset: str, clients: int, turns: int, device: torch.device, warmup: int = 3, graft_rounds: int = 1
) -> dict[str, Any]:
    """Times both sides of a case in turn: one round of the loop, then `graft_rounds` of Graft."""
    method, make_loop, make_graft = CASES[name]
    graphs = federation.build(datasets.load(dataset), clients, seed=0).clients
    sides = {"loop": make_loop(graphs, device, method), "graft": make_graft(graphs, device, method)}
    medians, scores = alternate(sides, turns, warmup, {"graft": graft_rounds})
    ratio = medians["loop"] / medians["graft"]
    return {"method": name, "clients": clients, "ms": medians, "ratio": ratio, "accuracy": scores}


def main() -> None:
    parser = make_parser(__doc__, Path("benchmarks/out/methods.json"))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--clients", default="20")
    parser.add_argument("--rounds", type=int, default=5)
    options = parse(parser)
    device = torch.device(options.device)
    rows: list[dict[str, Any]] = []
    print(f"{'method':26}{'clients':>8}{'loop ms':>10}{'Graft ms':>10}{'ratio':>8}   accuracy: loop, Graft")
    for name in options.cases.split(","):
        for clients in map(int, options.clients.split(",")):
            row = compare(name, options.dataset, clients, options.rounds, device)
            rows.append(row)
            accuracies = ", ".join(
                f"{100 * score:.1f}" for scores in row["accuracy"].values() for score in scores.values()
            )
            times = f"{row['ms']['loop']:10.1f}{row['ms']['graft']:10.2f}"
            print(f"{name:26}{clients:8}{times}{row['ratio']:8.1f}   {accuracies}", flush=True)
    write_results(options, rows=rows)


if __name__ == "__main__":
    main()
