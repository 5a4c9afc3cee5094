"""A user's `nn.Module` as it is trained now against how it once was: recorded and, on a GPU, captured, against run as
it is, with dense features and a list of edges made in every pass.

FedAvg with ten clients on Cora, the module of `examples/own_model.py` and models of PyG. Rounds of both sides alternate
in one process, so that a busy machine disturbs both.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from harness import GraftSide, alternate, make_parser, parse, write_results
from torch import nn

from graft.data import datasets, federation
from graft.data.graphs import Graph
from graft.federation.setup import Setup
from graft.graphs.fleet_graph import FleetGraph
from graft.methods.fedavg import FedAvg
from graft.models.architecture import Model, Output
from graft.models.build import build_model
from graft.models.own import OwnModel
from graft.tensors.randomness import Stream
from graft.tensors.trees import Weights, flatten

sys.path.append(str(Path(__file__).parents[1] / "examples"))


class PlainModel(OwnModel):
    """How modules were run before: everything is made anew in every pass, and nothing is recorded."""

    def __call__(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Output:
        parameters = {path.replace("/", "."): leaf[0] for path, leaf in flatten(weights)}
        features = graph.features
        x = features[0] if isinstance(features, torch.Tensor) else features.dense()[0]
        edge_index = torch.stack([graph.neighbours.row_of, graph.neighbours.columns.long()])
        self.module.train(random is not None)
        if random is None:
            output = torch.func.functional_call(self.module, parameters, (x, edge_index))
        else:
            with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
                torch.manual_seed(int(random.bits(1)))
                output = torch.func.functional_call(self.module, parameters, (x, edge_index))
        embedding, logits = output if isinstance(output, tuple) else (output, output)
        return Output(embedding.unsqueeze(0), logits.unsqueeze(0))


def make_module(name: str, features: int, classes: int) -> nn.Module:
    """Returns the module of the example, or a model of PyG by its name, of width 64."""
    torch.manual_seed(0)
    if name == "example":
        from own_model import TransformerNet

        return TransformerNet(features, classes)
    model = build_model(name, features, classes, width=64, dropout=0.5)
    assert isinstance(model, OwnModel)
    return model.module


def make_side(model: Model, graphs: list[Graph], device: torch.device, *, capture: bool) -> GraftSide:
    models = [model] * len(graphs)
    return GraftSide(Setup(FedAvg(), "fedavg", graphs, models, device=device, capture=capture))


def compare(name: str, graphs: list[Graph], turns: int, device: torch.device) -> dict[str, Any]:
    """Times both sides in turn."""
    module = make_module(name, graphs[0].features, graphs[0].classes)
    sides = {
        "plain": make_side(PlainModel(module), graphs, device, capture=False),
        "graft": make_side(OwnModel(module, graphs[0].features), graphs, device, capture=True),
    }
    medians, scores = alternate(sides, turns, warmup=4, rounds_per_turn={"graft": 3})
    return {"model": name, "ms": medians, "ratio": medians["plain"] / medians["graft"], "accuracy": scores}


def main() -> None:
    parser = make_parser(__doc__, Path("benchmarks/out/own_module.json"))
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--models", default="example,pyg:GCN,pyg:GAT,pyg:GraphSAGE,pyg:GIN,pyg:PNA")
    options = parse(parser)
    graphs = federation.build(datasets.load(options.dataset), options.clients, seed=0).clients
    rows = []
    print(f"{'model':16}{'plain ms':>10}{'Graft ms':>10}{'ratio':>8}   accuracy of own / global models: plain, Graft")
    for name in options.models.split(","):
        row = compare(name, graphs, options.rounds, torch.device(options.device))
        rows.append(row)
        accuracies = [
            " / ".join(f"{100 * row['accuracy'][side][kind]:.1f}" for kind in ("own", "global"))
            for side in ("plain", "graft")
        ]
        times = f"{row['ms']['plain']:10.1f}{row['ms']['graft']:10.2f}{row['ratio']:8.1f}"
        print(f"{name:16}{times}   {', '.join(accuracies)}", flush=True)
    write_results(options, dataset=options.dataset, clients=options.clients, rows=rows)


if __name__ == "__main__":
    main()
