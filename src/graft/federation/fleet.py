"""A fleet: one or more clients, seen by a step as if they were one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graft.data.graphs import Graph, cut
from graft.data.partitions import partition
from graft.graphs.fleet_graph import FleetGraph, Rows, build_fleet_graph, gather_nodes
from graft.models.architecture import LayeredModel
from graft.models.heterogeneous import Heterogeneous
from graft.tensors.randomness import SeedBuffer, Stream, index_tensor, seed_for, streams
from graft.tensors.sparse import padded_size
from graft.tensors.trees import Owners, Tree, Weights, broadcast_tree
from graft.training.loop import Part, Training, fit, full_batch
from graft.training.losses import log_softmax

if TYPE_CHECKING:
    from graft.models.architecture import Model, Output


@dataclass
class Labels:
    """What is known of the nodes, and for what each may be used."""

    classes: Tensor  # int64 [clients, nodes]; 0 where there is no label, and then in no mask
    masks: Tensor  # bool [clients, 3, nodes]: train, validation, test
    groups: Tensor  # int64 [clients, nodes]: whose node it was before graphs were pooled, else 0
    group_count: int
    source: tuple[Labels, FleetGraph, list[int]] | None = None  # of what clients these were selected
    _asked: Rows | None = field(default=None, init=False)

    def select(self, chosen: list[int], graph: FleetGraph) -> Labels:
        """The labels of some clients; `graph` is that of all."""
        rows = self.classes[chosen], self.masks[chosen], self.groups[chosen]
        return Labels(*rows, self.group_count, (self, graph, chosen))

    def asked(self, graph: FleetGraph) -> Rows:
        """The training nodes in the graph of these clients; what was prepared for more of them is cut."""
        if self._asked is None:
            nodes, _, shares = self.train_nodes
            source = None
            if self.source is not None:
                labels, whole, chosen = self.source
                source = labels.asked(whole), chosen
            self._asked = Rows(graph, nodes, shares > 0, source)
        return self._asked

    @cached_property
    def train_nodes(self) -> tuple[Tensor, Tensor, Tensor]:
        """The training nodes of each client [clients, most], their labels, and their shares in a mean over them.

        A client with fewer than the most repeats one of its nodes with share zero.
        """
        if self.source is not None:  # with as many as there, so that one can be cut like the other
            labels, _, chosen = self.source
            nodes, classes, shares = labels.train_nodes
            return nodes[chosen], classes[chosen], shares[chosen]
        train = self.masks[:, 0]
        counts = train.sum(1, keepdim=True)
        most = padded_size(max(1, int(counts.max())), train.device)
        nodes = train.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        real = torch.arange(nodes.shape[1], device=nodes.device) < counts
        nodes = torch.where(real, nodes, nodes[:, :1])
        return nodes, self.classes.gather(1, nodes), real / counts.clamp(min=1)


@dataclass
class Batch:
    """A part of every client's nodes, and the edges inside it."""

    graph: FleetGraph
    labels: Labels
    nodes: Tensor  # int64 [clients, nodes of the batch]: which nodes they are; a spare one repeats another
    doubtful: bool  # whether there may be a client without a training node in it

    def select(self, chosen: list[int]) -> Batch:
        graph, labels = select_data(self.graph, self.labels, chosen)
        return Batch(graph, labels, self.nodes[chosen], self.doubtful)


