"""The end of a tuning: the default and the chosen values on seeds that no trial used, scored on test nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.identity import experiment_hash
from graft.experiments.many_runs import Outcome, Report
from graft.experiments.run_cluster import RunCluster
from graft.experiments.sweep.plan import PlannedRun, plan_runs, resolve, run_planned
from graft.experiments.sweep.sweep import run_folder
from graft.experiments.tuning.design import Design
from graft.experiments.tuning.optuna_study import MethodStudy
from graft.experiments.tuning.space import describe_space, with_values
from graft.experiments.tuning.subject import Subject
from graft.experiments.tuning.trials import best_of
from graft.experiments.tuning.tuning import Tuning


class Finals:
    """The runs at the end: the default and the chosen values of every method, with seeds that no trial used."""

    def __init__(
        self, design: Design, subjects: Mapping[str, Subject], studies: Mapping[str, MethodStudy], folder: Path
    ) -> None:
        self.design, self.subjects, self.studies = design, subjects, studies
        self.histories = {label: study.history for label, study in studies.items()}
        self.best = {label: best_of(self.histories[label], study.higher) for label, study in studies.items()}
        variants = [
            self.variant(label, chosen, seed)
            for label, best in self.best.items()
            for chosen in (False, True)
            for seed in design.final_seeds
            if best is not None
        ]
        self.runs: list[PlannedRun] = []
        if variants:
            self.runs = plan_runs(variants, lambda row, column, seed: run_folder(folder, row, column, seed))
        self.finished: dict[str, FinishedRun] = {}  # by the hash of the experiment

    def variant(self, label: str, chosen: bool, seed: int) -> dict[str, Any]:
        """Returns the values of an experiment: those of the default, or with the chosen ones."""
        best = self.best[label]
        params = best["params"] if best and chosen and best["trial"] else {}
        return with_values({**self.subjects[label].candidate.variant, "seed": seed}, params)

    def run(self, jobs: int | None, report: Report, cluster: RunCluster | None = None) -> Outcome:
        """Runs what is not finished; each run is told of by its method, and whether its values are the chosen ones."""
        if not self.runs:
            return Outcome()
        names: dict[str, str] = {}
        for planned in self.runs:
            label = self.label_of(planned)
            default = resolve(self.variant(label, False, planned.seed))[0]
            which = "default" if planned.experiment == default else "tuned"
            names[str(planned.folder)] = f"{label} {which}, seed {planned.seed}"
        outcome = run_planned(
            self.runs,
            jobs=jobs,
            report=lambda message: report({**message, "cell": names[message["path"]]}),
            cluster=cluster,
        )
        long_names = {planned.name: names[str(planned.folder)] for planned in self.runs}
        return replace(outcome, failures={long_names[name]: why for name, why in outcome.failures.items()})

    def label_of(self, planned: PlannedRun) -> str:
        """Returns the method that a run is of."""
        own = planned.experiment
        return next(
            label
            for label, subject in self.subjects.items()
            if (subject.experiment.method, subject.experiment.plug) == (own.method, own.plug)
        )

    def collect(self, out: Path | None, outcome: Outcome, *, stopped: bool) -> Tuning:
        """Returns what was found out so far."""
        for planned in self.runs:
            run = planned.read()
            if run is not None:
                self.finished[experiment_hash(asdict(planned.experiment))] = run
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
            label: resolve(self.variant(label, True, self.design.seeds[0]))[0]
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
                "test": self.scores(label, chosen=False),
            },
            "best": best and {name: best[name] for name in ("params", "validation", "trial")},
            "importance": self.studies[label].importance(),
            "history": history,
            "test": self.scores(label, chosen=True),
        }

    def scores(self, label: str, *, chosen: bool) -> dict[str, float | None] | None:
        """Returns the test score of every final seed; None before the end."""
        if self.best[label] is None:
            return None
        subject = self.subjects[label]
        name = "test_global" if subject.experiment.score == "global" else "test"
        scores: dict[str, float | None] = {}
        for seed in self.design.final_seeds:
            key = experiment_hash(asdict(resolve(self.variant(label, chosen, seed))[0]))
            if key in self.finished:
                scores[str(seed)] = self.finished[key].score(subject.metric, name)
        return scores or None
