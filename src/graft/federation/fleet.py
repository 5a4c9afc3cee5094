"""A fleet: one or more clients, seen by a step as if they were one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from graft.data.graphs import Graph
from graft.federation.labels import FleetData, Labels, TrainNodes
from graft.federation.metric_names import ACCURACY
from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import gather_nodes
from graft.models.architecture import LayeredModel, Model, Output
from graft.models.heterogeneous import Heterogeneous
from graft.tensors.randomness import GOLDEN, SeedBuffer, Stream, index_tensor, scramble, seed_for, streams
from graft.tensors.trees import Owners, Tree, Weights, broadcast_tree, map_tree, stack, unsqueeze_to
from graft.training.loop import Part, Turn, fit
from graft.training.losses import focal, log_softmax
from graft.training.optimizers import Training

Nodes = Literal["train", "all"]
Loss = Callable[[Tree, "Fleet"], Tensor]  # of weights, and of the batch to look at; one number a client


@dataclass(frozen=True)
class Call:
    """What belongs to one call of a step: its round, its random numbers and the losses it leaves behind."""

    number: int | Tensor  # of the round; a tensor that replays update, where the step is captured
    random: Stream
    losses: dict[str, Tensor] = field(default_factory=dict)  # last losses of every `fit`, by the name of its model


@dataclass(frozen=True, eq=False)
class Fleet:
    """A view of some clients during one call of a step; tensors have a leading client axis.

    Nothing of it can be replaced in a step but what its state holds. Losses are given such a view, too: that of the
    batch which is trained on.
    """

    clients: list[int]  # their numbers in the federation
    data: FleetData
    model: Model
    training: Training
    seed: int
    architecture: Callable[[str], Model]  # another architecture, for the same data and of the same width and dropout
    federation: int  # how many clients there are in all, these and others
    features: int
    classes: int
    state: Tree  # what these clients keep between steps
    call: Call
    scoring: FleetData  # what models are scored on: other data than `data` where that is perturbed
    cut_batches: Callable[[], list[FleetData]] = list  # makes the batches, if there are any
    caches: list[dict[Any, Any]] = field(default_factory=list)  # a client's, made of its data and state; never saved
    metrics: tuple[str, ...] = ACCURACY  # that models are measured by
    positive: int | None = None  # the class that some of them are of
    whole: FleetData | None = None  # in a view of other data, what the clients train on
    own_start: bool = False  # whether the models that clients keep start from weights of each client's own

    @property
    def trained_on(self) -> FleetData:
        """Returns the data that the clients train on, also where this is a view of a batch or of what is scored."""
        return self.whole or self.data

    @property
    def graph(self) -> FleetGraph:
        return self.data.graph

    @property
    def labels(self) -> Labels:
        return self.data.labels

    @property
    def device(self) -> torch.device:
        return self.labels.classes.device

    @property
    def random(self) -> Stream:
        """Returns the random numbers of this call."""
        return self.call.random

    @property
    def round(self) -> Tensor:
        """Returns the number of the round, on the device."""
        number = self.call.number
        return number if isinstance(number, Tensor) else torch.full((), number, device=self.device)

    @property
    def owners(self) -> Owners:
        """Returns which of the clients have a row in a leaf of their state."""
        return Owners(len(self.clients), self.model.kinds)

    @cached_property
    def client_ids(self) -> Tensor:
        """Returns the clients' numbers in the federation, int64 [clients]."""
        return index_tensor(tuple(self.clients), self.device)

    @property
    def size(self) -> Tensor:
        """Returns the number of nodes of each client."""
        return self.graph.sizes

    @property
    def weight(self) -> Tensor:
        """Returns each client's vote in an average, as the experiment sets it; 0 without anything to train on."""
        votes: dict[str, Callable[[], Tensor]] = {
            "nodes": lambda: self.size,
            "train": lambda: self.labels.masks[:, 0].sum(1),
            "uniform": lambda: torch.ones_like(self.size),
        }
        return self.labelled_only(votes[self.training.weight_by]())

    def labelled_only(self, values: Tensor) -> Tensor:
        """Returns one number a client, 0 for a client without a training node: it has learnt nothing from labels."""
        return values * (self.labels.class_counts.sum(1) > 0) if self.data.may_lack_labels else values

    def trained_by_labels(self, trained: Weights, before: Weights) -> Weights:
        """Returns trained weights, and those of before for a client without a training node."""
        if not self.data.may_lack_labels:
            return trained
        labelled = self.labels.class_counts.sum(1) > 0
        return map_tree(lambda new, old: torch.where(unsqueeze_to(labelled, new), new, old), trained, before)

    def on(self, data: FleetData) -> Fleet:
        """Returns the same clients with other data: a batch of their nodes, or what they are scored on."""
        return self if data is self.data else replace(self, data=data, whole=self.trained_on)

    def with_random(self, random: Stream) -> Fleet:
        """Returns the same view with other random numbers; losses are still those of this call."""
        return replace(self, call=replace(self.call, random=random))

    def for_call(
        self, round: int, step: str, turn: int = 0, *, state: Tree | None = None, seeds: SeedBuffer | None = None
    ) -> Fleet:
        """Returns the view that a step is called with; its random draws belong to (run, round, client, step, turn)."""
        seed = seeds.reserve(self.seed, step, turn) if seeds else seed_for(self.seed, round, step, turn)
        call = Call(seeds.round if seeds else round, streams(self.device, seed, self.clients))
        return replace(self, call=call, state=self.state if state is None else state)

    def initial(self, model: Model | None = None) -> Tree:
        """Returns initial weights: every client, and the server, starts one architecture at the same point.

        Where the experiment has clients start apart, that is so of a `model` that is named, which the server knows; of
        its own architecture each client starts at a point of its own.
        """
        apart = self.own_start and model is None
        model = model or self.model
        if isinstance(model, Heterogeneous):
            owners = {name: self.clients[rows.start : rows.stop] for name, rows in model.kinds.items()}
            return Tree({kind.name: self._initial(kind.model, owners[kind.name], apart=apart) for kind in model.parts})
        return self._initial(model, self.clients, apart=apart)

    def _initial(self, model: Model, clients: list[int], *, apart: bool) -> Tree:
        if not apart:
            return broadcast_tree(initial_weights(model, self.seed), len(clients), self.device)
        starts = stack([initial_weights(model, self.seed, client) for client in clients])
        return map_tree(lambda leaf: leaf.to(self.device), starts)

    def forward(self, weights: Weights, model: Model | None = None, graph: FleetGraph | None = None) -> Output:
        """Returns outputs in training mode, with dropout and gradients; `graph` may be a view of the fleet's own."""
        return (model or self.model)(weights, graph or self.graph, self.random)

    def forward_and_predict(self, weights: Weights, model: Model | None = None) -> tuple[Output, Output]:
        """Returns outputs in training and in evaluation mode; what does not depend on dropout is computed once."""
        return (model or self.model).forward_train_eval(weights, self.graph, self.random)

    @torch.no_grad()
    def predict(self, weights: Weights, model: Model | None = None, graph: FleetGraph | None = None) -> Output:
        """Returns outputs in evaluation mode, without gradient."""
        return (model or self.model)(weights, graph or self.graph)

    def fit(
        self,
        weights: Weights,
        loss: Loss,
        name: str = "model",
        frozen: frozenset[str] | None = None,
        training: Training | None = None,
    ) -> Tree:
        """Trains one model for the experiment's local epochs; `loss(weights, fleet)` gives one number a client.

        With `least_epochs` each client draws how many of these it takes. `name` tells apart the optimisers of a method
        that trains several models. `frozen` are paths that are not trained: those of this fleet's architecture, unless
        given because its weights are a branch of a larger tree. `training` takes the place of the experiment's, for a
        method to which its optimiser belongs.
        """
        paths = {} if frozen is None else {name: frozen}
        losses: dict[str, Loss] = {name: lambda models, batch: loss(models[name], batch)}
        fitted: Tree = self.fit_in_turn({name: weights}, losses, frozen=paths, training=training)[name]
        return fitted

    def fit_in_turn(
        self,
        models: Mapping[str, Weights],
        losses: Mapping[str, Loss],
        epochs: int | None = None,
        frozen: Mapping[str, frozenset[str]] | None = None,
        training: Training | None = None,
        trainings: Mapping[str, Training] | None = None,
        *,
        simultaneous: bool = False,
    ) -> Tree:
        """Trains several models: in every epoch each takes one step in turn, or all at once, on its own loss of all of
        them.

        Paths that a model must not train are those of this fleet's architecture, unless given under its name.
        `trainings` are those of models whose optimiser is not that of the others.
        """
        optimizers = self.state.setdefault("optimizer", Tree())
        parts = {
            name: Part(
                models[name],
                loss,
                optimizers.get(name),
                (frozen or {}).get(name, self.model.frozen),
                (trainings or {}).get(name),
            )
            for name, loss in losses.items()
        }
        settings = training or self.training
        if epochs is not None:
            settings = replace(settings, epochs=epochs, least_epochs=0)
        turns = self._batches if settings.batches > 1 else self._full_batch
        own_epochs = self._epochs(settings) if settings.uneven else None
        fitted = fit(parts, settings, turns, self.owners, own_epochs, simultaneous=simultaneous)
        self.call.losses.update(fitted.losses)
        if settings.optimizer_state == "persistent":
            optimizers.update(fitted.states)
        return fitted.weights

    def _epochs(self, settings: Training) -> Tensor:
        """Returns how many epochs each client takes in this round, int64 [clients]: the same in all of its steps."""
        seed = scramble(self.round * GOLDEN + seed_for(self.seed, "epochs"))
        drawn = streams(self.device, seed, self.clients).uniform(1).squeeze(1)
        return settings.least_epochs + (drawn * (1 + settings.epochs - settings.least_epochs)).long()

    @property
    def steps(self) -> int | Tensor:
        """Returns how many steps of the experiment's training a client takes in this round: one number for all, or
        int64 [clients] where they differ."""
        settings = self.training
        return self._epochs(settings) * settings.batches if settings.uneven else settings.steps

    def _full_batch(self, epoch: int) -> list[Turn]:  # noqa: ARG002
        return [Turn(self, self.data.without_labels)]

    def _batches(self, epoch: int) -> Iterator[Turn]:
        """Yields a view of every batch; each epoch has an order of its own, the same in every round, since a captured
        step must not change."""
        batches = self.cut_batches()
        for index in np.random.default_rng(seed_for(self.seed, "batches", epoch)).permutation(len(batches)):
            yield Turn(self.on(batches[index]), batches[index].without_labels)

    def at_nodes(self, values: Tensor) -> Tensor:
        """Returns, out of values of all nodes [clients, nodes, ...], those of this view's nodes: in a batch, some."""
        return values if self.data.nodes is None else gather_nodes(values, self.data.nodes)

    def node_mask(self, which: Nodes) -> Tensor:
        """Returns which nodes are meant, [clients, nodes]: those to train on, or all but the padding."""
        return self.labels.masks[:, 0] if which == "train" else self.graph.real

    @property
    def train_nodes(self) -> TrainNodes:
        return self.labels.train_nodes

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Returns the mean loss over each client's training nodes from logits of all nodes; zero without any."""
        return self.train_loss(self.at_train_nodes(logits))

    def label_loss(self, weights: Weights, *, dropout: bool = True) -> Tensor:
        """Returns the cross-entropy of the clients' model, computed at the training nodes alone."""
        return self.train_loss(self.train_output(weights, dropout=dropout).logits)

    def train_output(self, weights: Weights, *, dropout: bool = True) -> Output:
        """Returns the outputs of the clients' model at their training nodes alone, with gradients."""
        return self.model.forward_at(weights, self.data.train_subset, self.random if dropout else None)

    def train_loss(self, logits: Tensor) -> Tensor:
        """Returns the mean loss over each client's training nodes from logits of these, as the experiment sets it."""
        _, classes, shares = self.train_nodes
        log_likelihood = log_softmax(logits).gather(2, classes.unsqueeze(2)).squeeze(2)
        if self.training.loss == "focal":
            log_likelihood = focal(log_likelihood, self.training.focal_gamma)
        if self.training.class_weights == "balanced":
            shares = self.labels.balanced_shares
        return -(log_likelihood * shares).sum(1)

    def at_train_nodes(self, values: Tensor) -> Tensor:
        """Returns, out of values of all nodes [clients, nodes, ...], those of the training nodes."""
        return gather_nodes(values, self.train_nodes.nodes)

    def correct(self, weights: Weights) -> Tensor:
        """Returns how many nodes a model classifies correctly: [clients, pooled, 3] for train, validation and test."""
        return self.count_correct(self.predict(weights).logits)

    def count_correct(self, logits: Tensor) -> Tensor:
        """Returns how many nodes logits classify correctly, as `correct` does."""
        right = logits.max(2).indices == self.labels.classes  # on a CPU faster than `argmax`
        return self._count(self.labels.masks & right.unsqueeze(1))

    def count_validated(self, logits: Tensor) -> Tensor:
        """Returns how many validation nodes each client classifies correctly, [clients]: what a step may judge by.

        Where methods judge on training nodes, it is those that were held out of training.
        """
        right = logits.max(2).indices == self.labels.classes
        return (self.labels.judged & right).sum(1)

    def best_validated(self, logits: Sequence[Tensor]) -> Tensor:
        """Returns, for each client, those of several logits that are right most often on its validation nodes, of equal
        ones the first."""
        return pick_by_client(self.best_place(logits), logits)

    def best_place(self, logits: Sequence[Tensor]) -> Tensor:
        """Returns which of several logits are right most often on each client's validation nodes, of equal ones the
        first, int64 [clients]."""
        last = len(logits) - 1
        ranks = [self.count_validated(given) * len(logits) + last - place for place, given in enumerate(logits)]
        return torch.stack(ranks).max(0).indices

    def totals(self) -> Tensor:
        """Returns the number of nodes in the three masks: [clients, pooled, 3]."""
        return self._count(self.labels.masks)

    def node_counts(self) -> Tensor:
        """Returns the number of all nodes: [clients, pooled]."""
        return self._count(self.graph.real.unsqueeze(1)).squeeze(2)

    def _count(self, masks: Tensor) -> Tensor:
        if self.labels.pooled_clients == 1:
            return masks.sum(2).unsqueeze(1)
        counts = masks.new_zeros(*masks.shape[:2], self.labels.pooled_clients, dtype=torch.int64)
        counts.scatter_add_(2, self.labels.membership.unsqueeze(1).expand_as(masks), masks.long())
        return counts.transpose(1, 2)

    def select(self, chosen: list[int]) -> Fleet:
        """Returns some of the clients, by position, as a fleet of their own without state."""
        data = self.data.select(chosen)
        return replace(
            self,
            clients=[self.clients[position] for position in chosen],
            data=data,
            model=self.model.select(chosen),
            state=Tree(),
            scoring=data if self.scoring is self.data else self.scoring.select(chosen),
            cut_batches=cache(lambda: [batch.select(chosen) for batch in self.cut_batches()]),
            caches=[self.caches[position] for position in chosen],
        )


