"""How far a command is: a view that stays in its place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from graft.cli.console import out_console, say
from graft.cli.run_state import RunState, describe, short_time
from graft.experiments.callbacks import Callback, RunStart
from graft.federation.metric_names import format_metric, parse_metrics
from graft.files import printable

if TYPE_CHECKING:
    from graft.cli.run_view import View

Tell = Callable[[dict[str, Any]], None]
A_SECOND = 3  # times that a view is drawn anew


def is_terminal() -> bool:
    """Returns whether somebody looks on who can be shown a view that moves; TERM=dumb says no."""
    return sys.stdout.isatty() and out_console.is_interactive


def showing(view: View) -> AbstractContextManager[Any]:
    """Keeps a view in its place on the terminal, below whatever else is printed, and takes it away at the end."""
    from graft.cli.live import CalmLive

    return CalmLive(view, out_console, A_SECOND)


@contextmanager
def phase_progress(label: str, phase: str = "starting") -> Iterator[Callable[[str], None]]:
    """Shows by name what a command is at before it has any rounds to show: call what this yields with the next."""
    if not is_terminal():
        say(f"{label}: {phase}")
        yield lambda name: say(f"{label}: {name}")
        return
    from graft.cli.run_view import RunView

    state = RunState(label, 0, phase=phase)
    with showing(RunView(state)):

        def tell(name: str) -> None:
            state.phase = name

        yield tell


@contextmanager
def round_progress(rounds: int, label: str) -> Iterator[Callback]:
    """Yields the callback of a run that shows it: a view on a terminal, about ten plain lines elsewhere."""
    if not is_terminal():
        yield PlainProgress(rounds, label)
        return
    from graft.cli.run_view import RunView

    progress = LiveProgress(RunState(label, rounds))
    try:
        with showing(RunView(progress.state)):
            yield progress
    finally:
        say_end(progress)


class LiveProgress(Callback):
    """Keeps the state that a view draws, and does nothing else, so that no round waits for a terminal."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.ended = False

    def on_phase(self, phase: str) -> None:
        self.state.phase = phase

    def on_start(self, start: RunStart) -> None:
        experiment, state = start.experiment, self.state
        state.metric, state.score = parse_metrics(experiment.metric)[0], experiment.score
        state.about, state.clients = describe(experiment), start.clients
        for record in start.records:
            state.see(record)

    def on_round(self, record: dict[str, Any]) -> None:
        self.state.see(record, time.monotonic())

    def on_recovery(self, _reason: str, records: Sequence[dict[str, Any]]) -> None:
        self.state.go_back(records)

    def on_end(self, _result: object) -> None:
        self.ended = True


class PlainProgress(Callback):
    """Prints about ten lines a run, and one for each phase before the first round; what follows is soon over."""

    def __init__(self, rounds: int, label: str) -> None:
        self.rounds, self.label = rounds, label  # the rounds are those of the experiment once it is known
        self.every = max(1, rounds // 10)
        self.started = False

    def on_phase(self, phase: str) -> None:
        if not self.started:
            say(f"{self.label}: {phase}")

    def on_start(self, start: RunStart) -> None:
        self.started, self.rounds = True, start.experiment.rounds
        self.every = max(1, self.rounds // 10)

    def on_round(self, record: dict[str, Any]) -> None:
        if record["round"] % self.every == 0 or record["round"] == self.rounds:
            say(f"{self.label}: round {record['round']}/{self.rounds}{scores(record)}")


def say_end(progress: LiveProgress) -> None:
    """Leaves one line of a run whose view is gone."""
    state = progress.state
    if not state.round:
        return
    time_taken = short_time(time.monotonic() - state.begun)
    words = f"{state.round} rounds in {time_taken}" if progress.ended else f"ended in round {state.round + 1}"
    if state.best_round:
        best = {"validation": state.best_validation, "test": state.best_test}
        shown = ", ".join(f"{kind} {format_metric(state.metric, value)}" for kind, value in best.items())
        words += f"; best in round {state.best_round}: {shown}"
    say(f"{state.label}: {words}")


def scores(record: dict[str, Any]) -> str:
    """Returns the scores of a round by the first metric; empty where it was not evaluated."""
    metric, values = next(iter(record.get("metrics", {}).items()), ("accuracy", record))
    if values.get("test") is None or values.get("validation") is None:
        return ""
    name = "" if metric == "accuracy" else f"  {metric}"
    shown = {kind: format_metric(metric, values[kind]).removesuffix(" %") for kind in ("validation", "test")}
    return f"{name}  validation {shown['validation']}  test {shown['test']}"


@contextmanager
def study_progress(label: str) -> Iterator[Tell]:
    """Yields a function that is told of every run of many: a view on a terminal, a plain line a run elsewhere."""
    from graft.cli.many_view import ManyState, ManyView, outcome_of

    state = ManyState(printable(label))
    if is_terminal():
        with showing(ManyView(state)):
            yield state.see
        return

    def line(message: dict[str, Any]) -> None:
        state.see(message)
        left = f", about {short_time(state.seconds_left)} left" if state.seconds_left else ""
        say(f"{message['done']}/{message['total']} {outcome_of(message)}{left}")

    yield line
