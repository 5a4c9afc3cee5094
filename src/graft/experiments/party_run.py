"""The run of a party: looks at what a server offers, approves it or not, answers its requests, and ends with a model of
its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from graft.data.party import PartyData
from graft.engines.party import Party, Terms
from graft.engines.policy import Policy
from graft.engines.wire import Handler, Node, Patience
from graft.errors import InputError, RunError
from graft.experiments.callbacks import AllCallbacks, Callback, Callbacks
from graft.experiments.checkpoints import write_sealed
from graft.experiments.consent import ConsentSheet, approve_once
from graft.experiments.federation_file import FederationFile
from graft.experiments.own_rounds import OwnRecord
from graft.experiments.parties_setup import Device, OwnPart, read_own, state_folder
from graft.experiments.record_files import FEDERATION
from graft.experiments.result import Result
from graft.experiments.run_directory import RunDirectory
from graft.experiments.serving import FORMAT, FederationRecord, read_record
from graft.experiments.welcome import (
    OFFER,
    WELCOME,
    Hello,
    Leave,
    Offer,
    ask_server,
    join_server,
    read_offer,
    wait_for_offer,
)
from graft.federation.clients import Traffic
from graft.files import explained, printable

log = logging.getLogger(__name__)
OnCommit = Callable[[int, Mapping[str, float | None], Traffic], None]
POLL_SECONDS = 1.0  # between looks at whether the server still knows us
READY_SECONDS = 600.0  # that a request waits for a party to be ready


@dataclass(frozen=True)
class Joining:
    """What a party brings, and what it lets out."""

    name: str
    data: Any  # a folder, a file, a graph
    model: str | None = None
    device: Device = "cpu"
    policy: Policy = field(default_factory=Policy)
    reach_within: float = 600.0  # seconds in which the server must be there
    return_within: float = 3600.0  # seconds that a server which is gone has to come back


@dataclass(frozen=True)
class Ready:
    """A party whose data are read and whose method is rehearsed, of whatever run."""

    own: OwnPart
    joining: Joining

    @property
    def data(self) -> PartyData:
        return self.own.data

    @property
    def sheet(self) -> ConsentSheet:
        """Returns what will leave, for approval."""
        return self.own.sheet

    def party(self, out: Path, run: str, on_commit: OnCommit, on_end: Callable[[str], None]) -> Party:
        """Returns what answers the requests of a run, with its state in a folder."""
        folder, file = state_folder(out), self.own.file
        terms = Terms(file.server, run, file.experiment.rounds, self.own.forms)
        with explained(f"{folder} cannot be written", InputError):
            folder.mkdir(parents=True, exist_ok=True)
        return Party(self.own.setup, terms, self.joining.policy, folder, on_commit=on_commit, on_end=on_end)

    def record(self, out: Path, party: Party, callbacks: Callback) -> OwnRecord:
        """Returns what puts on record how good the model of a party is."""
        own = self.own
        return OwnRecord(out, own.experiment, own.federation, own.setup, party.fleet, callbacks)


def make_ready(file: FederationFile, joining: Joining, callbacks: Callback) -> Ready:
    """Returns a party with its data read and its method rehearsed."""
    return Ready(read_own(file, joining.name, joining.data, joining.model, joining.device, callbacks), joining)


class Reception:
    """What answers requests while a party gets ready, and then the party itself."""

    def __init__(self) -> None:
        self._handler: Handler | None = None
        self._opened = threading.Event()

    def open(self, handler: Handler | None) -> None:
        """Lets requests in that have waited; without a handler they are not answered."""
        self._handler = handler
        self._opened.set()

    def handle(self, sender: str, data: bytes) -> bytes:
        # One who was killed and is back is asked again at once: it is not absent, just not ready yet.
        self._opened.wait(READY_SECONDS)
        if self._handler is None:
            raise RunError(f"{sender} asks before this party has joined")
        return self._handler(sender, data)


def join(
    joining: Joining,
    server: str,
    out: Path,
    open_node: Callable[[Handler], Node],
    approve: Callable[[ConsentSheet], bool],
    *,
    file: FederationFile | None = None,
    callbacks: Callbacks = (),
) -> Result:
    """Takes part in the federation of a server until its end, and returns the party's own result.

    `approve` is shown what will leave. With `file`, the party's own copy of the federation's file, nothing else is
    joined. A folder in which this party was before is gone on with.
    """
    heard, reception = AllCallbacks(callbacks), Reception()
    with ExitStack() as stack:
        stack.callback(heard.close)
        directory = RunDirectory(out)
        known = (out / FEDERATION).is_file()
        stack.enter_context(directory.lock() if known else directory.claim(False))
        check_not_over(directory, out)
        heard.on_phase("reaching the server")
        node = stack.enter_context(closing(open_node(reception.handle)))
        stack.callback(lambda: reception.open(None))  # nobody waits for one that is leaving
        offer = wait_for_offer(node, server, joining.reach_within)
        agreed = file or read_offer(offer, server)[0]
        run = PartyRun(joining, server, out, node, heard, offer, agreed)
        run.prepare(approve, known=known)
        reception.open(run.party.handle)
        return run.take_part()


def check_not_over(directory: RunDirectory, out: Path) -> None:
    """Refuses the folder of a party whose run has ended: its server is gone by now."""
    if directory.has_result():
        raise InputError(
            f"{out} is of a run that has ended. Its report: graft report {out}; its predictions: graft predict {out}."
        )


class PartyRun:
    """A party between its approval and its result."""

    def __init__(
        self,
        joining: Joining,
        server: str,
        out: Path,
        node: Node,
        callbacks: Callback,
        offer: Offer,
        file: FederationFile,
    ) -> None:
        self.joining, self.server, self.out, self.node, self.callbacks = joining, server, out, node, callbacks
        self.offer, self.file = offer, file
        self._done = threading.Event()
        self.data: PartyData
        self.party: Party
        self.record: OwnRecord

    def prepare(self, approve: Callable[[ConsentSheet], bool], *, known: bool) -> None:
        """Reads the data, has everything approved, and gets ready to answer."""
        file, joining = self.file, self.joining
        file.number(joining.name)
        if self.server != file.server:
            raise InputError(f"The server of federation '{file.name}' is {file.server}, not {self.server}.")
        ready = make_ready(file, joining, self.callbacks)
        self.data = ready.data
        approve_once(self.out, ready.sheet, approve)
        if not known:
            began = FederationRecord(FORMAT, self.offer.run, file.hash, list(file.parties))
            write_sealed(self.out / FEDERATION, asdict(began))
        elif read_record(self.out, file).run != self.offer.run:
            raise InputError(
                f"{self.out} is of an earlier run of federation '{file.name}', and the server began another: give "
                f"another folder."
            )
        self.party = ready.party(self.out, self.offer.run, self._committed, self._end)
        self.record = ready.record(self.out, self.party, self.callbacks)

    def take_part(self) -> Result:
        """Answers until the server says that there are no more rounds; comes again to a server that was gone."""
        join_server(self.node, self.server, self.offer, self.file, self.data.facts)
        self.callbacks.on_phase("training")
        gone: float | None = None
        hello = Hello(self.offer.protocol, self.offer.graft)
        try:
            while not self._done.wait(POLL_SECONDS):
                if self.server in self.node.present():
                    offer = ask_server(self.node, self.server, hello, OFFER, Patience(5))
                    if isinstance(offer, Offer):
                        gone = None
                        self._come_again(offer)
                        continue
                gone = time.monotonic() if gone is None else gone
                if time.monotonic() - gone > self.joining.return_within:
                    raise RunError(f"The server {self.server} was gone for {self.joining.return_within:g} s.")
        except KeyboardInterrupt:
            ask_server(self.node, self.server, Leave(self.offer.run), WELCOME, Patience(2))
            raise
        self.callbacks.on_phase("writing")
        with self.party.at_rest:
            result = self.record.finish()
        ask_server(self.node, self.server, Leave(self.offer.run), WELCOME, Patience(2))  # it need not wait for us
        return result

    def _come_again(self, offer: Offer) -> None:
        """Joins a server that was started anew; one of another run is left alone."""
        if offer.run != self.offer.run:
            raise RunError(f"The server {self.server} began another run, so this one is over.")
        if offer.ended:
            self._done.set()
        elif not offer.joined:
            join_server(self.node, self.server, self.offer, self.file, self.data.facts)

    def _committed(self, round: int, losses: Mapping[str, float | None], traffic: Any) -> None:
        self.record.add(round, losses, traffic)

    def _end(self, reason: str) -> None:
        log.info("The server ended the run%s", f": {printable(reason)}" if reason else "")
        self._done.set()
