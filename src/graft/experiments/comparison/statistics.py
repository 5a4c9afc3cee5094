"""What can be said of a few numbers that were measured in pairs: intervals, tests, corrections and ranks, by SciPy.

Everything here is a pure function of numbers. Which numbers make a pair is decided in `differences`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy  # which loads scipy.stats when it is first used: it takes a second, and a single run needs none of it

from graft.errors import InputError

ALPHA = 0.05  # a difference is taken for real below this p-value, after the correction
WILCOXON, T_TEST, NO_TEST = "Wilcoxon signed-rank test", "paired t-test", "none"
EQUAL = 1e-9  # differences that agree to this share of the values are the same, but for rounding
ENUMERATED = 13  # pairs up to which all signs are tried where ranks are tied; beyond, the normal approximation holds


@dataclass(frozen=True)
class Estimate:
    """A mean over repetitions, with what repetitions say of its precision; None where there are too few."""

    n: int
    mean: float
    deviation: float | None  # of a sample: divided by n - 1
    low: float | None  # of the interval of the mean
    high: float | None


@dataclass(frozen=True)
class PairedDifference:
    """How far a is above b, pair by pair, and how surprising that would be if neither were better."""

    n: int
    mean: float
    deviation: float | None
    low: float | None  # of the interval of the mean, by the t distribution
    high: float | None
    p: float | None  # two-sided; None where no test can be made
    test: str  # its name
    wins: int  # pairs in which a is higher
    ties: int
    losses: int


@dataclass(frozen=True)
class Friedman:
    """Whether methods differ at all over several data sets."""

    statistic: float  # chi-squared, with ties
    p: float
    corrected_statistic: float  # of Iman and Davenport (1980), F; the plain one is too conservative
    corrected_p: float


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Returns mean, standard deviation and the t interval of the mean; of one value there is only the value.

    The interval is for the mean over all seeds that could be drawn. It says nothing of other data.
    """
    if not len(values):
        raise InputError("There is no mean of no values.")
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return Estimate(1, mean, None, None, None)
    deviation = float(np.std(values, ddof=1))
    reach = float(scipy.stats.t.ppf((1 + confidence) / 2, n - 1)) * deviation / math.sqrt(n)
    return Estimate(n, mean, deviation, mean - reach, mean + reach)


def smallest_wilcoxon_p(n: int) -> float:
    """Returns the smallest two-sided p-value that n pairs can give: all differences of one sign, 2 of 2^n ways.

    It is 0.0625 for 5 pairs and 0.031 for 6: with 5 seeds this test can find nothing at 0.05, whatever the numbers.
    """
    return min(1.0, 2.0 ** (1 - n))


def choose_test(n: int, comparisons: int = 1) -> str:
    """Returns the test for n pairs: Wilcoxon's where it could find something, else the paired t-test.

    Alone, that is from 6 pairs on. Among m comparisons Holm's correction multiplies the smallest p-value by m, so that
    Wilcoxon's needs 7 pairs for 2 comparisons, 8 for 4, 9 for 8. The choice depends on how much was measured, never on
    what, so it favours nobody. The t-test takes the differences for normal; with few seeds nobody can check that.
    """
    if n < 2:
        return NO_TEST
    return WILCOXON if comparisons * smallest_wilcoxon_p(n) <= ALPHA else T_TEST


def paired_difference(a: Sequence[float], b: Sequence[float], comparisons: int = 1) -> PairedDifference:
    """Returns the difference a - b of pairs, its 95 % interval and a two-sided test; `comparisons` is how many of them
    are corrected together, see `choose_test`.

    One pair has no deviation, no interval and no p-value. Nor have pairs whose differences are all the same but not
    zero: a t-test would call that certain, but seeds that change nothing are one seed. If all are zero, p is 1.
    """
    if len(a) != len(b):
        raise InputError(f"{len(a)} and {len(b)} values make no pairs.")
    differences = np.asarray(a, float) - np.asarray(b, float)
    scale = max(float(np.abs(np.concatenate([a, b])).max(initial=0)), np.finfo(float).tiny)
    differences = np.where(np.abs(differences) <= EQUAL * scale, 0.0, differences)
    summary, n = estimate(differences.tolist()), len(differences)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    counts = {"wins": wins, "ties": n - wins - losses, "losses": losses}
    test = choose_test(n, comparisons)
    if n == 1:
        return PairedDifference(n, summary.mean, None, None, None, None, test, **counts)
    if not differences.any():
        return PairedDifference(n, 0.0, 0.0, 0.0, 0.0, 1.0, test, **counts)
    if np.ptp(differences) <= EQUAL * scale:
        return PairedDifference(n, summary.mean, 0.0, None, None, None, NO_TEST, **counts)
    p = TESTS[test](differences, EQUAL * scale)
    return PairedDifference(n, summary.mean, summary.deviation, summary.low, summary.high, p, test, **counts)


