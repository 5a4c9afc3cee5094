"""The table of architectures: a name a class, a file an architecture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from graft.errors import InputError
from graft.models.architecture import LayeredModel, Model, Output
from graft.models.gat import GAT
from graft.models.gcn import GCN
from graft.models.gin import GIN
from graft.models.mlp import MLP
from graft.models.ortho_gcn import OrthoGCN
from graft.models.own import OwnModel
from graft.models.sage import SAGE
from graft.models.sgc import SGC

MODELS: dict[str, type[LayeredModel]] = {
    "gcn": GCN,
    "gat": GAT,
    "sage": SAGE,
    "gin": GIN,
    "sgc": SGC,
    "mlp": MLP,
    "ortho_gcn": OrthoGCN,
}

# Families of the model-heterogeneous literature: client k gets entry k modulo the length.
FAMILIES: dict[str, tuple[str, ...]] = {
    "architectures": ("gcn", "gat", "sage", "gin", "sgc"),
    "scales": ("sgc", "gcn", "gcn4", "gcn6", "gcn8"),
}

__all__ = ["FAMILIES", "MODELS", "Model", "Output", "assign_models", "build_model"]


def build_model(model: str | nn.Module | Model, features: int, classes: int, **settings: Any) -> Model:
    """The architecture of a name such as 'gcn' or 'gcn4' (the number is the depth), or around your own module."""
    if isinstance(model, Model):
        return model
    if isinstance(model, nn.Module):
        return OwnModel(model)
    match = re.fullmatch(r"([a-z_]+)-?(\d*)", model)
    if match is None or match[1] not in MODELS:
        raise InputError(
            f"Unknown model '{model}': there are {', '.join(MODELS)}, each with an optional depth as in gcn4, "
            f"and the families {', '.join(FAMILIES)}."
        )
    depth = int(match[2] or 2)
    if not 1 <= depth <= 64:
        raise InputError(f"Model '{model}' asks for {depth} layers; between 1 and 64 are possible.")
    built = MODELS[match[1]](features, classes, depth=depth, **settings)
    if built.hidden == 0:
        raise InputError(f"Model '{model}' with a conv head has no layer left for its embedding; use {match[1]}2.")
    if isinstance(built, GAT) and built.width % built.heads:
        raise InputError(f"Model '{model}' shares its width among {built.heads} heads; {built.width} does not divide.")
    return built


def assign_models(
    models: str | nn.Module | Model | Sequence[str | nn.Module | Model],
    clients: int,
    features: int,
    classes: int,
    **settings: Any,
) -> list[Model]:
    """One architecture a client: client k gets entry k modulo the number of entries."""
    if isinstance(models, str):
        models = FAMILIES.get(models) or [name.strip() for name in models.split(",")]
    if isinstance(models, nn.Module | Model):
        models = [models]
    if not models:
        raise InputError("The list of models is empty.")
    built = [build_model(model, features, classes, **settings) for model in models]
    return [built[client % len(built)] for client in range(clients)]
