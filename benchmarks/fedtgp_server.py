"""What FedTGP's server does in a round, a hundred steps of Adam on its generator: with the gradients written out, as in
Graft, and by autograd. CPU time, the least of many; both alternate and must end at the same weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from harness import GraftSide, make_parser, make_setup, parse, write_results
from torch import Tensor

from graft.data import datasets, federation
from graft.federation.server import Server
from graft.methods.fedtgp import FedTGP, contrast, generate
from graft.tensors.trees import Tree, flatten, map_tree
from graft.training.loop import Part, fit
from graft.training.optimizers import Training

CPU = torch.device("cpu")


class ByAutograd(FedTGP):
    """The same steps with a loss that PyTorch differentiates."""

    def train_generator(self, server: Server, prototypes: Tensor, owned: Tensor, margin: Tensor) -> None:
        def loss(parts: Tree, _: None) -> Tensor:
            return contrast(prototypes, owned, generate(parts.generator), margin).unsqueeze(0)

        part = Part(server.state.generator, loss, server.state.optimizer)
        training = Training(self.server_epochs, "adam", self.server_learning_rate, weight_decay=0.0)
        fitted, states, _ = fit({"generator": part}, training)
        server.state.generator, server.state.optimizer = fitted.generator, states.generator


def largest_gap(one: Tree, other: Tree) -> float:
    pairs = zip(flatten(one), flatten(other), strict=True)
    return max(float((left - right).abs().max()) for (_, left), (_, right) in pairs)


def measure(dataset: str, clients: int, rounds: int) -> dict[str, Any]:
    """Times rounds of both sides, and the server's part of them."""
    graphs = list(federation.build(datasets.load(dataset), clients, seed=0).clients)
    methods = {"autograd": ByAutograd(), "written out": FedTGP()}
    sides = {name: GraftSide(make_setup(method, graphs, CPU)) for name, method in methods.items()}
    least = {name: {"round": float("inf"), "server": float("inf")} for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start = time.process_time()
            side.round()
            least[name]["round"] = min(least[name]["round"], 1000 * (time.process_time() - start))
    generators = [map_tree(torch.clone, side.session.server.state.generator) for side in sides.values()]
    prototypes = torch.randn(clients, graphs[0].classes, 64, generator=torch.Generator().manual_seed(0))
    owned, margin = torch.ones(prototypes.shape[:2], dtype=torch.bool), torch.tensor(1.0)
    for _ in range(rounds):
        for name, method in methods.items():
            start = time.process_time()
            method.train_generator(sides[name].session.server, prototypes, owned, margin)
            least[name]["server"] = min(least[name]["server"], 1000 * (time.process_time() - start))
    return {"dataset": dataset, "clients": clients, "ms": least, "gap": largest_gap(*generators)}


def main() -> None:
    parser = make_parser(__doc__, Path("benchmarks/out/fedtgp_server.json"))
    parser.set_defaults(threads=1)
    parser.add_argument("--rounds", type=int, default=10)
    options = parse(parser)
    rows = [measure(dataset, clients, options.rounds) for dataset, clients in (("cora", 10), ("pubmed", 50))]
    for row in rows:
        before, after = row["ms"].values()
        for part in ("round", "server"):
            ratio = before[part] / after[part]
            print(f"{row['dataset']:8}{row['clients']:4} {part:8}{before[part]:8.1f}{after[part]:8.1f} ms{ratio:6.1f}")
        print(f"largest gap between the generators after {options.rounds} rounds: {row['gap']:.1e}")
    write_results(options, rows=rows)


if __name__ == "__main__":
    main()