def t_test_p(differences: np.ndarray[Any, Any], equal: float) -> float:  # noqa: ARG001
    """Returns the p-value of the t-test that the mean of paired differences is zero."""
    return float(scipy.stats.ttest_1samp(differences, 0.0).pvalue)


def wilcoxon_p(differences: np.ndarray[Any, Any], equal: float) -> float:
    """Returns the p-value of Wilcoxon's test; half of the ranks of zero differences count for either side (Demsar,
    2006). Exact up to 13 pairs, and up to 50 without ties.

    Differences closer to each other than `equal` are tied: as decimals they may be the same.
    """
    decimals = -math.floor(math.log10(equal))
    rounded = np.round(differences, decimals)
    sizes = np.abs(rounded)
    tied = len(np.unique(sizes)) < len(sizes) or not rounded.all()
    method = scipy.stats.PermutationMethod(n_resamples=2**ENUMERATED) if tied and len(sizes) <= ENUMERATED else "auto"
    return float(scipy.stats.wilcoxon(rounded, zero_method="zsplit", method=method).pvalue)


TESTS = {WILCOXON: wilcoxon_p, T_TEST: t_test_p}


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Returns p-values corrected for their number by Holm (1979); None stays None, and is not counted.

    The smallest is multiplied by their number m, the next by m - 1 and so on, and none becomes smaller than one before.
    If those below 0.05 are taken for real, the chance that any of them is a false alarm is at most 5 %, whether the
    tests depend on each other or not.
    """
    tested = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for position, (p, index) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - position) * p))
        corrected[index] = largest
    return corrected


def average_ranks(table: Sequence[Sequence[float]], higher: bool = True) -> list[float]:
    """Returns the mean rank of each method, 1 is best; `table` has a line a data set and an entry a method.

    Methods that tie share the mean of their ranks.
    """
    scores = np.asarray(table, float)
    return [float(rank) for rank in scipy.stats.rankdata(-scores if higher else scores, axis=1).mean(0)]


def friedman(table: Sequence[Sequence[float]]) -> Friedman:
    """Returns Friedman's test of a table with a line a data set and an entry a method, of at least 3 methods.

    Where methods have the same ranks on every data set, chi-squared is as large as it can be and the corrected
    statistic infinite.
    """
    scores = np.asarray(table, float)
    sets, methods = scores.shape
    if methods < 3 or sets < 2:
        raise InputError(f"Friedman's test needs 3 methods and 2 data sets; there are {methods} and {sets}.")
    if (scores == scores[:, :1]).all():  # nobody differs anywhere
        return Friedman(0.0, 1.0, 0.0, 1.0)
    tested = scipy.stats.friedmanchisquare(*scores.T)
    chi_squared, rest = float(tested.statistic), sets * (methods - 1) - float(tested.statistic)
    f = (sets - 1) * chi_squared / rest if rest > EQUAL else math.inf
    return Friedman(
        chi_squared, float(tested.pvalue), f, float(scipy.stats.f.sf(f, methods - 1, (methods - 1) * (sets - 1)))
    )


def critical_difference(methods: int, sets: int, alpha: float = ALPHA) -> float:
    """Returns Nemenyi's critical difference: average ranks over so many data sets that are closer cannot be told apart.

    q sqrt(k (k + 1) / 6 N), where q is the quantile of the studentised range of k means, divided by sqrt(2).
    """
    q = float(scipy.stats.studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * sets))


def rank_groups(ranks: Sequence[float], difference: float) -> list[tuple[int, ...]]:
    """Returns the largest groups of methods, from the best on, whose average ranks lie within a difference."""
    order = sorted(range(len(ranks)), key=lambda index: ranks[index])
    reach = [sum(ranks[other] - ranks[first] <= difference for other in order) for first in order]
    spans = [(start, end) for start, end in enumerate(reach) if end - start > 1]
    kept = [spans[0], *(span for before, span in pairwise(spans) if span[1] > before[1])] if spans else []
    return [tuple(order[start:end]) for start, end in kept]
