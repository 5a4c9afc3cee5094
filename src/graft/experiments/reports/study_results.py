"""The results that are on disk for a study: mean and deviation over seeds, partitions, failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from graft.experiments.comparison.differences import Score, best_of
from graft.experiments.experiment import DATA_FIELDS
from graft.experiments.reproduce import Plan
from graft.experiments.studies.paper_tables import Number
from graft.experiments.studies.study import COSTS, Measure
from graft.federation.metric_names import METRICS

AVERAGE = "average"
DataKey = tuple[str, int, int]  # dataset, clients, seed


@dataclass(frozen=True)
class Entry:
    """A row in a column of the table: the seeds of a method, in percent (or what it costs)."""

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
        return self.above(self.paper)

    @property
    def later_difference(self) -> float | None:
        return self.above(self.later)

    def above(self, printed: Number | None) -> float | None:
        """Returns how far our mean is above a printed one, where there are both."""
        return None if self.mean is None or printed is None else self.mean - printed.mean


class StudyResults:
    """All that is on disk for a plan, row by row and column by column."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stored = {(cell.row, *cell.column, cell.seed): cell.read() for cell in plan.cells}
        self.columns = [f"{dataset}-{clients}" for dataset, clients in plan.columns]
        self.entries = {
            (row, name): self.entry(row, *column)
            for row in plan.rows
            for name, column in zip(self.columns, plan.columns, strict=True)
        }
        if len(self.columns) > 1:
            self.entries |= {(row, AVERAGE): self.average(row) for row in plan.rows}

    @property
    def headings(self) -> list[str]:
        return [*self.columns, AVERAGE] if len(self.columns) > 1 else self.columns

    def entry(self, row: str, dataset: str, clients: int) -> Entry:
        """Returns the seeds of a row in a column, as the study measures them, beside the paper's number."""
        study, summaries = self.plan.study, self.summaries(row, dataset, clients)
        return Entry(
            measured(summaries, study.measure),
            measured(summaries, "test_node_weighted"),
            [summary["seconds"]["total"] for summary in summaries.values()],
            sum("error" in (self.stored[row, dataset, clients, seed] or {}) for seed in self.plan.seeds),
            study.printed(row, dataset, clients),
            study.printed(row, dataset, clients, later=True),
        )

    def other_entry(self, row: str, dataset: str, clients: int, measure: Measure) -> Entry:
        """Another measure of the same runs."""
        return Entry(measured(self.summaries(row, dataset, clients), measure), {}, [])

    def summaries(self, row: str, dataset: str, clients: int) -> dict[int, dict[str, Any]]:
        """Returns the summaries of the finished runs of a row in a column, by seed."""
        stored = {seed: self.stored[row, dataset, clients, seed] or {} for seed in self.plan.seeds}
        return {seed: result["summary"] for seed, result in stored.items() if "summary" in result}

    def average(self, row: str) -> Entry:
        """Returns the mean over all columns, seed by seed; a row with a gap has none, for it could not be compared."""
        entries = [self.entries[row, name] for name in self.columns]

        def over_columns(columns: Sequence[dict[int, float]]) -> dict[int, float]:
            complete = [seed for seed in self.plan.seeds if all(seed in values for values in columns)]
            return {seed: mean(values[seed] for values in columns) for seed in complete}

        return Entry(
            over_columns([entry.values for entry in entries]),
            over_columns([entry.by_nodes for entry in entries]),
            [seconds for entry in entries for seconds in entry.seconds],
            paper=average_printed([entry.paper for entry in entries]),
            later=average_printed([entry.later for entry in entries]),
        )

    def best(self, heading: str) -> set[str]:
        """Returns the rows with our best mean in a column and those that a paired test over seeds cannot tell from it;
        references do not compete, and nobody does for what it costs."""
        if self.plan.study.measure in COSTS:
            return set()
        rows = [row for row in self.plan.rows if not self.plan.study.rows[row].reference]
        return best_of({row: self.scores(row, heading) for row in rows})

    def scores(self, row: str, heading: str) -> dict[int, Score]:
        """Returns what a row scored by seed, rounded as it is shown, with the partitions that it was measured on."""
        wanted = [
            column for name, column in zip(self.columns, self.plan.columns, strict=True) if heading in (name, AVERAGE)
        ]
        return {
            seed: Score(
                round(value, 2), "".join((self.stored[row, *column, seed] or {})["partition"] for column in wanted)
            )
            for seed, value in self.entries[row, heading].values.items()
        }

    def failures(self) -> dict[str, str]:
        """Returns the reasons of failed runs, by the name of the cell."""
        stored = {cell.name: self.stored[cell.row, *cell.column, cell.seed] or {} for cell in self.plan.cells}
        return {name: result["error"] for name, result in stored.items() if "error" in result}

    def hashes(self, row: str | None = None) -> dict[DataKey, set[str]]:
        """Returns the hashes of the partitions that all rows, or those on the same data as one of them, were run on."""
        hashes: dict[DataKey, set[str]] = {}
        for (other, dataset, clients, seed), result in self.stored.items():
            if result is not None and "summary" in result and (row is None or self.same_data(row, other)):
                hashes.setdefault((dataset, clients, seed), set()).add(result["partition"])
        return hashes

    def same_data(self, row: str, other: str) -> bool:
        """Returns whether two rows change the same things about the data."""
        changes = [self.plan.study.rows[name].changes for name in (row, other)]
        first, second = ({field: change[field] for field in DATA_FIELDS if field in change} for change in changes)
        return first == second

    def inconsistent(self) -> list[DataKey]:
        """Returns where rows on the same data were run on different partitions."""
        by_row = [self.hashes(row).items() for row in self.plan.rows]
        return list(dict.fromkeys(key for items in by_row for key, hashes in items if len(hashes) > 1))

    def finished(self) -> list[dict[str, Any]]:
        """Returns the summaries of all finished runs."""
        return [result["summary"] for result in self.stored.values() if result is not None and "summary" in result]

    def done(self) -> int:
        """Returns the number of finished runs."""
        return len(self.finished())


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
        "Test accuracy in percent of what clients are given after their training: the global model, a model that the "
        "server made for each, or what a peer mixed; where they are given none, of their own; plain mean over clients, "
        f"{AT_BEST}",
    ),
    "test_trained": (
        "After local training, before mixing",
        "Test accuracy in percent of each client's model right after its training, before the server or its peers "
        "average, plain mean over clients, at its own best validation round",
    ),
    "auroc": ("AUROC", "Area under the ROC curve of the clients' own models, mean over clients"),
    "macro_f1": ("Macro F1", "Macro F1 of the clients' own models, mean over clients"),
    "milliseconds": ("Time", "Milliseconds a round, evaluation included, on the machine that ran it"),
    "megabytes": ("Traffic", "Megabytes that all clients together send and receive, a round"),
    "memory": (
        "Memory",
        "Megabytes at most: on a GPU those of the run, on a CPU those of the process, with all that ran in it before",
    ),
}


