"""What a server, a party or a peer logs: lines for people, or JSON for whatever collects them, in a file or on standard
error. Where keys end up in a message by mistake, they are left out."""

from __future__ import annotations

import json as json_text
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from graft.errors import InputError
from graft.experiments.callbacks import Callback, Record, RunStart
from graft.files import explained, printable

LOGGER = "graft"  # and all below it
LONGEST = 8000  # characters of a message, or of where an exception came from
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)

log = logging.getLogger(__name__)


class LogFormatter(logging.Formatter):
    """Writes an event as a line, whatever its message holds."""

    def __init__(self, role: str, name: str) -> None:
        super().__init__()
        self.role, self.name = role, name

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        text = f"{time} {record.levelname} {self.role} {self.name}: {told(record.getMessage())}"
        return (text + (f" {raised(self, record)}" if record.exc_info else "")).replace("\n", "\\n")


class JsonFormatter(LogFormatter):
    """Writes an event as a JSON object on a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": told(record.getMessage()),
            "role": self.role,
            "name": self.name,
        }
        if record.exc_info:
            event["exception"] = raised(self, record)
        return json_text.dumps({**getattr(record, "event", {}), **event})


def told(text: str) -> str:
    """Returns a text as it may be logged: without private keys and control characters, and not too long."""
    shown = printable(PRIVATE_KEY.sub("[a private key]", text))
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]} ..."


def raised(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Returns where an exception came from; of a long text, its end, which says what it was."""
    assert record.exc_info
    return told(PRIVATE_KEY.sub("[a private key]", formatter.formatException(record.exc_info))[-LONGEST:])


class LoggedRun(Callback):
    """Logs the phases of a run and its rounds: who took part and for how long, but no losses and no scores."""

    def __init__(self, role: str, name: str) -> None:
        self.role, self.name = role, name

    def on_phase(self, phase: str) -> None:
        log.info("Phase: %s", phase, extra={"event": {"phase": phase}})

    def on_start(self, start: RunStart) -> None:
        event = {"rounds": start.experiment.rounds, "round": len(start.records)}
        log.info("Starting after round %(round)d of %(rounds)d", event, extra={"event": event})

    def on_round(self, record: Record) -> None:
        # In a party's own record there is nobody but itself, by a number.
        present = [self.name if self.role == "party" else str(who) for who in record.get("participants", ())]
        absent = {str(who): str(reason) for who, reason in record.get("absent", {}).items()}
        seconds = round(record.get("seconds", 0.0), 3)
        event = {"round": record["round"], "seconds": seconds, "present": present, "absent": absent}
        words = f"Round %d took %.1f s with {len(present)}"
        words += f"; absent: {', '.join(absent)}".replace("%", "%%") if absent else ""
        log.log(logging.WARNING if absent else logging.INFO, words, record["round"], seconds, extra={"event": event})


@contextmanager
def logging_to(path: Path | None, json: bool, role: str, name: str) -> Iterator[Callback]:
    """Logs to the end of a file, or with `json` alone to standard error, and yields a callback that logs a run.

    With neither, all is as it was: warnings go to standard error. They still do where everything goes to a file.
    """
    if path is None and not json:
        yield Callback()
        return
    logger = logging.getLogger(LOGGER)
    handlers = [open_handler(path)]
    handlers[0].setFormatter((JsonFormatter if json else LogFormatter)(role, name))
    if path is not None and not logger.hasHandlers() and logging.lastResort is not None:
        handlers.append(logging.lastResort)
    level = logger.level
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield LoggedRun(role, name)
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
        logger.setLevel(level)
        handlers[0].close()


def open_handler(path: Path | None) -> logging.Handler:
    """Returns what writes to a file, also where it is moved away to begin a new one; without one, to standard error."""
    if path is None:
        return logging.StreamHandler(sys.stderr)
    with explained(f"The log {path} cannot be written", InputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)  # who takes part and when is nobody else's business
        return WatchedFileHandler(path, encoding="utf-8")
