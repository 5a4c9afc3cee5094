"""Whether joining a federation helps its clients, and what each of them gives to the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from graft.data.federation import FederationData
from graft.data.graphs import subgraph
from graft.errors import InputError, RunError
from graft.experiments.callbacks import Callbacks
from graft.experiments.experiment import Experiment
from graft.experiments.given import Given
from graft.experiments.result import Result
from graft.experiments.run import run_experiment
from graft.experiments.verdicts import Verdict, contribution
from graft.federation.metric_names import parse_metrics
from graft.files import parse_json, read_text, seal, unseal, write_text

FILE = "verdicts.json"


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
    return contribution(metric, client, scores_on_test_nodes(federated, metric), scores_on_test_nodes(result, metric))


def models_of(experiment: Experiment, clients: Sequence[int]) -> str | list[str]:
    """Returns the architectures of some clients, as an experiment names them."""
    names = experiment.model_names
    return [names[client % len(names)] for client in clients] if len(names) > 1 else experiment.models


def without(federation: FederationData, client: int) -> FederationData:
    """Returns the federation of all clients but one, with the features and classes of all."""
    remaining = np.flatnonzero(federation.membership != client)
    membership = federation.membership[remaining]
    others = [other for other in range(len(federation.clients)) if other != client]
    fitted = federation.preparations
    return replace(
        federation,
        graph=subgraph(federation.graph, remaining),
        membership=membership - (membership > client),
        clients=[federation.clients[other] for other in others],
        names=None if federation.names is None else tuple(federation.names[other] for other in others),
        preparations=[fitted[other] for other in others] if fitted else fitted,
        clean=None if federation.clean is None else without(federation.clean, client),
    )


def scores_on_test_nodes(result: Result, metric: str) -> list[float | None]:
    """Returns every client's test score at the best round."""
    rows = result.summary["per_client"]
    return [row["test"] if metric == "accuracy" else row["metrics"][metric]["test"] for row in rows]


def write_verdicts(folder: Path, verdicts: Sequence[Verdict], against: str) -> None:
    """Puts verdicts on record beside the run that they are about."""
    content = {"against": against, "clients": [verdict.as_row() for verdict in verdicts]}
    write_text(folder / FILE, json.dumps(seal(content), indent=1) + "\n")


def read_verdicts(folder: Path) -> list[Verdict]:
    """Returns the verdicts beside a run; none where it was compared with nothing."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        return [Verdict(**row) for row in unseal(parse_json(read_text(path)))["clients"]]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged: {error}.") from None
