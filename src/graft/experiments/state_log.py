"""States of clients in a checkpoint that grows with those that changed: files of before stay, where they still count.

A file holds the states of some clients, stacked: a row a client. A client that is in several files has its state in the
last one. A file of which most rows are of before is written anew, so all files together are at most twice what counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le
from pydantic import ConfigDict

from graft.engines.state_files import RESTORED, StateFiles, clients_by_form
from graft.experiments.state_checks import check_finite
from graft.experiments.tensor_files import StoredTree, read_tree, write_tree
from graft.tensors.trees import Tree, flatten, select_clients, stack

MOST_FILES = 256  # of states; if there are more, all are written anew

Client = Annotated[int, Ge(0), Le(2**62)]


@dataclass(frozen=True)
class StoredStates:
    """What a JSON file says of the states of some clients whose tensors are in one file."""

    clients: list[Client]  # of the rows
    tree: StoredTree

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)


class StateLog:
    """Writes states that changed since the last time."""

    def __init__(self) -> None:
        self.stored: list[StoredStates] = []
        self._version: dict[int, int] = {}  # of every client's state, when it was written
        self._place: dict[int, int] = {}  # in which of the stored ones it is

    def write(self, states: StateFiles, folder: Path, name: Callable[[int], str]) -> StateLog:
        """Returns the log with all states as they are now; a `ValueError` names a client whose state is no number.

        Files are added and none is removed: this log still describes the folder, until the other takes its place.
        """
        if not self._place.keys() <= states.versions.keys():  # these are states of another beginning
            return StateLog().write(states, folder, name)
        current = {client for client, version in self._version.items() if states.versions[client] == version}
        rows = Counter(self._place[client] for client in current)
        kept = [place for place, stored in enumerate(self.stored) if 2 * rows[place] >= len(stored.clients)]
        if len(kept) >= MOST_FILES:
            kept = []
        current = {client for client in current if self._place[client] in kept}
        changed = [client for client in states if client not in current]
        written = [stored for some in states.batches(changed) for stored in write_states(some, folder, name)]
        return StateLog.of([*(self.stored[place] for place in kept), *written], states.versions)

    @classmethod
    def of(cls, stored: Sequence[StoredStates], versions: Mapping[int, int] | None = None) -> StateLog:
        """Returns the log of states that are in files, as of these versions or as they are restored."""
        log = cls()
        log.stored = list(stored)
        log._place = {client: place for place, part in enumerate(stored) for client in part.clients}
        log._version = {client: versions[client] if versions else RESTORED for client in log._place}
        return log


def write_states(states: Mapping[int, Tree], folder: Path, name: Callable[[int], str]) -> Iterator[StoredStates]:
    """Writes states of clients, those of one form into a file; yields what is needed to read them back."""
    for clients in clients_by_form(states).values():
        for client in clients:
            check_finite(states[client], name(client))
        yield StoredStates(clients, write_tree(stack([states[client] for client in clients]), folder))


class LoggedStates(Mapping[int, Tree]):
    """The states that a log lists, as views of its files; a `ValueError` if they are damaged."""

    def __init__(self, stored: Sequence[StoredStates], folder: Path) -> None:
        self.stored = stored
        self._rows: dict[int, tuple[Tree, int]] = {}
        for part in stored:
            tree, clients = read_tree(part.tree, folder), part.clients
            if len(set(clients)) != len(clients):
                raise ValueError("a client has two states in one file")
            if any(leaf.dim() == 0 or len(leaf) != len(clients) for _, leaf in flatten(tree)):
                raise ValueError(f"the states of {len(clients)} clients have another number of rows")
            self._rows |= {client: (tree, row) for row, client in enumerate(clients)}

    def __getitem__(self, client: int) -> Tree:
        tree, row = self._rows[client]
        return select_clients(tree, row)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, client: object) -> bool:
        return client in self._rows
