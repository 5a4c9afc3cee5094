"""Where a model is exported to, and in which formats; checked before PyTorch is imported."""

from __future__ import annotations

from pathlib import Path

from graft.errors import InputError
from graft.files import explained

CARD, CONFIG = "MODEL_CARD.md", "config.json"
FORMATS = {"torchscript": "model.pt", "onnx": "model.onnx"}  # beside model.py, by the names of their files


def check_format(format: str | None) -> None:
    """Refuses a format that there is not."""
    if format is not None and format not in FORMATS:
        raise InputError(f"There is no format '{format}'; choose one of {', '.join(FORMATS)}.")


def check_export_folder(folder: Path, overwrite: bool) -> None:
    """Refuses a folder that holds something, unless it is an earlier export that may be overwritten."""
    with explained(f"{folder} cannot be written to", InputError):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; an export needs a folder.")
        held = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        if held and not overwrite:
            raise InputError(f"{folder} exists already; choose another --out, or --overwrite it.")
        if held and not {CARD, CONFIG} <= held:
            raise InputError(f"{folder} is not an exported model, so it is not overwritten.")
        if not folder.parent.is_dir():
            raise InputError(f"{folder} cannot be written to: there is no folder {folder.parent}.")
