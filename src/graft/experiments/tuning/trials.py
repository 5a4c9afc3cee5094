"""The trials of all methods of a tuning: who is next, what is told of each, and which was best."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graft.errors import InputError
from graft.experiments.many_runs import Message, Report
from graft.experiments.sweep.plan import PlannedRun
from graft.experiments.tuning.design import Design
from graft.experiments.tuning.optuna_study import MethodStudy
from graft.experiments.tuning.space import with_values
from graft.experiments.tuning.subject import Subject
from graft.experiments.tuning.trial import TrialOrder, TrialOutcome
from graft.experiments.tuning.workers import Ends, Hears

RunAll = Callable[[Iterator[TrialOrder], Hears, Ends], None]  # runs trials here or elsewhere


def silent(message: Message) -> None:
    """Tells nobody."""


@dataclass
class Trials:
    """The trials of all methods, in turn, so that all have had as many whenever they end."""

    design: Design
    subjects: Mapping[str, Subject]
    studies: Mapping[str, MethodStudy]
    report: Report = silent
    deadline: float = math.inf  # of the monotonic clock
    last_reason: str = ""
    short: bool = False  # whether the time was over before the trials were
    lenient: bool = False  # whether the tuning goes on where the defaults of a method cannot be run at all

    @property
    def defaults(self) -> list[PlannedRun]:
        """Returns the experiment of every method as it is without a tuning."""
        return [subject.default for subject in self.subjects.values()]

    @property
    def left(self) -> bool:
        """Returns whether any trial is still to be run."""
        return any(len(study.history) < self.design.trials for study in self.studies.values())

    def orders(self) -> Iterator[TrialOrder]:
        """Asks for the next trial whenever there is room for one; when the time is over, of no method more than of
        another."""
        started = {label: len(study.history) for label, study in self.studies.items()}
        while True:
            label = min(started, key=lambda name: started[name])
            if started[label] >= self.design.trials:
                return
            if time.monotonic() > self.deadline and len(set(started.values())) == 1:
                self.short = True
                return
            started[label] += 1
            number, values = self.studies[label].ask()
            variant = with_values(self.subjects[label].candidate.variant, values if number else {})
            yield TrialOrder(label, number, variant, tuple(self.design.seeds))

    def hear(self, order: TrialOrder, rounds: int, score: float) -> bool:
        return self.studies[order.method].hear(order.number, rounds, score)

    def end(self, order: TrialOrder, outcome: TrialOutcome) -> None:
        """Puts a trial on record and tells of it; what a person has to change ends the tuning where the defaults
        already fail of it, unless it is lenient."""
        if outcome.bad_input and order.number == 0 and not self.lenient:
            raise InputError(outcome.reason)
        study = self.studies[order.method]
        study.end(order.number, outcome)
        self.last_reason = outcome.reason or self.last_reason
        history = study.history
        best = best_of(history, study.higher)
        self.report(
            {
                "method": order.method,
                "metric": self.subjects[order.method].metric,
                "trial": order.number,
                "state": outcome.state,
                "validation": outcome.validation,
                "best": best and best["validation"],
                "best_trial": best and best["trial"],
                "params": next(row["params"] for row in history if row["trial"] == order.number),
                "reason": outcome.reason,
                "seconds": outcome.seconds,
                "done": sum(len(entry.history) for entry in self.studies.values()),
                "total": self.design.trials * len(self.studies),
            }
        )


@dataclass(frozen=True)
class ManyTrials:
    """The trials of several tunings, one after the other: while the last ones of a tuning run, the next has begun."""

    tunings: Mapping[str, Trials]

    def run(self, run_all: RunAll) -> bool:
        """Runs the trials that are left; returns whether Ctrl-C ended them."""
        try:
            run_all(self.orders(), self.hear, self.end)
        except KeyboardInterrupt:
            return True
        return False

    def orders(self) -> Iterator[TrialOrder]:
        for name, trials in self.tunings.items():
            for order in trials.orders():
                yield replace(order, tuning=name)

    def hear(self, order: TrialOrder, rounds: int, score: float) -> bool:
        return self.tunings[order.tuning].hear(order, rounds, score)

    def end(self, order: TrialOrder, outcome: TrialOutcome) -> None:
        self.tunings[order.tuning].end(order, outcome)


def best_of(history: Sequence[Mapping[str, Any]], higher: bool) -> dict[str, Any] | None:
    """Returns the best complete trial, of equal ones the first, so that nothing is chosen which gains nothing."""
    complete = [dict(row) for row in history if row["state"] == "complete"]
    if not complete:
        return None
    best: Callable[..., dict[str, Any]] = max if higher else min
    return best(complete, key=lambda row: row["validation"])
