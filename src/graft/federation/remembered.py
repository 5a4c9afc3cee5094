"""What clients predicted at the end of their training, which scores of the same state and data need not work out again;
not on a GPU, where steps are replayed without coming past here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet
    from graft.federation.labels import FleetData

KEY = "predicted"


class Remembered(NamedTuple):
    """Predictions, and all that they were made of."""

    clients: list[int]
    data: FleetData
    state: list[tuple[Tensor, int]]  # the tensors, each with how often it had been written into
    predictions: tuple[Tensor, ...]


def remember(fleet: Fleet, state: Iterable[Tensor], *predictions: Tensor) -> None:
    """Keeps what the clients of a fleet predict by these tensors of their state."""
    if fleet.device.type == "cpu":
        versions = [(leaf, leaf._version) for leaf in state]
        fleet.caches[0][KEY] = Remembered(fleet.clients, fleet.data, versions, predictions)


def remembered(fleet: Fleet, state: Iterable[Tensor]) -> tuple[Tensor, ...] | None:
    """Returns what was kept, if the fleet would predict the same: by the same tensors, not written into."""
    kept: Remembered | None = fleet.caches[0].get(KEY) if fleet.caches else None
    if kept is None or kept.clients != fleet.clients or kept.data is not fleet.data:
        return None
    now = list(state)
    same = len(now) == len(kept.state) and all(
        leaf is before and leaf._version == version for leaf, (before, version) in zip(now, kept.state, strict=True)
    )
    return kept.predictions if same else None
