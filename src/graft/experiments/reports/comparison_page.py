"""The page of a comparison: a sweep, a study, or several folders of runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from graft.experiments.comparison.comparison import Comparison, data_label, mean_std, method_label
from graft.experiments.comparison.conclusion import conclude, leader, listed, ranking_of
from graft.experiments.comparison.differences import alone_row, compare_with, differing_partitions
from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.comparison.statistics import ALPHA
from graft.experiments.reports.charts import Mark, curves, points
from graft.experiments.reports.comparison_clients import client_blocks
from graft.experiments.reports.data_sections import (
    agreement_table,
    partition_blocks,
    partitions_of,
    read_card,
    read_classes,
)
from graft.experiments.reports.links import link_networks
from graft.experiments.reports.method_sections import MOST_FIGURES, mean_detail_figure, recorded
from graft.experiments.reports.pages import Block, Figure, Figures, Heading, Page, Section, Table, Text
from graft.experiments.reports.record_sections import comparison_record
from graft.experiments.reports.series import axis_title, loss_curve, mean_points, megabytes_sent, scale_of, score_curve
from graft.experiments.reports.summary_table import Cell, readable_bytes, summarise, total_bytes
from graft.experiments.reports.tuning_sections import TuningRecord, said_of_tuning, subtitle_of, tuning_sections
from graft.federation.metric_names import METRICS, format_difference

MOST_CURVES = 24  # in a figure: eight colours, three kinds of dashes
MOST_WARNINGS = 8


def comparison_page(comparison: Comparison, title: str = "", tuning: TuningRecord | None = None) -> Page:
    """Returns the page of a comparison; `tuning` is what tuning.json holds, where the runs are those at its end."""
    summary = summarise(comparison)
    headline = Table(summary.head, summary.rows, summary.words, note=" ".join(summary.notes))
    sections = [
        Section("Test scores", [headline, *difference_blocks(comparison)], "Scores"),
        Section("Over the rounds", curve_blocks(comparison), "Curves"),
        Section("Client by client", client_blocks(comparison), "Clients"),
        Section("What methods show of themselves", method_blocks(comparison), "Methods"),
        Section("The data of the clients", data_blocks(comparison), "Data"),
        Section("What was sent", traffic_blocks(comparison), "Traffic"),
        Section("Time and memory", cost_blocks(comparison), "Time"),
        Section("Settings, and how to repeat it", comparison_record(comparison), "Settings"),
    ]
    seeds = sorted({run.seed for run in comparison.runs})
    counted = [
        f"{len(comparison.runs)} runs: {len(comparison.rows)} row{'s' if len(comparison.rows) > 1 else ''}",
        f"{len(comparison.columns)} data" if len(comparison.columns) > 1 else comparison.columns[0],
        said_of_seeds(seeds),
    ]
    verdict = conclude(comparison)
    if tuning is not None:
        sections = [*tuning_sections(tuning), *sections]
        verdict = [*said_of_tuning(tuning), *verdict]
    return Page(
        title=title or (f"Tuning of {title_of(comparison)}" if tuning else title_of(comparison)),
        subtitle=subtitle_of(tuning) if tuning else ", ".join(counted),
        verdict=verdict,
        warnings=warnings_of(comparison),
        sections=sections,
    )


def said_of_seeds(seeds: Sequence[int]) -> str:
    """Returns the seeds in a few words."""
    if len(seeds) > 2 and all(after == seed + 1 for seed, after in pairwise(seeds)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds], 12)}"


def title_of(comparison: Comparison) -> str:
    """Returns the methods and the data, as far as a title has room."""
    methods = list(dict.fromkeys(method_label(run.experiment) for run in comparison.runs))
    return f"{listed(methods)} on {listed(list(dict.fromkeys(data_label(run.experiment) for run in comparison.runs)))}"


def warnings_of(comparison: Comparison) -> list[str]:
    """Returns what readers should know before they believe a number."""
    sentences = differing_partitions(comparison)
    sentences += [
        f"{run.summary['method']} on {run.summary['dataset']}, seed {run.seed}: {warning}"
        for run in comparison.runs
        for warning in run.summary.get("warnings", [])
    ]
    more = len(sentences) - MOST_WARNINGS
    return sentences[:MOST_WARNINGS] + (
        [f"There are {more} more notes, in result.json of the runs."] if more > 0 else []
    )


def runs_of(comparison: Comparison, row: str, column: str) -> list[FinishedRun]:
    return [run for _, run in sorted(comparison.cell(row, column).items())]


# Scores.


def difference_blocks(comparison: Comparison) -> list[Block]:
    """Returns how far rows are from training alone, or else from the best row, and their ranks over data."""
    first = leader(comparison, comparison.columns[0])
    baseline = alone_row(comparison) or (first.row if first else None)
    blocks: list[Block] = []
    tested = [entry for entry in compare_with(comparison, baseline) if entry.paired.n > 1] if baseline else []
    if baseline and tested:
        several = len(comparison.columns) > 1
        rows = [
            [
                *([Cell(entry.column or "all data")] if several else []),
                Cell(entry.row),
                Cell(format_difference(comparison.metric, entry.paired.mean), entry.paired.mean, entry.better),
                Cell(
                    " to ".join(
                        format_difference(comparison.metric, end, "-") for end in (entry.paired.low, entry.paired.high)
                    ),
                    entry.paired.low,
                ),
                Cell("-" if entry.corrected_p is None else f"{entry.corrected_p:.2g}", entry.corrected_p),
                Cell(f"{entry.paired.wins} / {entry.paired.ties} / {entry.paired.losses}", entry.paired.wins),
            ]
            for entry in tested
        ]
        head = (*(["data"] if several else []), "method", "difference", "95 % interval", "p", "wins / ties / losses")
        words = "training alone" if baseline == alone_row(comparison) else baseline
        note = (
            f"Pairs of runs with the same seed and partition, {tested[0].paired.test}; p-values are corrected for "
            f"{len(tested)} comparisons by Holm. Positive differences are improvements; bold ones are significant at "
            f"{ALPHA}."
        )
        blocks.append(Table(head, rows, 2 if several else 1, f"Differences from {words}", note))
    return blocks + rank_blocks(comparison)


def rank_blocks(comparison: Comparison) -> list[Block]:
    """Returns the average ranks over data, where there are several without gaps."""
    ranking = ranking_of(comparison)
    if ranking is None:
        return []
    rows = [[Cell(row), Cell(f"{rank:.2f}", rank)] for row, rank in ranking.ranks.items()]
    note = f"Over {ranking.columns} data; ranks that differ by less than {ranking.critical_difference:.2f} (Nemenyi) "
    note += "cannot be told apart."
    if ranking.friedman is not None:
        note += f" Friedman's test, as corrected by Iman and Davenport: p = {ranking.friedman.corrected_p:.2g}."
    return [Table(("method", "average rank"), rows, 1, "Ranks", note)]


def curve_blocks(comparison: Comparison) -> list[Block]:
    """Returns test scores and losses over rounds, a figure for each data, a curve a row with a band over seeds."""
    figures = []
    many = f" The first {MOST_CURVES} of {len(comparison.rows)} rows." if len(comparison.rows) > MOST_CURVES else ""
    several = len(comparison.columns) > 1
    for column in comparison.columns:
        series, losses, marks = {}, {}, []
        for row in comparison.rows[:MOST_CURVES]:
            runs = runs_of(comparison, row, column)
            series[row] = mean_points([score_curve(run, comparison.metric) for run in runs])
            losses[row] = mean_points([loss_curve(run) for run in runs])
            marks += best_marks(comparison, row, runs) if series[row] else []
        title = METRICS[comparison.metric].title
        where = f" on {column}" if several else ""
        if any(series.values()):
            spec = curves(series, "round", axis_title(comparison.metric), marks, band="± deviation")
            figures.append(Figure(f"Test {title}{where}", spec))
        if any(losses.values()):
            spec = curves(losses, "round", "mean loss of a round", band="± deviation")
            figures.append(Figure(f"Training loss{where}", spec))
    if not figures:
        return [Text("No round of these runs is on record.", "note")]
    note = (
        "Mean over seeds; bands are one standard deviation to either side. Dots mark the best round by validation nodes"
        " (of several seeds, their mean) and the score there. Click on a name to hide its curve."
    )
    return [Figures(figures), Text(note + many, "note")]


def best_marks(comparison: Comparison, row: str, runs: Sequence[FinishedRun]) -> list[Mark]:
    """Returns the mark of a row: its best round and the score there, means over seeds."""
    scores = {run.seed: run.score(comparison.metric, "test") for run in runs}
    scored = [run for run in runs if scores[run.seed] is not None and run.summary["best_round"]]
    if not scored:
        return []
    value = fmean(score for run in scored if (score := scores[run.seed]) is not None)
    number = fmean(run.summary["best_round"] for run in scored)
    words = f"{row}: best round {number:g}, {mean_std(list(scores.values()), comparison.metric)}"
    return [Mark(row, number, scale_of(comparison.metric) * value, words)]


# What is below them.


def method_blocks(comparison: Comparison) -> list[Block]:
    """Returns what each row noted in its rounds on the first data, means over seeds, and who heard whom."""
    blocks: list[Block] = []
    for row in comparison.rows[:MOST_CURVES]:
        column = next(column for column in comparison.columns if comparison.cell(row, column))
        runs = runs_of(comparison, row, column)
        figures = [figure for name in recorded(runs[0]) if (figure := mean_detail_figure(runs, name))]
        clients = [entry["client"] for entry in runs[0].summary.get("per_client", [])]
        pictures = link_networks(runs[0].rounds, clients)
        if figures or pictures:
            blocks.append(Heading(f"{row}, {column}" if len(comparison.columns) > 1 else row))
            blocks += [Figures(figures[:MOST_FIGURES], small=True)] if figures else []
            blocks += pictures
    if blocks:
        note = "Of numbers for each client the mean over clients; bands are one standard deviation over seeds."
        blocks.append(Text(f"{note} Links are those of the first seed.", "note"))
    return blocks


def data_blocks(comparison: Comparison) -> list[Block]:
    """Returns the partitions of each data: the first one in full, and the hashes of all."""
    blocks: list[Block] = []
    for column in comparison.columns:
        runs = [run for row in comparison.rows for run in runs_of(comparison, row, column)]
        described = next((run for run in runs if read_card(run.path)), runs[0])
        several = len(comparison.columns) > 1
        seed = f"{column}, seed {described.seed}" if several else f"Seed {described.seed}"
        blocks += [Heading(seed), *partition_blocks(read_card(described.path), read_classes(described.path))]
        blocks.append(partitions_of(runs))
    return blocks


def traffic_blocks(comparison: Comparison) -> list[Block]:
    """Returns what rows sent, and what a megabyte bought them."""
    if not any(total_bytes(run.summary) for run in comparison.runs):
        return [Text("Nothing was sent.")]
    several, scale = len(comparison.columns) > 1, scale_of(comparison.metric)
    rows, figures = [], []
    told: dict[str, Any] = {}
    for column in comparison.columns:
        dots = []
        for row in comparison.rows:
            runs = runs_of(comparison, row, column)
            if not runs:
                continue
            sent = fmean(total_bytes(run.summary) for run in runs)
            until = [by_round.get(run.summary["best_round"], 0) for run in runs if (by_round := megabytes_sent(run))]
            values = [scale * value for value in comparison.values(row, column).values()]
            per_megabyte = fmean(values) / fmean(until) if values and any(until) else None
            rows.append(
                [
                    *([Cell(column)] if several else []),
                    Cell(row),
                    Cell(readable_bytes(sent), sent),
                    Cell(readable_bytes(sent / max(fmean(r.summary["rounds"] for r in runs), 1)), sent),
                    Cell(readable_bytes(1e6 * fmean(until)) if until else "-", fmean(until) if until else None),
                    Cell("-" if per_megabyte is None else f"{per_megabyte:.3g}", per_megabyte),
                ]
            )
            if values:
                dots.append(
                    {"series": row, "x": sent / 1e6, "y": fmean(values), "low": min(values), "high": max(values)}
                )
            told |= runs[0].summary["communication"].get("before_training", {})
        if len(dots) > 1:
            where = f" on {column}" if several else ""
            spec = points(dots[:MOST_CURVES], "MB sent", axis_title(comparison.metric))
            figures.append(Figure(f"Test {METRICS[comparison.metric].title} and what it took{where}", spec))
    head = (*(["data"] if several else []), "method", "sent", "a round", "until the best round")
    table = Table((*head, f"{METRICS[comparison.metric].title} per MB"), rows, 2 if several else 1)
    note = Text("Whiskers are from the lowest to the highest seed.", "note")
    return [table, *([Figures(figures), note] if figures else []), *agreement_table(told)]


def cost_blocks(comparison: Comparison) -> list[Block]:
    """Returns how long runs took, and how much memory."""
    several = len(comparison.columns) > 1
    rows = []
    for column in comparison.columns:
        for row in comparison.rows:
            if runs := runs_of(comparison, row, column):
                total = fmean(run.summary["seconds"]["total"] for run in runs)
                a_round = 1000 * fmean(run.summary["seconds"]["per_round"] for run in runs)
                memory = max(run.summary.get("peak_memory_bytes", 0) for run in runs)
                words = [Cell(column)] if several else []
                devices = ", ".join(sorted({str(run.summary.get("device", "")) for run in runs}))
                rows.append(
                    [
                        *words,
                        Cell(row),
                        Cell(f"{total:.1f}", total),
                        Cell(f"{a_round:.1f}", a_round),
                        Cell(readable_bytes(memory), memory),
                        Cell(devices),
                    ]
                )
    head = (*(["data"] if several else []), "method", "seconds a run", "ms a round", "peak memory", "device")
    note = "Means over seeds. Of runs that were computed side by side, times and memory are those of sharing a machine."
    return [Table(head, rows, 2 if several else 1, note=note)]
