"""FedOMD. Orthogonal graph convolutions and central moment discrepancy for clients with few labels and features of
different distributions (ICPP Workshops 2024). The discrepancy is that of Zellinger, Grubinger, Lughofer, Natschlaeger
and Saminger-Platz: Central moment discrepancy for domain-invariant representation learning. ICLR 2017."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from graft.federation.fleet import Nodes
from graft.federation.method import step
from graft.federation.reveals import MODEL, NODES, VOTE, Reveals
from graft.fields import Search
from graft.methods.fedavg import FedAvg
from graft.models.ortho_gcn import OrthoGCN, departure
from graft.tensors.randomness import Stream
from graft.tensors.trees import Tree, Weights, count_bytes, map_tree

if TYPE_CHECKING:
    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.models.architecture import Model

PAPERS_NETWORK = {"models": "ortho_gcn", "head": "conv"}
SMALLEST_SPAN = 1e-6  # of hidden features: a layer that is the same for all nodes must not be divided by zero
LAYER_FIELDS = (
    "orthogonal",
    "newton_steps",
    "hybrid",
    "center",
    "orthogonal_start",
    "scale_free",
    "newton_bound",
    "propagated",
)
WITHOUT_MOMENTS = "if beta is 0"


@dataclass(frozen=True)
class FedOMD(FedAvg):
    """FedAvg in which every client's hidden features are pulled towards the moments of all clients' features together.

    Unless models are named it trains the paper's network, whose layers are configured by the fields here. Of any other
    architecture the moments of the embedding are matched, and nothing is kept orthogonal. The paper communicates after
    every gradient step, `--epochs 1`; with more epochs the moments of all clients are constant within a round. The
    paper's beta is 10, see `fedomd_paper`: so much of it keeps the labels from being learnt.
    """

    # One plain step a round is a gradient of everybody's loss, and the server steps by Adam along it.
    experiment_defaults: ClassVar[Mapping[str, Any]] = {
        **PAPERS_NETWORK,
        "optimizer": "sgd",
        "learning_rate": 0.01,
        "server_optimizer": "adam",
        "server_rate": 0.01,
        "server_tau": 1e-5,
    }
    reveals: ClassVar = {
        "means/mean": Reveals("mean of every hidden feature over the client's nodes", ("features", "edges")),
        "means/size": replace(NODES, what="number of nodes that its moments are of"),
        "means/low": Reveals(
            "smallest hidden feature of all nodes, by layer",
            ("features", "edges"),
            when="if span_from is global, and not 0 as after a ReLU",
        ),
        "means/high": Reveals(
            "largest hidden feature of all nodes, by layer", ("features", "edges"), when="if span_from is global"
        ),
        "moments/moments": Reveals("central moments of every hidden feature over the nodes", ("features", "edges")),
        "match/model": MODEL,
        "match/weight": VOTE,
        "match/discrepancy": Reveals("distance of its moments to those of all clients", ("features", "edges")),
        "train/model": replace(MODEL, when=WITHOUT_MOMENTS),
        "train/weight": replace(VOTE, when=WITHOUT_MOMENTS),
    }
    averages: ClassVar[tuple[str, ...]] = ("means/mean", "moments/moments", "match/model", "train/model")
    averaged: ClassVar[str | None] = "model"
    logged: ClassVar[tuple[str, ...]] = ("match/discrepancy",)

    # Weight of the pull of the layers towards orthogonal matrices.
    alpha: Annotated[float, Ge(0), Search(1e-5, 1e-2, log=True)] = 5e-4
    # Weight of the discrepancy; 0: none, and only weights are sent.
    beta: Annotated[float, Ge(0), Search(1e-3, 10.0, log=True)] = 0.01
    order: Annotated[int, Ge(2)] = 5  # highest central moment that is matched, beside the mean and all from 2 on
    moment_nodes: Nodes = "all"  # whose hidden features moments are of: all of a client's nodes, or those to train on
    # The unit of moments, b - a: the range of hidden features over all clients by layer, or the number in span.
    span_from: Literal["global", "fixed"] = "global"
    span: Annotated[float, Gt(0)] = 1.0  # b - a if span_from is fixed
    orthogonal: bool = True  # off: plain graph convolutions in place of the orthogonal ones, and no pull by alpha
    newton_steps: Annotated[int, Ge(0)] = 4  # Newton iterations towards the nearest orthogonal matrix
    # Share of the trained matrix in the one that is made orthogonal; the rest is the identity.
    hybrid: Annotated[float, Gt(0), Le(1), Search(0.1, 0.9)] = 0.2
    center: bool = False  # whether the mean of each row is subtracted before orthogonalisation
    orthogonal_start: bool = False  # whether the matrix of the first layer starts with orthogonal columns
    # Whether what the first layer makes of a node's features is brought to size 1; else layers that stay orthogonal
    # cannot make up for small features.
    scale_free: bool = True
    # What matrices are divided by before Newton's iteration: the root of the norm of W^T W, or W's own Frobenius norm.
    newton_bound: Literal["gram", "frobenius"] = "gram"
    propagated: bool = True  # whether an orthogonal layer is a graph convolution, or its matrix alone
    pull_on: Literal["raw", "effective"] = "raw"  # which matrix alpha pulls: the trained one, or the one made of it

    def model(self, architecture: Model) -> Model:
        """Returns the architecture with orthogonal layers as the fields here configure them."""
        if not isinstance(architecture, OrthoGCN):
            return architecture
        return replace(architecture, **{name: getattr(self, name) for name in LAYER_FIELDS})

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        if self.beta:
            fleet.state.seeds = torch.zeros_like(fleet.random.keys)
            with torch.no_grad():
                fleet.state.own = torch.zeros_like(self.moments_of(fleet, hidden_of(fleet, fleet.state.model)[0]))
            fleet.state.mean = torch.zeros_like(fleet.state.own[:, :, 0])
            fleet.state.span = torch.full_like(fleet.state.own[:, :, 0, 0], self.span)

    def round(self, server: Server, clients: Clients) -> None:
        if not self.beta:
            super().round(server, clients)
            return
        means = clients.ask(self.means, server.state.model)
        center = Tree(mean=means.mean("mean", means.size))
        if self.span_from == "global":
            center.span = (means.high.amax(0) - means.low.amin(0)).clamp(min=SMALLEST_SPAN)
        moments = clients.ask(self.moments, center)
        target = Tree(moments=moments.mean("moments", means.size))
        replies = clients.ask(self.match, target)
        weight_bytes = len(clients) * count_bytes(server.state.model) + replies.bytes()
        self.aggregate(server, clients, replies)
        server.record(
            discrepancy=replies.discrepancy,
            weight_bytes=weight_bytes,
            moment_bytes=len(clients) * (count_bytes(center) + count_bytes(target)) + means.bytes() + moments.bytes(),
        )

    @step
    def means(self, fleet: Fleet, model: Weights) -> Tree:
        """Exchange 1: the mean of every hidden feature over all nodes of a client, labelled or not."""
        fleet.state.model = map_tree(torch.clone, model)
        fleet.state.seeds = fleet.random.keys.clone()
        with torch.no_grad():
            hidden, _ = hidden_of(fleet, model)
            fleet.state.own = self.moments_of(fleet, hidden)
        counted = fleet.node_mask(self.moment_nodes)
        reply = Tree(mean=fleet.state.own[:, :, 0].clone(), size=counted.sum(1))
        if self.span_from == "global":
            other = ~counted.unsqueeze(2)
            reply.low = torch.stack([layer.masked_fill(other, torch.inf).amin((1, 2)) for layer in hidden], dim=1)
            reply.high = torch.stack([layer.masked_fill(other, -torch.inf).amax((1, 2)) for layer in hidden], dim=1)
        return reply

    @step
    def moments(self, fleet: Fleet, center: Weights) -> Tree:
        """Exchange 2: moments around the mean of all clients; their mean is the moment of all nodes together."""
        fleet.state.mean = center["mean"].clone()
        if self.span_from == "global":
            fleet.state.span = center["span"].clone()
        return Tree(moments=moments_around(fleet.state.mean, fleet.state.own))

    @step
    def match(self, fleet: Fleet, message: Weights) -> Tree:
        """Exchange 3: train, with the moments of all clients as targets."""
        target = torch.cat([fleet.state.mean.unsqueeze(2), message["moments"]], dim=2)
        # The first epoch drops what was dropped for the statistics: it is the paper's one forward pass.
        redrawn = fleet.with_random(Stream(fleet.state.seeds))
        fleet.state.model = redrawn.fit(
            fleet.state.model, lambda weights, batch: self.matched_loss(batch, weights, target)
        )
        before = discrepancy(fleet.state.own, target, fleet.state.span)
        return Tree(model=fleet.state.model, weight=fleet.weight, discrepancy=before)

    def loss(self, fleet: Fleet, weights: Weights, received: Weights) -> Tensor:
        return super().loss(fleet, weights, received) + self.pull(fleet, weights)

    def matched_loss(self, fleet: Fleet, weights: Weights, target: Tensor) -> Tensor:
        """Eq. 12: labels, orthogonality, and the discrepancy; the moments of all clients are constants."""
        hidden, logits = hidden_of(fleet, weights)
        distance = discrepancy(self.moments_of(fleet, hidden), target, fleet.state.span)
        return fleet.cross_entropy(logits) + self.pull(fleet, weights) + self.beta * distance

    def pull(self, fleet: Fleet, weights: Weights) -> Tensor:
        """Eq. 6: how far the layers are from orthogonal; zero where none should be."""
        if not self.alpha or not isinstance(fleet.model, OrthoGCN):
            return torch.zeros(len(fleet.clients), device=fleet.device)
        matrices = fleet.model.inner_weights(weights)
        if self.pull_on == "effective":
            matrices = fleet.model.effective(matrices)
        return self.alpha * departure(matrices).sum(1)

    def moments_of(self, fleet: Fleet, hidden: list[Tensor]) -> Tensor:
        """Returns means and central moments of every hidden feature, [clients, layers, order, width]."""
        counted = fleet.node_mask(self.moment_nodes)
        return torch.stack([central_moments(layer, counted, self.order) for layer in hidden], dim=1)


@dataclass(frozen=True)
class FedOMDPaper(FedOMD):
    """FedOMD as published: moments of training nodes count a thousand times as much, in the layers of the print."""

    experiment_defaults: ClassVar[Mapping[str, Any]] = PAPERS_NETWORK

    beta: Annotated[float, Search()] = 10.0
    moment_nodes: Nodes = "train"  # Eq. 11
    span_from: Literal["global", "fixed"] = "fixed"  # no range is measured in Algorithm 1
    scale_free: bool = False  # nothing is said of the size of features
    newton_bound: Literal["gram", "frobenius"] = "frobenius"  # Q / ||Q||_F
    propagated: bool = False  # Eq. 8


def hidden_of(fleet: Fleet, weights: Weights) -> tuple[list[Tensor], Tensor]:
    """Returns the outputs of the hidden layers in training mode, or of the last alone where the others are not known,
    and the logits."""
    if isinstance(fleet.model, OrthoGCN):
        return fleet.model.outputs(weights, fleet.graph, fleet.random)
    output = fleet.forward(weights)
    return [output.embedding], output.logits


def central_moments(hidden: Tensor, counted: Tensor, order: int) -> Tensor:
    """Returns the mean and the central moments from 2 to `order` over the nodes of each client that are counted,
    [clients, order, width]; zeros without any."""
    counted = counted.unsqueeze(2)
    count = counted.sum(1).clamp(min=1)
    mean = (hidden * counted).sum(1) / count
    centred = (hidden - mean.unsqueeze(1)) * counted
    moments, power = [mean], centred
    for _ in range(2, order + 1):
        power = power * centred
        moments.append(power.sum(1) / count)
    return torch.stack(moments, dim=1)


def moments_around(point: Tensor, own: Tensor) -> Tensor:
    """Returns moments from 2 on around another point than the own mean: a binomial sum of central ones, exact."""
    shift = own[:, :, 0] - point
    central = [torch.ones_like(shift), torch.zeros_like(shift), *own[:, :, 1:].unbind(2)]
    moments = [
        sum((math.comb(order, k) * shift ** (order - k) * central[k] for k in range(order)), central[order])
        for order in range(2, len(central))
    ]
    return torch.stack(moments, dim=2)


def discrepancy(own: Tensor, target: Tensor, span: Tensor) -> Tensor:
    """Eq. 11: distances of means and moments, each in units of the span to its order, summed over layers.

    A norm has gradient 0 at 0, which one client alone meets exactly.
    """
    orders = torch.arange(1, own.shape[2] + 1, device=own.device)
    distances: Tensor = torch.linalg.vector_norm(own - target, dim=3)
    return (distances / span.unsqueeze(2) ** orders).sum((1, 2))
