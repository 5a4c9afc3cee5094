"""A run client by client: own scores, training alone, what joining changes, and confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.reports.pages import Block, Confusions, Figure, Figures, Table, Text
from graft.experiments.reports.row_charts import histogram, pairs
from graft.experiments.reports.series import axis_title, scale_of
from graft.experiments.reports.summary_table import Cell
from graft.experiments.verdicts import HELPS, HURTS, Verdict
from graft.federation.metric_names import METRICS, format_difference, format_metric

MANY = 60  # clients from which on figures show how values are spread
MOST_ROWS = 120  # of a table of clients
MOST_MATRICES = 40


def client_blocks(run: FinishedRun, verdicts: Sequence[Verdict], classes: Sequence[str]) -> list[Block]:
    """Returns all that is known of each client."""
    rows, summary = run.summary.get("per_client", []), run.summary
    blocks: list[Block] = [*client_figures(run, verdicts), client_table(rows, summary), *verdict_table(verdicts)]
    if len(rows) < summary["clients"]:
        who = f"the {len(rows):,} of {summary['clients']:,} clients that took part in round {summary['best_round']}"
        blocks.insert(0, Text(f"Scores are those of {who}, the best one.", "note"))
    return blocks + confusion_blocks(rows, classes)


def score_of(row: dict[str, Any], metric: str) -> float | None:
    """Returns a client's test score at the best round."""
    value: float | None = row["test"] if metric == "accuracy" else row.get("metrics", {}).get(metric, {}).get("test")
    return value


def client_figures(run: FinishedRun, verdicts: Sequence[Verdict]) -> list[Block]:
    """Returns the clients' scores as dots, beside those alone where they are known; of many, how they are spread."""
    metric, scale = run.metric, scale_of(run.metric)
    rows = run.summary.get("per_client", [])
    own = {str(row["client"]): score_of(row, metric) for row in rows}
    scored = {client: scale * score for client, score in own.items() if score is not None}
    if not scored:
        return []
    title, axis = f"{METRICS[metric].title} on each client's own test nodes", axis_title(metric)
    title = title[:1].upper() + title[1:]
    if len(scored) > MANY:
        figures = [Figure(title, histogram(list(scored.values()), axis))]
        gains = [scale * verdict.difference for verdict in verdicts if verdict.difference is not None]
        if gains:
            figures.append(Figure("What joining changes", histogram(gains, "improvement in points")))
        return [Figures(figures)]
    if len(scored) == 1:
        return []
    alone = {str(verdict.client): verdict.alone for verdict in verdicts}
    ordered = sorted(scored, key=lambda client: scored[client])
    dots = [(client_name(client), scaled(alone.get(client), scale), scored[client]) for client in ordered]
    return [Figure(title, pairs(dots, ("alone", "in the federation"), axis))]


def scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else scale * value


def client_name(client: str) -> str:
    return f"client {client}" if client.isdecimal() else client


