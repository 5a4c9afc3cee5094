"""What a method shows of itself over the rounds: the numbers that it recorded, and who heard whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean
from typing import Any

from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.reports.charts import Point, curves
from graft.experiments.reports.links import link_networks
from graft.experiments.reports.pages import Block, Figure, Figures, Table
from graft.experiments.reports.series import finite_numbers, mean_points, thinned
from graft.experiments.reports.summary_table import Cell, readable_bytes

FEW = 8  # clients that get a curve each
MOST_FIGURES = 12
SMALL = 170  # height of a small figure


def own_numbers(run: FinishedRun, drawn: Sequence[int] | None = None) -> list[Block]:
    """Returns what a method noted in its rounds as figures and a table, and its links as pictures."""
    blocks: list[Block] = []
    figures = [figure for name in recorded(run) if (figure := detail_figure(run, name))]
    if figures:
        blocks.append(Figures(figures[:MOST_FIGURES], small=True))
    blocks += method_details(run.rounds)
    clients = [row["client"] for row in run.summary.get("per_client", [])]
    return blocks + link_networks(run.rounds, clients, drawn)


def recorded(run: FinishedRun) -> list[str]:
    """Returns the names of all that was noted in rounds."""
    return list(dict.fromkeys(name for record in run.rounds for name in record.get("details", {})))


def detail_figure(run: FinishedRun, name: str) -> Figure | None:
    """Returns a quantity over rounds: a curve a client where they are few, else the mean with the range; None where it
    never changes."""
    values = {record["round"]: record["details"].get(name) for record in run.rounds if "details" in record}
    numbers = {number: list(finite_numbers(value)) for number, value in values.items()}
    rounds = [number for number, entries in numbers.items() if entries]
    if len(rounds) < 2 or len({entry for number in rounds for entry in numbers[number]}) < 2:
        return None
    shown = thinned(rounds)
    same = not any("scored" in record for record in run.rounds)  # clients in all rounds, if it is one number each
    clients = [str(row["client"]) for row in run.summary.get("per_client", []) if same]
    title = readable_name(name)
    in_bytes = name.endswith("_bytes")
    scale = 1e-6 if in_bytes else 1.0
    lengths = {len(numbers[number]) for number in rounds}
    if lengths == {len(clients)} and 1 < len(clients) <= FEW and all(isinstance(values[n], list) for n in rounds):
        series = {
            f"client {client}": [Point(number, scale * numbers[number][index]) for number in shown]
            for index, client in enumerate(clients)
        }
        return Figure(title, curves(series, "round", title, height=SMALL))
    single = lengths == {1}
    points = [
        Point(number, scale * mean(entries))
        if single
        else Point(number, scale * mean(entries), scale * min(entries), scale * max(entries))
        for number in shown
        if (entries := numbers[number])
    ]
    words = "" if single else "Mean; the band is from the lowest to the highest."
    spec = curves({title: points}, "round", "MB" if in_bytes else title, height=SMALL, band="all")
    return Figure(title, spec, words)


def mean_detail_figure(runs: Sequence[FinishedRun], name: str) -> Figure | None:
    """Returns a quantity over rounds, mean over clients and seeds; None where it never changes."""
    scale = 1e-6 if name.endswith("_bytes") else 1.0
    by_seed = [
        {
            record["round"]: scale * mean(numbers)
            for record in run.rounds
            if (numbers := list(finite_numbers(record.get("details", {}).get(name))))
        }
        for run in runs
    ]
    if len({value for curve in by_seed for value in curve.values()}) < 2 or not all(len(c) > 1 for c in by_seed):
        return None
    title = readable_name(name)
    axis = "MB" if name.endswith("_bytes") else title
    return Figure(title, curves({title: mean_points(by_seed)}, "round", axis, height=SMALL, band="± deviation"))


def method_details(rounds: Sequence[dict[str, Any]]) -> list[Block]:
    """Returns a table of what the method recorded in its rounds, a row a quantity; none where there is nothing."""
    details: dict[str, list[float]] = defaultdict(list)
    for record in rounds:
        for name, value in record.get("details", {}).items():
            if numbers := list(finite_numbers(value)):
                details[name].append(mean(numbers))
    rows = []
    for name, values in details.items():
        formatted = readable_bytes if name.endswith("_bytes") else "{:.4g}".format
        cells = [Cell(formatted(value), value) for value in (values[0], values[-1], mean(values))]
        rows.append([Cell(readable_name(name)), *cells])
    if not rows:
        return []
    note = "In a round; where there is a number for each client, the mean over clients."
    return [Table(("noted by the method", "first", "last", "mean"), rows, note=note)]


def readable_name(name: str) -> str:
    return name.replace("_", " ")
