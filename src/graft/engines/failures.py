"""How an engine says that a step failed, or that those who should run it are gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from graft.errors import RunError
from graft.federation.setup import Setup

Result = TypeVar("Result")


class StepFailed(RunError):
    """Says which client failed, in which step and round, and why."""


class EngineLost(RunError):
    """Says that the state of clients is lost with those who held it."""


class WorkerLost(EngineLost):
    """Says that a worker has ended, with the state of its clients: the run may go back to its last checkpoint."""


class ClusterLost(EngineLost):
    """Says that what the workers ran on is gone, or has no room for them: the run cannot go on here by itself."""


def persist(action: Callable[[], Result], repair: Callable[[], object], most_failures: int) -> Result:
    """Returns what an action returns; where it loses a worker, it is done anew after a repair."""
    for failures in itertools.count():
        try:
            if failures:
                repair()
            return action()
        except WorkerLost:
            if failures >= most_failures:
                raise
    raise AssertionError("counting never ends")


def step_failed(setup: Setup, clients: Sequence[int], step: str, round: int, reason: object) -> StepFailed:
    """Returns the failure of a step at some clients."""
    who = f"{'Client' if len(clients) == 1 else 'Clients'} {setup.client_names(clients)}"
    return StepFailed(f"{who} failed in step '{step}' of {setup.name}, round {round}: {reason}")
