"""Whether joining a federation helps its clients, and what each of them gives to the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graft.data.federation import FederationData
from graft.data.graphs import subgraph
from graft.data.lazy_graphs import SelectedGraphs
from graft.errors import RunError
from graft.experiments.callbacks import Callbacks
from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.experiment import Experiment
from graft.experiments.given import Given
from graft.experiments.result import Result
from graft.experiments.run import run_experiment
from graft.experiments.verdicts import Verdict, contribution, judge_pairs
from graft.federation.metric_names import parse_metrics


def leave_out(
    client: int,
    federated: Result,
    federation: FederationData,
    experiment: Experiment,
    callbacks: Callbacks = (),
    given: Given | None = None,
) -> float | None:
    """Returns what a client gives to the others: the federation is trained once more without it.

    The others get new numbers, and with them other random numbers.
    """
    metric = parse_metrics(experiment.metric)[0]
    rest = [other for other in range(len(federation.clients)) if other != client]
    smaller = replace(experiment, clients=len(rest), models=models_of(experiment, rest), perturbed_clients="all")
    others = replace(given or Given(), federation=without(federation, client))
    result = run_experiment(smaller, callbacks=callbacks, given=others)
    if not result.finished:
        raise RunError(
            f"The run without client {federation.client_name(client)} was stopped, so what clients give to the others "
            f"is not known; their verdicts are on record."
        )
    return contribution(
        metric, client, scores_on_test_nodes(federated.summary, metric), scores_on_test_nodes(result.summary, metric)
    )


def models_of(experiment: Experiment, clients: Sequence[int]) -> str | list[str]:
    """Returns the architectures of some clients, as an experiment names them."""
    names = experiment.model_names
    return [names[client % len(names)] for client in clients] if len(names) > 1 else experiment.models


def without(federation: FederationData, client: int) -> FederationData:
    """Returns the federation of all clients but one, with the features and classes of all."""
    others = [other for other in range(len(federation.clients)) if other != client]
    fitted = federation.preparations
    graph, membership = federation.graph, federation.membership
    if graph is not None and membership is not None:
        remaining = np.flatnonzero(membership != client)
        graph, membership = subgraph(graph, remaining), membership[remaining]
        membership = membership - (membership > client)
    return replace(
        federation,
        graph=graph,
        membership=membership,
        clients=[federation.clients[other] for other in others]
        if federation.lazy is None
        else SelectedGraphs(federation.lazy, others),
        names=None if federation.names is None else tuple(federation.names[other] for other in others),
        preparations=[fitted[other] for other in others] if fitted else fitted,
        clean=None if federation.clean is None else without(federation.clean, client),
    )


def scores_on_test_nodes(summary: Mapping[str, Any], metric: str) -> list[float | None]:
    """Returns every client's test score at the best round."""
    rows = summary["per_client"]
    return [row["test"] if metric == "accuracy" else row["metrics"][metric]["test"] for row in rows]


def judge_over_seeds(federated: Mapping[int, FinishedRun], alone: Mapping[int, FinishedRun]) -> list[Verdict] | None:
    """Returns what joining changes for each client on average over seeds, with an interval for that mean; None where
    clients are not the same ones in all runs."""
    pairs = [(federated[seed], alone[seed]) for seed in sorted(federated.keys() & alone.keys())]
    clients = {
        (run.hashes.get("partition"), *(row["client"] for row in run.summary["per_client"]))
        for pair in pairs
        for run in pair
    }
    if len(clients) != 1:
        return None
    metric = pairs[0][0].metric
    scores = [[scores_on_test_nodes(run.summary, metric) for run in pair] for pair in pairs]
    return [
        judge_pairs(row["client"], metric, [(joined[client], apart[client]) for joined, apart in scores])
        for client, row in enumerate(pairs[0][0].summary["per_client"])
    ]
