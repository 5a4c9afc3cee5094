"""What all measurements share: Graft's side of a comparison, rounds in turn, memory, options and files of results."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from graft.data.graphs import Graph
from graft.engines.capture import capture_stream
from graft.engines.in_process import InProcess
from graft.federation.evaluation import accuracy
from graft.federation.method import Method
from graft.federation.session import Session
from graft.federation.setup import Setup
from graft.models import assign_models

Scores = dict[str, float]  # mean test accuracy over the clients, by the kind of model: "own", "global"


class Side(Protocol):
    """One side of a comparison; what its rounds return is read from the device, so a round is over when it returns."""

    def round(self) -> Any: ...


class GraftSide:
    """A federation in Graft, the way a run trains it."""

    def __init__(self, setup: Setup) -> None:
        self.device = setup.device
        with capture_stream(setup.device):
            self.session = Session(setup, InProcess(setup))
            self.nodes, self.totals = self.session.count_nodes()
        self.rounds = 0

    def round(self) -> Scores:
        self.rounds += 1
        with capture_stream(self.device):
            outcome = self.session.round(self.rounds)
        return {
            kind: accuracy(correct, self.totals, self.nodes).mean("test") or 0.0
            for kind, correct in outcome.tensors.correct.items()
        }


def make_setup(
    method: Method,
    graphs: list[Graph],
    device: torch.device,
    models: str = "gcn",
    *,
    width: int = 64,
    participation: float = 1.0,
) -> Setup:
    """Returns a federation of these graphs with the settings of a plain experiment."""
    assigned = assign_models(models, len(graphs), graphs[0].features, graphs[0].classes, width=width)
    return Setup(
        method=method,
        name=type(method).__name__,
        graphs=graphs,
        models=list(map(method.model, assigned)),
        width=width,
        device=device,
        participation=participation,
    )


def alternate(
    sides: dict[Any, Any],
    turns: int,
    warmup: int = 3,
    rounds_per_turn: dict[Any, int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[Any, float], dict[Any, Any]]:
    """Returns the median milliseconds of a round of every side, by a clock in seconds, and its last scores.

    Rounds of all sides alternate, some sides with several a turn, so that a busy machine disturbs all of them. The
    first turns warm up caches and capture rounds; they are not timed.
    """
    times: dict[Any, list[float]] = {name: [] for name in sides}
    scores = {}
    for turn in range(turns + warmup):
        for name, side in sides.items():
            for _ in range((rounds_per_turn or {}).get(name, 1)):
                start = clock()
                scores[name] = side.round()
                if turn >= warmup:
                    times[name].append(1000 * (clock() - start))
    return {name: statistics.median(values) for name, values in times.items()}, scores


def make_parser(description: str | None, out: Path | None) -> argparse.ArgumentParser:
    """Returns a parser with the options of all measurements; each adds its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=out)
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Returns the options, and sets PyTorch to so many threads."""
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


def write_results(options: argparse.Namespace, **results: Any) -> None:
    """Writes what was measured, with the device and the number of threads."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    about = {"device": options.device, "threads": options.threads}
    options.out.write_text(json.dumps(about | results, indent=1))
