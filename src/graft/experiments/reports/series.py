"""Curves over rounds, of one run or of several seeds, with no more points than a figure can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.reports.charts import Mark, Point
from graft.federation.metric_names import METRICS, format_metric

MOST_POINTS = 200  # of a curve
Record = Mapping[str, Any]


def scores_of(record: Record, metric: str) -> Record:
    """Returns the scores of a round by a metric."""
    scores: Record = record.get("metrics", {}).get(metric, record if metric == "accuracy" else {})
    return scores


def scale_of(metric: str) -> int:
    return 100 if METRICS[metric].percent else 1


def axis_title(metric: str, name: str = "test") -> str:
    """Returns the title of an axis, with its unit."""
    return f"{name} {METRICS[metric].title}{' (%)' if METRICS[metric].percent else ''}"


def score_curve(run: FinishedRun, metric: str, name: str = "test") -> dict[int, float]:
    """Returns a score of each round that was evaluated, in percent where it is read so."""
    values = {record["round"]: scores_of(record, metric).get(name) for record in run.rounds}
    return {number: scale_of(metric) * value for number, value in values.items() if value is not None}


def loss_curve(run: FinishedRun) -> dict[int, float]:
    """Returns the mean training loss of each round."""
    losses = {record["round"]: record.get("loss") for record in run.rounds}
    return {number: loss for number, loss in losses.items() if loss is not None and math.isfinite(loss)}


def megabytes_sent(run: FinishedRun) -> dict[int, float]:
    """Returns what was sent up to each round, before the first one too, in megabytes."""
    before = run.summary.get("communication", {}).get("before_training", {}).values()
    total = sum(field["up_bytes"] + field["down_bytes"] for field in before)
    sent = {}
    for record in run.rounds:
        total += sum(record.get(f"{way}_bytes", 0) for way in ("up", "down", "peer"))
        sent[record["round"]] = total / 1e6
    return sent


def points_of(curve: Mapping[int, float], keep: Iterable[int] = ()) -> list[Point]:
    """Returns the points of one run's curve."""
    return [Point(number, curve[number]) for number in thinned(list(curve), keep)]


def mean_points(curves: Sequence[Mapping[int, float]]) -> list[Point]:
    """Returns the mean over seeds at every round that all of them have, with a band of one standard deviation."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return []
    common = [number for number in curves[0] if all(number in curve for curve in curves)]
    points = []
    for number in thinned(common):
        values = [curve[number] for curve in curves]
        middle, spread = mean(values), stdev(values) if len(values) > 1 else None
        points.append(
            Point(number, middle) if spread is None else Point(number, middle, middle - spread, middle + spread)
        )
    return points


def thinned(numbers: Sequence[int], keep: Iterable[int] = ()) -> list[int]:
    """Returns at most so many rounds as a figure can show, evenly spread; the first, the last and some others stay."""
    if len(numbers) <= MOST_POINTS:
        return list(numbers)
    step = (len(numbers) - 1) / (MOST_POINTS - 1)
    chosen = {numbers[round(index * step)] for index in range(MOST_POINTS)}
    return sorted(chosen | (set(keep) & set(numbers)))


def best_mark(series: str, run: FinishedRun, metric: str, curve: Mapping[int, float]) -> list[Mark]:
    """Returns the mark of the best round of a run, where its curve has that round."""
    best = run.summary["best_round"]
    if best not in curve:
        return []
    value = format_metric(metric, curve[best] / scale_of(metric))
    words = f"{series}, seed {run.seed}: best round {best}, {value}"
    return [Mark(series, best, curve[best], words)]


def finite_numbers(value: Any) -> Iterator[float]:
    """Returns all finite numbers in a recorded value, at any depth."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from finite_numbers(part)
    elif isinstance(value, int | float) and math.isfinite(value):
        yield float(value)
