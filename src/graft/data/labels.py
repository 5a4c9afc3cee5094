"""Labels as people write them: numbers of classes, or their names."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graft.data.graphs import MOST_CLASSES
from graft.data.tables.classes import UNLABELLED, class_spelling, sort_classes
from graft.errors import InputError
from graft.files import printable


def encode_labels(
    name: str, labels: NDArray[Any], class_names: Sequence[str] | None
) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """Returns labels as numbers with -1 for unlabelled, and the names of the classes.

    Numbers stay as they are. Names are numbered in the order of `class_names`, or else in their own: by value where all
    are whole numbers, otherwise by the alphabet.
    """
    if labels.dtype.kind not in "US":
        return labels, None if class_names is None else tuple(class_names)
    cells = np.char.strip(as_text(labels).ravel())
    labelled = ~np.isin(np.char.lower(cells), UNLABELLED)
    written, codes = np.unique(cells[labelled], return_inverse=True)
    spelling = class_spelling(written.tolist())
    names = sort_classes(spelling.values()) if class_names is None else tuple(class_names)
    if len(names) > MOST_CLASSES:
        raise InputError(f"'{name}' has {len(names)} classes, and {MOST_CLASSES} are the most.")
    position = {spelled: code for code, spelled in enumerate(class_spelling(names).values())}
    if len(position) < len(names):
        raise InputError(f"Two of the class_names of '{name}' are the same.")
    foreign = next((cell for cell, spelled in spelling.items() if spelled not in position), None)
    if foreign is not None:
        raise InputError(f"'{name}' has the label '{printable(foreign)}', which is not one of its class_names.")
    encoded = np.full(len(cells), -1, np.int64)
    encoded[labelled] = np.array([position[spelled] for spelled in spelling.values()], np.int64)[codes]
    return encoded.reshape(labels.shape), names or None


def as_text(cells: NDArray[Any]) -> NDArray[np.str_]:
    """Returns cells as text; bytes are UTF-8."""
    return np.char.decode(cells, "utf-8") if cells.dtype.kind == "S" else cells.astype(np.str_)
