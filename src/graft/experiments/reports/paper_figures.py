"""The figures of a comparison for a paper, by Matplotlib: scores, curves, cost, ranks and what clients gain.

Each function returns a `matplotlib.figure.Figure` whose files embed their fonts, and leaves pyplot and its settings
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.differences import (
    best_rows,
    competitors,
    find_row,
    in_order,
    is_reference,
)
from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.comparison.statistics import estimate
from graft.experiments.reports.paper_style import (
    INK,
    SOFT,
    Look,
    legend_below,
    looks,
    panels,
    shorten,
    styled,
)
from graft.experiments.reports.rank_diagram import plot_ranks
from graft.experiments.reports.series import axis_title, scale_of
from graft.experiments.reports.summary_table import total_bytes
from graft.federation.metric_names import METRICS

__all__ = ["plot_cost", "plot_curves", "plot_gains", "plot_ranks", "plot_scores", "save_figure"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BESIDE: Any = {"textcoords": "offset points", "fontsize": 6.5, "color": SOFT}  # what stands beside an axis


class Curve(NamedTuple):
    """A score over the rounds that all seeds of a cell have: mean and deviation, and what was sent until then."""

    rounds: list[int]
    means: list[float]
    deviations: list[float]
    megabytes: list[float]
    best: int  # the median of the best rounds, of those that are here


def save_figure(figure: Figure, path: Path) -> Path:
    """Writes a figure as the ending of the path says, PDF or PNG; the same figure gives the same bytes."""
    dated = {"CreationDate": None, "ModDate": None} if path.suffix == ".pdf" else {"Software": None}
    figure.savefig(path, metadata=dated)
    return path


@styled
def plot_scores(comparison: Comparison, width: float | None = None) -> Figure:
    """Draws the mean of every row with its 95 % interval, the seeds as dots; filled: best or not distinguishable."""
    rows = in_order(comparison)
    figure, axes = panels(comparison.columns, 0.42 + 0.2 * len(rows), width)
    for index, (panel, column) in enumerate(zip(axes, comparison.columns, strict=True)):
        best = best_rows(comparison, column)
        for position, row in enumerate(rows):
            values = scaled(comparison, comparison.values(row, column).values())
            if values:
                draw_estimate(panel, position, values, row in best, is_reference(comparison, row))
        leftmost = index % columns_of(figure) == 0
        panel.set_yticks(range(len(rows)), [shorten(row) if leftmost else "" for row in rows])
        panel.set_ylim(len(rows) - 0.4, -0.6)
        panel.grid(visible=False, axis="y")
        panel.margins(x=0.08)
        panel.set_xlabel(axis_title(comparison.metric))
    return figure


def draw_estimate(panel: Axes, position: int, values: Sequence[float], best: bool, reference: bool) -> None:
    """Draws one row of scores."""
    colour = SOFT if reference else looks([""])[""].colour
    summary = estimate(values)
    if summary.low is not None and summary.high is not None:
        panel.plot([summary.low, summary.high], [position] * 2, color=colour, linewidth=1.4, solid_capstyle="butt")
        panel.plot(values, [position] * len(values), "|", color=colour, alpha=0.45, markersize=5, markeredgewidth=0.8)
    marker = "D" if reference else "o"
    panel.plot(
        [summary.mean],
        [position],
        marker,
        color=colour,
        markersize=4.6,
        markerfacecolor=colour if best else "white",
        markeredgewidth=1.1,
        zorder=3,
    )


@styled
def plot_curves(comparison: Comparison, width: float | None = None) -> Figure:
    """Draws the test score over rounds: means with a band of a deviation over seeds, a dot at the best round."""
    return draw_curves(comparison, "round", width, lambda curve: [float(number) for number in curve.rounds])


@styled
def plot_cost(comparison: Comparison, width: float | None = None) -> Figure:
    """Draws the test score against the megabytes sent until then; who sends nothing is a dotted line at its best."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = draw_curves(comparison, "megabytes sent", width, lambda curve: curve.megabytes)
    for panel in figure.axes:
        if panel.collections:  # the band of somebody who sends something
            panel.set_xscale("log")
            panel.xaxis.set_major_locator(LogLocator(numticks=6))
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
            panel.xaxis.set_minor_formatter(NullFormatter())
        else:
            panel.set_xticks([])
    return figure