def client_table(rows: Sequence[dict[str, Any]], summary: dict[str, Any]) -> Table:
    """Returns a table of the clients with their metrics, the accuracy last; of very many, the lowest and highest."""
    metrics = [name for name in summary.get("metrics", {}) if name != "accuracy"]
    shown, note = list(rows), ""
    if len(rows) > MOST_ROWS:
        ordered = sorted(rows, key=lambda row: (row["test"] is None, row["test"] or 0))
        shown = ordered[: MOST_ROWS // 2] + ordered[-MOST_ROWS // 2 :]
        note = f"The {MOST_ROWS // 2} lowest and highest of {len(rows):,} clients; result.json holds all of them."
    table = [
        [
            Cell(str(row["client"])),
            Cell(row["model"]),
            count_cell(row["nodes"]),
            count_cell(row["edges"]),
            *(metric_cell(name, row.get("metrics", {}).get(name, {}).get("test")) for name in metrics),
            metric_cell("accuracy", row["validation"]),
            metric_cell("accuracy", row["test"]),
        ]
        for row in shown
    ]
    accuracies = ("validation", "test") if not metrics else ("validation accuracy", "test accuracy")
    head = ("client", "model", "nodes", "edges", *(f"test {METRICS[name].title}" for name in metrics), *accuracies)
    return Table(head, table, words=2, note=note)


def count_cell(count: int | None) -> Cell:
    """Returns how many there are, as far as it is known: a server between organisations is not told."""
    return Cell("-" if count is None else f"{count:,}", count)


def metric_cell(metric: str, value: float | None) -> Cell:
    return Cell(format_metric(metric, value, "-"), value)


def verdict_table(verdicts: Sequence[Verdict]) -> list[Block]:
    """Returns whether joining helps each client, and what it gives to the others; nothing where that was not asked."""
    if not verdicts:
        return []
    metric = verdicts[0].metric
    given = any(verdict.contribution is not None for verdict in verdicts)
    head = ("client", "verdict", "alone", "in the federation", "difference", "95 % interval")
    shown = list(verdicts)
    if len(shown) > MOST_ROWS:
        shown.sort(key=lambda verdict: verdict.difference or 0)
        shown = shown[: MOST_ROWS // 2] + shown[-MOST_ROWS // 2 :]
    rows = [
        [
            Cell(str(verdict.client)),
            Cell(verdict.verdict),
            *(metric_cell(metric, score) for score in (verdict.alone, verdict.federated)),
            Cell(format_difference(metric, verdict.difference, "-"), verdict.difference),
            Cell(" to ".join(format_difference(metric, end, "-") for end in verdict.interval), verdict.low),
            *([Cell(format_difference(metric, verdict.contribution, "-"), verdict.contribution)] if given else []),
        ]
        for verdict in shown
    ]
    title = METRICS[metric].title
    drawn = "by bootstrap over the test nodes" if verdicts[0].test_nodes is not None else "of the mean over seeds"
    note = f"{title[:1].upper()}{title[1:]} on each client's own test nodes; positive differences are improvements. "
    note += f"The interval is {drawn}."
    if given:
        note += " What a client gives the others is how much better they are with it than without, on average."
    return [Table((*head, "gives the others") if given else head, rows, 2, "Does joining help?", note)]


def said_of_joining(verdicts: Sequence[Verdict]) -> list[str]:
    """Returns in a sentence what joining does for how many clients."""
    if not verdicts:
        return []
    helped, hurt = (sum(verdict.verdict == word for verdict in verdicts) for word in (HELPS, HURTS))
    rest = len(verdicts) - helped - hurt
    parts = [f"helps {helped} of {len(verdicts)} clients", f"hurts {hurt}"]
    words = f"Against training alone, joining {' and '.join(parts)}"
    return [f"{words}; for {rest} no clear difference can be told." if rest else f"{words}."]


def confusion_blocks(rows: Sequence[dict[str, Any]], classes: Sequence[str]) -> list[Block]:
    """Returns the confusion matrices, of all clients together and of each; or how to get them."""
    matrices = {str(row["client"]): row["confusion"] for row in rows if row.get("confusion")}
    if not matrices:
        return [Text("Confusion matrices are on record where metrics are asked for, as --metric macro_f1.", "note")]
    size = len(next(iter(matrices.values())))
    total = [[sum(matrix[i][j] for matrix in matrices.values()) for j in range(size)] for i in range(size)]
    names = classes if len(classes) == size else [str(label) for label in range(size)]
    shown = {client_name(client): matrix for client, matrix in list(matrices.items())[:MOST_MATRICES]}
    every = {"all clients": total, **shown} if len(matrices) > 1 else shown
    note = f"Of {len(matrices)} clients the first {MOST_MATRICES}." if len(matrices) > MOST_MATRICES else ""
    return [Confusions(every, names, note)]
