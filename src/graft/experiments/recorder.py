"""What a run puts on record while it goes on, and what it takes from there when it is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from graft.data import cards
from graft.data.federation import FederationData
from graft.engines.failures import EngineLost
from graft.errors import InputError, RunError
from graft.experiments.best_files import BestFiles
from graft.experiments.best_models import RoundModels
from graft.experiments.checkpoints import Checkpoint, Origin, StoredModels, check_checkpoint
from graft.experiments.experiment import Experiment, own_files
from graft.experiments.experiment_files import experiment_text
from graft.experiments.prepared_data import describe_data, save_prepared
from graft.experiments.run_directory import RunDirectory
from graft.experiments.state_checks import check_state
from graft.experiments.state_log import LoggedStates, StateLog
from graft.federation.session import SessionState
from graft.federation.setup import Setup
from graft.files import checksum, printable
from graft.models.assigned import models_checksum


class Recorder:
    """The record of one run in its directory."""

    def __init__(self, directory: RunDirectory, origin: Origin, names: Sequence[str] | None = None) -> None:
        self.directory, self.origin, self.names = directory, origin, names
        self._best = BestFiles(directory.best, origin)
        self._log = StateLog()  # of the states in the last checkpoint, where clients are read on demand

    def add_round(self, record: Mapping[str, Any]) -> None:
        """Puts a round on record; it counts when a checkpoint covers it."""
        self.directory.append_round(record)

    def save(
        self, number: int, state: SessionState, best: Mapping[str, RoundModels], *, finished: bool = False
    ) -> None:
        """Writes a checkpoint after a round, or of round 0 before the first, and the best models so far."""
        written = self.directory.log.checksum
        checkpoint = Checkpoint(number, state.server, state.clients, self.origin, written, finished, names=self.names)
        try:
            checkpoint = replace(checkpoint, best=self._write_models(best, checkpoint))
            self._log = self.directory.save(checkpoint, self._log)
            self._best.commit(best, self.directory.experiment_checksum(), checkpointed=True)
        except EngineLost:
            raise
        except RunError as error:
            raise RunError(f"{error}{self.last_good()}") from error

    def _write_models(self, best: Mapping[str, RoundModels], checkpoint: Checkpoint) -> dict[str, StoredModels]:
        try:
            return self._best.write_models(best)
        except RunError:
            check_checkpoint(checkpoint)  # what is wrong with the state of a round comes before what that led to
            raise

    def save_best(self, best: Mapping[str, RoundModels]) -> None:
        """Writes the best models of a run that failed, as far as that is possible; its checkpoint stays."""
        with suppress(RunError, InputError, OSError):
            self.directory.log.sync()
            self._best.write_models(best)
            self._best.commit(best, self.directory.experiment_checksum(), checkpointed=False)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Writes the result of all rounds."""
        self.directory.write_result(summary)

    def restore(self, checkpoint: Checkpoint, fresh: SessionState) -> tuple[SessionState, list[dict[str, Any]]]:
        """Returns the state and the rounds to go on from, which must be like those of a session that just began."""
        try:
            if checkpoint.clients.keys() != fresh.clients.keys():
                raise ValueError(f"it has {len(checkpoint.clients)} clients, not {len(fresh.clients)}")
            check_state(checkpoint.server, fresh.server, "the server")
            for client, state in checkpoint.clients.items():
                check_state(state, fresh.clients[client], f"client {client}", received=fresh.server)
        except ValueError as error:
            raise InputError(f"The checkpoint in {self.directory.path} is not one of this run: {error}.") from None
        self._log = StateLog.of(checkpoint.clients.stored if isinstance(checkpoint.clients, LoggedStates) else [])
        return SessionState(checkpoint.server, checkpoint.clients), self.directory.restore_rounds(checkpoint)

    def restore_best(self, checkpoint: Checkpoint, records: list[dict[str, Any]]) -> dict[str, RoundModels]:
        """Returns the best models that a checkpoint lists."""
        try:
            return self._best.read_models(checkpoint.best, records)
        except (ValueError, OSError) as error:
            raise self.damaged_best(error) from None

    def list_best(self, best: Mapping[str, RoundModels]) -> None:
        """Lists the models that a checkpoint lists as the best ones, as they are until the run gets any further."""
        self._best.commit(best, self.directory.experiment_checksum(), checkpointed=True)

    def damaged_best(self, error: Exception) -> InputError:
        """Returns what to say of best models that are not those of this run."""
        return InputError(
            f"The best models in {self.directory.best} are damaged or of another run: {printable(error)}."
        )

    def last_good(self) -> str:
        """Returns a sentence about the last checkpoint; empty where there is none."""
        number = self.directory.last_checkpoint()
        return "" if number is None else f" The checkpoint of round {number} in {self.directory.path} is good."


def origin_of(experiment: Experiment, setup: Setup, federation: FederationData, threads: int, device: str) -> Origin:
    """Returns what a run must find unchanged when it is resumed."""
    return Origin(
        experiment=experiment_text(experiment),
        models=models_checksum(setup.models),
        data=federation.data_hash,
        device=device,
        threads=threads,
        memory=setup.memory or 0,
        code=checksum(*(file.read_bytes() for file in own_files(experiment))),
    )


def open_record(
    directory: RunDirectory,
    experiment: Experiment,
    setup: Setup,
    federation: FederationData,
    threads: int,
    device: str,
    checkpoint: Checkpoint | None = None,
) -> Recorder:
    """Returns what puts a run on record: of a new one what it begins with, of one that goes on nothing else than it
    began with."""
    origin = origin_of(experiment, setup, federation, threads, device)
    if checkpoint is None:
        directory.begin(origin.experiment)
        cards.save(federation.card, (federation.clean or federation).membership, directory.partition)
        data = describe_data(federation, experiment, setup.membership is not None)
        save_prepared(directory.preparation, data, directory.experiment_checksum())
    else:
        checkpoint.origin.check(origin)
    return Recorder(directory, origin, setup.names)
