"""Methods without a server: peers train, send along links, and mix what they hear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from graft.errors import InputError
from graft.federation import metrics
from graft.federation.clients import Clients, Mail, Replies, Request
from graft.federation.fleet import Fleet
from graft.federation.method import LinkRecord, Method, step
from graft.federation.reveals import MODEL, SCORES, Reveals, measures
from graft.federation.server import Server
from graft.federation.topologies import Topology, renormalise, spectral_gap
from graft.fields import Search
from graft.tensors.randomness import Stream
from graft.tensors.trees import (
    Tree,
    Weights,
    check_message,
    flatten,
    map_tree,
    squared_distance,
    unsqueeze_to,
    weighted_mean,
)
from graft.training.optimizers import Training

Links = Topology | Callable[..., Any]  # a topology, or a step in which every peer says whom it wants to hear
# What a step that ends with `MixingMethod.approach` returns, for the run's record alone.
WAY = Reveals("how far it goes towards the mean of models", when="if search is above 0")


@dataclass(frozen=True)
class PeerMethod(Method):
    """A method whose round runs at every peer alike: it names steps and exchanges, and holds no values."""

    one_model: ClassVar[bool] = True
    takes_topology: ClassVar[bool] = True
    reveals: ClassVar = {"share/model": MODEL, "score_trained/correct": SCORES, **measures("measure_trained")}

    def start_client(self, fleet: Fleet) -> None:
        fleet.state.model = fleet.initial()  # after mixing
        fleet.state.trained = fleet.state.model  # after local training

    def round(self, peers: Peers) -> None:  # type: ignore[override]  # there is no server to be given
        """The paper's algorithm."""
        raise NotImplementedError

    def conduct(self, server: Server, clients: Clients, topology: Topology | None = None) -> LinkRecord:
        peers = Peers(clients, server.seed, topology, server.rounds, clients.here)
        self.round(peers)
        links, records = peers.close()
        server.record(**records)
        return links

    def evaluate(self, server: Server, clients: Clients) -> Tree:
        """Returns what `Method.evaluate` does, and the same of the models before they were mixed ("trained")."""
        correct = super().evaluate(server, clients)
        correct.trained = clients.ask(self.score_trained).correct
        return correct

    def evaluate_metrics(self, server: Server, clients: Clients) -> Tree:
        measured = super().evaluate_metrics(server, clients)
        measured.trained = clients.ask(self.measure_trained).stacked()
        return measured

    @step
    def train(self, fleet: Fleet) -> dict[str, Tensor]:
        """Train the own model on the own labels."""
        fleet.state.trained = fleet.fit(
            fleet.state.model, lambda weights, batch: self.loss(batch, weights), training=self.training(fleet)
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
        """How many nodes each peer classifies correctly before it mixes."""
        return {"correct": fleet.on(fleet.scoring).correct(fleet.state.trained)}

    @step(fleet=False, pure=True)
    def measure_trained(self, fleet: Fleet) -> Tree:
        """Metrics of each peer's model before it mixes."""
        fleet = fleet.on(fleet.scoring)
        return metrics.measure(fleet, fleet.predict(fleet.state.trained).logits)

    def training(self, fleet: Fleet) -> Training:
        """Returns how peers train: as the experiment says, unless the optimiser belongs to the method."""
        return fleet.training

    def loss(self, fleet: Fleet, weights: Weights) -> Tensor:
        return fleet.label_loss(weights)


@dataclass(frozen=True, kw_only=True)
class MixingMethod(PeerMethod):
    """A method whose peers mix their own model with others', and may go only a part of the way to the mean."""

    reveals: ClassVar = {"mix/way": WAY}
    judges_unless: ClassVar = {"search": (0,)}

    # Points between own model and mean tried on validation nodes; 0: take the mean.
    search: Annotated[int, Ge(0), Search(choices=(0, 4))] = 0

    @step
    def mix(self, fleet: Fleet, inbox: Tree) -> Tree:
        """Go towards the mean of the models that were heard, weighted as the links are."""
        mean = mix_models(inbox.sent.model, inbox.links)
        fleet.state.model, reply = self.approach(fleet, fleet.state.trained, mean)
        return reply

    def approach(self, fleet: Fleet, own: Weights, mean: Weights) -> tuple[Weights, Tree]:
        """Returns the mean or, with `search`, the point on the way to it from the own model that classifies the most
        validation nodes correctly, of equal ones the nearest to the mean; and that part of the way, for the record."""
        if not self.search:
            return mean, Tree()
        best = fleet.count_validated(fleet.predict(mean).logits)
        way = torch.ones_like(best, dtype=torch.float32)
        for point in reversed(range(self.search)):
            model = interpolate(own, mean, torch.full_like(way, point / self.search))
            correct = fleet.count_validated(fleet.predict(model).logits)
            way = torch.where(correct > best, point / self.search, way)
            best = torch.maximum(correct, best)
        return interpolate(own, mean, way), Tree(way=way)


def interpolate(own: Weights, mean: Weights, way: Tensor) -> Tree:
    """Returns the models at a part of the way, one number a peer, from the own one to the mean."""

    def part(start: Tensor, end: Tensor) -> Tensor:
        if not start.is_floating_point():
            return start
        return torch.lerp(start, end, unsqueeze_to(way, start).to(start))

    return map_tree(part, own, mean)


def mix_models(sent: Weights, links: Tensor) -> Tree:
    """Returns each peer's sum of the models sent, weighted by its links [peers, senders] or [peers, parts, senders].

    Leaves of `sent` are [peers, senders, ...], and the same for all peers of a fleet: the links say who hears whom.
    """

    def mean(leaf: Tensor) -> Tensor:
        heard = leaf[0]
        if not leaf.is_floating_point():  # counters cannot be mixed: take those of the heaviest link
            heaviest = links.argmax(-1)
            part = torch.arange(links.shape[1], device=links.device)
            return heard[heaviest] if links.dim() == 2 else heard[heaviest, part]
        if links.dim() == 3:
            parts = heard.reshape(*heard.shape[:2], -1)
            return torch.einsum("kps,spd->kpd", links.to(leaf), parts).view(-1, *heard.shape[1:])
        return (links.to(leaf) @ heard.reshape(len(heard), -1)).view(-1, *heard.shape[1:])

    return map_tree(mean, sent)


def heard_mask(fleet: Fleet, inbox: Tree) -> Tensor:
    """Returns whom each peer hears, itself left out: as `inbox.links`, but boolean."""
    others = inbox.senders != fleet.client_ids.unsqueeze(1)
    heard: Tensor = (inbox.links != 0) & (others if inbox.links.dim() == 2 else others.unsqueeze(1))
    return heard


def everyone_else(fleet: Fleet) -> Tensor:
    """Returns the mask of all peers of the federation but oneself, [peers, federation]."""
    return torch.arange(fleet.federation, device=fleet.device) != fleet.client_ids.unsqueeze(1)


def draw_peers(random: Stream, allowed: Tensor, count: int) -> Tensor:
    """Draws so many of those that are allowed, [peers, ..., federation]; all where there are no more."""
    keys = random.uniform(allowed[0].numel()).view(allowed.shape).masked_fill(~allowed, 1)
    rank = keys.argsort(dim=-1, stable=True).argsort(dim=-1)
    return allowed & (rank < count)


def equal_links(fleet: Fleet, chosen: Tensor) -> Tensor:
    """Returns links to those that are chosen, bool [peers, ..., federation], and to oneself, all of one weight."""
    itself = ~everyone_else(fleet)
    linked = chosen | (itself if chosen.dim() == 2 else itself.unsqueeze(1))
    return linked / linked.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Exchange:
    """What was sent along links in a round."""

    name: str
    links: Tensor
    part_bytes: int  # of a message, or of one of its parts where these travel apart
    recorded: bool  # whether its links go into the run's record


class Peers:
    """The peers that take part in this round."""

    def __init__(
        self,
        clients: Clients,
        seed: int,
        topology: Topology | None = None,
        rounds: int = 100,
        here: Sequence[int] | None = None,
    ) -> None:
        """With `topology`, messages go along its links instead of those the method would choose; `here` are the members
        whose steps run in this process, where not all of them do."""
        self._clients = clients
        self._seed = seed
        self._topology = topology
        self._exchanges: list[Exchange] = []
        self._records: dict[str, Any] = {}
        self.round = clients.round
        self.rounds = rounds  # how many the run will have, for schedules
        self.members = list(clients.members)
        self.here = self.members if here is None else [member for member in self.members if member in here]
        self.federation = len(clients.engine.members())  # how many peers there are in all

    def do(self, step: Callable[..., Any], **settings: float) -> None:
        """Runs a step at every peer; what it returns goes nowhere but into the run's record.

        Settings are what every peer can compute for itself from the number of the round, such as a schedule's value.
        """
        turn = self._clients.turn(step.__name__)
        self._keep(step, turn, self._ask(step, turn, message=settings or None))

    def exchange(self, send: Callable[..., Any], receive: Callable[..., Any], along: Links | None = None) -> None:
        """Sends what `send` returns along links, and `receive` gets what was heard; without links, to everybody.

        Links are a topology, or a step that returns `links`: for each peer its weight of every peer of the federation
        (0: does not want to hear it), or a row of them for every part of a message whose parts travel apart: every
        field of such a message has a row for each part. `receive` is given an inbox: `sent`, stacked over `senders`,
        and `links`. A peer finds its own message there too. What `receive` returns goes into the run's record.
        """
        sent = self._ask(send, self._clients.turn(send.__name__)).stacked()
        check_message(sent, f"the message of step '{send.__name__}'")
        turn = self._clients.turn(receive.__name__)
        name = exchange_name(receive, turn)
        links = self._links(name, along).to(any_leaf(sent).device, torch.float32)
        parts = links.shape[1] if links.dim() == 3 else 1
        for path, leaf in flatten(sent) if links.dim() == 3 else ():
            if leaf.dim() < 2 or leaf.shape[1] != parts:
                raise InputError(
                    f"The links of '{name}' are for messages of {parts} parts, but '{path}' of the message has the "
                    f"shape {tuple(leaf.shape[1:])}."
                )
        part_bytes = sum(leaf[0].nbytes for _, leaf in flatten(sent)) // parts
        self._exchanges.append(Exchange(name, links, part_bytes, along is not None))
        if along is not None and "model" in sent and self.here == self.members:
            self._records["disagreement"] = disagreement(sent["model"])
        self._keep(receive, turn, self._ask(receive, turn, Mail(self.members, sent, links)))

    def _ask(self, step: Callable[..., Any], turn: int, mail: Mail | None = None, message: Any = None) -> Replies:
        request = Request(step.__name__, self.round, self.here, message, turn=turn, mail=mail)
        return self._clients.engine.ask(request)

    def _links(self, exchange: str, along: Links | None) -> Tensor:
        peers, rows = self.federation, [self.members.index(member) for member in self.here]
        if along is None:
            return torch.full((len(self.here), len(self.members)), 1 / len(self.members))
        if self._topology is not None:
            mixing = along.mixing if isinstance(along, Topology) else None
            return self._topology.links(self.round, self.members, peers, self._seed, exchange, mixing)[rows]
        if isinstance(along, Topology):
            return along.links(self.round, self.members, peers, self._seed, exchange)[rows]
        links: Tensor = self._ask(along, self._clients.turn(along.__name__)).links
        if links.dim() not in (2, 3) or links.shape[-1] != peers:
            shape = tuple(links.shape[1:])
            raise TypeError(f"step '{along.__name__}' gives links {shape}; there must be one for each of {peers} peers")
        return renormalise(links, self.members, recipients=self.here)

    def _keep(self, step: Callable[..., Any], turn: int, replies: Replies) -> None:
        for path, leaf in flatten(replies.stacked()):
            self._records[f"{exchange_name(step, turn)}/{path}"] = leaf

    def close(self) -> tuple[LinkRecord, dict[str, Any]]:
        """Ends the round: counts its bytes, and returns its links and whatever its steps returned for the record."""
        links: LinkRecord = {}
        received, sent = (torch.zeros(len(who), dtype=torch.int64) for who in (self.here, self.members))
        itself = (torch.tensor(self.here).unsqueeze(1) == torch.tensor(self.members)).unsqueeze(1)
        for exchange in self._exchanges:
            whole = exchange.links.dim() == 2
            by_part = exchange.links.cpu().unsqueeze(1) if whole else exchange.links.cpu()
            heard = (by_part != 0) & ~itself
            self._clients.traffic.peer += int(heard.sum()) * exchange.part_bytes
            received += heard.sum((1, 2)) * exchange.part_bytes
            sent += heard.sum((0, 1)) * exchange.part_bytes
            everybody = self.here == self.members
            if exchange.recorded and whole and everybody and torch.equal(by_part[:, 0], by_part[:, 0].T):
                self._records["spectral_gap"] = spectral_gap(by_part[:, 0])
            if exchange.recorded:
                positions = (by_part != 0).nonzero().tolist()
                weights = by_part[by_part != 0].tolist()
                links[exchange.name] = [
                    [self.here[to], self.members[sender], weight, *([] if whole else [part])]
                    for (to, part, sender), weight in zip(positions, weights, strict=True)
                ]
        self._records |= {"busiest_receiver_bytes": int(received.max()), "busiest_sender_bytes": int(sent.max())}
        return links, self._records


def exchange_name(step: Callable[..., Any], turn: int) -> str:
    """Returns what the record calls a step or an exchange: numbered from the second time in a round on."""
    return f"{step.__name__} {turn + 1}" if turn else step.__name__


def disagreement(models: Weights) -> Tensor:
    """Returns the mean distance of the peers' models to their mean."""
    count = len(any_leaf(models))
    floats = Tree({path: leaf for path, leaf in flatten(models) if leaf.is_floating_point()})
    centre = weighted_mean(floats, torch.ones(count, device=any_leaf(models).device))
    return squared_distance(floats, map_tree(lambda leaf: leaf.unsqueeze(0), centre)).sqrt().mean()


def any_leaf(tree: Weights) -> Tensor:
    """Returns a leaf of a message, for its device and its client axis."""
    leaf: Tensor
    for _, leaf in flatten(tree):
        return leaf
    raise TypeError("a message between peers must hold something")
