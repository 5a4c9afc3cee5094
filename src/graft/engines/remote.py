"""The engine of a server whose clients are processes or organisations of their own, each asked through a node.

Whoever does not answer in time, or answers what it may not, is absent: the session does the round again without. That
costs nothing where what the others are asked then is what they have answered already; where it is not, they go back to
the state before the round and work through it anew.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, NamedTuple

import torch

from graft.engines.envelopes import ANSWER, Answer, EndRequest, StepRequest, seal, unseal
from graft.engines.failures import step_failed
from graft.engines.fetching import fetch
from graft.engines.messages import DamagedMessage, add_client_axis, pack, unpack
from graft.engines.wire import Absent, Node, Patience
from graft.federation.clients import ClientsAbsent, Mail, Replies, Request, Round, StepLosses
from graft.federation.method import LASTING, SCORING
from graft.federation.server import Server
from graft.federation.setup import Setup
from graft.files import printable
from graft.tensors.trees import Tree, map_tree, select_clients


class Answered(NamedTuple):
    """A reply that was checked."""

    answer: Answer
    reply: Any


class Said(NamedTuple):
    """Something that was asked and answered."""

    request: Request
    body: bytes
    key: bytes  # a hash of both
    answered: Answered


@dataclass
class Conversation:
    """What was said to one client, and what it answered."""

    after: int = 0  # the last round in which its work counted
    number: int = 0  # of the last request
    attempt: int = 0  # how often it was sent back to the beginning of a round
    # Of this round: what was asked of it and the reply, in order, where that changed what it keeps.
    said: list[Said] = field(default_factory=list)
    repeated: int = 0  # how many of these the present attempt has asked for again
    # Replies that changed nothing, by what was asked: those of this round, and those that hold in every round.
    scores: dict[bytes, Answered] = field(default_factory=dict)
    facts: dict[bytes, Answered] = field(default_factory=dict)

    def begin_round(self) -> None:
        self.said, self.repeated, self.scores = [], 0, {}

    def known(self, step: str) -> dict[bytes, Answered]:
        """Returns where replies to a step that changes nothing are kept."""
        return self.facts if step in LASTING else self.scores


class Remote:
    """Clients behind a node; what they keep stays with them."""

    losses_travel = False  # whether answers may tell training losses, as they do where clients are simulated
    failures_end = False  # whether a step that fails ends the run; else its client is absent

    def __init__(
        self,
        setup: Setup,
        node: Node,
        names: Sequence[str],
        patience: Patience,
        *,
        run: str = "",
        after: Mapping[int, int] | None = None,
        start: int | None = None,
    ) -> None:
        """`names` are those of all clients at the node, in order; `after` says in which round each worked last.

        `start` is larger than any number of an earlier process of this server; without it the time is.
        """
        self._setup, self.node, self.names, self.patience = setup, node, list(names), patience
        self._run, self._start, self._round = run, time.time_ns() if start is None else start, 0
        # Numbers go on from the start, so that no answer to an earlier process of this server has one of them.
        counted = after or {}
        self._talks = {client: Conversation(counted.get(client, 0), self._start) for client in range(len(self.names))}
        self._losses: StepLosses = []
        self._dropped: set[int] = set()  # who was lost in this round

    def members(self) -> list[int]:
        return list(self._talks)

    def execute(self, server: Server, kind: Any, round: Round) -> tuple[Tree, Any]:  # noqa: ARG002
        return fetch(*round())

    def ask(self, request: Request) -> Replies:
        self._enter(request.round)
        bodies = self._bodies(request)
        keys = digests(request, bodies)
        answered, diverged = self._reuse(request, keys)
        reasons = self._send_back(diverged)
        waiting = [client for client in request.clients if client not in answered and client not in reasons]
        while waiting:
            received = self._exchange({client: (self._request(request, client), bodies[client]) for client in waiting})
            again = [client for client in waiting if self._catches_up(received[client], client, request)]
            for client in waiting:
                if client in again:
                    continue
                answer = self._judge(received[client], client, request)
                if isinstance(answer, str):
                    reasons[client] = answer
                else:
                    answered[client] = answer
            waiting = again
        reasons |= self.screen(request, {client: answer.reply for client, answer in answered.items()})
        kept = {client: answer for client, answer in answered.items() if client not in reasons}
        self._remember(request, bodies, keys, kept)
        if reasons:
            raise self._absent(reasons, request)
        for client in request.clients if self.losses_travel else ():
            losses = (answered[client].answer.losses or {}).items()
            self._losses += [(label, [client], torch.tensor([nan if loss is None else loss])) for label, loss in losses]
        return Replies([([client], add_client_axis(answered[client].reply)) for client in request.clients])

    def _bodies(self, request: Request) -> dict[int, bytes]:
        """Returns the message to every client as bytes; where all are told the same, they share them."""
        if request.each is None and request.mail is None:
            return dict.fromkeys(request.clients, pack({}, request.message))
        return {
            client: pack({}, request.each[client] if request.each else inbox_of(request.mail, position, client))
            for position, client in enumerate(request.clients)
        }

    def _request(self, request: Request, client: int) -> StepRequest:
        talk = self._talks[client]
        talk.number += 1
        return StepRequest(
            run=self._run,
            start=self._start,
            number=talk.number,
            round=request.round,
            attempt=f"{self._start}-{talk.attempt}",
            after=talk.after,
            step=request.step,
            turn=request.turn,
        )

    def _enter(self, round: int) -> None:
        """Begins a round that is another than the last: that one counted for all who were not lost in it."""
        if round == self._round:
            return
        for client, talk in self._talks.items():
            if talk.said and client not in self._dropped:
                talk.after = self._round
            talk.begin_round()
        self._round, self._dropped = round, set()

    def begin_anew(self) -> None:
        """Forgets all rounds so far: clients have been given a state to begin with."""
        self._talks = {client: Conversation(number=talk.number) for client, talk in self._talks.items()}
        self._round, self._dropped, self._losses = 0, set(), []

    def rewind(self) -> None:
        """Begins the round anew, for those who are left."""
        for talk in self._talks.values():
            talk.repeated = 0
        self._losses = []

    def _reuse(self, request: Request, keys: Mapping[int, bytes]) -> tuple[dict[int, Answered], list[int]]:
        """Returns what clients have answered already, and who was asked something else at this point of the round."""
        answered: dict[int, Answered] = {}
        diverged = []
        for client in request.clients:
            talk, key = self._talks[client], keys[client]
            if request.step in SCORING:
                if key in talk.known(request.step):
                    answered[client] = talk.known(request.step)[key]
            elif talk.repeated < len(talk.said):
                if talk.said[talk.repeated].key == key:
                    answered[client] = talk.said[talk.repeated].answered
                    talk.repeated += 1
                else:
                    diverged.append(client)
        return answered, diverged

    def _send_back(self, clients: Sequence[int]) -> dict[int, str]:
        """Has clients begin the round anew and work up to where it is; returns who did not, and why."""
        reasons: dict[int, str] = {}
        for client in clients:
            talk = self._talks[client]
            talk.attempt += 1
            talk.said = talk.said[: talk.repeated]
        for position in range(max((self._talks[client].repeated for client in clients), default=0)):
            left = [c for c in clients if c not in reasons and position < self._talks[c].repeated]
            again = {client: self._talks[client].said[position] for client in left}
            received = self._exchange({c: (self._request(said.request, c), said.body) for c, said in again.items()})
            for client, answer in received.items():
                if isinstance(answer, str) or answer.answer.kind != "reply":
                    reasons[client] = answer if isinstance(answer, str) else answer.answer.reason
        return reasons

    def _exchange(self, requests: Mapping[int, tuple[StepRequest, bytes]]) -> dict[int, Answered | str]:
        """Returns what clients answer, or in words why there is no answer that could be used."""
        sealed = {self.names[client]: seal(*request) for client, request in requests.items()}
        received = self.node.ask(sealed, self.patience)
        return {client: self._open(received[self.names[client]], request) for client, (request, _) in requests.items()}

    def _open(self, data: bytes | Absent, request: StepRequest) -> Answered | str:
        if isinstance(data, Absent):
            return data.reason
        try:
            answer, body = unseal(data, ANSWER)
            if (answer.run, answer.number) != (request.run, request.number):
                return "answered another request"
            return Answered(answer, unpack(body)[1] if answer.kind == "reply" else None)
        except DamagedMessage as error:
            return f"sent what is {error}"

    def _catches_up(self, answer: Answered | str, client: int, request: Request) -> bool:
        """Returns whether a client is to be asked again, since its state is after another round than was believed."""
        if isinstance(answer, str) or answer.answer.kind != "behind" or self._talks[client].after == answer.answer.has:
            return False
        if answer.answer.has >= request.round or self._talks[client].said:
            return False
        self._talks[client].after = answer.answer.has
        self.note(client, f"goes on from its state after round {answer.answer.has}")
        return True

    def _judge(self, answered: Answered | str, client: int, request: Request) -> Answered | str:
        """Returns an answer that can be used, or in words why it is not taken."""
        if isinstance(answered, str):
            return answered
        answer = answered.answer
        if answer.kind == "failed" and self.failures_end:
            raise step_failed(self._setup, [client], request.step, request.round, answer.reason)
        if answer.kind != "reply":
            what = {"failed": "failed", "refused": "refused", "behind": "cannot go on"}[answer.kind]
            return f"{what}: {printable(answer.reason)}"
        try:
            return answered._replace(reply=self.checked(request, answered.reply))
        except ValueError as error:
            return f"sent what is refused: {error}"

    def checked(self, request: Request, reply: Any) -> Any:  # noqa: ARG002
        """Returns a reply that is fine by itself; a `ValueError` says what is wrong with it."""
        return reply

    def screen(self, request: Request, replies: Mapping[int, Any]) -> dict[int, str]:  # noqa: ARG002
        """Returns whose replies are not to be trusted beside those of all others, and why."""
        return {}

    def note(self, client: int, what: str) -> None:
        """Is told what a person should know of a client."""

    def _remember(
        self,
        request: Request,
        bodies: Mapping[int, bytes],
        keys: Mapping[int, bytes],
        answered: Mapping[int, Answered],
    ) -> None:
        for client, answer in answered.items():
            talk = self._talks[client]
            if request.step in SCORING:
                talk.known(request.step)[keys[client]] = answer
            elif len(talk.said) == talk.repeated:  # it was not repeated just now
                talk.said.append(Said(request, bodies[client], keys[client], answer))
                talk.repeated += 1

    def _absent(self, reasons: Mapping[int, str], request: Request) -> ClientsAbsent:
        if request.step not in SCORING:
            self._dropped |= reasons.keys()
        listed = "; ".join(f"{self._setup.client_name(client)} {reason}" for client, reason in reasons.items())
        sentence = f"Not all answered step '{request.step}' of {self._setup.name}, round {request.round}: {listed}."
        return ClientsAbsent(reasons, sentence, self.rewind, request.step)

    def end(self, reason: str = "") -> None:
        """Tells all clients that there are no more rounds, and so whether the last one counted."""
        self._enter(self._round + 1)
        requests = {}
        for client, talk in self._talks.items():
            talk.number += 1
            requests[self.names[client]] = seal(EndRequest(self._run, self._start, talk.number, talk.after, reason))
        self.node.ask(requests, self.patience)

    def losses(self) -> StepLosses:
        losses, self._losses = self._losses, []
        return losses

    def state(self) -> dict[int, Tree]:
        """Returns nothing: what parties keep never leaves them."""
        return {}

    def copy_state(
        self,
        fields: Collection[str] | None = None,  # noqa: ARG002
        clients: Collection[int] | None = None,  # noqa: ARG002
    ) -> dict[int, Tree]:
        return {}

    def restore(self, state: Mapping[int, Tree]) -> None:
        """Restores nothing: parties go on from their own disks."""

    def close(self) -> None:
        self.node.close()


def digests(request: Request, bodies: Mapping[int, bytes]) -> dict[int, bytes]:
    """Returns a hash of what every client is asked, whoever asks it and however often."""
    round = 0 if request.step in LASTING else request.round
    head = f"{round}/{request.step}/{request.turn}/".encode()
    # Where all are told the same, it is the same object: that is hashed once.
    hashes = {id(body): hashlib.sha256(body).digest() for body in {id(body): body for body in bodies.values()}.values()}
    return {client: head + hashes[id(body)] for client, body in bodies.items()}


def last_counted(records: Iterable[Mapping[str, Any]], names: Sequence[str]) -> dict[int, int]:
    """Returns in which of the rounds on record each client took part last."""
    numbers = {name: client for client, name in enumerate(names)}
    return {numbers[name]: record["round"] for record in records for name in record["participants"]}


def inbox_of(mail: Mail | None, position: int, client: int) -> Any:
    """Returns what one recipient finds in its inbox: the messages it hears and its own, nothing of anybody else's."""
    if mail is None:
        return None
    links = mail.links[position]
    heard = (links != 0).reshape(-1, len(mail.senders)).any(0)
    delivered = [index for index, sender in enumerate(mail.senders) if heard[index] or sender == client]
    senders = [mail.senders[index] for index in delivered]
    sent = select_clients(mail.sent, torch.tensor(delivered))
    if links.dim() == 2:  # parts that travel apart: those that were not heard are not delivered
        arrived = (links[:, delivered] != 0).T | (torch.tensor(senders) == client).unsqueeze(1)
        sent = map_tree(lambda leaf: leaf * arrived.view(*arrived.shape, *[1] * (leaf.dim() - 2)).to(leaf.dtype), sent)
    return {"sent": sent, "links": links[..., delivered], "senders": torch.tensor(senders)}
