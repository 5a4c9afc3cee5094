"""Folders of finished runs that reports are made of, tiny, and without training anything."""

import json

import numpy as np

from graft.experiments.comparison.finished_runs import DEFAULTS
from graft.experiments.experiment import Experiment
from graft.experiments.experiment_files import experiment_text
from graft.experiments.record_files import RoundLog, write_result


def write_run(folder, method="fedavg", seed=0, clients=3, rounds=6, level=0.5, **changes):
    """Writes the record of a run that never was: scores rise to about `level`, and every client is a bit apart.

    `changes` are `names` of clients, `details` of a round, `evaluate` (False: no round was scored), `validation`
    (False: there are no such nodes), `confusion`, `warnings` and fields of the experiment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = changes.pop("names", list(range(clients)))
    details, confusion = changes.pop("details", {}), changes.pop("confusion", False)
    evaluate, validation = changes.pop("evaluate", True), changes.pop("validation", True)
    warnings = changes.pop("warnings", [])
    links = changes.pop("links", {})
    experiment = {"method": method, "seed": seed, "clients": clients, "rounds": rounds, "dataset": "digits", **changes}
    (folder / "experiment.toml").write_text(experiment_text(Experiment(**experiment)))
    random = np.random.default_rng(seed)
    apart = random.normal(0, 0.03, clients)
    log = RoundLog(folder / "rounds.jsonl", folder / "experiment.toml")
    log.begin()
    for number in range(1, rounds + 1):
        score = level * (1 - 0.6 ** min(number, 40)) + 0.01 * random.random()
        tests = [round(float(np.clip(score + shift, 0, 1)), 4) for shift in apart]
        held = tests if validation else [None] * clients
        mean = lambda values: None if values[0] is None else float(np.mean(values))  # noqa: E731
        scores = {"train": score, "validation": mean(held), "test": mean(tests), "test_node_weighted": mean(tests)}
        record = {
            "round": number,
            "loss": 2.0 / number,
            "up_bytes": 1000 * clients,
            "down_bytes": 1000 * clients,
            "peer_bytes": 0,
            "participants": names,
            "details": {name: [value * number + k for k in range(clients)] for name, value in details.items()},
            "seconds": 0.01,
            **({"links": links} if links else {}),
            **({**scores, "per_client": {"validation": held, "test": tests}} if evaluate else {}),
        }
        log.append(record)
    best = rounds if evaluate else 0
    last = tests if evaluate else [None] * clients
    summary = {
        "graft": "0.0",
        "method": method,
        "dataset": "digits",
        "partition": "louvain",
        "clients": clients,
        "seed": seed,
        "rounds": rounds,
        "best_round": best,
        "accuracy": {
            "test": mean(last),
            "validation": mean(last) if evaluate and validation else None,
            "test_node_weighted": mean(last),
            "test_global": None,
        },
        "per_client": [
            {
                "client": name,
                "model": "gcn",
                "nodes": 40,
                "edges": 80,
                "test": value,
                "validation": value if validation else None,
                **({"confusion": [[8, 2], [1, 9]]} if confusion else {}),
            }
            for name, value in zip(names, last, strict=True)
        ],
        "communication": {"up_bytes": 1000 * clients * rounds, "down_bytes": 1000 * clients * rounds, "peer_bytes": 0},
        "seconds": {"total": 0.1, "per_round": 0.01, "setup": 0.04},
        "peak_memory_bytes": 10_000_000,
        "device": "cpu",
        "threads": 1,
        "experiment": {**DEFAULTS, **experiment},
        "hashes": {"experiment": "e" * 32, "graph": "g" * 32, "partition": f"{seed:032d}", "code": "c" * 32},
        "versions": {"python": "3.11"},
        "warnings": warnings,
    }
    write_result(folder / "result.json", summary, log.checksum)
    card = {
        "method": "louvain",
        "edges": {"total": 100, "kept": 80, "lost": 20, "lost_share": 0.2},
        "per_client": [
            {"client": name, "nodes": 40, "labels": [10 + k % 9, 30 - k % 9], "homophily": 0.5 + 0.4 * (k % 3) / 3}
            for k, name in enumerate(names)
        ],
    }
    (folder / "partition.json").write_text(json.dumps(card))
    return folder


def write_tuning(folder):
    """Writes the record of a tuning that never was."""
    folder.mkdir(parents=True, exist_ok=True)
    history = [
        {
            "trial": number,
            "state": "pruned" if number % 4 == 3 else "complete",
            "validation": 0.5 + 0.02 * number,
            "params": {"mu": 0.1 * 2.0**-number, "optimizer": "adam"},
            "rounds": 20,
            "seconds": 1.5,
        }
        for number in range(8)
    ]
    method = {
        "space": {"mu": {"low": 0.0001, "high": 1.0, "log": True}, "optimizer": {"choices": ["adam", "sgd"]}},
        "default": {"params": {"mu": 0.1, "optimizer": "adam"}, "validation": 0.5},
        "best": {"params": {"mu": 0.0015625, "optimizer": "adam"}, "validation": 0.62, "trial": 6},
        "importance": {"mu": 0.8, "optimizer": 0.2},
        "history": history,
        "test": None,
    }
    tuning = {"metric": "accuracy", "higher": True, "trials": 8, "seeds": [0], "methods": {"fedprox": method}}
    (folder / "tuning.json").write_text(json.dumps(tuning))
    return folder
