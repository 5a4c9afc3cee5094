"""What a run writes for people and programs: a line a round in rounds.jsonl, and result.json at the end.

Every line has a checksum of itself, of the lines before it and of the experiment, and result.json one of itself and of
all lines: so a record that was changed, cut or put together from two runs is refused.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from graft.errors import InputError, RunError
from graft.files import (
    canonical,
    checksum,
    explained,
    parse_json,
    printable,
    read_text,
    seal,
    sync_file,
    unseal,
    write_text,
)

FEDERATION = "federation.json"  # of a server, a party or a peer: which run of which federation its folder is of

Count = Annotated[int, Ge(0)]
Client = Count | str  # a number, or a name
Score = float | None


class Record(BaseModel):
    """Values of the right types, with room for others."""

    model_config = ConfigDict(strict=True, extra="allow")


class PerClient(Record):
    validation: list[Score]
    test: list[Score]


class MetricRecord(Record):
    """A metric of the models of a round: means over clients, over the nodes of all of them, and of each."""

    train: Score
    validation: Score
    test: Score
    validation_pooled: Score
    test_pooled: Score
    validation_global: Score = None
    test_global: Score = None
    per_client: PerClient


class RoundRecord(Record):
    """A line of rounds.jsonl; scores are there in rounds that were evaluated."""

    round: int
    loss: Score
    up_bytes: Count
    down_bytes: Count
    peer_bytes: Count
    participants: list[Client]
    details: dict[str, Any]
    seconds: float
    absent: dict[str, str] = {}  # clients that were drawn and did not take part, and why
    links: dict[str, list[list[float]]] = {}
    scored: list[Count] | None = None  # the clients that scores are of, by number, where these are not all
    per_client: PerClient | None = None
    train: Score = None
    validation: Score = None
    test: Score = None
    test_global: Score = None
    test_trained: Score = None
    metrics: dict[str, MetricRecord] = {}  # where others than the accuracy were asked for
    confusion: list[list[list[Count]]] | None = None  # of every scored client's test nodes; rows are true classes

    @model_validator(mode="after")
    def check_scored(self) -> Self:
        """Refuses scores of another number of clients than were scored."""
        tables = [self.per_client, *(metric.per_client for metric in self.metrics.values())]
        counts = [len(values) for table in tables if table is not None for values in (table.validation, table.test)]
        counts += [] if self.confusion is None else [len(self.confusion)]
        if self.scored is not None and any(count != len(self.scored) for count in counts):
            raise ValueError(f"there are scores of others than the {len(self.scored)} clients that were scored")
        return self


class AccuracyTable(Record):
    test: Score
    validation: Score
    test_node_weighted: Score
    test_global: Score
    test_trained: Score = None  # of models right after local training
    test_served: Score = None  # of models that clients are given then: the global one, or one of their own


class ClientRow(Record):
    client: Client
    model: str
    nodes: Count | None  # None: a server is not told
    edges: Count | None
    test: Score
    validation: Score
    metrics: dict[str, dict[str, Score]] = {}
    confusion: list[list[Count]] | None = None


class Communication(Record):
    up_bytes: Count
    down_bytes: Count
    peer_bytes: Count


class Seconds(Record):
    total: float
    per_round: float
    setup: float


class ResultRecord(Record):
    """What result.json holds, beside its checksum."""

    graft: str
    method: str
    dataset: str
    partition: str
    topology: str = ""
    clients: Count
    seed: int
    rounds: Count
    best_round: Count
    accuracy: AccuracyTable
    metric: str = "accuracy"  # that picked the best round
    metrics: dict[str, dict[str, Score]] = {}  # at the best round
    per_client: list[ClientRow]
    communication: Communication
    seconds: Seconds
    peak_memory_bytes: Count
    device: str
    threads: Count
    warnings: list[str] = []
    absences: dict[str, Count] = {}  # in how many rounds each party was absent
    recoveries: list[Count] = []  # rounds whose checkpoints the run went back to when workers were lost
    experiment: dict[str, Any] = {}  # every field, resolved
    hashes: dict[str, str] = {}
    versions: dict[str, str] = {}


def check_record(kind: type[Record], content: Mapping[str, Any]) -> None:
    """Refuses content that is not of this kind, with a `ValueError` that names the first field that is wrong."""
    try:
        kind.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


class RoundLog:
    """The file rounds.jsonl: a line is added after each round, and lines that a crash made obsolete are dropped."""

    def __init__(self, path: Path, experiment: Path) -> None:
        self.path, self.experiment = path, experiment
        self.checksum = ""  # of the experiment and all lines so far

    def begin(self) -> None:
        """Starts with no lines, for the experiment that is on record by now."""
        self.checksum = experiment_checksum(self.experiment)

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a line; it is on the disk for certain after `sync`."""
        sealed = seal(as_stored(record), self.checksum)
        with explained(f"{self.path} cannot be written", RunError), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(sealed) + "\n")
        self.checksum = sealed["checksum"]

    def sync(self) -> None:
        """Returns when all lines are on the disk."""
        with explained(f"{self.path} cannot be written", RunError):
            if self.path.exists():
                sync_file(self.path)

    def read(self) -> list[dict[str, Any]]:
        """Returns all rounds on record; a last line that was cut off by a crash is none."""
        lines = self._lines()
        return self._checked(lines[:-1])  # what follows the last line break is empty, or such a line

    def restore(self, count: int, checksum: str) -> list[dict[str, Any]]:
        """Returns the rounds that a checkpoint covers, and drops what was written after it."""
        lines = self._lines()
        if len(lines) - 1 < count:
            raise InputError(f"{self.path} is damaged: it holds {len(lines) - 1} of the {count} rounds on record.")
        records = self._checked(lines[:count])
        if self.checksum != checksum:
            raise InputError(f"{self.path} is damaged or of another run: it does not belong to the checkpoint.")
        if lines[count:] not in ([], [""]):
            write_text(self.path, "".join(f"{line}\n" for line in lines[:count]))
        return records

    def _lines(self) -> list[str]:
        if not self.path.exists():
            return [""]
        with explained(f"{self.path} cannot be read", InputError):
            try:
                return read_text(self.path).split("\n")
            except UnicodeDecodeError as error:
                raise InputError(f"{self.path} is damaged: it is not UTF-8 ({error.reason}).") from None

    def _checked(self, lines: list[str]) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        self.begin()
        for number, line in enumerate(lines, 1):
            try:
                sealed = parse_json(line)
                record = unseal(sealed, self.checksum)
                check_record(RoundRecord, record)
                if record["round"] != number:
                    raise ValueError(f"it is round {record['round']}")
            except ValueError as error:
                raise InputError(f"{self.path} is damaged in line {number}: {printable(error)}.") from None
            self.checksum = sealed["checksum"]
            records.append(record)
        return records


