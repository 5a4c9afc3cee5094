"""Writes federation.toml with a comment on every line that a person may want to change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w
from typing_extensions import Doc

from graft.experiments.federation_file import FederationFile
from graft.fields import notes_of
from graft.files import write_text

COLUMN = 45  # where comments begin


def write_federation(path: Path, file: FederationFile) -> None:
    """Writes a federation, for `read_federation` to read back."""
    write_text(path, federation_text(file))


def federation_text(file: FederationFile) -> str:
    """Returns the TOML of a federation, with comments."""
    lines = [_line("name", file.name, "of the federation")]
    if not file.peers:
        lines += [
            _line("server", file.server, "common name of its certificate"),
            _line("address", file.address, "where it listens; parties connect to it"),
            _line("parties", list(file.parties), "common names of theirs; the order gives their numbers"),
        ]
    classes = file.classes if isinstance(file.classes, int) else list(file.classes)
    lines.append(_line("classes", classes, "all there are; a party may lack some"))
    if file.positive is not None:
        lines.append(_line("positive", file.positive, "the class of interest"))
    if file.features is not None:
        features = file.features if isinstance(file.features, int) else list(file.features)
        lines.append(_line("features", features, "number or names"))
    sections = ["\n".join(lines) + "\n"]
    if file.peers:
        sections.append(_table("peers", file.peers, "common name of each certificate, and where each listens"))
    if file.values:
        sections.append(_table("experiment", file.values))
    if file.settings:
        sections.append(_table("settings", file.settings, "of the method"))
    schema = file.schema.to_toml()
    if schema:
        sections.append(f"# How tables are read; only columns that are named here become features.\n{schema}")
    for name, rules in (("rounds", file.rounds), ("limits", file.limits)):
        sections.append("\n".join([f"[{name}]", *_described(rules)]) + "\n")
    return "\n".join(sections)


def _line(key: str, value: Any, comment: str = "") -> str:
    text = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    return f"{text:<{COLUMN}}  # {comment}" if comment else text


def _table(name: str, values: Mapping[str, Any], comment: str = "") -> str:
    text = tomli_w.dumps({name: dict(values)})
    header, _, rest = text.partition("\n")
    return f"{header}  # {comment}\n{rest}" if comment else text


def _described(rules: Any) -> list[str]:
    """Returns a line for every field, with its meaning; one that is not set is a comment."""
    hints = get_type_hints(type(rules), include_extras=True)
    lines = []
    for entry in fields(rules):
        value = getattr(rules, entry.name)
        meaning = next(note.documentation for note in notes_of(hints[entry.name]) if isinstance(note, Doc))
        comment = meaning[:1].lower() + meaning[1:].rstrip(".")
        lines.append(_line(entry.name, value, comment) if value is not None else f"# {entry.name} = ...  # {comment}")
    return lines