def average_printed(numbers: Sequence[Number | None]) -> Number | None:
    """Returns the mean of a paper's numbers, where it has one in every column."""
    there = [number for number in numbers if number is not None]
    if len(there) < len(numbers):
        return None
    return Number(round(mean(number.mean for number in there), 2), sure=all(number.sure for number in there))


def measured(summaries: dict[int, dict[str, Any]], measure: Measure) -> dict[int, float]:
    """Returns a measure of each seed that has it."""
    values = {seed: read_measure(summary, measure) for seed, summary in summaries.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def read_measure(summary: dict[str, Any], measure: Measure) -> float | None:
    """Returns a measure of one run: accuracies in percent, times in milliseconds, bytes in megabytes."""
    if measure in METRICS:
        score = summary["metrics"][measure]["test"]
        return None if score is None else 100 * score
    if measure == "milliseconds":
        return 1000 * float(summary["seconds"]["per_round"])
    if measure == "megabytes":
        sent = summary["communication"]
        total = sum(float(sent[way]) for way in ("up_bytes", "down_bytes", "peer_bytes"))
        return total / float(summary["rounds"]) / 1e6
    if measure == "memory":
        return float(summary["peak_memory_bytes"]) / 1e6
    scores = summary["accuracy"]
    value = scores.get(measure)
    if measure == "test_served" and value is None:
        value = scores["test"] if scores["test_global"] is None else scores["test_global"]
    return None if value is None else 100 * float(value)
