"""The page of a tournament, its figures, and its runs as a table for other programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from graft.errors import InputError
from graft.experiments.comparison.comparison import mean_std
from graft.experiments.comparison.differences import Ranking, difference_of, pair
from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.comparison.statistics import ALPHA, PairedDifference
from graft.experiments.reports.summary_table import readable_bytes, total_bytes
from graft.experiments.reports.tables import markdown_table
from graft.experiments.tournament.families import FAMILIES, Family, judges
from graft.experiments.tournament.results import Cell, FamilyResult, Lead, family_results
from graft.experiments.tournament.tournament import HELD_OUT, Tournament
from graft.experiments.tuning.finals import DEFAULT, TUNED
from graft.experiments.tuning.tuning import spell_params
from graft.federation.metric_names import METRICS, format_difference
from graft.files import explained, write_text

PAGE, RUNS = "tournament.md", "runs.csv"
MARK = "\\*"  # behind a row that reads validation labels in training
POINTS = {
    "test_global": "The global model",
    "test_trained": "Own models after training, before anything is mixed",
}
HEAD = ("family", "dataset", "row", "method", "values", "seed", "metric", "reads_validation", "test", "validation")
SCORES = ("test_global", "test_trained", "test_node_weighted")
COSTS = ("best_round", "rounds", "up_bytes", "down_bytes", "peer_bytes", "seconds_a_round", "counts", "chosen")


def write_tournament(tournament: Tournament, out: Path, table: Mapping[str, Family] = FAMILIES) -> list[Path]:
    """Writes the page, the runs and a figure of ranks for each family that has one; returns their paths."""
    results = family_results(tournament, table)
    figures = {result.name: draw_ranks(result.name, result.ranking, out) for result in results if result.ranking}
    drawn = {name: file for name, file in figures.items() if file}
    write_text(out / RUNS, runs_csv(results))
    write_text(out / PAGE, page(tournament, results, drawn))
    return [out / PAGE, out / RUNS, *(out / name for name in drawn.values())]


def draw_ranks(family: str, ranking: Ranking, out: Path) -> str:
    """Draws the ranks of a family; returns the name of the file, none without Matplotlib."""
    from graft.experiments.reports.rank_diagram import draw_ranking

    name = f"ranks-{family}.svg"
    try:
        figure = draw_ranking(ranking)
    except InputError:  # the page has the ranks as numbers
        return ""
    with explained(f"{out / name} cannot be written", InputError):
        figure.savefig(out / name, metadata={"Date": None})
    return name


def page(tournament: Tournament, results: Sequence[FamilyResult], figures: Mapping[str, str]) -> str:
    """Returns the page as Markdown."""
    parts = ["# Tournament", said_of_all(tournament)]
    for result in results:
        parts += [f"## {result.family.meaning}", *family_parts(result, figures.get(result.name, ""))]
    parts += ["## Time", said_of_time(tournament, results)]
    return "\n\n".join(parts) + "\n"


def said_of_all(tournament: Tournament) -> str:
    """Returns what is the same for everybody."""
    design = tournament.events[0].design
    judging = (
        f"A row with {MARK} read validation labels in training or to choose its predictions, with the values that "
        "count on at least one dataset; all others read them for the choice of values and of the round alone. Marked "
        "rows also ran without them."
    )
    if design.values.get("judge_on") == "training":
        judging = (
            "Methods that choose among models in training judged them by a fifth of the training nodes, held out of "
            "training for every method: all read validation labels for the choice of values and of the round alone."
        )
    words = (
        f"Every method had {design.trials} trials, each {of_seeds(len(design.seeds))}, proposed and ended in "
        "the same way and scored on validation nodes alone; the first had its defaults. All searched the same ranges "
        "of optimiser, learning rate, weight decay, dropout and local epochs, and what they declare of their own. The "
        f"default and the chosen values then ran with {len(design.final_seeds)} other seeds, scored on test nodes for "
        "the first time; what counts is which of both is better on the validation nodes of these seeds. Scores are "
        "means ± standard deviations over them, at the best validation round. "
        f"{judging}"
    )
    done, searches = tournament.searches
    if done == searches:
        return words
    return f"{words}\n\nOf {searches} searches, of a method on a dataset each, {done} are done."


def of_seeds(count: int) -> str:
    return "of one seed" if count == 1 else f"the mean over {count} seeds"


def said_of_time(tournament: Tournament, results: Sequence[FamilyResult]) -> str:
    """Returns how long all processes worked in all, as far as that is on record."""
    cells = [cell for result in results for cell in result.cells.values()]
    runs = {str(run.path): run.summary["seconds"]["total"] for cell in cells for run in cell.runs}
    of_trials, of_runs = sum(cell.seconds for cell in cells) / 3600, sum(runs.values()) / 3600
    text = (
        f"{sum(cell.trials for cell in cells)} trials took {of_trials:.2f} hours of processes, and {len(runs)} runs at "
        f"the end {of_runs:.2f}: {of_trials + of_runs:.2f} in all."
    )
    for device in dict.fromkeys(call["device"] for call in tournament.calls):
        counts = sorted({call["processes"] for call in tournament.calls if call["device"] == device})
        text += f" {' or '.join(map(str, counts))} of them worked at a time on {device}."
    if len({tuple(call.items()) for call in tournament.calls}) == 1:
        text += f" That is about {(of_trials + of_runs) / tournament.calls[0]['processes']:.2f} hours of it."
    return text


def family_parts(result: FamilyResult, figure: str) -> Iterator[str]:
    """Yields the parts of a family's section."""
    if result.family.note:
        yield result.family.note
    if result.not_begun:
        yield f"Not begun: {', '.join(result.not_begun)}."
    if not result.cells:
        return
    yield score_table(result)
    yield (
        f"Bold: the best of a column, and every row that a paired test over seeds cannot tell from it (Holm, p ≥ "
        f"{ALPHA}); references do not compete. In brackets: with the defaults."
    )
    if result.ranking:
        yield ranks_text(result.ranking)
        if figure:
            yield f"![Average ranks: {result.family.meaning}]({figure})"
    if result.leads:
        yield "### Against the best of the others"
        yield lead_table(result.leads, result)
    if rows := list(held_out_rows(result)):
        yield from held_out_parts(result, rows)
    for point, title in POINTS.items():
        if rows := list(point_rows(result, point)):
            yield f"### {title}"
            yield markdown_table(("", *result.columns), rows)
    yield "### Cost"
    yield cost_table(result)
    yield "Bytes and seconds are means over the runs that count, which shared the machine with each other."
    yield "### Chosen values"
    yield markdown_table(("", *result.columns), [(row, *values) for row, values in chosen_rows(result)])


