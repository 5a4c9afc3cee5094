"""The figure of a study: bars, curves over a setting, or curves over rounds, of the results that are on disk."""

from __future__ import annotations

from statistics import mean

from graft.experiments.reports.figures import bars, curves, lines
from graft.experiments.reports.study_results import StudyResults


def study_figure(results: StudyResults) -> str:
    """Returns the SVG of a study, empty where it declares no figure or has no results."""
    study = results.plan.study
    if study.figure == "rounds":
        return round_curves(results)
    panels = [(name, values) for name in results.columns if (values := bars_of(results, name))]
    if not panels or not study.figure:
        return ""
    return bars(panels) if study.figure == "bars" else setting_curves(results, panels)


def bars_of(results: StudyResults, column: str) -> dict[str, tuple[float, float]]:
    """Mean and deviation of every row that has results in a column."""
    entries = {row: results.entries[row, column] for row in results.plan.rows}
    return {row: (entry.mean, entry.deviation or 0.0) for row, entry in entries.items() if entry.mean is not None}


def setting_curves(results: StudyResults, panels: list[tuple[str, dict[str, tuple[float, float]]]]) -> str:
    """Accuracy against the setting that the rows vary."""
    study = results.plan.study
    points = {row: variant.point for row, variant in study.rows.items() if variant.point is not None}
    series = []
    for name, values in panels:
        by_curve: dict[str, list[tuple[float, float, float]]] = {}
        for row, (value, deviation) in values.items():
            curve, x = points[row]
            by_curve.setdefault(curve, []).append((x, value, deviation))
        series.append((name, {curve: sorted(coordinates) for curve, coordinates in by_curve.items()}))
    return lines(series, study.axis)


def round_curves(results: StudyResults) -> str:
    """Test accuracy against rounds, the mean over the seeds that are there."""
    panels = []
    for name, column in zip(results.columns, results.plan.columns, strict=True):
        series: dict[str, list[tuple[float, float]]] = {}
        for row in results.plan.rows:
            stored = [(results.stored[row, *column, seed] or {}).get("curve") for seed in results.plan.seeds]
            of_seeds = [curve for curve in stored if curve is not None and curve["round"]]
            if of_seeds:
                accuracies = zip(*(curve["test"] for curve in of_seeds), strict=False)
                rounds = of_seeds[0]["round"]
                series[row] = [(n, 100 * mean(tests)) for n, tests in zip(rounds, accuracies, strict=False)]
        if series:
            panels.append((name, series))
    return curves(panels, "round") if panels else ""
