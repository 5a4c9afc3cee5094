"""Whether a run may be put into a folder."""

from __future__ import annotations

from pathlib import Path

from graft.errors import InputError
from graft.files import PART, explained

EXPERIMENT = "experiment.toml"
LOCK = ".lock"


def check_free(path: Path, overwrite: bool) -> None:
    """Refuses a folder that holds something, unless it is an earlier run that may be overwritten."""
    with explained(f"{path} cannot be written to", InputError):
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file; a run needs a directory.")
        held = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    if any(name != LOCK and not name.endswith(PART) for name in held):
        if not overwrite:
            raise InputError(f"{path} exists already; choose another --out, or --overwrite it.")
        if not {EXPERIMENT, LOCK} & held:
            raise InputError(f"{path} is not a run directory, so it is not overwritten.")
