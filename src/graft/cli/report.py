"""`graft report`, and what every command says of runs that are finished."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graft.cli.console import Text, out_console, safe, say, whole_numbers
from graft.errors import InputError

if TYPE_CHECKING:
    from graft.experiments.result import Result
    from graft.experiments.verdicts import Verdict


def report(
    directories: Annotated[list[Path], typer.Argument(help="Run directories.")],
    rounds: Annotated[Text, typer.Option(help="Rounds whose links are drawn, as 1,10,100.")] = None,
) -> None:
    """Compare finished runs, and write report.html into each."""
    drawn = whole_numbers("--rounds", rounds)
    runs = [run for given in directories for run in sorted({file.parent for file in given.rglob("result.json")})]
    if not runs:
        raise InputError(f"There is no finished run in {', '.join(map(str, directories))}.")
    from graft.experiments.run_directory import RunDirectory

    show_results([write_page(run, RunDirectory(run).read_result(), drawn) for run in runs], directories[0])


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


def show_verdicts(verdicts: Sequence[Verdict], method: str, contribution: bool) -> None:
    """Print for each client whether joining helps it."""
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
    say(f"Positive differences are improvements; the interval is by bootstrap over the client's test nodes.{more}")


def show_results(results: list[dict[str, Any]], folder: Path) -> None:
    """Print runs side by side, and where their records are."""
    from graft.experiments.reports.report import comparison

    out_console.print(comparison(safe(results)))
    for result in results:
        for warning in result.get("warnings", []):
            say(f"{result['method']}: {warning}" if len(results) > 1 else warning)
    say(f"Record and report.html: {folder}")