class Fleet:
    """What a step may see and do; tensors have a leading client axis."""

    def __init__(
        self,
        clients: list[int],
        graph: FleetGraph,
        labels: Labels,
        model: Model,
        training: Training,
        seed: int,
        make: Callable[[str], Model],
    ) -> None:
        self.clients = clients  # their numbers in the federation
        self.federation = len(clients)  # how many clients there are in all, these and others
        self.graph = graph
        self.labels = labels
        self.model = model
        self.training = training
        self.seed = seed
        self._make = make
        self.clean: tuple[FleetGraph, Labels] | None = None  # what to score on, if these data are perturbed
        self.cut_batches: Callable[[], list[Batch]] = list  # how to make the batches, if there are any
        self._batch: Batch | None = None  # the one that is being trained on
        self.state = Tree()  # what these clients keep between steps
        self.derived: dict[Any, Any] = {}  # what steps made of data and state; never saved, so it can be made again
        self.losses: dict[str, Tensor] = {}  # last loss of every `fit` of the current step
        self.random: Stream
        self.looked_at_round = False
        self.begin(0, "start")

    @property
    def device(self) -> torch.device:
        return self.labels.classes.device

    @property
    def owners(self) -> Owners:
        """Which of the clients have a row in a leaf of their state."""
        return Owners(len(self.clients), self.model.kinds)

    @cached_property
    def numbers(self) -> Tensor:
        """The clients' numbers in the federation, to compare with those of others."""
        return index_tensor(tuple(self.clients), self.device)

    @property
    def size(self) -> Tensor:
        """Nodes of each client."""
        return self.graph.sizes

    @property
    def weight(self) -> Tensor:
        """Each client's vote in an average, as the experiment sets it."""
        votes: dict[str, Callable[[], Tensor]] = {
            "nodes": lambda: self.size,
            "train": lambda: self.labels.masks[:, 0].sum(1),
            "uniform": lambda: torch.ones_like(self.size),
        }
        return votes[self.training.weight_by]()

    @property
    def scored(self) -> Fleet:
        """The same clients as they are scored: on their data as they were before a perturbation."""
        if self.clean is None:
            return self
        fleet = copy(self)
        fleet.graph, fleet.labels = self.clean
        return fleet

    def begin(self, round: int, step: str, turn: int = 0, slots: SeedBuffer | None = None) -> None:
        """Start a step: from here on every random draw belongs to (run, round, client, step, turn)."""
        self._round = round
        self.looked_at_round = False
        seed = slots.take(self.seed, step, turn) if slots else seed_for(self.seed, round, step, turn)
        self.random = streams(self.device, seed, self.clients)
        self.losses = {}

    @property
    def round(self) -> int:
        """The number of the round; a step that asks for it is not recorded for replay on a GPU."""
        self.looked_at_round = True
        return self._round

    def labelled_losses(self, step: str) -> list[tuple[str, Tensor]]:
        """The last losses of this step under the names that people will read."""
        return [(step if name == "model" else f"{step}/{name}", loss) for name, loss in self.losses.items()]

    def initial(self, model: Model | None = None) -> Tree:
        """Initial weights: every client, and the server, starts one architecture at the same point."""
        model = model or self.model
        if isinstance(model, Heterogeneous):
            return Tree({kind.name: self._initial(kind.model, kind.clients) for kind in model.parts})
        return self._initial(model, len(self.clients))

    def _initial(self, model: Model, clients: int) -> Tree:
        return broadcast_tree(initial(model, self.seed), clients, self.device)  # type: ignore[no-any-return]

    def forward(self, weights: Weights, model: Model | None = None, graph: FleetGraph | None = None) -> Output:
        """Predictions in training mode, dropout on and gradients kept; `graph` may be a view of the fleet's own."""
        return (model or self.model)(weights, graph or self.graph, self.random)

    def forward_and_predict(self, weights: Weights, model: Model | None = None) -> tuple[Output, Output]:
        """Both at once: what does not depend on dropout is worked out once."""
        return (model or self.model).forward_train_eval(weights, self.graph, self.random)

    @torch.no_grad()
    def predict(self, weights: Weights, model: Model | None = None, graph: FleetGraph | None = None) -> Output:
        """Predictions in evaluation mode, without gradient."""
        return (model or self.model)(weights, graph or self.graph)

    def fit(
        self,
        weights: Weights,
        loss: Callable[[Tree], Tensor],
        name: str = "model",
        frozen: frozenset[str] | None = None,
        training: Training | None = None,
    ) -> Tree:
        """Train one model for the experiment's local epochs; `loss` gives one number a client.

        `name` tells apart the optimisers of a method that trains several models. `frozen` are paths that are not
        trained: those of this fleet's architecture, unless given because its weights are a branch of a larger tree.
        `training` takes the place of the experiment's, for a method to which its optimiser belongs.
        """
        paths = {} if frozen is None else {name: frozen}
        losses = {name: lambda parts: loss(parts[name])}
        fitted = self.fit_in_turn({name: weights}, losses, frozen=paths, training=training)
        return fitted[name]  # type: ignore[no-any-return]

    def fit_in_turn(
        self,
        models: Mapping[str, Weights],
        losses: Mapping[str, Callable[[Tree], Tensor]],
        epochs: int | None = None,
        frozen: Mapping[str, frozenset[str]] | None = None,
        training: Training | None = None,
    ) -> Tree:
        """Train several models: in every epoch each takes one step in turn, on its own loss of all of them.

        Paths that a model must not train are those of this fleet's architecture, unless given under its name.
        """
        optimizers = self.state.setdefault("optimizer", Tree())
        parts = {
            name: Part(models[name], loss, optimizers.get(name), (frozen or {}).get(name, self.model.frozen))
            for name, loss in losses.items()
        }
        settings = training or self.training
        if epochs is not None:
            settings = replace(settings, epochs=epochs)
        whole = self.graph, self.labels
        try:
            turns = self._turns if settings.batches > 1 else full_batch
            fitted, states, last = fit(parts, settings, turns, self.owners)
        finally:
            self.graph, self.labels = whole
            self._batch = None
        self.losses.update(last)
        if settings.optimizer_state == "persistent":
            optimizers.update(states)
        return fitted

    @cached_property
    def batches(self) -> list[Batch]:
        """The parts that training goes through in turn, the same in every round."""
        return self.cut_batches()

    def _turns(self, epoch: int) -> Iterator[bool]:
        """Be each batch in turn: whatever looks at the fleet's graph and labels then sees those of the batch."""
        # Every epoch of a round has an order of its own, and every round has those: a recorded step must not change.
        for place in np.random.default_rng(seed_for(self.seed, "batches", epoch)).permutation(len(self.batches)):
            batch = self._batch = self.batches[place]
            self.graph, self.labels = batch.graph, batch.labels
            yield batch.doubtful

    def at_hand(self, values: Tensor) -> Tensor:
        """Of values of all nodes, [clients, nodes, ...], those of the nodes that a loss is asked about right now."""
        return values if self._batch is None else gather_nodes(values, self._batch.nodes)

    def architecture(self, name: str) -> Model:
        """Another architecture, for the data and with the width and dropout of this experiment."""
        return self._make(name)

    @property
    def train_nodes(self) -> tuple[Tensor, Tensor, Tensor]:
        """The training nodes of each client [clients, most], their labels, and their shares in a mean over them."""
        return self.labels.train_nodes

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Mean loss over each client's training nodes, from logits of all nodes; zero for a client without any."""
        return self.train_loss(self.at_train_nodes(logits))

    def label_loss(self, weights: Weights, *, dropout: bool = True) -> Tensor:
        """The same of a model, which is asked about these nodes alone: it has less to work out."""
        return self.train_loss(self.train_output(weights, dropout=dropout).logits)

    def train_output(self, weights: Weights, *, dropout: bool = True) -> Output:
        """What the clients' model says of their training nodes alone, gradients kept."""
        return self.model.at(weights, self.labels.asked(self.graph), self.random if dropout else None)

    def train_loss(self, logits: Tensor) -> Tensor:
        """Mean loss over each client's training nodes, from logits of these."""
        _, labels, shares = self.train_nodes
        chances = log_softmax(logits).gather(2, labels.unsqueeze(2)).squeeze(2)
        return -(chances * shares).sum(1)

    def at_train_nodes(self, values: Tensor) -> Tensor:
        """Of values of all nodes, [clients, nodes, ...], those of the training nodes."""
        nodes, _, _ = self.train_nodes
        return gather_nodes(values, nodes)

    def correct(self, weights: Weights) -> Tensor:
        """Nodes that a model classifies correctly: [clients, groups, 3] for training, validation and test nodes."""
        return self.count_correct(self.predict(weights).logits)

    def count_correct(self, logits: Tensor) -> Tensor:
        """The same for logits that are there already."""
        right = logits.max(2).indices == self.labels.classes  # on a CPU sooner found than by `argmax`
        return self._count(self.labels.masks & right.unsqueeze(1))

    def count_validated(self, logits: Tensor) -> Tensor:
        """How many validation nodes each client gets right, [clients]: what it may judge models by while it trains."""
        return self.count_correct(logits)[:, :, 1].sum(1)

    def totals(self) -> Tensor:
        """Nodes in the three masks: [clients, groups, 3]."""
        return self._count(self.labels.masks)

    def group_sizes(self) -> Tensor:
        """All nodes: [clients, groups]."""
        return self._count(self.graph.real.unsqueeze(1)).squeeze(2)

    def _count(self, masks: Tensor) -> Tensor:
        if self.labels.group_count == 1:
            return masks.sum(2).unsqueeze(1)
        counts = masks.new_zeros(*masks.shape[:2], self.labels.group_count, dtype=torch.int64)
        counts.scatter_add_(2, self.labels.groups.unsqueeze(1).expand_as(masks), masks.long())
        return counts.transpose(1, 2)

    def select(self, chosen: list[int]) -> Fleet:
        """Some of the clients as a fleet of their own, without state."""
        clients = [self.clients[position] for position in chosen]
        graph, labels = select_data(self.graph, self.labels, chosen)
        fleet = Fleet(clients, graph, labels, self.model.select(chosen), self.training, self.seed, self._make)
        fleet.federation, fleet.derived = self.federation, self.derived
        fleet.cut_batches = lambda: [batch.select(chosen) for batch in self.batches]
        if self.clean is not None:
            fleet.clean = select_data(*self.clean, chosen)
        return fleet


