"""The run directory: experiment.toml, rounds.jsonl, result.json, checkpoint/ and report.html."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor

from graft.errors import InputError
from graft.tensors.trees import Tree, flatten, unflatten

FORMAT = "graft-checkpoint-1"
FILE_BYTES = 256 * 10**6  # about how large a file of a checkpoint may get


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on: state is data, and random draws need no state."""

    round: int
    server: Tree
    clients: dict[int, Tree]
    facts: dict[str, Any]  # best rounds, bytes so far, seconds so far, content hash of the partition


class RunDirectory:
    """Where a run keeps its record; every file is replaced whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.toml"
        self.rounds = path / "rounds.jsonl"
        self.result = path / "result.json"
        self.report = path / "report.html"

    def create(self, overwrite: bool) -> None:
        """Make the directory; one that holds something is refused, or with `overwrite` emptied if it is a run."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; a run needs a directory.")
        if self.path.is_dir() and any(self.path.iterdir()):
            if not overwrite:
                raise InputError(f"{self.path} exists already; choose another --out, or --overwrite it.")
            if not self.experiment.exists():
                raise InputError(f"{self.path} is not a run directory, so it is not overwritten.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise InputError(f"{self.path} cannot be written to: {error.strerror}.") from error
        for name in ("rounds.jsonl", "result.json", "report.html", "partition.json"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / "checkpoint", ignore_errors=True)

    def append_round(self, record: Mapping[str, Any]) -> None:
        with self.rounds.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def read_rounds(self, until: int | None = None) -> list[dict[str, Any]]:
        """The rounds on record, up to one of them; a line that was cut off by a crash is dropped."""
        records: list[dict[str, Any]] = []
        if self.rounds.exists():
            for line in self.rounds.read_text(encoding="utf-8").splitlines():
                try:
                    records.append(json.loads(line))
                except ValueError:
                    break
        return [record for record in records if until is None or record["round"] <= until]

    def rewrite_rounds(self, records: list[dict[str, Any]]) -> None:
        write_text(self.rounds, "".join(json.dumps(record) + "\n" for record in records))

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_text(self.result, json.dumps(result, indent=1) + "\n")

    def read_result(self) -> dict[str, Any]:
        try:
            result = json.loads(self.result.read_text(encoding="utf-8"))
            result["accuracy"]["test"]
        except FileNotFoundError:
            raise InputError(f"{self.path} holds no result.json: it is not a finished run.") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.result} is damaged or not a Graft result: {error}.") from error
        return result  # type: ignore[no-any-return]

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint beside the old one, then swap: there is always a whole one."""
        everyone = {"server": checkpoint.server, **{f"client{k}": tree for k, tree in checkpoint.clients.items()}}
        new, now, old = (self.path / name for name in ("checkpoint.new", "checkpoint", "checkpoint.old"))
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        for number, tensors in enumerate(in_files(everyone)):
            save_file(tensors, new / f"state{number or ''}.safetensors")
        about = {
            "format": FORMAT,
            "round": checkpoint.round,
            "clients": len(checkpoint.clients),
            "numbers": {path: leaf for path, leaf in flatten(everyone) if not isinstance(leaf, Tensor)},
            "order": [path for path, _ in flatten(everyone)],  # safetensors sorts, and order is part of a tree
            "facts": checkpoint.facts,
        }
        write_text(new / "checkpoint.json", json.dumps(about) + "\n")
        shutil.rmtree(old, ignore_errors=True)
        if now.exists():
            now.rename(old)
        new.rename(now)
        shutil.rmtree(old, ignore_errors=True)

    def load(self) -> Checkpoint:
        folder = self.path / "checkpoint"
        if not folder.exists():  # a crash between the two renames leaves the old one
            folder = self.path / "checkpoint.old"
        if not folder.exists():
            raise InputError(f"{self.path} holds no checkpoint to resume from.")
        try:
            about = json.loads((folder / "checkpoint.json").read_text(encoding="utf-8"))
            if about["format"] != FORMAT:
                raise ValueError(f"its format is {about['format']!r}, not {FORMAT!r}")
            values = dict(about["numbers"])
            for file in folder.glob("state*.safetensors"):
                values |= load_file(file)
            state = unflatten({path: values[path] for path in about["order"]})
            clients = {client: state.get(f"client{client}", Tree()) for client in range(about["clients"])}
            return Checkpoint(about["round"], state.get("server", Tree()), clients, about["facts"])
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            raise InputError(f"The checkpoint in {folder} is damaged or not Graft's: {error}.") from error


def in_files(tree: Any) -> Iterator[dict[str, Tensor]]:
    """Copies of all tensors, so many at a time that state which lives on disk never is in memory as a whole."""
    waiting: dict[str, Tensor] = {}
    size = 0
    for path, leaf in flatten(tree):
        if isinstance(leaf, Tensor):
            waiting[path] = leaf.detach().cpu().contiguous().clone()
            size += leaf.nbytes
        if size >= FILE_BYTES:
            yield waiting
            waiting, size = {}, 0
    yield waiting


def write_text(path: Path, text: str) -> None:
    """Replace a file in one go."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
