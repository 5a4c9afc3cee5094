"""What is known of a run so far, kept up to date round by round at next to no cost. Imports no PyTorch, no Rich."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graft.federation.metric_names import METRICS
from graft.files import printable

if TYPE_CHECKING:
    from graft.experiments.experiment import Experiment

WAYS = {"up": "up", "down": "down", "peer": "between peers"}  # of messages, and how they are called
RECENT = 50  # rounds that the time of one is averaged over


@dataclass
class RunState:
    """A run as its records tell it: the last round, the best one, the curve so far, bytes and time."""

    label: str
    rounds: int  # that it will have, unless patience ends it earlier
    metric: str = "accuracy"  # that picks the best round
    score: str = "personal"  # whose validation score does: that of the clients' own models, or of the global one
    about: str = ""  # data, clients and models, in a few words
    clients: Sequence[str | int] = ()  # names, or numbers
    phase: str = "starting"
    begun: float = field(default_factory=time.monotonic)
    round: int = 0
    loss: float | None = None
    validation: float | None = None
    test: float | None = None
    best_round: int = 0
    best_validation: float | None = None
    best_test: float | None = None
    curve: list[float] = field(default_factory=list)  # validation scores of the rounds that were evaluated
    by_client: list[float | None] = field(default_factory=list)  # their latest test scores
    scored: Sequence[int] | None = None  # whose these are, by number, where not everybody's
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WAYS, 0))
    _pace: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT))  # rounds and when they ended
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # as the records have them

    @property
    def higher(self) -> bool:
        """Returns whether more of the metric is better."""
        return METRICS[self.metric].higher

    def see(self, record: Mapping[str, Any], ended: float | None = None) -> None:
        """Takes in the record of a round, and when it ended where somebody was there to see it."""
        self.round = record["round"]
        self.loss = number(record.get("loss"))
        for way in self.sent:
            self.sent[way] += record.get(f"{way}_bytes", 0)
        self._seconds.append(record.get("seconds", 0.0))
        if ended is not None:
            self._pace.append((self.round, ended))
        scores = record["metrics"].get(self.metric, {}) if "metrics" in record else record
        if "validation" in scores:
            self.scored = record.get("scored")
            self._see_scores(scores)

    def go_back(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Forgets all rounds but these, which are on record: those after them come again."""
        fresh = RunState(self.label, self.rounds, self.metric, self.score, self.about, self.clients)
        vars(self).update(vars(fresh) | {"phase": self.phase, "begun": self.begun})
        for record in records:
            self.see(record)

    def _see_scores(self, scores: Mapping[str, Any]) -> None:
        suffix = "_global" if self.score == "global" else ""
        self.validation, self.test = (number(scores.get(f"{kind}{suffix}")) for kind in ("validation", "test"))
        self.by_client = list(map(number, scores.get("per_client", {}).get("test", [])))
        drawn = self.test if self.validation is None else self.validation
        if drawn is not None:
            self.curve.append(drawn)
        if self.validation is not None and (self.best_validation is None or self._better(self.validation)):
            self.best_round, self.best_validation, self.best_test = self.round, self.validation, self.test

    def _better(self, validation: float) -> bool:
        assert self.best_validation is not None
        return validation > self.best_validation if self.higher else validation < self.best_validation

    @property
    def seconds_a_round(self) -> float | None:
        """Returns how long a round takes of late: by the clock if it was watched, else as the records say."""
        if len(self._pace) > 1:
            (first, start), (last, end) = self._pace[0], self._pace[-1]
            return (end - start) / max(last - first, 1)
        return sum(self._seconds) / len(self._seconds) if self._seconds else None

    @property
    def seconds_left(self) -> float | None:
        """Returns how long the rounds to come will take; None before the first."""
        pace = self.seconds_a_round
        return None if pace is None else pace * max(self.rounds - self.round, 0)

    @property
    def names(self) -> list[str]:
        """Returns what the clients are called, as many as were scored."""
        numbers = range(len(self.by_client)) if self.scored is None else self.scored
        return [str(self.clients[number]) if number < len(self.clients) else str(number) for number in numbers]


def number(value: Any) -> float | None:
    """Returns a finite number, or None for whatever else a record may hold."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def short_time(seconds: float) -> str:
    """Returns a time as people say it: 8 ms, 0.21 s, 42 s, 3 min 20 s, 2 h 05 min."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.1f} ms"
    if seconds < 10 and not float(seconds).is_integer():
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def size_text(size: float) -> str:
    """Returns a number of bytes with its unit: 512 bytes, 88.1 kB, 3.2 MB."""
    if size < 1000:
        return f"{size:.0f} bytes"
    unit = min(int(math.log10(size) // 3), 5)
    return f"{size / 1000**unit:.1f} {'kMGTP'[unit - 1]}B"


def describe(experiment: Experiment) -> str:
    """Returns the data, clients and models of an experiment in a few words."""
    models = ",".join(dict.fromkeys(experiment.model_names))
    return f"{printable(experiment.data_label)} · {experiment.clients} clients · {printable(models)}"
