"""What a comparison found, in sentences: which row is best, by how much, and whether that can be told."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.differences import (
    Difference,
    Family,
    best_rows,
    compare_with,
    competitors,
    correct,
    pair_scores,
    rank_rows,
)
from graft.experiments.comparison.statistics import ALPHA
from graft.experiments.reports.summary_table import mean_std
from graft.federation.metric_names import METRICS, format_difference

MOST_COLUMNS = 6  # that get a sentence each
ALONE = "local"  # the method in which every client trains alone


class Leader(NamedTuple):
    """The best row of a column and the next one, by their means."""

    row: str
    next: str | None


def alone_row(comparison: Comparison) -> str | None:
    """Returns the row in which clients train alone, if there is one and only one."""
    rows = {
        row
        for (row, _), cell in comparison.cells.items()
        for run in cell.values()
        if run.experiment["method"] == ALONE and not run.experiment.get("plug")
    }
    return rows.pop() if len(rows) == 1 else None


def sign_of(comparison: Comparison) -> int:
    return 1 if METRICS[comparison.metric].higher else -1


def leader(comparison: Comparison, column: str) -> Leader | None:
    """Returns the rows with the best and the second best mean; None where nothing was scored."""
    values = {row: comparison.values(row, column) for row in competitors(comparison)}
    means = {row: sign_of(comparison) * fmean(scores.values()) for row, scores in values.items() if scores}
    ordered = sorted(means, key=lambda row: -means[row])
    return Leader(ordered[0], ordered[1] if len(ordered) > 1 else None) if ordered else None


def said_of_comparison(comparison: Comparison) -> list[str]:
    """Returns the verdict: a sentence about all data, and about each."""
    if len(comparison.columns) == 1:
        return said_of_column(comparison, comparison.columns[0])
    sentences = []
    leaders = {column: leader(comparison, column) for column in comparison.columns}
    wins = {row: [c for c, first in leaders.items() if first and first.row == row] for row in comparison.rows}
    most = max(wins, key=lambda row: len(wins[row]))
    if len(competitors(comparison)) > 1 and wins[most]:
        sentence = f"{most} has the best mean on {len(wins[most])} of {len(comparison.columns)} data"
        sentences.append(f"{sentence}{said_of_ranks(comparison, most)}.")
    for column in comparison.columns[:MOST_COLUMNS]:
        sentences.append(" ".join(said_of_column(comparison, column)))
    if len(comparison.columns) > MOST_COLUMNS:
        sentences.append(f"The table has the other {len(comparison.columns) - MOST_COLUMNS} data.")
    return sentences


def said_of_ranks(comparison: Comparison, row: str) -> str:
    """Returns the average rank of a row, and what Friedman's test says of all of them."""
    try:
        ranking = rank_rows(comparison)
    except InputError:  # there are gaps
        return ""
    words = f", with an average rank of {ranking.ranks[row]:.2f}"
    if ranking.friedman is not None and ranking.friedman.corrected_p >= ALPHA:
        words += f"; over all data the rows cannot be told apart (Friedman, p = {ranking.friedman.corrected_p:.2g})"
    return words


def said_of_column(comparison: Comparison, column: str) -> list[str]:
    """Returns which row is best on some data, and what it can be told from."""
    first = leader(comparison, column)
    if first is None:
        return [f"On {column} nothing was scored on test nodes."]
    values = comparison.values(first.row, column)
    percent = " %" if METRICS[comparison.metric].percent else ""
    scored = (
        f"{mean_std(list(values.values()), comparison.metric)}{percent} test {METRICS[comparison.metric].title} over "
        f"{len(values)} seed{'s' if len(values) > 1 else ''}"
    )
    if first.next is None:
        sentences = [f"{first.row} reaches {scored} on {column}."]
    else:
        gap = sign_of(comparison) * (fmean(values.values()) - fmean(comparison.values(first.next, column).values()))
        sentences = [
            f"{first.row} is best on {column}: {scored}, {points(comparison, gap)} ahead of {first.next}.",
            said_of_next(comparison, first, column),
        ]
    alone = alone_row(comparison)
    if alone is not None and alone not in first and comparison.values(alone, column):
        sentences.append(said_of_alone(comparison, first.row, alone, column))
    elif alone == first.row:
        sentences.append("That is training alone: here no federation pays.")
    return sentences


def points(comparison: Comparison, value: float) -> str:
    """Returns a difference in words."""
    if METRICS[comparison.metric].percent:
        return f"{100 * value:.1f} points"
    return f"{value:.3f}"


def said_of_next(comparison: Comparison, first: Leader, column: str) -> str:
    """Returns whether the best row can be told from the next one, and how many others it cannot be told from."""
    others = [row for row in competitors(comparison) if row != first.row]
    family: Family = {(row, column): pair_scores(comparison, first.row, row, column) for row in others}
    tested = {entry.row: entry for entry in correct(family, comparison.metric)}
    following = tested.get(str(first.next))
    if following is None or following.corrected_p is None:
        return "With no two pairs of seeds, nothing can be tested: run more seeds (--seeds 5)."
    alike = best_rows(comparison, column) - {first.row}
    ranged = said_of_interval(following, comparison.metric)
    if not alike:
        return f"It can be told from all others; from {first.next} the difference is {ranged}."
    if first.next in alike:
        more = f", nor from {len(alike) - 1} more" if len(alike) > 1 else ""
        return f"It cannot be told from {first.next}{more}: the difference is {ranged}."
    return f"It cannot be told from {', '.join(sorted(alike))}."


def said_of_alone(comparison: Comparison, row: str, alone: str, column: str) -> str:
    """Returns whether a row can be told from training alone."""
    entries = [entry for entry in compare_with(comparison, alone) if (entry.row, entry.column) == (row, column)]
    if not entries:
        return "No run of it has a run of training alone on the same data beside it."
    entry = entries[0]
    verb = "above" if entry.paired.mean >= 0 else "below"
    words = f"It is {points(comparison, abs(entry.paired.mean))} {verb} training alone"
    if entry.corrected_p is None:
        return f"{words}, in one pair of runs."
    clear = "a clear difference" if entry.significant else "which is not a clear difference"
    return f"{words}, {clear} ({said_of_interval(entry, comparison.metric)})."


def said_of_interval(entry: Difference, metric: str) -> str:
    """Returns the interval of a difference and its p-value, as the tables have them."""
    ends = " to ".join(format_difference(metric, end, "-") for end in (entry.paired.low, entry.paired.high))
    return f"{ends} with 95 % confidence, p = {entry.corrected_p:.2g}, {entry.paired.test}"
