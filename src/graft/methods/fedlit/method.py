"""FedLIT. Xie, Xiong and Yang: Federated node classification over graphs with latent link-type heterogeneity.
WWW 2023."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional

from graft.federation.method import Method, step
from graft.federation.reveals import MODEL, VOTE, Reveals
from graft.fields import Search
from graft.methods.fedlit.channels import Channels
from graft.methods.fedlit.edge_types import initial_centroids, nearest_types, type_views
from graft.models.architecture import LayeredModel, linear
from graft.tensors.randomness import index_tensor
from graft.tensors.trees import Tree, Weights, map_tree, select_clients, stack

if TYPE_CHECKING:
    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.models.architecture import Model


@dataclass(frozen=True)
class FedLIT(Method):
    """Edges are clustered into latent types with a channel each; the server aligns clusters and averages channels.

    A client keeps the order of its own clusters, and so do the moments of its optimiser; what it is sent is put into
    that order. Only in the first round does it use its own initial centroids: one that joins later begins with those
    of the server. Without self-loops a node without edges loses its own features, as in the original.
    """

    one_model: ClassVar[bool] = True
    keeps_start: ClassVar[bool] = False
    architecture: ClassVar[str | None] = "gcn"  # of the channels
    capturable: ClassVar[bool] = True
    reveals: ClassVar = {
        "train/common": MODEL,
        "train/by_type/channels": MODEL,
        "train/by_type/centroids": Reveals("centroids of the client's clusters of edges, in projected features"),
        "train/weight": VOTE,
        "train/present": Reveals("which of these clusters are not empty"),
        "train/trained": Reveals("number of training nodes with an edge of each cluster"),
    }
    averages: ClassVar[tuple[str, ...]] = ("train/common",)
    averaged: ClassVar[str | None] = "model"

    types: Annotated[int, Ge(1), Le(64), Search(2, 6)] = 4  # m: latent link types
    # How often edges are assigned to types and centroids moved before a training step.
    em_iterations: Annotated[int, Ge(1), Le(64), Search(1, 3)] = 1
    layers: Annotated[int, Ge(1), Le(64)] = 2  # graph convolutions in a channel
    self_loops: bool = False  # whether every channel has self-loops

    def start_server(self, server: Server) -> None:
        server.state.model = server.initial()
        server.state.known = torch.zeros((), dtype=torch.bool, device=server.device)  # whether it has any centroids
        own = torch.arange(self.types, device=server.device)
        server.state.groups = own.repeat(server.clients, 1)  # [clients, clusters]: the group of each cluster

    def start_client(self, fleet: Fleet) -> None:
        model = fleet.initial(fleet.model)  # the server's start: centroids are of its projection
        with torch.no_grad():
            nodes = linear(fleet.graph.features, model.projection)
            centroids = initial_centroids(fleet.graph, nodes, fleet.random, self.types)
        fleet.state.model = Tree({**model, "centroids": centroids})

    def model(self, architecture: Model) -> Channels:
        """Returns the network of channels for the data, and with the width and dropout, of another architecture."""
        assert isinstance(architecture, LayeredModel)
        return Channels(
            architecture.features,
            architecture.classes,
            self.layers,
            architecture.width,
            architecture.dropout,
            types=self.types,
            em_iterations=self.em_iterations,
            self_loops=self.self_loops,
        )

    def round(self, server: Server, clients: Clients) -> None:
        state = server.state
        each = {
            client: Tree(model=reorder(state.model, state.groups[client]), known=state.known)
            for client in clients.members
        }
        replies = clients.ask(self.train, each=each)
        by_type, present = replies.by_type, replies.present
        # Before there are common centroids, those of the first client with edges stand for them.
        first = by_type.centroids.index_select(0, present.any(1).to(torch.int8).argmax(0, keepdim=True))[0]
        centroids = torch.where(state.known, state.model.centroids, first)
        groups = match_clusters(by_type.centroids, centroids)
        orders = groups.argsort(1)  # a client's clusters in the order of the groups
        aligned = stack([reorder(select_clients(by_type, k), order) for k, order in enumerate(orders)])
        common = replies.mean("common", replies.weight)
        state.model = Tree(
            projection=common.projection,
            channels=mean_where(aligned.channels, replies.trained.gather(1, orders) > 0, state.model.channels),
            head=common.head,
            centroids=mean_where(aligned.centroids, present.gather(1, orders), centroids),
        )
        state.known = state.known | present.any()
        state.groups = state.groups.index_copy(0, index_tensor(tuple(replies.clients), groups.device), groups)
        server.record(groups=groups, trained=replies.trained)

    @step
    def train(self, fleet: Fleet, message: Weights) -> Tree:
        received = Tree(message["model"])
        has_centroids = message["known"].view(-1, 1, 1)
        received.centroids = torch.where(has_centroids, received.centroids, fleet.state.model.centroids)
        model = fleet.state.model = fleet.fit(received, lambda weights, batch: batch.label_loss(weights))
        with torch.no_grad():
            nodes = linear(fleet.graph.features, model.projection)
            types = nearest_types(fleet.graph, nodes, model.centroids)
            linked = torch.stack([view.degree > 0 for view in type_views(fleet.graph, types, self.types)], dim=1)
        # The centroid of an empty cluster means nothing; nor do the weights of a channel that no label reached.
        trained = (linked & fleet.labels.masks[:, :1]).sum(2)
        common = Tree(projection=model.projection, head=model.head)
        by_type = Tree(channels=model.channels, centroids=model.centroids)
        return Tree(common=common, by_type=by_type, weight=fleet.weight, present=linked.any(2), trained=trained)

    def shared(self, server: Server) -> Weights:
        model: Weights = server.state.model
        return model


def match_clusters(centroids: Tensor, groups: Tensor) -> Tensor:
    """Returns the group of every cluster of every client, one to one: greedily, the pair of the highest cosine
    first."""
    cosines = functional.normalize(centroids, dim=2) @ functional.normalize(groups, dim=1).T
    clients, types = cosines.shape[:2]
    matched = torch.zeros(clients, types, dtype=torch.int64, device=cosines.device)
    for _ in range(types):
        best = cosines.flatten(1).argmax(1, keepdim=True)
        cluster, group = torch.div(best, types, rounding_mode="floor"), best % types
        matched.scatter_(1, cluster, group)
        cosines = cosines.scatter(1, cluster.unsqueeze(2).expand(-1, 1, types), -float("inf"))
        cosines = cosines.scatter(2, group.unsqueeze(1).expand(-1, types, 1), -float("inf"))
    return matched


def reorder(model: Weights, order: Tensor) -> Tree:
    """Returns one client's model with its channels and centroids in another order."""
    moved = {part: map_tree(lambda leaf: leaf[order], model[part]) for part in ("channels", "centroids")}
    return Tree({**model, **moved})


def mean_where(leaves: Any, selected: Tensor, otherwise: Any) -> Tree:
    """Returns the plain mean over clients of each group's [clients, groups, ...] selected ones; without any, another
    value."""

    def mean(leaf: Tensor, fallback: Tensor) -> Tensor:
        shape = (*selected.shape, *[1] * (leaf.dim() - 2))
        count = selected.sum(0).view(shape[1:])
        return torch.where(count > 0, (leaf * selected.view(shape)).sum(0) / count.clamp(min=1), fallback)

    return map_tree(mean, leaves, otherwise)
