"""A run directory opened again: its record, and its models ready to predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import graft
from graft.data.federation import FederationData
from graft.engines.state_files import ChangedStates
from graft.errors import InputError
from graft.experiments.best_models import RoundModels, last_models
from graft.experiments.build import build_federation, build_models
from graft.experiments.checkpoints import Checkpoint, Origin
from graft.experiments.experiment import GIVEN, Experiment, make_experiment, own_files
from graft.experiments.experiment_files import read_experiment
from graft.experiments.given import Given
from graft.experiments.make_method import name_of
from graft.experiments.prediction import RunModels
from graft.experiments.prepared_data import PreparedData, load_prepared
from graft.experiments.result import Result
from graft.experiments.run_directory import RunDirectory
from graft.experiments.scores import Scores
from graft.federation.method import Method
from graft.federation.metric_names import parse_metrics
from graft.federation.server import Server
from graft.federation.session import SessionState
from graft.federation.setup import Setup
from graft.files import checksum, explained
from graft.models.assigned import models_checksum
from graft.tensors.trees import Tree, strip_architectures


def load_result(out: str | Path, *, method: Method | None = None, dataset: Any = None, models: Any = None) -> Result:
    """Returns the result of a run directory, of a run that stopped too; what was given as an object must be given
    again, the dataset only for predictions on it."""
    directory = RunDirectory(Path(out))
    opened = open_models(directory, Given(method, dataset, models))
    checkpoint = directory.load()
    state = SessionState(Tree(), {}) if checkpoint is None else SessionState(checkpoint.server, checkpoint.clients)
    return Result(
        summary=dict(opened.facts),
        rounds=directory.read_rounds(),
        server=state.server,
        clients=ChangedStates(state.clients, strip_architectures),
        finished=directory.result.exists(),
        models=opened,
    )


def open_models(directory: RunDirectory, given: Given) -> RunModels:
    """Returns the models of a run directory; nothing of its data is loaded before a prediction needs it."""
    with explained(f"{directory.path} cannot be read", InputError):
        if not directory.experiment.is_file():
            raise InputError(f"{directory.path} is not a run directory: it holds no experiment.toml.")
        if not directory.preparation.is_file():
            if directory.federation.is_file():
                raise InputError(
                    f"{directory.path} is of the server of a federation, which has neither data nor models of parties: "
                    f"predictions are theirs to make."
                )
            raise InputError(f"{directory.path} holds no {directory.preparation.name}: an earlier version wrote it.")
    experiment = make_experiment(read_experiment(directory.experiment))
    given.check(experiment, "load_result", ("models", "method"))
    data = load_prepared(directory.preparation, directory.experiment_checksum())
    records = directory.read_rounds()
    setup = setup_of(experiment, given.method_of(experiment), data, given.models)
    stored = directory.read_best(records)
    origin, best = stored or (None, {})
    if origin is not None:
        check_origin(origin, setup, experiment)

    def last() -> Mapping[str, RoundModels]:
        return models_of(directory.load(), records, setup, experiment)

    def federation() -> FederationData:
        given.check(experiment, "load_result", ("dataset",))
        built = build_federation(experiment, given.dataset)
        if origin is not None and built.data_hash != origin.data:
            raise InputError("The data or its partition is not what this run was trained on.")
        return built

    facts = summary_of(directory, records, experiment, setup, data)
    return RunModels(experiment, setup, data, best, last, federation, facts, directory.read_baselines)


def setup_of(experiment: Experiment, method: Method, data: PreparedData, models: Any) -> Setup:
    """Returns the set-up of a run without its graphs."""
    shape = data.preparations[0].features, data.preparations[0].classes
    clients = 1 if data.pooled else data.clients
    usable = torch.cuda.is_available() and experiment.device != "cpu"
    return Setup(
        method=method,
        name=name_of(method),
        graphs=[],
        models=build_models(experiment, method, clients, *shape, models),
        training=experiment.training,
        width=experiment.width,
        dropout=experiment.dropout,
        own_start=experiment.initial_weights == "own",
        seed=experiment.seed,
        device=torch.device("cuda" if usable else "cpu"),
        rounds=experiment.rounds,
    )


def check_origin(origin: Origin, setup: Setup, experiment: Experiment) -> None:
    """Refuses models or code that are not those of the run."""
    if origin.models != models_checksum(setup.models):
        raise InputError("The models are not those that this run was trained with.")
    own = [*own_files(replace(experiment, dataset=GIVEN, graphs=[]))]
    if not own:
        return
    with explained("The file of the method or of a model cannot be read", InputError):
        code = checksum(*(file.read_bytes() for file in own_files(experiment)))
    if origin.code != code:
        raise InputError("The file of the method, of a model or of the dataset has changed since this run began.")


def models_of(
    checkpoint: Checkpoint | None, records: list[dict[str, Any]], setup: Setup, experiment: Experiment
) -> dict[str, RoundModels]:
    """Returns the models of a checkpoint, by kind."""
    if checkpoint is None or not 0 < checkpoint.round <= len(records):
        raise InputError("This run has no models to predict with: no checkpoint after its first round was written.")
    server = Server(
        setup.models, experiment.seed, torch.device("cpu"), setup.architecture, 0, 0, setup.rounds, checkpoint.server
    )
    state = SessionState(checkpoint.server, checkpoint.clients)
    return last_models(setup.method, server, state, records[checkpoint.round - 1])


def summary_of(
    directory: RunDirectory,
    records: list[dict[str, Any]],
    experiment: Experiment,
    setup: Setup,
    data: PreparedData,
) -> dict[str, Any]:
    """Returns what result.json holds; of a run that is not finished, as much of it as its rounds tell."""
    if directory.result.exists():
        return directory.read_result()
    nothing = torch.zeros(0)
    some = experiment.evaluate_clients == "participants" and not data.pooled
    scores = Scores(nothing, nothing, experiment.score, parse_metrics(experiment.metric), of_participants=some)
    scores.restore(records)
    summary = scores.summary(data.clients)
    numbers = scores.scored_clients(data.clients)
    rows = [
        {"client": client, "model": setup.models[client % len(setup.models)].name, "nodes": None, "edges": None, **row}
        for client, row in zip(numbers, summary["per_client"], strict=True)
    ]
    return {
        "graft": graft.__version__,
        "method": setup.name,
        "dataset": experiment.dataset,
        "partition": experiment.partition,
        "clients": data.clients,
        "seed": experiment.seed,
        "rounds": len(records),
        **summary,
        "per_client": rows,
    }
