"""The verdict in sentences: who is best, who cannot be told apart, and what limits it."""

from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.conclusion import beside_baseline, caveats, conclude, listed
from tests.experiments.comparison.made_up import made_up, made_up_run

CLOSE = {
    ("fedavg", "cora"): [0.50, 0.60, 0.70, 0.80, 0.90],
    ("fedprox", "cora"): [0.55, 0.55, 0.75, 0.75, 0.95],
    ("local", "cora"): [0.20, 0.31, 0.40, 0.52, 0.60],
}


def words_of(comparison):
    return " ".join(conclude(comparison))


def test_the_best_row_is_named_with_how_far_it_is_ahead_and_whether_that_can_be_told():
    assert conclude(made_up(CLOSE)) == [
        "fedprox is best on cora: 71.0 ± 16.7 % test accuracy over 5 seeds, 1.0 points ahead of fedavg.",
        "It cannot be told from fedavg: the difference is -5.8 to +7.8 with 95 % confidence, p = 0.7, paired t-test.",
        "It is 30.4 points above training alone, a clear difference (+22.6 to +38.2 with 95 % confidence, p = 0.00042, "
        "paired t-test).",
    ]
    alone = {key: CLOSE[key] for key in (("fedavg", "cora"), ("local", "cora"))}
    assert "It can be told from all others; from local the difference is +" in words_of(made_up(alone))


def test_rows_that_beat_the_baseline_are_named():
    assert beside_baseline(made_up(CLOSE), "local") == (
        "Against local, significantly better: fedavg and fedprox; significantly worse: none (of 2 differences, "
        "corrected p < 0.05)."
    )


def test_one_seed_is_said_to_prove_nothing():
    comparison = made_up({key: values[:1] for key, values in CLOSE.items()})
    assert "nothing can be tested: run more seeds" in words_of(comparison)
    assert "cannot be tested" in beside_baseline(comparison, "local")
    assert any("one seed" in sentence for sentence in caveats(comparison))
    assert not any("one seed" in sentence for sentence in caveats(made_up(CLOSE)))


def test_a_row_that_could_not_be_tested_is_not_said_to_be_told_apart():
    table = {("fedavg", "cora"): [0.8, 0.81, 0.82], ("local", "cora"): [0.5, 0.52, 0.51]}
    assert "from all others; from local" in words_of(made_up(table))
    words = words_of(made_up({**table, ("fedprox", "cora"): [0.4]}))
    assert "from all others but fedprox, with too few pairs for a test; from local" in words


def test_several_columns_are_counted_and_ranked():
    table = CLOSE | {(method, "cs"): values for (method, _), values in CLOSE.items()}
    overall, *columns = conclude(made_up(table))
    assert overall == (
        "fedprox has the best mean on 2 of 2 data, with an average rank of 1.00; over all data it cannot be told from "
        "fedavg and local (Nemenyi)."
    )
    assert [sentence.split(":")[0] for sentence in columns] == ["fedprox is best on cora", "fedprox is best on cs"]
    assert "Against local over all columns, significantly better: fedavg and fedprox" in beside_baseline(
        made_up(table), "local"
    )


def test_many_columns_are_left_to_the_table():
    table = {(method, f"d{number}"): values for (method, _), values in CLOSE.items() for number in range(8)}
    sentences = conclude(made_up(table))
    assert len(sentences) == 8
    assert sentences[-1] == "The table has the other 2 data."


def test_without_a_full_table_single_columns_are_named():
    table = {**CLOSE, ("fedavg", "cs"): [0.5, 0.6], ("fedprox", "cs"): [0.5, 0.61]}
    assert "better: fedavg on cora and fedprox on cora" in beside_baseline(made_up(table), "local")
    sentences = caveats(made_up(table))
    assert "There is no accuracy of local on cs." in sentences
    assert any(sentence.startswith("Ranks need every row") for sentence in sentences)
    assert any("same seeds" in sentence for sentence in sentences)


def test_training_alone_that_wins_is_said_to_and_only_beside_others():
    table = {("local", "cora"): [0.8, 0.81], ("fedavg", "cora"): [0.5, 0.52]}
    assert words_of(made_up(table)).endswith("That is training alone: here no federation pays.")
    alone = made_up({("local", "cora"): [0.8, 0.81]})
    assert words_of(alone) == "local reaches 80.5 ± 0.7 % test accuracy over 2 seeds on cora."


def test_rows_that_differ_in_more_than_their_name_are_said_to():
    comparison = Comparison([made_up_run("fedavg", "cora", 0, 0.5), made_up_run("local", "cora", 0, 0.4, rounds=9)])
    assert "Rows also differ in rounds (4: fedavg; 9: local)." in caveats(comparison)


def test_references_alone_make_no_winner():
    assert words_of(made_up({("majority", "cora"): [0.5, 0.6]})) == "No row that competes has a score on cora."


def test_names_are_listed_as_people_do():
    assert [listed(list("abcdefg"[:n])) for n in (0, 1, 2, 3, 5, 7)] == [
        *("", "a", "a and b", "a, b and c", "a, b, c, d and e", "a, b, c, d and 3 more"),
    ]
