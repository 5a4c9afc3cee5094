"""The record of a run as one small file: its experiment, what result.json would hold, and test accuracy by round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from graft.experiments.experiment import make_experiment
from graft.experiments.many_runs import Check, Federations, Message, Order, cached_federation, one_line
from graft.experiments.result import Result
from graft.experiments.run import run_experiment
from graft.files import write_text


def perform_brief(order: Order, federations: Federations, check: Check) -> Message:
    """Runs an order and writes its result, or why there is none, whole or not at all."""
    stored: dict[str, Any] = {"experiment": order.experiment}
    path = Path(order.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        experiment = make_experiment(order.experiment)
        federation = cached_federation(experiment, federations, order.given.dataset)
        given = replace(order.given, federation=federation)
        result = run_experiment(experiment, callbacks=[check], given=given)
        if not result.finished:
            raise KeyboardInterrupt
        stored |= {"partition": federation.hash, "summary": result.summary, "curve": accuracy_curve(result)}
    except Exception as error:
        write_text(path, json.dumps({**stored, "error": one_line(error)}, indent=1) + "\n")
        raise
    write_text(path, json.dumps(stored, indent=1) + "\n")
    metric = result.summary.get("metric", "accuracy")
    scores = result.accuracy if metric == "accuracy" else result.metrics[metric]
    return {"test": scores["test"], "metric": metric}


def accuracy_curve(result: Result) -> dict[str, list[float]]:
    """Returns test accuracy by round, of clients' own models and of what the server hands out, for a figure; nothing is
    selected by it."""
    scored = [record for record in result.rounds if record.get("test") is not None]
    return {
        "round": [record["round"] for record in scored],
        "test": [round(record["test"], 5) for record in scored],
        "test_served": [round(served(record), 5) for record in scored],
    }


def served(record: Mapping[str, Any]) -> float:
    """Returns the score of what clients are given after a round: the global model, or else a model of their own."""
    common = record.get("test_global")
    return float(record["test"] if common is None or "test_trained" in record else common)
