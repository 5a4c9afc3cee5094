"""Runs a tuning: trials on validation nodes, then the default and the chosen values once more, scored on test nodes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from graft.errors import InputError, RunError
from graft.experiments.experiment import Experiment, ExperimentSettings
from graft.experiments.many_runs import Outcome, Report, default_jobs, exclusive
from graft.experiments.progress_log import logged
from graft.experiments.sweep.plan import suit
from graft.experiments.sweep.sweep import as_list
from graft.experiments.tuning.design import FINAL_SEEDS, SEEDS, TRIALS, Design
from graft.experiments.tuning.finals import Finals
from graft.experiments.tuning.optuna_study import FILE, MethodStudy, check_optuna, open_storage
from graft.experiments.tuning.space import Changes, parse_search
from graft.experiments.tuning.subject import Subject, examine
from graft.experiments.tuning.trials import Trials
from graft.experiments.tuning.tuning import Tuning
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
        tell = report or (lambda _: None)
        trials = Trials(design, subjects, studies, tell, timeout)
        stopped = trials.run(workers)
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graft-tune-")))
        finals = Finals(design, subjects, studies, folder)
        outcome = Outcome(stopped=True) if stopped else finals.run(workers, tell)
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
    return MethodStudy(
        storage,
        subject.candidate.label,
        subject.space,
        subject.values,
        higher=subject.higher,
        rounds=subject.experiment.rounds,
        seed=design.seeds[0],
    )
