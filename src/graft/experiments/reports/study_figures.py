"""The figure of a study: scores, curves over a setting, or curves over rounds, of the results that are on disk."""

from __future__ import annotations

from statistics import mean, stdev
from typing import NamedTuple

from graft.errors import InputError
from graft.experiments.reports.study_charts import (
    CurvePoint,
    Curves,
    Panel,
    Score,
    Scores,
    round_panels,
    score_panels,
    setting_panels,
    sheet,
)
from graft.experiments.reports.study_results import Entry, StudyResults
from graft.experiments.reports.vega import Spec, to_svg
from graft.experiments.studies.study import Measure

AXES: dict[Measure, str] = {
    "auroc": "AUROC, %",
    "macro_f1": "macro F1, %",
    "milliseconds": "ms a round",
    "megabytes": "MB a round",
    "memory": "MB",
}
ACCURACY = "test accuracy, %"


class Drawing(NamedTuple):
    """A figure, or why there is none."""

    svg: str = ""
    missing: str = ""  # a sentence, where a figure had to be left out


def draw(spec: Spec) -> Drawing:
    """Returns a figure as SVG; tables do not wait for the package that draws it."""
    try:
        return Drawing(to_svg(spec))
    except InputError as error:
        return Drawing(missing=f"The figure was left out. {error}")


def study_figure(results: StudyResults) -> Drawing:
    """Returns the figure of a study, nothing where it declares none or has no results."""
    panels = study_panels(results)
    return draw(sheet(panels)) if panels else Drawing()


def study_panels(results: StudyResults) -> list[Panel]:
    """Returns a panel for every column of the table that has results, where the study declares a figure."""
    study = results.plan.study
    axis = AXES.get(study.measure, ACCURACY)
    if study.figure == "rounds":
        return round_panels(curves_by_round(results), ACCURACY)
    columns = {name: scores for name in results.columns if (scores := scores_of(results, name))}
    if study.figure == "bars":
        return score_panels(columns, axis)
    if study.figure == "lines":
        return setting_panels(curves_by_setting(results, columns), study.axis, axis)
    return []


def scores_of(results: StudyResults, column: str) -> Scores:
    """Returns the score of every row that has results in a column."""
    entries = {row: results.entries[row, column] for row in results.plan.rows}
    return {
        row: Score(entry.mean, entry.deviation or 0.0, *printed_means(entry))
        for row, entry in entries.items()
        if entry.mean is not None
    }


def printed_means(entry: Entry) -> tuple[float | None, float | None]:
    """Returns the paper's number, and its later version's where that is another."""
    paper, later = (None if number is None else number.mean for number in (entry.paper, entry.later))
    return paper, None if later == paper else later


def curves_by_setting(results: StudyResults, columns: dict[str, Scores]) -> dict[str, Curves]:
    """Returns the scores of each column against the setting that the rows vary."""
    points = {row: variant.point for row, variant in results.plan.study.rows.items() if variant.point is not None}
    by_column: dict[str, Curves] = {}
    for name, scores in columns.items():
        curves: dict[str, list[CurvePoint]] = {}
        for row, score in scores.items():
            curve, x = points[row]
            curves.setdefault(curve, []).append(CurvePoint(x, score.mean, score.deviation))
        by_column[name] = {curve: sorted(coordinates) for curve, coordinates in curves.items()}
    return by_column


def curves_by_round(results: StudyResults) -> dict[str, Curves]:
    """Returns the test accuracy of each column against rounds, over the seeds that are there: of what the server hands
    out where the table shows that, else of clients' own models."""
    score = "test_served" if results.plan.study.measure == "test_served" else "test"
    by_column: dict[str, Curves] = {}
    for name, column in zip(results.columns, results.plan.columns, strict=True):
        curves: dict[str, list[CurvePoint]] = {}
        for row in results.plan.rows:
            stored = [(results.stored[row, *column, seed] or {}).get("curve") for seed in results.plan.seeds]
            # Results from before curves had both scores lack one, and another would be no substitute.
            of_seeds = [curve for curve in stored if curve is not None and curve["round"] and score in curve]
            if of_seeds:
                accuracies = zip(*(curve[score] for curve in of_seeds), strict=False)
                rounds = zip(of_seeds[0]["round"], accuracies, strict=False)
                curves[row] = [CurvePoint(number, *in_percent(tests)) for number, tests in rounds]
        if curves:
            by_column[name] = curves
    return by_column


def in_percent(shares: tuple[float, ...]) -> tuple[float, float]:
    """Returns mean and deviation of some seeds."""
    return 100 * mean(shares), 100 * stdev(shares) if len(shares) > 1 else 0.0
