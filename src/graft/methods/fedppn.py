"""FedPPN. Liu, Zhou, He, Yuan, Du, Wang, Shen, Kong and Xia: Model-heterogeneous federated graph learning with
prototype propagation. IEEE Transactions on Artificial Intelligence 6(3), 2025."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional

from graft.errors import InputError
from graft.federation.method import step
from graft.federation.remembered import remember, remembered
from graft.federation.reveals import Reveals
from graft.fields import Search
from graft.graphs.node_subset import gather_nodes
from graft.methods.fedproto import PrototypeExchange
from graft.methods.fedproto.prototypes import class_means, mean_norm, renewed
from graft.methods.lg_fedavg import linear_head
from graft.models.architecture import linear
from graft.tensors.trees import Tree, Weights, flatten, map_tree

if TYPE_CHECKING:
    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.graphs.fleet_graph import FleetGraph
    from graft.models.architecture import Model


@dataclass(frozen=True)
class FedPPN(PrototypeExchange):
    """Clients keep models of any architecture; prototypes are averaged, every client propagates them along its own
    edges, and its head classifies nodes by what arrives there, too.

    Without a prototype of any class of its training nodes a client trains, and predicts, by its model alone.
    """

    reveals: ClassVar = {
        "train/owned": Reveals("which classes the client has training nodes of", ("labels",)),
        "train/accuracy": Reveals("validation accuracy of the model alone and of the propagated prototypes alone"),
    }
    predicts_from_labels: ClassVar[bool] = True
    logged: ClassVar[tuple[str, ...]] = ("train/accuracy",)

    propagation_steps: Annotated[int, Ge(0), Search(1, 3)] = 2  # L: how often prototypes are propagated
    # a: share of the neighbours in a propagated prototype, beside where it began.
    propagation: Annotated[float, Ge(0), Le(1), Search(0.1, 0.9)] = 0.5
    # Whether neighbours are summed symmetrically normalised by degrees, or as they are, as in the released code.
    prop_norm: Literal["sym", "none"] = "sym"
    # Share of the model's own logits in the ensemble, beside those of the propagated prototypes.
    own_share: Annotated[float, Ge(0), Le(1)] = 0.5
    # Weight of the loss of the propagated prototypes, which trains the head alone.
    prototype_weight: Annotated[float, Ge(0), Search(0.1, 10.0, log=True)] = 1.0
    # Weight of the ensemble's loss; with both weights 0 models train as they would alone.
    ensemble_weight: Annotated[float, Ge(0), Search(0.1, 10.0, log=True)] = 1.0
    mask_self: bool = False  # whether a training node does without the prototype that begins at itself
    # Which logits classify: the ensemble's, the model's own, or those of the propagated prototypes.
    inference: Literal["ensemble", "model", "prototypes"] = "ensemble"

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        width, _ = self.common_shape(server)
        for model in dict.fromkeys(server.models):
            head = linear_head(server, model)
            if head is None or width not in head["weight"].shape:
                raise InputError(
                    f"FedPPN classifies prototypes by the linear head of every model, and {model.name} has none that "
                    "takes its embeddings: use head = linear, or call the last linear layer of your own module 'head'."
                )

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        check_scoring(fleet)
        fleet.state.known = self.start_known(fleet)

    def round(self, server: Server, clients: Clients) -> None:
        replies = clients.ask(self.train, server.state.known)
        server.state.known = renewed(server.state.known, replies.prototypes, replies.owned)
        server.record(
            prototype_norm=mean_norm(server.state.known),
            **{f"accuracy_of_{part}": accuracy for part, accuracy in replies.accuracy.items()},
        )

    @step
    def train(self, fleet: Fleet, received: Weights) -> Tree:
        fleet.state.known = map_tree(torch.clone, received)
        # What a client received does not change while it trains, so neither does what is propagated of it.
        propagated, heard = self.propagate(fleet, received), beginnings(fleet, received).any(1)
        at_train_nodes = cache(lambda data: (part := fleet.on(data)).at_train_nodes(part.at_nodes(propagated)))
        fleet.state.model = fleet.fit(
            fleet.state.model, lambda weights, batch: self.loss(batch, weights, at_train_nodes(batch.data), heard)
        )
        output = fleet.predict(fleet.state.model)
        means = class_means(fleet, output)
        by_prototypes = self.classify(fleet, fleet.state.model, propagated).detach()
        remember(fleet, self.state_of_predictions(fleet), output.logits, by_prototypes)
        accuracy = Tree(model=validated(fleet, output.logits), prototypes=validated(fleet, by_prototypes))
        return Tree(prototypes=means.prototypes, owned=means.counts > 0, accuracy=accuracy)

    def loss(self, fleet: Fleet, weights: Weights, points: Tensor, heard: Tensor) -> Tensor:
        """Returns the losses of the labels by the model, by the prototypes that were propagated to training nodes and
        by both together; clients in whose graphs no prototype begins have the first alone."""
        weights = heads_used_twice(fleet.model, weights)
        own = fleet.train_output(weights).logits
        by_prototypes = self.classify(fleet, weights, points)
        taught = self.prototype_weight * fleet.train_loss(by_prototypes)
        together = self.ensemble_weight * fleet.train_loss(self.ensemble(own, by_prototypes))
        return fleet.train_loss(own) + heard * (taught + together)

    def classify(self, fleet: Fleet, weights: Weights, points: Tensor) -> Tensor:
        """Returns the logits that every client's own head gives of points [clients, some, width]."""
        return linear(points, heads(fleet.model, weights))

    def ensemble(self, own: Tensor, by_prototypes: Tensor) -> Tensor:
        return self.own_share * own + (1 - self.own_share) * by_prototypes

    @torch.no_grad()
    def propagate(self, fleet: Fleet, known: Weights) -> Tensor:
        """Returns the prototypes of training nodes propagated along edges, [clients, nodes, width]; zero where no
        training node is near enough."""
        classes, _ = training_labels(fleet)
        start = gather_nodes(known["prototypes"], classes) * beginnings(fleet, known).unsqueeze(2)
        points: Tensor = start
        for _ in range(self.propagation_steps):
            points = self.propagation * self.neighbour_sum(fleet.graph, points) + (1 - self.propagation) * start
        if self.mask_self:  # of the restart in the last step; what came back from neighbours stays
            points = points - (1 - self.propagation if self.propagation_steps else 1) * start
        return points

    def neighbour_sum(self, graph: FleetGraph, points: Tensor) -> Tensor:
        if self.prop_norm == "none":
            return graph.neighbours @ points
        scale = graph.divisor.rsqrt().unsqueeze(2)  # a node without neighbours has nothing to scale
        return scale * (graph.neighbours @ (scale * points))

    @torch.no_grad()
    def logits(self, fleet: Fleet) -> Tensor:
        kept = remembered(fleet, self.state_of_predictions(fleet))
        own = kept[0] if kept else fleet.predict(self.personal(fleet)).logits
        if self.inference == "model":
            return own
        known = fleet.state.known
        by_prototypes = kept[1] if kept else self.classify(fleet, self.personal(fleet), self.propagate(fleet, known))
        answer = self.ensemble(own, by_prototypes) if self.inference == "ensemble" else by_prototypes
        return torch.where(beginnings(fleet, known).any(1).view(-1, 1, 1), answer, own)

    def state_of_predictions(self, fleet: Fleet) -> list[Tensor]:
        """Returns all tensors of the clients' state that predictions are made of."""
        return [leaf for field in ("model", "known") for _, leaf in flatten(fleet.state[field])]

    def model_alone(self) -> bool:
        return self.inference == "model"