def score_table(result: FamilyResult) -> str:
    best = {column: result.best(column) for column in result.columns}
    headings = [
        column if result.metric(column) == "accuracy" else f"{column}, {METRICS[result.metric(column)].title}"
        for column in result.columns
    ]
    rows = []
    for row in result.rows:
        texts = [score_text(result.cells[row, column], row in best[column]) for column in result.columns]
        ranks = result.ranking.ranks if result.ranking else {}
        rank = f"{ranks[row]:.2f}" if row in ranks else "-"
        rows.append((f"{row} {MARK}" if result.judges(row) else row, *texts, rank))
    return markdown_table(("", *headings, "rank"), rows)


def score_text(cell: Cell, best: bool) -> str:
    """Returns a cell of the table: the score that counts, and that of the defaults."""
    if not cell.tuned:
        return cell.reason or (f"{cell.trials} of {cell.planned} trials" if cell.trials < cell.planned else "-")
    text = mean_std(list(cell.values().values()), cell.metric)
    default = mean_std(list(cell.values_of(cell.default).values()), cell.metric)
    return f"{f'**{text}**' if best else text} ({default})"


def ranks_text(ranking: Ranking) -> str:
    """Returns the ranks in words."""
    listed = ", ".join(f"{row} {rank:.2f}" for row, rank in ranking.ranks.items())
    text = f"Average ranks over {ranking.columns} datasets: {listed}."
    if ranking.friedman is not None:
        text += f" Friedman's test, corrected by Iman and Davenport: p = {ranking.friedman.corrected_p:.2g}."
    text += f" Nemenyi's critical difference is {ranking.critical_difference:.2f}."
    groups = "; ".join(", ".join(group) for group in ranking.groups)
    return f"{text} Not to be told apart: {groups}." if groups else text


def lead_table(leads: Sequence[Lead], result: FamilyResult) -> str:
    """Returns the paired differences, in points, with corrected p-values."""
    rows = []
    for lead in leads:
        metric = result.metric(lead.column or result.columns[0])
        p = "-" if lead.corrected_p is None else f"{lead.corrected_p:.2g}"
        rows.append((lead.row, lead.column or "all", lead.rival, *difference_texts(metric, lead.paired), p))
    return markdown_table(("", "dataset", "best of the others", "difference", "95 % interval", "p, Holm"), rows)


def difference_texts(metric: str, paired: PairedDifference) -> tuple[str, str]:
    """Returns a difference in points, and its interval."""
    mean, low, high = (format_difference(metric, value, "") for value in (paired.mean, paired.low, paired.high))
    return mean, f"{low} to {high}" if low else "-"


