"""What a comparison comes to, in sentences: the verdict, and what limits it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.differences import (
    Difference,
    Ranking,
    best_rows,
    compare_with,
    competitors,
    differing_partitions,
    find_row,
    rank_rows,
)
from graft.experiments.comparison.statistics import ALPHA, WILCOXON
from graft.federation.metric_names import METRICS, format_metric

MOST_NAMED = 4  # rows or columns in a sentence


def conclude(comparison: Comparison, baseline: str | None = None) -> str:
    """Returns the verdict: which row is best, which cannot be told from it, and how many beat the baseline."""
    sentences = [best_of_column(comparison, comparison.columns[0])]
    if len(comparison.columns) > 1:
        sentences = [best_of_columns(comparison)]
    if baseline is not None:
        sentences.append(beside_baseline(comparison, baseline))
    return " ".join(filter(None, sentences))


def best_of_column(comparison: Comparison, column: str) -> str:
    """Returns which row is best in a column, and which cannot be told from it."""
    best = best_rows(comparison, column)
    if not best:
        return f"No row that competes has a score on {column}."
    top = best_mean(comparison, column, best)
    scores = comparison.values(top, column)
    mean = format_metric(comparison.metric, fmean(scores.values()))
    first = f"{top} has the best {METRICS[comparison.metric].title} on {column}, {mean} over {count(scores, 'seed')}"
    rivals = [row for row in competitors(comparison) if row in best and row != top]
    others = [row for row in competitors(comparison) if row not in best and comparison.values(row, column)]
    if most_seeds(comparison) < 2:
        return f"{first}; one seed tells nothing apart."
    if rivals:
        return f"{first}; {listed(rivals)} cannot be told from it."
    return f"{first}; it can be told from every other row." if others else f"{first}."


def best_of_columns(comparison: Comparison) -> str:
    """Returns which row is among the best of most columns, and which has the best average rank."""
    best = {column: best_rows(comparison, column) for column in comparison.columns}
    wins = {row: sum(row in rows for rows in best.values()) for row in competitors(comparison)}
    if not any(wins.values()):
        return "No row that competes has a score."
    most = max(wins.values())
    leaders = [row for row, number in wins.items() if number == most]
    verb = "is" if len(leaders) == 1 else "are"
    what = (
        "best, or cannot be told from the best,"
        if most_seeds(comparison) > 1
        else "best by one seed, which proves nothing,"
    )
    sentence = f"{listed(leaders)} {verb} {what} on {most} of {len(best)} columns."
    ranking = ranking_of(comparison)
    if ranking is None:
        return sentence
    first, rank = next(iter(ranking.ranks.items()))
    alike = next((group for group in ranking.groups if first in group), ())
    limit = f", from which {listed([row for row in alike if row != first])} cannot be told" if len(alike) > 1 else ""
    return f"{sentence} {first} has the best average rank, {rank:.2f}{limit}."


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
    for name, values in comparison.also_differs().items():
        shown = "; ".join(f"{row} {value}" for row, value in values.items())
        sentences.append(f"Rows differ in {name} too: {shown}.")
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


def best_mean(comparison: Comparison, column: str, rows: Iterable[str]) -> str:
    """Returns the row with the best mean."""
    sign = 1 if METRICS[comparison.metric].higher else -1
    return max(rows, key=lambda row: sign * fmean(comparison.values(row, column).values()))


def listed(names: Sequence[str]) -> str:
    """Returns names as a sentence lists them; of many the first, and how many more."""
    names = [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED + 1 else list(names)
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + "".join(names[-1:])


def count(values: Sequence[object] | dict[int, float], noun: str) -> str:
    """Returns how many there are of something, in words."""
    return f"{len(values)} {noun}{'' if len(values) == 1 else 's'}"
