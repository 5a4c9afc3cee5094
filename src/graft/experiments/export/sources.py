"""The source of an exported model: that of one of Graft's networks, or a copy of the file that has your own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from graft.errors import InputError
from graft.experiments.export.modules import Part, network_class, network_file, settings_of
from graft.experiments.export.networks import mean_prediction
from graft.experiments.export.single_file import single_file
from graft.files import explained
from graft.models import MODELS, PYG, parse_model
from graft.models.architecture import LayeredModel, Model
from graft.models.build import accepted
from graft.models.own import OwnModel
from graft.registry import parse_reference

SHAPE = ("features", "classes")
LOADER_OF_TWO = '''

def load(folder=None):
    """Returns the trained models in a folder, that of this file if none is given, in evaluation mode."""
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    folder = Path(__file__).parent if folder is None else Path(folder)
    parts = []
    for name in {names}:
        spec = spec_from_file_location(f"exported_{{name}}", folder / name / "model.py")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        parts.append(module.load(folder / name))
    return MeanPrediction(*parts, weighted={weighted}).eval()
'''
LOADER = '''

def load(folder=None):
    """Returns the trained model in a folder, that of this file if none is given, in evaluation mode."""
    import json
    from pathlib import Path

    from safetensors.torch import load_file

    folder = Path(__file__).parent if folder is None else Path(folder)
    model = {name}(**json.loads((folder / "config.json").read_text(encoding="utf-8"))["model"])
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()
'''


class Source(NamedTuple):
    """What model.py holds, and what `load` makes the model with."""

    text: str
    settings: dict[str, Any]


def source_of(model: Model, name: str, experiment_settings: dict[str, Any]) -> Source:
    """Returns the source of a model that the experiment calls by this name."""
    if not isinstance(model, OwnModel):
        text = single_file(network_file(model))
        assert isinstance(model, LayeredModel)
        return Source(with_loader(text, network_class(model).__name__), settings_of(model))
    text, attribute = own_source(name)
    if re.search(r"^(async )?def load\b|^load\s*=", text, re.MULTILINE):
        raise InputError(f"The file of model '{name}' has a function load already, which an exported model.py needs.")
    entry_name, depth = parse_model(name)
    entry = MODELS[entry_name]
    parameters = list(inspect.signature(entry).parameters)[:2]  # of features and classes
    settings = dict(zip(parameters, (experiment_settings[key] for key in SHAPE), strict=True))
    others = {key: value for key, value in experiment_settings.items() if key not in SHAPE}
    others |= {} if depth is None else {"depth": depth}
    return Source(with_loader(text, attribute), settings | accepted(entry, others))


def source_of_two(parts: Mapping[str, Part]) -> str:
    """Returns what model.py holds where two models predict together, each with a folder of its own beside it."""
    weighted = tuple(part.takes_weights for part in parts.values())
    return single_file(mean_prediction).rstrip() + "\n" + LOADER_OF_TWO.format(names=tuple(parts), weighted=weighted)


def with_loader(text: str, name: str) -> str:
    return text.rstrip() + "\n" + LOADER.format(name=name)


def own_source(name: str) -> tuple[str, str]:
    """Returns the text of the file that makes a model which is not Graft's own, and what makes it there."""
    reference = parse_reference(name)
    if reference is not None and reference.is_file:
        with explained(f"{reference.path} cannot be read", InputError):
            return reference.path.read_text(encoding="utf-8"), reference.attribute
    if name.startswith(PYG):
        entry: Any = MODELS[parse_model(name)[0]]
        return inspect.getsource(import_module(entry.__module__)), entry.__name__
    raise InputError(
        "Only a model that is given as my_model.py:Net can be exported with its source; for one that was given as an "
        "object, result.client(...).module() returns it with its weights."
    )
