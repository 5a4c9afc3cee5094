"""How many runs look on a terminal while they go on: how many are done, the last ones, and what failed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from graft.cli.run_state import short_time
from graft.cli.run_view import ACCENT, FAINT, LABEL, NARROW, Glyphs, View, progress_bar, spread
from graft.federation.metric_names import METRICS, format_metric
from graft.files import printable

SHOWN = 6  # of the runs that ended last
FAILURES = 4  # that are shown with their reasons


@dataclass
class ManyState:
    """Runs of a study, a sweep or a tuning: how many there are, and what came of those that ended."""

    label: str
    total: int | None = None  # None where nobody has said it
    done: int = 0
    done_before: int = 0  # when somebody began to look; the pace is of those since
    phase: str = "running"
    unit: str = "run"
    begun: float = field(default_factory=time.monotonic)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN))  # what came of the latest
    running: list[str] = field(default_factory=list)  # those that go on now, where that is known
    failures: dict[str, str] = field(default_factory=dict)  # runs and reasons

    def see(self, message: Mapping[str, Any]) -> None:
        """Takes in what came of a run."""
        self.done, self.total = message["done"], message["total"]
        self.last.append(outcome_of(message))
        if "error" in message:
            self.failures[message["cell"]] = message["error"]

    @property
    def seconds_a_run(self) -> float | None:
        """Returns the time between the ends of two runs, several of which may go on at once; None before the first."""
        ended = self.done - self.done_before
        return (time.monotonic() - self.begun) / ended if ended > 0 else None

    @property
    def seconds_left(self) -> float | None:
        pace = self.seconds_a_run
        return None if pace is None or self.total is None else pace * (self.total - self.done)


class ManyView(View):
    """Many runs; where there is little room, fewer are shown."""

    def __init__(self, state: ManyState) -> None:
        super().__init__()
        self.state = state

    def lines(self, width: int, height: int, glyphs: Glyphs) -> Iterator[Text]:  # noqa: ARG002
        state = self.state
        seconds = time.monotonic() - state.begun
        frame = glyphs.spinner[int(seconds * 3) % len(glyphs.spinner)]
        right = Text.assemble((f"{frame} ", ACCENT), state.phase, (f"  {short_time(int(seconds))}", FAINT))
        yield spread(Text(printable(state.label), style="bold"), right, width)
        if state.done or state.total is not None:
            yield self.count(width, glyphs)
        failed = list(state.failures.items())
        if failed:
            yield labelled("failed", f"{len(failed)} of {state.done}", width, "red")
            for name, reason in failed[-FAILURES:]:
                yield labelled("", f"{name}: {reason}", width)
        for name, entries in (("running", state.running), ("ended", list(state.last)[::-1])):
            for index, entry in enumerate(entries[:SHOWN]):
                yield labelled("" if index else name, entry, width, FAINT if name == "ended" and index else "")

    def count(self, width: int, glyphs: Glyphs) -> Text:
        """Returns a bar over the runs, with the time that is left."""
        state = self.state
        if state.total is None:
            return labelled("done", str(state.done), width)
        pace, left = state.seconds_a_run, state.seconds_left
        times = [f"{short_time(pace)} a {state.unit}"] if pace is not None and width >= NARROW else []
        if left:
            times.append(f"{short_time(max(left, 1))} left")
        before = f"{state.unit} {state.done}/{state.total}"
        return progress_bar(before, state.done, state.total, glyphs.dot.join(times), width, glyphs)


def labelled(label: str, text: str, width: int, style: str = "") -> Text:
    """Returns a line with a word in front."""
    front = f"{label:{LABEL}}" if width >= NARROW else f"{label} " if label else "  "
    return Text(front).append(printable(text), style=style)


def outcome_of(message: Mapping[str, Any]) -> str:
    """Returns what came of one of many runs."""
    if "error" in message:
        return f"{message['cell']}: failed"
    metric, test = message.get("metric", "accuracy"), message.get("test", message.get("validation"))
    score = format_metric(metric, test, "no score") if metric in METRICS else str(test)
    return f"{message['cell']}: {score} in {short_time(message.get('seconds') or 0.0)}"
