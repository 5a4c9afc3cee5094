"""Rows of a comparison: what makes a pair, which are best, how far from a baseline, and their ranks."""

import pytest

from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.differences import (
    Score,
    best_of,
    best_rows,
    compare_with,
    competitors,
    differing_partitions,
    find_row,
    rank_rows,
)
from graft.experiments.comparison.statistics import NO_TEST, T_TEST
from graft.methods import METHODS, REFERENCES
from tests.experiments.comparison.made_up import made_up, made_up_run

HARD_AND_EASY = [0.50, 0.60, 0.70, 0.80, 0.90]  # seeds differ far more than methods
SLIGHTLY_BETTER = [0.52, 0.63, 0.72, 0.81, 0.92]
NOT_REALLY = [0.55, 0.55, 0.75, 0.75, 0.95]
FAR_WORSE = [0.20, 0.31, 0.40, 0.52, 0.60]


def test_pairs_show_what_means_hide():
    comparison = made_up({("local", "cora"): HARD_AND_EASY, ("fedavg", "cora"): SLIGHTLY_BETTER})
    (difference,) = compare_with(comparison, "local")
    assert (difference.row, difference.column) == ("fedavg", "cora")
    assert difference.paired.mean == pytest.approx(0.02)
    assert difference.paired.wins == difference.paired.n == 5
    assert difference.paired.test == T_TEST
    assert difference.better
    assert not difference.worse
    # Two samples of these means and deviations, unpaired, could not be told apart.
    shuffled = made_up({("local", "cora"): HARD_AND_EASY, ("fedavg", "cora"): SLIGHTLY_BETTER[::-1]})
    assert not compare_with(shuffled, "local")[0].better


def test_less_is_better_for_losses():
    def runs(method, values):
        metrics = [{"log_loss": {"test": value, "validation": value}} for value in values]
        return [made_up_run(method, "cora", seed, 0.5, metrics=entry) for seed, entry in enumerate(metrics)]

    comparison = Comparison([*runs("local", HARD_AND_EASY), *runs("fedavg", SLIGHTLY_BETTER)], "log_loss")
    (difference,) = compare_with(comparison, "local")
    assert difference.paired.mean == pytest.approx(-0.02)  # a higher loss is no improvement
    assert difference.worse
    assert best_rows(comparison, "cora") == {"local"}


def test_the_correction_counts_rows_and_columns_and_all_columns_apart():
    table = {(method, data): HARD_AND_EASY for method in ("local", "fedavg", "fedprox") for data in ("cora", "cs")}
    table["fedavg", "cora"] = SLIGHTLY_BETTER
    table["fedprox", "cs"] = NOT_REALLY
    differences = {(entry.row, entry.column): entry for entry in compare_with(made_up(table), "local")}
    assert set(differences) == {(row, column) for row in ("fedavg", "fedprox") for column in ("cora", "cs", None)}
    first = differences["fedavg", "cora"]
    assert first.corrected_p == pytest.approx(4 * first.paired.p)  # of four, the smallest
    overall = differences["fedavg", None]
    assert overall.paired.mean == pytest.approx(0.01)
    assert overall.corrected_p == pytest.approx(2 * overall.paired.p)
    assert differences["fedavg", "cs"].corrected_p == 1.0


def test_runs_on_other_partitions_make_no_pair():
    runs = [made_up_run("local", "cora", seed, score) for seed, score in enumerate(HARD_AND_EASY)]
    runs += [made_up_run("fedavg", "cora", seed, score) for seed, score in enumerate(SLIGHTLY_BETTER[:4])]
    comparison = Comparison([*runs, made_up_run("fedavg", "cora", 4, 0.92)])
    assert compare_with(comparison, "local")[0].paired.n == 5
    assert differing_partitions(comparison) == []
    comparison = Comparison([*runs, made_up_run("fedavg", "cora", 4, 0.92, partition="f" * 64)])
    assert compare_with(comparison, "local")[0].paired.n == 4
    (sentence,) = differing_partitions(comparison)
    assert "cora with seed 4 saw different partitions" in sentence
    assert "fedavg on ffffffff" in sentence
    nothing = Comparison([made_up_run("local", "cora", 0, 0.5), made_up_run("fedavg", "cora", 1, 0.5)])
    assert compare_with(nothing, "local") == []


