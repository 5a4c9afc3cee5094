"""Finished runs with scores of our choice, as if they had been read from the disk."""

from pathlib import Path

from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.finished_runs import DEFAULTS, FinishedRun


def made_up_run(method, dataset, seed, score, *, partition=None, rounds=4, megabytes=1.0, metrics=None, **fields):
    """A run that ended with a test score in its last but one round; its clients are around it."""
    experiment = {**DEFAULTS, "method": method, "dataset": dataset, "seed": seed, "rounds": rounds, **fields}
    clients = [score - 0.02, score, score + 0.02]
    best = max(rounds - 1, 1)
    records = [
        {
            "round": number,
            "loss": 1 / number,
            "test": score * min(number / best, 1.0),
            "validation": score * (number / best if number <= best else 0.9),
            "up_bytes": int(5e5 * megabytes),
            "down_bytes": int(5e5 * megabytes),
            "peer_bytes": 0,
            "seconds": 0.1,
        }
        for number in range(1, rounds + 1)
    ]
    summary = {
        "graft": "0.1.0",
        "method": method,
        "dataset": dataset,
        "clients": len(clients),
        "seed": seed,
        "rounds": rounds,
        "best_round": best,
        "accuracy": {"test": score, "validation": score, "test_node_weighted": score, "test_global": None},
        **({"metrics": metrics} if metrics else {}),
        "per_client": [
            {"client": number, "model": "gcn", "nodes": 10, "edges": 20, "test": value, "validation": value}
            for number, value in enumerate(clients)
        ],
        "communication": {"up_bytes": int(5e5 * megabytes) * rounds, "down_bytes": int(5e5 * megabytes) * rounds}
        | {"peer_bytes": 0},
        "seconds": {"total": 0.1 * rounds, "per_round": 0.1, "setup": 0.05},
        "peak_memory_bytes": 10_000_000,
        "device": "cpu",
        "threads": 1,
        "hashes": {"partition": partition or f"{dataset}-{seed}".ljust(64, "0"), "graph": dataset},
    }
    return FinishedRun(experiment, summary, Path("runs") / method / f"{dataset}-seed{seed}", lambda: records)


def made_up(table, metric=None, **fields):
    """A comparison of scores by (method, dataset), each a list with a score a seed; None is a run that is not there."""
    runs = [
        made_up_run(method, dataset, seed, score, **fields)
        for (method, dataset), scores in table.items()
        for seed, score in enumerate(scores)
        if score is not None
    ]
    return Comparison(runs, metric)
