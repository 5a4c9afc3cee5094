"""The headline of a comparison as a table of texts and numbers, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, NamedTuple

from graft.experiments.comparison.comparison import Comparison, mean_std, said_of_other_fields
from graft.experiments.comparison.finished_runs import FinishedRun
from graft.federation.metric_names import METRICS


class Cell(NamedTuple):
    """A cell as it is shown, with what it is sorted by."""

    text: str
    value: float | str | None = None
    best: bool = False  # the best of its column, or not distinguishable from it


@dataclass(frozen=True)
class SummaryTable:
    """Rows of a comparison with their scores, traffic and time; what all of them share is in the title."""

    title: str
    head: list[str]
    rows: list[list[Cell]]
    words: int  # columns at the left that hold words
    notes: list[str]  # sentences that explain the columns


class ScoreColumn(NamedTuple):
    """A column of scores."""

    heading: str
    metric: str
    name: str  # of the value of that metric, as test_global

    def of(self, run: FinishedRun) -> float | None:
        """Returns the value at the best round, where a run has it."""
        if self.metric == "accuracy":
            value: float | None = run.summary["accuracy"].get(self.name)
            return value
        return run.score(self.metric, self.name)


def summarise(comparison: Comparison) -> SummaryTable:
    """Returns the headline: a row for each group of runs on each data, seeds as mean ± standard deviation."""
    several = len(comparison.columns) > 1
    scores, meaning = score_columns(comparison.runs, by_nodes=not several)  # there is room for fewer beside the data
    uneven = len({len(cell) for cell in comparison.cells.values()}) > 1  # in their numbers of seeds
    rows = []
    for column in comparison.columns:
        best = best_of(comparison, column)
        for row in comparison.rows:
            if runs := list(comparison.cell(row, column).values()):
                words = [column, row] if several else [row]
                cells = [Cell(word, word) for word in words]
                cells += [score_cell(s, runs, row in best and s[1:] == (comparison.metric, "test")) for s in scores]
                cells += [Cell(str(len(runs)), len(runs))] if uneven else []
                rows.append([*cells, *cost_cells(runs)])
    notes = [said_of_seeds(comparison), meaning]
    if any(cell.best for row in rows for cell in row):
        tested = any(len(cell) > 1 for cell in comparison.cells.values())
        notes.append(f"Bold: {'the best, and what cannot be told from it' if tested else 'the best of one run each'}.")
    headings = [*(score.heading for score in scores), *(["seeds"] if uneven else [])]
    measured = "accuracy" if scores[0].heading == "own models" else "scores"
    return SummaryTable(
        f"Test {measured} in percent: {', '.join(shared_facts(comparison))}",
        [*(["data"] if several else []), "method", *headings, "sent", "ms a round"],
        rows,
        2 if several else 1,
        notes + said_of_other_fields(comparison),
    )


def score_cell(score: ScoreColumn, runs: Sequence[FinishedRun], best: bool) -> Cell:
    values = [value for run in runs if (value := score.of(run)) is not None]
    return Cell(mean_std(values, score.metric), mean(values) if values else None, best)


def cost_cells(runs: Sequence[FinishedRun]) -> list[Cell]:
    """Returns what runs cost: bytes a run, milliseconds a round."""
    sent = mean(total_bytes(run.summary) for run in runs)
    milliseconds = 1000 * mean(run.summary["seconds"]["per_round"] for run in runs)
    return [
        Cell(readable_bytes(sent) if sent else "nothing", sent),
        Cell(f"{milliseconds:.1f}", milliseconds),
    ]


def best_of(comparison: Comparison, column: str) -> set[str]:
    """Returns the rows that are best in a column and those that cannot be told from them; none where one row is."""
    if sum(bool(comparison.cell(row, column)) for row in comparison.rows) < 2:
        return set()
    from graft.experiments.comparison.differences import best_rows  # SciPy's statistics are slow to import

    return best_rows(comparison, column)


def score_columns(runs: Sequence[FinishedRun], by_nodes: bool = True) -> tuple[list[ScoreColumn], str]:
    """Returns the scores that runs are compared by, and what they mean."""
    asked = list(dict.fromkeys(name for run in runs for name in run.summary.get("metrics", {})))
    first = asked[0] if asked else "accuracy"
    if asked:
        columns = [ScoreColumn(METRICS[name].title, name, "test") for name in dict.fromkeys((*asked, "accuracy"))]
        meaning = "Each client's own model, mean over clients;"
    else:
        columns = [ScoreColumn("own models", first, "test")]
        meaning = "Own models: each client's own, mean over clients;"
        if by_nodes:
            columns.append(ScoreColumn("by nodes", first, "test_node_weighted"))
            meaning += " by nodes: the same, weighted by nodes;"
    trained, served = ScoreColumn("trained", first, "test_trained"), ScoreColumn("handed out", first, "test_served")
    if any(served.of(run) is not None for run in runs):
        columns += [trained, served]
        meaning += (
            " trained: what clients hold after local training, before anything is averaged; handed out: what they are "
            "given then, the global model or one made for each of them; own models are one of the two;"
        )
    return columns, f"{meaning} all at the best validation round."


def shared_facts(comparison: Comparison) -> list[str]:
    """Returns what all runs have in common, of that which people ask for first."""
    facts = [
        {comparison.columns[0]} if len(comparison.columns) == 1 else set(),
        {f"{run.summary['clients']} clients" for run in comparison.runs},
        {str(run.summary["partition"]) for run in comparison.runs if "partition" in run.summary},
        {models_of(run) for run in comparison.runs},
        {str(run.experiment.get("topology") or "") for run in comparison.runs},
    ]
    return [text for values in facts if len(values) == 1 for text in values if text]


def models_of(run: FinishedRun) -> str:
    """Returns the architectures of the clients, each once."""
    return ",".join(dict.fromkeys(row["model"] for row in run.summary.get("per_client", [])))


def said_of_seeds(comparison: Comparison) -> str:
    seeds = sorted({len(cell) for cell in comparison.cells.values()})
    if seeds == [1]:
        return "One run a row."
    return f"Mean ± standard deviation over {' or '.join(map(str, seeds))} seeds."


def total_bytes(summary: dict[str, Any]) -> int:
    """Returns all that was sent in a run, whichever way."""
    return sum(int(summary["communication"][f"{way}_bytes"]) for way in ("up", "down", "peer"))


def readable_bytes(count: float) -> str:
    """Returns a number of bytes with its unit, from bytes to GB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
