"""The end of a tuning: the default and the chosen values on seeds that no trial used, scored on test nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.identity import experiment_hash
from graft.experiments.many_runs import Outcome, Report, file_name
from graft.experiments.run_cluster import RunCluster
from graft.experiments.sweep.plan import PlannedRun, plan_runs, resolve, run_planned
from graft.experiments.sweep.sweep import run_folder
from graft.experiments.tuning.space import describe_space, with_values
from graft.experiments.tuning.trials import Trials, best_of
from graft.experiments.tuning.tuning import Tuning
from graft.federation.metric_names import METRICS

DEFAULT, TUNED = "default", "tuned"  # with the values of the default, and with the chosen ones


class Again(NamedTuple):
    """Runs with the chosen values and other fields of the experiment, for some methods."""

    name: str  # of these runs, beside the default and the tuned ones
    changes: Mapping[str, Any]  # fields of the experiment
    wanted: Callable[[Mapping[str, Any]], bool]  # by all fields of the experiment with the chosen values


class Final(NamedTuple):
    """One of the runs at the end."""

    label: str  # of what was tuned
    values: str  # with which values: DEFAULT, TUNED or the name of an `Again`
    seed: int

    @property
    def folder(self) -> str:
        return f"{self.values}-seed{self.seed}"

    def __str__(self) -> str:
        return f"{self.label} {self.values}, seed {self.seed}"


class Finals:
    """The runs at the end: the default and the chosen values of every method, with seeds that no trial used."""

    def __init__(
        self,
        trials: Trials,
        folder: Path,
        *,
        importance: bool = True,
        brief: bool = False,
        again: Again | None = None,
        counting: Mapping[str, str] | None = None,
    ) -> None:
        """Plans the runs; `importance` is whether the share of each field in the scores is looked for, and `brief`
        whether the record of a run is one small file, without its rounds. What runs `again` has by `counting` the
        values that count, of each method."""
        self.importance = importance  # which takes longer than all else here
        self.again, self.counting = again, counting or {}
        self.design, self.subjects, self.studies = trials.design, trials.subjects, trials.studies
        self.histories = {label: study.history for label, study in self.studies.items()}
        self.best = {label: best_of(self.histories[label], study.higher) for label, study in self.studies.items()}
        self.keys = {
            Final(label, values, seed): experiment_key(self.variant(label, values, seed))
            for label, best in self.best.items()
            if best is not None
            for values in self.kinds(label)
            for seed in self.design.final_seeds
        }
        self.by_key: dict[str, Final] = {}  # the default's, where its values are the chosen ones
        for final, key in self.keys.items():
            self.by_key.setdefault(key, final)
        self.runs: list[PlannedRun] = []
        if self.keys:
            for planned in plan_runs([self.variant(*final) for final in self.keys], partial(run_folder, folder)):
                final = self.by_key[experiment_hash(asdict(planned.experiment))]
                own = folder / "runs" / file_name(final.label) / final.folder
                self.runs.append(replace(planned, row=str(final), folder=own, brief=brief))
        self.finished: dict[str, FinishedRun] = {}  # by the hash of the experiment

    def kinds(self, label: str) -> list[str]:
        """Returns with which values a method runs at the end."""
        kinds = [DEFAULT, TUNED]
        if self.again:
            counting = self.variant(label, self.counting.get(label, TUNED), self.design.seeds[0])
            kinds += [self.again.name] if self.again.wanted(asdict(resolve(counting)[0])) else []
        return kinds

    def variant(self, label: str, values: str, seed: int) -> dict[str, Any]:
        """Returns the values of an experiment: those of the default, or with the chosen ones, perhaps again."""
        best, changes = self.best[label], dict[str, Any]()
        if self.again and values == self.again.name:
            values, changes = self.counting.get(label, TUNED), dict(self.again.changes)
        params = best["params"] if best and values != DEFAULT and best["trial"] else {}
        return with_values({**self.subjects[label].candidate.variant, **changes, "seed": seed}, params)

    @property
    def names(self) -> dict[str, str]:
        """Returns for each run, by its folder or file, the method and whether its values are the chosen ones."""
        return {str(run.path): str(self.by_key[experiment_hash(asdict(run.experiment))]) for run in self.runs}

    def run(self, jobs: int | None, report: Report, cluster: RunCluster | None = None) -> Outcome:
        """Runs what is not finished; each run is told of by its method, and whether its values are the chosen ones."""
        return run_finals({"": self}, jobs, report, cluster)

    def read(self) -> None:
        """Reads what is finished and was not read before."""
        for planned in self.missing:
            run = planned.read()
            if run is not None:
                self.finished[experiment_hash(asdict(planned.experiment))] = run

    @property
    def missing(self) -> list[PlannedRun]:
        """Returns the runs of which nothing was read so far."""
        return [run for run in self.runs if experiment_hash(asdict(run.experiment)) not in self.finished]

    def cell(self, label: str, values: str) -> dict[int, FinishedRun]:
        """Returns the finished runs of a method by seed, once they were read."""
        keys = {final.seed: key for final, key in self.keys.items() if final[:2] == (label, values)}
        return {seed: self.finished[key] for seed, key in keys.items() if key in self.finished}

    def better(self, label: str) -> str:
        """Returns which values of a method are better by `better_values`, as far as the runs are finished."""
        return better_values(self.cell(label, DEFAULT), self.cell(label, TUNED), self.subjects[label].metric)

    def collect(self, out: Path | None, outcome: Outcome, *, stopped: bool) -> Tuning:
        """Returns what was found out so far."""
        self.read()
        first = next(iter(self.subjects.values()))
        summary = {
            "metric": first.metric,
            "higher": first.higher,
            "trials": self.design.trials,
            "seeds": list(self.design.seeds),
            "final_seeds": list(self.design.final_seeds),
            "rounds": first.experiment.rounds,
            "methods": {label: self.describe(label) for label in self.subjects},
        }
        experiments = {
            label: resolve(self.variant(label, TUNED, self.design.seeds[0]))[0]
            for label, best in self.best.items()
            if best is not None
        }
        runs = list(self.finished.values())
        return Tuning(summary, experiments, runs, out, failures=outcome.failures, stopped=stopped)

    def describe(self, label: str) -> dict[str, Any]:
        """Returns what tuning.json holds of a method."""
        subject, best, history = self.subjects[label], self.best[label], self.histories[label]
        default = next((row for row in history if row["trial"] == 0), None)
        return {
            "space": describe_space(subject.candidate.space),
            "default": {
                "params": subject.values,
                "validation": default and default["validation"],
                "test": self.scores(label, DEFAULT),
            },
            "best": best and {name: best[name] for name in ("params", "validation", "trial")},
            "importance": self.studies[label].importance() if self.importance else {},
            "history": history,
            "test": self.scores(label, TUNED),
        }

    def scores(self, label: str, values: str) -> dict[str, float | None] | None:
        """Returns the test score of every final seed; None before the end."""
        if self.best[label] is None:
            return None
        subject = self.subjects[label]
        name = "test_global" if subject.experiment.score == "global" else "test"
        runs = self.cell(label, values)
        return {str(seed): run.score(subject.metric, name) for seed, run in runs.items()} or None


def better_values(default: Mapping[int, FinishedRun], tuned: Mapping[int, FinishedRun], metric: str) -> str:
    """Returns which values are better on the validation nodes of the seeds at the end, of equal ones the default's.

    One seed of trials can choose values that suit it alone. What is not finished with both is not judged.
    """
    scores = [[run.score(metric, "validation") for run in runs.values()] for runs in (default, tuned)]
    if not tuned or default.keys() != tuned.keys() or None in scores[0] + scores[1]:
        return TUNED
    by_default, chosen = (METRICS[metric].sign * fmean(score or 0.0 for score in values) for values in scores)
    return DEFAULT if by_default >= chosen else TUNED


def experiment_key(variant: Mapping[str, Any]) -> str:
    """Returns the hash of the experiment of some values."""
    return experiment_hash(asdict(resolve(variant)[0]))


def run_finals(
    finals: Mapping[str, Finals], jobs: int | None, report: Report, cluster: RunCluster | None = None
) -> Outcome:
    """Runs what is not finished of several tunings, by their names, at once."""
    for entry in finals.values():
        entry.read()
    runs = [replace(run, row=f"{name}: {run.row}") for name, entry in finals.items() for run in entry.missing]
    if not runs:
        return Outcome()
    names = {path: f"{name} {text}".strip() for name, entry in finals.items() for path, text in entry.names.items()}
    outcome = run_planned(
        runs,
        jobs=jobs,
        report=lambda message: report({**message, "cell": names[message["path"]]}),
        cluster=cluster,
    )
    long_names = {planned.name: names[str(planned.path)] for planned in runs}
    return replace(outcome, failures={long_names[name]: why for name, why in outcome.failures.items()})
