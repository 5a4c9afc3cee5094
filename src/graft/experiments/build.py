"""From an experiment to a federation that is ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from graft.data.federation import FederationData, build
from graft.data.generated import Generated, GeneratedGraphs
from graft.data.graphs import Graph
from graft.data.lazy_federation import lazy_federation
from graft.data.lazy_graphs import ClientGraphs
from graft.data.shards import ShardedGraphs
from graft.data.sources import open_data
from graft.engines.amounts import parse_memory
from graft.errors import InputError
from graft.experiments.combinations import build_topology, check_combination
from graft.experiments.experiment import PREPARED, Experiment
from graft.experiments.make_method import name_of
from graft.experiments.own_data import with_written
from graft.federation.average_names import parse_average
from graft.federation.method import Method
from graft.federation.metric_names import check_positive, parse_metrics
from graft.federation.server_optimizer_names import server_optimizer_of
from graft.federation.setup import Setup
from graft.models import NATIVE, assign_models
from graft.models.assigned import AssignedModels, different_models
from graft.models.own import OwnModel
from graft.options import split_options


def build_federation(experiment: Experiment, dataset: Any = None) -> FederationData:
    """Loads the data and shares it out among the clients."""
    data = open_data(experiment.dataset, experiment.graphs) if dataset is None else open_data(dataset)
    if isinstance(data, Generated):
        check_as_they_are(experiment)
        data = GeneratedGraphs(data, experiment.clients, experiment.split, experiment.seed)
    if isinstance(data, ShardedGraphs):
        with_written(asdict(experiment), data.manifest.settings, PREPARED, data.store.url)
        return data.federation()
    if isinstance(data, ClientGraphs):
        return lazy_federation(data, seed=experiment.seed)
    partition, options = split_options(experiment.partition)
    return build(
        data,
        experiment.clients,
        partition=partition,
        split=experiment.split,
        features=experiment.features,
        feature_norm=experiment.feature_norm,
        scaling=experiment.scaling,
        inductive=experiment.inductive,
        seed=experiment.seed,
        perturbation=experiment.perturbation,
        **options,
    )


def check_as_they_are(experiment: Experiment) -> None:
    """Refuses to prepare graphs that are used as they are made, each where it trains."""
    for name, default in PREPARED.items():
        value = getattr(experiment, name)
        if name not in ("clients", "partition", "split") and value not in (default, "raw"):
            raise InputError(f"{name} is {value}, but generated clients' graphs are used as they are: leave it out.")


def build_setup(experiment: Experiment, method: Method, federation: FederationData, models: Any = None) -> Setup:
    """Returns what an engine needs: a graph and an architecture a client, and the method they follow."""
    check_combination(experiment, method)
    placement = method.place(federation)
    shape = federation.features, federation.classes
    check_batches(experiment.batches, placement.graphs, federation.names)
    metrics = parse_metrics(experiment.metric)
    check_positive(metrics, federation.classes, federation.positive)
    graphs = for_engine(placement.graphs, experiment)
    assigned = build_models(experiment, method, len(graphs), *shape, models)
    if experiment.initial_weights == "own":
        check_own_starts(assigned)
    return Setup(
        method=method,
        name=name_of(method),
        graphs=graphs,
        models=assigned,
        training=experiment.training,
        width=experiment.width,
        dropout=experiment.dropout,
        own_start=experiment.initial_weights == "own",
        seed=experiment.seed,
        device=experiment.torch_device(),
        participation=experiment.participation if len(graphs) > 1 else 1.0,
        average=parse_average(experiment.average),
        server_optimizer=server_optimizer_of(experiment),
        membership=placement.membership,
        scoring=None if placement.scoring is None else for_engine(placement.scoring, experiment),
        scoring_membership=placement.scoring_membership,
        topology=build_topology(experiment, len(graphs)),
        memory=parse_memory(experiment.memory),
        rounds=experiment.rounds,
        names=federation.names if placement.membership is None else None,
        metrics=metrics,
        positive=federation.positive,
        on_demand=experiment.evaluate_clients == "participants" and placement.membership is None,
        minimum=1 if experiment.engine == "loopback" else None,
    )


def build_models(
    experiment: Experiment, method: Method, clients: int, features: int, classes: int, models: Any = None
) -> AssignedModels:
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
    different = different_models(assigned)
    if method.one_model and len(different) > 1:
        names = ", ".join(dict.fromkeys(model.name for model in different))
        raise InputError(f"Method '{name_of(method)}' needs one architecture for all clients, not {names}.")
    return AssignedModels([method.model(model) for model in assigned.entries], clients)


def check_own_starts(models: AssignedModels) -> None:
    """Refuses modules that come with the weights that they were made with: there is no second start to draw."""
    made = list(dict.fromkeys(model.name for model in models.entries if isinstance(model, OwnModel)))
    if made:
        raise InputError(
            f"initial_weights is own, but {', '.join(made)} starts everywhere with the weights that it was made with: "
            f"use common, or models of Graft's own, {', '.join(NATIVE)}."
        )


def for_engine(graphs: Sequence[Graph], experiment: Experiment) -> Sequence[Graph]:
    """Returns the clients' graphs, read now unless the engine reads each where and when it needs it."""
    later = experiment.engine == "ray" or experiment.evaluate_clients == "participants"
    return graphs if later or not isinstance(graphs, ClientGraphs) else list(graphs)


def check_batches(batches: int, graphs: Sequence[Graph], names: Sequence[str] | None) -> None:
    """Refuses batches that would leave a client with an empty one."""
    if batches == 1:
        return
    sizes = graphs.nodes() if isinstance(graphs, ClientGraphs) else np.array([graph.nodes for graph in graphs])
    smallest = int(sizes.argmin())
    nodes = int(sizes[smallest])
    if batches > nodes:
        client = smallest if names is None else names[smallest]
        raise InputError(f"batches is {batches}, but client {client} has only {nodes} nodes; use at most {nodes}.")
