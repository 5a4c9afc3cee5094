"""Experiments as TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from graft.data.data_file import KEYS
from graft.errors import InputError
from graft.experiments.experiment import Experiment
from graft.files import read_text

OF_DATA_FILES = set(KEYS) - {"clients"}  # keys that no experiment has
NONE = "none"  # the key that names the settings that are None, which TOML has no word for


def read_experiment(path: Path) -> dict[str, Any]:
    """Returns the values in an experiment file."""
    if path.is_dir() or path.suffix == ".npz":
        raise InputError(f"{path} is no experiment file, which is TOML; data are given as --graphs {path}.")
    try:
        values = tomllib.loads(read_text(path))
        unset = values.pop(NONE, [])
        if unset:
            values["settings"] = {**values.get("settings", {}), **dict.fromkeys(unset)}
    except FileNotFoundError:
        raise InputError(f"There is no experiment file {path}.") from None
    except (OSError, ValueError, TypeError, RecursionError) as error:  # a TOMLDecodeError or a UnicodeError too
        raise InputError(f"{path} is not a readable TOML file: {error}.") from error
    if values.keys() & OF_DATA_FILES or isinstance(values.get("clients"), dict):
        raise InputError(f"{path} is a data file, not an experiment: give it as the dataset, --dataset {path}.")
    return values


def experiment_text(experiment: Experiment) -> str:
    """Returns the TOML of an experiment; settings that are None are listed by name, for TOML has no word for it."""
    values = asdict(experiment)
    settings = values.pop("settings")
    unset = sorted(name for name, value in settings.items() if value is None)
    chosen = {name: value for name, value in settings.items() if value is not None}
    return tomli_w.dumps({**values, **({NONE: unset} if unset else {}), "settings": chosen})


def given_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the method among the values of an experiment."""
    settings = values.get("settings", {})
    if not isinstance(settings, dict):
        raise InputError(f"settings is {settings!r}; it should be a table of the method's fields.")
    return settings
