"""The reference methods over several seeds, as a Markdown table: mean and standard deviation of test accuracy.

Every seed draws its own partition, split, initial weights and dropout; the round is picked by validation accuracy.
"""

from __future__ import annotations

import argparse
from statistics import mean, stdev

import torch

import graft

METHODS = ("local", "fedavg", "fedprox", "centralised")


def spread(values: list[float]) -> str:
    return f"{100 * mean(values):.1f} ± {100 * stdev(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", default="cora,citeseer,pubmed,photo")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| dataset | method | own models, mean over clients | own models, by nodes | global model |")
    print("| --- | --- | --- | --- | --- |")
    for dataset in options.datasets.split(","):
        for method in METHODS:
            found = [
                graft.run(method, dataset, clients=options.clients, rounds=options.rounds, seed=seed).accuracy
                for seed in range(options.seeds)
            ]
            shared = [one["test_global"] for one in found if one["test_global"] is not None]
            columns = [spread([one[name] for one in found]) for name in ("test", "test_node_weighted")]
            print(f"| {dataset} | {method} | {' | '.join(columns)} | {spread(shared) if shared else '-'} |", flush=True)


if __name__ == "__main__":
    main()
