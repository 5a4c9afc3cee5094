"""What a client keeps while it is not known yet whether a round counts: it can go on after it, or back to before it.

A server that loses somebody in the middle of a round does the round again without; one that was killed does it again
when it is back. It says with every request after which round this client's work counted last, and so both sides agree
however either of them was stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from graft.engines.messages import DamagedMessage, pack, unpack
from graft.errors import InputError
from graft.files import explained, write_bytes
from graft.tensors.trees import Tree, map_tree

COMMITTED, PENDING = "committed", "pending"


class StateMissing(ValueError):
    """Says that a client does not have its state after the round that a server names."""


@dataclass(frozen=True)
class OpenRound:
    """A round that a client works in, and the last request that it answered in it."""

    round: int
    attempt: str  # how often this round was begun, and by which process of the server's
    number: int = 0  # of the last request that changed something


class KeptState:
    """The state of one client: as it was after the last round that counted, and as it is in a round that is open."""

    def __init__(self, state: Tree, folder: Path | None = None, on_commit: Callable[[int], None] | None = None) -> None:
        """`state` is the tree that steps change; with a folder everything is on the disk before anybody hears of it."""
        self.state = state
        self.committed = 0  # the last round that counted
        self.open: OpenRound | None = None
        self._before = copied(state)
        self._folder = folder
        self._on_commit = on_commit or (lambda round: None)
        if folder is not None:
            self._load(folder)

    def enter(self, round: int, after: int, attempt: str) -> None:
        """Goes on in a round, or begins it with the state after another one."""
        if self.open is not None and (self.open.round, self.open.attempt) == (round, attempt):
            return
        self.settle(after)
        self.open = OpenRound(round, attempt)

    def visit(self, round: int, after: int, attempt: str) -> None:
        """Makes the state what it is at this point of a round, for a step that changes nothing."""
        if self.open is None or (self.open.round, self.open.attempt) != (round, attempt):
            self.settle(after)

    def settle(self, after: int) -> None:
        """Keeps what was done in the open round if that is the last one that counted, and forgets it otherwise."""
        if self.open is not None and self.open.round == after:
            self._commit()
        elif self.open is not None:
            self._replace(copied(self._before))
            self.open = None
            self._remove_pending()
        if self.committed != after:
            raise StateMissing(f"its state is that after round {self.committed}, not {after}")

    def save(self, number: int) -> None:
        """Puts what the open round has made so far where it is safe, before the answer to a request leaves."""
        assert self.open is not None
        self.open = OpenRound(self.open.round, self.open.attempt, number)
        if self._folder is not None:
            write_state(self._folder / PENDING, self.state, **asdict(self.open))

    def start_from(self, state: Tree, round: int) -> None:
        """Takes a state of before in the place of everything."""
        self._replace(copied(state))
        self._before, self.committed, self.open = copied(state), round, None

    def _commit(self) -> None:
        assert self.open is not None
        self._before, self.committed, self.open = copied(self.state), self.open.round, None
        self._on_commit(self.committed)
        if self._folder is not None:
            write_state(self._folder / COMMITTED, self.state, round=self.committed)
            self._remove_pending()

    def _remove_pending(self) -> None:
        if self._folder is not None:
            (self._folder / PENDING).unlink(missing_ok=True)

    def _replace(self, state: Tree) -> None:
        self.state.clear()
        self.state.update(state)

    def _load(self, folder: Path) -> None:
        """Goes on from what a folder holds; a new one is given the state to begin with."""
        with explained(f"{folder} cannot be used", InputError):
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / COMMITTED).exists():
                write_state(folder / COMMITTED, self.state, round=0)
            head, state = read_state(folder / COMMITTED, self.state)
            self.start_from(state, head["round"])
            if (folder / PENDING).exists():
                head, state = read_state(folder / PENDING, None)
                self._replace(state)
                self.open = OpenRound(head["round"], head["attempt"], head["number"])


def write_state(path: Path, state: Tree, **head: object) -> None:
    write_bytes(path, pack(dict(head), state))


def read_state(path: Path, like: Tree | None) -> tuple[dict[str, int | str], Tree]:  # type: ignore[type-arg]
    """Returns what a file of a state holds."""
    try:
        head, state = unpack(path.read_bytes())
    except DamagedMessage as error:
        raise InputError(f"{path} is damaged: {error}.") from error
    if like is not None and not set(like) <= set(state):
        raise InputError(f"{path} is not the state of this method and model.")
    return head, state


def copied(state: Tree) -> Tree:
    return map_tree(torch.clone, state)