def heads(model: Model, weights: Weights) -> Tree:
    """Returns the linear heads of all clients of a fleet, whatever their architectures, stacked."""
    parts = [weights[name]["head"] for name in model.kinds] or [weights["head"]]
    head = parts[0] if len(parts) == 1 else map_tree(lambda *leaves: torch.cat(leaves), *parts)
    # A module of somebody's own keeps its weights the way PyTorch does, outputs first.
    return Tree(weight=head["weight"] if model.stackable else head["weight"].transpose(1, 2), bias=head["bias"])


def heads_used_twice(model: Model, weights: Weights) -> Weights:
    """Returns weights whose heads are views, made on the stream that prototypes are classified on.

    In a capture architectures run on streams of their own. The gradients of both uses of a head meet at its view;
    where they met at the head itself, which would belong to the stream of its first use, PyTorch warns. A CPU has no
    streams.
    """
    if not next(leaf for _, leaf in flatten(weights)).is_cuda:
        return weights
    views = {
        name: Tree({**weights[name], "head": map_tree(lambda leaf: leaf.view_as(leaf), weights[name]["head"])})
        for name in model.kinds
    }
    return Tree({**weights, **views})


def training_labels(fleet: Fleet) -> tuple[Tensor, Tensor]:
    """Returns the classes of all nodes, and which nodes have a label that their client trains on.

    Where models are scored on data that were not perturbed, as training data were, these have labels that clients
    never learnt; their nodes are the same. Where nodes are scored that were not trained on, labels are.
    """
    labels, trained = fleet.labels, fleet.trained_on
    classes, labelled = labels.classes, labels.masks[:, 0]
    if trained is fleet.data:
        return classes, labelled
    same_nodes = (trained.graph.sizes == fleet.graph.sizes).unsqueeze(1)
    further = fleet.graph.nodes - trained.graph.nodes
    seen, of_seen = trained.labels.classes, trained.labels.masks[:, 0]
    return (
        torch.where(same_nodes, functional.pad(seen, (0, further)), classes),
        torch.where(same_nodes, functional.pad(of_seen, (0, further)), labelled),
    )


def beginnings(fleet: Fleet, known: Weights) -> Tensor:
    """Returns at which nodes prototypes begin, [clients, nodes]: training nodes whose class has one."""
    classes, labelled = training_labels(fleet)
    present: Tensor = known["present"]
    return labelled & present.gather(1, classes)


def check_scoring(fleet: Fleet) -> None:
    """Refuses labels that are perturbed in training and not in scoring, on graphs whose nodes cannot be told to be the
    same."""
    trained, scored = fleet.data, fleet.scoring
    if trained is scored:
        return
    other_nodes = trained.graph.sizes != scored.graph.sizes
    other_labels = (trained.labels.class_counts != scored.labels.class_counts).any(1)
    if bool((other_nodes & other_labels).any()):
        raise InputError(
            "FedPPN predicts from training labels, and cannot tell which of them clients know where labels are "
            "perturbed and test nodes are unseen: use one of the two, or evaluate_on = perturbed."
        )


def validated(fleet: Fleet, logits: Tensor) -> Tensor:
    """Returns the share of each client's validation nodes that logits classify correctly; 0 without any."""
    nodes = fleet.labels.judged.sum(1)
    return fleet.count_validated(logits) / nodes.clamp(min=1)
