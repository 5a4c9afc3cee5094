"""`graft watch`: a look at runs of another process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from graft.cli.console import say
from graft.cli.many_view import ManyState, ManyView, outcome_of
from graft.cli.progress import is_terminal, scores, showing
from graft.cli.run_state import WAYS, RunState, describe, short_time, size_text
from graft.errors import InputError
from graft.experiments.following import (
    FINISHED,
    PATIENCE,
    RUNNING,
    STOPPED,
    FollowedRun,
    FollowedRuns,
    FollowedTuning,
    ManyRuns,
    follow,
)
from graft.experiments.record_files import FEDERATION
from graft.federation.metric_names import METRICS, format_metric, parse_metrics

SHORTEST = 0.1  # seconds between two looks


def watch(
    directory: Annotated[Path, typer.Argument(help="The folder of a run, a sweep, a study or a tuning.")],
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Say how far it is, and end.")] = False,
) -> None:
    """Look at runs of another process, or of another machine on a shared disk, until they end."""
    if not interval >= SHORTEST:
        raise InputError(f"--interval is {interval:g}; it must be at least {SHORTEST} seconds.")
    watched = follow(directory)
    run_watch = RunWatch(watched) if isinstance(watched, FollowedRun) else ManyWatch(watched)
    run_watch.look()
    if once:
        run_watch.tell()
        return
    with watching_politely():
        run_watch.wait(interval)
    run_watch.tell_end()
    if run_watch.status == STOPPED:
        raise typer.Exit(1)


@contextmanager
def watching_politely() -> Iterator[None]:
    """Ctrl-C ends the look, not what is looked at."""
    try:
        yield
    except KeyboardInterrupt:
        say("No longer watching; the run goes on by itself.")
        raise typer.Exit(0) from None


class RunWatch:
    """A look at one run."""

    def __init__(self, run: FollowedRun) -> None:
        self.run, self.status = run, RUNNING
        self.state = self.fresh_state()
        self.told = 0  # the round of the last plain line

    def fresh_state(self) -> RunState:
        """Returns the state of the run before its first round."""
        experiment = self.run.experiment
        metric = parse_metrics(experiment.metric)[0]
        names = self.run.names()
        return RunState(
            experiment.label, experiment.rounds, metric, experiment.score, describe(experiment), names, "setting up"
        )

    def look(self) -> None:
        """Reads what is new."""
        first = not self.state.round
        self.status = self.run.status()  # before the rounds are read: of a run that is finished all of them are
        for anew, records in self.run.new_rounds():
            if anew:
                self.state = self.fresh_state()
            for record in records:
                # Only rounds that end while somebody watches tell how long one takes by the clock.
                self.state.see(record, None if first else time.monotonic())
        if first and self.state.round:
            self.state.clients = self.run.names()  # which are on record by now
        self.state.phase = self.phase()

    def phase(self) -> str:
        """Returns what the run is at, as far as its folder tells."""
        if self.status != RUNNING:
            return self.status
        silence = self.run.silence()
        if not self.state.round:
            return "setting up"
        slow = silence > 5 + 3 * (self.state.seconds_a_round or 0.0)
        return f"training, last round {short_time(int(silence))} ago" if slow else "training"

    def wait(self, interval: float) -> None:
        """Returns when the run has ended."""
        if not is_terminal():
            self.say_new_rounds()
            while self.status == RUNNING:
                time.sleep(interval)
                self.look()
                self.say_new_rounds()
            return
        from graft.cli.run_view import RunView

        view = RunView(self.state)
        with showing(view):
            while self.status == RUNNING:
                time.sleep(interval)
                self.look()
                view.state = self.state

    def say_new_rounds(self) -> None:
        """Print about ten lines a run."""
        state = self.state
        if state.round - self.told >= max(1, state.rounds // 10) or (state.round == state.rounds != self.told):
            self.told = state.round
            shown = {"validation": state.validation, "test": state.test}
            say(f"{state.label}: round {state.round}/{state.rounds}{scores({'metrics': {state.metric: shown}})}")

    def tell(self) -> None:
        """Print how far the run is."""
        state, run = self.state, self.run
        say(f"{state.label}: {state.about}")
        self.tell_end()
        if state.best_round:
            best = {"validation": state.best_validation, "test": state.best_test}
            shown = ", ".join(f"{kind} {format_metric(state.metric, value)}" for kind, value in best.items())
            say(f"{METRICS[state.metric].title}: best in round {state.best_round}: {shown}")
        sent = ", ".join(f"{size_text(size)} {WAYS[way]}" for way, size in state.sent.items() if size)
        if sent:
            say(f"sent: {sent}")
        pace, left = state.seconds_a_round, state.seconds_left
        if pace is not None:
            until = f", about {short_time(left)} left" if left and self.status == RUNNING else ""
            say(f"time: {short_time(pace)} a round{until}")
        if run.damaged:
            lines = "1 line" if run.damaged == 1 else f"{run.damaged} lines"
            say(f"{lines} of {run.folder / 'rounds.jsonl'} cannot be read and left out.")

    def tell_end(self) -> None:
        """Print whether the run goes on and, if not, what can be done."""
        state, folder = self.state, self.run.folder
        rounds = f"round {state.round} of {state.rounds}" if state.round else "its first round"
        before = "after" if state.round else "before"
        sentences = {
            FINISHED: f"is finished after {state.round} rounds; its report: graft report {folder}",
            RUNNING: f"is running, {'' if state.round else 'before '}{rounds}",
            STOPPED: f"stopped or crashed {before} {rounds}, {short_time(int(self.run.silence()))} ago; "
            + (
                "the command that began it goes on with it"
                if between_organisations(folder)
                else f"go on with: graft resume {folder}"
            ),
        }
        say(f"{folder} {sentences[self.status]}")


def between_organisations(folder: Path) -> bool:
    """Returns whether a folder is of a server, a party or a peer, whose own command goes on with it."""
    return (folder / FEDERATION).is_file()


class ManyWatch:
    """A look at many runs."""

    def __init__(self, runs: FollowedRuns | FollowedTuning) -> None:
        self.runs, self.status = runs, RUNNING
        self.state = ManyState(runs.folder.name or str(runs.folder), unit=runs.unit)
        self.seen = ManyRuns()
        self.told = -1  # how many were done at the last plain line

    def look(self) -> None:
        """Reads what is new."""
        first = self.told < 0 and not self.state.done
        self.seen = self.runs.look()
        self.status, state = self.seen.status, self.state
        state.done, state.total, state.failures = self.seen.done, self.seen.total, self.seen.failures
        if first:
            state.done_before = state.done
        state.phase = self.status
        state.running = [f"{name}: round {done}/{rounds}" for name, done, rounds in self.seen.running]
        state.last.clear()
        state.last.extend(map(ending, self.seen.ended[-20:]))

    def wait(self, interval: float) -> None:
        """Returns when no run is left to wait for."""
        with showing(ManyView(self.state)) if is_terminal() else nullcontext():
            quiet = 0.0
            while True:
                if not is_terminal():
                    self.say_new_runs()
                quiet = 0.0 if self.status == RUNNING else quiet + interval
                # Where nobody has said how many runs there will be, another may begin in a moment.
                if self.status != RUNNING and (self.seen.total is not None or quiet > PATIENCE):
                    return
                time.sleep(interval)
                self.look()

    def say_new_runs(self) -> None:
        """Print a line when more runs are done."""
        if self.state.done != self.told:
            self.told = self.state.done
            last = f"; last {self.state.last[-1]}" if self.state.last else ""
            say(f"{self.state.label}: {self.count()}{last}")

    def count(self) -> str:
        """Returns how many runs are done, of how many."""
        state = self.state
        of = "" if state.total is None else f" of {state.total}"
        failed = f", {len(state.failures)} failed" if state.failures else ""
        unit = state.unit if (state.total or state.done) == 1 else f"{state.unit}s"
        return f"{state.done}{of} {unit} done{failed}"

    def tell(self) -> None:
        """Print how far the runs are, the last ones and the failures."""
        self.tell_end()
        for line in self.state.running:
            say(f"  running: {line}")
        for line in self.state.last:
            say(f"  ended: {line}")
        for name, reason in self.state.failures.items():
            say(f"  failed: {name}: {reason}")

    def tell_end(self) -> None:
        """Print whether the runs go on and, if not, what can be done."""
        words = {
            FINISHED: "finished",
            RUNNING: "running",
            STOPPED: "not finished, and no process works on it",
        }
        say(f"{self.runs.folder} is {words[self.status]}: {self.count()}.")
        if self.status == STOPPED:
            resumes = "; ".join(f"graft resume {run}" for run in self.seen.stopped[:5])
            planned = self.seen.total is not None
            say("The command that began it goes on from there." if planned or not resumes else f"Go on with: {resumes}")


def ending(message: dict[str, Any]) -> str:
    """Returns what came of a run or a trial, whatever its record holds."""
    try:
        state = message.get("state")
        return f"{message['cell']}: {state}" if state in ("pruned", "failed") else outcome_of(message)
    except (KeyError, TypeError, ValueError):
        return str(message.get("cell"))