def draw_curves(comparison: Comparison, axis: str, width: float | None, x_of: Any) -> Figure:
    """Draws curves of all rows, a panel a column, with one legend."""
    curves = {
        (row, column): curve
        for row in comparison.rows
        for column in comparison.columns
        if (curve := curve_of(comparison, row, column)) is not None
    }
    if not curves:
        raise InputError(f"No run has its {METRICS[comparison.metric].title} on record round by round.")
    drawn = [row for row in in_order(comparison) if any((row, column) in curves for column in comparison.columns)]
    references = [row for row in drawn if is_reference(comparison, row)]
    appearance = looks([row for row in drawn if row not in references], references)
    appearance = {row: appearance[row] for row in drawn}
    figure, axes = panels(comparison.columns, 2.1, width)
    handles: dict[str, Any] = {}
    for panel, column in zip(axes, comparison.columns, strict=True):
        for row, look in appearance.items():
            if (row, column) in curves:
                handles[row] = draw_curve(panel, curves[row, column], x_of(curves[row, column]), look)
        panel.set_xlabel(axis)
    axes[0].set_ylabel(axis_title(comparison.metric))
    names = [shorten(row) for row in handles]
    legend_below(figure, list(handles.values()), names, figure.get_figwidth())
    return figure


def draw_curve(panel: Axes, curve: Curve, x: Sequence[float], look: Look) -> Any:
    """Draws one curve with its band and its best round; one that does not move along x is a line across."""
    at_best = curve.rounds.index(curve.best)
    if x[-1] == 0:
        return panel.axhline(curve.means[at_best], color=look.colour, linestyle=(0, (1, 1.4)), linewidth=1.1)
    low, high = (
        [mean + sign * spread for mean, spread in zip(curve.means, curve.deviations, strict=True)] for sign in (-1, 1)
    )
    panel.fill_between(x, low, high, color=look.colour, alpha=0.14, linewidth=0)
    (line,) = panel.plot(
        x,
        curve.means,
        color=look.colour,
        linestyle=look.dash,
        marker=look.marker,
        markevery=[at_best],
        markeredgecolor="white",
        markeredgewidth=0.5,
        markersize=5.2,
    )
    return line


def curve_of(comparison: Comparison, row: str, column: str) -> Curve | None:
    """Returns the curve of a cell; None where no rounds are on record."""
    scores = [
        {
            record["round"]: value
            for record in run.rounds
            if (value := round_score(record, comparison.metric)) is not None
        }
        for run in comparison.cell(row, column).values()
    ]
    shared = sorted(set.intersection(*map(set, scores))) if scores else []
    if not shared:
        return None
    runs = list(comparison.cell(row, column).values())
    values = [scaled(comparison, [of_seed[number] for of_seed in scores]) for number in shared]
    sent = [sent_until(run) for run in runs]
    typical = median(run.summary["best_round"] for run in runs)
    return Curve(
        shared,
        [fmean(entry) for entry in values],
        [stdev(entry) if len(entry) > 1 else 0.0 for entry in values],
        [fmean(until.get(number, 0.0) for until in sent) for number in shared],
        min(shared, key=lambda number: abs(number - typical)),
    )


def round_score(record: dict[str, Any], metric: str) -> float | None:
    """Returns the test score of a round; None in a round without."""
    scores = record.get("metrics", {}).get(metric) or (record if metric == "accuracy" else {})
    value: float | None = scores.get("test")
    return value


def sent_until(run: FinishedRun) -> dict[int, float]:
    """Returns the megabytes that were sent until each round, what was told before the first one included."""
    counts = {
        record["round"]: sum(record.get(f"{way}_bytes", 0) for way in ("up", "down", "peer")) for record in run.rounds
    }
    total = total_bytes(run.summary) - sum(counts.values()) if any(counts.values()) else 0
    until = {}
    for number, count in counts.items():
        total += count
        until[number] = total / 1e6
    return until


