"""What can be said of the rows of a comparison: which are best, how far each is from a baseline, and their ranks.

A pair is two runs of the same column and seed, on the same partition. So the difference of a pair is that of the
methods, and not that of an easy and a hard draw of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison, method_label
from graft.experiments.comparison.statistics import (
    ALPHA,
    Friedman,
    PairedDifference,
    average_ranks,
    critical_difference,
    friedman,
    holm,
    paired_difference,
    rank_groups,
)
from graft.federation.metric_names import METRICS
from graft.methods import REFERENCES
from graft.registry import close_to

ALONE = "local"  # the method in which every client trains alone


class Score(NamedTuple):
    """What one run scored, and on which partition; None where that is not on record."""

    value: float
    partition: str | None = None


Scores = Mapping[int, Score]  # by seed
Pairs = dict[int, tuple[float, float]]  # by seed; of a row and of what it is compared with
Family = dict[tuple[str, str | None], Pairs]  # by row and column; corrected together


@dataclass(frozen=True)
class Difference:
    """A row against a baseline: the paired difference in the metric's own units, where positive is an improvement."""

    row: str
    column: str | None  # None: the mean over all columns, seed by seed
    paired: PairedDifference
    corrected_p: float | None  # by Holm: over the rows and columns, or, of means over all columns, over the rows

    @property
    def significant(self) -> bool:
        return self.corrected_p is not None and self.corrected_p < ALPHA

    @property
    def better(self) -> bool:
        """Returns whether the row is significantly better."""
        return self.significant and self.paired.mean > 0

    @property
    def worse(self) -> bool:
        """Returns whether the row is significantly worse."""
        return self.significant and self.paired.mean < 0


@dataclass(frozen=True)
class Ranking:
    """The average ranks of rows over columns, and which of them can be told apart."""

    ranks: dict[str, float]  # from the best row on
    columns: int
    friedman: Friedman | None  # None for two rows: it needs three
    critical_difference: float  # of Nemenyi
    groups: list[tuple[str, ...]]  # rows that cannot be told apart; all of them, if Friedman's test finds nothing


def is_reference(comparison: Comparison, row: str) -> bool:
    """Returns whether a row never competes, since its method is one of `graft.methods.REFERENCES`."""
    cells = (cell for (name, _), cell in comparison.cells.items() if name == row)
    return any(run.experiment["method"] in REFERENCES for cell in cells for run in cell.values())


def competitors(comparison: Comparison) -> list[str]:
    """Returns the rows that compete: all but references."""
    return [row for row in comparison.rows if not is_reference(comparison, row)]


def in_order(comparison: Comparison) -> list[str]:
    """Returns the rows as tables and figures show them: references last."""
    return sorted(comparison.rows, key=lambda row: is_reference(comparison, row))


def find_row(comparison: Comparison, name: str) -> str:
    """Returns the row of that name, or the only row of the method of that name."""
    if name in comparison.rows:
        return name
    runs = {row: run for (row, _), cell in comparison.cells.items() for run in cell.values()}
    rows = [row for row in comparison.rows if method_label(runs[row].experiment) == name]
    if len(rows) == 1:
        return rows[0]
    several = f"names {len(rows)} rows" if rows else f"is no row{close_to(name, comparison.rows)}"
    raise InputError(f"'{name}' {several}: there are {'; '.join(rows or comparison.rows)}.")


def alone_row(comparison: Comparison) -> str | None:
    """Returns the row in which clients train alone, if there is one and only one."""
    rows = {
        row
        for (row, _), cell in comparison.cells.items()
        for run in cell.values()
        if run.experiment["method"] == ALONE and not run.experiment.get("plug")
    }
    return rows.pop() if len(rows) == 1 else None


# Pairs.


def scores_of(comparison: Comparison, row: str, column: str) -> Scores:
    """Returns the scores of a row in a column by seed, each with the partition that it was measured on."""
    cell, values = comparison.cell(row, column), comparison.values(row, column)
    return {seed: Score(value, cell[seed].hashes.get("partition")) for seed, value in values.items()}


def pair(first: Scores, second: Scores) -> Pairs:
    """Returns the scores of the seeds that both have on the same partition, as far as partitions are on record."""
    return {
        seed: (mine.value, theirs.value)
        for seed, mine in first.items()
        if (theirs := second.get(seed)) is not None
        and (None in (mine.partition, theirs.partition) or mine.partition == theirs.partition)
    }


def pair_scores(comparison: Comparison, row: str, other: str, column: str) -> Pairs:
    """Returns the scores of two rows in a column for each seed that both have on the same partition."""
    return pair(scores_of(comparison, row, column), scores_of(comparison, other, column))


def pair_means(comparison: Comparison, row: str, other: str) -> Pairs:
    """Returns means over all columns for each seed that makes a pair in every one of them."""
    columns = [pair_scores(comparison, row, other, column) for column in comparison.columns]
    complete = [seed for seed in columns[0] if all(seed in pairs for pairs in columns)]
    return {
        seed: (fmean(pairs[seed][0] for pairs in columns), fmean(pairs[seed][1] for pairs in columns))
        for seed in complete
    }


