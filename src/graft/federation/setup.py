"""A federation ready to run: what every engine is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
import torch

from graft.data.graphs import Graph
from graft.data.lazy_graphs import ClientGraphs
from graft.data.splits import hold_out
from graft.federation.average_names import MEAN, Average
from graft.federation.fleet import Call, Fleet
from graft.federation.labels import build_batches, build_data
from graft.federation.method import Method
from graft.federation.metric_names import ACCURACY
from graft.federation.server_optimizer_names import ServerOptimizer
from graft.federation.topologies import Topology
from graft.models import Model, build_model
from graft.models.architecture import LayeredModel
from graft.models.assigned import different_models
from graft.models.heterogeneous import architecture_names, make_heterogeneous
from graft.tensors.randomness import Stream
from graft.tensors.trees import Tree
from graft.training.optimizers import Training


@dataclass(frozen=True)
class Setup:
    """A graph and an architecture a client, and the method they follow."""

    method: Method
    name: str  # of the method, for messages to people
    graphs: Sequence[Graph]
    models: Sequence[Model]
    training: Training = field(default_factory=Training)
    width: int = 64
    dropout: float = 0.5
    own_start: bool = False  # whether the models that clients keep start from weights of each client's own
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    participation: float = 1.0
    average: Average = MEAN  # that servers take over clients
    server_optimizer: ServerOptimizer | None = None  # steps towards their average; None: takes it as it is
    scoring: Sequence[Graph] | None = None  # the graphs that models are scored on, where they train on others
    capture: bool = True  # on a GPU, capture rounds and steps as CUDA graphs
    topology: Topology | None = None  # along which peers exchange, instead of what their method would choose
    memory: int | None = None  # bytes that an engine may use; None: a share of what is free
    numbers: list[int] | None = None  # of the clients in the federation, where not all of them are here
    federation: int = 0  # how many clients there are in all, where not all of them are here
    kinds: tuple[Model, ...] | None = None  # all architectures of the federation, where not all clients are here
    on_demand: bool = False  # clients are read and started when they are asked, and put away when others are
    membership: np.ndarray | None = None  # whose node each one was, where all data is pooled into one client
    scoring_membership: np.ndarray | None = None  # the same of the graph that models are scored on, where it is another
    rounds: int = 100  # how many there will be, for schedules
    names: tuple[str, ...] | None = None  # of the clients, for messages to people; None: their numbers
    metrics: tuple[str, ...] = ACCURACY  # that models are measured by; the first picks the best round
    positive: int | None = None  # the class that some metrics are of; of two classes it is else the second
    minimum: int | None = None  # clients that a round needs when others are absent; None: all, or the run ends

    @property
    def clients(self) -> list[int]:
        """Returns the positions of the clients that are here."""
        return list(range(len(self.graphs)))

    def numbers_of(self, clients: Sequence[int]) -> list[int]:
        """Returns the numbers in the federation of clients at some positions."""
        return list(clients) if self.numbers is None else [self.numbers[client] for client in clients]

    @property
    def features(self) -> int:
        """Returns the number of features of a node."""
        return self.graphs.features if isinstance(self.graphs, ClientGraphs) else self.graphs[0].features

    @property
    def classes(self) -> int:
        return self.graphs.classes if isinstance(self.graphs, ClientGraphs) else self.graphs[0].classes

    def part(self, clients: Sequence[int], graphs: Sequence[Graph] | None = None) -> Setup:
        """Returns the setup of clients at some positions, with their graphs read unless they are given."""
        return replace(
            self,
            graphs=[self.graphs[client] for client in clients] if graphs is None else graphs,
            models=[self.models[client] for client in clients],
            scoring=None if self.scoring is None else [self.scoring[client] for client in clients],
            numbers=self.numbers_of(clients),
            federation=self.federation or len(self.graphs),
            kinds=self.architectures,
        )

    @cached_property
    def architectures(self) -> tuple[Model, ...]:
        """Returns the different architectures of the federation, whoever of it is here."""
        return self.kinds or different_models(self.models)

    def client_name(self, client: int) -> str:
        """Returns what people call a client."""
        return str(client) if self.names is None else self.names[client]

    def client_names(self, clients: Sequence[int]) -> str:
        """Returns what people call some clients, the first eight of them."""
        more = ", ..." if len(clients) > 8 else ""
        return ", ".join(map(self.client_name, clients[:8])) + more

    @cached_property
    def branches(self) -> dict[Model, str]:
        """Returns the architectures whose clients may share a fleet, with the names of their branches in its state.

        A federation of one architecture has none. Where there are several, each has its name in every fleet, even in
        one of a single client, so that what clients keep looks the same however they are grouped.
        """
        native = [model for model in self.architectures if isinstance(model, LayeredModel)]
        return architecture_names(native) if self.method.heterogeneous and len(native) > 1 else {}

    def model_of(self, clients: list[int]) -> Model:
        """Returns the model of some clients as a fleet."""
        models = [self.models[client] for client in clients]
        return make_heterogeneous(models, self.branches) if models[0] in self.branches else models[0]

    def fleet(self, clients: list[int], numbers: list[int] | None = None) -> Fleet:
        """Returns clients at some positions as a fleet that has not started; `numbers` are theirs in the federation."""
        numbers = self.numbers_of(clients) if numbers is None else numbers
        graphs, judged = [self.graphs[client] for client in clients], None
        if self.training.judge_on == "training":
            parts = [hold_out(graph, number, self.seed) for graph, number in zip(graphs, numbers, strict=True)]
            graphs, judged = [graph for graph, _ in parts], [nodes for _, nodes in parts]
        data = build_data(graphs, self.device, self.membership, judged)
        scoring_membership = self.membership if self.scoring_membership is None else self.scoring_membership
        scoring = self.scoring and build_data(
            [self.scoring[client] for client in clients], self.device, scoring_membership
        )
        training, seed, device = self.training, self.seed, self.device
        fleet = Fleet(
            clients=numbers,
            data=data,
            model=self.model_of(clients),
            training=training,
            seed=seed,
            architecture=self.architecture,
            federation=self.federation or len(self.graphs),
            features=self.features,
            classes=self.classes,
            state=Tree(),
            call=Call(0, Stream(torch.empty(0, dtype=torch.int64, device=device))),
            scoring=scoring or data,
            cut_batches=cache(lambda: build_batches(graphs, training.batches, seed, device, judged)),
            caches=[{} for _ in clients],
            metrics=self.metrics,
            positive=self.positive,
            own_start=self.own_start,
        )
        return fleet.for_call(0, "start")

    def architecture(self, name: str) -> Model:
        """Returns an architecture for this federation's data, of the experiment's width and dropout."""
        return build_model(name, self.features, self.classes, width=self.width, dropout=self.dropout)