def select_data(graph: FleetGraph, labels: Labels, chosen: list[int]) -> tuple[FleetGraph, Labels]:
    """The graphs and labels of some clients."""
    return graph.select(chosen), labels.select(chosen, graph)


def initial(model: Model, seed: int) -> Tree:
    """The weights an architecture starts from in a run."""
    return model.start(torch.Generator().manual_seed(seed_for(seed, "initial", repr(model))))


def build_fleet(
    clients: list[int],
    graphs: Sequence[Graph],
    model: Model,
    training: Training,
    seed: int,
    device: torch.device,
    make: Callable[[str], Model],
    groups: np.ndarray | None = None,
    clean: Sequence[Graph] | None = None,
) -> Fleet:
    """Lay the graphs of some clients out on a device; `clean` are those they are scored on, if others."""
    graph, labels = build_data(graphs, device, groups)
    fleet = Fleet(clients, graph, labels, model, training, seed, make)
    fleet.clean = None if clean is None else build_data(clean, device, groups)
    if training.batches > 1:
        fleet.cut_batches = partial(cut_batches, graphs, training.batches, seed, device)
    return fleet


def cut_batches(graphs: Sequence[Graph], count: int, seed: int, device: torch.device) -> list[Batch]:
    """Cut each client's nodes into parts of like size with few edges between them, and lose those edges.

    Cluster-GCN (Chiang et al., KDD 2019), with one cluster a step.
    """
    clusters = [partition(graph, count, "metis", seed) for graph in graphs]
    parts = [cut(graph, membership) for graph, membership in zip(graphs, clusters, strict=True)]
    batches = []
    for place in range(count):
        mine = [part[place] for part in parts]
        graph, labels = build_data(mine, device, None)
        nodes = torch.zeros(len(graphs), graph.nodes, dtype=torch.int64)
        for client, membership in enumerate(clusters):
            nodes[client, : mine[client].nodes] = torch.from_numpy(np.flatnonzero(membership == place))
        doubtful = not all(part.train is not None and part.train.any() for part in mine)
        batches.append(Batch(graph, labels, nodes.to(device), doubtful))
    return batches


