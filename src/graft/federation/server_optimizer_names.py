"""Which steps a server can take from its model towards the average of its clients', and which methods let it. Imports
neither PyTorch nor NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from graft.federation.method import Method

NONE: Final = "none"
ADAPTIVE = {"server_rate": 0.003, "server_momentum": 0.9, "server_beta2": 0.99, "server_tau": 1e-3}
# What each reads of an experiment, and the values that suit it. Rates rest on a grid by validation nodes of Cora,
# CiteSeer, PubMed, Photo and a generated heterophilous graph, over three seeds, with Adam at the clients and with
# momentum; larger ones of the adaptive kinds did not settle on Photo.
SERVER_OPTIMIZERS: dict[str, dict[str, float]] = {
    "sgd": {"server_rate": 1.0},
    "momentum": {"server_rate": 0.1, "server_momentum": 0.9},
    "adam": ADAPTIVE,
    "yogi": ADAPTIVE,
    "adagrad": {"server_rate": 0.03, "server_momentum": 0.0, "server_tau": 1e-3},
}
FIELDS = tuple(dict.fromkeys(field for defaults in SERVER_OPTIMIZERS.values() for field in defaults))


def suiting_defaults(name: str) -> Mapping[str, float]:
    """Returns the values that fields of an experiment have with a server's optimiser where nobody says otherwise."""
    return SERVER_OPTIMIZERS.get(name, {})


def unread_fields(name: str) -> list[str]:
    """Returns the fields of an experiment that mean nothing with a server's optimiser, or without any."""
    return [field for field in FIELDS if field not in suiting_defaults(name)]


class ServerOptimizer(NamedTuple):
    """How a server steps from its model of before towards the average of a round."""

    name: str  # one of SERVER_OPTIMIZERS
    rate: float = 1.0
    momentum: float = 0.9  # beta_1: share of the direction of before that is kept
    beta2: float = 0.99  # share of the mean square of before that is kept
    tau: float = 1e-3  # added to the root of the mean square: how small an update may be and still count in full


def suiting_optimizer(name: str) -> ServerOptimizer | None:
    """Returns a server's optimiser with the values that suit it; None for none."""
    return None if name == NONE else ServerOptimizer(name, **without_prefix(suiting_defaults(name)))


def without_prefix(fields: Mapping[str, float]) -> dict[str, float]:
    """Returns values by what `ServerOptimizer` calls the fields of an experiment."""
    return {name.removeprefix("server_"): value for name, value in fields.items()}


def server_optimizer_of(experiment: Any) -> ServerOptimizer | None:
    """Returns the server's optimiser that an experiment asks for, if any."""
    if experiment.server_optimizer == NONE:
        return None
    values = {field: getattr(experiment, field) for field in FIELDS}
    return ServerOptimizer(experiment.server_optimizer, **without_prefix(values))


def takes_server_optimizer(kind: type[Method]) -> bool:
    """Returns whether a method keeps a model at the server that is an average of its clients'."""
    return kind.averaged is not None
