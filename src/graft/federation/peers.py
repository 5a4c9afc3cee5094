"""Methods without a server: peers train, send along links, and mix what they hear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from graft.errors import InputError
from graft.federation.exchange import Clients, Engine, Mail, Replies, Request, Server, Traffic
from graft.federation.fleet import Fleet
from graft.federation.method import Method, step
from graft.federation.topologies import Topology, among, spectral_gap
from graft.tensors.randomness import Stream
from graft.tensors.trees import Tree, Weights, check_message, flatten, map_tree, squared_distance, weighted_mean
from graft.training.loop import Training

LinkRecord = dict[str, list[list[float]]]  # exchange -> (to, from, weight), with the part where parts travel apart
Links = Topology | Callable[..., Any]  # a topology, or a step in which every peer says whom it wants to hear


@dataclass(frozen=True)
class PeerMethod(Method):
    """A method whose round runs at every peer alike: it names steps and exchanges, and holds no values."""

    one_model: ClassVar[bool] = True

    def start_client(self, fleet: Fleet) -> None:
        fleet.state.model = fleet.initial()  # after mixing
        fleet.state.trained = fleet.state.model  # after local training

    def round(self, peers: Peers) -> None:  # type: ignore[override]  # there is no server to be given
        """The paper's algorithm."""
        raise NotImplementedError

    @step
    def train(self, fleet: Fleet) -> dict[str, Tensor]:
        """Train the own model on the own labels."""
        fleet.state.trained = fleet.fit(
            fleet.state.model, lambda weights: self.loss(fleet, weights), training=self.training(fleet)
        )
        return {}

    @step
    def share(self, fleet: Fleet) -> dict[str, Weights]:
        """Send the trained model."""
        return {"model": fleet.state.trained}

    @step
    def mix(self, fleet: Fleet, inbox: Tree) -> dict[str, Tensor]:
        """Take the mean of the models that were heard, weighted as the links are."""
        fleet.state.model = mix_models(inbox.sent.model, inbox.links)
        return {}

    @step
    def score_trained(self, fleet: Fleet) -> dict[str, Tensor]:
        """How many nodes each peer gets right before it mixes."""
        return {"correct": fleet.scored.correct(fleet.state.trained)}

    def training(self, fleet: Fleet) -> Training:
        """How peers train: as the experiment says, unless the optimiser belongs to the method."""
        return fleet.training

    def loss(self, fleet: Fleet, weights: Weights) -> Tensor:
        return fleet.label_loss(weights)


def mix_models(sent: Weights, links: Tensor) -> Tree:
    """What each peer makes of the models sent: sums weighted by its links, [peers, senders] or [peers, parts, senders].

    Leaves of `sent` are [peers, senders, ...], and the same for all peers of a fleet: the links say who hears whom.
    """

    def mean(leaf: Tensor) -> Tensor:
        heard = leaf[0]
        if not leaf.is_floating_point():  # counters cannot be mixed: take those of the loudest
            loudest = links.argmax(-1)
            part = torch.arange(links.shape[1], device=links.device)
            return heard[loudest] if links.dim() == 2 else heard[loudest, part]
        if links.dim() == 3:
            parts = heard.reshape(*heard.shape[:2], -1)
            return torch.einsum("kps,spd->kpd", links.to(leaf), parts).view(-1, *heard.shape[1:])
        return (links.to(leaf) @ heard.reshape(len(heard), -1)).view(-1, *heard.shape[1:])

    return map_tree(mean, sent)  # type: ignore[no-any-return]


def heard_mask(fleet: Fleet, inbox: Tree) -> Tensor:
    """Whom each peer hears, itself left out: as `inbox.links`, but true and false."""
    others = inbox.senders != fleet.numbers.unsqueeze(1)
    heard: Tensor = (inbox.links != 0) & (others if inbox.links.dim() == 2 else others.unsqueeze(1))
    return heard


def everyone_else(fleet: Fleet) -> Tensor:
    """All peers of the federation but oneself, [peers, federation], true and false."""
    return torch.arange(fleet.federation, device=fleet.device) != fleet.numbers.unsqueeze(1)


def draw_peers(random: Stream, allowed: Tensor, count: int) -> Tensor:
    """So many of those that are allowed, [peers, ..., federation], at random; all where there are no more."""
    luck = random.uniform(allowed[0].numel()).view(allowed.shape).masked_fill(~allowed, 1)
    rank = luck.argsort(dim=-1, stable=True).argsort(dim=-1)
    return allowed & (rank < count)


def equal_links(fleet: Fleet, wanted: Tensor) -> Tensor:
    """Links to those that are wanted, [peers, ..., federation], and to oneself, all of one weight."""
    itself = ~everyone_else(fleet)
    chosen = wanted | (itself if wanted.dim() == 2 else itself.unsqueeze(1))
    return chosen / chosen.sum(-1, keepdim=True)