def held_out_rows(result: FamilyResult) -> Iterator[tuple[str, ...]]:
    """Yields the scores of rows that read validation labels in training, and those without, paired by seed."""
    for (row, column), cell in result.cells.items():
        if not cell.held_out:
            continue
        without = result.judged_by_training
        difference = difference_of(pair(without.signed(row, column), result.signed(row, column)), 1, 1)
        scores = [
            mean_std(list(entry.cells[row, column].values().values()), cell.metric) for entry in (result, without)
        ]
        yield row, column, *scores, *difference_texts(cell.metric, difference)


def held_out_parts(result: FamilyResult, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yields the section about rows that judge by training nodes instead of validation nodes."""
    yield "### Judged by training nodes instead"
    yield (
        f"Rows with {MARK} ran once more with the values that count, judging by a fifth of the training nodes, which "
        "they did not train on. The difference is to the scores above, seed by seed."
    )
    head = ("", "dataset", "by validation nodes", "by training nodes", "difference", "95 % interval")
    yield markdown_table(head, rows)
    without = result.judged_by_training
    if without.ranking:
        yield f"With these scores in the table: {ranks_text(without.ranking)}"
    if any(result.judges(lead.row) for lead in result.leads):
        yield lead_table(without.leads, without)


def point_rows(result: FamilyResult, point: str) -> Iterator[tuple[str, ...]]:
    """Yields the scores of the values that count at another point, of the rows for which it is one."""
    for row in result.rows:
        cells = [result.cells[row, column] for column in result.columns]
        values = [cell.values(point) for cell in cells]
        if any(scores and scores != cell.values() for scores, cell in zip(values, cells, strict=True)):
            texts = [
                mean_std(list(scores.values()), result.metric(column))
                for scores, column in zip(values, result.columns, strict=True)
            ]
            yield row, *texts


def cost_table(result: FamilyResult) -> str:
    """Returns bytes and seconds a round of the values that count, beside the mean score over columns."""
    rows = []
    for row in result.rows:
        cells = [result.cells[row, column] for column in result.columns if result.cells[row, column].tuned]
        if not cells:
            continue
        runs = [run.summary for cell in cells for run in cell.counted.values()]
        sent = fmean(total_bytes(summary) / summary["rounds"] for summary in runs)
        rows.append(
            (
                row,
                f"{100 * fmean(fmean(cell.values().values()) for cell in cells if cell.values()):.1f}",
                readable_bytes(sent) if sent else "nothing",
                f"{fmean(summary['seconds']['per_round'] for summary in runs):.4f}",
                f"{sum(cell.failed for cell in cells)} of {sum(cell.trials for cell in cells)}",
            )
        )
    return markdown_table(("", "mean score", "sent a round", "seconds a round", "failed trials"), rows)


def chosen_rows(result: FamilyResult) -> Iterator[tuple[str, list[str]]]:
    for row in result.rows:
        cells = [result.cells[row, column] for column in result.columns]
        yield row, ["-" if not cell.trials else chosen_text(cell) for cell in cells]


def chosen_text(cell: Cell) -> str:
    if cell.chosen is None:
        return "the defaults"
    return f"the defaults, not {spell_params(cell.chosen)}" if cell.counting == DEFAULT else spell_params(cell.chosen)


def runs_csv(results: Sequence[FamilyResult]) -> str:
    """Returns a line a run, for other programs; scores are fractions."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*HEAD, *SCORES, *COSTS])
    for result in results:
        for (row, column), cell in result.cells.items():
            for values, runs in ((DEFAULT, cell.default), (TUNED, cell.tuned), (HELD_OUT.name, cell.held_out)):
                for run in runs.values():
                    about = (result.name, column, row, run.experiment["method"], values)
                    used = cell.counting if values == HELD_OUT.name else values
                    chosen = json.dumps(cell.chosen) if used == TUNED and cell.chosen else ""
                    writer.writerow([*about, *run_values(run, cell.metric), values == cell.counting, chosen])
    return file.getvalue()


def run_values(run: FinishedRun, metric: str) -> list[Any]:
    """Returns the numbers of a run."""
    summary, sent = run.summary, run.summary["communication"]
    reads = judges(run.experiment)
    scores = [run.score(metric, name) for name in ("test", "validation", *SCORES)]
    costs = [summary["best_round"], summary["rounds"], *(sent[f"{way}_bytes"] for way in ("up", "down", "peer"))]
    return [run.seed, metric, reads, *scores, *costs, summary["seconds"]["per_round"]]
