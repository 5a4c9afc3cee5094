"""GCFL and GCFL+. Xie, Ma, Xiong and Yang: Federated graph classification over non-IID graphs. NeurIPS 2021."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn import functional

from graft.errors import InputError
from graft.federation.method import Method, step
from graft.federation.reveals import MODEL, VOTE, Reveals
from graft.fields import Search
from graft.tensors.randomness import index_tensor
from graft.tensors.trees import (
    Tree,
    Weights,
    broadcast_tree,
    difference,
    flatten,
    map_tree,
    select_clients,
    stack,
    trainable,
    unflatten,
    weighted_mean,
    write_rows,
)

if TYPE_CHECKING:
    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class GCFL(Method):
    """FedAvg inside clusters: one whose mean update is small although some update is large is split in two, by the
    cosines of the updates.

    All clients begin in one cluster. Those that are not in a round stay with the larger part of theirs.
    """

    one_model: ClassVar[bool] = True
    keeps_start: ClassVar[bool] = False
    reveals: ClassVar = {"train/model": MODEL, "train/weight": VOTE}

    # eps1: a cluster may be split where the norm of its mean update is below this.
    mean_below: Annotated[float, Ge(0), Search(0.05, 0.5, log=True)] = 0.15
    # eps2: and the norm of its largest update above this.
    largest_above: Annotated[float, Ge(0), Search(0.1, 1.0, log=True)] = 0.1
    relative: bool = True  # whether both are shares of the same norms in the first round, or norms themselves
    warm_up: Annotated[int, Ge(0)] = 20  # rounds before any cluster is split
    # What is averaged: all layers, or all but the linear head, which then never leaves its client.
    share: Literal["all", "convolutions"] = "all"

    def start_server(self, server: Server) -> None:
        if self.share == "convolutions":
            check_head(server)
        same = broadcast_tree(self.shared_layers(server.initial()), server.clients, server.device)
        server.state.models = map_tree(Tensor.contiguous, same)
        server.state.cluster = torch.zeros(server.clients, dtype=torch.int64, device=server.device)
        # Norms of the mean and of the largest update of the first round; 0 until a client has learnt.
        server.state.first = torch.zeros(2, dtype=torch.float64, device=server.device)

    def round(self, server: Server, clients: Clients) -> None:
        models = server.state.models
        replies = clients.ask(self.train, each={client: select_clients(models, client) for client in clients.members})
        self.aggregate(server, clients, replies)

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:
        state, rows = server.state, index_tensor(tuple(replies.clients), server.device)
        moved = difference(replies.model, select_clients(state.models, rows), server.model.frozen)
        updates = torch.cat([leaf.reshape(len(leaf), -1) for _, leaf in flatten(moved)], dim=1)
        self.observe(server, rows, replies)
        self.split_clusters(server, replies.clients, updates, early=clients.round <= self.warm_up)
        clusters: list[int] = state.cluster.tolist()
        # All members began at the same model, so the mean of theirs is that model with the mean update.
        means = []
        for inside in by_cluster(clusters, replies.clients).values():
            chosen = index_tensor(tuple(inside), server.device)
            means.append(weighted_mean(select_clients(replies.model, chosen), replies.weight[chosen]))
        place = {cluster: index for index, cluster in enumerate(by_cluster(clusters, replies.clients))}
        members = [client for client, cluster in enumerate(clusters) if cluster in place]
        of_members = index_tensor(tuple(place[clusters[client]] for client in members), server.device)
        everyone = index_tensor(tuple(members), server.device)
        state.models = write_rows(state.models, everyone, select_clients(stack(means), of_members))
        server.record(cluster=state.cluster)

    @step
    def train(self, fleet: Fleet, received: Weights) -> Tree:
        start = Tree({**fleet.state.model, **received})
        fleet.state.model = fleet.fit(start, lambda weights, batch: self.loss(batch, weights))
        return Tree(model=self.shared_layers(fleet.state.model), weight=fleet.weight)

    def loss(self, fleet: Fleet, weights: Weights) -> Tensor:
        return fleet.label_loss(weights)

    def split_clusters(self, server: Server, clients: list[int], updates: Tensor, *, early: bool) -> None:
        """Split every cluster that is to be split, judged by those of its members that took part."""
        state = server.state
        clusters: list[int] = state.cluster.tolist()
        mean_norms, largest_norms = [0.0] * len(clients), [0.0] * len(clients)
        for inside in by_cluster(clusters, clients).values():
            own = updates[index_tensor(tuple(inside), server.device)]
            norms = torch.stack([own.mean(0).norm(), own.norm(dim=1).max()]).double()
            if not state.first.any():
                state.first = norms
            scale = state.first.tolist() if self.relative else [1.0, 1.0]
            mean, largest = norms.tolist()
            for row in inside:
                mean_norms[row], largest_norms[row] = mean, largest
            at_odds = mean < self.mean_below * scale[0] and largest > self.largest_above * scale[1]
            if early or not at_odds or len(inside) <= 2:
                continue
            alike = self.similarity(server, [clients[row] for row in inside], own)
            smaller = [] if alike is None else smaller_part(alike)
            new = max(clusters) + 1
            for position in smaller:
                clusters[clients[inside[position]]] = new
            if smaller:
                state.cluster = torch.tensor(clusters, device=server.device)
                self.forget(server)
        server.record(mean_norm=torch.tensor(mean_norms), largest_norm=torch.tensor(largest_norms))

    def observe(self, server: Server, rows: Tensor, replies: Replies) -> None:
        """Keeps what replies tell of how clients train."""

    def forget(self, server: Server) -> None:
        """Drops all of that, after a split."""

    def similarity(self, server: Server, members: list[int], updates: Tensor) -> Matrix | None:  # noqa: ARG002
        """Returns how alike each two members of a cluster are, none negative; None while that is not known."""
        directions = functional.normalize(updates.double(), dim=1, eps=1e-12)
        cosines: Matrix = (directions @ directions.T).cpu().numpy()
        return (cosines + 1).clip(min=0)

    def shared_layers(self, weights: Weights) -> Tree:
        """Returns the part of a model that is averaged."""
        own = ("head",) if self.share == "convolutions" else ()
        return Tree({name: branch for name, branch in weights.items() if name not in own})

    def personalised(self, server: Server) -> Weights | None:
        """Returns the model of each client's cluster; without heads there is none at the server, and clients' own are
        scored."""
        return server.state.models if self.share == "all" else None


@dataclass(frozen=True)
class GCFLPlus(GCFL):
    """GCFL that splits clusters by how the gradients of their members went in the last rounds: by the distances of
    sequences of their norms under dynamic time warping."""

    reveals: ClassVar = {"train/norm": Reveals("norm of the gradient at the client's last training step")}

    length: Annotated[int, Ge(1), Search(3, 10)] = 5  # d: rounds of a sequence; no split before there are so many
    standardise: bool = False  # whether a sequence is divided by its standard deviation

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        server.state.norms = torch.zeros(server.clients, self.length, device=server.device)  # the last one at the end
        server.state.seen = torch.zeros(server.clients, dtype=torch.int64, device=server.device)  # how many there are

    @step
    def train(self, fleet: Fleet, received: Weights) -> Tree:
        start, gradients = Tree({**fleet.state.model, **received}), dict[str, Tensor]()
        paths = {path for path, _ in flatten(trainable(received, fleet.model.frozen))}
        fleet.state.model = fleet.fit(
            start, lambda weights, batch: self.loss(batch, noting_gradients(weights, paths, gradients))
        )
        squares = [gradient.square().reshape(len(gradient), -1).sum(1) for gradient in gradients.values()]
        norm = torch.stack(squares).sum(0).sqrt()
        return Tree(model=self.shared_layers(fleet.state.model), weight=fleet.weight, norm=norm)

    def observe(self, server: Server, rows: Tensor, replies: Replies) -> None:
        state = server.state
        moved = torch.cat([state.norms[rows, 1:], replies.norm.unsqueeze(1)], dim=1)
        state.norms = state.norms.index_copy(0, rows, moved)
        state.seen = state.seen.index_add(0, rows, torch.ones_like(rows))

    def forget(self, server: Server) -> None:
        # Sequences of other clusters begin anew, too, as in the authors' code.
        server.state.norms = torch.zeros_like(server.state.norms)
        server.state.seen = torch.zeros_like(server.state.seen)

    def similarity(self, server: Server, members: list[int], updates: Tensor) -> Matrix | None:  # noqa: ARG002
        rows = index_tensor(tuple(members), server.device)
        if int(server.state.seen[rows].min()) < self.length:
            return None
        sequences = server.state.norms[rows].double().cpu().numpy()
        if self.standardise:
            deviation = sequences.std(axis=1, keepdims=True)
            sequences = sequences / np.where(deviation > 0, deviation, 1)
        distances = warping_distances(sequences)
        alike: Matrix = distances.max() - distances
        return alike


def by_cluster(clusters: list[int], clients: list[int]) -> dict[int, list[int]]:
    """Returns the positions of some clients, by the cluster that each is in."""
    positions: dict[int, list[int]] = {}
    for position, client in enumerate(clients):
        positions.setdefault(clusters[client], []).append(position)
    return dict(sorted(positions.items()))


def noting_gradients(weights: Weights, paths: set[str], gradients: dict[str, Tensor]) -> Tree:
    """Returns the same weights, seen in a way that writes the gradients at some paths down when they are computed."""

    def watched(path: str, leaf: Tensor) -> Tensor:
        if path not in paths:
            return leaf
        view = leaf.view_as(leaf)
        view.register_hook(partial(gradients.__setitem__, path))
        return view

    return unflatten({path: watched(path, leaf) for path, leaf in flatten(weights)})


def warping_distances(sequences: Matrix) -> Matrix:
    """Returns the distances of each two of some sequences [clients, length], by dynamic time warping: the root of the
    least sum of squared differences along a path that may wait in either of them."""
    count, length = sequences.shape
    squares = (sequences[:, None, :, None] - sequences[None, :, None, :]) ** 2
    best = np.full((count, count, length + 1, length + 1), np.inf)  # up to each two of their positions
    best[:, :, 0, 0] = 0
    for i in range(length):
        for j in range(length):
            before = np.minimum(np.minimum(best[:, :, i, j], best[:, :, i + 1, j]), best[:, :, i, j + 1])
            best[:, :, i + 1, j + 1] = squares[:, :, i, j] + before
    distances: Matrix = np.sqrt(best[:, :, -1, -1])
    return distances


def smaller_part(alike: Matrix) -> list[int]:
    """Returns the smaller side of the cut between the members of a cluster across which they are least alike in sum
    (Stoer and Wagner, 1997), without the first member where both are equal; none where all are equally alike."""
    import igraph

    first, second = np.triu_indices(len(alike), 1)
    weights = alike[first, second]
    if np.ptp(weights) <= 1e-12 * max(weights.max(), 1):
        return []
    linked = weights > 0  # with edges of weight 0 igraph was seen to give other cuts than the least
    graph = igraph.Graph(n=len(alike), edges=np.stack([first, second], axis=1)[linked])
    sides: Sequence[list[int]] = graph.mincut(capacity=weights[linked].tolist()).partition
    return min(sides, key=lambda side: (len(side), 0 in side))


def check_head(server: Server) -> None:
    """Refuses models without a head that could stay with its client."""
    if "head" not in server.initial() or getattr(server.model, "head", "linear") != "linear":
        raise InputError(
            f"share = convolutions keeps the linear head of every model at its client, and {server.model.name} has "
            "none: use head = linear, or call the last linear layer of your own module 'head'."
        )
