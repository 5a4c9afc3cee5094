"""A data file: a TOML file that says where the data of clients are, and what their columns mean."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.data.schema import ClientFiles, Schema, check_keys, parse_schema
from graft.errors import InputError

KEYS = ("clients", "schema", "nodes", "edges", "folder")
LARGEST_FILE = 2**20  # bytes
LONGEST_NAME = 100  # letters
NOT_IN_NAMES = set('/\\:*?"<>|')


@dataclass(frozen=True)
class DataFile:
    """What a data file says; either it has clients, or it is of a single dataset."""

    path: Path
    clients: dict[str, ClientFiles]
    schema: Schema
    single: ClientFiles | None = None


def read_data_file(path: Path) -> DataFile:
    """Returns what a data file says; files are looked for beside it."""
    content = _read_toml(path)
    check_keys(content, KEYS, str(path))
    schema = parse_schema(content.get("schema", {}), str(path))
    single = _single(path, content)
    clients = content.get("clients", {})
    if not isinstance(clients, Mapping):
        raise InputError(f"{path}: [clients] is a table of names and folders, not {clients!r:.60}.")
    if bool(clients) == (single is not None):
        raise InputError(
            f"{path} needs either a table [clients] with a folder or .npz file a client, or nodes and edges (or "
            f"folder) of one dataset."
        )
    check_names(str(path), clients)
    files = {name: _client_files(path, name, value) for name, value in clients.items()}
    return DataFile(path, files, schema, single)


def read_schema(path: Path) -> Schema:
    """Returns the schema of a data file, or of a file that holds nothing else."""
    content = _read_toml(path)
    return parse_schema(content.get("schema", {} if "clients" in content else content), str(path))


def check_names(where: str, names: Iterable[str]) -> None:
    """Refuses names of clients that could not be names of files, or that differ by case alone."""
    spellings: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{where}: a client's name is a text, not {name!r:.60}; a list gives clients numbers.")
        if not name.strip() or len(name) > LONGEST_NAME:
            raise InputError(f"{where}: a client's name has 1 to {LONGEST_NAME} letters, not {name!r:.60}.")
        if not name.isprintable() or set(name) & NOT_IN_NAMES or name in (".", ".."):
            raise InputError(
                f"{where}: the client's name {name!r} could not be that of a file; leave out control characters and "
                f'/ \\ : * ? " < > |.'
            )
        if name.casefold() in spellings:
            raise InputError(
                f"{where}: the clients '{spellings[name.casefold()]}' and '{name}' differ by case alone; rename one."
            )
        spellings[name.casefold()] = name


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is larger than a data file can be ({LARGEST_FILE} bytes).")
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"{path} is not a readable TOML file: {error}.") from error


def _single(path: Path, content: Mapping[str, Any]) -> ClientFiles | None:
    given = {key: content[key] for key in ("nodes", "edges", "folder") if key in content}
    if not given:
        return None
    if "folder" in given:
        if len(given) > 1:
            raise InputError(f"{path}: give either folder, or nodes and edges.")
        return _client_files(path, "folder", given["folder"])
    return _client_files(path, "the dataset", given)


def _client_files(path: Path, name: str, value: Any) -> ClientFiles:
    if isinstance(value, str) and value.strip():
        located = _existing(path, name, value)
        if located.is_file() and located.suffix != ".npz":
            raise InputError(
                f"{path}, {name}: {located} is no .npz file; of tables, give the folder that holds them, or "
                f"{{nodes = ..., edges = ...}}."
            )
        return ClientFiles(path=located)
    if isinstance(value, Mapping):
        check_keys(value, ("nodes", "edges"), f"{path}, {name}")
        missing = [key for key in ("nodes", "edges") if not isinstance(value.get(key), str) or not value[key].strip()]
        if missing:
            raise InputError(f"{path}, {name}: {' and '.join(missing)} must name a file.")
        return ClientFiles(
            nodes_file=_existing(path, name, value["nodes"]), edges_file=_existing(path, name, value["edges"])
        )
    raise InputError(
        f"{path}, {name}: the data of a client are a folder, a .npz file, or {{nodes = ..., edges = ...}}, not "
        f"{value!r:.60}."
    )


def _existing(path: Path, name: str, relative: str) -> Path:
    located = path.parent / relative
    try:
        exists = located.exists()
    except (OSError, ValueError):
        exists = False
    if not exists:
        raise InputError(f"{path}, {name}: there is no file or folder {located}.")
    return located
