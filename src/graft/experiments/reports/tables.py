"""The table of a study: our mean and deviation beside the paper's number, as Markdown, CSV and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from graft import __version__
from graft.experiments.experiment import make_method
from graft.experiments.reports.figures import bars, curves, lines
from graft.experiments.reports.report import STYLE, html_table
from graft.experiments.reproduce import DATA_FIELDS, NOT_COMPARED, Plan
from graft.experiments.studies.study import Measure, Number
from graft.files import write_text

AVERAGE = "average"
DIFFERENCE = "mean difference"
WIDE = "body { max-width: none } td, th { white-space: nowrap } .note, p { max-width: 60rem } td b { color: #0b4f8a }"


@dataclass(frozen=True)
class Spot:
    """One field of the table: the seeds of a method on a column, in percent (or milliseconds)."""

    values: dict[int, float]  # seed -> what the study measures
    by_nodes: dict[int, float]  # the same, clients weighted by their nodes
    seconds: list[float]
    failed: int = 0
    paper: Number | None = None
    later: Number | None = None

    @property
    def mean(self) -> float | None:
        return mean(self.values.values()) if self.values else None

    @property
    def deviation(self) -> float | None:
        return stdev(self.values.values()) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.paper is None else self.mean - self.paper.mean


class StudyTable:
    """All that is on disk for a plan, ready to be written down."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stored = {(cell.row, *cell.column, cell.seed): cell.read() for cell in plan.cells}
        self.columns = [f"{dataset}-{clients}" for dataset, clients in plan.columns]
        self.spots = {
            (row, name): self.spot(row, *column)
            for row in plan.rows
            for name, column in zip(self.columns, plan.columns, strict=True)
        }
        if len(self.columns) > 1:
            self.spots |= {(row, AVERAGE): self.average(row) for row in plan.rows}

    @property
    def headings(self) -> list[str]:
        return [*self.columns, AVERAGE] if len(self.columns) > 1 else self.columns

    def spot(self, row: str, dataset: str, clients: int, measure: Measure | None = None) -> Spot:
        found = {seed: self.stored[row, dataset, clients, seed] or {} for seed in self.plan.seeds}
        results = {seed: one["summary"] for seed, one in found.items() if "summary" in one}

        def measured(kind: Measure) -> dict[int, float]:
            known = {seed: read_measure(result, kind) for seed, result in results.items()}
            return {seed: value for seed, value in known.items() if value is not None}

        study = self.plan.study
        if measure is not None:
            return Spot(measured(measure), {}, [])
        return Spot(
            measured(study.measure),
            measured("test_node_weighted"),
            [result["seconds"]["total"] for result in results.values()],
            sum("error" in one for one in found.values()),
            study.printed(row, dataset, clients),
            study.printed(row, dataset, clients, later=True),
        )

    def average(self, row: str) -> Spot:
        """The mean over all columns, seed by seed; a row with a gap has none, for it could not be compared."""
        spots = [self.spots[row, name] for name in self.columns]

        def over_columns(each: Sequence[dict[int, float]]) -> dict[int, float]:
            whole = [seed for seed in self.plan.seeds if all(seed in values for values in each)]
            return {seed: mean(values[seed] for values in each) for seed in whole}

        printed = [spot.paper.mean for spot in spots if spot.paper is not None]
        return Spot(
            over_columns([spot.values for spot in spots]),
            over_columns([spot.by_nodes for spot in spots]),
            [second for spot in spots for second in spot.seconds],
            paper=Number(round(mean(printed), 2)) if len(printed) == len(spots) else None,
        )

    def best(self, heading: str) -> set[str]:
        """The rows with our best mean in a column; references do not compete, and nobody does for speed."""
        if self.plan.study.measure == "milliseconds":
            return set()
        rows = [row for row in self.plan.rows if not self.plan.study.rows[row].reference]
        means = {row: spot.mean for row in rows if (spot := self.spots[row, heading]).mean is not None}
        top = max((round(value, 2) for value in means.values() if value is not None), default=None)
        return {row for row, value in means.items() if value is not None and round(value, 2) == top}

    def mean_difference(self, heading: str) -> str:
        known = [one for row in self.plan.rows if (one := self.spots[row, heading].difference) is not None]
        return f"{mean(known):+.2f}" if known else ""

    def text(self, row: str, heading: str) -> str:
        """`ours ± deviation (paper, difference)`"""
        spot = self.spots[row, heading]
        paper = "" if spot.paper is None else f"{spot.paper.mean:.2f}"
        if spot.mean is None:
            ours = "failed" if spot.failed else "-"
            return f"{ours} ({paper})" if paper else ours
        ours = in_words(spot)
        if paper:
            ours += f" ({paper}, {spot.difference:+.2f})"
        if len(spot.values) < len(self.plan.seeds):
            ours += f" [{len(spot.values)} of {len(self.plan.seeds)} seeds]"
        return ours

    def failures(self) -> dict[str, str]:
        stored = {cell.name: self.stored[cell.row, *cell.column, cell.seed] or {} for cell in self.plan.cells}
        return {name: one["error"] for name, one in stored.items() if "error" in one}

    def hashes(self, row: str | None = None) -> dict[tuple[str, int, int], set[str]]:
        """Which partitions all rows, or those on the same data as one of them, saw of a (dataset, clients, seed)."""
        found: dict[tuple[str, int, int], set[str]] = {}
        for (other, dataset, clients, seed), one in self.stored.items():
            if one is not None and "summary" in one and (row is None or self.data_of(row) == self.data_of(other)):
                found.setdefault((dataset, clients, seed), set()).add(one["partition"])
        return found

    def data_of(self, row: str) -> dict[str, Any]:
        """What a row changes about the data."""
        return {name: value for name, value in self.plan.study.rows[row].changes.items() if name in DATA_FIELDS}

    def mixed(self) -> list[tuple[str, int, int]]:
        """Where rows on the same data saw different partitions."""
        seen = [self.hashes(row).items() for row in self.plan.rows]
        return list(dict.fromkeys(key for found in seen for key, hashes in found if len(hashes) > 1))

    def done(self) -> int:
        return sum(one is not None and "summary" in one for one in self.stored.values())

    # The same sections in every format: a heading, a sentence, and a table of its own.

    def sections(self) -> list[tuple[str, str, Sequence[str], list[Sequence[Any]]]]:
        plan, study = self.plan, self.plan.study
        varied = {"method", "settings", "dataset", "clients", "seed", *NOT_COMPARED}
        varied |= {key for variant in study.rows.values() for key in variant.changes}
        varied |= {key for changes in study.on_dataset.values() for key in changes}
        shared = {key: value for key, value in plan.cells[0].experiment.items() if key not in varied}
        shared |= {key: value for key, value in study.experiment.items() if key in varied}
        results = [one["summary"] for one in self.stored.values() if one is not None and "summary" in one]
        devices = sorted({result["device"] for result in results})
        versions = sorted({result["graft"] for result in results} | {__version__})
        seeds, where = ", ".join(map(str, plan.seeds)), ", ".join(devices) or "nothing yet"
        about = (
            f"{self.done()} of {len(plan.cells)} runs are in this table. Seeds {seeds}; rounds "
            f"{shared.get('rounds', '')}; Graft {', '.join(versions)}; computed on {where}; "
            f"{sum(result['seconds']['total'] for result in results) / 60:.1f} minutes of computing in all."
        )
        methods = dict.fromkeys(study.rows[row].method for row in plan.rows)
        rows = [(row, study.rows[row].method, listed(self.declared(row))) for row in plan.rows]
        listing: list[tuple[str, str, Sequence[str], list[Sequence[Any]]]] = [
            ("Runs", about, (), []),
            ("Settings of all runs", listed(shared), (), []),
            (
                "Rows",
                "What each row sets; all else is as above or the method's default.",
                ("row", "method", "sets"),
                list(rows),
            ),
            (
                "Defaults of the methods",
                "Those of the Graft that wrote this page; runs/ holds every experiment in full.",
                ("method", "settings"),
                [(name, listed(asdict(make_method(name, {}))) or "none") for name in methods],
            ),
        ]
        listing += [self.other_table(measure) for measure in study.beside]
        hashes = self.hashes()
        listing.append(
            (
                "Partitions",
                "The first 16 digits of the SHA-256 of each partition, as `graft partition` prints them, or of the "
                "data of rows that perturb them.",
                ("dataset", "clients", *(f"seed {seed}" for seed in plan.seeds)),
                [
                    (*column, *(" and ".join(short(hashes.get((*column, seed), set()))) or "-" for seed in plan.seeds))
                    for column in plan.columns
                ],
            )
        )
        if mixed := self.mixed():
            words = "; ".join(f"{dataset}-{clients} seed {seed}" for dataset, clients, seed in mixed)
            warning = f"The methods did not all see the same partition: {words}. Delete these runs and start again."
            listing.append(("Partitions that differ", warning, (), []))
        failures = self.failures()
        listing.append(
            ("Failures", "" if failures else "None.", ("run", "reason") if failures else (), list(failures.items()))
        )
        return listing

    def other_table(self, measure: Measure) -> tuple[str, str, Sequence[str], list[Sequence[Any]]]:
        """Something else that was measured in the same runs."""
        rows: list[Sequence[Any]] = []
        for row in self.plan.rows:
            spots = [self.spot(row, *column, measure) for column in self.plan.columns]
            if any(spot.values for spot in spots):
                rows.append((row, *(in_words(spot) for spot in spots)))
        title, meaning = MEASURES[measure]
        return title, f"{meaning}; mean ± standard deviation over seeds.", ("", *self.columns), rows

    def declared(self, row: str) -> dict[str, Any]:
        variant = self.plan.study.rows[row]
        return {**variant.settings, **variant.changes}

    def caption(self) -> str:
        words = f"{MEASURES[self.plan.study.measure][1]}; mean ± standard deviation over seeds."
        words += " Bold: our best in a column." if self.plan.study.measure != "milliseconds" else ""
        if self.plan.study.paper:
            words += " In brackets the paper's number and how far ours is above it; the last row is the mean of these."
        if any(self.plan.study.rows[row].reference for row in self.plan.rows):
            words += " Centralised training is no competitor: it sees all data."
        return f"{words} {self.plan.study.note}".strip()

    def figure(self) -> str:
        """The study as a picture, or nothing where it has none or no results."""
        study, panels = self.plan.study, []
        if study.figure == "rounds":
            return self.curves()
        for name in self.columns:
            known = {
                row: (spot.mean, spot.deviation or 0.0)
                for row in self.plan.rows
                if (spot := self.spots[row, name]).mean is not None
            }
            panels.append((name, {row: (value, spread) for row, (value, spread) in known.items() if value is not None}))
        panels = [panel for panel in panels if panel[1]]
        if not panels or not study.figure:
            return ""
        if study.figure == "bars":
            return bars(panels)
        points = {row: variant.point for row, variant in study.rows.items() if variant.point is not None}
        series = []
        for name, values in panels:
            drawn: dict[str, list[tuple[float, float, float]]] = {}
            for row, (value, spread) in values.items():
                curve, place = points[row]
                drawn.setdefault(curve, []).append((place, value, spread))
            series.append((name, {curve: sorted(found) for curve, found in drawn.items()}))
        return lines(series, study.axis)

    def curves(self) -> str:
        """Test accuracy round by round, the mean over the seeds that are there."""
        panels = []
        for name, column in zip(self.columns, self.plan.columns, strict=True):
            drawn: dict[str, list[tuple[float, float]]] = {}
            for row in self.plan.rows:
                found = [(self.stored[row, *column, seed] or {}).get("curve") for seed in self.plan.seeds]
                known = [curve for curve in found if curve is not None and curve["round"]]
                if known:
                    heights = zip(*(curve["test"] for curve in known), strict=False)
                    drawn[row] = [
                        (at, 100 * mean(tests)) for at, tests in zip(known[0]["round"], heights, strict=False)
                    ]
            if drawn:
                panels.append((name, drawn))
        return curves(panels, "round") if panels else ""

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
        rows += self.last_row()
        parts = [f"# {self.plan.name}", f"{self.plan.study.meaning}.", markdown_table(("", *self.headings), rows)]
        parts.append(self.caption())
        if self.figure():
            parts.append(f"![{self.plan.study.meaning}](figure.svg)")
        for heading, words, head, body in self.sections():
            parts.append(f"## {heading}")
            parts += [words] if words else []
            parts += [markdown_table(head, body)] if head else []
        return "\n\n".join(parts) + "\n"

    def last_row(self) -> list[Sequence[Any]]:
        differences = [self.mean_difference(heading) for heading in self.headings]
        return [(DIFFERENCE, *differences)] if any(differences) else []

    def csv(self) -> str:
        """A line a method and column, for other programs."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV_HEAD)
        for row in self.plan.rows:
            for name, (dataset, clients) in zip(self.columns, self.plan.columns, strict=True):
                spot = self.spots[row, name]
                numbers = [
                    spot.mean,
                    spot.deviation,
                    mean(spot.by_nodes.values()) if spot.by_nodes else None,
                    stdev(spot.by_nodes.values()) if len(spot.by_nodes) > 1 else None,
                    *((None, None) if spot.paper is None else (spot.paper.mean, spot.paper.deviation)),
                    spot.difference,
                    None if spot.later is None else spot.later.mean,
                    mean(spot.seconds) if spot.seconds else None,
                ]
                shown = ["" if one is None else f"{one:.4f}".rstrip("0").rstrip(".") for one in numbers]
                writer.writerow([row, self.plan.study.rows[row].method, dataset, clients, len(spot.values), *shown])
        return file.getvalue()

    def html(self) -> str:
        best = {heading: self.best(heading) for heading in self.headings}
        body = ""
        for row in self.plan.rows:
            shown = [(escape(self.text(row, heading)), row in best[heading]) for heading in self.headings]
            cells = "".join(f"<td>{f'<b>{text}</b>' if bold else text}</td>" for text, bold in shown)
            body += f"<tr><td>{escape(row)}</td>{cells}</tr>"
        for last in self.last_row():
            body += "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in last) + "</tr>"
        head = "".join(f"<th>{escape(heading)}</th>" for heading in ("", *self.headings))
        below = "".join(
            f"<h2>{escape(heading)}</h2>{f'<p>{escape(words)}</p>' if words else ''}"
            f"{html_table(columns, rows) if columns else ''}\n"
            for heading, words, columns, rows in self.sections()
        )
        title = escape(f"{self.plan.name}: {self.plan.study.meaning}")
        return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}{WIDE}</style>
<h1>{title}</h1>
<div style="overflow-x: auto"><table><tr>{head}</tr>{body}</table></div>
<p class="note">{escape(self.caption())}</p>
{self.figure()}
{below}</html>
"""

    def write(self) -> list[Path]:
        """Put table.md, table.csv, table.html and perhaps figure.svg into the folder of the reproduction."""
        texts = {"table.md": self.markdown(), "table.csv": self.csv(), "table.html": self.html()}
        if self.figure():
            texts["figure.svg"] = self.figure() + "\n"
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
    "seconds",
)


