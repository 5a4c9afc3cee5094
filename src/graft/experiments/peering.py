"""The run of a peer, with no server: peers greet each other, agree, and then each runs the same rounds by itself."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import TypeAdapter

import graft
from graft.data.party_facts import PartyFacts, compare_facts
from graft.engines.envelopes import STRICT, Count, Name, seal, unseal
from graft.engines.messages import DamagedMessage
from graft.engines.peer import Peer
from graft.engines.wire import Absent, Handler, Node, Patience
from graft.errors import InputError, RunError
from graft.experiments.callbacks import AllCallbacks, Callback, Callbacks
from graft.experiments.checkpoints import write_sealed
from graft.experiments.consent import ConsentSheet, approve_once
from graft.experiments.engines import Host
from graft.experiments.federation_file import FederationFile
from graft.experiments.parties_setup import Device, OwnPart, read_own, state_folder
from graft.experiments.record_files import FEDERATION
from graft.experiments.recorder import open_record
from graft.experiments.result import Result
from graft.experiments.run import Run
from graft.experiments.run_directory import RunDirectory
from graft.experiments.serving import FORMAT, FederationRecord, read_record
from graft.experiments.welcome import PROTOCOL
from graft.federation.clients import Traffic
from graft.federation.session import RoundFacts, RoundOutcome, Session
from graft.tensors.trees import Tree

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Greeting:
    """What peers tell each other before the first round, and while they wait for each other."""

    protocol: Count
    graft: Name
    hash: Name  # of what all share
    nonce: Name  # a number of this peer's own, drawn once for a run
    facts: dict[str, Any]
    round: Count = 0
    finished: bool = False
    do: Literal["greet"] = "greet"

    __pydantic_config__ = STRICT


GREETING: TypeAdapter[Greeting] = TypeAdapter(Greeting)


@dataclass(frozen=True)
class Peering:
    """What a peer brings."""

    name: str
    data: Any
    model: str | None = None
    device: Device = "cpu"


def take_part_as_peer(
    peering: Peering,
    file: FederationFile,
    out: Path,
    open_node: Callable[[Handler], Node],
    approve: Callable[[ConsentSheet], bool],
    *,
    callbacks: Callbacks = (),
) -> Result:
    """Takes part in a federation of peers until its end, and returns the peer's own result; a folder in which it was
    before is gone on with."""
    heard = AllCallbacks(callbacks)
    with ExitStack() as stack:
        stack.callback(heard.close)
        directory = RunDirectory(out)
        known = (out / FEDERATION).is_file()
        stack.enter_context(directory.lock() if known else directory.claim(False))
        run = PeerRun(peering, file, out, directory, heard)
        run.prepare(approve)
        node = stack.enter_context(closing(open_node(run.handle)))
        return run.run(node)


class PeerSession(Session):
    """The rounds of one peer; those that all others have left behind are not run any more."""

    engine: Peer

    def round(self, number: int, *, evaluate: bool = True) -> RoundOutcome:
        self.engine.begin(number)
        # What was sent in the round before the newest is still there to be heard.
        if number < self.engine.newest - 1 or self.engine.here[0] not in self.participants(number):
            nothing = Tree(losses=torch.empty(0), details=Tree(), correct=Tree())
            return RoundOutcome(nothing, RoundFacts([], Traffic(), {}, [], {}))
        outcome = super().round(number, evaluate=evaluate)
        self.engine.outbox.settle()  # before the round is on record
        numbers = {name: position for position, name in enumerate(self.setup.names or ())}
        absent = {numbers[name]: reason for name, reason in self.engine.absent.items()}
        present = [client for client in outcome.facts.participants if client not in absent]
        # Whom others hear is not known here, so there is no picture of links to be drawn.
        return outcome._replace(facts=replace(outcome.facts, participants=present, absent=absent, links={}))


class PeerRun:
    """A peer from its data to its result."""

    def __init__(
        self, peering: Peering, file: FederationFile, out: Path, directory: RunDirectory, callbacks: Callback
    ) -> None:
        self.peering, self.file, self.out, self.directory, self.callbacks = peering, file, out, directory, callbacks
        self.number = file.number(peering.name)
        self.others = [name for name in file.parties if name != peering.name]
        self.finished = False
        self._ready = threading.Event()  # when others can fetch messages
        self._noting = threading.Lock()
        self.greetings: dict[str, Greeting] = {}
        self.own: OwnPart
        self.engine: Peer | None = None

    def prepare(self, approve: Callable[[ConsentSheet], bool]) -> None:
        """Reads the data and has what will leave approved."""
        file, peering = self.file, self.peering
        self.own = read_own(file, peering.name, peering.data, peering.model, peering.device, self.callbacks)
        approve_once(self.out, self.own.sheet, approve)
        if (self.out / FEDERATION).is_file():
            self.record = read_record(self.out, file)
        else:
            self.record = FederationRecord(FORMAT, "", file.hash, [secrets.token_hex(16)])
            write_sealed(self.out / FEDERATION, asdict(self.record))

    def handle(self, sender: str, data: bytes) -> bytes:
        """Returns the answer to another peer: a greeting to a greeting, a message to one who fetches it."""
        try:
            greeting, _ = unseal(data, GREETING)
        except DamagedMessage:
            if not self._ready.wait(self.file.rounds.timeout) or self.engine is None:
                raise RunError(f"{sender} asks before this peer is ready") from None
            return self.engine.handle(sender, data)
        if sender in self.others:
            self._note(sender, greeting)
        return seal(self._greeting())

    def _greeting(self) -> Greeting:
        current = 0 if self.engine is None else self.engine.outbox.round
        nonce = self.record.parties[0]
        facts = self.own.data.facts.to_json()
        return Greeting(PROTOCOL, graft.__version__, self.file.hash, nonce, facts, current, self.finished)

    def _greet(self, node: Node, seconds: float) -> None:
        """Greets all others that are there, and notes what they say."""
        present = [name for name in self.others if name in node.present()]
        said = seal(self._greeting())
        for name, data in (node.ask(dict.fromkeys(present, said), Patience(seconds)) if present else {}).items():
            if not isinstance(data, Absent):
                try:
                    self._note(name, unseal(data, GREETING)[0])
                except DamagedMessage as error:
                    raise RunError(f"{name} answered a greeting with what is {error}") from None

    def _note(self, name: str, greeting: Greeting) -> None:
        """Keeps what another said last; one that has finished has, though an answer of before may come in later."""
        with self._noting:
            finished = name in self.greetings and self.greetings[name].finished
            self.greetings[name] = replace(greeting, finished=greeting.finished or finished)

    def _agree(self, node: Node) -> str:
        """Waits for everybody, and returns what this run is known by; a disagreement is refused with one sentence."""
        end = time.monotonic() + self.file.rounds.join_timeout
        while True:
            self._greet(node, 10)
            for name, greeting in self.greetings.items():
                problem = self._disagreement(name, greeting)
                if problem:
                    raise InputError(problem)
            missing = [name for name in self.others if name not in self.greetings]
            if not missing:
                break
            if time.monotonic() > end:
                raise RunError(f"Not all peers came within {self.file.rounds.join_timeout:g} s: {', '.join(missing)}.")
            time.sleep(POLL_SECONDS)
        nonces = {name: greeting.nonce for name, greeting in self.greetings.items()}
        nonces[self.peering.name] = self.record.parties[0]
        drawn = "/".join(nonces[name] for name in self.file.parties)
        return f"{self.file.name}-{hashlib.sha256(drawn.encode()).hexdigest()[:16]}"

    def _disagreement(self, name: str, greeting: Greeting) -> str:
        if (greeting.protocol, greeting.graft) != (PROTOCOL, graft.__version__):
            return f"{name} has Graft {greeting.graft}, and we {graft.__version__}: use the same version."
        if greeting.hash != self.file.hash:
            return f"{name} has another federation file: its method, settings, classes or features differ."
        try:
            return compare_facts(name, PartyFacts.from_json(greeting.facts), self.file.agreement) or ""
        except InputError as error:
            return f"{name} tells facts that cannot be: {error}"

    def run(self, node: Node) -> Result:
        """Runs all rounds that are left, and stays until the others have heard the last of it."""
        begun = time.perf_counter()
        self.callbacks.on_phase("waiting for peers")
        if not self.record.run:
            self.record = replace(self.record, run=self._agree(node))
            write_sealed(self.out / FEDERATION, asdict(self.record))
        rules, folder = self.file.rounds, state_folder(self.out)
        folder.mkdir(parents=True, exist_ok=True)
        patience = Patience(rules.timeout, comeback=rules.comeback)
        parties = self.file.parties
        checkpoint = self.directory.load() if self.directory.experiment.is_file() else None
        done = 0 if checkpoint is None else checkpoint.round
        own, setup = self.own, self.own.setup
        engine = Peer(
            setup,
            self.number,
            parties,
            patience,
            run=self.record.run,
            forms=own.forms,
            folder=folder,
            after=done,
        )
        engine.node = node
        self._catch_up(node, engine, done)
        self.engine = engine
        self._ready.set()
        session = PeerSession(setup, engine)
        device = setup.device.type
        threads = torch.get_num_threads()
        recorder = open_record(self.directory, own.experiment, setup, own.federation, threads, device, checkpoint)
        host = Host(device, lambda: 0, lambda setup: engine)  # noqa: ARG005
        run = Run(own.experiment, own.federation, session, recorder, self.callbacks, host)
        result = run.run_rounds(begun, checkpoint)
        self.finished = result.finished
        if self.finished:  # one that was asked to stop leaves at once
            self._linger(node, rules.comeback)
        return result

    def _catch_up(self, node: Node, engine: Peer, done: int) -> None:
        """Finds out in which round the others are, for one who was away."""
        if done:
            self._greet(node, 10)
            for name, greeting in self.greetings.items():
                engine.see(name, greeting.round)

    def _linger(self, node: Node, seconds: float) -> None:
        """Stays until all others that are there have run all rounds; one that is gone has some seconds to come back."""
        gone_since: Mapping[str, float] = {}
        while True:
            self._greet(node, 5)
            present, now = node.present(), time.monotonic()
            busy = [name for name in self.others if not self.greetings.get(name, self._greeting()).finished]
            waiting = [name for name in busy if name not in present]
            gone_since = {name: gone_since.get(name, now) for name in waiting}
            if all(name in waiting and now - gone_since[name] > seconds for name in busy):
                return
            time.sleep(POLL_SECONDS)
