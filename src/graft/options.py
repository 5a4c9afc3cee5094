"""Options in a text, as in `louvain:resolution=20` or `--set mu=0.1`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from graft.errors import InputError


def split_options(text: str) -> tuple[str, dict[str, Any]]:
    """Splits a name from its options, as in 'louvain:resolution=20,cut=order'; a path is left alone."""
    name, colon, rest = text.partition(":")
    return (text, {}) if not colon or Path(text).exists() else (name, parse_options(rest, text))


def parse_options(text: str, whole: str = "") -> dict[str, Any]:
    """Returns the values of 'option=value,option=value'; `whole` is what a person wrote, for the error."""
    options = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"'{whole or text}' should read name:option=value,option=value.")
        options[key.strip()] = parse_value(value.strip())
    return options


def parse_value(text: str) -> Any:
    """Returns the value in `name=value`: a TOML value, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Returns the values of `--set name=value`."""
    settings = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InputError(f"--set {pair} should read --set name=value.")
        settings[name] = parse_value(text)
    return settings
