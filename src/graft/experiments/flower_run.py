"""A federation that Flower carries: there a server can only ask, so it invites parties, which otherwise come by
themselves.

A party is a folder: it approves before it is ever asked, and is opened from its folder for every message.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import MaxLen
from pydantic import TypeAdapter

import graft
from graft.engines.envelopes import REQUEST, STRICT, Answer, Count, EndRequest, Name, seal, unseal
from graft.engines.messages import DamagedMessage
from graft.engines.party import Party
from graft.engines.policy import read_policy
from graft.engines.wire import Absent, Handler, Node, Patience
from graft.errors import InputError
from graft.experiments.callbacks import AllCallbacks
from graft.experiments.checkpoints import read_sealed, write_sealed
from graft.experiments.consent import ConsentSheet, approve_once
from graft.experiments.federation_file import FederationFile, parse_federation
from graft.experiments.own_rounds import OwnRecord
from graft.experiments.parties_setup import Device
from graft.experiments.party_run import Joining, Ready, make_ready
from graft.experiments.record_files import FEDERATION
from graft.experiments.reports.report import write_report
from graft.experiments.run_directory import RunDirectory
from graft.experiments.serving import FORMAT, FederationRecord, read_record, serve
from graft.experiments.welcome import LONGEST, OFFER, PROTOCOL, WELCOME, Hello, Join, Leave, Welcome
from graft.federation.clients import Traffic
from graft.files import explained, printable

log = logging.getLogger(__name__)
PARTY_FILE = "party.json"
PARTY_FORMAT = "graft-flower-party-1"
TURN_FILE = "turn"  # who answered last, so that a process knows whether what it holds is still true
LARGEST_END = 4096  # bytes of a request that only tells of the end
INVITE_AGAIN_SECONDS = 30.0  # before somebody who did not answer is invited once more


@dataclass(frozen=True)
class Invite:
    """A server asks a party to come to a run; the answer is a `Join`, or a `Welcome` that says why not."""

    protocol: Count
    graft: Name
    run: Name
    hash: Name  # of what all share
    do: Literal["invite"] = "invite"

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class PartyRecord:
    """What party.json in the folder of a party holds: all that it is opened with."""

    format: str
    federation: Annotated[str, MaxLen(LONGEST)]  # what its file holds, as JSON
    where: str  # the folder of that file, in which files of your own are looked for
    name: str
    data: str
    model: str | None
    device: Device
    policy: dict[str, Any]

    __pydantic_config__ = STRICT


INVITE: TypeAdapter[Invite] = TypeAdapter(Invite)
COMING: TypeAdapter[Join | Welcome] = TypeAdapter(Join | Welcome)
PARTY_RECORD: TypeAdapter[PartyRecord] = TypeAdapter(PartyRecord)


# A party.


def write_party(
    path: Path, content: Mapping[str, Any], joining: Joining, out: Path, approve: Callable[[ConsentSheet], bool]
) -> Ready:
    """Makes the folder of a party that approves of what will leave; `path` is that of the federation's file, `content`
    what it holds."""
    if (out / FEDERATION).is_file():
        raise InputError(f"{out} is of a run that has begun: give another folder.")
    if out.exists() and any(out.iterdir()) and not (out / PARTY_FILE).is_file():
        raise InputError(f"{out} is not empty: give another folder.")
    where = path.parent.resolve()
    file = parse_federation(content, str(path), where)
    source = str(Path(joining.data).resolve()) if Path(joining.data).exists() else str(joining.data)
    ready = make_ready(file, joining, AllCallbacks(()))
    with explained(f"{out} cannot be written to", InputError):
        out.mkdir(parents=True, exist_ok=True)
        approve_once(out, ready.sheet, approve)
        text, policy = json.dumps(content), asdict(joining.policy)
        record = PartyRecord(
            PARTY_FORMAT, text, str(where), joining.name, source, joining.model, joining.device, policy
        )
        write_sealed(out / PARTY_FILE, asdict(record))
    return ready


class PartyInFolder:
    """A party as its folder has it; answers an invitation, and then the requests of that run alone."""

    def __init__(self, folder: Path) -> None:
        with explained(f"{folder / PARTY_FILE} cannot be read", InputError):
            if not (folder / PARTY_FILE).is_file():
                raise InputError(f"{folder} is no folder of a party: `graft flower party` makes one.")
            record = read_sealed(folder / PARTY_FILE, PARTY_RECORD, PARTY_FORMAT, "record of the party")
        self.folder = folder
        self.file = parse_federation(json.loads(record.federation), str(folder / PARTY_FILE), Path(record.where))
        policy = read_policy(None, **record.policy)
        joining = Joining(record.name, record.data, record.model, record.device, policy)
        self._ready = make_ready(self.file, joining, AllCallbacks(()))
        approve_once(folder, self._ready.sheet, lambda sheet: False)  # noqa: ARG005  (nobody is here to approve)
        self.read_state()

    def read_state(self) -> None:
        """Takes up what other processes have done for this party; its data and what it approved of stay the same."""
        run = read_record(self.folder, self.file).run if (self.folder / FEDERATION).is_file() else None
        self._party = None if run is None else self._open(run)
        self.__dict__.pop("_record", None)

    def _open(self, run: str) -> Party:
        return self._ready.party(self.folder, run, self._committed, self._end)

    @cached_property
    def _record(self) -> OwnRecord:
        assert self._party is not None
        return self._ready.record(self.folder, self._party, AllCallbacks(()))

    def handle(self, sender: str, data: bytes) -> bytes:
        """Returns the answer to an invitation or to a request."""
        try:
            invite, _ = unseal(data, INVITE)
        except DamagedMessage:
            if self._party is None:
                return seal(Answer("refused", reason="this party was not invited yet"))
            return self._party.handle(sender, data)
        problem = self._disagreement(sender, invite)
        if problem:
            log.warning("An invitation is refused: %s", problem)
            return seal(Welcome(printable(problem)[:1000]))
        if self._party is None:
            self._begin(invite.run)
        return seal(Join(PROTOCOL, graft.__version__, invite.run, self.file.hash, self._ready.data.facts.to_json()))

    def _disagreement(self, sender: str, invite: Invite) -> str:
        """Returns a sentence about what is not as this party has it; empty where all is."""
        name, file = self._ready.joining.name, self.file
        if sender != file.server:
            return f"{name} takes part in a federation of {file.server}, not of {sender}."
        if invite.protocol != PROTOCOL or invite.graft != graft.__version__:
            there = f"Graft {invite.graft} (protocol {invite.protocol})"
            return f"{name} has Graft {graft.__version__} (protocol {PROTOCOL}), the server {there}: use the same."
        if invite.hash != file.hash:
            return f"{name} has another federation file: its method, settings, classes or features differ."
        if self._party is not None and invite.run != self._party.terms.run:
            return f"{name} has a folder of an earlier run of federation '{file.name}', and has to make another."
        return ""

    def _begin(self, run: str) -> None:
        """Takes part in a run from now on, and in no other with this folder."""
        self._party = self._open(run)
        self._record  # noqa: B018  (begun with the model of before the first round)
        write_sealed(
            self.folder / FEDERATION, asdict(FederationRecord(FORMAT, run, self.file.hash, list(self.file.parties)))
        )

    def _committed(self, round: int, losses: Mapping[str, float | None], traffic: Traffic) -> None:
        self._record.add(round, losses, traffic)

    def _end(self, reason: str) -> None:  # noqa: ARG002
        """Writes the party's own result, its report and its predictions; a server may say twice that it is over."""
        if RunDirectory(self.folder).has_result() or not self._record.rounds:
            return
        result = self._record.finish()
        write_report(self.folder)
        result.client(0).predict().to_csv(self.folder / "predictions.csv", overwrite=True)


