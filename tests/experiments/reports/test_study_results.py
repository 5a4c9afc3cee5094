"""The results of a study: bold is best and not distinguishable, by pairs of the same seed and partition."""

import json

import pytest

from graft.experiments.reports.tables import StudyTable
from tests.experiments.tiny_study import DATA, tiny_plan

pytestmark = pytest.mark.usefixtures("tiny")
COLUMN = f"{DATA}-2"


def write_scores(plan, scores, partitions=lambda row, seed: f"{seed}" * 64):  # noqa: ARG005
    """Let the cells of a plan have these accuracies, by row and seed."""
    for cell in plan.cells:
        test = scores[cell.row][cell.seed]
        summary = {
            "accuracy": {"test": test, "test_node_weighted": test},
            "seconds": {"total": 1.0},
            "device": "cpu",
            "graft": "0.1.0",
        }
        content = {"experiment": cell.experiment, "partition": partitions(cell.row, cell.seed), "summary": summary}
        cell.path.parent.mkdir(parents=True, exist_ok=True)
        cell.path.write_text(json.dumps(content))
    return StudyTable(plan)


def plan_of(seeds):
    return tiny_plan(clients=(2,), seeds=tuple(range(seeds)))


CLOSE = {"local": [0.50, 0.60, 0.70, 0.80], "mine": [0.55, 0.55, 0.75, 0.79], "centralised": [0.9] * 4}
APART = {"local": [0.50, 0.60, 0.70, 0.80], "mine": [0.55, 0.66, 0.75, 0.86], "centralised": [0.9] * 4}


def test_a_row_that_cannot_be_told_from_the_best_is_bold_too():
    table = write_scores(plan_of(4), CLOSE)
    assert table.best(COLUMN) == {"local", "mine"}
    assert "cannot tell from it" in table.caption()
    assert write_scores(plan_of(4), APART).best(COLUMN) == {"mine"}


def test_one_seed_marks_the_highest_mean_and_says_that_it_proves_nothing():
    table = write_scores(plan_of(1), CLOSE)
    assert table.best(COLUMN) == {"mine"}
    assert "by one seed, which proves nothing" in table.caption()


def test_rows_on_other_partitions_are_not_compared():
    table = write_scores(plan_of(4), CLOSE, lambda row, seed: f"{row}{seed}")
    assert table.best(COLUMN) == {"mine"}  # the highest mean; no test could be made
