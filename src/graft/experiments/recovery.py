"""How a run goes on when a worker is lost: back to its last checkpoint, and so often only."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from graft.engines.cluster import Cluster
from graft.engines.failures import ClusterLost, WorkerLost
from graft.errors import GraftWarning, RunError
from graft.federation.server import Server
from graft.federation.session import Session

Part = TypeVar("Part")


class Recovery:
    """Counts the failures of a run, and the rounds that it went on from."""

    def __init__(self, max_failures: int) -> None:
        self.max_failures = max_failures
        self.rounds: list[int] = []  # of the checkpoints that the run went back to; 0: the beginning
        self._failures = 0  # since the last checkpoint that was written

    def note_checkpoint(self) -> None:
        """Forgets failures: what they cost is made up for."""
        self._failures = 0

    def insist(
        self, part: Callable[[], Part], go_back: Callable[[WorkerLost], None], last_good: Callable[[], str]
    ) -> Part:
        """Returns what a part of a run returns; where workers are lost in it, the run goes back and does it again."""
        lost: WorkerLost | None = None
        while True:
            try:
                if lost is not None:
                    go_back(lost)
                return part()
            except WorkerLost as error:
                lost = error
                self._failures += 1
            except ClusterLost as error:
                raise RunError(f"{error}{last_good()}") from error
            if self._failures > self.max_failures:
                times = "once" if self._failures == 1 else f"{self._failures} times"
                raise RunError(
                    f"Workers were lost {times} without a new checkpoint in between, and max_failures is "
                    f"{self.max_failures}. The last time: {lost}{last_good()}"
                ) from lost

    def announce(self, round: int | None) -> None:
        """Tells that the run goes back to the checkpoint of a round; to its beginning where that is None."""
        start = "the beginning" if round is None else f"the checkpoint of round {round}"
        warnings.warn(
            f"A worker has ended; going on from {start} ({self._failures} of {self.max_failures} failures).",
            GraftWarning,
            stacklevel=2,
        )
        self.rounds.append(round or 0)


def begin_anew(session: Session) -> None:
    """Has server and clients begin as if there had been no round, on new workers where some have ended."""
    assert isinstance(session.engine, Cluster), "no other engine loses workers"
    session.engine.restart()
    session.server = Server.of(session.setup)


@contextmanager
def stop_politely() -> Iterator[threading.Event]:
    """Ctrl-C lets the round finish and then stops; a second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def first(number: int, frame: Any) -> None:  # noqa: ARG001
        stop.set()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, first)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