def build_data(graphs: Sequence[Graph], device: torch.device, groups: np.ndarray | None) -> tuple[FleetGraph, Labels]:
    graph = build_fleet_graph(graphs, device)
    shape = (len(graphs), graph.nodes)
    classes = torch.zeros(shape, dtype=torch.int64)
    masks = torch.zeros(len(graphs), 3, graph.nodes, dtype=torch.bool)
    for client, data in enumerate(graphs):
        classes[client, : data.nodes] = torch.from_numpy(data.y).clamp(min=0)
        for kind, mask in enumerate((data.train, data.validation, data.test)):
            if mask is not None:
                masks[client, kind, : data.nodes] = torch.from_numpy(mask)
    owners = torch.zeros(shape, dtype=torch.int64)
    if groups is not None:
        owners[0, : len(groups)] = torch.from_numpy(groups)
    group_count = 1 if groups is None else int(groups.max()) + 1
    return graph, Labels(classes.to(device), masks.to(device), owners.to(device), group_count)


def group_clients(models: Sequence[Model], graphs: Sequence[Graph], mixable: Collection[Model] = ()) -> list[list[int]]:
    """Which clients train together: same architecture, or mixable ones of one width, in the order of their kinds; and
    sizes within a factor of two, so that spare nodes never more than double the work."""
    fleets: dict[Any, list[list[int]]] = {}
    for client in sorted(range(len(graphs)), key=lambda client: (-graphs[client].nodes, client)):
        model = models[client]
        kind = (model.width, model.classes) if model in mixable and isinstance(model, LayeredModel) else model
        dense = isinstance(graphs[client].x, np.ndarray)
        mine = fleets.setdefault((kind, dense), [])
        joinable = model.stackable and mine and 2 * graphs[client].nodes >= graphs[mine[-1][0]].nodes
        if joinable:
            mine[-1].append(client)
        else:
            mine.append([client])
    places = {model: place for place, model in enumerate(dict.fromkeys(models))}
    in_order = partial(sorted, key=lambda client: (places[models[client]], client))
    return [in_order(fleet) for group in fleets.values() for fleet in group]
