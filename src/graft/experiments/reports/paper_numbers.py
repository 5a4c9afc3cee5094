"""The numbers of a comparison for other programs: CSV with a line a run, and with a line a row and column."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.conclusion import ranking_of
from graft.experiments.comparison.differences import best_rows, compare_with, is_reference
from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.comparison.statistics import estimate
from graft.files import printable

Line = dict[str, Any]  # a value for each heading


def numbers_csv(comparison: Comparison) -> str:
    """Returns a line a run: what it was, its scores as fractions, and what it cost."""
    lines = [
        {"row": row, "column": column, "seed": seed, **describe(run)}
        for (row, column), cell in comparison.cells.items()
        for seed, run in sorted(cell.items())
    ]
    return to_csv(lines)


def describe(run: FinishedRun) -> Line:
    """Returns what is known of one run."""
    summary = run.summary
    scores = {"accuracy": summary["accuracy"], **summary.get("metrics", {})}
    return {
        "method": run.experiment["method"],
        "dataset": summary["dataset"],
        "clients": summary["clients"],
        "partition": run.hashes.get("partition"),
        "best_round": summary["best_round"],
        "rounds": summary["rounds"],
        **{f"{metric}_{name}": value for metric, values in scores.items() for name, value in values.items()},
        **{way: count for way, count in summary["communication"].items() if isinstance(count, int)},
        **{f"seconds_{name}": value for name, value in summary["seconds"].items()},
        "peak_memory_bytes": summary.get("peak_memory_bytes"),
        "device": summary.get("device"),
        "graft": summary.get("graft"),
        "path": str(run.path or ""),
    }


def table_csv(comparison: Comparison, baseline: str | None = None) -> str:
    """Returns a line a row and column: mean, deviation and interval, whether it is among the best, and the paired
    difference to the baseline with its tests; all as fractions, positive differences are improvements."""
    differences = compare_with(comparison, baseline) if baseline is not None else []
    by_cell = {(entry.row, entry.column): entry for entry in differences}
    ranking = ranking_of(comparison)
    lines: list[Line] = []
    for column in comparison.columns:
        best = best_rows(comparison, column)
        for row in comparison.rows:
            values = list(comparison.values(row, column).values())
            summary = estimate(values) if values else None
            difference = by_cell.get((row, column))
            lines.append(
                {
                    "row": row,
                    "column": column,
                    "metric": comparison.metric,
                    "seeds": len(values),
                    **fields_of(summary, ("mean", "deviation", "low", "high")),
                    "best": row in best,
                    "reference": is_reference(comparison, row),
                    "rank_over_columns": ranking.ranks.get(row) if ranking else None,
                    "pairs": difference.paired.n if difference else None,
                    **fields_of(
                        difference.paired if difference else None,
                        ("mean", "low", "high", "p", "test", "wins", "ties", "losses"),
                        "difference_",
                    ),
                    "difference_corrected_p": difference.corrected_p if difference else None,
                }
            )
    return to_csv(lines)


def fields_of(record: object, names: Iterable[str], prefix: str = "") -> Line:
    """Returns some fields of a record, or empty ones where there is none."""
    return {f"{prefix}{name}": getattr(record, name, None) for name in names}


def to_csv(lines: Sequence[Line]) -> str:
    """Returns lines with all headings that any of them has; what a line lacks stays empty."""
    file = io.StringIO()
    headings = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.DictWriter(file, headings, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({name: printable(value) if isinstance(value, str) else value for name, value in line.items()})
    return file.getvalue()
