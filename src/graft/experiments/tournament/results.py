"""What a family's tournament says: scores in rows and columns, ranks, and how far its leading rows are above others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from graft.errors import InputError
from graft.experiments.comparison.differences import (
    Ranking,
    Score,
    Scores,
    best_of,
    difference_of,
    pair,
    rank_means,
)
from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.comparison.statistics import PairedDifference, holm
from graft.experiments.tournament.families import Family, judges
from graft.experiments.tournament.plan import Event
from graft.experiments.tournament.tournament import HELD_OUT, Tournament
from graft.experiments.tuning.finals import DEFAULT, TUNED, better_values
from graft.experiments.tuning.trials import best_of as best_trial
from graft.federation.metric_names import METRICS
from graft.methods import REFERENCES

Runs = Mapping[int, FinishedRun]  # by seed


@dataclass(frozen=True)
class Cell:
    """A method on a dataset."""

    tuned: Runs
    default: Runs
    metric: str
    planned: int  # trials
    trials: int  # that are over
    failed: int  # of them
    chosen: Mapping[str, Any] | None  # the values by the trials; None: those of the default
    reason: str = ""  # why nothing was chosen
    held_out: Runs = field(default_factory=dict)  # as those that count, but judging by training nodes
    seconds: float = 0.0  # of all its trials, in the processes that ran them

    @property
    def runs(self) -> list[FinishedRun]:
        """Returns all runs at the end, each once."""
        return list(
            {id(run): run for runs in (self.default, self.tuned, self.held_out) for run in runs.values()}.values()
        )

    @property
    def counting(self) -> str:
        """Returns which values count: those of the default or the chosen ones, by validation nodes of all seeds."""
        return better_values(self.default, self.tuned, self.metric)

    @property
    def counted(self) -> Runs:
        """Returns the runs with the values that count."""
        return self.default if self.counting == DEFAULT else self.tuned

    def values(self, point: str = "test") -> dict[int, float]:
        """Returns the scores that count, by seed: of the clients' own models, or at another point, as test_global."""
        return self.values_of(self.counted, point)

    def values_of(self, runs: Runs, point: str = "test") -> dict[int, float]:
        """Returns the scores of runs by seed."""
        scores = {seed: run.score(self.metric, point) for seed, run in runs.items()}
        return {seed: value for seed, value in scores.items() if value is not None}

    @property
    def scores(self) -> Scores:
        """Returns the scores that count with the partitions that they were measured on."""
        runs = self.counted
        return {seed: Score(value, runs[seed].hashes.get("partition")) for seed, value in self.values().items()}

    @property
    def judges(self) -> bool:
        """Returns whether validation labels were read in training, or for predictions, with the values that count."""
        run = next(iter(self.counted.values()), None)
        return run is not None and judges(run.experiment)


@dataclass(frozen=True)
class Lead:
    """How far a leading row is above the best of the others."""

    row: str
    rival: str  # the row with the best mean score among those that do not lead
    column: str | None  # None: the mean over all columns, seed by seed
    paired: PairedDifference
    corrected_p: float | None  # by Holm, over the leading rows and the columns; of means, over the rows


