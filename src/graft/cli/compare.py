"""`graft compare`: finished runs as the tables and figures of a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli.console import Text, out_console, safe, say
from graft.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from graft.experiments.comparison.comparison import Comparison


def compare(
    directories: Annotated[list[Path], typer.Argument(help="Folders of runs, sweeps and studies.")],
    baseline: Annotated[
        Text, typer.Option(help="The row that others are compared with. (local, where it is one)")
    ] = None,
    metric: Annotated[Text, typer.Option(help="What is compared. (the one that picked the best rounds)")] = None,
    out: Annotated[Path, typer.Option(help="The folder for tables and figures.")] = Path("paper"),
    latex: Annotated[bool, typer.Option("--latex", help="Write LaTeX tables.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Write figures as PDF.")] = False,
    png: Annotated[bool, typer.Option("--png", help="Write figures as PNG.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Write the numbers as CSV.")] = False,
) -> None:
    """Compare finished runs with tests: tables and figures for a paper. Without a format, all of them."""
    from graft.experiments.comparison.comparison import Comparison
    from graft.experiments.comparison.conclusion import beside_baseline, caveats, conclude
    from graft.experiments.comparison.differences import alone_row, find_row
    from graft.experiments.comparison.finished_runs import find_runs
    from graft.experiments.reports.paper import FORMATS, write_paper

    comparison = Comparison(find_runs(directories), metric)
    check_metric(comparison)
    row = find_row(comparison, baseline) if baseline else alone_row(comparison)
    chosen = [name for name, wanted in zip(FORMATS, (latex, pdf, png, csv), strict=True) if wanted]
    paper = write_paper(comparison, out, row, chosen or FORMATS)
    out_console.print(scores_table(comparison, row))
    compared = [beside_baseline(comparison, row)] if row else []
    for sentence in [*conclude(comparison), *compared, *caveats(comparison), *paper.left_out]:
        say(sentence)
    say(f"Wrote {', '.join(path.name for path in paper.paths)} to {out}.")


def check_metric(comparison: Comparison) -> None:
    """Refuses a metric that there is not, or that no run has on record."""
    from graft.federation.metric_names import parse_metrics

    names = parse_metrics(comparison.metric)
    if len(names) > 1:
        raise InputError(f"--metric is '{comparison.metric}': one metric is compared at a time.")
    if not any(comparison.values(row, column) for row, column in comparison.cells):
        recorded = {"accuracy", *(name for run in comparison.runs for name in run.summary.get("metrics", {}))}
        raise InputError(
            f"No run has {comparison.metric} on record: there are {', '.join(sorted(recorded))}; "
            f"others are measured by graft run --metric {comparison.metric}."
        )


def scores_table(comparison: Comparison, baseline: str | None) -> Table:
    """Returns the table of scores as the paper has it: bold is best and not distinguishable, arrows differ from the
    baseline."""
    from rich.table import Table

    from graft.experiments.comparison.conclusion import ranking_of
    from graft.experiments.comparison.differences import best_rows, compare_with, in_order
    from graft.experiments.reports.captions import BETTER, WORSE
    from graft.federation.metric_names import METRICS

    ranking = ranking_of(comparison)
    ranks = ranking.ranks if ranking else {}
    differences = compare_with(comparison, baseline) if baseline else []
    marks = {(entry.row, entry.column): BETTER if entry.better else WORSE for entry in differences if entry.significant}
    best = {column: best_rows(comparison, column) for column in comparison.columns}
    table = Table(title=f"Test {METRICS[comparison.metric].title}, mean ± deviation over seeds", title_justify="left")
    table.add_column("")
    for name in [*comparison.columns, *(["rank"] if ranks else [])]:
        table.add_column(safe(name), justify="right")
    for row in in_order(comparison):
        cells = []
        for column in comparison.columns:
            text = spell_score(comparison, row, column) + marks.get((row, column), " ")
            cells.append(f"[bold]*{text}[/bold]" if row in best[column] else text)
        rank = [f"{ranks[row]:.2f}" if row in ranks else "-"] if ranks else []
        table.add_row(safe(row), *cells, *rank)
    legend = "bold, *: best, or not distinguishable from the best"
    arrows = f"; {BETTER} {WORSE}: significantly better or worse than {safe(baseline)}" if baseline else ""
    table.caption, table.caption_justify = f"{legend}{arrows}", "left"
    return table


def spell_score(comparison: Comparison, row: str, column: str) -> str:
    """Returns mean and deviation of a cell as text."""
    from graft.experiments.comparison.statistics import estimate
    from graft.experiments.reports.latex import units

    values = list(comparison.values(row, column).values())
    if not values:
        return "-"
    scale, decimals = units(comparison.metric)
    summary = estimate(values)
    spread = "" if summary.deviation is None else f" ± {scale * summary.deviation:.{decimals}f}"
    return f"{scale * summary.mean:.{decimals}f}{spread}"
