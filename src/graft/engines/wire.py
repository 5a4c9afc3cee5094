"""How bytes reach those who are to answer them: all that an engine between processes or organisations builds on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

MOST_BYTES = 2**30  # of a request or an answer
Handler = Callable[[str, bytes], bytes]  # is told who asks, which the carrier vouches for, and what; returns the answer


class Absent(NamedTuple):
    """Why there is no answer."""

    reason: str  # as "is not connected" or "did not answer within 30 s": what follows the name in a sentence


class Patience(NamedTuple):
    """How long answers are waited for."""

    seconds: float  # until all others count as absent
    quorum: int | None = None  # once so many have answered, the others have `grace` left
    grace: float = 0.0  # seconds
    comeback: float = 0.0  # seconds that somebody who was lost has to come back, to be asked the same again


class Node(Protocol):
    """One of those who ask and answer."""

    name: str

    def present(self) -> set[str]:
        """Returns who is connected now, oneself left out."""
        ...

    def ask(self, requests: Mapping[str, bytes], patience: Patience) -> dict[str, bytes | Absent]:
        """Sends each its request, all at once, and returns what each answers or why it does not.

        Nothing but a whole answer of the very one who was asked is ever returned as one. What comes too late is
        dropped.
        """
        ...

    def close(self) -> None: ...
