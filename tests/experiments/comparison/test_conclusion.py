"""The verdict in sentences: who is best, who cannot be told apart, and what limits it."""

from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.conclusion import caveats, conclude, listed
from tests.experiments.comparison.made_up import made_up, made_up_run

CLOSE = {
    ("fedavg", "cora"): [0.50, 0.60, 0.70, 0.80, 0.90],
    ("fedprox", "cora"): [0.55, 0.55, 0.75, 0.75, 0.95],
    ("local", "cora"): [0.20, 0.31, 0.40, 0.52, 0.60],
}


def test_the_best_row_is_named_with_its_rivals_and_what_it_beats():
    assert conclude(made_up(CLOSE), "local") == (
        "fedprox has the best accuracy on cora, 71.0 % over 5 seeds; fedavg cannot be told from it. "
        "Against local, significantly better: fedavg and fedprox; significantly worse: none (of 2 differences, "
        "corrected p < 0.05)."
    )
    alone = {key: CLOSE[key] for key in (("fedavg", "cora"), ("local", "cora"))}
    assert conclude(made_up(alone)).endswith("it can be told from every other row.")


def test_one_seed_is_said_to_prove_nothing():
    comparison = made_up({key: values[:1] for key, values in CLOSE.items()})
    assert "one seed tells nothing apart" in conclude(comparison, "local")
    assert "cannot be tested" in conclude(comparison, "local")
    assert any("one seed" in sentence for sentence in caveats(comparison))
    assert not any("one seed" in sentence for sentence in caveats(made_up(CLOSE)))


def test_several_columns_are_counted_and_ranked():
    table = CLOSE | {(method, "cs"): values for (method, _), values in CLOSE.items()}
    words = conclude(made_up(table), "local")
    assert words.startswith("fedavg and fedprox are best, or cannot be told from the best, on 2 of 2 columns.")
    assert "fedprox has the best average rank, 1.00, from which fedavg and local cannot be told." in words
    assert "Against local over all columns, significantly better: fedavg and fedprox" in words


def test_without_a_full_table_single_columns_are_named():
    table = {**CLOSE, ("fedavg", "cs"): [0.5, 0.6], ("fedprox", "cs"): [0.5, 0.61]}
    words = conclude(made_up(table), "local")
    assert "better: fedavg on cora and fedprox on cora" in words
    sentences = caveats(made_up(table))
    assert "There is no accuracy of local on cs." in sentences
    assert any(sentence.startswith("Ranks need every row") for sentence in sentences)
    assert any("same seeds" in sentence for sentence in sentences)


def test_rows_that_differ_in_more_than_their_name_are_said_to():
    comparison = Comparison([made_up_run("fedavg", "cora", 0, 0.5), made_up_run("local", "cora", 0, 0.4, rounds=9)])
    assert "Rows differ in rounds too: fedavg 4; local 9." in caveats(comparison)


def test_references_alone_make_no_winner():
    assert conclude(made_up({("majority", "cora"): [0.5, 0.6]})) == "No row that competes has a score on cora."


def test_names_are_listed_as_people_do():
    assert [listed(list("abcdefg"[:n])) for n in (0, 1, 2, 3, 5, 7)] == [
        *("", "a", "a and b", "a, b and c", "a, b, c, d and e", "a, b, c, d and 3 more"),
    ]
