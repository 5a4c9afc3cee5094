"""What a tournament says of scores that were made up: ranks, pairs, corrections, and what is bold."""

from dataclasses import asdict, replace

import pytest

from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.experiment import Experiment
from graft.experiments.studies.study import Variant
from graft.experiments.tournament.families import Family, entrant
from graft.experiments.tournament.page import (
    chosen_text,
    held_out_rows,
    lead_table,
    ranks_text,
    score_table,
)
from graft.experiments.tournament.results import Cell, FamilyResult

FAMILY = Family(
    meaning="Made up",
    entrants=[
        entrant("ours", Variant("fedprox")),
        entrant("good", Variant("fedavg")),
        entrant("bad", Variant("moon")),
        entrant("centralised"),
    ],
    leading=("ours",),
    datasets=("one", "two"),
)


def run(method, seed, score, metric="accuracy", partition="p", validation=None):
    experiment = {**asdict(Experiment()), "method": method, "seed": seed}
    scores = {"test": score, "validation": score if validation is None else validation}
    values = {"accuracy": scores} if metric == "accuracy" else {"accuracy": {"test": 0.0}, "metrics": {metric: scores}}
    return FinishedRun(experiment, {**values, "metric": metric, "hashes": {"partition": f"{partition}{seed}"}})


def cell(method, scores, metric="accuracy"):
    runs = {seed: run(method, seed, score, metric) for seed, score in enumerate(scores)}
    return Cell(runs, runs, metric, planned=4, trials=4, failed=0, chosen=None)


def result(metric="accuracy", **scores):
    """A family whose rows have these scores on each of two datasets, a list of seeds each."""
    methods = {entry.label: entry.method for entry in FAMILY.entrants}
    return FamilyResult(
        "made-up",
        FAMILY,
        {
            (row, column): cell(methods[row], values, metric)
            for row, columns in scores.items()
            for column, values in zip(("one", "two"), columns, strict=True)
        },
    )


SCORES = {
    "ours": ([0.80, 0.82, 0.84, 0.83, 0.85], [0.60, 0.61, 0.62, 0.61, 0.63]),
    "good": ([0.70, 0.73, 0.74, 0.74, 0.75], [0.50, 0.52, 0.53, 0.50, 0.54]),
    "bad": ([0.60, 0.60, 0.60, 0.60, 0.61], [0.55, 0.54, 0.56, 0.53, 0.55]),
}


def test_leading_row_is_compared_with_the_best_of_the_others_on_each_dataset():
    leads = {lead.column: lead for lead in result(**SCORES).leads}
    assert {column: lead.rival for column, lead in leads.items()} == {"one": "good", "two": "bad", None: "good"}
    assert leads["one"].paired.mean == pytest.approx((0.10 + 0.09 + 0.10 + 0.09 + 0.10) / 5)
    assert leads["two"].paired.mean == pytest.approx((0.05 + 0.07 + 0.06 + 0.08 + 0.08) / 5)
    mean_of_good = [(0.70 + 0.50) / 2, (0.73 + 0.52) / 2, (0.74 + 0.53) / 2, (0.74 + 0.50) / 2, (0.75 + 0.54) / 2]
    mean_of_ours = [(0.80 + 0.60) / 2, (0.82 + 0.61) / 2, (0.84 + 0.62) / 2, (0.83 + 0.61) / 2, (0.85 + 0.63) / 2]
    expected = sum(a - b for a, b in zip(mean_of_ours, mean_of_good, strict=True)) / 5
    assert leads[None].paired.mean == pytest.approx(expected)


def test_p_values_are_corrected_over_datasets_and_those_of_means_apart():
    leads = result(**SCORES).leads
    columns = [lead for lead in leads if lead.column]
    smallest = min(columns, key=lambda lead: lead.paired.p)
    assert smallest.corrected_p == pytest.approx(2 * smallest.paired.p)
    (mean,) = [lead for lead in leads if lead.column is None]
    assert mean.corrected_p == mean.paired.p


def test_ranks_are_over_the_rows_that_compete():
    found = result(**SCORES, centralised=([0.99] * 5, [0.99] * 5))
    assert found.ranking.ranks == {"ours": 1.0, "good": 2.5, "bad": 2.5}
    assert "ours 1.00, good 2.50, bad 2.50" in ranks_text(found.ranking)
    assert found.best("one") == {"ours"}
    table = score_table(found)
    assert "**82.8 ± 1.9**" in table
    assert "**99.0" not in table


