"""Settings that do not go together, refused before any data are loaded and anything is written."""

from __future__ import annotations

from graft.errors import InputError
from graft.experiments.experiment import GIVEN, Experiment
from graft.experiments.make_method import name_of
from graft.federation.method import Method
from graft.methods import METHODS
from graft.models import list_models


def check_combination(experiment: Experiment, method: Method) -> None:
    """Refuses what the method of an experiment cannot do."""
    experiment.torch_device()
    if experiment.score == "global" and type(method).shared is Method.shared:
        raise InputError(f"score is global, but method '{name_of(method)}' has no global model.")
    if experiment.topology and not method.takes_topology:
        able = ", ".join(METHODS.matching(lambda kind: kind.takes_topology))
        raise InputError(
            f"Method '{name_of(method)}' sends nothing between peers, so it takes no topology; these do: {able}."
        )
    if experiment.batches > 1 and not method.supports_batches:
        raise InputError(
            f"Method '{name_of(method)}' trains on whole graphs only: batches must be 1, not {experiment.batches}."
        )
    check_one_model(experiment, method)


def check_one_model(experiment: Experiment, method: Method) -> None:
    """Refuses several architectures where a method needs one."""
    models = experiment.models
    names = list(dict.fromkeys(list_models(models) if isinstance(models, str) else models))
    used = names[: experiment.clients]
    if method.one_model and not method.architecture and GIVEN not in names and len(used) > 1:
        raise InputError(f"Method '{name_of(method)}' needs one architecture for all clients, not {', '.join(used)}.")
