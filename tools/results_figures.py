"""Draws the figures of the pages in docs/results from the numbers beside them, by the code that draws those of studies.

    python tools/results_figures.py

The tables are dfed_sst.csv, fedgkc.csv, fedomd.csv, fedtad.csv and general.csv, the curves of means over seeds
curves.csv. Figures of data alone are drawn by `graft reproduce` (dfed-sst-heterogeneity, fedomd-labels).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from graft.experiments.reports.study_charts import (
    CurvePoint,
    Panel,
    Score,
    round_panels,
    score_panels,
    setting_panels,
    sheet,
)
from graft.experiments.reports.vega import to_svg
from graft.experiments.studies import STUDIES
from graft.files import write_text

RESULTS = Path(__file__).parents[1] / "docs" / "results"
ACCURACY = "test accuracy, %"
AVERAGE = "average of seven datasets"
Line = Mapping[str, str]  # of a table


@dataclass(frozen=True)
class Source:
    """Where the numbers of a figure are: the rows of a study in a table."""

    table: str
    study: str
    clients: tuple[int, ...] = ()  # empty: all
    average: bool = False  # whether a panel with the mean of all datasets comes first
    point: str = "server"  # which model of a run, where the table has several
    by_host: bool = False  # a panel for every method that something is added to, instead of one for each dataset


TABLES = {
    "fedgkc-modules": Source("fedgkc", "fedgkc-modules", clients=(10,)),
    "fedgkc-ablation": Source("fedgkc", "fedgkc-ablation"),
    "fedgkc-copilots": Source("fedgkc", "fedgkc-copilots"),
    "fedgkc-alpha-beta": Source("fedgkc", "fedgkc-alpha-beta"),
    "fedgkc-lambda": Source("fedgkc", "fedgkc-lambda"),
    "dfed_sst-ablation": Source("dfed_sst", "dfed-sst-ablation"),
    "dfed_sst-topology-sparsity": Source("dfed_sst", "dfed-sst-topology-sparsity", average=True),
    "dfed_sst-label-sparsity": Source("dfed_sst", "dfed-sst-label-sparsity", average=True),
    "fedomd-modules": Source("fedomd", "fedomd-modules"),
    "fedomd-depth": Source("fedomd", "fedomd-depth"),
    "fedomd-alpha-beta": Source("fedomd", "fedomd-alpha-beta"),
    "fedomd-resolution": Source("fedomd", "fedomd-resolution"),
    "fedtad-ablation": Source("fedtad", "fedtad-ablation", clients=(10, 20)),
    "fedtad-lambdas": Source("fedtad", "fedtad-lambdas"),
    "fedtad-participation": Source("fedtad", "fedtad-participation"),
    "fedtad-plug": Source("fedtad", "fedtad-plug", by_host=True),
    "general-methods": Source("general", "general-methods", point="own"),
}
CURVES = {
    "dfed_sst-convergence": "dfed-sst-convergence",
    "fedomd-convergence": "fedomd-convergence",
    "fedtad-convergence": "fedtad-convergence",
    "fedtad-teachers": "fedtad-teachers",
}


def read(name: str, point: str = "") -> list[Line]:
    """Returns the lines of a table; where it has several models of a run, those of one point of a round."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    return [line for line in lines if line.get("point", point) == point]


def score(line: Line) -> Score:
    """Returns the mean and deviation of a line, and the paper's number where there is one."""
    mean, deviation = line.get("mean") or line["test"], line.get("deviation") or line["test_deviation"]
    return Score(float(mean), float(deviation), float(line["paper"]) if line.get("paper") else None)


def columns_of(source: Source) -> dict[str, dict[str, Score]]:
    """Returns the scores of each panel, by row."""
    columns: dict[str, dict[str, Score]] = {}
    for line in read(source.table, source.point):
        if line["study"] != source.study or (source.clients and int(line["clients"]) not in source.clients):
            continue
        title, row = f"{line['dataset']}-{line['clients']}", line["row"]
        if source.by_host:
            title, _, added = row.partition("+")
            row = f"with {added}" if added else "alone"
        columns.setdefault(title, {})[row] = score(line)
    return columns


def average(columns: Iterable[Mapping[str, Score]]) -> dict[str, Score]:
    """Returns the mean over columns of every row; a deviation over seeds cannot be told from theirs."""
    columns = list(columns)
    return {row: Score(sum(column[row].mean for column in columns) / len(columns)) for row in columns[0]}


def table_panels(source: Source) -> list[Panel]:
    """Returns the panels of a figure made of a table: scores by row, or curves over a setting."""
    study, columns = STUDIES[source.study], columns_of(source)
    if source.average:
        columns = {AVERAGE: average(columns.values()), **columns}
    if study.figure != "lines":
        return score_panels(columns, ACCURACY)
    by_column: dict[str, dict[str, list[CurvePoint]]] = {}
    for title, scores in columns.items():
        for row, entry in scores.items():
            curve, x = study.rows[row].point or ("", 0.0)
            point = CurvePoint(x, entry.mean, entry.deviation)
            by_column.setdefault(title, {}).setdefault(curve, []).append(point)
    ordered = {title: {name: sorted(curve) for name, curve in curves.items()} for title, curves in by_column.items()}
    return setting_panels(ordered, study.axis, ACCURACY)


def curve_panels(study: str) -> list[Panel]:
    """Returns the panels of a figure made of curves over rounds."""
    columns: dict[str, dict[str, list[CurvePoint]]] = {}
    for line in read("curves"):
        if line["study"] == study:
            title = f"{line['dataset']}-{line['clients']}"
            pairs = zip(rounds_of(line["rounds"]), map(float, line["test"].split()), strict=True)
            columns.setdefault(title, {})[line["row"]] = [CurvePoint(number, value) for number, value in pairs]
    axis = "validation accuracy, %" if study == "fedtad-teachers" else ACCURACY
    return round_panels(columns, axis)


def rounds_of(text: str) -> list[int]:
    """Returns the rounds of a curve, written as first:last:step or one by one."""
    if ":" in text:
        first, last, step = map(int, text.split(":"))
        return list(range(first, last + 1, step))
    return [int(number) for number in text.split()]


def main() -> None:
    figures = {name: table_panels(source) for name, source in TABLES.items()}
    figures |= {name: curve_panels(study) for name, study in CURVES.items()}
    for name, panels in figures.items():
        write_text(RESULTS / f"{name}.svg", to_svg(sheet(panels)) + "\n")


if __name__ == "__main__":
    main()
