"""`graft report`, and what every command says of runs that are finished."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graft.cli.console import Text, out_console, safe, say, whole_numbers
from graft.errors import InputError

if TYPE_CHECKING:
    from graft.experiments.result import Result


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


def show_results(results: list[dict[str, Any]], folder: Path) -> None:
    """Print runs side by side, and where their records are."""
    from graft.experiments.reports.report import comparison

    out_console.print(comparison(safe(results)))
    for result in results:
        for warning in result.get("warnings", []):
            say(f"{result['method']}: {warning}" if len(results) > 1 else warning)
    say(f"Record and report.html: {folder}")