class Opened(NamedTuple):
    """A party that this process holds, and the mark it left in the folder when it answered last."""

    party: PartyInFolder
    mark: str


OPENED: dict[Path, Opened] = {}  # by folder: a simulation has few processes for many messages


def open_party(folder: str) -> Handler:
    """Returns what answers the messages to the party of a folder, which nobody else may use meanwhile."""
    path = Path(folder).resolve()

    def handle(sender: str, data: bytes) -> bytes:
        turn = path / TURN_FILE
        opened = OPENED.pop(path, None)
        left = turn.read_text() if turn.is_file() else ""
        party = PartyInFolder(path) if opened is None else opened.party
        if opened is not None and opened.mark != left:
            party.read_state()
        mark = f"{os.getpid()} {secrets.token_hex(8)}"
        turn.write_text(mark)  # before anything changes: what other processes hold is not true from now on
        answer = party.handle(sender, data)
        OPENED[path] = Opened(party, mark)
        return answer

    return handle


# The server.


class Inviting:
    """The server's node: whoever is there is invited, and what it answers is brought to the door."""

    def __init__(self, node: Node, door: Handler, file: FederationFile) -> None:
        self.name, self._node, self._door, self._file = node.name, node, door, file
        self._settled: set[str] = set()  # who came, or does not want to
        self._not_before: dict[str, float] = {}  # when those who did not answer are invited again

    def present(self) -> set[str]:
        present = self._node.present()
        self._invite(present)
        return present

    def ask(self, requests: Mapping[str, bytes], patience: Patience) -> dict[str, bytes | Absent]:
        answers = self._node.ask(requests, patience)
        for name, answer in answers.items():
            if not isinstance(answer, Absent):
                self._see_off(name, requests[name])
        if len(self._settled) < len(self._file.parties):  # whoever comes late takes part from the next exchange on
            self._invite(self._node.present())
        return answers

    def close(self) -> None:
        self._node.close()

    def _see_off(self, name: str, request: bytes) -> None:
        """Brings a party that has heard of the end out again: it cannot say itself that it leaves."""
        if len(request) < LARGEST_END:
            asked, _ = unseal(request, REQUEST)
            if isinstance(asked, EndRequest):
                self._door(name, seal(Leave(asked.run)))

    def _invite(self, present: Collection[str]) -> None:
        now = time.monotonic()
        new = [name for name in self._file.parties if name in present and name not in self._settled]
        due = [name for name in new if now >= self._not_before.get(name, 0)]
        if not due:
            return
        offer, _ = unseal(self._door(due[0], seal(Hello(PROTOCOL, graft.__version__))), OFFER)
        invite = seal(Invite(PROTOCOL, graft.__version__, offer.run, self._file.hash))
        rules = self._file.rounds
        answers = self._node.ask(dict.fromkeys(due, invite), Patience(rules.timeout, comeback=rules.comeback))
        for name, answer in answers.items():
            problem = answer.reason if isinstance(answer, Absent) else self._introduce(name, answer, offer.run)
            if problem:
                log.warning("%s has not joined: %s", name, problem)
            if isinstance(answer, Absent):
                self._not_before[name] = time.monotonic() + INVITE_AGAIN_SECONDS
            else:
                self._settled.add(name)

    def _introduce(self, name: str, answer: bytes, run: str) -> str:
        """Brings a party to the door; returns why it does not come or is not let in, or nothing."""
        try:
            coming, _ = unseal(answer, COMING)
        except DamagedMessage as error:
            coming = Welcome(f"it sent what is {error}")
        if isinstance(coming, Join):
            welcome, _ = unseal(self._door(name, seal(coming)), WELCOME)
            return welcome.refused
        self._door(name, seal(Leave(run)))
        return printable(coming.refused)


def serve_over_flower(node: Node, federation: str, out: str) -> dict[str, Any]:
    """Runs a federation as its server and returns its result; a folder in which it was begun is gone on with.

    `federation` is the text of its file, `node` reaches the parties.
    """
    try:
        content = tomllib.loads(federation)
    except ValueError as error:
        raise InputError(f"The setting 'federation' is no text of a federation's file: {error}.") from error
    file, folder = parse_federation(content, "the setting 'federation'"), Path(out)
    resume = (folder / FEDERATION).is_file()
    summary = serve(file, content, folder, lambda door: Inviting(node, door, file), resume=resume)
    write_report(folder)
    return summary
