"""How an engine says that a step failed."""

from __future__ import annotations

from graft.errors import RunError


class StepFailed(RunError):
    """Says which client failed, in which step and round, and why."""

    def __init__(self, method: str, clients: list[int], step: str, round: int, reason: object) -> None:
        names = ", ".join(map(str, clients[:8])) + (", ..." if len(clients) > 8 else "")
        who = f"Client {names}" if len(clients) == 1 else f"Clients {names}"
        super().__init__(f"{who} failed in step '{step}' of {method}, round {round}: {reason}")
