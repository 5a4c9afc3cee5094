"""The engine of a peer: its own steps run here, and what others send is fetched from them, with no server anywhere.

Every peer runs the same rounds by itself. In an exchange it puts its message into its outbox, from where others fetch
it, and fetches the messages of those that it wants to hear. Whoever cannot be reached is not heard in that exchange:
the others take over its weight.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Annotated, Any, Literal

import torch
from annotated_types import MaxLen
from pydantic import TypeAdapter
from torch import Tensor

from graft.engines.envelopes import STRICT, Count, Name, Words, seal, unseal
from graft.engines.fetching import fetch
from graft.engines.forms import Forms, RefusedMessage, check_tree
from graft.engines.in_process import InProcess
from graft.engines.kept_state import CHECKED, check_bytes, sync
from graft.engines.messages import DamagedMessage, drop_client_axis, pack, unpack
from graft.engines.party import MOST_SIZE, Journal, described
from graft.engines.wire import Absent, Node, Patience
from graft.federation.clients import Mail, Replies, Request, Round, StepLosses
from graft.federation.server import Server
from graft.federation.setup import Setup
from graft.federation.topologies import renormalise
from graft.files import printable, replace_bytes, sync_folder
from graft.tensors.trees import Tree, map_tree, stack

log = logging.getLogger(__name__)
KEPT_ROUNDS = 2  # in which something was sent stay in the outbox, for those who are a little behind
BEGUN = ""  # in the place of an exchange: that the round has begun


@dataclass(frozen=True)
class Fetch:
    """Asks a peer for what it sends in an exchange."""

    run: Name
    round: Count
    exchange: Name
    parts: Annotated[list[Count], MaxLen(100_000)] | None = None  # of a message whose parts travel apart; None: all
    seconds: float = 0.0  # to wait for it
    do: Literal["fetch"] = "fetch"

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Fetched:
    """What becomes of it."""

    kind: Literal["message", "past", "late", "refused"]  # past: it is not kept any more; late: it is not there yet
    round: Count = 0  # that the peer is in
    reason: Words = ""

    __pydantic_config__ = STRICT


FETCH: TypeAdapter[Fetch] = TypeAdapter(Fetch)
FETCHED: TypeAdapter[Fetched] = TypeAdapter(Fetched)


class Outbox:
    """What a peer sends, kept for others to fetch, on its disk where it has one.

    Whoever kills a peer loses nothing: a message is with the system before anybody can fetch it. On the disk it is a
    little later, and at the latest when `settle` returns.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder, self._changed = folder, threading.Condition()
        self._messages: dict[tuple[int, str], bytes] = {}
        self._syncs, self._syncing = ThreadPoolExecutor(1, thread_name_prefix="outbox"), list[Future[None]]()
        self.round = 0  # that this peer is in
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.glob("*-*.message"):
                number, exchange = path.stem.split("-", 1)
                content = path.read_bytes()
                if content[:CHECKED] == check_bytes(content[CHECKED:]):
                    self._messages[int(number), exchange] = content[CHECKED:]
                else:
                    log.warning("%s is damaged, as by a power failure: nobody can fetch it any more.", path)
                    path.unlink()

    def begin(self, round: int) -> None:
        """Begins a round; what is too old is forgotten."""
        with self._changed:
            self.round = round
            kept = sorted({number for number, _ in self._messages})[-KEPT_ROUNDS:]
            for number, exchange in [key for key in self._messages if key[0] not in kept]:
                del self._messages[number, exchange]
                if self._folder is not None:
                    self._path(number, exchange).unlink(missing_ok=True)
            self._changed.notify_all()

    def put(self, round: int, exchange: str, message: bytes) -> None:
        if self._folder is not None:
            path = self._path(round, exchange)
            replace_bytes(path, check_bytes(message), message)
            self._syncing.append(self._syncs.submit(sync, path))
        with self._changed:
            self._messages[round, exchange] = message
            self._changed.notify_all()

    def settle(self) -> None:
        """Returns when all that was put here is on the disk."""
        for syncing in self._syncing:
            syncing.result()
        if self._folder is not None and self._syncing:
            sync_folder(self._folder)
        self._syncing.clear()

    def wait_until(self, round: int, seconds: float) -> bool:
        """Returns whether a round has begun here, waiting for it."""
        with self._changed:
            return self._changed.wait_for(lambda: self.round >= round, seconds)

    def wait_for(self, round: int, exchange: str, seconds: float) -> bytes | None:
        """Returns a message when it is there; None if it does not come in time, or is not kept any more."""
        end = time.monotonic() + seconds
        with self._changed:
            while (round, exchange) not in self._messages:
                left = end - time.monotonic()
                if left <= 0 or self.round > round:
                    return None
                self._changed.wait(left)
            return self._messages[round, exchange]

    def _path(self, round: int, exchange: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{round}-{exchange}.message"


class Peer:
    """One peer's engine. It is also what answers others, by `handle`."""

    def __init__(
        self,
        setup: Setup,
        number: int,
        names: Sequence[str],
        patience: Patience,
        *,
        run: str,
        forms: Forms | None = None,
        folder: Path | None = None,
        after: int = 0,
    ) -> None:
        """`setup` is of this peer alone, which is one of the federation's `names`; `node` is set when there is one.

        `after` is the last round that it has run: two that were killed would wait for each other otherwise.
        """
        self._setup, self._names, self.patience, self._run, self._forms = setup, list(names), patience, run, forms
        self.node: Node
        self.here = [number]
        self.engine = InProcess(setup)
        self.outbox = Outbox(folder and folder / "outbox")
        self.outbox.round = after
        self.sent, self.refusals = Journal(folder, "sent"), Journal(folder, "refused")
        self.absent: dict[str, str] = {}  # who was not heard in this round, and why
        self._seen: dict[str, int] = {}  # the latest round that each of the others was seen in
        self._left_behind: set[str] = set()  # for whom nobody waits until they are seen again

    @property
    def name(self) -> str:
        return self._names[self.here[0]]

    def members(self) -> list[int]:
        return list(range(len(self._names)))

    @property
    def newest(self) -> int:
        """Returns the round that most of the others have reached; one that tells nonsense is not believed."""
        return median_low(list(self._seen.values())) if self._seen else 0

    def see(self, name: str, round: int) -> None:
        """Notes in which round another peer is."""
        if name in self._names and name != self.name:
            self._seen[name] = max(round, self._seen.get(name, 0))
            if round + 1 >= self.outbox.round:
                self._left_behind.discard(name)

    def begin(self, round: int) -> None:
        """Begins a round when all others have begun the one before: who hears nobody would be far ahead otherwise, and
        have forgotten what those who are slower come to ask for."""
        self.absent = {}
        awaited = [
            name
            for name in self._names
            if name not in (self.name, *self._left_behind) and self._seen.get(name, 0) < round - 1
        ]
        if awaited and round >= self.newest:
            asked = seal(Fetch(self._run, round - 1, BEGUN, None, self.patience.seconds))
            for name, data in self.node.ask(dict.fromkeys(awaited, asked), self.patience).items():
                self._note_round(name, data)
                if self._seen.get(name, 0) < round - 1:
                    self._left_behind.add(name)
        self.outbox.begin(round)

    def _note_round(self, name: str, data: bytes | Absent) -> None:
        if not isinstance(data, Absent):
            try:
                self.see(name, unseal(data, FETCHED)[0].round)
            except DamagedMessage as error:
                self.refusals.add(sender=name, reason=printable(error), bytes=len(data))

    def execute(self, server: Server, kind: Any, round: Round) -> tuple[Tree, Any]:  # noqa: ARG002
        return fetch(*round())

    def ask(self, request: Request) -> Replies:
        if request.mail is None:
            return self.engine.ask(request)
        exchange = exchange_key(request)
        message = drop_client_axis(request.mail.sent)
        self.outbox.put(request.round, exchange, pack({}, message))
        mail = self._collect(request, exchange, message, request.mail)
        return self.engine.ask(Request(request.step, request.round, self.here, turn=request.turn, mail=mail))

    def _collect(self, request: Request, exchange: str, own: Tree, mail: Mail) -> Mail:
        """Returns what this peer hears, and from whom; the weight of those that cannot be heard goes to the others."""
        me, links = self.here[0], mail.links
        heard = (links != 0).reshape(-1, len(mail.senders)).any(0)
        wanted = [sender for sender, listened in zip(mail.senders, heard.tolist(), strict=True) if listened]
        parts = {
            sender: links[0, :, mail.senders.index(sender)].nonzero().flatten().tolist() if links.dim() == 3 else None
            for sender in wanted
            if sender != me
        }
        messages = {me: own, **self._fetch(request, exchange, parts, own)}
        reached = [sender for sender in mail.senders if sender in messages]
        everybody = torch.zeros(*links.shape[:-1], len(self._names)).to(links)
        everybody[..., list(mail.senders)] = links
        lost = [sender for sender in wanted if sender not in messages]
        kept = renormalise(everybody, reached, recipients=self.here) if lost else everybody[..., reached]
        return Mail(reached, stack([messages[sender] for sender in reached]), kept)

    def _fetch(
        self, request: Request, exchange: str, parts: Mapping[int, list[int] | None], own: Tree
    ) -> dict[int, Tree]:
        asked = {self._names[sender]: sender for sender in parts}
        seconds = self.patience.seconds
        requests = {
            name: seal(Fetch(self._run, request.round, exchange, parts[sender], seconds))
            for name, sender in asked.items()
        }
        messages: dict[int, Tree] = {}
        for name, data in (self.node.ask(requests, self.patience) if requests else {}).items():
            sender = asked[name]
            self._note_round(name, data)
            message = self._open(data, request, parts[sender], own)
            if isinstance(message, str):
                self.absent[name] = message
            else:
                messages[sender] = message
        return messages

    def _open(self, data: bytes | Absent, request: Request, parts: list[int] | None, own: Tree) -> Tree | str:
        """Returns a message that was fetched, checked, or in words why there is none."""
        if isinstance(data, Absent):
            return data.reason
        try:
            answer, body = unseal(data, FETCHED)
            if answer.kind != "message":
                reasons = {"past": f"is in round {answer.round} already", "late": "was not ready in time"}
                return reasons.get(answer.kind, f"refused: {printable(answer.reason)}")
            message = unpack(body)[1]
            whole = message if parts is None else spread_parts(message, own, parts)
            self._check(request.step, whole)
            if map_tree(lambda leaf: (leaf.shape, leaf.dtype), whole) != map_tree(
                lambda leaf: (leaf.shape, leaf.dtype), own
            ):
                return "sent another kind of message"
            return whole
        except (DamagedMessage, RefusedMessage, ValueError, KeyError, AttributeError, TypeError, IndexError) as error:
            self.refusals.add(reason=printable(error), step=request.step, round=request.round)
            return f"sent what is refused: {printable(error)}"

    def _check(self, step: str, message: Tree) -> None:
        if self._forms is not None:
            sender = self._forms[step].hears
            check_tree(message, self._forms[sender].sent, f"the message of step '{sender}'", MOST_SIZE)

    def handle(self, sender: str, data: bytes) -> bytes:
        """Returns the answer to another peer that fetches a message; a failure is answered, never raised."""
        try:
            if sender not in self._names or sender == self.name:
                raise ValueError(f"{sender} is not a peer of this federation")
            fetch, body = unseal(data, FETCH)
            if fetch.run != self._run or body:
                raise ValueError("the request is one of another federation or of an earlier run")
            self.see(sender, fetch.round)
            most = min(fetch.seconds, self.patience.seconds) if fetch.seconds == fetch.seconds else 0.0
            if fetch.exchange == BEGUN:
                begun = self.outbox.wait_until(fetch.round, most)
                return seal(Fetched("message" if begun else "late", self.outbox.round))
            packed = self.outbox.wait_for(fetch.round, fetch.exchange, most)
            if packed is None:
                return seal(Fetched("past" if self.outbox.round > fetch.round else "late", self.outbox.round))
            message = unpack(packed)[1]
            if fetch.parts is not None:
                message = map_tree(lambda leaf: leaf[torch.tensor(fetch.parts, dtype=torch.int64)], message)
            self.sent.add(round=fetch.round, exchange=fetch.exchange, to=sender, fields=described(message))
            return seal(Fetched("message", self.outbox.round), packed if fetch.parts is None else pack({}, message))
        except (DamagedMessage, ValueError, IndexError) as error:
            self.refusals.add(sender=sender, reason=printable(error), bytes=len(data))
            return seal(Fetched("refused", reason=printable(error)))

    def losses(self) -> StepLosses:
        return self.engine.losses()

    def state(self) -> dict[int, Tree]:
        """Returns what this peer keeps, as the only client there is here."""
        return {0: self.engine.state()[self.here[0]]}

    def copy_state(
        self,
        fields: Collection[str] | None = None,
        clients: Collection[int] | None = None,  # noqa: ARG002
    ) -> dict[int, Tree]:
        return {0: self.engine.copy_state(fields)[self.here[0]]}

    def restore(self, state: Mapping[int, Tree]) -> None:
        self.engine.restore({self.here[0]: state[0]})

    def close(self) -> None:
        self.node.close()


def exchange_key(request: Request) -> str:
    """Returns what an exchange of a round is known by at all peers."""
    return f"{request.step}.{request.turn}"


def spread_parts(message: Tree, own: Tree, parts: list[int]) -> Tree:
    """Returns a message of which only some parts came: zeros stand for the others, which nobody looks at."""

    def spread(leaf: Tensor, like: Tensor) -> Tensor:
        whole = torch.zeros(like.shape, dtype=leaf.dtype)
        whole[torch.tensor(parts, dtype=torch.int64)] = leaf
        return whole

    return map_tree(spread, message, own)
