"""What a client keeps while it is not known yet whether a round counts: it can go on after it, or back to before it.

A server that loses somebody in the middle of a round does the round again without; one that was killed does it again
when it is back. It says with every request after which round this client's work counted last, and so both sides agree
however either of them was stopped.

Whoever kills a client loses nothing: all is with the system before an answer leaves. On the disk it is a little later,
and at the latest before a round counts here. So a power failure may cost a client its work in the round that was open;
its server is told after which round it is.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from graft.engines.messages import DamagedMessage, message_parts, unpack
from graft.errors import InputError
from graft.files import explained, replace_bytes, sync_file, write_bytes
from graft.tensors.trees import Tree, flatten, map_tree

log = logging.getLogger(__name__)
COMMITTED, PENDING = "committed", "pending"  # names of files
CHECKED = 4  # bytes of a checksum


class DamagedState(InputError):
    """Says which file of a state is damaged."""


class StateMissing(ValueError):
    """Says that a client does not have its state after the round that a server names."""


@dataclass(frozen=True)
class OpenRound:
    """A round that a client works in, and the last request that changed something in it."""

    round: int
    attempt: str  # how often this round was begun, and by which process of the server's
    request: str = ""  # what it was known by
    note: dict[str, Any] = field(default_factory=dict)  # what the client wants to know of the round when it counts


class KeptState:
    """The state of one client: as it was after the last round that counted, and as it is in a round that is open."""

    def __init__(self, state: Tree, folder: Path | None = None, on_commit: Callable[[int], None] | None = None) -> None:
        """`state` is the tree that steps change; with a folder all is in files before anybody hears of it."""
        self.state = state
        self.committed = 0  # the last round that counted
        self.open: OpenRound | None = None
        self.answer = b""  # to the last request
        self._folder = folder
        self._counted = copied(state) if folder is None else Tree()  # the state after that round; else it is in a file
        self._on_commit = on_commit
        self._is_saved = False  # whether the file of the open round holds the state as it is
        self._syncing: Future[None] | None = None  # that file's way to the disk
        self._syncs = ThreadPoolExecutor(1, thread_name_prefix="sync")
        if folder is not None:
            self._load(folder)

    def enter(self, round: int, after: int, attempt: str) -> None:
        """Goes on in a round, or begins it with the state after another one."""
        if self.open is None or (self.open.round, self.open.attempt) != (round, attempt):
            self.settle(after)
            self.open = OpenRound(round, attempt)
        self._is_saved = False

    def visit(self, round: int, after: int, attempt: str) -> None:
        """Makes the state what it is at this point of a round, for a step that changes nothing."""
        if self.open is None or (self.open.round, self.open.attempt) != (round, attempt):
            self.settle(after)

    def settle(self, after: int) -> None:
        """Keeps what was done in the open round if that is the last one that counted, and forgets it otherwise."""
        if self.open is not None and self.open.round == after:
            self._commit()
        elif self.open is not None:
            self._replace(self._before())
            self._close()
        if self.committed != after:
            raise StateMissing(f"its state is that after round {self.committed}, not {after}")

    def save(self, request: str, answer: bytes, note: dict[str, Any] | None = None) -> None:
        """Puts what the open round has made so far where it is safe, before the answer to a request leaves."""
        assert self.open is not None
        self.open, self.answer = OpenRound(self.open.round, self.open.attempt, request, note or {}), answer
        if self._folder is not None:
            stored = torch.frombuffer(bytearray(answer), dtype=torch.uint8)
            replace_bytes(
                self._folder / PENDING, *state_parts(Tree(state=self.state, answer=stored), **asdict(self.open))
            )
            self._is_saved, self._syncing = True, self._syncs.submit(sync, self._folder / PENDING)

    def start_from(self, state: Tree, round: int) -> None:
        """Takes a state of before in the place of everything; only where there are no files."""
        self._replace(copied(state))
        self._counted, self.committed = copied(state), round
        self._close()

    def _commit(self) -> None:
        assert self.open is not None
        if self._on_commit is not None:
            self._on_commit(self.open.round)
        self.committed = self.open.round
        if self._folder is None:
            self._counted = copied(self.state)
        elif self._is_saved:
            if self._syncing is not None:
                self._syncing.result()
            (self._folder / PENDING).replace(self._folder / COMMITTED)
        else:
            write_bytes(self._folder / COMMITTED, *state_parts(Tree(state=self.state), round=self.committed))
        self._close()

    def _close(self) -> None:
        self.open, self.answer = None, b""
        self._is_saved, self._syncing = False, None
        if self._folder is not None:
            (self._folder / PENDING).unlink(missing_ok=True)

    def _before(self) -> Tree:
        """Returns the state after the last round that counted."""
        return copied(self._counted) if self._folder is None else self._read(self._folder / COMMITTED)[1].state

    def _replace(self, state: Tree) -> None:
        self.state.clear()
        self.state.update(state)

    def _load(self, folder: Path) -> None:
        """Goes on from what a folder holds; a new one is given the state to begin with."""
        with explained(f"{folder} cannot be used", InputError):
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / COMMITTED).exists():
                write_bytes(folder / COMMITTED, *state_parts(Tree(state=self.state), round=0))
                return
            pending = folder / PENDING
            opened = self._read_pending(pending) if pending.exists() else None
            head, tree = self._read(folder / COMMITTED)
            self._replace(tree.state)
            self.committed = head["round"]
            if opened is not None and opened[0]["round"] != self.committed:
                head, tree = opened
                self._replace(tree.state)
                self.open, self.answer = OpenRound(**head), bytes(tree.answer.numpy())
                self._is_saved, self._syncing = True, self._syncs.submit(sync, pending)
            else:  # it was stopped between two files
                pending.unlink(missing_ok=True)

    def _read_pending(self, path: Path) -> tuple[dict[str, Any], Tree] | None:
        """Returns what was kept of an open round; None where a power failure damaged it."""
        try:
            return self._read(path)
        except DamagedState as error:
            log.warning("%s The work of the round that was open is lost.", error)
            return None

    def _read(self, path: Path) -> tuple[dict[str, Any], Tree]:
        """Returns what a file of a state holds, which must be one of this method and this model."""
        content = path.read_bytes()
        try:
            if content[:CHECKED] != check_bytes(memoryview(content)[CHECKED:]):
                raise DamagedMessage("its checksum is another")
            head, tree = unpack(content[CHECKED:])
        except DamagedMessage as error:
            raise DamagedState(f"{path} is damaged: {error}.") from error
        shapes = {name: leaf.shape for name, leaf in flatten(tree.state)}
        if any(shapes.get(name) != leaf.shape for name, leaf in flatten(self.state)):
            raise InputError(f"{path} is not a state of this method and this model.")
        return head, tree


def state_parts(tree: Tree, **head: object) -> list[Any]:
    """Returns what a file of a state holds, in parts: a checksum, and a message."""
    parts = message_parts(dict(head), tree)
    return [check_bytes(*parts), *parts]


def check_bytes(*parts: bytes | memoryview) -> bytes:
    """Returns the checksum that begins a file, of all that follows it."""
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum.to_bytes(CHECKED, "little")


def sync(path: Path) -> None:
    with suppress(FileNotFoundError):  # the round was forgotten meanwhile
        sync_file(path)


def copied(state: Tree) -> Tree:
    return map_tree(torch.clone, state)
