"""What a comparison comes to, in sentences: which row is best, by how much, and what limits that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison, mean_std, said_of_other_fields
from graft.experiments.comparison.differences import (
    Difference,
    Family,
    Ranking,
    alone_row,
    best_rows,
    compare_with,
    competitors,
    correct,
    differing_partitions,
    find_row,
    pair_scores,
    rank_rows,
)
from graft.experiments.comparison.statistics import ALPHA, WILCOXON
from graft.federation.metric_names import METRICS, format_difference

MOST_COLUMNS = 6  # that get a sentence each


class Leader(NamedTuple):
    """The best row of a column and the next one, by their means."""

    row: str
    next: str | None


def leader(comparison: Comparison, column: str) -> Leader | None:
    """Returns the rows with the best and the second best mean; None where nothing was scored."""
    values = {row: comparison.values(row, column) for row in competitors(comparison)}
    means = {row: METRICS[comparison.metric].sign * fmean(scores.values()) for row, scores in values.items() if scores}
    ordered = sorted(means, key=lambda row: -means[row])
    return Leader(ordered[0], ordered[1] if len(ordered) > 1 else None) if ordered else None


def conclude(comparison: Comparison) -> list[str]:
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
    """Returns the average rank of a row, and from which others it cannot be told by ranks."""
    ranking = ranking_of(comparison)
    if ranking is None:
        return ""
    words = f", with an average rank of {ranking.ranks[row]:.2f}"
    tested = ranking.friedman
    if tested is not None and tested.corrected_p >= ALPHA:
        return f"{words}; over all data the rows cannot be told apart (Friedman, p = {tested.corrected_p:.2g})"
    alike = [name for name in ranking.ranks if name != row and any({name, row} <= {*group} for group in ranking.groups)]
    return f"{words}; over all data it cannot be told from {listed(alike)} (Nemenyi)" if alike else words


def said_of_column(comparison: Comparison, column: str) -> list[str]:
    """Returns which row is best on some data, and what it can be told from."""
    first = leader(comparison, column)
    if first is None:
        return [f"No row that competes has a score on {column}."]
    values = comparison.values(first.row, column)
    percent = " %" if METRICS[comparison.metric].percent else ""
    scored = (
        f"{mean_std(list(values.values()), comparison.metric)}{percent} test {METRICS[comparison.metric].title} over "
        f"{count(values, 'seed')}"
    )
    if first.next is None:
        sentences = [f"{first.row} reaches {scored} on {column}."]
    else:
        difference = fmean(values.values()) - fmean(comparison.values(first.next, column).values())
        gap = METRICS[comparison.metric].sign * difference
        sentences = [
            f"{first.row} is best on {column}: {scored}, {points(comparison, gap)} ahead of {first.next}.",
            said_of_next(comparison, first, column),
        ]
    alone = alone_row(comparison)
    if alone is not None and alone not in first and comparison.values(alone, column):
        sentences.append(said_of_alone(comparison, first.row, alone, column))
    elif alone == first.row and first.next is not None:
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
        untested = [row for row, entry in tested.items() if entry.corrected_p is None]
        but = f" but {listed(untested)}, with too few pairs for a test" if untested else ""
        return f"It can be told from all others{but}; from {first.next} the difference is {ranged}."
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
    verb = "above" if (entry.paired.mean >= 0) == METRICS[comparison.metric].higher else "below"
    words = f"It is {points(comparison, abs(entry.paired.mean))} {verb} training alone"
    if entry.corrected_p is None:
        return f"{words}, in one pair of runs."
    clear = "a clear difference" if entry.significant else "which is not a clear difference"
    return f"{words}, {clear} ({said_of_interval(entry, comparison.metric)})."


def said_of_interval(entry: Difference, metric: str) -> str:
    """Returns the interval of a difference and its p-value, as the tables have them."""
    ends = " to ".join(format_difference(metric, end, "-") for end in (entry.paired.low, entry.paired.high))
    return f"{ends} with 95 % confidence, p = {entry.corrected_p:.2g}, {entry.paired.test}"


def beside_baseline(comparison: Comparison, baseline: str) -> str:
    """Returns how many rows are better and worse than the baseline, over all columns."""
    baseline = find_row(comparison, baseline)
    differences = compare_with(comparison, baseline)
    overall = [entry for entry in differences if entry.column is None]
    shown = overall or differences
    if not shown:
        return f"No run makes a pair with one of {baseline}."
    if all(entry.paired.p is None for entry in shown):
        return f"Whether any row differs from {baseline} cannot be tested: there are too few pairs."
    several = len(comparison.columns) > 1
    names = {
        side: listed([name_of(entry, several) for entry in shown if getattr(entry, side)]) or "none"
        for side in ("better", "worse")
    }
    where = " over all columns" if overall else ""
    return (
        f"Against {baseline}{where}, significantly better: {names['better']}; significantly worse: {names['worse']} "
        f"(of {count(shown, 'difference')}, corrected p < {ALPHA})."
    )


def name_of(difference: Difference, several: bool) -> str:
    """Returns the row of a difference, and its column where there are several."""
    in_column = several and difference.column is not None
    return f"{difference.row} on {difference.column}" if in_column else difference.row


def ranking_of(comparison: Comparison) -> Ranking | None:
    """Returns the ranks of the rows; None where they could not be compared."""
    try:
        return rank_rows(comparison)
    except InputError:
        return None


def caveats(comparison: Comparison) -> list[str]:
    """Returns what limits a comparison, a sentence each."""
    sentences = list(differing_partitions(comparison))
    seeds = {(row, column): set(comparison.values(row, column)) for row, column in comparison.cells}
    if most_seeds(comparison) == 1:
        sentences.append("There is one seed: no difference can be tested, and bold is the highest mean only.")
    elif len(set(map(frozenset, seeds.values()))) > 1:
        sentences.append("Not all rows have the same seeds: means are over the seeds of each, tests over those shared.")
    gaps = [
        f"{row} on {column}" for row in comparison.rows for column in comparison.columns if not seeds.get((row, column))
    ]
    if gaps:
        sentences.append(f"There is no {METRICS[comparison.metric].title} of {listed(gaps)}.")
    sentences += said_of_other_fields(comparison)
    if len(comparison.columns) > 1:
        try:
            rank_rows(comparison)
        except InputError as error:
            sentences.append(str(error))
    return sentences


def tests_used(differences: Iterable[Difference]) -> list[str]:
    """Returns the names of the tests that were made, the most frequent first."""
    names = [entry.paired.test for entry in differences if entry.paired.p is not None]
    return sorted(set(names), key=lambda name: (-names.count(name), name != WILCOXON))


def most_seeds(comparison: Comparison) -> int:
    """Returns the largest number of seeds in any cell."""
    return max(len(comparison.values(row, column)) for row, column in comparison.cells)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Returns names as a sentence lists them; of many the first, and how many more."""
    shown = [*names] if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def count(values: Sequence[object] | dict[int, float], noun: str) -> str:
    """Returns how many there are of something, in words."""
    return f"{len(values)} {noun}{'' if len(values) == 1 else 's'}"
