"""Runs a tournament: the trials of all its events by one crew of processes, then the runs at the end of all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graft.engines.threads import cores
from graft.errors import InputError, RunError
from graft.experiments.comparison.finished_runs import no_rounds
from graft.experiments.many_runs import Message, Outcome, Report, exclusive
from graft.experiments.progress_log import logged
from graft.experiments.sweep.plan import PlannedRun
from graft.experiments.tournament.families import judges
from graft.experiments.tournament.plan import Event
from graft.experiments.tuning.finals import Again, Finals, run_finals
from graft.experiments.tuning.optuna_study import check_optuna
from graft.experiments.tuning.trials import ManyTrials, Trials
from graft.experiments.tuning.tune import choose_jobs, deadline_of, open_trials
from graft.experiments.tuning.workers import run_trials
from graft.files import explained, parse_json, read_text
from graft.options import check_jobs

COMMAND = "graft reproduce tournament"
CALLS = "calls.jsonl"
# What judges by validation labels in training runs once more at the end without them.
HELD_OUT = Again("held-out", {"judge_on": "training"}, judges)


@dataclass(frozen=True)
class Tournament:
    """What a tournament found out so far."""

    events: Sequence[Event]
    trials: Mapping[str, Trials]  # by the name of the event
    finals: Mapping[str, Finals]  # of methods whose trials are over, with the runs that are finished
    calls: Sequence[Mapping[str, Any]] = ()  # of the command: with how many processes, on which device
    stopped: bool = False  # by Ctrl-C, or when the time was over: the same call goes on
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Returns whether every run at the end is finished."""
        over = [len(entry.finished) == len(entry.runs) for entry in self.finals.values()]
        return all(over) and not any(trials.left for trials in self.trials.values())

    @property
    def searches(self) -> tuple[int, int]:
        """Returns how many searches, of a method on a dataset each, are done, and how many there are."""
        trials = self.trials.values()
        return sum(len(labels_over(entry)) for entry in trials), sum(len(entry.studies) for entry in trials)


def run_tournament(
    events: Sequence[Event],
    out: Path,
    *,
    jobs: int | None = None,
    timeout: float | None = None,
    report: Report | None = None,
    run: bool = True,
) -> Tournament:
    """Runs what is missing of some events, each in a folder of its own; with `run` off only reads what there is.

    When the time is over no trial begins but those that give all methods of an event as many, and no run at the end.
    """
    check_optuna()
    check_jobs(jobs)
    deadline = deadline_of(timeout)
    with ExitStack() as stack:
        begin_folder(out)
        stack.enter_context(exclusive(out, COMMAND))
        trials = {event.name: stack.enter_context(open_trials(event.design, out / event.name)) for event in events}
        stopped, failures = False, dict[str, str]()
        if run:
            tell = logged(out, sum(map(planned_of, trials.values())), report)
            stopped = run_all_trials(trials, out, jobs, deadline, tell)
        over = {name: entry for name, entry in trials.items() if labels_over(entry)}
        finals = dict[str, Finals]()
        for _ in ("default and chosen values", "once more with the better of both"):
            finals = {name: plan_finals(entry, out / name, finals.get(name)) for name, entry in over.items()}
            if run and not stopped:
                outcome = run_until(finals, out, jobs, deadline, tell)
                stopped, failures = outcome.stopped, {**failures, **outcome.failures}
            for entry in finals.values():
                entry.read()
        for name, entry in finals.items():
            tuning = entry.collect(out / name, Outcome(), stopped=stopped)
            if not trials[name].left:
                tuning.write()
            # The scores of all rounds, of which there are a great many, are let go.
            entry.finished = {key: replace(run, read_rounds=no_rounds) for key, run in entry.finished.items()}
    return Tournament(events, trials, finals, read_calls(out), stopped, failures)


def labels_over(trials: Trials) -> list[str]:
    """Returns the methods whose trials are over."""
    return [label for label, study in trials.studies.items() if len(study.history) >= trials.design.trials]


def plan_finals(trials: Trials, folder: Path, before: Finals | None = None) -> Finals:
    """Returns the runs at the end of the methods whose trials are over: those with the default and the chosen values,
    and after them (`before`) also what runs once more with the better of both."""
    over = labels_over(trials)
    subjects, studies = (
        {label: trials.subjects[label] for label in over},
        {label: trials.studies[label] for label in over},
    )
    trials = replace(trials, subjects=subjects, studies=studies)
    if before is None:
        return Finals(trials, folder, importance=False, brief=True)
    counting = {label: before.better(label) for label in over}
    finals = Finals(trials, folder, importance=False, brief=True, again=HELD_OUT, counting=counting)
    finals.finished |= before.finished  # is not read twice
    return finals


def begin_folder(out: Path) -> None:
    with explained(f"{out} cannot be written to", InputError):
        if out.is_file():
            raise InputError(f"{out} is a file; a tournament needs a directory.")
        out.mkdir(parents=True, exist_ok=True)


def note_call(out: Path, jobs: int, runs: Sequence[PlannedRun]) -> None:
    """Puts on record with how many processes, and on which device, this call works."""
    on_gpu = runs[0].experiment.torch_device().type == "cuda"
    device = torch.cuda.get_device_name() if on_gpu else f"a CPU with {cores()} cores"
    with explained(f"{out / CALLS} cannot be written to", RunError), (out / CALLS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"processes": jobs, "device": device}) + "\n")


def read_calls(out: Path) -> list[dict[str, Any]]:
    """Returns with how many processes, and on which device, the calls worked so far."""
    path = out / CALLS
    with explained(f"{path} cannot be read", InputError):
        return [parse_json(line) for line in read_text(path).splitlines()] if path.exists() else []


def planned_of(trials: Trials) -> int:
    """Returns how many trials there are in all."""
    return trials.design.trials * len(trials.studies)


def run_all_trials(trials: Mapping[str, Trials], out: Path, jobs: int | None, deadline: float, tell: Report) -> bool:
    """Runs the trials of all events by the same workers; returns whether Ctrl-C, or the time, ended them."""
    total = sum(map(planned_of, trials.values()))
    done = sum(len(study.history) for entry in trials.values() for study in entry.studies.values())

    def pass_on(name: str, message: Message) -> None:
        nonlocal done
        done += 1
        tell({**message, "method": f"{name} {message['method']}", "done": done, "total": total})

    left = {name: entry for name, entry in trials.items() if entry.left}
    for name, entry in left.items():
        own = logged(out / name, planned_of(entry), partial(pass_on, name))  # for those who watch one of them
        entry.deadline, entry.report, entry.lenient = deadline, own, True
    if not left:
        return False
    defaults = [run for entry in left.values() for run in entry.defaults]
    jobs = choose_jobs(jobs, defaults)
    note_call(out, jobs, defaults)
    interrupted = ManyTrials(left).run(partial(run_trials, jobs=jobs))
    return interrupted or any(entry.short for entry in left.values())


def run_until(finals: Mapping[str, Finals], out: Path, jobs: int | None, deadline: float, tell: Report) -> Outcome:
    """Runs what is missing of the runs at the end until the time is over, which is like Ctrl-C."""
    for entry in finals.values():
        entry.read()
    missing = [run for entry in finals.values() for run in entry.missing]
    if missing:
        note_call(out, choose_jobs(jobs, missing), missing)

    def hear(message: Message) -> None:
        tell(message)
        if time.monotonic() > deadline:
            raise KeyboardInterrupt

    return run_finals(finals, jobs, hear)
