"""From an architecture and its weights to a plain module: which file has it, and what the weights are called there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from graft.errors import InputError
from graft.experiments.export.networks.mean_prediction import MeanPrediction
from graft.models import DEEPEST
from graft.models.architecture import LayeredModel, Model
from graft.models.gat import GAT
from graft.models.gcn import GCN
from graft.models.gin import GIN, PlainGIN
from graft.models.mlp import MLP
from graft.models.ortho_gcn import OrthoGCN
from graft.models.own import OwnModel
from graft.models.sage import SAGE
from graft.models.sgc import SGC
from graft.models.tag import TAG
from graft.tensors.trees import Tree, flatten

# What a leaf of a layer is called in the module; matrices of Graft are [inputs, outputs], those of PyTorch the reverse.
Names = Mapping[str, str]

LINEAR: Names = {"weight": "weight", "bias": "bias"}
CONV: Names = {"weight": "lin.weight", "bias": "bias"}
STEPS: Names = {"weight": "lin.weight", "bias": "lin.bias"}  # of propagation, and a linear map
HOPS: Names = {f"hop{step}": f"sum.lins.{step}.weight" for step in range(DEEPEST + 1)} | {"bias": "sum.bias"}
MEAN: Names = {"neighbours": "neighbours.weight", "own": "own.weight", "bias": "neighbours.bias"}
ATTENTION: Names = {"weight": "lin.weight", "target": "target", "source": "source", "bias": "bias"}
PERCEPTRON: Names = {
    "first/weight": "first.weight",
    "first/bias": "first.bias",
    "scale": "norm.weight",
    "shift": "norm.bias",
    "second/weight": "second.weight",
    "second/bias": "second.bias",
}
AS_THEY_ARE = frozenset({"target", "source"})  # matrices that are not multiplied with


@dataclass(frozen=True)
class Part:
    """A model of those that predict together, mostly the only one."""

    architecture: Model
    weights: Tree
    name: str  # in the experiment, as gcn4 or my_model.py:Net

    @property
    def takes_weights(self) -> bool:
        """Returns whether it can be given the weights of edges."""
        return bool(getattr(self.architecture, "takes_weights", True))


@dataclass(frozen=True)
class Network:
    """The module of an architecture: its file in `networks` and what it is made with."""

    file: str
    layer: Names
    settings: tuple[str, ...] = ()  # beside those of every layered model
    raw: Callable[[Any, str], bool] | None = None  # whether the matrix of a layer stays as it is


def is_orthogonal(model: OrthoGCN, branch: str) -> bool:
    """Returns whether a layer is made orthogonal whenever it is applied; its matrix is kept as it was trained."""
    return model.orthogonal and branch not in ("layer0", "head")


NETWORKS: dict[type[LayeredModel], Network] = {
    GCN: Network("gcn", CONV),
    SAGE: Network("sage", MEAN),
    GAT: Network("gat", ATTENTION, ("heads",)),
    GIN: Network("gin", PERCEPTRON, ("normalise",)),
    PlainGIN: Network("plain_gin", PERCEPTRON, ("normalise",)),
    SGC: Network("sgc", STEPS),
    TAG: Network("tag", HOPS),
    MLP: Network("mlp", LINEAR),
    OrthoGCN: Network(
        "ortho_gcn",
        CONV,
        ("orthogonal", "newton_steps", "hybrid", "center", "scale_free", "newton_bound", "propagated"),
        raw=is_orthogonal,
    ),
}
SETTINGS = ("features", "classes", "depth", "width", "dropout", "head")


def build_predictor(parts: Sequence[Part]) -> nn.Module:
    """Returns a plain module, in evaluation mode, that predicts as one model does, or two do by their mean."""
    modules = [build_module(part.architecture, part.weights) for part in parts]
    if len(modules) == 1:
        return modules[0]
    first, second = modules
    return MeanPrediction(first, second, (parts[0].takes_weights, parts[1].takes_weights)).eval()


def build_module(model: Model, weights: Tree) -> nn.Module:
    """Returns a plain module with these weights, in evaluation mode."""
    if isinstance(model, OwnModel):
        own = copy.deepcopy(model.module)
        own.load_state_dict(own_state(weights))
        return own.eval()
    assert isinstance(model, LayeredModel)
    module = network_class(model)(**settings_of(model))
    module.load_state_dict(state_of(model, weights))
    return module.eval()


def network_of(model: Model) -> Network:
    """Returns the network of a native architecture; refused for any other, of which nothing is known."""
    network = NETWORKS.get(type(model)) if isinstance(model, LayeredModel) else None
    if network is None:
        raise InputError(
            f"Architecture '{model.name}' has no plain module; there is one for "
            f"{', '.join(sorted(kind.kind for kind in NETWORKS))} and for any nn.Module of your own."
        )
    return network


def network_file(model: Model) -> ModuleType:
    return import_module(f"graft.experiments.export.networks.{network_of(model).file}")


def network_class(model: Model) -> type[nn.Module]:
    """Returns the class of a native architecture's network, which has the same name."""
    network: type[nn.Module] = getattr(network_file(model), type(model).__name__)
    return network


def settings_of(model: LayeredModel) -> dict[str, Any]:
    """Returns what the class of a network is made with."""
    return {name: getattr(model, name) for name in (*SETTINGS, *network_of(model).settings)}


def own_state(weights: Tree) -> dict[str, Tensor]:
    return {path.replace("/", "."): leaf for path, leaf in flatten(weights)}


def state_of(model: Model, weights: Tree) -> dict[str, Tensor]:
    """Returns the weights of a model by the names that its module has for them."""
    if isinstance(model, OwnModel):
        return own_state(weights)
    network = network_of(model)
    head = getattr(model, "head", "linear")
    state = {}
    for branch, leaves in weights.items():
        linear = branch == "head" and head != "conv"
        prefix = "head" if branch == "head" else f"layers.{branch.removeprefix('layer')}"
        for path, leaf in flatten(leaves):
            name = (LINEAR if linear else network.layer)[path]
            raw = path in AS_THEY_ARE or (network.raw is not None and network.raw(model, branch))
            transposed = leaf.dim() == 2 and not raw
            state[f"{prefix}.{name}"] = (leaf.T if transposed else leaf).contiguous()
    return state
