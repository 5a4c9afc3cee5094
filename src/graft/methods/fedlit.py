"""FedLIT. Xie, Xiong and Yang: Federated node classification over graphs with latent link-type heterogeneity.
WWW 2023."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from graft.errors import InputError
from graft.federation.method import step
from graft.graphs.fleet_graph import FleetGraph
from graft.methods.fedavg import FedAvg
from graft.models.architecture import LayeredModel, Output, add_bias, glorot, linear, project, start_linear
from graft.tensors.randomness import index_tensor
from graft.tensors.sparse import BlockSparse
from graft.tensors.trees import Tree, Weights, map_tree, stack, weighted_mean

if TYPE_CHECKING:
    from graft.federation.exchange import Clients, Server
    from graft.federation.fleet import Fleet
    from graft.models.architecture import Model
    from graft.tensors.randomness import Stream


@dataclass(frozen=True)
class FedLIT(FedAvg):
    """Edges are clustered into latent types with a channel each; the server lines clusters up and averages channels.

    A client keeps the order of its own clusters, and so do the moments of its optimiser; what it is sent is put into
    that order. Only in the first round does it use the centroids it found by itself: one that joins later begins with
    those of the server. Without self-loops a node without edges loses its own features, as in the original.
    """

    types: int = 2  # m: latent link types; the paper has 4, on graphs that are known to have several
    em_iterations: int = 1  # rounds of assigning edges and moving centroids before every training step
    layers: int = 2  # graph convolutions in a channel
    self_loops: bool = False  # whether every channel also sees each node itself

    architecture: ClassVar[str | None] = "gcn"  # of the channels

    def __post_init__(self) -> None:
        for name in ("types", "em_iterations", "layers"):
            if not 1 <= getattr(self, name) <= 64:
                raise InputError(f"{name} is {getattr(self, name)}; it must be between 1 and 64.")

    def start_server(self, server: Server) -> None:
        server.state.model = server.initial(self.network(server.architecture("gcn")))
        server.state.known = torch.zeros((), dtype=torch.bool, device=server.device)  # whether it has any centroids
        own = torch.arange(self.types, device=server.device)
        server.state.groups = own.repeat(server.clients, 1)  # [clients, clusters]: whose group each cluster is

    def start_client(self, fleet: Fleet) -> None:
        fleet.model = self.network(fleet.architecture("gcn"))
        model = fleet.initial()
        with torch.no_grad():
            nodes = linear(fleet.graph.features, model.projection)
            found = first_centroids(fleet.graph, nodes, fleet.random, self.types)
        fleet.state.model = Tree({**model, "centroids": found})

    def network(self, model: Model) -> Channels:
        """The network for the data, and with the width and dropout, of another one."""
        assert isinstance(model, LayeredModel)
        return Channels(
            model.features,
            model.classes,
            self.layers,
            model.width,
            model.dropout,
            types=self.types,
            em_iterations=self.em_iterations,
            self_loops=self.self_loops,
        )

    def round(self, server: Server, clients: Clients) -> None:
        state = server.state
        each = {
            client: Tree(model=ordered(state.model, state.groups[client]), known=state.known)
            for client in clients.members
        }
        replies = clients.ask(self.train, each=each)
        models, present = replies.model, replies.present
        # Before there are centroids in common, those of the first client with edges stand for them.
        first = models.centroids.index_select(0, present.any(1).to(torch.int8).argmax(0, keepdim=True))[0]
        centroids = torch.where(state.known, state.model.centroids, first)
        groups = match(models.centroids, centroids)
        # A client's clusters in the order of the groups.
        orders = groups.argsort(1)
        aligned = stack([ordered(map_tree(lambda leaf, k=k: leaf[k], models), order) for k, order in enumerate(orders)])
        state.model = Tree(
            projection=weighted_mean(models.projection, replies.weight),
            channels=mean_where(aligned.channels, replies.trained.gather(1, orders) > 0, state.model.channels),
            head=weighted_mean(models.head, replies.weight),
            centroids=mean_where(aligned.centroids, present.gather(1, orders), centroids),
        )
        state.known = state.known | present.any()
        state.groups = state.groups.index_copy(0, index_tensor(tuple(replies.clients), groups.device), groups)
        server.record(groups=groups, trained=replies.trained)

    @step
    def train(self, fleet: Fleet, message: Weights) -> Tree:
        received = Tree(message["model"])
        known = message["known"].view(-1, 1, 1)
        received.centroids = torch.where(known, received.centroids, fleet.state.model.centroids)
        model = fleet.state.model = fleet.fit(received, lambda weights: self.loss(fleet, weights, received))
        with torch.no_grad():
            nodes = linear(fleet.graph.features, model.projection)
            kinds = nearest_types(fleet.graph, nodes, model.centroids)
            touched = torch.stack([view.degree > 0 for view in views(fleet.graph, kinds, self.types)], dim=1)
        # Of an empty cluster the centroid says nothing; nor do the weights of a channel that no label reached.
        trained = (touched & fleet.labels.masks[:, :1]).sum(2)
        return Tree(model=model, weight=fleet.weight, present=touched.any(2), trained=trained)


@dataclass(frozen=True)
class Channels(LayeredModel):
    """A projection of the features, a channel of `depth` graph convolutions for every type of edges, and a head on
    the sum of the channels.

    An edge is as near to a centroid as the projections of its two nodes, side by side in the order of their numbers,
    are in direction. Centroids are not trained; in training mode they move to the means of their edges.
    """

    types: int = 2
    em_iterations: int = 1
    self_loops: bool = False

    kind: ClassVar[str] = "channels"
    frozen = frozenset({"centroids"})

    def start(self, generator: torch.Generator) -> Tree:
        def channel() -> Tree:
            weights = Tree(inner=start_linear(self.width, self.width, generator))
            for index in range(self.depth):
                weight = glorot(self.width, self.width, generator)
                weights[f"layer{index}"] = Tree(weight=weight, bias=torch.zeros(self.width))
            return weights

        return Tree(
            projection=start_linear(self.features, self.width, generator),
            channels=stack([channel() for _ in range(self.types)]),
            head=start_linear(self.width, self.classes, generator),
            centroids=torch.zeros(self.types, 2 * self.width),
        )

    def __call__(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Output:
        nodes = linear(graph.features, weights["projection"])
        kinds = self.cluster(weights["centroids"], graph, nodes.detach(), training=random is not None)
        embedding = torch.zeros_like(nodes)
        for index, view in enumerate(views(graph, kinds, self.types)):
            channel = map_tree(lambda leaf, index=index: leaf[:, index], weights["channels"])
            embedding = embedding + self.pass_through(channel, view, nodes, random)
        return Output(embedding, linear(embedding, weights["head"]))

    @torch.no_grad()
    def cluster(self, centroids: Tensor, graph: FleetGraph, nodes: Tensor, *, training: bool) -> Tensor:
        """The type of every entry of A; in training the centroids follow, in place, as running means do."""
        kinds = nearest_types(graph, nodes, centroids)
        for iteration in range(self.em_iterations if training else 0):
            if iteration:
                kinds = nearest_types(graph, nodes, centroids)
            centroids.copy_(means_of_types(graph, nodes, kinds, centroids))
        return kinds

    def pass_through(self, channel: Weights, view: FleetGraph, nodes: Tensor, random: Stream | None) -> Tensor:
        """What one channel says of the nodes that have an edge of its type, and zero of all others."""
        neighbours = view.normalised if self.self_loops else without_loops(view)
        hidden = linear(nodes, channel["inner"])
        for index in range(self.depth):
            layer = channel[f"layer{index}"]
            hidden = torch.relu(add_bias(neighbours @ project(hidden, layer["weight"]), layer))
            hidden = self.drop(hidden, random)
        return hidden if self.self_loops else hidden * (view.degree > 0).unsqueeze(2)


def views(graph: FleetGraph, kinds: Tensor, types: int) -> list[FleetGraph]:
    """The graph split by the type of its edges; every edge is in exactly one view."""
    return [
        FleetGraph(graph.neighbours.with_values((kinds == kind).float()), graph.features, graph.sizes, whole=graph)
        for kind in range(types)
    ]


def without_loops(view: FleetGraph) -> BlockSparse:
    """D^-1/2 A D^-1/2."""
    pattern, kept = view.neighbours, view.neighbours.values
    assert kept is not None
    scale = view.degree.flatten().clamp(min=1).rsqrt()
    return pattern.with_values(scale[pattern.row_of] * scale[pattern.columns] * kept)


def ends(graph: FleetGraph) -> tuple[Tensor, Tensor]:
    """The two nodes of every entry of A, the one with the lower number first, so that both directions agree."""
    rows, columns = graph.neighbours.row_of, graph.neighbours.columns.long()
    return torch.minimum(rows, columns), torch.maximum(rows, columns)


def nearest_types(graph: FleetGraph, nodes: Tensor, centroids: Tensor) -> Tensor:
    """The centroid of the highest cosine for every entry of A; the first of several."""
    lower, upper = ends(graph)
    # The inner product is a sum over the two ends, and the length of an edge does not change which one is highest.
    first, second = functional.normalize(centroids, dim=2).chunk(2, dim=2)
    scores = [(nodes @ half.mT).flatten(0, 1)[end] for half, end in ((first, lower), (second, upper))]
    return (scores[0] + scores[1]).argmax(1)


def means_of_types(graph: FleetGraph, nodes: Tensor, kinds: Tensor, before: Tensor) -> Tensor:
    """The mean edge of each type, [clients, types, 2 * width]; a type without edges stays as it was before."""
    types = before.shape[1]
    sums = []
    for end in ends(graph):
        incidence = nodes.new_zeros(nodes.shape[0] * nodes.shape[1] * types)
        incidence.index_add_(0, end * types + kinds, torch.ones_like(kinds, dtype=nodes.dtype))
        incidence = incidence.view(*nodes.shape[:2], types)
        sums.append(incidence.mT @ nodes)
    counts = incidence.sum(1).unsqueeze(2)
    return torch.where(counts > 0, torch.cat(sums, dim=2) / counts.clamp(min=1), before)


def first_centroids(graph: FleetGraph, nodes: Tensor, random: Stream, types: int) -> Tensor:
    """One iteration of k-means over each client's edges, begun as k-means++ (Arthur and Vassilvitskii, SODA 2007);
    zeros for a client without edges."""
    clients, entries = graph.clients, graph.neighbours.entries
    centroids = nodes.new_zeros(clients, types, 2 * nodes.shape[2])
    if entries == 0:
        return centroids
    lower, upper = ends(graph)
    owner = torch.div(lower, graph.nodes, rounding_mode="floor")
    begin = graph.neighbours.starts[:: graph.nodes].long()
    position = torch.arange(entries, device=nodes.device)
    gaps: list[Tensor] = []
    for kind in range(types):
        nearest = torch.stack(gaps).amin(0) if gaps else torch.ones_like(lower, dtype=nodes.dtype)
        draws = random.uniform(int(begin.diff().max()))[owner, position - begin[owner]]
        picked = lowest(-draws.log() / nearest, owner, clients)
        found = torch.cat([nodes.flatten(0, 1)[end[picked]] for end in (lower, upper)], dim=1)
        centroids[:, kind] = found * (begin.diff() > 0).unsqueeze(1)
        gaps.append(squared_gaps(nodes, centroids[:, kind], (lower, upper)))
    return means_of_types(graph, nodes, torch.stack(gaps).argmin(0), centroids)


def squared_gaps(nodes: Tensor, centroids: Tensor, both: tuple[Tensor, Tensor]) -> Tensor:
    """The squared distance of every entry of A to a centroid of its client."""
    halves = centroids.unsqueeze(1).chunk(2, dim=2)
    parts = [(nodes - half).square().sum(2).flatten()[end] for half, end in zip(halves, both, strict=True)]
    return parts[0] + parts[1]


def lowest(values: Tensor, owner: Tensor, clients: int) -> Tensor:
    """Where each client's lowest value is, the first of several; of a client without values, anywhere."""
    least = values.new_full((clients,), float("inf")).scatter_reduce(0, owner, values, "amin")
    places = torch.arange(len(values), device=values.device)
    places = torch.where(values == least[owner], places, len(values) - 1)
    return places.new_full((clients,), len(values) - 1).scatter_reduce(0, owner, places, "amin")


def match(centroids: Tensor, groups: Tensor) -> Tensor:
    """For every cluster of every client its group: the pair of the highest cosine first, one to one."""
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


def ordered(model: Weights, order: Tensor) -> Tree:
    """One client's model with its channels and centroids in another order."""
    moved = {part: map_tree(lambda leaf: leaf[order], model[part]) for part in ("channels", "centroids")}
    return Tree({**model, **moved})


def mean_where(leaves: Weights | Tensor, chosen: Tensor, otherwise: Weights | Tensor) -> Tree:
    """The plain mean over clients of each group's [clients, groups, ...] chosen ones; without any, another value."""

    def mean(leaf: Tensor, kept: Tensor) -> Tensor:
        shape = (*chosen.shape, *[1] * (leaf.dim() - 2))
        count = chosen.sum(0).view(shape[1:])
        return torch.where(count > 0, (leaf * chosen.view(shape)).sum(0) / count.clamp(min=1), kept)

    return map_tree(mean, leaves, otherwise)  # type: ignore[no-any-return]
