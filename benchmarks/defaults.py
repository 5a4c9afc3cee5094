"""Whether every method's defaults train on data that nobody prepared for it: test accuracy beside the majority class.

Each method runs with its defaults on raw, row-normalised, l2 and standardised features: on a homophilous and a
heterophilous generated graph, cut at random so that clients have all classes, and on Cora where it is there. Accuracies
are those of the best validation round, the mean over seeds, of clients' own models and of the global one. A `!` stands
behind what is less than two points above the majority class: of each client for own models, of all nodes for the
global one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import graft
from graft.data import default_root
from graft.errors import GraftError
from graft.methods import METHODS

GRAPHS = ("synthetic:nodes=3000,degree=40,homophily=0.9", "synthetic:nodes=3000,degree=40,homophily=0.1", "cora")
FEATURES = ("raw", "row", "l2", "standard")
NEAR = 0.02  # of the majority class: a model that is not above it by so much has learned nothing
EVERY = 5  # rounds between evaluations
SCORES = ("test", "test_global")


def main() -> None:
    options = parse()
    rows: list[dict[str, Any]] = []
    for dataset in options.datasets:
        majority = majority_class(dataset, options)
        for features in options.features:
            print(f"\n{dataset}, {features} features: majority class {spelled(majority)}", flush=True)
            for method in options.methods:
                row = {"dataset": dataset, "features": features, "method": method, "majority": majority}
                rows.append(row | measure(method, dataset, features, options))
                print(line(rows[-1]), flush=True)
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(rows, indent=1))
    print("\n".join(table(rows, options.datasets, options.features)))


def measure(method: str, dataset: str, features: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the mean accuracies, or why there are none, and the seconds of a run."""
    start = time.perf_counter()
    try:
        found: dict[str, Any] = mean_scores(method, dataset, features, options)
    except GraftError as error:
        found = {"failed": str(error)}
    return found | {"seconds": (time.perf_counter() - start) / len(options.seeds)}


def mean_scores(method: str, dataset: str, features: Any, options: argparse.Namespace) -> dict[str, float]:
    """Returns the mean test accuracies over seeds, by the kind of model."""
    runs = [
        graft.run(
            method,
            dataset,
            features=features,
            clients=options.clients,
            partition=partition_of(dataset),
            rounds=options.rounds,
            evaluate_every=EVERY,
            seed=seed,
            threads=options.threads,
        )
        for seed in options.seeds
    ]
    return {
        name: fmean(run.accuracy[name] for run in runs) for name in SCORES if runs[0].accuracy.get(name) is not None
    }


def majority_class(dataset: str, options: argparse.Namespace) -> dict[str, float]:
    """Returns the accuracy of a model that predicts each client's most frequent class, and of one for all clients."""
    settings = {"rounds": 1, "threads": options.threads}
    runs = {
        clients: [
            graft.run("majority", dataset, clients=clients, partition=partition_of(dataset), seed=seed, **settings)
            for seed in options.seeds
        ]
        for clients in (options.clients, 1)
    }
    own, shared = (fmean(run.accuracy["test"] for run in of_seeds) for of_seeds in runs.values())
    return {"test": own, "test_global": shared}


def partition_of(dataset: str) -> str:
    """Returns how a graph is cut: a homophilous generated one by Louvain would have clients of one class each."""
    return "random" if dataset.startswith("synthetic") else "louvain"


def near_majority(row: dict[str, Any]) -> list[str]:
    """Returns the kinds of models of a row that are no better than the majority class."""
    majority = row.get("majority", {})
    return [name for name in majority if name in row and row[name] < majority[name] + NEAR]


def spelled(row: dict[str, Any]) -> str:
    """Returns the accuracies of a row in percent, own and global, each with a mark where it learned nothing."""
    if "failed" in row:
        return "failed"
    near = near_majority(row)
    return " / ".join(f"{100 * row[name]:.1f}{'!' if name in near else ''}" for name in SCORES if name in row)


def line(row: dict[str, Any]) -> str:
    return f"{row['method']:18}{spelled(row):18}{row['seconds']:6.1f} s  {row.get('failed', '')}".rstrip()


def table(rows: Sequence[dict[str, Any]], datasets: Sequence[str], features: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a table for each graph: a row a method, a column a kind of features."""
    for dataset in datasets:
        cells = {(row["method"], row["features"]): row for row in rows if row["dataset"] == dataset}
        yield f"\n{dataset}"
        yield f"{'':18}" + "".join(f"{name:18}" for name in features)
        yield f"{'majority class':18}{spelled(next(iter(cells.values()))['majority'])}"
        for method in dict.fromkeys(method for method, _ in cells):
            yield f"{method:18}" + "".join(f"{spelled(cells[method, name]):18}" for name in features)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    there = [name for name in GRAPHS if ":" in name or (default_root() / name.capitalize()).is_dir()]
    learning = [name for name in METHODS if name != "majority"]
    parser.add_argument("--datasets", nargs="+", default=there)
    parser.add_argument("--features", nargs="+", default=FEATURES)
    parser.add_argument("--methods", nargs="+", default=learning)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/defaults.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