class FamilyResult:
    """All that is finished of a family."""

    def __init__(
        self,
        name: str,
        family: Family,
        cells: Mapping[tuple[str, str], Cell],
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
    ) -> None:
        """Takes the cells by row and column; of the rows and columns that were planned, those without a cell are not
        begun."""
        self.name, self.family, self.cells = name, family, dict(cells)
        self.rows = list(dict.fromkeys(row for row, _ in cells))
        self.columns = list(dict.fromkeys(column for _, column in cells))
        self.not_begun = [entry for entry in rows if entry not in self.rows]
        self.not_begun += [entry for entry in columns if entry not in self.columns]
        self.methods = {entry.label: entry.method for entry in family.entrants}

    def metric(self, column: str) -> str:
        return self.cells[self.rows[0], column].metric

    def competes(self, row: str) -> bool:
        return self.methods[row] not in REFERENCES

    @property
    def complete(self) -> list[str]:
        """Returns the columns in which every row that competes has a score."""
        return [
            column
            for column in self.columns
            if all(self.cells[row, column].values() for row in self.rows if self.competes(row))
        ]

    def best(self, column: str) -> set[str]:
        """Returns the best row of a column and those that a test could not tell from it."""
        scores = {row: self.cells[row, column].scores for row in self.rows if self.competes(row)}
        return best_of(scores, METRICS[self.metric(column)].higher)

    def judges(self, row: str) -> bool:
        """Returns whether a row read validation labels on any dataset."""
        return any(self.cells[row, column].judges for column in self.columns)

    @cached_property
    def judged_by_training(self) -> FamilyResult:
        """Returns the results in which rows that read validation labels in training judge by training nodes instead."""
        cells = {
            key: replace(cell, default={}, tuned=cell.held_out) if cell.held_out else cell
            for key, cell in self.cells.items()
        }
        return FamilyResult(self.name, self.family, cells)

    @cached_property
    def ranking(self) -> Ranking | None:
        """Returns the ranks over the columns that are complete; None where there are fewer than two of them."""
        rows = [row for row in self.rows if self.competes(row)]
        if len(self.complete) < 2 or len(rows) < 2:
            return None
        means = [
            [METRICS[self.metric(column)].sign * fmean(self.cells[row, column].values().values()) for row in rows]
            for column in self.complete
        ]
        return rank_means(rows, means)

    @cached_property
    def leads(self) -> list[Lead]:
        """Returns how far the leading rows are above the best of the others, column by column and in the mean."""
        leading = [row for row in self.family.leading if row in self.rows]
        others = [row for row in self.rows if self.competes(row) and row not in self.family.leading]
        if not leading or not others:
            return []
        families = [[(row, column) for row in leading for column in self.complete]]
        if len(self.complete) > 1:
            families.append([(row, "") for row in leading])
        leads: list[Lead] = []
        for family in families:
            drafts = [self._lead(row, others, column, len(family)) for row, column in family]
            corrected = holm([draft.paired.p for draft in drafts])
            leads += [
                Lead(draft.row, draft.rival, draft.column, draft.paired, p)
                for draft, p in zip(drafts, corrected, strict=True)
            ]
        return leads

    def _lead(self, row: str, others: Sequence[str], column: str, comparisons: int) -> Lead:
        """Returns a lead without its correction; without a column, that of the means over all of them."""
        columns = [column] if column else self.complete
        rival = max(others, key=lambda other: fmean(self.level(other, name) for name in columns))
        pairs = [pair(self.signed(row, name), self.signed(rival, name)) for name in columns]
        shared = [seed for seed in pairs[0] if all(seed in entry for entry in pairs)]
        if not shared:
            raise InputError(f"{row} and {rival} share no seed on the same partition on {', '.join(columns)}.")
        means = {
            seed: (fmean(entry[seed][0] for entry in pairs), fmean(entry[seed][1] for entry in pairs))
            for seed in shared
        }
        return Lead(row, rival, column or None, difference_of(means, 1, comparisons), None)

    def level(self, row: str, column: str) -> float:
        """Returns the mean score of a row, of which more is better."""
        return fmean(score.value for score in self.signed(row, column).values())

    def signed(self, row: str, column: str) -> Scores:
        sign = METRICS[self.metric(column)].sign
        return {
            seed: Score(sign * score.value, score.partition) for seed, score in self.cells[row, column].scores.items()
        }


def read_cell(row: str, event: Event, tournament: Tournament) -> Cell:
    """Returns what is finished of a method on a dataset."""
    trials, finals = tournament.trials[event.name], tournament.finals.get(event.name)
    history = trials.studies[row].history
    best = best_trial(history, trials.studies[row].higher)
    reasons = [str(entry["reason"]) for entry in history if "reason" in entry]
    return Cell(
        {} if finals is None else finals.cell(row, TUNED),
        {} if finals is None else finals.cell(row, DEFAULT),
        trials.subjects[row].metric,
        event.design.trials,
        len(history),
        sum(entry["state"] == "failed" for entry in history),
        best["params"] if best and best["trial"] else None,
        reasons[0] if reasons and best is None else "",
        {} if finals is None else finals.cell(row, HELD_OUT.name),
        sum(entry["seconds"] for entry in history),
    )


def family_results(tournament: Tournament, table: Mapping[str, Family]) -> list[FamilyResult]:
    """Returns the results of every family that takes part, if only by what is not begun."""
    results = []
    for name in dict.fromkeys(event.family for event in tournament.events):
        events = [event for event in tournament.events if event.family == name]
        rows = [entry.label for entry in events[0].design.methods]
        cells = {(row, event.dataset): read_cell(row, event, tournament) for row in rows for event in events}
        begun_rows = {row for (row, _), cell in cells.items() if cell.trials}
        begun_columns = {column for (_, column), cell in cells.items() if cell.trials}
        shown = {key: cell for key, cell in cells.items() if key[0] in begun_rows and key[1] in begun_columns}
        results.append(FamilyResult(name, table[name], shown, rows, [event.dataset for event in events]))
    return results