def experiment_checksum(path: Path) -> str:
    """Returns a checksum of the values in an experiment file, however they are written."""
    with explained(f"{path} cannot be read", InputError):
        try:
            return checksum(canonical(tomllib.loads(read_text(path))))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path} is not a readable experiment file: {printable(error)}.") from None


def as_stored(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record as it comes back from its file: lists for tuples, text for keys."""
    stored: dict[str, Any] = json.loads(json.dumps(record))
    return stored


def write_result(path: Path, summary: Mapping[str, Any], rounds_checksum: str) -> None:
    """Writes result.json, bound to the rounds that it is the result of."""
    write_text(path, json.dumps(seal(as_stored(summary), rounds_checksum), indent=1) + "\n")


def count_rows(result: Mapping[str, Any], rounds: list[dict[str, Any]]) -> int:
    """Returns how many clients a result has rows of: all, or those that were scored in its best round."""
    clients: int = result["clients"]
    everybody = result.get("experiment", {}).get("evaluate_clients", "all") == "all"
    if result["best_round"] > len(rounds):
        return clients
    nothing: dict[str, Any] = {} if everybody else {"scored": []}
    best = rounds[result["best_round"] - 1] if result["best_round"] else nothing
    return len(best["scored"]) if "scored" in best else clients  # a model of all data is scored on everybody's


def read_result(path: Path, rounds: list[dict[str, Any]], rounds_checksum: str) -> dict[str, Any]:
    """Returns what a result.json holds, which must be the result of these rounds."""
    try:
        with explained(f"{path} cannot be read", InputError):
            result = unseal(parse_json(read_text(path)), rounds_checksum)
        check_record(ResultRecord, result)
        if result["rounds"] != len(rounds) or len(result["per_client"]) != count_rows(result, rounds):
            raise ValueError("it does not belong to the rounds beside it")
        if not all(map(math.isfinite, result["seconds"].values())):
            raise ValueError("its times are no numbers")
    except ValueError as error:
        raise InputError(f"{path} is damaged or not the result of the rounds beside it: {printable(error)}.") from None
    return result
