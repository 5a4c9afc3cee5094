"""`graft report`, and what every command says of runs that are finished."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from graft.cli.console import Text, out_console, safe, say, whole_numbers
from graft.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from graft.experiments.comparison.comparison import Comparison
    from graft.experiments.result import Result
    from graft.experiments.verdicts import Verdict

MOST_WARNINGS = 3  # that are printed of many runs


def report(
    directories: Annotated[list[Path], typer.Argument(help="Folders of runs, sweeps, studies and tunings.")],
    out: Annotated[
        Optional[Path],  # noqa: UP045  (Typer reads it at run time)
        typer.Option(help="The page; if not given, report.html in the folder, or here if there are several."),
    ] = None,
    rounds: Annotated[Text, typer.Option(help="Rounds whose links are drawn, as 1,10,100; of one run.")] = None,
) -> None:
    """Write one page of finished runs, and compare them: seeds are averaged where all else agrees."""
    drawn = whole_numbers("--rounds", rounds)
    if out is not None and out.suffix != ".html":
        raise InputError(f"--out is '{out}'; it should be the name of a page, as report.html.")
    from graft.experiments.comparison.comparison import Comparison
    from graft.experiments.comparison.finished_runs import find_runs
    from graft.experiments.reports.report import NAME, write_comparison_report, write_report, write_tuning_report
    from graft.experiments.reports.tuning_sections import FILE as TUNING

    alone = directories[0] if len(directories) == 1 else None
    if alone is not None and (alone / TUNING).is_file() and not any(alone.rglob("result.json")):
        say(f"Report: {write_tuning_report(alone, out)}")
        return
    comparison = Comparison(find_runs(directories))
    only = comparison.runs[0].path if len(comparison.runs) == 1 else None
    if only is not None and only.is_dir() and not (alone and (alone / TUNING).is_file()):
        file = write_report(only, drawn, out)
    elif drawn:
        raise InputError(f"--rounds is for the page of one run; there are {len(comparison.runs)}.")
    else:
        file = write_comparison_report(comparison, out or (alone / NAME if alone else Path(NAME)))
    show_comparison(comparison, file)


def finish_run(directory: Path, result: Result) -> None:
    """Write the report of a run; one that was stopped before its time says how to go on and ends the command."""
    if not result.finished:
        say(f"Stopped after round {result.rounds[-1]['round']}; go on with: graft resume {directory}")
        raise typer.Exit(1)
    from graft.experiments.reports.report import write_report

    write_report(directory)


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


def show_results(folders: Sequence[Path], root: Path) -> None:
    """Print runs that just ended side by side, and where their records are; several get a report of all of them."""
    from graft.experiments.comparison.comparison import Comparison
    from graft.experiments.comparison.finished_runs import read_run
    from graft.experiments.reports.report import write_comparison_report

    comparison = Comparison([read_run(folder) for folder in folders])
    if len(folders) > 1:
        write_comparison_report(comparison, root)
    show_comparison(comparison, root)


def show_comparison(comparison: Comparison, folder: Path) -> None:
    """Print runs in groups, seeds as mean and deviation, with their warnings and where their records are."""
    out_console.print(headline(comparison))
    warnings = [(run, warning) for run in comparison.runs for warning in run.summary.get("warnings", [])]
    for run, warning in warnings[:MOST_WARNINGS]:
        say(f"{run.summary['method']}, seed {run.seed}: {warning}" if len(comparison.runs) > 1 else warning)
    if len(warnings) > MOST_WARNINGS:
        say(f"{len(warnings) - MOST_WARNINGS} more warnings of this kind are in the result.json of other runs.")
    say(f"Report: {folder}" if folder.suffix == ".html" else f"Record and report.html: {folder}")


def headline(comparison: Comparison) -> Table:
    """Returns the table of a comparison for a terminal."""
    from rich.table import Table

    from graft.experiments.reports.summary_table import summarise

    summary = summarise(comparison)
    table = Table(title=safe(summary.title), title_justify="left", caption_justify="left")
    for index, name in enumerate(summary.head):
        longest = max(len(row[index].text) for row in summary.rows)
        words = index < summary.words
        table.add_column(name, justify="left" if words else "right", min_width=min(longest, 12), overflow="fold")
    for row in summary.rows:
        texts = [
            safe(cell.text).replace(" ± ", "\N{NO-BREAK SPACE}± ".replace(" ", "\N{NO-BREAK SPACE}")) for cell in row
        ]
        table.add_row(*(f"[bold]{text}[/bold]" if cell.best else text for text, cell in zip(texts, row, strict=True)))
    table.caption = safe("\n".join(summary.notes))
    return table
