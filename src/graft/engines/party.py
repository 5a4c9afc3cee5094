"""A party: one organisation with its own graph, its own model and its own disk, which answers its server.

Nothing but named steps that were approved can be asked of it, by its own server and in order; what a step is told and
what it replies must have the form that was approved, field by field. What it keeps is on its own disk, so that it can
be stopped at any time and go on, and so can its server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.engines.envelopes import REQUEST, Answer, EndRequest, StepRequest, seal, unseal
from graft.engines.forms import Forms, RefusedMessage, check_message, check_tree, split_logged
from graft.engines.kept_state import KeptState, StateMissing
from graft.engines.messages import DamagedMessage, pack, raw_bytes, unpack
from graft.engines.policy import Policy, ScoreGate
from graft.engines.steps import run_step
from graft.errors import InputError
from graft.federation.clients import Traffic
from graft.federation.method import SCORING
from graft.federation.setup import Setup
from graft.files import explained, parse_json, printable, read_text, replace_bytes
from graft.tensors.trees import Tree, count_bytes, flatten

MOST_SIZE = 10**7  # of a dimension that depends on the data of clients


class Refused(Exception):
    """Says why a request is not answered."""


@dataclass(frozen=True)
class Terms:
    """What a party has approved."""

    server: str  # who may ask, by the name in its certificate
    run: str  # of which federation
    rounds: int
    forms: Forms  # which steps, told what, replying what
    most_size: int = MOST_SIZE


class Party:
    """Answers the requests of a server; a failure is answered, never raised."""

    def __init__(
        self,
        setup: Setup,
        terms: Terms,
        policy: Policy,
        folder: Path | None = None,
        *,
        on_commit: Callable[[int, Mapping[str, float | None], Traffic], None] | None = None,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        """`setup` is of this party alone; `on_commit` is told each round that counted, with its training losses and
        bytes."""
        self.setup, self.terms, self.policy = setup, terms, policy
        self.fleet = setup.fleet([0])
        setup.method.start_client(self.fleet)
        self._on_commit, self._on_end = on_commit, on_end
        self.state = KeptState(self.fleet.state, folder and folder / "state", self._committed)
        self.sent, self.refusals, self.private = (Journal(folder, name) for name in ("sent", "refused", "private"))
        self._start, self._number, self._last = 0, 0, ("", b"")  # of the server; what it asked last, and the answer
        self._gate = ScoreGate(policy, setup.method, self.fleet.on(self.fleet.scoring).totals().flatten().tolist())
        self._asked_file = folder and folder / "asked.json"
        self._read_asked()
        self._lock = threading.Lock()

    @property
    def at_rest(self) -> AbstractContextManager[Any]:
        """Holds requests off, for as long as it is entered."""
        return self._lock

    def handle(self, sender: str, data: bytes) -> bytes:
        """Returns the answer to a request."""
        with self._lock:
            request: StepRequest | EndRequest | None = None
            try:
                request, body = self._open(sender, data)
                known_by = hashlib.sha256(data).hexdigest()
                repeated = self._in_order(request, known_by)
                if repeated is not None:
                    return repeated
                if isinstance(request, EndRequest):
                    return self._end(request)
                answer = self._run(request, body, known_by)
            except (DamagedMessage, RefusedMessage, Refused) as error:
                self.refusals.add(sender=sender, reason=printable(error), bytes=len(data))
                return seal(self._answer("refused", request, printable(error)))
            except StateMissing as error:
                return seal(self._answer("behind", request, str(error)))
            except Exception as error:
                self.refusals.add(sender=sender, reason=f"failed: {error!r}", bytes=len(data))
                return seal(self._answer("failed", request, type(error).__name__))  # no word of the data in it
            self._last = known_by, answer
            self._write_asked()
            return answer

    def _read_asked(self) -> None:
        """Goes on from the last request that was answered: no earlier one is, and no more scores go out, after a
        restart either."""
        if self._asked_file is None or not self._asked_file.exists():
            return
        with explained(f"{self._asked_file} cannot be read", InputError):
            kept = parse_json(read_text(self._asked_file))
            self._gate.restore(kept["scores"])
        self._start, self._number = int(kept["start"]), int(kept["number"])
        if kept["answer"]:
            self._last = kept["request"], base64.b64decode(kept["answer"])

    def _write_asked(self) -> None:
        """Keeps what was asked last, before its answer leaves."""
        if self._asked_file is None:
            return
        known_by, answer = self._last
        # An answer that changed something is kept beside what it changed.
        again = b"" if self.state.open is not None and self.state.open.request == known_by else answer
        kept = {"start": self._start, "number": self._number, "request": known_by, "scores": self._gate.state()}
        replace_bytes(self._asked_file, json.dumps({**kept, "answer": base64.b64encode(again).decode()}).encode())

    def _answer(self, kind: Any, request: StepRequest | EndRequest | None, reason: str = "") -> Answer:
        run, number = ("", 0) if request is None else (request.run, request.number)
        return Answer(kind, run, number, reason, self.state.committed)

    def _open(self, sender: str, data: bytes) -> tuple[StepRequest | EndRequest, bytes]:
        """Returns a request of the server's; anybody else's is refused, and all that a server must not ask."""
        if sender != self.terms.server:
            raise Refused(f"{sender} is not the server of this federation")
        request, body = unseal(data, REQUEST)
        if not isinstance(request, StepRequest | EndRequest):
            raise Refused("what a party keeps stays with it")
        if request.run != self.terms.run:
            raise Refused("the request is one of another federation or of an earlier run")
        if isinstance(request, StepRequest):
            if not 0 <= request.round <= self.terms.rounds:
                raise Refused(f"round {request.round} was not approved; there are {self.terms.rounds}")
            if request.step not in self.terms.forms:
                raise Refused(f"step '{request.step}' was not approved")
        return request, body

    def _in_order(self, request: StepRequest | EndRequest, known_by: str) -> bytes | None:
        """Refuses requests of before; returns the answer to one that was answered and is asked again, word by word."""
        if self.state.open is not None and known_by == self.state.open.request:
            return self.state.answer
        if known_by == self._last[0]:
            return self._last[1]
        if request.start < self._start:
            raise Refused("the request is one of an earlier process of the server")
        if request.start == self._start and request.number <= self._number:
            raise Refused(f"request {request.number} is not after request {self._number}")
        self._start, self._number = request.start, request.number
        return None

    def _run(self, request: StepRequest, body: bytes, known_by: str) -> bytes:
        form = self.terms.forms[request.step]
        message = unpack(body)[1] if body else None
        check_message(message, form, f"the message to step '{request.step}'", self.terms.most_size)
        scoring = request.step in SCORING
        if scoring:
            self._check_policy(request)
            self.state.visit(request.round, request.after, request.attempt)
        else:
            self.state.enter(request.round, request.after, request.attempt)
        reply, losses = run_step(self.setup, self.fleet, request, message)
        leaving, staying = split_logged(reply, form.reply)
        check_tree(leaving, form.sent, f"the reply of step '{request.step}'", self.terms.most_size)
        answer = seal(self._answer("reply", request), pack({}, leaving))
        if not scoring:
            self.state.save(known_by, answer, self._noted(losses, count_bytes(leaving), count_bytes(message or {})))
        stays = {path: leaf.tolist() for path, leaf in flatten(staying)}
        self.private.add(round=request.round, step=request.step, losses=losses, **({"stays": stays} if stays else {}))
        self.sent.add(round=request.round, step=request.step, number=request.number, fields=described(leaving))
        return answer

    def _check_policy(self, request: StepRequest) -> None:
        """Refuses scores that the policy keeps here, and counts the others."""
        reason = self._gate.allows(request.step, request.round)
        if reason is not None:
            raise Refused(reason)
        self._gate.answered(request.step, request.round)

    def _end(self, request: EndRequest) -> bytes:
        self.state.settle(request.after)
        if self._on_end is not None:
            self._on_end(request.reason)
        return seal(self._answer("reply", request), pack({}))

    def _noted(self, losses: Mapping[str, float | None], up: int, down: int) -> dict[str, Any]:
        """Returns the losses and bytes of the open round so far, which are kept with its state."""
        before = {} if self.state.open is None else self.state.open.note
        return {
            "losses": {**before.get("losses", {}), **losses},
            "up": before.get("up", 0) + up,
            "down": before.get("down", 0) + down,
        }

    def _committed(self, round: int) -> None:
        if self._on_commit is not None and self.state.open is not None:
            note = self.state.open.note
            self._on_commit(round, note.get("losses", {}), Traffic(note.get("up", 0), note.get("down", 0)))


def described(tree: Tree) -> list[dict[str, Any]]:
    """Returns what leaves, field by field: its shape, its bytes and a hash, but nothing of its values."""
    return [
        {
            "field": path,
            "shape": list(leaf.shape),
            "bytes": leaf.nbytes,
            "sha256": hashlib.sha256(raw_bytes(leaf)).hexdigest(),
        }
        for path, leaf in flatten(tree)
    ]


class Journal:
    """A file of lines, one for everything that happened; without a folder, nothing is written."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self.path = None if folder is None else folder / f"{name}.jsonl"

    def add(self, **what: Any) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"time": round(time.time(), 3), **what}) + "\n")