def pick_by_client(chosen: Tensor, candidates: Sequence[Tensor]) -> Tensor:
    """Returns each client's part of one of several tensors [clients, nodes, ...]: of that which `chosen` says."""
    stacked = torch.stack(list(candidates))
    return stacked.gather(0, chosen.view(1, -1, 1, 1).expand(1, *stacked.shape[1:])).squeeze(0)


def initial_weights(model: Model, seed: int, client: int | None = None) -> Tree:
    """Returns the weights that an architecture starts from in a run: everywhere, or at one client."""
    whose = () if client is None else (client,)
    return model.start(torch.Generator().manual_seed(seed_for(seed, "initial", repr(model), *whose)))


def group_clients(
    models: Sequence[Model], graphs: Sequence[Graph], stackable: Collection[Model] = ()
) -> list[list[int]]:
    """Returns which clients train together: those of one architecture, or of `stackable` ones of one width, with sizes
    within a factor of two, so that padding never more than doubles the work; sorted by architecture."""
    fleets: dict[Any, list[list[int]]] = {}
    for client in sorted(range(len(graphs)), key=lambda client: (-graphs[client].nodes, client)):
        model = models[client]
        kind = (model.width, model.classes) if model in stackable and isinstance(model, LayeredModel) else model
        dense = isinstance(graphs[client].x, np.ndarray)
        alike = fleets.setdefault((kind, dense), [])
        if model.shares_fleet and alike and 2 * graphs[client].nodes >= graphs[alike[-1][0]].nodes:
            alike[-1].append(client)
        else:
            alike.append([client])
    rank = {model: index for index, model in enumerate(dict.fromkeys(models))}
    in_order = [
        sorted(fleet, key=lambda client: (rank[models[client]], client)) for alike in fleets.values() for fleet in alike
    ]
    return in_order
