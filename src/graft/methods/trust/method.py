"""TRUST. Wan, Cheng, Liu, Huang, Shi, Jin, Zhang, Du and Ye: Multi-order orchestrated curriculum distillation for
model-heterogeneous federated graph learning. NeurIPS 2025."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from graft.errors import InputError
from graft.federation.method import Method, step
from graft.federation.reveals import MODEL, VOTE, Reveals
from graft.fields import Search
from graft.methods.trust.conformal import (
    Calibration,
    calibrate,
    prediction_sets,
    ranking_loss,
    transfer_weights,
)
from graft.methods.trust.difficulty import easiest, easiest_first, share_taught
from graft.methods.trust.transport import check_heads, class_costs, transport_value
from graft.tensors.randomness import index_tensor
from graft.tensors.trees import Tree, Weights, map_tree
from graft.training.losses import divergence, log_softmax, mean_over

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.models.architecture import Model


class ProxySets(NamedTuple):
    """What the private model is taught in a round, of all nodes of the clients."""

    logits: Tensor  # of the proxy
    inside: Tensor  # bool [clients, nodes, classes]: the proxy's sets
    draws: Tensor  # [clients, nodes]: the random numbers of the private model's sets
    private: Calibration  # of these
    agreement: Tensor  # [clients]: the mean transfer weight before the private model is taught


class Lesson(NamedTuple):
    """What the proxy is taught in a round, of all nodes of the clients."""

    logits: Tensor  # of the private model
    sizes: Tensor  # [clients] nodes
    places: Tensor  # [clients, nodes] in the order of difficulty
    costs: Tensor | None  # [clients, classes, classes] of moving between classes


@dataclass(frozen=True)
class TRUST(Method):
    """A small proxy learns from each client's private model, easy nodes first and at a temperature that makes it hard,
    and teaches it back what it is sure of; proxies are averaged.

    The paper's formulas were not legible everywhere, and its code is not public: docs/methods/trust.md says what is
    reconstructed. Sets of classes are calibrated on validation nodes, so validation labels enter training.
    """

    heterogeneous: ClassVar[bool] = True
    capturable: ClassVar[bool] = True
    reveals: ClassVar = {
        "train/proxy": MODEL,
        "train/weight": VOTE,
        "train/agreement": Reveals(
            "how far the proxy's and the private model's sets of classes agree, a mean over nodes",
            when="unless w_back is 0",
        ),
    }
    averages: ClassVar[tuple[str, ...]] = ("train/proxy",)
    averaged: ClassVar[str | None] = "proxy"
    logged: ClassVar[tuple[str, ...]] = ("train/agreement",)
    judges_unless: ClassVar = {"calibrate": ("train",)}

    # Architecture of the model that is sent.
    proxy: Annotated[str, Search(choices=("gcn3", "gcn", "sage", "sgc", "tag"))] = "gcn3"
    # Weight of the divergence of predictions in the proxy's loss, over the nodes that are taught.
    w_kl: Annotated[float, Ge(0), Search(0.001, 1.0, log=True)] = 0.01
    # Weight of the transport between predictions in the proxy's loss; 0 needs no linear head.
    w_wd: Annotated[float, Ge(0), Search(0.001, 1.0, log=True)] = 0.025
    # Weight of what the proxy teaches in the private model's loss; 0: nothing.
    w_back: Annotated[float, Ge(0), Search(0.1, 10.0, log=True)] = 1.0
    # What a proxy teaches: to rank classes of its set above all others, or its predictions where that is one class.
    backward: Annotated[Literal["ranking", "certain"], Search(choices=("ranking", "certain"))] = "ranking"
    # Whose labels sets are calibrated by: of nodes that no model was trained on, or of those it was.
    calibrate: Literal["validation", "train"] = "validation"
    error: Annotated[float, Gt(0), Lt(1)] = 0.1  # share of the nodes whose set may miss the true class
    free_ranks: Annotated[int, Ge(0)] = 5  # places in a set without a penalty, at most one less than there are classes
    # Penalty of each further place in the sets of the proxy; it rises with what the private model has unlearnt.
    proxy_penalty: Annotated[float, Ge(0)] = 0.5
    private_penalty: Annotated[float, Ge(0)] = 1.0  # penalty of each further place in the sets of the private model
    # lambda: share of the nodes that are taught at first.
    start_share: Annotated[float, Gt(0), Le(1), Search(0.25, 0.75)] = 0.5
    # Epochs, counted over the whole training, until all nodes are taught.
    curriculum: Annotated[int, Ge(1), Search(20, 100)] = 40
    # Weight of the distance of a node's embedding to its class in its difficulty, beside the entropy of labels around.
    distance: Annotated[float, Ge(0)] = 0.5
    pretrain_epochs: Annotated[int, Ge(0)] = 50  # epochs of the model that finds out how difficult nodes are
    warm_start: bool = False  # whether the private model goes on from that model, or begins as in other methods
    refresh: Annotated[int, Ge(0)] = 0  # rounds until the private model finds out anew; 0: never
    tau_min: Annotated[float, Gt(0)] = 1.0  # lowest temperature of the divergence
    tau_max: Annotated[float, Gt(0)] = 21.0  # highest temperature of the divergence
    tau_rate: Annotated[float, Ge(0)] = 0.01  # learning rate of the temperature
    tau_momentum: Annotated[float, Ge(0), Lt(1)] = 0.9  # how much of its last step the temperature takes again
    tau_decay: Annotated[float, Ge(0)] = 4e-4  # weight decay of the temperature
    eta: Annotated[float, Ge(0.03), Le(10)] = 0.05  # how much the entropy of a plan counts beside its cost
    kappa: Annotated[float, Ge(0)] = 1.0  # how fast costs grow as classes differ more
    iterations: Annotated[int, Ge(1), Le(1000)] = 50  # of Sinkhorn's algorithm; the paper's 10 are not enough

    def check(self) -> None:
        super().check()
        if self.tau_max < self.tau_min:
            raise InputError(f"The highest temperature, tau_max {self.tau_max}, is below tau_min, {self.tau_min}.")

    def rehearsals(self) -> Sequence[TRUST]:
        """Returns it with few epochs and iterations: nothing of them is sent."""
        return [replace(self, pretrain_epochs=min(self.pretrain_epochs, 1), iterations=1)]

    def averaged_model(self, server: Server) -> Model:
        return server.architecture(self.proxy)

    def second_model(self) -> str:
        return self.proxy

    def start_server(self, server: Server) -> None:
        if self.w_wd:
            check_heads(server)
        server.state.proxy = server.initial(self.averaged_model(server))
        # Which clients know how difficult their nodes are.
        server.state.prepared = torch.zeros(server.clients, dtype=torch.bool, device=server.device)

    def start_client(self, fleet: Fleet) -> None:
        fleet.state.model = fleet.initial()
        fleet.state.guide = fleet.initial()
        zeros = torch.zeros(len(fleet.clients), device=fleet.device)
        fleet.state.accuracy = zeros.clone()  # of the private model on training nodes when it was last calibrated
        # CTKD, too, starts at a sigmoid of 1.
        fleet.state.temperature = Tree(parameter=torch.ones_like(zeros), velocity=zeros.clone())

    def round(self, server: Server, clients: Clients) -> None:
        self.prepare_new(server, clients)
        rounds = torch.full((), server.rounds, device=server.device)
        replies = clients.ask(self.train, Tree(proxy=server.state.proxy, rounds=rounds))
        server.state.proxy = replies.mean("proxy", replies.weight)
        if self.w_back:
            server.record(agreement=replies.agreement)

    def prepare_new(self, server: Server, clients: Clients) -> None:
        """Let clients that take part for the first time find out how difficult their nodes are."""
        if "prepared" not in server.cache:  # read once, so that later rounds need not wait for the device
            server.cache["prepared"] = set(server.state.prepared.nonzero().flatten().tolist())
        new = clients.only([client for client in clients.members if client not in server.cache["prepared"]])
        if len(new):
            new.ask(self.prepare)
            server.cache["prepared"].update(new.members)
            rows = index_tensor(tuple(new.members), server.device)
            server.state.prepared = server.state.prepared.index_fill(0, rows, True)

    @step
    def prepare(self, fleet: Fleet) -> Tree:
        """Train a model of the private architecture alone."""
        training = replace(fleet.training, epochs=self.pretrain_epochs, optimizer_state="reset")
        fleet.state.guide = fleet.fit(
            fleet.state.guide, lambda weights, batch: batch.label_loss(weights), "guide", training=training
        )
        if self.warm_start:
            fleet.state.model = map_tree(torch.clone, fleet.state.guide)
        return Tree()

    @step
    def train(self, fleet: Fleet, message: Weights) -> Tree:
        state, proxy = fleet.state, message["proxy"]
        if self.refresh:
            due = (fleet.round > 1) & ((fleet.round - 1) % self.refresh == 0)
            state.guide = map_tree(lambda old, new: torch.where(due, new, old), state.guide, state.model)
        sets = self.proxy_sets(fleet, proxy) if self.w_back else None
        state.model = fleet.fit(state.model, lambda weights, batch: self.private_loss(batch, weights, sets))
        lesson, temperature, turns = self.lesson(fleet), Tree(state.temperature), count()
        if fleet.training.optimizer_state == "reset":
            temperature.velocity = torch.zeros_like(temperature.velocity)
        loss = partial(self.proxy_loss, lesson, temperature, self.epochs(fleet, turns), message["rounds"])
        trained = fleet.fit(proxy, loss, "proxy", fleet.architecture(self.proxy).frozen)
        state.temperature = temperature
        reply = Tree(proxy=fleet.trained_by_labels(trained, proxy), weight=fleet.weight)
        return reply if sets is None else Tree(**reply, agreement=sets.agreement)

    def proxy_sets(self, fleet: Fleet, proxy: Weights) -> ProxySets:
        """Calibrate the sets of both models, and return those of the proxy."""
        taught = fleet.predict(proxy, fleet.architecture(self.proxy)).logits
        own = fleet.predict(fleet.state.model).logits
        right, totals = fleet.count_correct(own)[:, :, 0].sum(1), fleet.totals()[:, :, 0].sum(1)
        accuracy = right / totals.clamp(min=1)
        # FedType: the more of its training nodes the private model gets wrong anew, the smaller are the proxy's sets.
        fallen = (fleet.state.accuracy - accuracy).clamp(min=0)
        fleet.state.accuracy = accuracy
        penalty = self.proxy_penalty + max(0.0, 1 - self.proxy_penalty) * fallen
        draws = fleet.random.uniform(fleet.graph.nodes)
        nodes = fleet.labels.judged if self.calibrate == "validation" else fleet.labels.masks[:, 0]
        fitted = partial(
            calibrate, classes=fleet.labels.classes, nodes=nodes, draws=draws, error=self.error, free=self.free_ranks
        )
        of_proxy = fitted(taught, penalty=penalty)
        of_private = fitted(own, penalty=torch.full_like(penalty, self.private_penalty))
        inside, before = prediction_sets(taught, draws, of_proxy), prediction_sets(own, draws, of_private)
        agreement = mean_over(transfer_weights(inside, before), fleet.graph.real)
        return ProxySets(taught, inside, draws, of_private, agreement)

    def private_loss(self, fleet: Fleet, weights: Weights, sets: ProxySets | None) -> Tensor:
        """Labels, and what the proxy is sure of."""
        if sets is None:
            return fleet.label_loss(weights)
        inside, real = fleet.at_nodes(sets.inside), fleet.graph.real
        if self.backward == "certain":
            logits = fleet.forward(weights).logits
            certain = real & (inside.sum(2) == 1)
            taught = divergence(fleet.at_nodes(sets.logits), logits, certain)
        else:
            output, evaluated = fleet.forward_and_predict(weights)
            logits = output.logits
            own = prediction_sets(evaluated.logits, fleet.at_nodes(sets.draws), sets.private)
            taught = mean_over(transfer_weights(inside, own) * ranking_loss(logits, inside), real)
        return fleet.cross_entropy(logits) + self.w_back * taught

    def lesson(self, fleet: Fleet) -> Lesson:
        """Returns what the private model, as it is now, teaches."""
        weights = fleet.state.model
        costs = class_costs(fleet.model, weights, self.kappa) if self.w_wd else None
        places = easiest_first(fleet, fleet.state.guide, self.distance)
        return Lesson(fleet.predict(weights).logits, fleet.size, places, costs)

    def epochs(self, fleet: Fleet, turns: Iterator[int]) -> Iterator[Tensor]:
        """Yields the epoch of every turn, counted from 0 over the whole training."""
        before = (fleet.round - 1) * fleet.training.epochs
        return (before + turn // fleet.training.batches for turn in turns)

    def proxy_loss(
        self,
        lesson: Lesson,
        temperature: Tree,
        epochs: Iterator[Tensor],
        rounds: Tensor,
        weights: Weights,
        fleet: Fleet,
    ) -> Tensor:
        """Labels, predictions of the easiest nodes, and transport between classes; the temperature takes a step."""
        epoch = next(epochs)
        logits = fleet.forward(weights, fleet.architecture(self.proxy)).logits
        teacher, loss = fleet.at_nodes(lesson.logits), fleet.cross_entropy(logits)
        if self.w_kl:
            share = share_taught(epoch, self.start_share, self.curriculum)
            nodes = easiest(fleet.at_nodes(lesson.places), share, lesson.sizes) & fleet.graph.real
            parameter = temperature.parameter.detach().requires_grad_()
            predictions = softened_divergence(teacher, logits, nodes, self.tau(parameter))
            (slope,) = torch.autograd.grad(predictions.sum(), parameter, retain_graph=True)
            force = ascent(epoch, rounds * fleet.training.epochs)
            temperature.update(self.raised(temperature, force * slope))
            loss = loss + self.w_kl * predictions
        if lesson.costs is not None:
            between = log_softmax(teacher), log_softmax(logits)
            value = transport_value(*between, lesson.costs, self.eta, self.iterations)
            loss = loss + self.w_wd * mean_over(value, fleet.graph.real)
        return loss

    def tau(self, parameter: Tensor) -> Tensor:
        """Returns the temperature between its bounds."""
        return self.tau_min + (self.tau_max - self.tau_min) * parameter.sigmoid()

    def raised(self, temperature: Tree, slope: Tensor) -> Tree:
        """Returns the temperature after a step of SGD with momentum up the slope of the divergence: the adversary of
        the proxy, which goes down. Down the slope it would only ever make the task easier."""
        gradient = self.tau_decay * temperature.parameter - slope
        velocity = self.tau_momentum * temperature.velocity + gradient
        return Tree(parameter=temperature.parameter - self.tau_rate * velocity, velocity=velocity)


def ascent(epoch: Tensor, epochs: Tensor) -> Tensor:
    """mu: how strongly the temperature resists, from 0 in the first epoch to 1 at the end."""
    return (1 - torch.cos(math.pi * (epoch / epochs).clamp(max=1))) / 2


def softened_divergence(teacher: Tensor, student: Tensor, nodes: Tensor, temperature: Tensor) -> Tensor:
    """Returns KL(teacher || student) times the square of a client's temperature, [clients], through which gradients
    pass; a sum over classes and a mean over nodes."""
    target, predicted = (log_softmax(logits / temperature.view(-1, 1, 1)) for logits in (teacher, student))
    return temperature.square() * mean_over((target.exp() * (target - predicted)).sum(2), nodes)
