"""All that a paper needs of a comparison, in one folder: tables for LaTeX, figures, and the numbers as CSV."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from graft.errors import InputError, RunError
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.reports.captions import figure_captions
from graft.experiments.reports.latex import costs_to_latex, differences_to_latex, document, escape, to_latex
from graft.experiments.reports.paper_numbers import numbers_csv, table_csv
from graft.experiments.reports.paper_style import rc_context
from graft.files import explained, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("latex", "pdf", "png", "csv")


class Paper(NamedTuple):
    """What was written, and a sentence for everything that could not be drawn."""

    paths: list[Path]
    left_out: list[str]


def write_paper(
    comparison: Comparison, out: Path, baseline: str | None = None, formats: Collection[str] = FORMATS
) -> Paper:
    """Writes tables and figures into a folder, those of the formats that are asked for."""
    with explained(f"{out} cannot be used", InputError):
        out.mkdir(parents=True, exist_ok=True)
    endings = [ending for ending in ("pdf", "png") if ending in formats]
    figures, left_out = draw_figures(comparison, baseline) if endings else ({}, [])
    paths = [save(figure, out / f"{name}.{ending}") for name, figure in figures.items() for ending in endings]
    texts: dict[str, str] = {}
    if "latex" in formats:
        texts |= latex_tables(comparison, baseline)
        captions = {
            name: escape(text) for name, text in figure_captions(comparison, baseline).items() if name in figures
        }
        texts["preview.tex"] = document(list(texts), captions)
    if "csv" in formats:
        texts |= {"table.csv": table_csv(comparison, baseline), "numbers.csv": numbers_csv(comparison)}
    for name, text in texts.items():
        write_text(out / name, text)
    return Paper([*(out / name for name in texts), *paths], left_out)


def latex_tables(comparison: Comparison, baseline: str | None) -> dict[str, str]:
    """Returns the tables by the names of their files."""
    tables = {"scores.tex": to_latex(comparison, baseline)}
    if baseline is not None:
        tables["differences.tex"] = differences_to_latex(comparison, baseline)
    return tables | {"cost.tex": costs_to_latex(comparison)}


def draw_figures(comparison: Comparison, baseline: str | None) -> tuple[dict[str, Figure], list[str]]:
    """Returns the figures by name, and why some could not be drawn."""
    from graft.experiments.reports.paper_figures import plot_cost, plot_curves, plot_gains, plot_ranks, plot_scores

    rc_context()  # without Matplotlib there is none at all
    ways: dict[str, Callable[[], Figure]] = {
        "scores": lambda: plot_scores(comparison),
        "curves": lambda: plot_curves(comparison),
        "communication": lambda: plot_cost(comparison),
    }
    if len(comparison.columns) > 1:
        ways["ranks"] = lambda: plot_ranks(comparison)
    if baseline is not None:
        ways["gains"] = lambda: plot_gains(comparison, baseline)
    figures, left_out = {}, []
    for name, draw in ways.items():
        try:
            figures[name] = draw()
        except InputError as error:
            left_out.append(f"There is no figure '{name}': {error}")
    return figures, left_out


def save(figure: Figure, path: Path) -> Path:
    """Writes a figure; a folder that cannot be written to is said in a sentence."""
    from graft.experiments.reports.paper_figures import save_figure

    with explained(f"{path} cannot be written", RunError):
        return save_figure(figure, path)
