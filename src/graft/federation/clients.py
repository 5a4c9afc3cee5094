"""What a round sees of the clients: whom it may ask, and what they replied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from graft.errors import RunError
from graft.federation.average_names import MEAN, Average
from graft.federation.averaging import average
from graft.tensors.randomness import index_tensor
from graft.tensors.trees import Tree, check_message, count_bytes, flatten, map_tree, select_clients

if TYPE_CHECKING:
    from graft.federation.server import Server


class ClientsAbsent(RunError):
    """Says who of those that were asked did not answer, or not as they may: a round can go on without them."""

    def __init__(
        self, reasons: Mapping[int, str], sentence: str, rewind: Callable[[], None] = lambda: None, step: str = ""
    ) -> None:
        super().__init__(sentence)
        self.reasons, self.step = reasons, step  # by client, and what they were asked for
        self.rewind = rewind  # has the engine begin the round anew


@dataclass(frozen=True)
class HeldField:
    """A field of replies that an engine left where the clients are: only its mean can be had."""

    mean: Callable[[Tensor], Any]  # by one weight a client, in client order
    bytes: int  # what it would have been, had every client sent it


class Replies:
    """What the clients replied: `replies.model` is stacked in client order, `replies[3]` is one client's.

    Replies of different sizes, which a step with `fleet=False` may give, cannot be stacked: read them one by one. Of a
    field that its method declares in `averages`, `replies.mean` is all there is.
    """

    def __init__(self, parts: Sequence[tuple[list[int], Any]], held: Mapping[str, HeldField] | None = None) -> None:
        """Each part holds the numbers of some clients and their replies, stacked along the first axis, without the
        fields that are held where the clients are."""
        self.parts = parts
        self._held = held or {}
        self._average = MEAN

    @cached_property
    def _arrived(self) -> list[int]:
        """Returns the clients in the order of the parts."""
        return [client for clients, _ in self.parts for client in clients]

    @cached_property
    def clients(self) -> list[int]:
        """Returns who replied, sorted."""
        return sorted(self._arrived)

    @cached_property
    def _rows(self) -> dict[int, tuple[int, Any]]:
        """Returns where each client's reply is; nobody may ever ask, and there may be many."""
        return {client: (row, part) for clients, part in self.parts for row, client in enumerate(clients)}

    @cached_property
    def _order(self) -> tuple[int, ...]:
        """Returns where in the order of arrival each client is, in client order."""
        return tuple(sorted(range(len(self._arrived)), key=self._arrived.__getitem__))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._field(name)

    def _field(self, name: str) -> Any:
        """Returns a field, stacked in client order, whatever it is called."""
        if name in self._held:
            self._refuse(name)
        return self._in_order([part[name] for _, part in self.parts])

    def mean(self, name: str, weights: Tensor) -> Any:
        """Returns the mean of a field over the clients, weighted by one number a client in client order; integer leaves
        are the first client's. Where the experiment asks for another average, it is that."""
        if name in self._held and not self._average.robust:
            return self._held[name].mean(weights)
        return average(self._field(name), weights, self._average)

    def averaged_by(self, how: Average) -> Replies:
        """Returns these replies with another average in the place of the mean."""
        self._average = how
        return self

    def stacked(self) -> Any:
        """Returns whole replies, stacked in client order."""
        self._refuse(*self._held)
        return self._in_order([part for _, part in self.parts])

    def _refuse(self, *names: str) -> None:
        """Refuses to read fields that were left where the clients are."""
        if names:
            raise RunError(
                f"The method declares {' and '.join(map(repr, names))} in `averages`, so the server can read only the "
                f"mean over clients, by `replies.mean({names[0]!r}, weights)`."
            )

    def _in_order(self, branches: list[Any]) -> Any:
        if len(self.parts) == 1 and self.parts[0][0] == self.clients:
            return branches[0]

        def reordered(*leaves: Tensor) -> Tensor:
            joined = leaves[0] if len(leaves) == 1 else torch.cat(leaves)
            return joined.index_select(0, index_tensor(self._order, joined.device))

        return map_tree(reordered, branches[0], *branches[1:])

    def __getitem__(self, client: int) -> Any:
        self._refuse(*self._held)
        row, part = self._rows[client]
        return select_clients(part, row)

    def __len__(self) -> int:
        return sum(len(clients) for clients, _ in self.parts)

    def __contains__(self, name: str) -> bool:
        """Returns whether every client's reply has a field of that name."""
        return name in self._held or all(name in part for _, part in self.parts)

    def bytes(self) -> int:
        """Returns the payload of all that clients replied, wherever it was left."""
        return sum(count_bytes(part) for _, part in self.parts) + sum(field.bytes for field in self._held.values())


