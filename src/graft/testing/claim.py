"""What a claim of the contract is: a function of a method that raises where the method does not keep it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from graft.errors import InputError, RunError
from graft.federation.method import Method
from graft.federation.server_optimizer_names import NONE, suiting_optimizer
from graft.federation.setup import Setup
from graft.methods import METHODS
from graft.testing.toy import toy_setup

MethodLike = Method | type[Method] | str
Claim = Callable[[MethodLike], None]


class ContractError(RunError):
    """A method does not keep its contract."""


def claim(function: Callable[[Method], None]) -> Claim:
    """Lets a claim be made of an instance, of a class with default settings, or of a name as `--method` takes it."""

    @wraps(function)
    def made_of(method: MethodLike) -> None:
        function(as_method(method))

    return made_of


def as_method(method: MethodLike) -> Method:
    """Returns an instance: of a class, or of the class of a name, with its default settings."""
    kind = METHODS[method] if isinstance(method, str) else method
    if isinstance(kind, Method):
        return kind
    try:
        return kind()
    except TypeError as error:
        raise InputError(f"{kind.__name__} cannot be made without settings, so check an instance: {error}.") from error


def require(condition: bool, failure: str) -> None:
    """Raises a ContractError with that sentence unless the condition holds."""
    if not condition:
        raise ContractError(failure)


def contract_setup(method: Method, **settings: Any) -> Setup:
    """Returns a toy federation of a method, with its own defaults, or else models as different as it allows."""
    defaults = method.experiment_defaults
    settings.setdefault("models", defaults.get("models", "gcn" if method.one_model else "gcn,sage"))
    settings.setdefault("head", defaults.get("head", "linear"))
    settings.setdefault("server_optimizer", suiting_optimizer(defaults.get("server_optimizer", NONE)))
    settings.setdefault("rounds", 10)
    return toy_setup(method, **settings)
