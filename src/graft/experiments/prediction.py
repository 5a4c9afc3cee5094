"""Models of a run that can be used: which one, with which weights, and what it predicts for a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graft.data import parse_dataset
from graft.data.client_graphs import Federation
from graft.data.datasets import load
from graft.data.federation import FederationData
from graft.data.graphs import Graph, Ints, make_graph
from graft.data.preparation import Preparation, Source, load_source
from graft.data.sources import open_data
from graft.data.tables import NodeTable
from graft.errors import InputError
from graft.experiments.best_models import GLOBAL, OWN, RoundModels
from graft.experiments.experiment import Experiment
from graft.experiments.export.card import Described
from graft.experiments.export.destination import FORMATS, check_export_folder, check_format
from graft.experiments.export.folder import Export, write_export
from graft.experiments.export.modules import Part, build_predictor
from graft.experiments.predictions import Predictions
from graft.experiments.prepared_data import PreparedData
from graft.experiments.state_checks import check_state
from graft.federation.fleet import Fleet
from graft.federation.method import Held
from graft.federation.setup import Setup
from graft.models import Model
from graft.tensors.trees import Tree, Weights, map_tree, select_clients, strip_architectures

Kind = Literal["own", "global"]
At = Literal["best", "last"]


class ScoredGraph(NamedTuple):
    """A graph that models were scored on, and which of its nodes are one client's."""

    graph: Graph
    nodes: Ints
    ids: NDArray[Any]


@dataclass(frozen=True, eq=False)
class RunModels:
    """The models that a run has made: those of its best round, and those of its last."""

    experiment: Experiment
    setup: Setup  # of a run that is over it need have no graphs
    data: PreparedData
    best: Mapping[str, RoundModels]  # by kind
    last: Callable[[], Mapping[str, RoundModels]]
    federation: Callable[[], FederationData]  # makes the data that the run was trained on
    facts: Mapping[str, Any] = field(default_factory=dict)  # what result.json says of the run
    baselines: Callable[[], Sequence[Mapping[str, Any]]] = list  # of every client, what its model compares with

    def client(self, client: str | int, kind: Kind = "own", at: At = "best") -> ClientModel:
        """Returns the model of a client, by its name or number, of one kind and one round."""
        number = self.data.find(client)
        models = self.best if at == "best" else self.last()
        if kind not in models:
            if kind == GLOBAL and OWN in models:
                raise InputError(f"Method '{self.setup.name}' has no global model.")
            raise InputError("This run has no models to predict with: none of its rounds was evaluated yet.")
        if not self.data.pooled and not models[kind].has(number):
            when = f"round {models[kind].round}, the best one" if at == "best" else "any round"
            raise InputError(
                f"Client {self.data.name(number)} has no model of its own: it did not take part in {when}."
            )
        return ClientModel(self, number, models[kind], kind, at)

    @cached_property
    def scored_graphs(self) -> Callable[[int], ScoredGraph]:
        """Returns a function that gives the graph that a client's models were scored on."""
        federation = self.federation()
        whole = federation.clean or federation
        placement = self.setup.method.place(federation)
        graphs = placement.scoring or placement.graphs
        membership = placement.membership if placement.scoring_membership is None else placement.scoring_membership

        def scored(client: int) -> ScoredGraph:
            graph, trained = (them[0 if self.data.pooled else client] for them in (graphs, placement.graphs))
            if self.setup.method.predicts_from_labels and trained.nodes == graph.nodes:
                graph = replace(graph, y=trained.y, train=trained.train)  # labels may be perturbed in training alone
            nodes = np.arange(graph.nodes)
            if self.data.pooled and membership is not None:
                nodes = np.flatnonzero(membership == client)
            # Of one graph that was shared out, nodes are known by their numbers there.
            own = federation.names is not None
            apart = own or whole.membership is None
            numbers = np.arange(len(nodes)) if apart else np.flatnonzero(whole.membership == client)
            return ScoredGraph(graph, nodes, numbers if graph.ids is None else graph.ids[nodes])

        return scored


