"""Saved partitions: a client id for each node, in JSON, text or numpy files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from graft.data.cards import content_hash
from graft.data.graphs import Ints
from graft.errors import InputError
from graft.files import parse_json, read_text


def read_partition(path: Path) -> Ints:
    """Returns the client ids in a file, 0 to the number of clients less one, each of them at least once."""
    try:
        values = np.asarray(READERS[path.suffix](path))
    except Exception as error:  # a damaged file can fail in any way in numpy's parsers
        raise InputError(f"{path} is not a readable file of client ids: {error or type(error).__name__}.") from error
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values):
        raise InputError(f"{path} must hold one client id, a whole number, for each node.")
    clients = int(values.max()) + 1
    if values.min() < 0 or clients > len(values) or len(np.unique(values)) != clients:
        raise InputError(f"The client ids in {path} must be 0 to {clients - 1}, each of them with at least one node.")
    membership: Ints = values.astype(np.int64)
    return membership


def _read_array(path: Path) -> Any:
    # Mapped, so that a header that promises more than the file holds is refused before anything is allocated.
    return np.array(np.lib.format.open_memmap(path, mode="r"))


def _read_lines(path: Path) -> Any:
    return [int(line) for line in read_text(path).removeprefix("\ufeff").split()]


def _read_json(path: Path) -> Any:
    content = parse_json(read_text(path))
    if not isinstance(content, dict):
        return content
    membership = np.asarray(content["membership"])
    if content.keys() == {"membership"}:  # written by hand
        return membership
    if "hash" not in content:
        raise ValueError("it has no hash of its membership")
    if membership.dtype.kind not in "iu" or content_hash(membership) != content["hash"]:
        raise ValueError("its membership does not belong to its hash")
    return membership


READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": _read_array,
    ".json": _read_json,
    ".csv": _read_lines,
    ".txt": _read_lines,
}
