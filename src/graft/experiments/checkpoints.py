"""Checkpoints: all that a run needs to go on, in a folder whose one JSON file accounts for every other."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Le
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor

from graft.engines.state_files import StateFiles
from graft.errors import InputError, RunError
from graft.experiments.experiment import MOST_THREADS
from graft.experiments.state_checks import check_finite
from graft.experiments.state_log import LoggedStates, StateLog, StoredStates
from graft.experiments.tensor_files import StoredFile, StoredTree, read_tree, write_tree
from graft.files import explained, parse_json, parse_sealed, printable, read_text, seal, sync_folder, write_bytes
from graft.tensors.trees import Tree, map_tree

FORMAT = "graft-checkpoint-3"
SOME_FORMAT = "graft-checkpoint-4"  # of a run whose clients are read on demand: with states of those who took part

Count = Annotated[int, Ge(0), Le(2**62)]  # which PyTorch can count up to
MAY_CHANGE = ("address", "max_failures")  # fields of an experiment that have no say in its numbers
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Origin:
    """What a run began with and must be the same when it goes on, or the result would be another."""

    experiment: str  # the text of experiment.toml: all settings, resolved, the method's own fields among them
    models: str  # checksum of the architectures
    data: str  # checksum of the data of all clients
    device: str
    threads: Annotated[int, Ge(1), Le(MOST_THREADS)]
    memory: Count  # bytes that clients are planned to fit into, which decides what is computed together
    code: str = ""  # checksum of the files of a method, models or data that are not Graft's own

    __pydantic_config__ = STRICT

    def check_experiment(self, experiment: str) -> None:
        """Refuses to go on with another experiment, and says what is different."""
        before, now = _settings(self.experiment), _settings(experiment)
        changes = [
            f"{name} is {now.get(name, 'not set')}, it was {before.get(name, 'not set')}"
            for name in dict.fromkeys([*before, *now])
            if name not in MAY_CHANGE and before.get(name) != now.get(name)
        ]
        if changes:
            more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
            raise InputError(f"The experiment is not what this run began with: {'; '.join(changes[:3])}{more}.")

    def check(self, now: Origin) -> None:
        """Refuses to go on with other settings, data or models, or on another device."""
        self.check_experiment(now.experiment)
        if now.data != self.data:
            raise InputError(
                "The data or its partition is not what this run began with: its hash is "
                f"{now.data[:16]}, the checkpoint's {self.data[:16]}."
            )
        if now.models != self.models:
            raise InputError("The models are not those that this run began with.")
        if now.code != self.code:
            raise InputError("The file of the method, of a model or of the dataset has changed since this run began.")
        if now.device != self.device:
            raise InputError(
                f"This run began on the device {self.device}, and goes on there only, not on {now.device}."
            )


def _settings(experiment: str) -> dict[str, str]:
    """Returns the settings of an experiment by name, in words that tell 1 from 1.0 and true."""
    try:
        values = tomllib.loads(experiment)
        own = {f"settings.{name}": value for name, value in values.pop("settings", {}).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"The experiment that the checkpoint began with cannot be read: {error}.") from None
    return {name: repr(value) for name, value in {**values, **own}.items()}


@dataclass(frozen=True)
class StoredModels:
    """What a JSON file says of the models of a round whose tensors are in the folder `best`."""

    round: Annotated[int, Ge(1)]
    tree: StoredTree

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on, beside the rounds on record: random draws need no state."""

    round: int  # 0 before the first
    server: Tree
    clients: Mapping[int, Tree]
    origin: Origin
    rounds_checksum: str  # of the lines of rounds.jsonl up to this round, from which scores and traffic follow
    finished: bool = False  # all rounds were run, or patience is at its end
    best: Mapping[str, StoredModels] = field(default_factory=dict)  # the models of the best round so far, by kind
    names: Sequence[str] | None = None  # what clients are called in sentences; not written

    def client_name(self, client: int) -> str:
        return f"client {client if self.names is None else self.names[client]}"


@dataclass(frozen=True)
class Contents:
    """What checkpoint.json holds."""

    format: str
    round: Count
    clients: Annotated[int, Ge(0), Le(10**6)]
    origin: Origin
    rounds_checksum: str
    finished: bool
    best: dict[str, StoredModels]
    order: list[str]  # this and the next two are those of a `StoredTree`
    numbers: dict[str, bool | int | float]
    files: list[StoredFile]

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class SomeContents(Contents):
    """What checkpoint.json holds of a run whose clients are read on demand: the tree is that of the server."""

    states: list[StoredStates]  # of `clients` clients in all


CONTENTS, SOME_CONTENTS = TypeAdapter(Contents), TypeAdapter(SomeContents)
Schema = TypeVar("Schema")


