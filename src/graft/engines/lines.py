"""Lines to workers of a Ray cluster that answer every message with another; the handle comes from `ray.connected`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from graft.engines.ray import START_SECONDS, Resources, one_sentence
from graft.engines.tasks import POLL_SECONDS, capacity, no_place
from graft.errors import RunError


class LineBroken(EOFError):
    """Whoever was at the other end has died."""


class Line:
    """A line to an actor, which is sent a message and answers it."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.reply: Any = None  # that is under way

    def send(self, message: Any) -> None:
        self.reply = self._actor.answer.remote(message)

    def receive(self) -> Any:
        """Returns the answer, or raises `LineBroken`."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(self.reply)
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else RunError(str(error))) from None
        except errors.RayError as error:
            raise LineBroken(one_sentence(error)) from error

    def close(self) -> None:
        """Ends the actor at once; what it was at is lost."""
        with suppress(Exception):
            self._ray.kill(self._actor)


class Lines:
    """Lines to actors of one class, each with its resources; arguments may be large: they travel once a machine."""

    def __init__(self, ray: Any, kind: type, arguments: Sequence[Any], resources: Resources) -> None:
        self._ray, self._resources = ray, resources
        self._actor = ray.remote(kind).options(max_restarts=0, max_task_retries=0, **resources.options())
        self._arguments = [ray.put(argument) for argument in arguments]
        self._latest = time.monotonic()

    def open(self) -> Line:
        return Line(self._ray, self._actor.remote(*self._arguments))

    def wait(self, lines: Iterable[Line]) -> list[Line]:
        """Returns those lines on which an answer has come, when there is one; gives up where no machine has room."""
        by_reply = {line.reply: line for line in lines}
        while True:
            ready, _ = self._ray.wait(list(by_reply), timeout=POLL_SECONDS)
            if ready:
                self._latest = time.monotonic()
                return [by_reply[reply] for reply in ready]
            if time.monotonic() - self._latest > START_SECONDS and not capacity(self._ray, self._resources):
                raise RunError(no_place(self._ray, self._resources))
