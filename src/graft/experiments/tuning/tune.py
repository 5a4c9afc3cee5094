"""Runs a tuning: trials on validation nodes, then the default and the chosen values once more, scored on test nodes."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from graft.errors import InputError, RunError
from graft.experiments.experiment import Experiment
from graft.experiments.experiment_settings import ExperimentSettings
from graft.experiments.many_runs import Outcome, Report, default_jobs, exclusive
from graft.experiments.progress_log import logged
from graft.experiments.run_cluster import RunCluster, choose_cluster
from graft.experiments.sweep.plan import PlannedRun, suit
from graft.experiments.sweep.sweep import as_list
from graft.experiments.tuning.cluster_workers import open_crew
from graft.experiments.tuning.design import FINAL_SEEDS, SEEDS, TRIALS, Design
from graft.experiments.tuning.finals import Finals
from graft.experiments.tuning.journal import FILE, Journal
from graft.experiments.tuning.optuna_study import MethodStudy, check_optuna
from graft.experiments.tuning.space import Changes, parse_search
from graft.experiments.tuning.subject import Subject, examine
from graft.experiments.tuning.trials import ManyTrials, Trials, silent
from graft.experiments.tuning.tuning import Tuning
from graft.experiments.tuning.workers import run_trials, run_with
from graft.fields import Search
from graft.files import explained
from graft.options import check_jobs


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
    jobs: int | None = None,
    timeout: float | None = None,
    out: str | Path | None = None,
    report: Report | None = None,
    cpus_per_run: int | None = None,
    gpus_per_run: float | None = None,
    **settings: Unpack[ExperimentSettings],
) -> Tuning:
    """Searches values that suit methods on validation nodes, with the same budget for each; without `out` no file is
    kept.

    The first trial of a method has the values that it would have without a tuning. `space` changes what is tried, as
    `{"learning_rate": "0.001..0.1:log"}`, `fix` keeps fields as they are or at a value, and `search` keeps all but
    these. Where nobody says how many jobs, there is one, or with `engine="ray"` as many as the cluster has room for.
    With the same `out` it goes on; with one job that gives what an unbroken call would give. `report` is called with a
    dictionary after every trial, and after every run at the end.
    """
    values, cluster = choose_cluster(settings, cpus_per_run, gpus_per_run)
    values |= {} if models is None else {"models": models}
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
    folder = None if out is None else Path(out)
    jobs = 1 if jobs is None and cluster is None else jobs
    return run_design(design, folder, jobs=jobs, timeout=timeout, report=report, cluster=cluster)


def choose_seeds(seeds: int | Sequence[int], first: int) -> tuple[int, ...]:
    """Returns the seeds that were asked for: those of a list, or so many from the first one on."""
    return tuple(range(first, first + seeds)) if isinstance(seeds, int) else tuple(dict.fromkeys(seeds))


def run_design(
    design: Design,
    out: Path | None = None,
    *,
    jobs: int | None = None,
    timeout: float | None = None,
    report: Report | None = None,
    cluster: RunCluster | None = None,
) -> Tuning:
    """Runs what is missing of a tuning, in a folder or without one."""
    check_optuna()
    check_jobs(jobs)
    with ExitStack() as stack:
        trials = stack.enter_context(open_trials(design, out))
        trials.deadline = deadline_of(timeout)
        tell = trials.report = logged(out, design.trials * len(trials.subjects), report) if out else report or silent
        many = ManyTrials({"": trials})
        stopped = False
        if cluster is None:
            jobs = choose_jobs(jobs, trials.defaults)
            stopped = many.run(partial(run_trials, jobs=jobs))
        elif trials.left:
            crew, most = stack.enter_context(open_crew(cluster, jobs, trials.defaults))
            stopped = many.run(partial(run_with, crew, jobs=most))
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graft-tune-")))
        finals = Finals(trials, folder)
        outcome = Outcome(stopped=True) if stopped else finals.run(jobs, tell, cluster)
        tuning = finals.collect(out, outcome, stopped=outcome.stopped or trials.short)
        if out is not None:
            tuning.write()
        if not tuning.experiments and not stopped:
            raise RunError(f"No trial is complete: {trials.last_reason or 'none was run'}")
        return tuning


@contextmanager
def open_trials(design: Design, out: Path | None = None) -> Iterator[Trials]:
    """Opens the trials of a design in a folder, which nobody else works in, or without one; what cannot be is
    refused."""
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
        journal = Journal(out)
        studies = {label: open_study(journal, subject, design) for label, subject in subjects.items()}
        for label, study in studies.items():
            study.begin({**subjects[label].identity, "seeds": list(design.seeds)})
        yield Trials(design, subjects, studies)


def deadline_of(timeout: float | None) -> float:
    """Returns when so many seconds are over, by the monotonic clock."""
    return math.inf if timeout is None else time.monotonic() + timeout


def choose_jobs(jobs: int | None, defaults: Sequence[PlannedRun]) -> int:
    """Returns how many processes trials are run in: one where objects were given, which stay in this one."""
    if not all(run.crosses_processes for run in defaults):
        return 1
    return jobs or default_jobs(defaults[0].experiment.torch_device().type)


def begin_folder(out: Path) -> None:
    """Makes the folder of a tuning; one that holds something else is refused."""
    with explained(f"{out} cannot be written to", InputError):
        if out.is_file():
            raise InputError(f"{out} is a file; a tuning needs a directory.")
        if out.is_dir() and any(out.iterdir()) and not (out / FILE).is_file():
            raise InputError(f"{out} holds something else than a tuning; choose another --out.")
        out.mkdir(parents=True, exist_ok=True)


def open_study(journal: Journal, subject: Subject, design: Design) -> MethodStudy:
    return MethodStudy(
        journal,
        subject.candidate.label,
        subject.space,
        subject.values,
        higher=subject.higher,
        rounds=subject.experiment.rounds,
        seed=design.seeds[0],
    )