PERSONAL = "each client's own model on its own test nodes"
AT_BEST = "at the round with the best validation accuracy"
MEASURES: dict[Measure, tuple[str, str]] = {
    "test": ("Own models", f"Test accuracy in percent: {PERSONAL}, plain mean over clients, {AT_BEST}"),
    "test_node_weighted": (
        "Own models, clients weighted by their nodes",
        f"Test accuracy in percent: {PERSONAL}, clients weighted by their nodes, {AT_BEST}",
    ),
    "test_global": (
        "The global model",
        "Test accuracy in percent of the global model, at its own best validation round",
    ),
    "test_served": (
        "What the server hands out",
        "Test accuracy in percent of the global model, or of the models that the server makes for each client, plain "
        f"mean over clients, {AT_BEST}",
    ),
    "test_trained": (
        "After local training, before mixing",
        "Test accuracy in percent of each peer's model before it mixes, at its own best validation round",
    ),
    "milliseconds": ("Time", "Milliseconds a round, evaluation included, on the machine that ran it"),
}


def read_measure(summary: dict[str, Any], measure: Measure) -> float | None:
    if measure == "milliseconds":
        return 1000 * float(summary["seconds"]["per_round"])
    scores = summary["accuracy"]
    value = scores.get(measure)
    if measure == "test_served":
        value = scores["test"] if scores["test_global"] is None else scores["test_global"]
    return None if value is None else 100 * float(value)


def in_words(spot: Spot) -> str:
    if spot.mean is None:
        return "-"
    return f"{spot.mean:.2f}" + (f" ± {spot.deviation:.2f}" if spot.deviation is not None else "")


def markdown_table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    ruled = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in ruled)


def listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def short(hashes: set[str]) -> list[str]:
    return sorted(one[:16] for one in hashes)
