"""Packages that keep and show runs of many projects, told of a run by callbacks; each is an extra of its own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from graft.errors import InputError
from graft.registry import close_to

if TYPE_CHECKING:
    from graft.experiments.trackers.tracker import Tracker

TRACKERS = {"tensorboard": "TensorBoard", "wandb": "WandB", "mlflow": "MLflow"}  # names, and their classes


def make_tracker(text: str) -> Tracker:
    """Returns the tracker of a text such as tensorboard, tensorboard:DIR, wandb:PROJECT or mlflow:URI."""
    name, _, destination = text.partition(":")
    if name not in TRACKERS:
        raise InputError(f"There is no tracker '{name}'{close_to(name, TRACKERS)}: there are {', '.join(TRACKERS)}.")
    module = import_module(f"graft.experiments.trackers.{name}")
    tracker: Tracker = getattr(module, TRACKERS[name])(*([destination] if destination else []))
    return tracker


def kept_trackers(directory: Path) -> list[str]:
    """Returns the trackers that have been told of a run so far, as `make_tracker` takes them."""
    from graft.experiments.trackers.tracker import read_kept

    return list(read_kept(directory))
