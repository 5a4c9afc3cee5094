"""From an experiment to a federation that is ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graft.data.federation import FederationData, build
from graft.data.graphs import Graph
from graft.data.sources import open_data
from graft.engines.amounts import parse_memory
from graft.errors import InputError
from graft.experiments.combinations import build_topology, check_combination
from graft.experiments.experiment import Experiment
from graft.experiments.make_method import name_of
from graft.federation.method import Method
from graft.federation.metric_names import check_positive, parse_metrics
from graft.federation.setup import Setup
from graft.models import Model, assign_models
from graft.options import split_options


def build_federation(experiment: Experiment, dataset: Any = None) -> FederationData:
    """Loads the data and shares it out among the clients."""
    partition, options = split_options(experiment.partition)
    return build(
        open_data(experiment.dataset if dataset is None else dataset, experiment.graphs),
        experiment.clients,
        partition=partition,
        split=experiment.split,
        features=experiment.features,
        scaling=experiment.scaling,
        inductive=experiment.inductive,
        seed=experiment.seed,
        perturbation=experiment.perturbation,
        **options,
    )


def build_setup(experiment: Experiment, method: Method, federation: FederationData, models: Any = None) -> Setup:
    """Returns what an engine needs: a graph and an architecture a client, and the method they follow."""
    check_combination(experiment, method)
    placement = method.place(federation)
    graphs = placement.graphs
    shape = federation.graph.features, federation.graph.classes
    check_batches(experiment.batches, graphs, federation.names)
    metrics = parse_metrics(experiment.metric)
    check_positive(metrics, federation.graph.classes, federation.positive)
    return Setup(
        method=method,
        name=name_of(method),
        graphs=graphs,
        models=build_models(experiment, method, len(graphs), *shape, models),
        training=experiment.training,
        width=experiment.width,
        dropout=experiment.dropout,
        seed=experiment.seed,
        device=experiment.torch_device(),
        participation=experiment.participation if len(graphs) > 1 else 1.0,
        membership=placement.membership,
        scoring=placement.scoring,
        scoring_membership=placement.scoring_membership,
        topology=build_topology(experiment, len(graphs)),
        memory=parse_memory(experiment.memory),
        rounds=experiment.rounds,
        names=federation.names if placement.membership is None else None,
        metrics=metrics,
        positive=federation.positive,
    )


def build_models(
    experiment: Experiment, method: Method, clients: int, features: int, classes: int, models: Any = None
) -> list[Model]:
    """Returns the architecture of every client."""
    assigned = assign_models(
        method.architecture or (experiment.models if models is None else models),
        clients,
        features,
        classes,
        width=experiment.width,
        dropout=experiment.dropout,
        head=experiment.head,
        seed=experiment.seed,
    )
    if method.one_model and len(set(assigned)) > 1:
        names = ", ".join(dict.fromkeys(model.name for model in assigned))
        raise InputError(f"Method '{name_of(method)}' needs one architecture for all clients, not {names}.")
    return list(map(method.model, assigned))


def check_batches(batches: int, graphs: list[Graph], names: Sequence[str] | None) -> None:
    """Refuses batches that would leave a client with an empty one."""
    smallest = min(range(len(graphs)), key=lambda client: graphs[client].nodes)
    nodes = graphs[smallest].nodes
    if batches > nodes:
        client = smallest if names is None else names[smallest]
        raise InputError(f"batches is {batches}, but client {client} has only {nodes} nodes; use at most {nodes}.")
