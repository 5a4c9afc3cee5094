"""Runs in rows and columns: seeds are averaged where all else agrees, and rows are named by what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from graft.data import OWN_GRAPHS, parse_graphs
from graft.errors import InputError
from graft.experiments.comparison.finished_runs import WHERE, FinishedRun, common_metric
from graft.experiments.experiment import GIVEN
from graft.experiments.identity import comparable
from graft.federation.metric_names import METRICS
from graft.methods import METHODS, PLUGS

Cell = dict[int, FinishedRun]  # the runs of a row in a column, by seed
Fields = Mapping[str, Any]  # of an experiment, the method's own settings among them


class Comparison:
    """Finished runs in rows (what was tried) and columns (the data that it was tried on), with seeds inside.

    Runs share a cell only if every field of their experiments but the seed agrees, and their graph and code too.
    """

    def __init__(self, runs: Iterable[FinishedRun], metric: str | None = None) -> None:
        self.runs = list(runs)
        if not self.runs:
            raise InputError("There are no runs to compare.")
        self.metric = metric or common_metric(self.runs)
        row_names = name_groups(self.runs, lambda run: run.row_key, what_is_tried, method_label, "code")
        column_names = name_groups(self.runs, lambda run: run.data_key, what_it_is_tried_on, data_label, "graph")
        self.rows = list(row_names.values())
        self.columns = list(column_names.values())
        self.cells: dict[tuple[str, str], Cell] = {}
        for run in self.runs:
            cell = self.cells.setdefault((row_names[run.row_key], column_names[run.data_key]), {})
            if run.seed in cell:
                raise InputError(
                    f"{run.name} and {cell[run.seed].name} are the same experiment with the same seed, {run.seed}: "
                    "leave one of them out."
                )
            cell[run.seed] = run

    def cell(self, row: str, column: str) -> Cell:
        """Returns the runs of a row in a column, by seed; empty where there are none."""
        return self.cells.get((row, column), {})

    def values(self, row: str, column: str, metric: str | None = None, name: str = "test") -> dict[int, float]:
        """Returns a score of each seed that has it, at the best round: fractions, not percent."""
        scores = {seed: run.score(metric or self.metric, name) for seed, run in self.cell(row, column).items()}
        return {seed: score for seed, score in sorted(scores.items()) if score is not None}

    def also_differs(self) -> dict[str, dict[str, Any]]:
        """Returns the fields beside method and data in which rows differ although no name says so, row by row."""
        first = {
            row: next(run for (name, _), cell in self.cells.items() if name == row for run in cell.values())
            for row in self.rows
        }
        tried = {row: what_is_tried(run.experiment) for row, run in first.items()}
        names = dict.fromkeys(name for fields in tried.values() for name in fields if not name.startswith("settings."))
        table = {name: {row: fields.get(name) for row, fields in tried.items()} for name in names if name != "method"}
        return {name: values for name, values in table.items() if len(set(map(repr, values.values()))) > 1}


def name_groups(
    runs: Sequence[FinishedRun],
    key: Callable[[FinishedRun], str],
    chosen: Callable[[Fields], dict[str, Any]],
    label: Callable[[Fields], str],
    hashed: str,
) -> dict[str, str]:
    """Returns the names of groups by their keys: a label, and the fields in which those with the same label differ."""
    groups: dict[str, FinishedRun] = {}
    for run in runs:
        groups.setdefault(key(run), run)
    by_label: dict[str, dict[str, FinishedRun]] = {}
    for group, run in groups.items():
        by_label.setdefault(label(run.experiment), {})[group] = run
    names = {}
    for short, alike in by_label.items():
        fields = {group: chosen(run.experiment) for group, run in alike.items()}
        varied = [
            name
            for name in dict.fromkeys(name for values in fields.values() for name in values)
            if len({repr(values.get(name)) for values in fields.values()}) > 1
        ]
        for group, run in alike.items():
            words = [f"{name.removeprefix('settings.')}={spell(fields[group].get(name))}" for name in varied]
            names[group] = ", ".join([short, *words])
            if not words and len(alike) > 1:  # the fields agree, and what they name does not
                names[group] += f", {hashed} {run.hashes.get(hashed, 'unknown')[:8]}"
    repeated = sorted({name for name in names.values() if list(names.values()).count(name) > 1})
    if repeated:
        raise InputError(f"Several groups of runs would be called '{repeated[0]}': compare them apart.")
    return {group: names[group] for group in groups}  # in the order in which they appear


def what_is_tried(experiment: Fields) -> dict[str, Any]:
    """Returns the fields of an experiment that are not about its data, the settings of the method one by one."""
    values = {name: value for name, value in comparable(experiment).items() if name not in WHERE}
    settings = values.pop("settings", {})
    return values | {f"settings.{name}": value for name, value in settings.items()}


def what_it_is_tried_on(experiment: Fields) -> dict[str, Any]:
    """Returns the fields of an experiment that are about its data, but the seed."""
    return {name: value for name, value in comparable(experiment).items() if name in WHERE and name != "seed"}


def method_label(experiment: Fields) -> str:
    """Returns the method and its plug."""
    method = METHODS.label(experiment["method"])
    return f"{method}+{PLUGS.label(experiment['plug'])}" if experiment.get("plug") else method


def data_label(experiment: Fields) -> str:
    """Returns the name of the data."""
    graphs = experiment.get("graphs")
    if experiment["dataset"] == GIVEN and experiment.get("partition") == OWN_GRAPHS:
        return "own data"
    return "-".join(parse_graphs(graphs)) if graphs else Path(experiment["dataset"]).stem


def spell(value: Any) -> str:
    """Returns a value of a field as it would be typed."""
    if isinstance(value, list):
        return ",".join(map(spell, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def said_of_other_fields(comparison: Comparison) -> list[str]:
    """Returns a sentence about settings in which rows differ although their names do not say so."""
    names = comparison.also_differs()
    if not names:
        return []
    parts = []
    for name, values in names.items():
        by_value: dict[str, list[str]] = {}
        for row, value in values.items():
            by_value.setdefault(spell(value) or "none", []).append(row)
        listed = (f"{value}: {rows[0] if len(rows) == 1 else f'{len(rows)} rows'}" for value, rows in by_value.items())
        parts.append(f"{name} ({'; '.join(listed)})")
    return [f"Rows also differ in {', '.join(parts)}."]


def mean_std(values: Sequence[float | None], metric: str = "accuracy") -> str:
    """Returns mean and standard deviation of a metric as text, mostly in percent; of those values that there are."""
    scale, digits = (100, 1) if METRICS[metric].percent else (1, 3)
    scaled = [scale * value for value in values if value is not None]
    if not scaled:
        return "-"
    return f"{mean(scaled):.{digits}f}" + (f" ± {stdev(scaled):.{digits}f}" if len(scaled) > 1 else "")
