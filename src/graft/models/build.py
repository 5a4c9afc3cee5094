"""From names, classes and modules to one architecture a client."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from graft.errors import InputError
from graft.models import MODELS, list_models, parse_model
from graft.models.architecture import LayeredModel, Model, Output
from graft.models.assigned import AssignedModels
from graft.models.gat import GAT
from graft.models.own import OwnModel
from graft.tensors.randomness import seed_for

__all__ = ["Model", "Output", "assign_models", "build_model"]


def build_model(
    model: str | nn.Module | Model, features: int, classes: int, *, seed: int = 0, **settings: Any
) -> Model:
    """Returns the architecture of a name such as 'gcn' or 'gcn4' (the number is the depth), or around your own module.

    The seed is for modules that draw their initial weights when they are made.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, nn.Module):
        return OwnModel(model, features, classes)
    if not isinstance(model, str):
        kind = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise InputError(f"A model is a name, an nn.Module or a graft.Model, not {kind}.")
    name, depth = parse_model(model)
    entry: Any = MODELS[name]
    if isinstance(entry, type) and issubclass(entry, LayeredModel):
        return build_layered(entry, model, features, classes, depth=depth or 2, **settings)
    if depth is not None:
        if "depth" not in inspect.signature(entry).parameters:
            raise InputError(f"Model '{name}' takes no depth, so there is no '{model}'.")
        settings["depth"] = depth
    return build_own(entry, name, features, classes, seed, settings)


def build_own(entry: Any, name: str, features: int, classes: int, seed: int, settings: dict[str, Any]) -> Model:
    """Returns what your own class or function makes of a number of features and of classes."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_for(seed, 0, "module", MODELS.label(name)))
        try:
            built = entry(features, classes, **accepted(entry, settings))
        except Exception as error:  # code that somebody brought may raise anything
            reason = MODELS.failure(name, error)
            raise InputError(
                f"Model '{name}' cannot be made for {features} features and {classes} classes: {reason}."
            ) from error
    if isinstance(built, nn.Module):
        built = OwnModel(built, features, classes)
        built.name = label_of(name, settings.get("depth"))
    if not isinstance(built, Model):
        raise InputError(f"Model '{name}' is neither a graft.Model nor an nn.Module but a {type(built).__name__}.")
    return built


def label_of(name: str, depth: int | None) -> str:
    """Returns what a model is called in records: its name, with the depth where it is not the usual one."""
    return MODELS.label(name) if depth in (None, 2) else f"{MODELS.label(name)}{depth}"


def build_layered(kind: type[LayeredModel], name: str, features: int, classes: int, **settings: Any) -> Model:
    """Layers of one kind, refused where the settings leave a model that cannot be."""
    if not kind.kind:
        raise InputError(f"Model '{name}' has no name: give {kind.__name__} one, as kind: ClassVar[str] = \"net\".")
    built = kind(features, classes, **settings)
    if built.hidden == 0:
        raise InputError(f"Model '{name}' with a conv head has no layer left for its embedding; use {built.kind}2.")
    if isinstance(built, GAT) and built.width % built.heads:
        raise InputError(f"Model '{name}' shares its width among {built.heads} heads; {built.width} does not divide.")
    return built


def accepted(entry: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the experiment, as width and dropout, that your own class or function has a parameter
    for."""
    parameters = inspect.signature(entry).parameters
    return {name: value for name, value in settings.items() if name in parameters}


def assign_models(
    models: str | nn.Module | Model | Sequence[str | nn.Module | Model],
    clients: int,
    features: int,
    classes: int,
    **settings: Any,
) -> AssignedModels:
    """Returns one architecture a client: client k gets entry k modulo the number of entries."""
    if isinstance(models, str):
        models = list_models(models)
    if isinstance(models, nn.Module | Model):
        models = [models]
    if not models:
        raise InputError("The list of models is empty.")
    return AssignedModels([build_model(model, features, classes, **settings) for model in models], clients)
