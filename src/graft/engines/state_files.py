"""Where the states of clients rest while nobody asks them: in files without a name, which are gone with the process."""

from __future__ import annotations

import itertools
import os
import secrets
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np
import torch
from torch import Tensor

from graft.errors import RunError
from graft.tensors.trees import Tree, flatten, unflatten

FILE_BYTES = 64 * 10**6  # about how many bytes of states are read at once, as for a file of a checkpoint
TRAVEL_BYTES = 4 * 10**6  # where they travel: there are several copies of them on the way
RESTORED = 0  # the version of a state that came from a checkpoint and has not changed since

Form = tuple[tuple[str, torch.dtype, torch.Size], ...]  # of a state: path, dtype and shape of every leaf


class StateFiles(Mapping[int, Tree]):
    """States by client, each read from a file when it is asked for; what is written again takes the place of before.

    States of one form, as those of one architecture, have one size: they lie in the slots of one file. Nothing is held
    in memory but where a client's state is, and its version.
    """

    def __init__(self) -> None:
        self._files: dict[Form, SlottedFile] = {}
        self._slots: dict[int, tuple[SlottedFile, int]] = {}
        # Of every client: another one whenever its state was written, and never that of another `StateFiles`.
        self.versions: dict[int, int] = {}
        self._clock = itertools.count(1 + secrets.randbits(61))

    def __getitem__(self, client: int) -> Tree:
        return self.read([client])[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, client: object) -> bool:
        return client in self._slots

    def put(self, states: Mapping[int, Tree], versions: Mapping[int, int] | None = None) -> None:
        """Writes states of clients, which may be on a GPU; their versions are new ones unless given."""
        for form, clients in clients_by_form(states).items():
            rows = pack_rows([dict(flatten(states[client])) for client in clients], form)
            file = self._files.get(form)
            if file is None:
                file = self._files[form] = SlottedFile(form)
            file.write([self._slot(client, file) for client in clients], rows)
        version = next(self._clock)
        self.versions |= {client: version if versions is None else versions[client] for client in states}

    def _slot(self, client: int, file: SlottedFile) -> int:
        """Returns the slot of a client in a file; one that it had in another is free from here on."""
        before, slot = self._slots.get(client, (None, 0))
        if before is not file:
            if before is not None:  # as when its optimiser appeared
                before.free.append(slot)
            slot = file.take()
            self._slots[client] = file, slot
        return slot

    def read(self, clients: Iterable[int], device: torch.device | None = None) -> dict[int, Tree]:
        """Returns the states of some clients, on the host or on a device."""
        slots: dict[SlottedFile, list[tuple[int, int]]] = {}
        states: dict[int, Tree] = dict.fromkeys(clients, Tree())
        for client in states:
            file, slot = self._slots[client]
            slots.setdefault(file, []).append((slot, client))
        for file, pairs in slots.items():
            pairs.sort()
            rows = file.read([slot for slot, _ in pairs]).to(device or "cpu")
            states |= zip((client for _, client in pairs), unpack_rows(rows, file.form), strict=True)
        return states

    def batches(self, clients: Iterable[int] | None = None, enough: int = FILE_BYTES) -> Iterator[dict[int, Tree]]:
        """Yields states, of all clients or of some, at a time as many as have enough bytes."""
        batch: list[int] = []
        size = 0
        for client in list(self._slots) if clients is None else clients:
            batch.append(client)
            size += self._slots[client][0].size
            if size >= enough:
                yield self.read(batch)
                batch, size = [], 0
        if batch:
            yield self.read(batch)

    @classmethod
    def of(cls, states: Mapping[int, Tree]) -> StateFiles:
        """Returns the states of a checkpoint in files of their own."""
        files = cls()
        for batch in batches_of(states):
            files.add_restored(batch)
        return files

    def add_restored(self, states: Mapping[int, Tree]) -> None:
        """Writes states of a checkpoint."""
        self.put(states, dict.fromkeys(states, RESTORED))


class ChangedStates(Mapping[int, Tree]):
    """States of clients as a function makes them of others, when they are asked for."""

    def __init__(self, states: Mapping[int, Tree], change: Callable[[Tree], Tree]) -> None:
        self._states, self._change = states, change

    def __getitem__(self, client: int) -> Tree:
        return self._change(self._states[client])

    def __iter__(self) -> Iterator[int]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, client: object) -> bool:
        return client in self._states


