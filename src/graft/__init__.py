"""Graft: graph federated training."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graft.experiments.run import Result, resume, run
    from graft.federation.method import Method, step

__all__ = ["Method", "Result", "__version__", "resume", "run", "step"]

_PLACES = {"run": "experiments.run", "resume": "experiments.run", "Result": "experiments.run"} | {
    "Method": "federation.method",
    "step": "federation.method",
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used, so that `graft --help` need not wait for PyTorch."""
    if name not in _PLACES:
        raise AttributeError(f"module 'graft' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"graft.{_PLACES[name]}"), name)
