"""What server, party and peer of a federation file need to run its method: each what it knows, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from graft.data.federation import FederationData
from graft.data.graphs import Graph, Ints
from graft.data.lazy_graphs import ClientGraphs
from graft.data.party import PartyData, read_party
from graft.engines.forms import Forms
from graft.engines.rehearsal import Rehearsal, rehearse
from graft.errors import InputError, RunError
from graft.experiments.build import build_models, build_setup
from graft.experiments.callbacks import Callback
from graft.experiments.combinations import build_topology
from graft.experiments.consent import ConsentSheet, consent_sheet
from graft.experiments.experiment import Experiment
from graft.experiments.federation_file import FederationFile
from graft.experiments.make_method import name_of
from graft.federation.average_names import parse_average
from graft.federation.metric_names import parse_metrics
from graft.federation.server_optimizer_names import NONE, server_optimizer_of
from graft.federation.setup import Setup
from graft.models import Model

Device = Literal["auto", "cpu", "cuda"]


class GraphsElsewhere(ClientGraphs):
    """The graphs of parties, as a server knows them: how many there are, and of what shape."""

    def __init__(self, file: FederationFile) -> None:
        self.name, self.names = file.name, file.parties
        self.features, self.classes = file.agreement.width, file.agreement.class_count
        self.class_names = file.agreement.class_names
        self._hash = file.hash

    @property
    def hash(self) -> str:
        return self._hash

    def __len__(self) -> int:
        return len(self.names or ())

    def read(self, client: int) -> Graph:
        raise RunError(f"The graph of {(self.names or ())[client]} is where it belongs, and nowhere else.")

    def nodes(self) -> Ints:
        return np.zeros(len(self), np.int64)

    def edges(self) -> Ints:
        return np.zeros(len(self), np.int64)


def server_setup(file: FederationFile) -> Setup:
    """Returns what a server knows: the method, and of every party a name; of its model no more than all must share."""
    experiment, method = file.experiment, file.method
    graphs = GraphsElsewhere(file)
    return Setup(
        method=method,
        name=name_of(method),
        graphs=graphs,
        models=build_models(experiment, method, len(graphs), graphs.features, graphs.classes),
        training=experiment.training,
        width=experiment.width,
        dropout=experiment.dropout,
        seed=experiment.seed,
        device=torch.device("cpu"),
        participation=experiment.participation,
        average=parse_average(experiment.average),
        server_optimizer=server_optimizer_of(experiment),
        rounds=experiment.rounds,
        names=file.parties,
        metrics=parse_metrics(experiment.metric),
        positive=positive_class(file),
        on_demand=True,
        minimum=file.rounds.minimum,
    )


def positive_class(file: FederationFile) -> int | None:
    """Returns the number of the class that some metrics are of."""
    positive, names = file.agreement.positive, file.agreement.class_names
    if positive is None:
        return None
    return names.index(positive) if names is not None else int(positive)


def own_experiment(file: FederationFile, model: str | None, device: Device, threads: int = 0) -> Experiment:
    """Returns the experiment of one party or peer: its own graph alone, its own model where the method lets it."""
    experiment, method = file.experiment, file.method
    if method.one_model or method.architecture is not None:
        agreed = method.architecture or ", ".join(experiment.model_names)
        if model is not None and model != agreed:
            raise InputError(f"Method '{experiment.method}' has one architecture for all: {agreed}, not {model}.")
        models: str | list[str] = experiment.models
    else:
        models = model or experiment.models
    return replace(
        experiment,
        clients=1,
        models=models,
        device=device,
        threads=threads,
        participation=1.0,
        average="mean",  # which is the server's to take
        server_optimizer=NONE,  # as is this step
        patience=0,
        topology="",
        checkpoint_every=1,
    )


def own_setup(file: FederationFile, experiment: Experiment, number: int, data: FederationData) -> Setup:
    """Returns what one party or peer runs: its own graph and model, as one of all who take part."""
    setup = build_setup(experiment, file.method, data)
    return replace(
        setup,
        numbers=[number],
        federation=len(file.parties),
        kinds=(setup.models[0],),
        names=file.parties,
        participation=file.experiment.participation,
        topology=build_topology(file.experiment, len(file.parties)),
        rounds=file.experiment.rounds,
    )


@dataclass(frozen=True)
class OwnPart:
    """What one party or peer takes part with: its data are read, and its method is rehearsed."""

    file: FederationFile
    data: PartyData
    federation: FederationData  # the same, as those of a federation of one
    experiment: Experiment
    setup: Setup
    forms: Forms

    @property
    def sheet(self) -> ConsentSheet:
        """Returns what will leave, for approval."""
        file = self.file
        facts: dict[str, str | int | float] = {"federation": file.name}
        if file.has_server:
            facts["server"] = file.server
        facts["parties" if file.has_server else "peers"] = len(file.parties)
        return consent_sheet(file.method, self.setup.name, self.forms, rounds=file.experiment.rounds, facts=facts)


def read_own(
    file: FederationFile, name: str, source: Any, model: str | None, device: Device, callbacks: Callback
) -> OwnPart:
    """Returns what a party or peer takes part with, from its own files and the federation's."""
    number = file.number(name)
    callbacks.on_phase("reading data")
    data = read_party(source, file.agreement, name, number)
    experiment = own_experiment(file, model, device)
    federation = data.federation()
    setup = own_setup(file, experiment, number, federation)
    callbacks.on_phase("rehearsing")
    return OwnPart(file, data, federation, experiment, setup, forms_of(file, [setup.models[0]]))


def forms_of(file: FederationFile, models: Sequence[str | Model]) -> Forms:
    """Returns what the steps of a federation may be told and may reply; `models` are those that are known here."""
    experiment, agreement = file.experiment, file.agreement
    return rehearse(
        Rehearsal(
            method=file.method,
            name=name_of(file.method),
            clients=len(file.parties),
            features=agreement.width,
            classes=agreement.class_count,
            models=models,
            width=experiment.width,
            dropout=experiment.dropout,
            head=experiment.head,
            training=experiment.training,
            rounds=experiment.rounds,
            topology=build_topology(experiment, len(file.parties)),
            metrics=parse_metrics(experiment.metric),
            positive=positive_class(file),
        )
    )


def server_forms(file: FederationFile) -> Forms:
    """Returns the forms as a server can know them: models of parties only where all have the same."""
    method, experiment = file.method, file.experiment
    known = experiment.model_names if method.one_model or method.architecture is not None else ()
    return forms_of(file, [method.architecture] if method.architecture else list(known))


def state_folder(out: Path) -> Path:
    """Returns where a party or peer keeps what goes on from round to round."""
    return out / "party"
