"""The reference methods over several seeds, as a Markdown table: mean and standard deviation of test accuracy.

Every seed draws its own partition, split, initial weights and dropout; the round is picked by validation accuracy.
"""

from __future__ import annotations

import argparse
from statistics import mean, stdev

import graft

METHODS = ("local", "fedavg", "fedprox", "centralised")
# As docs/results/references.md was run; experiments have other defaults since.
TRAINING = {"optimizer": "adam", "learning_rate": 0.01, "clip_norm": 0.0, "feature_norm": 0.0}


def mean_std(values: list[float]) -> str:
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{100 * mean(values):.1f} ± {100 * deviation:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", default="cora,citeseer,pubmed,photo")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    settings = {"clients": options.clients, "rounds": options.rounds, "threads": options.threads, **TRAINING}
    print("| dataset | method | own models, mean over clients | own models, by nodes | global model |")
    print("| --- | --- | --- | --- | --- |")
    for dataset in options.datasets.split(","):
        for method in METHODS:
            scores = [graft.run(method, dataset, seed=seed, **settings).accuracy for seed in range(options.seeds)]
            shared = [score["test_global"] for score in scores if score["test_global"] is not None]
            own = [mean_std([score[name] for score in scores]) for name in ("test", "test_node_weighted")]
            print(f"| {dataset} | {method} | {' | '.join(own)} | {mean_std(shared) if shared else '-'} |", flush=True)


if __name__ == "__main__":
    main()
