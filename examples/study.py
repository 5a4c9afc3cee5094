"""A small comparison: two methods over three seeds, with training alone below and all data in one place above."""

from statistics import mean, stdev

import graft

METHODS = ("local", "fedavg", "scaffold", "centralised")
SEEDS = range(3)
SETTING = dict(clients=5, partition="random", split="5/20/75", rounds=10)


def main() -> None:
    tests: dict[str, list[float]] = {method: [] for method in METHODS}
    for seed in SEEDS:  # partition, split, initial weights and training draw from it, the same for all methods
        for method in METHODS:
            result = graft.run(method, "digits", seed=seed, **SETTING)
            tests[method].append(100 * result.accuracy["test"])  # at the round with the best validation accuracy

    print(f"Test accuracy in percent, digits, 5 clients, {len(SEEDS)} seeds")
    for method, accuracies in tests.items():
        # Differences seed by seed are paired: both methods saw the same data.
        gains = [accuracy - alone for accuracy, alone in zip(accuracies, tests["local"], strict=True)]
        print(f"{method:12} {mean(accuracies):5.1f} ± {stdev(accuracies):3.1f}   {mean(gains):+5.1f} against local")


if __name__ == "__main__":
    main()
