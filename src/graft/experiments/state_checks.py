"""What restored state must be: the names, shapes and dtypes of a freshly started one, with finite numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from graft.tensors.trees import Tree, flatten

OPTIMIZER = "optimizer/"  # begins the paths of what appears in a client's state when it trains for the first time
MOMENTS = ("first", "second", "velocity")


def check_finite(state: Tree, who: str) -> None:
    """Refuses state with a NaN or an infinity in it, naming whose it is, with a `ValueError`."""
    for path, leaf in flatten(state):
        if isinstance(leaf, Tensor):
            good = not leaf.is_floating_point() or bool(leaf.isfinite().all())
        else:
            good = isfinite(leaf)
        if not good:
            raise ValueError(f"'{path}' of {who} holds a NaN or an infinity")


def check_state(restored: Tree, expected: Tree, who: str, received: Tree | None = None) -> None:
    """Refuses state that differs from the expected in a name, shape, dtype or kind of number, with a `ValueError`.

    An optimiser appears with the first training: its moments must have the shapes of weights that are in the expected
    state, or in what a client may have `received` from the server.
    """
    restored_leaves, expected_leaves = dict(flatten(restored)), dict(flatten(expected))
    for path, leaf in expected_leaves.items():
        if path not in restored_leaves:
            raise ValueError(f"'{path}' of {who} is missing")
        _check_leaf(restored_leaves[path], leaf, f"'{path}' of {who}")
    added = {path: leaf for path, leaf in restored_leaves.items() if path not in expected_leaves}
    weights = {**{f"server/{path}": leaf for path, leaf in flatten(received or {})}, **expected_leaves}
    for path, leaf in added.items():
        if not path.startswith(OPTIMIZER):
            raise ValueError(f"'{path}' of {who} is not part of the state of this method")
        _check_moment(path, leaf, weights, who)
    _check_whole_optimizers(added, who)
    check_finite(restored, who)


def _check_leaf(leaf: Any, expected: Any, what: str) -> None:
    if isinstance(leaf, Tensor) != isinstance(expected, Tensor):
        raise ValueError(f"{what} is {_describe(leaf)}, not {_describe(expected)}")
    if isinstance(leaf, Tensor):
        same = leaf.shape == expected.shape and leaf.dtype == expected.dtype
    else:
        same = type(leaf) is type(expected)
    if not same:
        raise ValueError(f"{what} is {_describe(leaf)}, not {_describe(expected)}")


def _describe(leaf: Any) -> str:
    if not isinstance(leaf, Tensor):
        return f"a {type(leaf).__name__}"
    return f"{str(leaf.dtype).removeprefix('torch.')} of shape {list(leaf.shape)}"


def _check_moment(path: str, leaf: Any, weights: Mapping[str, Any], who: str) -> None:
    """Checks one tensor of an optimiser, `optimizer/<name>/first/<path of the weight>` or `optimizer/<name>/steps`."""
    what = f"'{path}' of {who}"
    parts = path.split("/")
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        raise ValueError(f"{what} is {_describe(leaf)}, not a tensor of numbers")
    if parts[2:] == ["steps"]:
        expected = [torch.zeros(())]
    elif len(parts) > 3 and parts[2] in MOMENTS:
        expected = list(_weights_at("/".join(parts[3:]), weights))
    else:
        raise ValueError(f"{what} is not part of an optimiser")
    # A method may train weights that nobody keeps; the training loop compares those with their moments.
    if expected and not any(leaf.shape == weight.shape and leaf.dtype == weight.dtype for weight in expected):
        shapes = " or ".join(dict.fromkeys(_describe(weight) for weight in expected))
        raise ValueError(f"{what} is {_describe(leaf)}, not {shapes}")


def _weights_at(path: str, weights: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yields the weights that may have this path in the model that was trained."""
    for whole, leaf in weights.items():
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and (whole == path or whole.endswith(f"/{path}")):
            yield leaf


def _check_whole_optimizers(added: Mapping[str, Any], who: str) -> None:
    """Refuses an optimiser with some of the first moments, the second moments and the count of steps, but not all.

    The count alone is fine: in a fleet of several architectures, others than the client's have trained.
    """
    kinds: dict[str, dict[str, set[str]]] = {}
    for path in added:
        _, name, kind, *weight_path = path.split("/")
        kinds.setdefault(name, {}).setdefault(kind, set()).add("/".join(weight_path))
    for name, parts in kinds.items():
        moments = parts.get("first", set()), parts.get("second", set())
        if moments[0] != moments[1] or (moments[0] and "steps" not in parts):
            raise ValueError(f"the optimiser '{name}' of {who} is not whole")
