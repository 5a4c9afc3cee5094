"""Intervals, tests, corrections and ranks: numbers worked by hand and from textbooks."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from graft.errors import InputError
from graft.experiments.comparison.statistics import (
    NO_TEST,
    T_TEST,
    WILCOXON,
    average_ranks,
    choose_test,
    critical_difference,
    estimate,
    friedman,
    holm,
    paired_difference,
    rank_groups,
    smallest_wilcoxon_p,
)

# Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR 7 (2006), table 6: AUC of C4.5 and of
# C4.5 with a chosen m on 14 data sets, and the ranks of four variants.
PLAIN = [0.763, 0.599, 0.954, 0.628, 0.882, 0.936, 0.661, 0.583, 0.775, 1.0, 0.940, 0.619, 0.972, 0.957]
WITH_M = [0.768, 0.591, 0.971, 0.661, 0.888, 0.931, 0.668, 0.583, 0.838, 1.0, 0.962, 0.666, 0.981, 0.978]
RANKS = [
    *([4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 2, 3], [4, 1, 3, 2], [4, 2, 3, 1], [1, 2.5, 4, 2.5], [3, 2, 4, 1]),
    *([2.5, 2.5, 4, 1], [4, 3, 2, 1], [2.5] * 4, [4, 2.5, 1, 2.5], [3, 2, 4, 1], [4, 1, 2, 3], [3, 1, 4, 2]),
]


def test_mean_and_interval_of_three_values():
    # The deviation of 1, 2, 3 is 1, the quantile of t with 2 degrees of freedom is 4.3027.
    summary = estimate([1.0, 2.0, 3.0])
    assert (summary.n, summary.mean, summary.deviation) == (3, 2.0, 1.0)
    assert summary.high - 2 == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert summary.low + summary.high == pytest.approx(4)


def test_one_value_has_no_interval_and_none_has_no_mean():
    assert estimate([0.5]).deviation is estimate([0.5]).low is None
    with pytest.raises(InputError, match="no mean"):
        estimate([])


def test_students_sleep_data():
    # Student (1908): additional hours of sleep by two drugs, t = 4.0621, p = 0.00283; T = 0 of the 9 that differ.
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    by_t = paired_difference(second, first, comparisons=100)
    assert by_t.test == T_TEST
    assert by_t.mean == pytest.approx(1.58)
    assert by_t.p == pytest.approx(0.00283, abs=1e-5)
    assert (by_t.low, by_t.high) == pytest.approx((0.70, 2.46), abs=0.005)
    assert (by_t.wins, by_t.ties, by_t.losses) == (9, 1, 0)
    by_ranks = paired_difference(second, first)
    assert by_ranks.test == WILCOXON
    # The zero counts half for either side, so of the 2^10 signs only two ways, and their twins with a zero turned,
    # are as far out: 4 of 1024.
    assert by_ranks.p == pytest.approx(4 / 1024)


def test_wilcoxon_finds_what_demsar_found():
    found = paired_difference(WITH_M, PLAIN)
    assert (found.n, found.wins, found.ties, found.losses) == (14, 10, 2, 2)
    assert found.p < 0.05  # T = 12 is below the critical value of 21
    ranks = stats.rankdata(np.abs(np.round(np.subtract(WITH_M, PLAIN), 6)))
    assert ranks[[1, 5]].sum() + ranks[[7, 9]].sum() / 2 == 12  # the two losses, and half of the ties
    assert paired_difference(PLAIN, WITH_M).p == found.p  # two-sided


@pytest.mark.parametrize("values", [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, -6], [1, 1, 2, 3, -4, 5], [0, 1, -2, 3, 4, 5]])
def test_wilcoxon_counts_all_signs_of_few_pairs(values):
    ranks = stats.rankdata(np.abs(values))
    half = ranks[np.array(values) == 0].sum() / 2

    def smaller_sum(signs):
        positive = sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign > 0) + half
        negative = sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign < 0) + half
        return min(positive, negative)

    ways = [
        [sign if value else 0 for sign, value in zip(signs, values, strict=True)]
        for signs in product((-1, 1), repeat=6)
    ]
    as_far = np.mean([smaller_sum(signs) <= smaller_sum(np.sign(values)) for signs in ways])
    assert paired_difference(values, [0] * 6).p == pytest.approx(as_far)


def test_five_pairs_are_too_few_for_wilcoxon():
    assert [smallest_wilcoxon_p(n) for n in (1, 5, 6)] == [1.0, 0.0625, 0.03125]
    assert stats.wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0]).pvalue == smallest_wilcoxon_p(5)
    assert [choose_test(n) for n in (0, 1, 2, 5, 6)] == [NO_TEST, NO_TEST, T_TEST, T_TEST, WILCOXON]


def test_wilcoxon_is_used_where_it_survives_the_correction():
    fewest = {m: next(n for n in range(2, 20) if choose_test(n, m) == WILCOXON) for m in (1, 2, 3, 4, 6, 8, 12)}
    assert fewest == {1: 6, 2: 7, 3: 7, 4: 8, 6: 8, 8: 9, 12: 9}


def test_one_pair_gives_no_p_value():
    single = paired_difference([0.9], [0.1])
    assert single.p is single.low is single.deviation is None
    assert (single.mean, single.test, single.wins) == (pytest.approx(0.8), NO_TEST, 1)


def test_seeds_that_change_nothing_prove_nothing():
    constant = paired_difference([0.8, 0.9, 1.0], [0.7, 0.8, 0.9])  # equal but for rounding
    assert constant.p is constant.low is None
    assert (constant.mean, constant.deviation, constant.test) == (pytest.approx(0.1), 0.0, NO_TEST)
    varied = paired_difference([0.8, 0.9, 1.0], [0.7, 0.8, 0.8999])
    assert varied.p < 1e-5
    assert varied.test == T_TEST


def test_equal_values_are_certain_not_to_differ():
    for n in (2, 7):
        same = paired_difference([0.1 + 0.2] * n, [0.3] * n)  # 0.30000000000000004
        assert (same.mean, same.p, same.ties) == (0.0, 1.0, n)


def test_values_that_make_no_pairs_are_refused():
    with pytest.raises(InputError, match="2 and 1 values make no pairs"):
        paired_difference([1, 2], [1])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]  # never above one
    assert holm([0.02, None, 0.03]) == pytest.approx([0.04, None, 0.04])
    assert holm([0.04]) == [0.04]
    assert holm([]) == []


def test_ranks_share_ties_and_know_the_direction():
    assert average_ranks([[0.9, 0.8, 0.8], [0.5, 0.7, 0.6]]) == [2.0, 1.75, 2.25]
    assert average_ranks([[0.9, 0.8, 0.8]], higher=False) == [3.0, 1.5, 1.5]


def test_friedman_and_ranks_of_demsars_example():
    assert average_ranks(RANKS, higher=False) == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    # He leaves ties uncorrected: chi-squared 9.28. Two of a tie count 6, four 60: 9.28 / (1 - 78 / 840) = 10.23.
    tested = friedman(RANKS)
    ranks = np.array(average_ranks(RANKS, higher=False))
    plain = 12 * 14 / 20 * ((ranks**2).sum() - 4 * 25 / 4)
    assert plain == pytest.approx(9.28, abs=0.005)
    assert tested.statistic == pytest.approx(plain / (1 - 78 / 840))
    assert tested.p == pytest.approx(stats.chi2.sf(tested.statistic, 3))
    assert tested.corrected_statistic == pytest.approx(13 * tested.statistic / (14 * 3 - tested.statistic))
    assert tested.corrected_p < tested.p < 0.05


def test_friedman_without_any_difference_and_with_nothing_else():
    assert friedman([[1, 1, 1], [2, 2, 2]]).corrected_p == 1.0
    always = friedman([[1, 2, 3]] * 4)
    assert (always.statistic, always.corrected_statistic, always.corrected_p) == (pytest.approx(8), math.inf, 0.0)
    with pytest.raises(InputError, match="needs 3 methods"):
        friedman([[1, 2], [2, 3]])


def test_critical_values_are_those_of_demsars_table():
    printed = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}
    for methods, q in printed.items():
        assert critical_difference(methods, 10) == pytest.approx(q * math.sqrt(methods * (methods + 1) / 60), abs=1e-3)
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14, alpha=0.10) == pytest.approx(1.12, abs=0.005)


def test_groups_of_demsars_figure():
    # With 1.12, C4.5 is worse than the two best, and the third can be told from neither.
    assert rank_groups([3.143, 2.000, 2.893, 1.964], 1.12) == [(3, 1, 2), (2, 0)]
    assert rank_groups([1.0, 2.0, 3.0], 0.5) == []
    assert rank_groups([1.0, 2.0, 3.0], 5) == [(0, 1, 2)]
    assert rank_groups([3.0, 1.0, 2.0], 1.0) == [(1, 2), (2, 0)]