def differing_partitions(comparison: Comparison) -> list[str]:
    """Returns a sentence for each column and seed whose runs were not all on the same partition."""
    sentences = []
    for column in comparison.columns:
        cells = {row: comparison.cell(row, column) for row in comparison.rows}
        for seed in sorted({seed for cell in cells.values() for seed in cell}):
            hashes = {row: cell[seed].hashes.get("partition") for row, cell in cells.items() if seed in cell}
            if len({digest for digest in hashes.values() if digest}) > 1:
                parts = ", ".join(f"{row} on {digest[:8]}" for row, digest in hashes.items() if digest)
                sentences.append(
                    f"Runs on {column} with seed {seed} saw different partitions ({parts}): they are not paired."
                )
    return sentences


def difference_of(pairs: Pairs, sign: int, comparisons: int) -> PairedDifference:
    """Returns how much better the first of each pair is; `sign` is -1 where less is better."""
    values = pairs.values()
    return paired_difference([sign * mine for mine, _ in values], [sign * other for _, other in values], comparisons)


# What follows from them.


def compare_with(comparison: Comparison, baseline: str) -> list[Difference]:
    """Returns how each competing row differs from a baseline: column by column and, of several, over all of them.

    A row without a pair in a column has no difference there. All differences in single columns are corrected together,
    and so are those over all columns.
    """
    baseline = find_row(comparison, baseline)
    rows = [row for row in competitors(comparison) if row != baseline]
    single: Family = {
        (row, column): pair_scores(comparison, row, baseline, column) for column in comparison.columns for row in rows
    }
    differences = correct(single, comparison.metric)
    if len(comparison.columns) > 1:
        overall: Family = {(row, None): pair_means(comparison, row, baseline) for row in rows}
        differences += correct(overall, comparison.metric)
    return differences


def correct(family: Family, metric: str) -> list[Difference]:
    """Returns the differences of a family that has pairs, with p-values corrected for their number."""
    tests, sign = sum(len(pairs) > 1 for pairs in family.values()), METRICS[metric].sign
    paired = {key: difference_of(pairs, sign, tests) for key, pairs in family.items() if pairs}
    corrected = holm([entry.p for entry in paired.values()])
    return [Difference(*key, entry, p) for (key, entry), p in zip(paired.items(), corrected, strict=True)]


def best_rows(comparison: Comparison, column: str) -> set[str]:
    """Returns the row with the best mean in a column, and those that a test could not tell from it.

    References do not compete. Where no test can be made, as with a single seed, only the best mean is returned.
    """
    rows = {row: scores_of(comparison, row, column) for row in competitors(comparison)}
    return best_of(rows, METRICS[comparison.metric].higher)


def best_of(rows: Mapping[str, Scores], higher: bool = True) -> set[str]:
    """Returns the row with the best mean and those that a test could not tell from it."""
    sign = 1 if higher else -1
    means = {row: sign * fmean(score.value for score in scores.values()) for row, scores in rows.items() if scores}
    if not means:
        return set()
    best = max(means, key=lambda row: means[row])
    pairs = {row: pair(rows[best], rows[row]) for row in means if row != best}
    tests = sum(len(shared) > 1 for shared in pairs.values())
    p_values = [difference_of(shared, sign, tests).p if shared else None for shared in pairs.values()]
    alike = {row for row, p in zip(pairs, holm(p_values), strict=True) if p is not None and p >= ALPHA}
    return {best} | alike | {row for row, value in means.items() if value == means[best]}


def rank_rows(comparison: Comparison) -> Ranking:
    """Returns the ranks of the competing rows over columns, by their means over seeds in each.

    Refuses fewer than two columns or rows, and rows that lack a column: ranks could not be compared.
    """
    rows, columns = competitors(comparison), comparison.columns
    if len(columns) < 2:
        raise InputError(f"Ranks are averaged over data, and all runs are on {columns[0]}: compare on several.")
    if len(rows) < 2:
        raise InputError(f"Ranks need two rows that compete; there is {rows[0] if rows else 'none'}.")
    scores = {(row, column): comparison.values(row, column) for row in rows for column in columns}
    gaps = [f"{row} on {column}" for (row, column), values in scores.items() if not values]
    if gaps:
        more = f" and {len(gaps) - 1} more" if len(gaps) > 1 else ""
        raise InputError(f"Ranks need every row in every column; there is no score of {gaps[0]}{more}.")
    means = [[fmean(scores[row, column].values()) for row in rows] for column in columns]
    return rank_means(rows, means, METRICS[comparison.metric].higher)


def rank_means(rows: Sequence[str], means: Sequence[Sequence[float]], higher: bool = True) -> Ranking:
    """Returns the ranks of rows over columns; `means` has a line a column and an entry a row."""
    ranks = average_ranks(means, higher)
    tested = friedman(means) if len(rows) > 2 else None
    reach = critical_difference(len(rows), len(means))
    differ = tested is None or tested.corrected_p < ALPHA
    order = sorted(range(len(rows)), key=lambda index: ranks[index])
    groups = rank_groups(ranks, reach) if differ else [tuple(order)]
    return Ranking(
        {rows[index]: ranks[index] for index in order},
        len(means),
        tested,
        reach,
        [tuple(rows[index] for index in group) for group in groups],
    )
