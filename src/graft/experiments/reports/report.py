"""The report: one HTML file of a run, of a comparison or of a tuning, that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.finished_runs import read_run
from graft.experiments.reports.comparison_page import comparison_page
from graft.experiments.reports.pages import render
from graft.experiments.reports.run_page import run_page
from graft.experiments.reports.tuning_sections import read_tuning, tuning_page
from graft.experiments.verdicts import read_verdicts
from graft.files import write_text

NAME = "report.html"


def write_report(directory: Path, drawn: Sequence[int] | None = None, out: Path | None = None) -> Path:
    """Writes the report of a finished run, report.html in its folder; `drawn` are the rounds whose links it shows."""
    if not (directory / "result.json").exists():
        raise InputError(f"{directory} holds no result.json: it is not a finished run.")
    page = run_page(read_run(directory), read_verdicts(directory), drawn)
    file = out or directory / NAME
    write_text(file, render(page))
    return file


def write_comparison_report(comparison: Comparison, out: Path, title: str = "") -> Path:
    """Writes the report of a sweep, a study, a tuning or several folders: `out` is the folder that gets report.html,
    or a name that ends in .html."""
    file = out if out.suffix == ".html" else out / NAME
    write_text(file, render(comparison_page(comparison, title, read_tuning(file.parent))))
    return file


def write_tuning_report(folder: Path, out: Path | None = None) -> Path:
    """Writes the report of a tuning that has no finished run at its end yet."""
    tuning = read_tuning(folder)
    if tuning is None:
        raise InputError(f"{folder} holds no tuning.json.")
    file = out or folder / NAME
    write_text(file, render(tuning_page(tuning)))
    return file
