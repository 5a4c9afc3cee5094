"""What a round sees: the server it runs on, and the clients it may ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from graft.errors import InputError
from graft.federation.fleet import initial
from graft.tensors.randomness import SeedBuffer, Stream, index_tensor, seed_for, streams
from graft.tensors.trees import Tree, check_message, count_bytes, flatten, map_tree, select_clients

if TYPE_CHECKING:
    from graft.models.architecture import Model


class Replies:
    """The answers of the asked clients: `replies.model` is stacked in client order, `replies[3]` is one client's.

    Answers of different sizes, which a step with `fleet=False` may give, cannot be stacked: read them one by one.
    """

    def __init__(self, parts: Sequence[tuple[list[int], Any]]) -> None:
        """Each part holds the numbers of some clients and their answers, stacked along the first axis."""
        self._parts = parts
        self.clients = sorted(client for clients, _ in parts for client in clients)
        self._places = {client: (row, part) for clients, part in parts for row, client in enumerate(clients)}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._in_order([part[name] for _, part in self._parts])

    def whole(self) -> Any:
        """All that was answered, stacked in client order."""
        return self._in_order([part for _, part in self._parts])

    def _in_order(self, branches: list[Any]) -> Any:
        if len(self._parts) == 1 and self._parts[0][0] == self.clients:
            return branches[0]
        arrived = [client for clients, _ in self._parts for client in clients]
        order = tuple(sorted(range(len(arrived)), key=arrived.__getitem__))

        def reordered(*pieces: Tensor) -> Tensor:
            whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            return whole.index_select(0, index_tensor(order, whole.device))

        return map_tree(reordered, branches[0], *branches[1:])

    def __getitem__(self, client: int) -> Any:
        row, part = self._places[client]
        return select_clients(part, row)

    def __len__(self) -> int:
        return len(self.clients)

    def __contains__(self, name: str) -> bool:
        """Whether every client's answer has a field of that name."""
        return all(name in part for _, part in self._parts)

    def bytes(self) -> int:
        return sum(count_bytes(part) for _, part in self._parts)


@dataclass(frozen=True)
class Mail:
    """What peers sent, and who hears whom."""

    senders: list[int]
    sent: Any  # stacked in the order of the senders
    links: Tensor  # [recipients, senders], or [recipients, parts, senders] where parts travel apart; 0 is not heard


@dataclass(frozen=True)
class Request:
    """What is asked of some clients."""

    step: str
    round: int
    clients: list[int]
    message: Any = None  # one for all of them
    each: Mapping[int, Any] | None = None  # or one apiece
    turn: int = 0  # how often this step was asked in this round before; every time draws its own random numbers
    mail: Mail | None = None  # or what other clients sent, where there is no server


class Engine(Protocol):
    """Where clients live: runs a named step at some of them and brings back what it returned."""

    def members(self) -> list[int]: ...

    def ask(self, request: Request) -> Replies: ...

    def play(self, server: Server, kind: Any, round: Callable[[], tuple[Tree, Any]]) -> tuple[Tree, Any]:
        """Play a round: a function that gives tensors, which come back on the host in one go, and other facts.

        An engine may record it on a GPU and replay it from then on: the facts of all rounds of one kind must be the
        same. A round of kind None is never recorded.
        """
        ...

    def losses(self) -> list[tuple[str, list[int], Tensor]]:
        """The last training losses of every step, with the clients they belong to, since this was asked before."""
        ...

    def state(self) -> dict[int, Tree]:
        """What every client keeps, for a checkpoint."""
        ...

    def restore(self, state: Mapping[int, Tree]) -> None: ...

    def close(self) -> None: ...


@dataclass
class Traffic:
    """Bytes of messages, as payload: what the tensors and numbers themselves need."""

    up: int = 0
    down: int = 0
    peer: int = 0

    def add(self, other: Traffic) -> None:
        self.up, self.down, self.peer = self.up + other.up, self.down + other.down, self.peer + other.peer


