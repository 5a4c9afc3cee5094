"""How an engine says that a step failed."""

from __future__ import annotations

from graft.errors import RunError
from graft.federation.setup import Setup


class StepFailed(RunError):
    """Says which client failed, in which step and round, and why."""

    def __init__(self, setup: Setup, clients: list[int], step: str, round: int, reason: object) -> None:
        who = f"{'Client' if len(clients) == 1 else 'Clients'} {setup.client_names(clients)}"
        super().__init__(f"{who} failed in step '{step}' of {setup.name}, round {round}: {reason}")
