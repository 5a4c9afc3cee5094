"""The table of a study: our mean and deviation beside the paper's number, as Markdown, CSV and HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from graft import __version__
from graft.experiments.comparison.statistics import ALPHA
from graft.experiments.identity import NOT_COMPARED
from graft.experiments.make_method import make_method
from graft.experiments.reports.pages import Block, Page, Picture, Section, Table, Text, render
from graft.experiments.reports.study_figures import Drawing, study_figure
from graft.experiments.reports.study_results import MEASURES, Entry, StudyResults
from graft.experiments.reports.summary_table import Cell
from graft.experiments.studies.paper_tables import Number
from graft.experiments.studies.study import COSTS, Measure
from graft.files import write_text

DIFFERENCE = "mean difference"

Part = tuple[str, str, Sequence[str], list[Sequence[Any]]]  # heading, sentence, head and rows of a table


class StudyTable(StudyResults):
    """The results of a study as the texts of its files."""

    def mean_difference(self, heading: str, later: bool = False) -> str:
        """Returns the mean over rows of how far ours is above the paper's number, or that of its later version."""
        entries = [self.entries[row, heading] for row in self.plan.rows]
        differences = [entry.later_difference if later else entry.difference for entry in entries]
        there = [difference for difference in differences if difference is not None]
        return f"{mean(there):+.2f}" if there else ""

    def text(self, row: str, heading: str) -> str:
        """`ours ± deviation (paper, difference)`, with both versions of a paper that has two."""
        entry = self.entries[row, heading]
        paper = self.printed_beside(entry)
        if entry.mean is None:
            ours = "failed" if entry.failed else "-"
            return f"{ours} ({paper})" if paper else ours
        ours = mean_std(entry)
        if paper:
            ours += f" ({paper})"
        if len(entry.values) < len(self.plan.seeds):
            ours += f" [{len(entry.values)} of {len(self.plan.seeds)} seeds]"
        return ours

    def printed_beside(self, entry: Entry) -> str:
        """Returns what the paper prints and how far ours is above it; of a version that prints the same, once."""
        study = self.plan.study
        if not study.later:
            return "" if entry.paper is None else with_difference(entry.paper, entry.difference)
        of_versions: dict[str, list[str]] = {}
        for version, number in zip(study.versions, (entry.paper, entry.later), strict=True):
            if number is not None:
                of_versions.setdefault(with_difference(number, entry.above(number)), []).append(version)
        return "; ".join(f"{' and '.join(versions)}: {words}" for words, versions in of_versions.items())

    @cached_property
    def figure(self) -> Drawing:
        """Returns the figure, drawn once for all files."""
        return study_figure(self)

    # The same sections in every format.

    def sections(self) -> list[Part]:
        """Returns all that stands below the table."""
        study = self.plan.study
        shared = self.shared_fields()
        rows: list[Sequence[Any]] = [
            (row, study.rows[row].method, listed({**study.rows[row].settings, **study.rows[row].changes}))
            for row in self.plan.rows
        ]
        methods = dict.fromkeys(study.rows[row].method for row in self.plan.rows)
        sections: list[Part] = [
            ("Runs", self.about_runs(shared.get("rounds", "")), (), []),
            ("Settings of all runs", listed(shared), (), []),
            (
                "Rows",
                "What each row sets; all else is as above or the method's default.",
                ("row", "method", "sets"),
                rows,
            ),
            (
                "Defaults of the methods",
                "Those of the Graft that wrote this page; runs/ holds every experiment in full.",
                ("method", "settings"),
                [(name, listed(asdict(make_method(name, {}))) or "none") for name in methods],
            ),
        ]
        sections += [self.other_table(measure) for measure in study.beside]
        sections += self.partitions()
        failures = self.failures()
        head = ("run", "reason") if failures else ()
        return [*sections, ("Failures", "" if failures else "None.", head, list(failures.items()))]

    def shared_fields(self) -> dict[str, Any]:
        """Returns the fields of the experiment that all runs share."""
        study = self.plan.study
        varied = {"method", "settings", "dataset", "clients", "seed", *NOT_COMPARED}
        varied |= {field for variant in study.rows.values() for field in variant.changes}
        varied |= {field for changes in study.on_dataset.values() for field in changes}
        shared = {field: value for field, value in self.plan.cells[0].experiment.items() if field not in varied}
        return shared | {field: value for field, value in study.experiment.items() if field in varied}

    def about_runs(self, rounds: Any) -> str:
        """Returns how much of the study there is, and where it was computed."""
        summaries = self.finished()
        devices = ", ".join(sorted({summary["device"] for summary in summaries})) or "nothing yet"
        versions = ", ".join(sorted({summary["graft"] for summary in summaries} | {__version__}))
        minutes = sum(summary["seconds"]["total"] for summary in summaries) / 60
        return (
            f"{len(summaries)} of {len(self.plan.cells)} runs are in this table. Seeds "
            f"{', '.join(map(str, self.plan.seeds))}; rounds {rounds}; Graft {versions}; computed on {devices}; "
            f"{minutes:.1f} minutes of computing in all."
        )

    def partitions(self) -> list[Part]:
        """Returns the hashes of the partitions, and where the rows were not all run on the same ones."""
        plan, hashes = self.plan, self.hashes()
        rows: list[Sequence[Any]] = [
            (*column, *(" and ".join(short(hashes.get((*column, seed), set()))) or "-" for seed in plan.seeds))
            for column in plan.columns
        ]
        meaning = (
            "The first 16 digits of the SHA-256 of each partition, as `graft partition` prints them, or of the "
            "data of rows that perturb them."
        )
        head = ("dataset", "clients", *(f"seed {seed}" for seed in plan.seeds))
        sections: list[Part] = [("Partitions", meaning, head, rows)]
        if inconsistent := self.inconsistent():
            words = "; ".join(f"{dataset}-{clients} seed {seed}" for dataset, clients, seed in inconsistent)
            warning = f"The methods did not all see the same partition: {words}. Delete these runs and start again."
            sections.append(("Partitions that differ", warning, (), []))
        return sections

    def other_table(self, measure: Measure) -> Part:
        """Another measure of the same runs."""
        rows: list[Sequence[Any]] = []
        for row in self.plan.rows:
            entries = [self.other_entry(row, *column, measure) for column in self.plan.columns]
            if any(entry.values for entry in entries):
                rows.append((row, *(mean_std(entry) for entry in entries)))
        title, meaning = MEASURES[measure]
        return title, f"{meaning}; mean ± standard deviation over seeds.", ("", *self.columns), rows

    def caption(self) -> str:
        words = f"{MEASURES[self.plan.study.measure][1]}; mean ± standard deviation over seeds."
        words += "" if self.plan.study.measure in COSTS else f" {self.meaning_of_bold()}"
        if self.plan.study.paper:
            whose = "number of each version of the paper" if self.plan.study.later else "paper's number"
            last = "last rows are the means" if self.plan.study.later else "last row is the mean"
            words += f" In brackets the {whose} and how far ours is above it; the {last} of these."
        if any(not entry.paper.sure for entry in self.entries.values() if entry.paper is not None):
            words += " A number with a question mark is lost in its place and was filled in from another table."
        if any(self.plan.study.rows[row].reference for row in self.plan.rows):
            words += " Centralised training is no competitor: it sees all data."
        return f"{words} {self.plan.study.note}".strip()

    def meaning_of_bold(self) -> str:
        if max(len(entry.values) for entry in self.entries.values()) < 2:
            return "Bold: our best in a column, by one seed, which proves nothing."
        return (
            "Bold: our best in a column, and every row that a paired test over seeds cannot tell from it (two-sided, "
            f"Holm-corrected over the rows of the column, p ≥ {ALPHA})."
        )

    # The files.

    def markdown(self) -> str:
        best = {heading: self.best(heading) for heading in self.headings}
        rows: list[Sequence[Any]] = []
        for row in self.plan.rows:
            cells = [
                f"**{self.text(row, heading)}**" if row in best[heading] else self.text(row, heading)
                for heading in self.headings
            ]
            rows.append((row, *cells))
        rows += self.last_rows()
        parts = [f"# {self.plan.name}", f"{self.plan.study.meaning}.", markdown_table(("", *self.headings), rows)]
        parts.append(self.caption())
        if self.figure.svg:
            parts.append(f"![{self.plan.study.meaning}](figure.svg)")
        elif self.figure.missing:
            parts.append(self.figure.missing)
        for heading, words, head, body in self.sections():
            parts.append(f"## {heading}")
            parts += [words] if words else []
            parts += [markdown_table(head, body)] if head else []
        return "\n\n".join(parts) + "\n"

    def last_rows(self) -> list[Sequence[Any]]:
        """Returns how far ours is above the paper, in the mean over rows; a line for each of its versions."""
        study = self.plan.study
        lines = dict(zip((f"{DIFFERENCE} to {version}" for version in study.versions), (False, True), strict=True))
        lines = lines if study.later else {DIFFERENCE: False}
        rows = [
            (name, *(self.mean_difference(heading, later) for heading in self.headings))
            for name, later in lines.items()
        ]
        return [row for row in rows if any(row[1:])]

    def csv(self) -> str:
        """Returns a line a method and column, for other programs."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV_HEAD)
        for row in self.plan.rows:
            for name, (dataset, clients) in zip(self.columns, self.plan.columns, strict=True):
                entry = self.entries[row, name]
                numbers = [
                    entry.mean,
                    entry.deviation,
                    mean(entry.by_nodes.values()) if entry.by_nodes else None,
                    stdev(entry.by_nodes.values()) if len(entry.by_nodes) > 1 else None,
                    *((None, None) if entry.paper is None else (entry.paper.mean, entry.paper.deviation)),
                    entry.difference,
                    *((None, None) if entry.later is None else (entry.later.mean, entry.later.deviation)),
                    entry.later_difference,
                    mean(entry.seconds) if entry.seconds else None,
                ]
                shown = ["" if number is None else f"{number:.4f}".rstrip("0").rstrip(".") for number in numbers]
                shown.append("" if entry.paper is None else "yes" if entry.paper.sure else "no")
                writer.writerow([row, self.plan.study.rows[row].method, dataset, clients, len(entry.values), *shown])
        return file.getvalue()

    def html(self) -> str:
        """Returns the page of the study."""
        best = {heading: self.best(heading) for heading in self.headings}
        rows: list[list[Cell]] = [
            [Cell(row), *(Cell(self.text(row, h), self.entries[row, h].mean, row in best[h]) for h in self.headings)]
            for row in self.plan.rows
        ]
        rows += [[Cell(str(cell)) for cell in last] for last in self.last_rows()]
        blocks: list[Block] = [Table(("", *self.headings), rows, note=self.caption())]
        if self.figure.svg:
            blocks.append(Picture([self.figure.svg]))
        elif self.figure.missing:
            blocks.append(Text(self.figure.missing, "note"))
        sections = [Section("Results", blocks)]
        for heading, words, head, body in self.sections():
            table = Table(head, [[Cell(str(cell)) for cell in row] for row in body], len(head))
            sections.append(Section(heading, [*([Text(words)] if words else []), *([table] if head else [])]))
        return render(Page(self.plan.name, sections=sections, subtitle=f"{self.plan.study.meaning}."))

    def write(self) -> list[Path]:
        """Puts table.md, table.csv, table.html and perhaps figure.svg into the folder of the reproduction."""
        texts = {"table.md": self.markdown(), "table.csv": self.csv(), "table.html": self.html()}
        if self.figure.svg:
            texts["figure.svg"] = self.figure.svg + "\n"
        for name, text in texts.items():
            write_text(self.plan.out / name, text)
        return [self.plan.out / name for name in texts]


CSV_HEAD = (
    "row",
    "method",
    "dataset",
    "clients",
    "seeds",
    "test",
    "test_deviation",
    "test_node_weighted",
    "test_node_weighted_deviation",
    "paper",
    "paper_deviation",
    "difference",
    "paper_later_version",
    "paper_later_deviation",
    "difference_later",
    "seconds",
    "paper_sure",
)


def mean_std(entry: Entry) -> str:
    """Mean and standard deviation over seeds as text."""
    if entry.mean is None:
        return "-"
    return f"{entry.mean:.2f}" + (f" ± {entry.deviation:.2f}" if entry.deviation is not None else "")


def with_difference(printed: Number, difference: float | None) -> str:
    """Returns a printed number, with a question mark where it is not sure, and how far ours is above it."""
    words = f"{printed.mean:.2f}" + ("" if printed.sure else "?")
    return words if difference is None else f"{words}, {difference:+.2f}"


def markdown_table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    ruled = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in ruled)


def listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def short(hashes: set[str]) -> list[str]:
    return sorted(digest[:16] for digest in hashes)
