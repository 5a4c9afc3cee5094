"""Trees on the way between processes of one cluster: arrays by path, which an object store hands over without a copy.

Used inside one trusted cluster only; what crosses a boundary of trust goes through `graft.engines.messages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graft.tensors.trees import Tree, flatten, map_tree, select_clients, stack, unflatten

Arrays = dict[str, Any]  # by path: an array, or a number as messages may hold
Rows = list[tuple[list[int], Arrays]]  # clients, and arrays with a row for each of them


def to_arrays(tree: Any) -> Arrays | None:
    """Returns the leaves of a tree on the host, by path; None for no tree at all."""
    if tree is None:
        return None
    return {path: to_array(leaf) if isinstance(leaf, Tensor) else leaf for path, leaf in flatten(tree)}


def to_array(leaf: Tensor) -> np.ndarray[Any, Any]:
    """Returns a tensor as an array, without a copy if it is on the host."""
    array: np.ndarray[Any, Any] = leaf.detach().cpu().contiguous().numpy()
    return array


def to_tree(arrays: Mapping[str, Any] | None) -> Any:
    """Returns the tree of arrays by path, as copies: what an object store holds must not be written to."""
    if arrays is None:
        return None
    return unflatten({path: to_tensor(leaf) for path, leaf in arrays.items()})


def to_tensor(leaf: Any) -> Any:
    return torch.tensor(leaf) if isinstance(leaf, np.ndarray) else leaf


def count_array_bytes(arrays: Mapping[str, Any] | None) -> int:
    """Returns about how many bytes arrays take on their way."""
    return sum(getattr(leaf, "nbytes", 8) for leaf in (arrays or {}).values())


def stack_alike(trees: Mapping[int, Any]) -> Rows:
    """Returns clients' trees as arrays with a row a client, of those together whose trees have the same form."""
    alike: dict[Any, list[int]] = {}
    for client, tree in trees.items():
        form = tuple(
            (path, leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else path for path, leaf in flatten(tree)
        )
        alike.setdefault(form, []).append(client)
    return [(clients, to_arrays(stack([trees[client] for client in clients])) or {}) for clients in alike.values()]


def unstack(rows: Sequence[tuple[list[int], Mapping[str, Any]]]) -> dict[int, Tree]:
    """Returns every client's tree of arrays with a row a client."""
    trees: dict[int, Tree] = {}
    for clients, arrays in rows:
        stacked = map_tree(torch.as_tensor, to_tree(arrays))
        trees |= {client: select_clients(stacked, row) for row, client in enumerate(clients)}
    return trees
