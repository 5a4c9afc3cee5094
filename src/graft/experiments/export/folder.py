"""The folder that a model is exported to, and whether it holds what it should."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
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
from graft.experiments.export.modules import Part, build_predictor, state_of
from graft.experiments.export.sources import Source, source_of, source_of_two
from graft.files import explained

FORMAT = "graft-export-1"


@dataclass(frozen=True)
class Export:
    """What is to be exported: a model, or two by name that predict by their mean."""

    about: Described
    parts: Mapping[str, Part]
    settings: dict[str, Any]  # of the experiment: features, classes, width, dropout, head


def write_export(export: Export, folder: Path, format: str | None = None, *, overwrite: bool = False) -> Path:
    """Writes a folder whose model.py gives the same logits; it is there as a whole or not at all."""
    check_format(format)
    check_export_folder(folder, overwrite)
    parts = list(export.parts.values())
    sources = {name: source_of(part.architecture, part.name, export.settings) for name, part in export.parts.items()}
    module = build_predictor(parts)
    kind = InputKind(export.about.preparation.features, any(part.takes_weights for part in parts))
    with explained(f"{folder} cannot be written to", InputError):
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            write_files(draft, export, sources)
            check_copy(draft, module, kind)
            for compiled in draft.rglob("__pycache__"):
                shutil.rmtree(compiled, ignore_errors=True)
            if format is not None:
                WRITERS[format](module, kind, draft / FORMATS[format])
            draft.chmod(0o755)  # a temporary folder is its owner's alone
            if folder.exists():
                shutil.rmtree(folder)
            draft.replace(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def write_files(draft: Path, export: Export, sources: Mapping[str, Source]) -> None:
    about, preparation = export.about, export.about.preparation
    config = {
        "format": FORMAT,
        **write_models(draft, export.parts, sources),
        "architecture": about.architecture,
        "features": preparation.features,
        "feature_names": None if preparation.feature_names is None else list(preparation.feature_names),
        "classes": list(about.class_names),
        "client": about.client,
        "kind": about.kind,
        "method": about.method_name,
        "round": about.round,
    }
    write_json(draft / CONFIG, config)
    write_json(draft / "preparation.json", preparation.to_json())
    (draft / CARD).write_text(write_card(about), encoding="utf-8")


def write_models(draft: Path, parts: Mapping[str, Part], sources: Mapping[str, Source]) -> dict[str, Any]:
    """Writes weights and sources, of two models each in a folder of its own; returns what config.json says of them."""
    if len(parts) == 1:
        ((name, part),) = parts.items()
        return write_model(draft, part, sources[name])
    for name, part in parts.items():
        (draft / name).mkdir()
        write_json(draft / name / CONFIG, write_model(draft / name, part, sources[name]))
    (draft / "model.py").write_text(source_of_two(parts), encoding="utf-8")
    return {"models": list(parts)}


def write_model(folder: Path, part: Part, source: Source) -> dict[str, Any]:
    state = {name: leaf.contiguous() for name, leaf in state_of(part.architecture, part.weights).items()}
    (folder / "model.safetensors").write_bytes(safetensors.torch.save(state))
    (folder / "model.py").write_text(source.text, encoding="utf-8")
    return {"model": source.settings}


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


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