def test_lower_is_better_where_the_metric_says_so():
    found = result(
        "log_loss", ours=([0.3] * 5, [0.3, 0.31, 0.3, 0.3, 0.3]), good=([0.5] * 5, [0.5, 0.5, 0.5, 0.5, 0.6])
    )
    assert found.best("two") == {"ours"}
    assert next(iter(found.ranking.ranks)) == "ours"
    assert all(lead.paired.mean > 0 for lead in found.leads)


def test_column_with_a_gap_counts_for_no_rank_and_no_lead():
    found = result(**SCORES)
    found.cells["bad", "two"] = Cell({}, {}, "accuracy", planned=4, trials=2, failed=2, chosen=None)
    assert found.complete == ["one"]
    assert found.ranking is None
    assert {lead.column for lead in found.leads} == {"one"}
    assert "2 of 4 trials" in score_table(found)


@pytest.mark.parametrize("metric", ["accuracy", "log_loss"])
def test_what_counts_is_better_on_validation_nodes_whatever_test_nodes_say(metric):
    def runs(test, validation):
        values = enumerate(zip(test, validation, strict=True))
        return {seed: run("fedprox", seed, score, metric, validation=value) for seed, (score, value) in values}

    high, low = runs([0.3, 0.5], [0.9, 0.8]), runs([0.6, 0.7], [0.85, 0.84])
    better, worse = (high, low) if metric == "accuracy" else (low, high)
    made = Cell(better, worse, metric, planned=4, trials=4, failed=0, chosen={"mu": 0.1})
    assert made.counting == "tuned"
    assert made.counted is better
    assert chosen_text(made) == "mu=0.1"
    made = replace(made, tuned=worse, default=better)
    assert made.counting == "default"
    assert list(made.values().values()) == [run.score(metric) for run in better.values()]
    assert chosen_text(made) == "the defaults, not mu=0.1"
    assert replace(made, default=worse).counting == "default"  # as good
    assert replace(made, default={0: better[0]}).counting == "tuned"  # the default's runs are not over


def test_what_judges_by_training_nodes_takes_the_place_of_the_values_that_count():
    weak, strong = ({seed: run("fedgkc", seed, score) for seed in range(2)} for score in (0.5, 0.7))
    made = Cell(weak, strong, "accuracy", planned=4, trials=4, failed=0, chosen={"mu": 0.1}, held_out=weak)
    found = FamilyResult("made-up", FAMILY, {("ours", "one"): made})
    assert found.cells["ours", "one"].values() == {0: 0.7, 1: 0.7}
    assert found.judged_by_training.cells["ours", "one"].values() == {0: 0.5, 1: 0.5}


def test_seeds_on_other_partitions_make_no_pair():
    found = result(**SCORES)
    strange = {seed: run("fedprox", seed, 0.9, partition="q") for seed in range(2)}
    mine = found.cells["ours", "one"].tuned
    found.cells["ours", "one"] = Cell({**mine, **strange}, mine, "accuracy", 4, 4, 0, None)
    (lead,) = [lead for lead in found.leads if lead.column == "one"]
    assert lead.paired.n == 3
    assert "| ours | one | good |" in lead_table(found.leads, found)


def test_rows_that_judge_are_paired_with_themselves_judging_by_training_nodes():
    found = result(**SCORES)
    weaker = cell("fedgkc", [score - 0.2 for score in SCORES["ours"][0]]).tuned
    found.cells["ours", "one"] = replace(found.cells["ours", "one"], held_out=weaker)
    ((row, column, by_validation, by_training, difference, interval),) = held_out_rows(found)
    assert (row, column, by_validation, by_training) == ("ours", "one", "82.8 ± 1.9", "62.8 ± 1.9")
    assert difference == "-20.0"
    assert interval == "-"  # the same in every seed is no sample
    assert found.ranking.ranks["ours"] == 1.0
    assert found.judged_by_training.ranking.ranks["ours"] == 1.5  # second on one dataset, first on the other
    assert found.judged_by_training.cells["good", "one"] == found.cells["good", "one"]
