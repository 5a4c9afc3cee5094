"""Graft against the same work client by client with stock PyG layers, in one run.

A round is local training, averaging, and a score of every client's own model and, where there is one, of the global
model. `fedgkc`, `fedppn` and `trust` have clients of five architectures, `fedbn` a GIN, which has normalisation layers,
and all others a GCN. `adafgl` is timed in the rounds in which clients train alone, after one of FedAvg; `gcfl_plus` has
thresholds under which no cluster is split; `fiarse` also scores the whole model of which clients hold parts.
`fedtad_server` runs what FedTAD's server does in a round, with the models of all clients on one synthetic graph, and
scores the corrected model. Rounds of both sides alternate, so that a busy machine disturbs both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fedtad_server import GraftServerPhase, LoopServerPhase
from harness import GraftSide, alternate, make_parser, make_setup, parse, write_results
from loop_adafgl import LoopAdaFGL
from loop_averaging import LoopFedAdam, LoopFedDyn, LoopFedNova
from loop_fedgkc import LoopFedGKC
from loop_fedppn import LoopFedPPN
from loop_fgssl import LoopFGSSL
from loop_fiarse import LoopFIARSE
from loop_personal import LoopDitto, LoopFedBN, LoopFedRep, LoopPFedMe
from loop_subgraph import LoopFedPUB, LoopGCFLPlus
from loop_trust import LoopTRUST

from graft.data import datasets, federation
from graft.data.graphs import Graph
from graft.federation.method import Method
from graft.federation.server_optimizer_names import suiting_optimizer
from graft.methods.adafgl import AdaFGL
from graft.methods.ditto import Ditto
from graft.methods.fed_pub import FedPUB
from graft.methods.fedbn import FedBN
from graft.methods.feddyn import FedDyn
from graft.methods.fedgkc import FedGKC, FedGKCPaper
from graft.methods.fednova import FedNova
from graft.methods.fedopt import FedAdam
from graft.methods.fedppn import FedPPN
from graft.methods.fedrep import FedRep
from graft.methods.fedtad import FedTAD
from graft.methods.fgssl import FGSSL
from graft.methods.fiarse import FIARSE
from graft.methods.gcfl import GCFLPlus
from graft.methods.pfedme import PFedMe
from graft.methods.trust import TRUST


def in_graft(graphs: list[Graph], device: torch.device, method: Method, models: str = "gcn") -> GraftSide:
    """A method in Graft, with clients of these models, and the server's optimiser that the method sets."""
    optimizer = suiting_optimizer(method.experiment_defaults.get("server_optimizer", "none"))
    return GraftSide(replace(make_setup(method, graphs, device, models), server_optimizer=optimizer))


five_architectures = partial(in_graft, models="architectures")

CASES: dict[str, tuple[Any, Any, Any]] = {  # the method, and the two sides that are timed
    "fedgkc": (
        FedGKC(copilot="gcn", self_weight=0.0, teacher="copilot", answer="local"),
        LoopFedGKC,
        five_architectures,
    ),
    "fedgkc_paper": (FedGKCPaper(), LoopFedGKC, five_architectures),
    "fedppn": (FedPPN(), LoopFedPPN, five_architectures),
    "trust": (TRUST(), LoopTRUST, five_architectures),
    "fiarse": (FIARSE(), LoopFIARSE, in_graft),
    "fedadam": (FedAdam(), LoopFedAdam, in_graft),
    "feddyn": (FedDyn(), LoopFedDyn, in_graft),
    "fednova": (FedNova(), LoopFedNova, in_graft),
    "ditto": (Ditto(), LoopDitto, in_graft),
    "fedrep": (FedRep(), LoopFedRep, in_graft),
    "pfedme": (PFedMe(), LoopPFedMe, in_graft),
    "fedbn": (FedBN(), LoopFedBN, partial(in_graft, models="gin")),
    "fed_pub": (FedPUB(), LoopFedPUB, in_graft),
    "fgssl": (FGSSL(), LoopFGSSL, in_graft),
    "adafgl": (AdaFGL(extractor_share=0.01), LoopAdaFGL, in_graft),
    "gcfl_plus": (GCFLPlus(mean_below=0.0), LoopGCFLPlus, in_graft),
    "fedtad_server": (FedTAD(adversarial=True), LoopServerPhase, GraftServerPhase),
}


def compare(
    name: str,
    dataset: str,
    clients: int,
    turns: int,
    device: torch.device,
    warmup: int = 3,
    graft_rounds: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Times both sides of a case in turn: one round of the loop, then `graft_rounds` of Graft."""
    method, make_loop, make_graft = CASES[name]
    graphs = federation.build(datasets.load(dataset), clients, seed=0).clients
    sides = {"loop": make_loop(graphs, device, method), "graft": make_graft(graphs, device, method)}
    medians, scores = alternate(sides, turns, warmup, {"graft": graft_rounds}, clock)
    ratio = medians["loop"] / medians["graft"]
    return {"method": name, "clients": clients, "ms": medians, "ratio": ratio, "accuracy": scores}


def main() -> None:
    parser = make_parser(__doc__, Path("benchmarks/out/methods.json"))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--clients", default="20")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time, where others use the machine, too")
    options = parse(parser)
    clock = time.process_time if options.cpu_time else time.perf_counter
    device = torch.device(options.device)
    rows: list[dict[str, Any]] = []
    print(f"{'method':26}{'clients':>8}{'loop ms':>10}{'Graft ms':>10}{'ratio':>8}   accuracy: loop, Graft")
    for name in options.cases.split(","):
        for clients in map(int, options.clients.split(",")):
            row = compare(name, options.dataset, clients, options.rounds, device, clock=clock)
            rows.append(row)
            accuracies = ", ".join(
                f"{100 * score:.1f}" for scores in row["accuracy"].values() for score in scores.values()
            )
            times = f"{row['ms']['loop']:10.1f}{row['ms']['graft']:10.2f}"
            print(f"{name:26}{clients:8}{times}{row['ratio']:8.1f}   {accuracies}", flush=True)
    write_results(options, rows=rows)


if __name__ == "__main__":
    main()
