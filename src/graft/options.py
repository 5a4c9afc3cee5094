"""Options in a text, as in `louvain:resolution=20` or `--set mu=0.1`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from graft.errors import InputError

MOST_SEEDS = 10_000  # more than this are a mistake


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


def parse_seeds(text: str) -> tuple[int, ...]:
    """Returns the seeds of a text: '5' means 0 to 4; a list such as '0,3' or '7,' means these."""
    parts = [part.strip() for part in text.split(",")]
    try:
        numbers = [int(part) for part in parts if part]
    except ValueError:
        raise InputError(f"--seeds is '{text}'; it should be a number, as 5, or a list, as 0,1,7.") from None
    counted = len(parts) == 1 and len(numbers) == 1
    if counted and numbers[0] > MOST_SEEDS:
        raise InputError(f"--seeds is '{text}'; {MOST_SEEDS} are the most, and one seed alone is written as '{text},'.")
    seeds = tuple(range(numbers[0])) if counted else tuple(dict.fromkeys(numbers))
    if not seeds or min(seeds) < 0:
        raise InputError(f"--seeds is '{text}'; at least one seed is needed, and none below 0.")
    return seeds


def check_jobs(jobs: int | None) -> int | None:
    """Returns a number of worker processes; one below 1 is refused."""
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs is {jobs}; it must be at least 1.")
    return jobs
