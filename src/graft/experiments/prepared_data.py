"""What a run knows of its data, beside the data: whose models there are, and how new data become features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from pydantic import TypeAdapter

from graft.data.federation import FederationData
from graft.data.graphs import Graph
from graft.data.lazy_federation import SharedPreparations, different_preparations
from graft.data.preparation import Preparation
from graft.data.scaling import Scaling
from graft.errors import InputError
from graft.experiments.checkpoints import STRICT, read_sealed, write_sealed
from graft.experiments.experiment import Experiment
from graft.files import explained, printable

FORMAT = "graft-preparation-1"
STATELESS = {"auto": "raw", "raw": "raw", "row": "row", "l2": "l2"}  # scalings that nothing is fitted for
MOST_LISTED = 20  # clients in a sentence


@dataclass(frozen=True)
class Contents:
    """What preparation.json holds."""

    format: str
    clients: Annotated[int, Ge(1), Le(10**6)]
    names: list[str] | None
    pooled: bool
    preparations: list[dict[str, Any]]  # those that differ
    of_client: list[Annotated[int, Ge(0)]]  # which of them each client has; empty: all have the only one

    __pydantic_config__ = STRICT


CONTENTS = TypeAdapter(Contents)


@dataclass(frozen=True, eq=False)
class PreparedData:
    """The clients of a run: their names, and of each how its data became a graph."""

    clients: int
    names: tuple[str, ...] | None
    pooled: bool  # whether one model was trained on all of their data
    preparations: Sequence[Preparation]

    def find(self, client: str | int) -> int:
        """Returns the number of a client that is meant by its name or its number."""
        if isinstance(client, str) and client in (self.names or ()):
            return (self.names or ()).index(client)
        number = int(client) if isinstance(client, int) or (client.isascii() and client.isdigit()) else -1
        if isinstance(client, bool) or not 0 <= number < self.clients:
            raise InputError(f"There is no client '{printable(client)}'; there are {self.listed()}.")
        return number

    def listed(self) -> str:
        """Returns the names, or the range of the numbers, of all clients."""
        if self.names is None:
            return "0" if self.clients == 1 else f"0 to {self.clients - 1}"
        more = f" and {self.clients - MOST_LISTED} more" if self.clients > MOST_LISTED else ""
        return ", ".join(map(printable, self.names[:MOST_LISTED])) + more

    def name(self, client: int) -> str:
        """Returns what people call a client."""
        return str(client) if self.names is None else self.names[client]


def describe_data(federation: FederationData, experiment: Experiment, pooled: bool) -> PreparedData:
    """Returns what is to be known of the data of a run when it is over."""
    fitted = federation.preparations
    return PreparedData(
        len(federation.clients),
        federation.names,
        pooled,
        fitted or [plain_preparation(graph, experiment.features) for graph in federation.clients],
    )


def plain_preparation(graph: Graph, features: str) -> Preparation:
    """Returns the preparation of a graph that came as it is, for which nothing was fitted."""
    scaling = Scaling(STATELESS[features]) if features in STATELESS else None
    return Preparation(None, scaling, graph.features, graph.feature_names, graph.classes, graph.class_names)


def save_prepared(path: Path, data: PreparedData, bound_to: str) -> None:
    """Writes preparation.json."""
    different, of_client = different_preparations(data.preparations)
    names = None if data.names is None else list(data.names)
    contents = Contents(FORMAT, data.clients, names, data.pooled, different, of_client)
    with explained(f"{path} cannot be written", InputError):
        write_sealed(path, asdict(contents), bound_to)


def load_prepared(path: Path, bound_to: str) -> PreparedData:
    """Returns what preparation.json holds, of which every byte is what was written."""
    with explained(f"{path} cannot be read", InputError):
        try:
            contents = read_sealed(path, CONTENTS, FORMAT, "preparation", bound_to)
            different = [Preparation.from_json(entry) for entry in contents.preparations]
            of_client = contents.of_client or None if len(different) == 1 else contents.of_client
            told = [len(entries) for entries in (of_client, contents.names) if entries is not None]
            if set(told) - {contents.clients} or max(of_client or [0]) >= len(different):
                raise ValueError("it does not tell all clients")
            names = None if contents.names is None else tuple(contents.names)
            preparations = SharedPreparations(different, of_client, contents.clients)
            return PreparedData(contents.clients, names, contents.pooled, preparations)
        except (ValueError, IndexError) as error:
            raise InputError(f"{path} is damaged or not of the run beside it: {printable(error)}.") from error