def test_the_best_row_is_not_alone_if_another_cannot_be_told_from_it():
    table = {("fedavg", "cora"): HARD_AND_EASY, ("fedprox", "cora"): NOT_REALLY, ("local", "cora"): FAR_WORSE}
    comparison = made_up(table)
    assert best_rows(comparison, "cora") == {"fedavg", "fedprox"}
    table["fedavg", "cora"] = [score + 0.1 for score in HARD_AND_EASY[:4]] + [0.99]
    assert best_rows(made_up(table), "cora") == {"fedavg"}


def test_one_seed_tells_nothing_apart():
    comparison = made_up({("fedavg", "cora"): [0.80], ("local", "cora"): [0.79], ("fedprox", "cora"): [0.80]})
    assert best_rows(comparison, "cora") == {"fedavg", "fedprox"}  # the same mean
    comparison = made_up({("fedavg", "cora"): [0.801], ("local", "cora"): [0.79], ("fedprox", "cora"): [0.80]})
    assert best_rows(comparison, "cora") == {"fedavg"}
    assert all(entry.paired.test == NO_TEST for entry in compare_with(comparison, "local"))
    assert not any(entry.significant for entry in compare_with(comparison, "local"))


def test_references_do_not_compete():
    table = {(method, "cora"): [score, score + 0.01] for method, score in (("centralised", 0.9), ("majority", 0.3))}
    comparison = made_up(table | {("local", "cora"): [0.5, 0.52], ("fedavg", "cora"): [0.6, 0.61]})
    assert competitors(comparison) == ["local", "fedavg"]
    assert "centralised" not in best_rows(comparison, "cora")
    assert [entry.row for entry in compare_with(comparison, "local")] == ["fedavg"]
    assert [entry.row for entry in compare_with(comparison, "centralised")] == ["local", "fedavg"]
    assert set(REFERENCES) <= set(METHODS)


def test_a_column_without_scores_has_no_best_row():
    assert best_of({}) == best_of({"fedavg": {}}) == set()
    assert best_of({"fedavg": {0: Score(0.5)}, "local": {}}) == {"fedavg"}


def test_a_baseline_is_a_row_or_the_only_one_of_a_method():
    runs = [made_up_run("fedprox", "cora", 0, 0.5, settings={"mu": mu}) for mu in (0.1, 1.0)]
    comparison = Comparison([*runs, made_up_run("local", "cora", 0, 0.4)])
    assert find_row(comparison, "fedprox, mu=1") == "fedprox, mu=1"
    assert find_row(comparison, "local") == "local"
    with pytest.raises(InputError, match=r"'fedprox' names 2 rows: there are fedprox, mu=0\.1; fedprox, mu=1"):
        find_row(comparison, "fedprox")
    with pytest.raises(InputError, match=r"'lokal' is no row.*did you mean.*local"):
        find_row(comparison, "lokal")


def test_ranks_are_of_means_over_columns():
    table = {}
    for number, data in enumerate(("cora", "cs", "photo", "physics")):
        table |= {
            ("fedavg", data): [0.8 + number / 100] * 2,
            ("fedprox", data): [0.7, 0.7],
            ("local", data): [0.6, 0.6],
        }
    table["local", "physics"] = [0.7, 0.7]
    ranking = rank_rows(made_up(table))
    assert ranking.ranks == {"fedavg": 1.0, "fedprox": 2.125, "local": 2.875}
    assert ranking.columns == 4
    assert ranking.friedman.corrected_p < 0.05
    assert ranking.critical_difference == pytest.approx(2.343 * (3 * 4 / 24) ** 0.5, abs=1e-3)
    assert ranking.groups == [("fedavg", "fedprox"), ("fedprox", "local")]


def test_rows_are_one_group_where_friedmans_test_finds_nothing():
    table = {("fedavg", "cora"): [0.8], ("fedprox", "cora"): [0.7], ("local", "cora"): [0.6]}
    table |= {("fedavg", "cs"): [0.6], ("fedprox", "cs"): [0.7], ("local", "cs"): [0.8]}
    assert set(rank_rows(made_up(table)).groups[0]) == {"fedavg", "fedprox", "local"}


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({("fedavg", "cora"): [0.8], ("local", "cora"): [0.7]}, "all runs are on cora"),
        ({("fedavg", "cora"): [0.8], ("fedavg", "cs"): [0.7], ("majority", "cs"): [0.1]}, "there is fedavg"),
        (
            {("fedavg", "cora"): [0.8], ("local", "cora"): [0.7], ("local", "cs"): [0.7]},
            "there is no score of fedavg on cs",
        ),
    ],
)
def test_ranks_that_could_not_be_compared_are_refused(table, sentence):
    with pytest.raises(InputError, match=sentence):
        rank_rows(made_up(table))
