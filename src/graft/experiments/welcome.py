"""What is said before training: who comes with what, what is offered to it, and whether it is taken.

A server offers its federation to whoever has one of its parties' certificates; the party looks at it, and comes with
what the agreement is about: versions, the hash of what all share, and the facts of its data.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import MaxLen
from pydantic import TypeAdapter

import graft
from graft.data.party_facts import PartyFacts, compare_facts
from graft.engines.envelopes import STRICT, Count, Name, Words, seal, unseal
from graft.engines.messages import DamagedMessage
from graft.engines.wire import Absent, Node, Patience
from graft.errors import InputError, RunError
from graft.experiments.federation_file import FederationFile, parse_federation
from graft.files import printable
from graft.registry import parse_reference

PROTOCOL = 1  # of everything that parties and servers say to each other
LONGEST = 2**18  # characters of a federation file


@dataclass(frozen=True)
class Hello:
    """A party asks what there is, and whether it has a place in it."""

    protocol: Count
    graft: Name
    do: Literal["hello"] = "hello"

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Offer:
    """The federation that a server runs."""

    protocol: Count
    graft: Name
    run: Name
    federation: Annotated[str, MaxLen(LONGEST)]  # its file, as JSON
    joined: bool  # whether this server knows the party already
    ended: bool  # whether all rounds are over
    refused: Words = ""

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Join:
    """A party comes, with what is to be agreed on."""

    protocol: Count
    graft: Name
    run: Name
    hash: Name  # of what all share
    facts: dict[str, Any]
    do: Literal["join"] = "join"

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Leave:
    """A party goes, and will not come back."""

    run: Name
    do: Literal["leave"] = "leave"

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Welcome:
    """Whether a party is taken."""

    refused: Words = ""  # why not

    __pydantic_config__ = STRICT


SAID: TypeAdapter[Hello | Join | Leave] = TypeAdapter(Hello | Join | Leave)
OFFER: TypeAdapter[Offer] = TypeAdapter(Offer)
WELCOME: TypeAdapter[Welcome] = TypeAdapter(Welcome)
Heard = TypeVar("Heard")


class Door:
    """The server's side: offers the federation and lets parties in."""

    def __init__(self, file: FederationFile, content: Mapping[str, Any], run: str) -> None:
        """`content` is what the federation's file holds."""
        self.file, self.run = file, run
        self._content = json.dumps(content)
        self.joined: dict[str, PartyFacts] = {}
        self.left: set[str] = set()
        self.ended = False
        self.on_join: Callable[[str], None] = lambda name: None  # noqa: ARG005
        self.refusals: list[tuple[str, str]] = []  # who was refused, and why; the last hundred

    def handle(self, sender: str, data: bytes) -> bytes:
        """Returns what a party is answered; nothing that it says can raise."""
        try:
            said, body = unseal(data, SAID)
            if body:
                raise DamagedMessage("not a Graft message: there is more than was announced")
        except DamagedMessage as error:
            return self._refuse(sender, str(error))
        if isinstance(said, Leave):
            if said.run == self.run:
                self.left.add(sender)
                self.joined.pop(sender, None)
            return seal(Welcome())
        problem = self._other_version(sender, said)
        if isinstance(said, Hello):
            content = "" if problem else self._content
            versions = PROTOCOL, graft.__version__
            return seal(Offer(*versions, self.run, content, sender in self.joined, self.ended, problem))
        problem = problem or self._disagreement(sender, said)
        if problem:
            return self._refuse(sender, problem)
        self.left.discard(sender)
        if sender not in self.joined:
            self.joined[sender] = PartyFacts.from_json(said.facts)
            self.on_join(sender)
        return seal(Welcome())

    def _refuse(self, sender: str, reason: str) -> bytes:
        self.refusals = [*self.refusals[-99:], (sender, printable(reason))]
        return seal(Welcome(printable(reason)[:1000]))

    def _other_version(self, sender: str, said: Hello | Join) -> str:
        if said.protocol != PROTOCOL:
            return f"{sender} speaks protocol {said.protocol}, the server {PROTOCOL}: use the same version of Graft."
        if said.graft != graft.__version__:
            return f"{sender} has Graft {printable(said.graft)}, the server {graft.__version__}: use the same version."
        return ""

    def _disagreement(self, sender: str, said: Join) -> str:
        """Returns a sentence about what was not agreed on; empty where all was."""
        if said.run != self.run:
            return f"{sender} comes to another run of the federation '{self.file.name}': join again."
        if said.hash != self.file.hash:
            return f"{sender} has another federation file: its method, settings, classes or features differ."
        try:
            facts = PartyFacts.from_json(said.facts)
        except InputError as error:
            return f"{sender} tells facts that cannot be: {error}"
        return compare_facts(sender, facts, self.file.agreement) or ""


def ask_server(node: Node, server: str, said: Any, kind: TypeAdapter[Heard], patience: Patience) -> Heard | Absent:
    """Returns what a server answers to something that is said before training."""
    answer = node.ask({server: seal(said)}, patience)[server]
    if isinstance(answer, Absent):
        return answer
    try:
        return unseal(answer, kind)[0]
    except DamagedMessage as error:
        raise RunError(f"{server} answered what is {error}") from None


def wait_for_offer(node: Node, server: str, seconds: float) -> Offer:
    """Returns what a server offers, waiting for it to be there."""
    end = time.monotonic() + seconds
    hello = Hello(PROTOCOL, graft.__version__)
    while True:
        offer = ask_server(node, server, hello, OFFER, Patience(min(30.0, max(1.0, end - time.monotonic()))))
        if isinstance(offer, Offer):
            if offer.refused:
                raise InputError(offer.refused)
            return offer
        if time.monotonic() > end:
            raise RunError(f"The server {server} cannot be reached within {seconds:g} s: it {offer.reason}.")
        time.sleep(0.2)


def read_offer(offer: Offer, server: str) -> tuple[FederationFile, dict[str, Any]]:
    """Returns the federation that is offered, and what its file holds; nothing of it can name code to be run."""
    try:
        content = json.loads(offer.federation)
        if not isinstance(content, dict):
            raise ValueError("it is no table")
    except (ValueError, RecursionError) as error:
        raise RunError(f"{server} offers what is no federation: {error}.") from None
    experiment = content.get("experiment", {})
    named = [experiment.get(name) for name in ("method", "plug", "models")] if isinstance(experiment, dict) else []
    for name in [entry for value in named for entry in (value if isinstance(value, list) else [value])]:
        if isinstance(name, str) and parse_reference(name) is not None:
            raise InputError(
                f"{server} names '{printable(name)}', which is code of its own: have the federation's file and that "
                f"code from somebody you trust, and give the file to this command."
            )
    return parse_federation(content, f"the federation of {server}"), content


def join_server(node: Node, server: str, offer: Offer, file: FederationFile, facts: PartyFacts) -> None:
    """Comes to a federation; a refusal is an `InputError` in the server's words."""
    join = Join(PROTOCOL, graft.__version__, offer.run, file.hash, facts.to_json())
    welcome = ask_server(node, server, join, WELCOME, Patience(60, comeback=60))
    if isinstance(welcome, Absent):
        raise RunError(f"The server {server} {welcome.reason}.")
    if welcome.refused:
        raise InputError(f"{server} refuses: {welcome.refused}")
