"""The folder that a model is exported to, and whether it holds what it should."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from graft.errors import InputError
from graft.experiments.export.card import Described, write_card
from graft.experiments.export.destination import CARD, CONFIG, FORMATS, check_export_folder, check_format
from graft.experiments.export.formats import TOLERANCE, WRITERS, InputKind, first_line, largest_difference
from graft.experiments.export.modules import build_module, state_of
from graft.experiments.export.sources import Source, source_of
from graft.files import explained
from graft.tensors.trees import Tree

FORMAT = "graft-export-1"


@dataclass(frozen=True)
class Export:
    """A model that is to be exported."""

    about: Described
    weights: Tree
    name: str  # of the model in the experiment, as gcn4 or my_model.py:Net
    settings: dict[str, Any]  # of the experiment: features, classes, width, dropout, head


def write_export(export: Export, folder: Path, format: str | None = None, *, overwrite: bool = False) -> Path:
    """Writes a folder whose model.py gives the same logits; it is there as a whole or not at all."""
    check_format(format)
    check_export_folder(folder, overwrite)
    about = export.about
    source = source_of(about.architecture, export.name, export.settings)
    module = build_module(about.architecture, export.weights)
    kind = InputKind(about.preparation.features, getattr(about.architecture, "takes_weights", True))
    with explained(f"{folder} cannot be written to", InputError):
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            write_files(draft, export, source)
            check_copy(draft, module, kind)
            shutil.rmtree(draft / "__pycache__", ignore_errors=True)
            if format is not None:
                WRITERS[format](module, kind, draft / FORMATS[format])
            draft.chmod(0o755)  # a temporary folder is its owner's alone
            if folder.exists():
                shutil.rmtree(folder)
            draft.replace(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def write_files(draft: Path, export: Export, source: Source) -> None:
    about = export.about
    state = {name: leaf.contiguous() for name, leaf in state_of(about.architecture, export.weights).items()}
    (draft / "model.safetensors").write_bytes(safetensors.torch.save(state))
    (draft / "model.py").write_text(source.text, encoding="utf-8")
    preparation = about.preparation
    config = {
        "format": FORMAT,
        "model": source.settings,
        "architecture": about.architecture.name,
        "features": preparation.features,
        "feature_names": None if preparation.feature_names is None else list(preparation.feature_names),
        "classes": list(about.class_names),
        "client": about.client,
        "kind": about.kind,
        "method": about.method_name,
        "round": about.round,
    }
    (draft / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    text = json.dumps(preparation.to_json(), indent=1)
    (draft / "preparation.json").write_text(f"{text}\n", encoding="utf-8")
    (draft / CARD).write_text(write_card(about), encoding="utf-8")


def check_copy(draft: Path, module: nn.Module, kind: InputKind) -> None:
    """Refuses a copy that cannot be loaded on its own, or gives other logits than the model."""
    try:
        spec = spec_from_file_location("graft_exported_model", draft / "model.py")
        assert spec is not None
        assert spec.loader is not None
        loaded = module_from_spec(spec)
        spec.loader.exec_module(loaded)
        copy = loaded.load()
        with torch.no_grad():
            difference = largest_difference(module, kind, copy)
    except Exception as error:  # a file that somebody brought may raise anything
        raise InputError(f"The exported model.py cannot be used: {first_line(error)}.") from error
    if difference > TOLERANCE:
        raise InputError(f"The exported model.py gives other logits than the model, by {difference:.1g}.")
