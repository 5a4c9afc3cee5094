"""The clients of a comparison: what each row gives them over training alone, and confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from graft.experiments.comparison.comparison import Comparison, mean_std
from graft.experiments.comparison.differences import alone_row
from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.reports.client_sections import MOST_ROWS, score_of
from graft.experiments.reports.data_sections import read_classes
from graft.experiments.reports.pages import Block, Confusions, Figure, Figures, Heading, Table
from graft.experiments.reports.row_charts import spreads
from graft.experiments.reports.series import axis_title, scale_of
from graft.experiments.reports.summary_table import Cell
from graft.federation.metric_names import METRICS

Scores = list[float | None]


def client_blocks(comparison: Comparison) -> list[Block]:
    """Returns scores and gains of clients over all seeds, for each data."""
    alone = alone_row(comparison)
    figures, tables = [], []
    for column in comparison.columns:
        where = f" on {column}" if len(comparison.columns) > 1 else ""
        own = {row: scores_of_clients(comparison, row, column) for row in comparison.rows}
        own = {row: values for row, values in own.items() if values}
        if not own:
            continue
        title = METRICS[comparison.metric].title
        figures.append(Figure(f"Test {title} of clients{where}", spreads(own, axis_title(comparison.metric))))
        gains = {
            row: gain
            for row in own
            if alone and row != alone and (gain := gains_of_clients(comparison, row, alone, column))
        }
        if gains:
            figures.append(
                Figure(f"Gain over training alone{where}", spreads(gains, "improvement in points", zero=True))
            )
            tables.append(gain_table(gains, comparison.metric, column if where else ""))
        tables += client_table(comparison, column, where)
    if not figures:
        return []
    legend = "Lines are from the lowest to the highest client, bars hold the middle half, ticks are medians."
    blocks: list[Block] = [Figures([*figures[:-1], noted(figures[-1], legend)]), *tables]
    return blocks + confusion_blocks(comparison)


def noted(figure: Figure, note: str) -> Figure:
    return Figure(figure.title, figure.spec, note)


def scores_of_run(run: FinishedRun, metric: str) -> Scores:
    return [score_of(row, metric) for row in run.summary.get("per_client", [])]


def scores_of_clients(comparison: Comparison, row: str, column: str) -> list[float]:
    """Returns the test scores of all clients with all seeds."""
    scale = scale_of(comparison.metric)
    runs = comparison.cell(row, column).values()
    return [scale * s for run in runs for s in scores_of_run(run, comparison.metric) if s is not None]


def gains_of_clients(comparison: Comparison, row: str, alone: str, column: str) -> list[float]:
    """Returns how much better clients are than alone, of runs with the same seed and partition."""
    first, second = comparison.cell(row, column), comparison.cell(alone, column)
    scale = METRICS[comparison.metric].sign * scale_of(comparison.metric)
    gains = []
    for seed in sorted(first.keys() & second.keys()):
        if first[seed].hashes.get("partition") == second[seed].hashes.get("partition"):
            joined, apart = (run.summary["per_client"] for run in (first[seed], second[seed]))
            before = {entry["client"]: score_of(entry, comparison.metric) for entry in apart}
            # A run may have scored some clients only, and others than the other run.
            pairs = [(score_of(entry, comparison.metric), before.get(entry["client"])) for entry in joined]
            gains += [scale * (own - other) for own, other in pairs if own is not None and other is not None]
    return gains


def gain_table(gains: dict[str, list[float]], metric: str, column: str) -> Table:
    """Returns how many clients gain by joining, and how much."""
    digits = 1 if METRICS[metric].percent else 3
    rows = [
        [
            Cell(row),
            *(Cell(f"{value:+.{digits}f}", value) for value in (fmean(values), min(values), max(values))),
            Cell(f"{sum(value > 0 for value in values)} of {len(values)}", sum(v > 0 for v in values) / len(values)),
            Cell(f"{sum(value < 0 for value in values)}", sum(value < 0 for value in values)),
        ]
        for row, values in gains.items()
    ]
    head = ("method", "mean gain", "lowest", "highest", "clients that gain", "that lose")
    title = f"Own models against training alone{f', {column}' if column else ''}"
    return Table(head, rows, 1, title, "Each client of each seed counts once; in points of the metric.")


def client_table(comparison: Comparison, column: str, where: str) -> list[Table]:
    """Returns the score of each client under each row, where clients are the same ones with all seeds."""
    runs = [run for row in comparison.rows for run in comparison.cell(row, column).values()]
    names = {tuple(entry["client"] for entry in run.summary.get("per_client", [])) for run in runs}
    if len(names) != 1 or len({run.hashes.get("partition") for run in runs}) != 1:
        return []
    clients = [str(name) for name in names.pop()]
    present = [row for row in comparison.rows if comparison.cell(row, column)]
    by_row = {
        row: [scores_of_run(run, comparison.metric) for run in comparison.cell(row, column).values()] for row in present
    }
    rows = [
        [Cell(client), *(mean_cell([scores[index] for scores in by_row[row]], comparison.metric) for row in present)]
        for index, client in enumerate(clients[:MOST_ROWS])
    ]
    note = f"The first {MOST_ROWS} of {len(clients)} clients." if len(clients) > MOST_ROWS else ""
    return [
        Table(("client", *present), rows, 1, f"Test {METRICS[comparison.metric].title} of each client{where}", note)
    ]


def mean_cell(values: Sequence[float | None], metric: str) -> Cell:
    present = [value for value in values if value is not None]
    return Cell(mean_std(present, metric), fmean(present) if present else None)


def confusion_blocks(comparison: Comparison) -> list[Block]:
    """Returns the confusion matrices of each row, of all clients and seeds together, where they are on record."""
    blocks: list[Block] = []
    for column in comparison.columns:
        totals: dict[str, list[list[int]]] = {}
        classes: list[str] = []
        for row in comparison.rows:
            runs = list(comparison.cell(row, column).values())
            matrices = [
                entry["confusion"]
                for run in runs
                for entry in run.summary.get("per_client", [])
                if entry.get("confusion")
            ]
            if matrices:
                totals[row] = added(matrices)
                classes = read_classes(runs[0].path)
        if totals:
            size = len(next(iter(totals.values())))
            names = classes if len(classes) == size else [str(label) for label in range(size)]
            blocks += [Heading(column)] if len(comparison.columns) > 1 else []
            blocks.append(Confusions(totals, names, "All clients and seeds together."))
    return blocks


def added(matrices: Sequence[Any]) -> list[list[int]]:
    """Returns the sum of some matrices of one size."""
    size = len(matrices[0])
    return [[sum(matrix[i][j] for matrix in matrices) for j in range(size)] for i in range(size)]
