"""Settings that do not go together, refused before any data are loaded and anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graft.data import OWN_GRAPHS, PARTITIONS, is_one_graph, parse_dataset
from graft.data.partitions import check_options
from graft.data.splits import is_by_time
from graft.errors import InputError
from graft.experiments.experiment import GIVEN, Experiment
from graft.experiments.make_method import name_of
from graft.federation.average_names import parse_average, takes_averages
from graft.federation.method import Method
from graft.federation.peers import PeerMethod
from graft.federation.server_optimizer_names import NONE, takes_server_optimizer
from graft.federation.topologies import Topology
from graft.methods import METHODS
from graft.models import NATIVE, build_model, parse_model
from graft.options import split_options


def check_combination(experiment: Experiment, method: Method) -> None:
    """Refuses what the method of an experiment cannot do."""
    experiment.torch_device()
    if experiment.score == "global" and type(method).shared is Method.shared:
        raise InputError(f"score is global, but method '{name_of(method)}' has no global model; use personal.")
    if experiment.topology and not method.takes_topology:
        able = ", ".join(METHODS.matching(lambda kind: kind.takes_topology))
        raise InputError(
            f"Method '{name_of(method)}' sends nothing between peers, so it takes no topology; these do: {able}."
        )
    if experiment.batches > 1 and not method.supports_batches:
        raise InputError(
            f"Method '{name_of(method)}' trains on whole graphs only: batches must be 1, not {experiment.batches}."
        )
    check_average(experiment, method)
    check_server_optimizer(experiment, method)
    check_initial_weights(experiment, method)
    check_data_settings(experiment)
    check_judge_on(experiment)
    check_evaluate_clients(experiment, method)
    check_one_model(experiment, method)
    check_native_models(experiment, method)
    build_topology(experiment, experiment.clients)


def suited(values: Mapping[str, Any], kind: type[Method]) -> dict[str, Any]:
    """Returns the values of an experiment that another method is compared by, without what this one cannot do."""
    dropped = {} if kind.takes_topology else {"topology": ""}
    if kind.shared is Method.shared:  # it has no global model
        dropped["score"] = "personal"
    if not takes_averages(kind):
        dropped["average"] = "mean"
    if not takes_server_optimizer(kind):
        dropped["server_optimizer"] = NONE
    if not kind.keeps_start:
        dropped["initial_weights"] = "common"
    return {**values, **dropped}


def check_average(experiment: Experiment, method: Method) -> None:
    """Refuses another average than the mean where a method does not read means alone, or of too few clients."""
    how = parse_average(experiment.average)
    if not how.robust:
        return
    if not takes_averages(type(method)):
        able = ", ".join(METHODS.matching(takes_averages))
        raise InputError(
            f"average is {experiment.average}, but method '{name_of(method)}' does more with its clients' models than "
            f"to take means of them, or nothing: use mean, or one of {able}."
        )
    how.check(max(1, int(experiment.participation * experiment.clients + 1e-9)))


def check_server_optimizer(experiment: Experiment, method: Method) -> None:
    """Refuses an optimiser at the server where a method keeps no average that it could step towards."""
    if experiment.server_optimizer != NONE and not takes_server_optimizer(type(method)):
        able = ", ".join(METHODS.matching(takes_server_optimizer))
        raise InputError(
            f"server_optimizer is {experiment.server_optimizer}, but the server of method '{name_of(method)}' keeps no "
            f"average of its clients' models: use none, or one of {able}."
        )


def check_initial_weights(experiment: Experiment, method: Method) -> None:
    """Refuses starts of clients' own where nothing of them would be left after the first round."""
    if experiment.initial_weights == "own" and not method.keeps_start:
        able = ", ".join(METHODS.matching(lambda kind: kind.keeps_start))
        raise InputError(
            f"initial_weights is own, but with method '{name_of(method)}' no client trains on from a start of its own: "
            f"use common, or one of {able}."
        )


def check_data_settings(experiment: Experiment) -> None:
    """Refuses what cannot be done with any data."""
    name, options = split_options(experiment.partition)
    if name in PARTITIONS:
        check_options(name, options)
    dataset = experiment.dataset
    if name == OWN_GRAPHS and not experiment.graphs and dataset != GIVEN:
        parse_dataset(dataset)  # a file that is gone is a mistake of its own
        if is_one_graph(dataset):
            raise InputError(
                f"partition is own, but '{dataset}' is one graph: choose one of {', '.join(PARTITIONS)}, or give "
                f"clients' own graphs, as --graphs alpha/ beta.npz."
            )
    unseen = experiment.inductive or is_by_time(experiment.split)
    if unseen and experiment.evaluate_on == "perturbed" and experiment.perturbation.active:
        raise InputError(
            "evaluate_on is perturbed, but test nodes that training does not see are not perturbed: use clean."
        )


def check_judge_on(experiment: Experiment) -> None:
    """Refuses to hold training nodes out where models are scored on another graph, in which nobody knows them."""
    other = experiment.inductive or is_by_time(experiment.split)
    perturbed = experiment.perturbation.active and experiment.evaluate_on == "clean"
    if experiment.judge_on == "training" and (other or perturbed):
        raise InputError(
            "judge_on is training, but models are scored on another graph than they train on: use validation, or "
            "neither inductive data nor perturbed ones that are scored clean."
        )


def check_evaluate_clients(experiment: Experiment, method: Method) -> None:
    """Refuses to read clients on demand where something is kept of every one of them."""
    if experiment.evaluate_clients == "all":
        return
    refused = (
        f"evaluate_clients is participants, which reads clients when they are asked, but method '{name_of(method)}'"
    )
    if isinstance(method, PeerMethod):
        raise InputError(f"{refused} has every peer weigh all others: use all, or a method with a server.")
    if type(method).personalised is not Method.personalised:
        raise InputError(f"{refused} keeps a model of every client at the server: use all, or another method.")
    if experiment.engine == "loopback":
        raise InputError(
            "evaluate_clients is participants, but the engine loopback starts a process for every client: use "
            "in_process or ray."
        )


def check_native_models(experiment: Experiment, method: Method) -> None:
    """Refuses widths, depths and heads that a model of Graft's own cannot have; those of others are built later."""
    for name in [method.architecture] if method.architecture else experiment.model_names:
        if name != GIVEN and parse_model(name)[0] in NATIVE:
            build_model(name, 1, 2, width=experiment.width, dropout=experiment.dropout, head=experiment.head)


def build_topology(experiment: Experiment, peers: int) -> Topology | None:
    """Returns the topology that was asked for; without one a method has its own."""
    if not experiment.topology:
        return None
    name, options = split_options(experiment.topology)
    topology = Topology(name, options)
    topology.check(peers, experiment.rounds)
    return topology


def check_one_model(experiment: Experiment, method: Method) -> None:
    """Refuses several architectures where a method needs one."""
    names = list(dict.fromkeys(experiment.model_names))
    used = names[: experiment.clients]
    if method.one_model and not method.architecture and GIVEN not in names and len(used) > 1:
        raise InputError(f"Method '{name_of(method)}' needs one architecture for all clients, not {', '.join(used)}.")
