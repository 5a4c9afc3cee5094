"""Waiting for answers as long as `Patience` says, whatever carries them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Condition

from graft.engines.wire import Absent, Patience

Connection = tuple[tuple[int, str], int]  # the way to a recipient, and a number that is another after every loss
Locate = Callable[[str], Connection | Absent]  # finds the connection of a recipient, or why there is none
Send = Callable[[str, bytes, float, "Attempt"], None]  # sends a request, with seconds to live, without waiting

NOT_CONNECTED = Absent("is not connected")
LOST = Absent("was lost while answering")
SEVERAL = Absent("answered one request several times")


class Attempt:
    """One request on its way to one recipient; whatever carries it tells what comes back."""

    def __init__(self, changed: Condition, connection: Connection) -> None:
        self._changed = changed
        self.connection = connection
        self.answer: bytes | Absent | None = None
        self.is_open = True  # what comes later is dropped
        self.ended = False

    def receive(self, answer: bytes | Absent) -> None:
        """Takes an answer, or the reason why there will be none; a second one makes both worthless."""
        with self._changed:
            if self.is_open:
                self.answer = answer if self.answer is None else SEVERAL
                self.is_open = self.answer is not SEVERAL

    def end(self) -> None:
        """Says that nothing more will come."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()


@dataclass
class Recipient:
    """How it stands with one of those who were asked."""

    request: bytes
    result: bytes | Absent | None = None
    attempt: Attempt | None = None  # the newest request
    away_since: float | None = None  # while there is no request under way
    away: Absent = NOT_CONNECTED

    @property
    def is_told(self) -> bool:
        """Whether a request under way has ended."""
        return self.attempt is not None and self.away_since is None and self.attempt.ended


class Asking:
    """One request to each of some recipients, all at once."""

    def __init__(
        self, changed: Condition, locate: Locate, send: Send, requests: Mapping[str, bytes], patience: Patience
    ) -> None:
        self._changed = changed  # notified whenever somebody comes or goes, or an attempt ends
        self._locate, self._send, self._patience = locate, send, patience
        self._recipients = {name: Recipient(request) for name, request in requests.items()}

    def collect(self) -> dict[str, bytes | Absent]:
        """Returns what each answers, or why it does not."""
        deadline = time.monotonic() + self._patience.seconds
        closing = deadline
        with self._changed:
            while True:
                now = time.monotonic()
                for name, recipient in self._recipients.items():
                    if recipient.result is None:
                        self._advance(name, recipient, now, deadline)
                if closing == deadline and self._has_quorum():
                    closing = min(deadline, now + self._patience.grace)
                wakes = [closing, *(self._gives_up(recipient) for recipient in self._waiting())]
                if now >= closing or len(wakes) == 1:
                    break
                if not any(recipient.is_told for recipient in self._waiting()):  # by a carrier that does not wait
                    self._changed.wait(max(0.0, min(wakes) - now))
            self._close(late=now >= deadline)
        return {
            name: LOST if recipient.result is None else recipient.result for name, recipient in self._recipients.items()
        }

    def _waiting(self) -> list[Recipient]:
        return [recipient for recipient in self._recipients.values() if recipient.result is None]

    def _has_quorum(self) -> bool:
        quorum = self._patience.quorum
        answers = [recipient.result for recipient in self._recipients.values()]
        return quorum is not None and sum(isinstance(answer, bytes) for answer in answers) >= quorum

    def _gives_up(self, recipient: Recipient) -> float:
        """Returns when a recipient that is away has been away for too long."""
        return float("inf") if recipient.away_since is None else recipient.away_since + self._patience.comeback

    def _advance(self, name: str, recipient: Recipient, now: float, deadline: float) -> None:
        """Takes an answer that is complete, notices a loss, and asks (again) whoever is there."""
        located = self._locate(name)
        attempt = recipient.attempt
        if attempt is not None and recipient.away_since is None:
            if attempt.ended and attempt.answer is not None:
                recipient.result = attempt.answer
                return
            if not attempt.ended and located == attempt.connection:
                return
            attempt.is_open = False
            recipient.away_since, recipient.away = now, LOST
        if not isinstance(located, Absent) and (attempt is None or located != attempt.connection):
            recipient.attempt = Attempt(self._changed, located)
            recipient.away_since = None
            self._send(name, recipient.request, deadline - now, recipient.attempt)
            return
        if isinstance(located, Absent) and attempt is None:
            recipient.away = located
        recipient.away_since = now if recipient.away_since is None else recipient.away_since
        if now >= self._gives_up(recipient):
            recipient.result = recipient.away

    def _close(self, late: bool) -> None:
        """Drops whatever comes from now on; who has not answered is absent."""
        within = f"{self._patience.seconds:g} s"
        if not late:
            within = f"{self._patience.grace:g} s after {self._patience.quorum} others"
        for recipient in self._recipients.values():
            if recipient.attempt is not None:
                recipient.attempt.is_open = False
            if recipient.result is None:
                away = recipient.away_since is not None
                recipient.result = recipient.away if away else Absent(f"did not answer within {within}")
