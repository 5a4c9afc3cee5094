"""What clients send before the first round to agree on columns, classes, categories and moments, as arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Message = Mapping[str, NDArray[Any]]  # a tree with paths for keys, as categories/branch


class FieldTraffic(NamedTuple):
    """The bytes of one field, client by client, and what it tells of a client's data."""

    up: list[int]
    down: list[int]
    reveals: str


@dataclass(frozen=True)
class Exchange:
    """The messages from and to every client."""

    up: tuple[Message, ...] = ()  # client by client
    down: tuple[Message, ...] = ()
    reveals: Mapping[str, str] = field(default_factory=dict)  # of every field

    @property
    def up_bytes(self) -> int:
        """Returns the bytes that all clients send."""
        return sum(array.nbytes for message in self.up for array in message.values())

    @property
    def down_bytes(self) -> int:
        """Returns the bytes that all clients receive."""
        return sum(array.nbytes for message in self.down for array in message.values())

    @property
    def fields(self) -> dict[str, FieldTraffic]:
        """Returns the bytes of every field, client by client, and what it reveals."""
        names = dict.fromkeys(name for message in (*self.up, *self.down) for name in message)
        return {
            name: FieldTraffic(_sizes(self.up, name), _sizes(self.down, name), self.reveals[name]) for name in names
        }

    def __add__(self, other: Exchange) -> Exchange:
        if not self.up or not other.up:
            return other if not self.up else self
        up = tuple({**mine, **yours} for mine, yours in zip(self.up, other.up, strict=True))
        down = tuple({**mine, **yours} for mine, yours in zip(self.down, other.down, strict=True))
        return Exchange(up, down, {**self.reveals, **other.reveals})


def _sizes(messages: Sequence[Message], name: str) -> list[int]:
    return [message[name].nbytes if name in message else 0 for message in messages]


def as_bytes(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Returns texts as the bytes of a JSON list in UTF-8, which is how they are sent."""
    return np.frombuffer(json.dumps(list(texts), ensure_ascii=False).encode("utf-8", "surrogatepass"), np.uint8)


def as_texts(message: NDArray[np.uint8]) -> list[str]:
    """Returns the texts of `as_bytes`."""
    return list(json.loads(message.tobytes().decode("utf-8", "surrogatepass")))
