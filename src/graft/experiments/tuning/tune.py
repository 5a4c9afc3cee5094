"""Runs a tuning: trials on validation nodes, then the default and the chosen values once more, scored on test nodes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from graft.errors import InputError, RunError
from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.experiment import Experiment, ExperimentSettings
from graft.experiments.identity import comparable, experiment_hash
from graft.experiments.many_runs import Outcome, Report, check_jobs, default_jobs, exclusive
from graft.experiments.progress_log import logged
from graft.experiments.sweep.plan import PlannedRun, plan_runs, resolve, run_planned, suit
from graft.experiments.sweep.sweep import as_list, run_folder
from graft.experiments.tuning.design import FINAL_SEEDS, SEEDS, TRIALS, Candidate, Design
from graft.experiments.tuning.optuna_study import FILE, MethodStudy, check_optuna, open_storage
from graft.experiments.tuning.space import FIELDS, OWN, Changes, describe_space, parse_search, with_values
from graft.experiments.tuning.trial import TrialOrder, TrialOutcome
from graft.experiments.tuning.tuning import Tuning
from graft.experiments.tuning.workers import run_trials
from graft.federation.metric_names import METRICS, parse_metrics
from graft.fields import Search, rules
from graft.files import explained

NOT_OF_A_TUNING = ("seed",)  # fields that trials of one tuning do not share


def tune(
    methods: Any = "fedgkc",
    dataset: Any = "digits",
    *,
    models: Any = None,
    trials: int = TRIALS,
    seeds: int | Sequence[int] = SEEDS,
    final_seeds: int | Sequence[int] = FINAL_SEEDS,
    space: Mapping[str, Search | str] | None = None,
    fix: Mapping[str, Any] | Sequence[str] = (),
    search: Sequence[str] = (),
    jobs: int = 1,
    timeout: float | None = None,
    out: str | Path | None = None,
    report: Report | None = None,
    **settings: Unpack[ExperimentSettings],
) -> Tuning:
    """Searches values that suit methods on validation nodes, with the same budget for each; without `out` no file is
    kept.

    The first trial of a method has the values that it would have without a tuning. `space` changes what is tried, as
    `{"learning_rate": "0.001..0.1:log"}`, `fix` keeps fields as they are or at a value, and `search` keeps all but
    these. With the same `out` it goes on; with one job that gives what an unbroken call would give. `report` is called
    with a dictionary after every trial, and after every run at the end.
    """
    values: dict[str, Any] = {**settings, **({} if models is None else {"models": models})}
    if not (values.get("graphs") and dataset == Experiment.dataset):
        values["dataset"] = dataset
    chosen = choose_seeds(seeds, values.pop("seed", 0))
    fixed = dict(fix) if isinstance(fix, Mapping) else {}
    design = Design(
        as_list(methods),
        settings=values.pop("settings", {}),
        values=values,
        changes=Changes(
            {name: parse_search(entry) if isinstance(entry, str) else entry for name, entry in (space or {}).items()},
            fixed,
            () if isinstance(fix, Mapping) else as_list(fix),
            as_list(search),
        ),
        trials=trials,
        seeds=chosen,
        final_seeds=choose_seeds(final_seeds, max(chosen, default=-1) + 1),
    )
    return run_design(design, None if out is None else Path(out), jobs=jobs, timeout=timeout, report=report)


def choose_seeds(seeds: int | Sequence[int], first: int) -> tuple[int, ...]:
    """Returns the seeds that were asked for: those of a list, or so many from the first one on."""
    return tuple(range(first, first + seeds)) if isinstance(seeds, int) else tuple(dict.fromkeys(seeds))


@dataclass(frozen=True)
class Subject:
    """A method that is tuned, with all that is known of it before the first trial."""

    candidate: Candidate
    default: PlannedRun  # its experiment with the first seed
    space: Mapping[str, tuple[Search, bool]]  # with whether only whole numbers will do
    values: dict[str, Any]  # of the fields in the space, as they are without a tuning

    @property
    def experiment(self) -> Experiment:
        return self.default.experiment

    @property
    def identity(self) -> dict[str, Any]:
        """Returns what a tuning must find unchanged when it goes on."""
        fields_compared = comparable(asdict(self.experiment))
        settings = fields_compared.pop("settings")
        fields_compared |= {f"{OWN}{name}": value for name, value in settings.items()}
        shared = {name: value for name, value in fields_compared.items() if name not in NOT_OF_A_TUNING}
        space = {f"space of {name}": str(search) for name, (search, _) in self.space.items()}
        return {**shared, **space, **self.default.hashes}


def examine(candidate: Candidate, changes: Changes, seed: int) -> Subject:
    """Returns a method with its default values; refuses a space with values that it cannot have."""
    (planned,) = plan_runs([{**candidate.variant, "seed": seed}], lambda _row, _column, _seed: Path())
    experiment = planned.experiment
    method = planned.given.method_of(experiment)
    space, values = {}, {}
    for name, search in candidate.space.items():
        of_experiment = name in FIELDS
        own = name.removeprefix(OWN)
        rule = (rules(Experiment) if of_experiment else rules(type(method))).get(own)
        space[name] = search, bool(rule and rule.whole)
        values[name] = getattr(experiment, name) if of_experiment else experiment.settings[own]
        for value in search.ends if name in changes.space else ():
            resolve(with_values(candidate.variant, {name: value}))
    return Subject(candidate, planned, space, values)


def run_design(
    design: Design,
    out: Path | None = None,
    *,
    jobs: int | None = None,
    timeout: float | None = None,
    report: Report | None = None,
) -> Tuning:
    """Runs what is missing of a tuning, in a folder or without one."""
    check_optuna()
    check_jobs(jobs)
    candidates = design.candidates()
    suited = suit([candidate.variant for candidate in candidates])
    subjects = {
        candidate.label: examine(replace(candidate, variant=variant), design.changes, design.seeds[0])
        for candidate, variant in zip(candidates, suited, strict=True)
    }
    with ExitStack() as stack:
        if out is not None:
            begin_folder(out)
            stack.enter_context(exclusive(out, "graft tune"))
        storage = stack.enter_context(open_storage(out))
        studies = {label: open_study(storage, subject, design) for label, subject in subjects.items()}
        for label, study in studies.items():
            study.begin({**subjects[label].identity, "seeds": list(design.seeds)})
        first = next(iter(subjects.values()))
        workers = jobs or default_jobs(first.experiment.torch_device().type)
        if not all(subject.default.crosses_processes for subject in subjects.values()):
            workers = 1
        if out is not None:
            report = logged(out, design.trials * len(subjects), report)
        trials = Trials(design, subjects, studies, report or (lambda _: None), timeout)
        stopped = trials.run(workers)
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graft-tune-")))
        finals = Finals(design, subjects, studies, folder)
        outcome = Outcome(stopped=True) if stopped else finals.run(workers, report)
        tuning = finals.collect(out, outcome, stopped=outcome.stopped or trials.short)
        if out is not None:
            tuning.write()
        if not tuning.experiments and not stopped:
            raise RunError(f"No trial is complete: {trials.last_reason or 'none was run'}")
        return tuning


def begin_folder(out: Path) -> None:
    """Makes the folder of a tuning; one that holds something else is refused."""
    with explained(f"{out} cannot be written to", InputError):
        if out.is_file():
            raise InputError(f"{out} is a file; a tuning needs a directory.")
        if out.is_dir() and any(out.iterdir()) and not (out / FILE).is_file():
            raise InputError(f"{out} holds something else than a tuning; choose another --out.")
        out.mkdir(parents=True, exist_ok=True)


def open_study(storage: Any, subject: Subject, design: Design) -> MethodStudy:
    experiment = subject.experiment
    return MethodStudy(
        storage,
        subject.candidate.label,
        subject.space,
        subject.values,
        higher=METRICS[parse_metrics(experiment.metric)[0]].higher,
        rounds=experiment.rounds,
        seed=design.seeds[0],
    )


@dataclass
class Trials:
    """The trials of all methods, in turn, so that all have had as many whenever they end."""

    design: Design
    subjects: Mapping[str, Subject]
    studies: Mapping[str, MethodStudy]
    report: Report
    timeout: float | None = None
    begun: float = field(default_factory=time.monotonic)
    last_reason: str = ""
    short: bool = False  # whether the time was over before the trials were

    def run(self, jobs: int) -> bool:
        """Runs the trials that are left; returns whether Ctrl-C ended them."""
        try:
            run_trials(self.orders(), self.hear, self.end, jobs)
        except KeyboardInterrupt:
            return True
        return False

    def orders(self) -> Iterator[TrialOrder]:
        """Asks for the next trial whenever there is room for one; when the time is over, of no method more than of
        another."""
        started = {label: len(study.history) for label, study in self.studies.items()}
        while True:
            label = min(started, key=lambda name: started[name])
            if started[label] >= self.design.trials:
                return
            if (
                self.timeout is not None
                and time.monotonic() - self.begun > self.timeout
                and len(set(started.values())) == 1
            ):
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
        already fail of it."""
        if outcome.bad_input and order.number == 0:
            raise InputError(outcome.reason)
        study = self.studies[order.method]
        study.end(order.number, outcome)
        self.last_reason = outcome.reason or self.last_reason
        history = study.history
        best = best_of(history, study.higher)
        self.report(
            {
                "method": order.method,
                "metric": parse_metrics(self.subjects[order.method].experiment.metric)[0],
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


def best_of(history: Sequence[Mapping[str, Any]], higher: bool) -> dict[str, Any] | None:
    """Returns the best complete trial, of equal ones the first, so that nothing is chosen which gains nothing."""
    complete = [dict(row) for row in history if row["state"] == "complete"]
    if not complete:
        return None
    best: Callable[..., dict[str, Any]] = max if higher else min
    return best(complete, key=lambda row: row["validation"])


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
        self.runs = plan_runs(variants, lambda row, column, seed: run_folder(folder, row, column, seed))
        self.finished: dict[str, FinishedRun] = {}  # by the hash of the experiment

    def variant(self, label: str, chosen: bool, seed: int) -> dict[str, Any]:
        """Returns the values of an experiment: those of the default, or with the chosen ones."""
        best = self.best[label]
        params = best["params"] if best and chosen and best["trial"] else {}
        return with_values({**self.subjects[label].candidate.variant, "seed": seed}, params)

    def run(self, jobs: int, report: Report | None) -> Outcome:
        return run_planned(self.runs, jobs=jobs, report=report) if self.runs else Outcome()

    def collect(self, out: Path | None, outcome: Outcome, *, stopped: bool) -> Tuning:
        """Returns what was found out so far."""
        for planned in self.runs:
            run = planned.read()
            if run is not None:
                self.finished[experiment_hash(asdict(planned.experiment))] = run
        first = next(iter(self.subjects.values())).experiment
        metric = parse_metrics(first.metric)[0]
        summary = {
            "metric": metric,
            "higher": METRICS[metric].higher,
            "trials": self.design.trials,
            "seeds": list(self.design.seeds),
            "final_seeds": list(self.design.final_seeds),
            "rounds": first.rounds,
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
        experiment = self.subjects[label].experiment
        metric = parse_metrics(experiment.metric)[0]
        name = "test_global" if experiment.score == "global" else "test"
        scores: dict[str, float | None] = {}
        for seed in self.design.final_seeds:
            key = experiment_hash(asdict(resolve(self.variant(label, chosen, seed))[0]))
            if key in self.finished:
                scores[str(seed)] = self.finished[key].score(metric, name)
        return scores or None