class Peers:
    """The peers that take part in this round."""

    def __init__(
        self,
        engine: Engine,
        round: int,
        members: list[int],
        traffic: Traffic,
        seed: int,
        topology: Topology | None = None,
        rounds: int = 100,
    ) -> None:
        """With `topology`, messages go along its links instead of those the method would choose."""
        self._engine = engine
        self._traffic = traffic
        self._turns: Counter[str] = Counter()
        self._seed = seed
        self._topology = topology
        self._exchanges: list[tuple[str, Tensor, int, bool]] = []  # name, links, bytes of a part, whether to record
        self._records: dict[str, Any] = {}
        self.round = round
        self.rounds = rounds  # how many the run will have, for schedules
        self.members = members
        self.federation = len(engine.members())  # how many peers there are in all

    def do(self, step: Callable[..., Any], **settings: float) -> None:
        """Run a step at every peer; what it returns goes nowhere but into the run's record.

        Settings are what every peer can work out for itself from the number of the round, such as a schedule's value.
        """
        name = self._name(step)
        self._keep(name, self._ask(step, message=settings or None))

    def exchange(self, send: Callable[..., Any], receive: Callable[..., Any], along: Links | None = None) -> None:
        """Send what `send` returns along links and let `receive` deal with what was heard; without links, to everybody.

        Links are a topology, or a step that returns `links`: for each peer its weight of every peer of the federation
        (0: does not want to hear it), or a row of them for every part of a message whose parts travel apart: every
        field of such a message has a row for each part. `receive` is given an inbox: `sent`, stacked over `senders`,
        and `links`. A peer finds its own message there too. What `receive` returns goes into the run's record.
        """
        sent = self._ask(send).whole()
        check_message(sent, f"the message of step '{send.__name__}'")
        name = self._name(receive)
        links = self._links(name, along).to(any_leaf(sent).device, torch.float32)
        parts = links.shape[1] if links.dim() == 3 else 1
        for path, leaf in flatten(sent) if links.dim() == 3 else ():
            if leaf.dim() < 2 or leaf.shape[1] != parts:
                raise InputError(
                    f"The links of '{name}' are for messages of {parts} parts, but '{path}' of the message has the "
                    f"shape {tuple(leaf.shape[1:])}."
                )
        size = sum(leaf[0].nbytes for _, leaf in flatten(sent)) // parts
        self._exchanges.append((name, links, size, along is not None))
        if along is not None and "model" in sent:
            self._records["disagreement"] = disagreement(sent["model"])
        self._keep(name, self._ask(receive, Mail(self.members, sent, links)))

    def _name(self, step: Callable[..., Any]) -> str:
        """What the record calls a step or an exchange: by its number too from the second time in a round on."""
        turn = self._turns[step.__name__]
        return f"{step.__name__} {turn + 1}" if turn else step.__name__

    def _ask(self, step: Callable[..., Any], mail: Mail | None = None, message: Any = None) -> Replies:
        name = step.__name__
        turn = self._turns[name]
        self._turns[name] += 1
        return self._engine.ask(Request(name, self.round, self.members, message, turn=turn, mail=mail))

    def _links(self, exchange: str, along: Links | None) -> Tensor:
        peers = self.federation
        if along is None:
            return torch.full((len(self.members), len(self.members)), 1 / len(self.members))
        if self._topology is not None:
            mixing = along.mixing if isinstance(along, Topology) else None
            return self._topology.links(self.round, self.members, peers, self._seed, exchange, mixing)
        if isinstance(along, Topology):
            return along.links(self.round, self.members, peers, self._seed, exchange)
        wanted: Tensor = self._ask(along).links
        if wanted.dim() not in (2, 3) or wanted.shape[-1] != peers:
            shape = tuple(wanted.shape[1:])
            raise TypeError(f"step '{along.__name__}' gives links {shape}; there must be one for each of {peers} peers")
        return among(wanted, self.members)

    def _keep(self, step: str, replies: Replies) -> None:
        for path, leaf in flatten(replies.whole()):
            self._records[f"{step}/{path}"] = leaf

    def close(self) -> tuple[LinkRecord, dict[str, Any]]:
        """End the round: count its bytes, and give its links and whatever its steps returned for the record."""
        links: LinkRecord = {}
        received, given = (torch.zeros(len(self.members), dtype=torch.int64) for _ in range(2))
        own = torch.eye(len(self.members), dtype=torch.bool).unsqueeze(1)
        for name, weights, size, recorded in self._exchanges:
            whole = weights.dim() == 2
            by_part = weights.cpu().unsqueeze(1) if whole else weights.cpu()
            heard = (by_part != 0) & ~own
            self._traffic.peer += int(heard.sum()) * size
            received += heard.sum((1, 2)) * size
            given += heard.sum((0, 1)) * size
            if recorded and whole and torch.equal(by_part[:, 0], by_part[:, 0].T):
                self._records["spectral_gap"] = spectral_gap(by_part[:, 0])
            if recorded:
                found = (by_part != 0).nonzero().tolist()
                values = by_part[by_part != 0].tolist()
                links[name] = [
                    [self.members[to], self.members[sender], weight, *([] if whole else [part])]
                    for (to, part, sender), weight in zip(found, values, strict=True)
                ]
        self._records |= {"busiest_receiver_bytes": int(received.max()), "busiest_sender_bytes": int(given.max())}
        return links, self._records


def play_round(
    method: Method,
    server: Server,
    engine: Engine,
    members: list[int],
    traffic: Traffic,
    topology: Topology | None = None,
) -> LinkRecord:
    """Play one round of any method; gives the links along which peers exchanged, if there were any."""
    if not isinstance(method, PeerMethod):
        method.round(server, Clients(engine, server.at, members, traffic))
        return {}
    peers = Peers(engine, server.round, members, traffic, server.seed, topology, server.rounds)
    method.round(peers)
    links, records = peers.close()
    server.record(**records)
    return links


def disagreement(models: Weights) -> Tensor:
    """How far the peers' models are from their mean, on average."""
    count = len(any_leaf(models))
    floats = Tree({path: leaf for path, leaf in flatten(models) if leaf.is_floating_point()})
    centre = weighted_mean(floats, torch.ones(count, device=any_leaf(models).device))
    return squared_distance(floats, map_tree(lambda leaf: leaf.unsqueeze(0), centre)).sqrt().mean()


def any_leaf(tree: Mapping[str, Any]) -> Tensor:
    for _, leaf in flatten(tree):
        return leaf  # type: ignore[no-any-return]
    raise TypeError("a message between peers must hold something")