@dataclass(frozen=True, eq=False)
class ClientModel:
    """One client's model: the one it would use itself, or the global one that all have in common."""

    run: RunModels
    number: int  # of the client
    models: RoundModels
    kind: Kind
    at: At

    def __repr__(self) -> str:
        return f"ClientModel({self.kind} {self.model} of client {self.name}, round {self.round})"

    @property
    def name(self) -> str:
        """Returns what people call the client."""
        return self.run.data.name(self.number)

    @property
    def round(self) -> int:
        """Returns the round after which the model was as it is."""
        return self.models.round

    @property
    def architecture(self) -> Model:
        return self.run.setup.models[self._position]

    @property
    def model(self) -> str:
        """Returns the name of its architecture."""
        return self.architecture.name

    @property
    def preparation(self) -> Preparation:
        """Returns how data become the features that it takes."""
        return self.run.data.preparations[self.number]

    @property
    def class_names(self) -> tuple[str, ...]:
        names = self.preparation.class_names
        return names or tuple(map(str, range(self.preparation.classes)))

    @property
    def weights(self) -> Tree:
        """Returns a copy of its weights, on the host."""
        fleet, received = self._fleet(self._blank())
        return weights_of_one(self.run.setup.method.personal(fleet) if received is None else received)

    def predict(self, data: Any = None) -> Predictions:
        """Returns predictions for the nodes of a graph that training need not have seen: a PyG `Data`, a `graft.Graph`
        or a path; without one, for the client's own nodes."""
        if data is None:
            graph, nodes, ids = self.run.scored_graphs(self.number)
            known = self.run.setup.method.predicts_from_labels
        else:
            graph, known = self.prepare(data), False
            nodes = np.arange(graph.nodes)
            ids = nodes if graph.ids is None else graph.ids
        logits = self.logits(graph, known=known)[nodes]
        return Predictions(ids, logits.argmax(1).numpy(), logits.softmax(1).numpy(), self.class_names)

    def prepare(self, data: Any) -> Graph:
        """Returns new data as a graph with the features that the model takes."""
        if self.preparation.scaling is None:
            raise InputError(
                f"The features of client {self.name} were scaled before training, and this run does not say how, so "
                "new data cannot be scaled alike."
            )
        return self.preparation.apply(open_source(data, self.preparation))

    @torch.no_grad()
    def logits(self, graph: Graph, *, known: bool = False) -> Tensor:
        """Returns the logits of all nodes of a graph that is prepared, [nodes, classes], on the host; of labels it is
        shown none, or where they are known those of the training nodes."""
        train = graph.train if known else None
        labels = np.full(graph.nodes, -1) if train is None else np.where(train, graph.y, -1)
        shown = replace(graph, y=labels, classes=self.preparation.classes, train=train, validation=None, test=None)
        fleet, received = self._fleet(shown)
        method = self.run.setup.method
        logits = method.logits(fleet) if received is None else method.shared_logits(fleet, received)
        return logits[0, : graph.nodes].float().cpu()

    def module(self) -> nn.Module:
        """Returns a plain PyTorch and PyG module with the weights, in evaluation mode: `forward(x, edge_index,
        edge_weight=None)` gives logits."""
        return build_predictor(list(self._parts().values()))

    def export(self, folder: str | Path, format: str | None = None, *, overwrite: bool = False) -> Path:
        """Writes a folder with which the model can be used without Graft: weights, source and a model card; with a
        format, torchscript or onnx, also a file of that."""
        method, experiment, data = self.run.setup.method, self.run.experiment, self.run.data
        check_format(format)
        check_export_folder(Path(folder), overwrite)
        parts = self._parts()
        about = Described(
            " and ".join(part.architecture.name for part in parts.values()),
            method,
            self.run.setup.name,
            self.name,
            self.number,
            data.names,
            self.kind,
            self.at,
            self.round,
            self.preparation,
            self.class_names,
            self.run.facts,
            self.models.record,
            self._baseline(),
            None if format is None else FORMATS[format],
        )
        settings = {name: getattr(experiment, name) for name in ("width", "dropout", "head")}
        settings |= {"features": self.preparation.features, "classes": self.preparation.classes}
        return write_export(Export(about, parts, settings), Path(folder), format, overwrite=overwrite)

    def _parts(self) -> dict[str, Part]:
        """Returns the models that predict, by name: one, or two that do by the mean of their probabilities."""
        fleet, received = self._fleet(self._blank())
        method, names = self.run.setup.method, self.run.experiment.model_names
        own = names[self._position % len(names)]
        of_server = {"own": Held(received)} if received is not None and method.model_alone() else {}
        held = method.predictors(fleet) if received is None else of_server
        if not held:
            raise InputError(
                f"Method '{self.run.setup.name}' predicts with more than models and a graph, so no module of its own "
                "would give the same: use predict."
            )
        return {
            name: Part(
                self.architecture if architecture is None else fleet.architecture(architecture),
                weights_of_one(weights),
                own if architecture is None else architecture,
            )
            for name, (weights, architecture) in held.items()
        }

    def _blank(self) -> Graph:
        """Returns a graph of one node with the client's features and classes."""
        return make_graph("blank", np.zeros((1, self.preparation.features)), [[], []], [-1], self.preparation.classes)

    def _baseline(self) -> Mapping[str, Any]:
        rows = self.run.baselines()
        return rows[self.number] if self.number < len(rows) else {}

    @property
    def _position(self) -> int:
        """Returns the number of the client among those that were trained."""
        return 0 if self.run.data.pooled else self.number

    def _fleet(self, graph: Graph) -> tuple[Fleet, Tree | None]:
        """Returns the client as a fleet of one on a graph, with the state that it predicts with, and the weights of the
        server where these are meant."""
        whole, client = self.run.setup, self._position
        setup = replace(
            whole,
            graphs=[graph],
            models=[whole.model_of([client])],
            federation=len(whole.models),
            scoring=None,
            membership=None,
            scoring_membership=None,
            names=None,
        )
        fleet = setup.fleet([0], numbers=[client])
        state, received = (with_client_axis(tree, setup.device) for tree in self.models.of_client(client))
        assert state is not None
        try:
            check_state(state, self._expected(fleet, state), f"client {self.name}")
            if received is not None:
                check_state(received, fleet.initial(), f"the {self.kind} model")
        except ValueError as error:
            raise InputError(f"The models of this run do not fit its method and architectures: {error}.") from None
        return fleet.for_call(0, "predict", state=state), received

    def _expected(self, fleet: Fleet, state: Tree) -> Tree:
        """Returns a state with the names and shapes that this one should have."""
        if not state.keys() - {"model"}:
            return Tree(model=fleet.initial()) if state else Tree()
        fresh = fleet.for_call(0, "start", state=Tree())
        self.run.setup.method.start_client(fresh)
        return Tree({name: branch for name, branch in fresh.state.items() if name in state})


def weights_of_one(stacked: Weights) -> Tree:
    """Returns a copy of the first client's weights, on the host."""
    return strip_architectures(map_tree(lambda leaf: leaf.detach().cpu().clone(), select_clients(stacked, 0)))


def with_client_axis(tree: Tree | None, device: torch.device) -> Tree | None:
    """Returns one client's tree as that of a fleet of one, on a device."""
    return None if tree is None else map_tree(lambda leaf: leaf.to(device).clone().unsqueeze(0), tree)


def open_source(data: Any, preparation: Preparation) -> Source:
    """Returns new data as somebody gives them: a path, a PyG `Data`, a graph or the name of a dataset."""
    if isinstance(data, Graph | NodeTable):
        return data
    if isinstance(data, str | Path):
        path = Path(data)
        if path.is_dir():
            return load_source(path, preparation.schema)
        if not path.exists():
            parse_dataset(str(data))
        opened = open_data(data)
        if isinstance(opened, Federation):
            raise InputError(f"{data} has graphs of several clients, {', '.join(opened.labels)}: give one of them.")
        if not isinstance(opened, Graph | NodeTable):
            raise InputError(f"{data} has graphs of several clients: give the graph of one of them.")
        return opened
    return load(data)