class SlottedFile:
    """A file of slots of one size, each for the state of a client."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.size = sum(bytes_of(dtype, shape) for _, dtype, shape in form)
        self.free: list[int] = []
        self._count = 0
        with readable_errors():
            # Without a name from the start, or at once: it is gone with this object, or with the process.
            self._file = tempfile.TemporaryFile(prefix="graft-states-", buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    def take(self) -> int:
        """Returns a slot that nobody has."""
        if self.free:
            return self.free.pop()
        self._count += 1
        return self._count - 1

    def write(self, slots: Sequence[int], rows: Tensor) -> None:
        """Writes bytes [slots, size]; slots that follow each other at once."""
        content = rows.numpy()
        with readable_errors():
            for first, last in runs(slots) if self.size else ():
                self._write_at(slots[first] * self.size, content[first:last].data.cast("B"))

    def _write_at(self, begin: int, content: memoryview) -> None:
        written = 0
        while written < len(content):  # a call writes at most 2 GB
            written += os.pwrite(self._file.fileno(), content[written:], begin + written)

    def read(self, slots: Sequence[int]) -> Tensor:
        """Returns bytes [slots, size]."""
        rows = np.empty((len(slots), self.size), np.uint8)
        with readable_errors():
            for first, last in runs(slots) if self.size else ():
                self._read_at(slots[first] * self.size, rows[first:last].data.cast("B"))
        return torch.from_numpy(rows)

    def _read_at(self, begin: int, content: memoryview) -> None:
        received = 0
        while received < len(content):
            count = os.preadv(self._file.fileno(), [content[received:]], begin + received)
            if not count:
                raise RunError("The file of clients' states is shorter than what was written to it.")
            received += count


@contextmanager
def readable_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"The states of clients cannot be kept in {tempfile.gettempdir()} ({error.strerror}): set TMPDIR to a "
            f"folder on a larger disk."
        ) from error


def batches_of(states: Mapping[int, Tree]) -> Iterator[Mapping[int, Tree]]:
    """Yields states of clients, wherever they are, so many at a time that their bytes are few."""
    if isinstance(states, StateFiles):
        yield from states.batches(enough=FILE_BYTES)
        return
    batch: dict[int, Tree] = {}
    size = 0
    for client in states:
        batch[client] = states[client]
        size += sum(leaf.nbytes for _, leaf in flatten(batch[client]))
        if size >= FILE_BYTES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def clients_by_form(states: Mapping[int, Tree]) -> dict[Form, list[int]]:
    """Returns which states have the same paths, dtypes and shapes."""
    alike: dict[Form, list[int]] = {}
    for client, state in states.items():
        form = tuple((path, leaf.dtype, leaf.shape) for path, leaf in flatten(state))
        alike.setdefault(form, []).append(client)
    return alike


def pack_rows(states: Sequence[Mapping[str, Tensor]], form: Form) -> Tensor:
    """Returns states of one form as bytes on the host, [states, bytes], after one copy from where they are."""
    if not form:
        return torch.empty(len(states), 0, dtype=torch.uint8)
    columns = [
        torch.stack([state[path].detach() for state in states]).reshape(len(states), prod(shape)).view(torch.uint8)
        for path, _, shape in form
    ]
    return torch.cat(columns, dim=1).cpu()


def unpack_rows(rows: Tensor, form: Form) -> list[Tree]:
    """Returns the states that `pack_rows` made these bytes of."""
    leaves, begin = {}, 0
    for path, dtype, shape in form:
        size = bytes_of(dtype, shape)
        column = rows[:, begin : begin + size].clone(memory_format=torch.contiguous_format)  # begins anywhere
        leaves[path] = column.view(-1).view(dtype).view(len(rows), *shape).unbind()
        begin += size
    return [unflatten({path: stacked[row] for path, stacked in leaves.items()}) for row in range(len(rows))]


def bytes_of(dtype: torch.dtype, shape: torch.Size) -> int:
    return dtype.itemsize * prod(shape)


def runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields where in a list slots that follow each other begin and end."""
    first = 0
    for position in range(1, len(slots) + 1):
        if position == len(slots) or slots[position] != slots[position - 1] + 1:
            yield first, position
            first = position
