"""The architectures of all clients, of which few are different, however many clients there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import SupportsIndex, overload

from graft.files import repeated_checksum
from graft.models.architecture import Model


class AssignedModels(Sequence[Model]):
    """An architecture for every client: client k has entry k modulo their number."""

    def __init__(self, entries: Sequence[Model], clients: int) -> None:
        self.entries = list(entries[:clients])
        self.clients = clients

    def __len__(self) -> int:
        return self.clients

    def __iter__(self) -> Iterator[Model]:
        return islice(cycle(self.entries), self.clients)

    @overload
    def __getitem__(self, client: SupportsIndex) -> Model: ...

    @overload
    def __getitem__(self, client: slice) -> list[Model]: ...

    def __getitem__(self, client: SupportsIndex | slice) -> Model | list[Model]:
        numbers = range(self.clients)[client]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        return self.entries[numbers % len(self.entries)]


def different_models(models: Sequence[Model]) -> tuple[Model, ...]:
    """Returns the architectures that are different, in the order of the first clients that have them."""
    return tuple(dict.fromkeys(models.entries if isinstance(models, AssignedModels) else models))


def models_checksum(models: Sequence[Model]) -> str:
    """Returns a checksum of the architectures of all clients."""
    entries = models.entries if isinstance(models, AssignedModels) else models
    return repeated_checksum([repr(model) for model in entries], len(models))