class Clients:
    """The clients that take part in this round."""

    def __init__(
        self,
        engine: Engine,
        round: int,
        members: list[int],
        traffic: Traffic,
        turns: Counter[str] | None = None,
        listener: Callable[[Replies], None] | None = None,
    ) -> None:
        self._engine = engine
        self._traffic = traffic
        self._turns: Counter[str] = Counter() if turns is None else turns
        self._listener = listener
        self._round = round
        self.members = members

    def __len__(self) -> int:
        return len(self.members)

    @property
    def everyone(self) -> Clients:
        """All clients of the federation, whether they take part in this round or not."""
        return self._with(self._engine.members(), self._listener)

    def only(self, members: Sequence[int]) -> Clients:
        """Some of the clients that take part in this round."""
        wanted = set(members)
        return self._with([one for one in self.members if one in wanted], self._listener)

    def heard_by(self, listener: Callable[[Replies], None]) -> Clients:
        """The same clients; whatever they answer is shown to the listener as well."""
        return self._with(self.members, listener)

    def _with(self, members: list[int], listener: Callable[[Replies], None] | None) -> Clients:
        return Clients(self._engine, self._round, members, self._traffic, self._turns, listener)

    def ask(self, step: Callable[..., Any], message: Any = None, each: Mapping[int, Any] | None = None) -> Replies:
        """Run a step at the clients; `message` goes to all of them, `each` holds one message a client instead."""
        name = step.__name__
        if each is not None:
            missing = [client for client in self.members if client not in each]
            if message is not None or missing:
                raise ValueError(f"step '{name}' was asked with `each`, which must hold every client's whole message")
            sent = [each[client] for client in self.members]
        else:
            sent = [] if message is None else [message]
        for one in sent:
            check_message(one, f"the message to step '{name}'")
        copies = 1 if each is not None else len(self.members)
        self._traffic.down += copies * sum(count_bytes(one) for one in sent)
        turn = self._turns[name]
        self._turns[name] += 1
        replies = self._engine.ask(Request(name, self._round, self.members, message, each, turn))
        self._traffic.up += replies.bytes()
        if self._listener is not None:
            self._listener(replies)
        return replies


@dataclass
class Server:
    """Where a round runs: it keeps state between rounds, and never sees data."""

    model: Model | None  # the clients' architecture, where they all have the same one
    models: list[Model]  # the architecture of every client
    clients: int
    seed: int
    device: torch.device
    architecture: Callable[[str], Model]  # another architecture, for the same data and of the same width and dropout
    state: Tree = field(default_factory=Tree)
    rounds: int = 100  # how many the run will have, for schedules
    records: dict[str, Any] = field(default_factory=dict)
    derived: dict[Any, Any] = field(
        default_factory=dict
    )  # what was made of state; never saved, so it can be made again
    slots: SeedBuffer | None = None  # where seeds come from while a round is recorded
    looked_at_round: bool = False
    at: int = 0  # the number of the round, for those who do not decide anything by it

    @property
    def round(self) -> int:
        """The number of the round; rounds of a method that asks for it are not recorded as a whole on a GPU."""
        self.looked_at_round = True
        return self.at

    @round.setter
    def round(self, number: int) -> None:
        self.at = number
        self.looked_at_round = False

    def initial(self, model: Model | None = None) -> Tree:
        """Initial weights of the clients' common architecture, or of another one."""
        model = model or self.model
        if model is None:
            raise InputError("this method needs one architecture for all clients")
        return map_tree(lambda leaf: leaf.to(self.device), initial(model, self.seed))  # type: ignore[no-any-return]

    def random(self, purpose: str, owners: Sequence[int] = (0,)) -> Stream:
        """Random draws of the server's own in this round: one stream, or one for every number in `owners`."""
        who = "server", purpose
        seed = self.slots.take(self.seed, *who) if self.slots else seed_for(self.seed, self.at, *who)
        return streams(self.device, seed, owners)

    def record(self, **values: Any) -> None:
        """Keep values of this round for the run's record; they are read only once the round is over."""
        self.records.update(values)

    def take_records(self) -> dict[str, Any]:
        """What was recorded in this round, as plain numbers and lists."""
        plain = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in self.records.items()}
        self.records = {}
        return plain


def check_reply(reply: Any, clients: int, where: str) -> None:
    """A reply must be a tree of tensors with one row a client."""
    check_message(reply, f"the reply of {where}")
    for path, leaf in flatten(reply):
        if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != clients:
            shape = tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
            raise TypeError(
                f"the reply of {where} needs one row for each of {clients} clients at '{path}', not {shape}"
            )