def save_checkpoint(folder: Path, checkpoint: Checkpoint, log: StateLog | None = None) -> StateLog:
    """Writes a checkpoint; it takes the place of the last one in the moment when its JSON file does.

    Where clients are read on demand, `log` says what of their states the last one holds; returned is that of this one.
    """
    states = checkpoint.clients if isinstance(checkpoint.clients, StateFiles) else None
    check_checkpoint(checkpoint if states is None else replace(checkpoint, clients={}))
    with explained(f"The checkpoint of round {checkpoint.round} cannot be written to {folder}", RunError):
        folder.mkdir(exist_ok=True)
        stored = write_tree(state_by_owner(checkpoint) if states is None else {"server": checkpoint.server}, folder)
        log = write_log(log or StateLog(), checkpoint, states, folder) if states is not None else StateLog()
        parts = (
            checkpoint.round,
            len(checkpoint.clients),
            checkpoint.origin,
            checkpoint.rounds_checksum,
            checkpoint.finished,
            dict(checkpoint.best),
            stored.order,
            stored.numbers,
            stored.files,
        )
        contents = Contents(FORMAT, *parts) if states is None else SomeContents(SOME_FORMAT, *parts, log.stored)
        write_sealed(folder / "checkpoint.json", asdict(contents))
        files = [*stored.files, *(file for part in log.stored for file in part.tree.files)]
        remove_others(folder, {"checkpoint.json", *(file.name for file in files)})
    return log


def write_log(log: StateLog, checkpoint: Checkpoint, states: StateFiles, folder: Path) -> StateLog:
    """Writes the states of clients that changed since the last checkpoint; refuses those that are no numbers."""
    try:
        return log.write(states, folder, checkpoint.client_name)
    except ValueError as error:
        raise not_kept(checkpoint, error) from None


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Refuses state that is no number, which nothing could go on from."""
    try:
        check_finite(checkpoint.server, "the server")
        for client, state in checkpoint.clients.items():
            check_finite(state, checkpoint.client_name(client))
    except ValueError as error:
        raise not_kept(checkpoint, error) from None


def not_kept(checkpoint: Checkpoint, error: ValueError) -> RunError:
    return RunError(f"Round {checkpoint.round} is not kept as a checkpoint: {error}.")


def state_by_owner(checkpoint: Checkpoint) -> dict[str, Tree]:
    return {"server": checkpoint.server, **{f"client{k}": tree for k, tree in checkpoint.clients.items()}}


def write_sealed(path: Path, content: Mapping[str, Any], *bound_to: str) -> None:
    """Puts a JSON file with a checksum into its place; it is on the disk, and so is its folder, when this returns."""
    text = json.dumps(seal(content, *bound_to), allow_nan=False)
    write_bytes(path, f"{text}\n".encode())
    sync_folder(path.parent.parent)


def remove_others(folder: Path, current: set[str]) -> None:
    """Removes what the JSON file of a folder does not list any more, and what a crash left there."""
    for path in folder.iterdir():
        if path.name not in current:
            path.unlink()


def load_checkpoint(folder: Path) -> Checkpoint:
    """Returns the checkpoint in a folder, of which every byte is what was written."""
    with explained(f"The checkpoint in {folder} cannot be read", InputError):
        try:
            contents = read_contents(folder / "checkpoint.json")
            state = read_tree(StoredTree(contents.order, contents.numbers, contents.files), folder)
            server = map_tree(_copied, state.get("server", {}))
            clients = read_clients(contents, state, folder)
            return Checkpoint(
                contents.round,
                server,
                clients,
                contents.origin,
                contents.rounds_checksum,
                contents.finished,
                contents.best,
            )
        except (ValueError, AttributeError, TypeError) as error:
            raise InputError(f"The checkpoint in {folder} is damaged or not Graft's: {printable(error)}.") from error


def read_clients(contents: Contents, state: Tree, folder: Path) -> Mapping[int, Tree]:
    """Returns the states of clients that a checkpoint holds: of all, or of those that took part."""
    if not isinstance(contents, SomeContents):
        return {client: Tree(state.get(f"client{client}", {})) for client in range(contents.clients)}
    clients = LoggedStates(contents.states, folder)
    if len(clients) != contents.clients:
        raise ValueError(f"it has the states of {len(clients)} clients, not of {contents.clients}")
    return clients


def _copied(leaf: Any) -> Any:
    """Returns a leaf where PyTorch would put it, for some products depend on where numbers lie in memory."""
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def read_contents(path: Path) -> Contents:
    """Returns what a checkpoint.json holds, checked against its checksum and its schema."""
    sealed = parse_json(read_text(path))
    some = isinstance(sealed, dict) and sealed.get("format") == SOME_FORMAT
    where = f"The checkpoint in {path.parent}"
    if some:
        return parse_sealed(sealed, SOME_CONTENTS, SOME_FORMAT, where)
    return parse_sealed(sealed, CONTENTS, FORMAT, where)


def read_sealed(path: Path, schema: TypeAdapter[Schema], format: str, what: str, *bound_to: str) -> Schema:
    """Returns what a JSON file of a run holds, checked against its checksum, its format and its schema."""
    return parse_sealed(parse_json(read_text(path)), schema, format, f"The {what} in {path.parent}", *bound_to)
