"""The folder `best` of a run directory: the models of the best round, and one JSON file that accounts for them.

The checkpoint lists the best models of its own round as well. So a run that failed after a better round keeps the
models of that round for predictions, and those of its checkpoint to go on from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from graft.errors import InputError, RunError
from graft.experiments.best_models import RoundModels
from graft.experiments.checkpoints import (
    STRICT,
    Origin,
    StoredModels,
    read_sealed,
    remove_others,
    write_sealed,
)
from graft.experiments.record_files import as_stored
from graft.experiments.state_checks import check_finite
from graft.experiments.tensor_files import read_tree, write_tree
from graft.files import canonical, checksum, explained, printable

FORMAT = "graft-best-1"
NAME = "best.json"


@dataclass(frozen=True)
class Contents:
    """What best.json holds; it is bound to the experiment beside it."""

    format: str
    origin: Origin
    models: dict[str, StoredModels]  # by kind: own, global
    records: dict[str, str]  # checksums of the lines of rounds.jsonl about these rounds, but for their seconds

    __pydantic_config__ = STRICT


CONTENTS = TypeAdapter(Contents)


class BestFiles:
    """Writes the models of the best round so far, those that changed since the last time."""

    def __init__(self, folder: Path, origin: Origin, checkpointed: Mapping[str, StoredModels] | None = None) -> None:
        self.folder, self.origin = folder, origin
        self._checkpointed = dict(checkpointed or {})  # what the last checkpoint lists, which must stay
        self._written: dict[str, tuple[RoundModels, StoredModels]] = {}

    def write_models(self, kept: Mapping[str, RoundModels]) -> dict[str, StoredModels]:
        """Writes tensors beside those that are there; nothing lists them yet."""
        for kind, models in kept.items():
            if kind in self._written and self._written[kind][0] is models:
                continue
            try:
                check_finite(models.tree, f"the {kind} models")
            except ValueError as error:
                raise RunError(f"The models of round {models.round} are not kept: {error}.") from None
            with explained(f"The models of round {models.round} cannot be written to {self.folder}", RunError):
                self.folder.mkdir(exist_ok=True)
                self._written[kind] = models, StoredModels(models.round, write_tree(models.tree, self.folder))
        return {kind: self._written[kind][1] for kind in kept}

    def commit(self, kept: Mapping[str, RoundModels], bound_to: str, *, checkpointed: bool) -> None:
        """Lists models that were written as the best ones, and removes what neither this nor the checkpoint lists."""
        if not kept:
            self._forget()
            return
        stored = {kind: self._written[kind][1] for kind in kept}
        if checkpointed:
            self._checkpointed = stored
        records = {kind: record_checksum(models.record) for kind, models in kept.items()}
        with explained(f"{self.folder / NAME} cannot be written", RunError):
            contents = Contents(FORMAT, self.origin, stored, records)
            write_sealed(self.folder / NAME, asdict(contents), bound_to)
            listed = [*stored.values(), *self._checkpointed.values()]
            remove_others(self.folder, {NAME, *(file.name for models in listed for file in models.tree.files)})

    def _forget(self) -> None:
        """Removes models of rounds that are no longer on record."""
        if self.folder.exists():
            with explained(f"{self.folder} cannot be written to", RunError):
                (self.folder / NAME).unlink(missing_ok=True)  # first: without it nothing else means anything
                remove_others(self.folder, set())

    def read_models(self, stored: Mapping[str, StoredModels], records: list[dict[str, Any]]) -> dict[str, RoundModels]:
        """Returns the models that a checkpoint lists, to go on with; a `ValueError` if they are damaged."""
        kept = read_models(self.folder, stored, records)
        self._written = {kind: (models, stored[kind]) for kind, models in kept.items()}
        self._checkpointed = dict(stored)
        return kept


def read_models(
    folder: Path, stored: Mapping[str, StoredModels], records: list[dict[str, Any]]
) -> dict[str, RoundModels]:
    """Returns stored models with the records of their rounds; a `ValueError` if they are damaged."""
    for kind, models in stored.items():
        if models.round > len(records):
            raise ValueError(f"round {models.round} of its {kind} models is not on record")
    return {
        kind: RoundModels(records[models.round - 1], read_tree(models.tree, folder)) for kind, models in stored.items()
    }


def load_best(folder: Path, records: list[dict[str, Any]], bound_to: str) -> tuple[Origin, dict[str, RoundModels]]:
    """Returns where the best models on disk come from, and the models, of which every byte is what was written."""
    path = folder / NAME
    with explained(f"{path} cannot be read", InputError):
        try:
            contents = read_sealed(path, CONTENTS, FORMAT, "models", bound_to)
            kept = read_models(folder, contents.models, records)
            expected = {kind: record_checksum(models.record) for kind, models in kept.items()}
            if contents.records != expected:
                raise ValueError("its models are not those of the rounds on record")
            return contents.origin, kept
        except (ValueError, AttributeError, TypeError) as error:
            raise InputError(f"{path} is damaged or not of the run beside it: {printable(error)}.") from error


def record_checksum(record: Mapping[str, Any]) -> str:
    """Returns a checksum of what a round found out, however long it took."""
    return checksum(canonical(as_stored({name: value for name, value in record.items() if name != "seconds"})))
