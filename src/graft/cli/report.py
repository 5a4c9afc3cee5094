"""`graft report`, and what every command says of runs that are finished."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graft.cli.console import Text, out_console, safe, say, whole_numbers

if TYPE_CHECKING:
    from rich.table import Table

    from graft.experiments.comparison.comparison import Comparison
    from graft.experiments.result import Result
    from graft.experiments.verdicts import Verdict


def report(
    directories: Annotated[list[Path], typer.Argument(help="Run directories.")],
    rounds: Annotated[Text, typer.Option(help="Rounds whose links are drawn, as 1,10,100.")] = None,
) -> None:
    """Compare finished runs, and write report.html into each."""
    drawn = whole_numbers("--rounds", rounds)
    from graft.experiments.comparison.comparison import Comparison
    from graft.experiments.comparison.finished_runs import find_runs

    comparison = Comparison(find_runs(directories))
    for run in comparison.runs:
        if run.path is not None and run.path.is_dir():
            write_page(run.path, run.summary, drawn)
    show_comparison(comparison, directories[0])


def finish_run(directory: Path, result: Result) -> dict[str, Any]:
    """Write the report of a run; one that was stopped before its time says how to go on and ends the command."""
    if not result.finished:
        say(f"Stopped after round {result.rounds[-1]['round']}; go on with: graft resume {directory}")
        raise typer.Exit(1)
    return write_page(directory, result.summary)


def write_page(directory: Path, summary: dict[str, Any], rounds: list[int] | None = None) -> dict[str, Any]:
    from graft.experiments.reports.report import write_report

    write_report(directory, rounds)
    return summary


def show_verdicts(verdicts: Sequence[Verdict], method: str, contribution: bool, seeds: int = 1) -> None:
    """Print for each client whether joining helps it, by its test nodes or, of several seeds, by these."""
    from rich.table import Table

    from graft.federation.metric_names import METRICS, format_difference, format_metric

    metric = verdicts[0].metric
    table = Table(
        title=f"Does joining help? {METRICS[metric].title} on each client's own test nodes", title_justify="left"
    )
    names = ["client", "alone", method, "difference", "95 % interval", "verdict"]
    for name in [*names, "gives the others"] if contribution else names:
        table.add_column(name, justify="left" if name in ("client", "verdict") else "right")
    for entry in verdicts:
        scores = (format_metric(metric, score, "-") for score in (entry.alone, entry.federated))
        interval = " to ".join(format_difference(metric, end, "-") for end in entry.interval)
        cells = [
            safe(str(entry.client)),
            *scores,
            format_difference(metric, entry.difference, "-"),
            interval,
            entry.verdict,
        ]
        table.add_row(*cells, *([format_difference(metric, entry.contribution, "-")] if contribution else []))
    out_console.print(table)
    more = " gives the others: how much better they are with it than without, on average." if contribution else ""
    drawn = f"of the mean over {seeds} seeds" if seeds > 1 else "by bootstrap over the client's test nodes"
    say(f"Positive differences are improvements; the interval is {drawn}.{more}")


def show_results(results: list[dict[str, Any]], folder: Path) -> None:
    """Print runs that just ended side by side, and where their records are."""
    from graft.experiments.comparison.comparison import Comparison
    from graft.experiments.comparison.finished_runs import DEFAULTS, FinishedRun

    runs = [FinishedRun({**DEFAULTS, **result["experiment"]}, result) for result in results]
    show_comparison(Comparison(runs), folder)


def show_comparison(comparison: Comparison, folder: Path) -> None:
    """Print runs in groups, seeds as mean and deviation, with their warnings and where their records are."""
    out_console.print(headline(comparison))
    for run in comparison.runs:
        for warning in run.summary.get("warnings", []):
            say(f"{run.summary['method']}, seed {run.seed}: {warning}" if len(comparison.runs) > 1 else warning)
    say(f"Record and report.html: {folder}")


def headline(comparison: Comparison) -> Table:
    """Returns the table of a comparison for a terminal."""
    from rich.table import Table

    from graft.experiments.reports.summary_table import summarise

    summary = summarise(comparison)
    table = Table(title=safe(summary.title), title_justify="left", caption_justify="left")
    for index, name in enumerate(summary.head):
        words = index < summary.words
        table.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for row in summary.rows:
        table.add_row(*(f"[bold]{safe(cell.text)}[/bold]" if cell.best else safe(cell.text) for cell in row))
    table.caption = safe("\n".join(summary.notes))
    return table