@styled
def plot_gains(comparison: Comparison, baseline: str, width: float | None = None) -> Figure:
    """Draws what every client gains over a baseline on its own test nodes: a dot a client and seed, a bar the median,
    and the share of clients that gain."""
    baseline = find_row(comparison, baseline)
    rows = [row for row in competitors(comparison) if row != baseline]
    gains = {
        (row, column): scaled(comparison, client_gains(comparison, row, baseline, column))
        for row in rows
        for column in comparison.columns
    }
    if not any(gains.values()):
        raise InputError(f"No run has scores of clients that could be compared with those of {baseline}.")
    points = " (points)" if METRICS[comparison.metric].percent else ""
    figure, axes = panels(comparison.columns, 0.5 + 0.25 * len(rows), width)
    for index, (panel, column) in enumerate(zip(axes, comparison.columns, strict=True)):
        panel.axvline(0, color=INK, linewidth=0.8)
        for position, row in enumerate(rows):
            draw_gains(panel, position, gains[row, column])
        leftmost = index % columns_of(figure) == 0
        panel.set_yticks(range(len(rows)), [shorten(row) if leftmost else "" for row in rows])
        panel.set_ylim(len(rows) - 0.4, -0.6)
        panel.grid(visible=False, axis="y")
        panel.margins(x=0.06)
        panel.set_xlabel(f"gain of a client over {shorten(baseline, 16)}{points}")
        panel.annotate("gain", (1, 1), xycoords="axes fraction", xytext=(2, 1), **BESIDE)
    return figure


def draw_gains(panel: Axes, position: int, gains: Sequence[float]) -> None:
    """Draws the gains of one row: dots side by side in a fixed order, their median, and the share above zero."""
    if not gains:
        return
    colour = looks([""])[""].colour
    heights = [position + 0.26 * ((7 * index) % 11 / 5 - 1) for index in range(len(gains))]
    panel.plot(gains, heights, "o", color=colour, alpha=0.4, markersize=2.4, markeredgewidth=0)
    panel.plot([median(gains)] * 2, [position - 0.34, position + 0.34], color=INK, linewidth=1.6)
    share = sum(gain > 0 for gain in gains) / len(gains)
    panel.annotate(
        f"{100 * share:.0f} %",
        (1, position),
        xycoords=("axes fraction", "data"),
        xytext=(2, 0),
        va="center",
        **BESIDE,
    )


def client_gains(comparison: Comparison, row: str, baseline: str, column: str) -> list[float]:
    """Returns by how much each client of each pair of runs is better than with the baseline."""
    first, second = comparison.cell(row, column), comparison.cell(baseline, column)
    sign = METRICS[comparison.metric].sign
    gains = []
    for seed, run in first.items():
        other = second.get(seed)
        if other is None or run.hashes.get("partition") != other.hashes.get("partition"):
            continue
        before = {entry["client"]: client_score(entry, comparison.metric) for entry in other.summary["per_client"]}
        for entry in run.summary["per_client"]:
            with_row, with_baseline = client_score(entry, comparison.metric), before.get(entry["client"])
            if with_row is not None and with_baseline is not None:
                gains.append(sign * (with_row - with_baseline))
    return gains


def client_score(entry: dict[str, Any], metric: str) -> float | None:
    """Returns the test score of one client."""
    scores = entry.get("metrics", {}).get(metric) or (entry if metric == "accuracy" else {})
    value: float | None = scores.get("test")
    return value


def scaled(comparison: Comparison, values: Iterable[float]) -> list[float]:
    """Returns values as an axis shows them: shares in percent."""
    return [scale_of(comparison.metric) * value for value in values]


def columns_of(figure: Figure) -> int:
    """Returns how many panels stand side by side."""
    grid = figure.axes[0].get_subplotspec()
    return 1 if grid is None else grid.get_gridspec().ncols