@dataclass(frozen=True)
class Mail:
    """What peers sent, and who hears whom."""

    senders: Sequence[int]
    sent: Any  # stacked in the order of the senders; only what the recipients sent where each has a process of its own
    links: Tensor  # [recipients, senders], or [recipients, parts, senders] where parts travel apart; 0 is not heard


@dataclass(frozen=True)
class Request:
    """What is asked of some clients."""

    step: str
    round: int
    clients: Sequence[int]
    message: Any = None  # one for all of them
    each: Mapping[int, Any] | None = None  # or one apiece
    turn: int = 0  # how often this step was asked in this round before; every time draws its own random numbers
    mail: Mail | None = None  # or what other clients sent, where there is no server


Round = Callable[[], tuple[Tree, Any]]  # gives tensors, and facts that are the same in all rounds of one kind
StepLosses = list[tuple[str, list[int], Tensor]]  # of a step, whose they are, one number a client


class Engine(Protocol):
    """Where clients live: runs a named step at some of them and brings back what it returned."""

    def members(self) -> Sequence[int]: ...

    def ask(self, request: Request) -> Replies: ...

    def execute(self, server: Server, kind: Any, round: Round) -> tuple[Tree, Any]:
        """Runs a round; its tensors come back on the host in one copy.

        An engine may capture it on a GPU and replay it from then on: the facts of all rounds of one kind must be the
        same. A round of kind None is never captured.
        """
        ...

    def losses(self) -> StepLosses:
        """Returns the last training losses of every step since this was called before."""
        ...

    def state(self) -> Mapping[int, Tree]:
        """Returns what every client keeps, for a checkpoint; where clients are read on demand, every one that was ever
        asked."""
        ...

    def copy_state(
        self, fields: Collection[str] | None = None, clients: Collection[int] | None = None
    ) -> Mapping[int, Tree]:
        """Returns a copy of these fields of what all or some clients keep; without any named, of all but the
        optimisers."""
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
        members: Sequence[int],
        traffic: Traffic | None = None,
        turns: Counter[str] | None = None,
        average: Average = MEAN,
    ) -> None:
        self.engine = engine
        self.round = round
        self.members = members
        self.traffic = Traffic() if traffic is None else traffic
        self._turns: Counter[str] = Counter() if turns is None else turns
        self._average = average  # in the place of means

    def __len__(self) -> int:
        return len(self.members)

    @property
    def here(self) -> Sequence[int] | None:
        """Returns those whose steps run in this process, where peers each have one of their own."""
        return getattr(self.engine, "here", None)

    @property
    def everyone(self) -> Clients:
        """Returns all clients of the federation, whether they take part in this round or not."""
        return self._with(self.engine.members())

    def only(self, members: Sequence[int]) -> Clients:
        """Returns some of the clients that take part in this round."""
        chosen = set(members)
        return self._with([client for client in self.members if client in chosen])

    def _with(self, members: Sequence[int]) -> Clients:
        return Clients(self.engine, self.round, members, self.traffic, self._turns, self._average)

    def ask(self, step: Callable[..., Any], message: Any = None, each: Mapping[int, Any] | None = None) -> Replies:
        """Runs a step at the clients; `message` goes to all of them, `each` holds one message a client instead."""
        name = step.__name__
        if each is not None:
            missing = [client for client in self.members if client not in each]
            if message is not None or missing:
                raise ValueError(f"step '{name}' was asked with `each`, which must hold every client's whole message")
            messages = [each[client] for client in self.members]
        else:
            messages = [] if message is None else [message]
        for sent in messages:
            check_message(sent, f"the message to step '{name}'")
        copies = 1 if each is not None else len(self.members)
        self.traffic.down += copies * sum(count_bytes(sent) for sent in messages)
        replies = self.engine.ask(Request(name, self.round, self.members, message, each, self.turn(name)))
        self.traffic.up += replies.bytes()
        return replies.averaged_by(self._average)

    def turn(self, step: str) -> int:
        """Returns how often a step was run in this round before, and counts this time."""
        turn = self._turns[step]
        self._turns[step] += 1
        return turn


def check_reply(reply: Any, clients: int, where: str) -> None:
    """A reply must be a tree of tensors with one row a client."""
    check_message(reply, f"the reply of {where}")
    for path, leaf in flatten(reply):
        if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != clients:
            shape = tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
            raise TypeError(
                f"the reply of {where} needs one row for each of {clients} clients at '{path}', not {shape}"
            )
