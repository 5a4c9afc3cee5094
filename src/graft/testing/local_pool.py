"""Workers without a cluster: plain objects in this process, asked one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graft.engines.arrays import Arrays
from graft.engines.worker import Worker


class LocalPool:
    """As many workers as are wanted, for tests of everything about a cluster but its processes."""

    def __init__(self, workers: int = 3, device: str = "cpu") -> None:
        self.workers = [Worker(device=device) for _ in range(workers)]
        self.shared_bytes: list[int] = []  # of every message that went to several workers

    def __len__(self) -> int:
        return len(self.workers)

    def share(self, arrays: Arrays | None) -> Any:
        self.shared_bytes.append(sum(getattr(leaf, "nbytes", 8) for leaf in (arrays or {}).values()))
        return arrays

    def call(self, worker: int, name: str, *arguments: Any) -> Any:
        return getattr(self.workers[worker], name)(*arguments)

    def gather(self, calls: Sequence[Any]) -> list[Any]:
        return list(calls)

    def replace_lost(self) -> list[int]:
        return []
