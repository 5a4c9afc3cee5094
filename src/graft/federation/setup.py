"""What every engine is given, and how it says that a step failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from graft.data.graphs import Graph
from graft.errors import RunError
from graft.federation.fleet import Fleet, build_fleet
from graft.federation.method import Method
from graft.federation.topologies import Topology
from graft.models import Model, build_model
from graft.models.architecture import LayeredModel
from graft.models.heterogeneous import architecture_names, make_heterogeneous
from graft.training.loop import Training


@dataclass(frozen=True)
class Setup:
    """A federation ready to run: a graph and an architecture a client, and the method they follow."""

    method: Method
    name: str  # of the method, for messages to people
    graphs: list[Graph]
    models: list[Model]
    training: Training = field(default_factory=Training)
    width: int = 64
    dropout: float = 0.5
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    participation: float = 1.0
    clean: list[Graph] | None = None  # the graphs that models are scored on, where they train on perturbed ones
    record: bool = True  # on a GPU, replay whole steps as CUDA graphs
    topology: Topology | None = None  # along which peers exchange, instead of what their method would choose
    memory: int | None = None  # bytes that an engine may use; None: a share of what is free
    federation: int = 0  # how many clients there are in all, where not all of them are here
    groups: np.ndarray | None = None  # whose node each one was, where all data is pooled into one client

    @property
    def clients(self) -> list[int]:
        return list(range(len(self.graphs)))

    @cached_property
    def marks(self) -> dict[Model, str]:
        """Architectures whose clients share fleets, with the names of their branches in what such a fleet keeps.

        A federation of one architecture has none. Where there are several, each has its mark in every fleet, even in
        one of a single client, so that what clients keep looks the same however they are grouped.
        """
        native = [model for model in dict.fromkeys(self.models) if isinstance(model, LayeredModel)]
        return architecture_names(native) if self.method.heterogeneous and len(native) > 1 else {}

    def model_of(self, clients: list[int]) -> Model:
        """The model of some clients as a fleet."""
        models = [self.models[client] for client in clients]
        return make_heterogeneous(models, self.marks) if models[0] in self.marks else models[0]

    def fleet(self, clients: list[int]) -> Fleet:
        """Some clients as a fleet that has not started yet."""
        graphs = [self.graphs[client] for client in clients]
        clean = self.clean and [self.clean[client] for client in clients]
        model, make = self.model_of(clients), self.architecture
        fleet = build_fleet(clients, graphs, model, self.training, self.seed, self.device, make, self.groups, clean)
        fleet.federation = self.federation or len(self.graphs)
        return fleet

    def architecture(self, name: str) -> Model:
        """An architecture for this federation's data, of the experiment's width and dropout."""
        graph = self.graphs[0]
        return build_model(name, graph.features, graph.classes, width=self.width, dropout=self.dropout)


class StepFailed(RunError):
    """Says which client failed, in which step and round, and why."""

    def __init__(self, method: str, clients: list[int], step: str, round: int, reason: object) -> None:
        names = ", ".join(map(str, clients[:8])) + (", ..." if len(clients) > 8 else "")
        who = f"Client {names}" if len(clients) == 1 else f"Clients {names}"
        super().__init__(f"{who} failed in step '{step}' of {method}, round {round}: {reason}")
