"""The table of architectures: a name, and the class that is imported when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graft.errors import InputError
from graft.registry import Registry, parse_reference

if TYPE_CHECKING:
    from torch import nn

    from graft.models.architecture import Model, Output
    from graft.models.build import assign_models, build_model

# A model is a class that inherits from `Model`, or any class or function that makes an `nn.Module` of a number of
# features and a number of classes.
MODELS: Registry[Callable[..., Model | nn.Module]] = Registry(
    "model",
    {
        "gcn": "graft.models.gcn:GCN",
        "gat": "graft.models.gat:GAT",
        "sage": "graft.models.sage:SAGE",
        "gin": "graft.models.gin:GIN",
        "gin_plain": "graft.models.gin:PlainGIN",
        "sgc": "graft.models.sgc:SGC",
        "tag": "graft.models.tag:TAG",
        "mlp": "graft.models.mlp:MLP",
        "ortho_gcn": "graft.models.ortho_gcn:OrthoGCN",
        "pyg:GCN": "graft.models.pyg:gcn",
        "pyg:GAT": "graft.models.pyg:gat",
        "pyg:GraphSAGE": "graft.models.pyg:graph_sage",
        "pyg:GIN": "graft.models.pyg:gin",
        "pyg:PNA": "graft.models.pyg:pna",
    },
    group="graft.models",
)

# Families of the model-heterogeneous literature: client k gets entry k modulo the length.
FAMILIES: dict[str, tuple[str, ...]] = {
    "architectures": ("gcn", "gat", "sage", "gin", "sgc"),
    "scales": ("sgc", "gcn", "gcn4", "gcn6", "gcn8"),
}
DEEPEST = 64
PYG_MODULE, PYG = "torch_geometric.nn.models:", "pyg:"  # where PyG's models are, and how they are called here
NATIVE = tuple(name for name in MODELS.targets if not name.startswith(PYG))  # models of Graft's own

__all__ = [
    "FAMILIES",
    "MODELS",
    "NATIVE",
    "Model",
    "Output",
    "assign_models",
    "build_model",
    "list_models",
    "parse_model",
]


def list_models(text: str) -> list[str]:
    """Returns the entries of a family, or of a list as 'gcn,gat'."""
    return list(FAMILIES.get(text) or [name.strip() for name in text.split(",")])


def parse_model(text: str) -> tuple[str, int | None]:
    """Returns the entry of the table and the depth in a name such as 'gcn4'; imports nothing.

    Your own model, as 'my_model.py:Net', has the depth that it has.
    """
    text = text.replace(PYG_MODULE, PYG)
    if text in MODELS or (parse_reference(text) and not text.startswith(PYG)):
        MODELS.check(text)
        return text, None
    match = re.fullmatch(r"([a-z_]+|pyg:[A-Za-z]+)-?(\d{0,9})", text)
    if match is None or match[1] not in MODELS:
        raise InputError(unknown_model(text))
    depth = int(match[2] or 2)
    if not 1 <= depth <= DEEPEST:
        raise InputError(f"Model '{text}' asks for {depth} layers; between 1 and {DEEPEST} are possible.")
    return match[1], depth


def unknown_model(text: str) -> str:
    """Returns a sentence about a name that no model has."""
    of_pyg = [name for name in MODELS if name.startswith(PYG)]
    if text.startswith(PYG):
        return (
            f"Unknown model '{text}': of PyG's there are {', '.join(of_pyg)}, each with an optional depth as in "
            "pyg:GCN3; any other can be made in a file of your own, as my_model.py:MyClass."
        )
    own = [name for name in MODELS if name not in of_pyg]
    return (
        f"Unknown model '{text}': there are {', '.join(own)}, each with an optional depth as in gcn4, PyG's "
        f"{', '.join(of_pyg)}, the families {', '.join(FAMILIES)}, and your own as my_model.py:MyClass."
    )


if not TYPE_CHECKING:  # a type checker would take it that any name exists

    def __getattr__(name: str) -> Any:
        """Imports what needs PyTorch when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module 'graft.models' has no attribute '{name}'")
        from importlib import import_module

        return getattr(import_module("graft.models.build"), name)
