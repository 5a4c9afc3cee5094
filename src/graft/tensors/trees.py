"""Arithmetic on trees: nested dictionaries whose leaves are tensors (or numbers, in messages)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


class Tree(dict[str, Any]):
    """A dictionary whose entries can also be read and written as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no field '{name}'; there are: {', '.join(self) or 'none'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


Weights = Mapping[str, Any]  # a tree of tensors: a model, or several side by side


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function leaf by leaf over one or several trees of the same shape."""
    if isinstance(tree, dict):
        return Tree({name: map_tree(function, tree[name], *(other[name] for other in others)) for name in tree})
    return function(tree, *others)


def flatten(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Walk over a tree as pairs of a path, such as 'model/head/weight', and a leaf."""
    if isinstance(tree, dict):
        for name, branch in tree.items():
            yield from flatten(branch, f"{path}/{name}" if path else name)
    else:
        yield path, tree


def unflatten(pairs: Mapping[str, Any]) -> Tree:
    """Build the tree whose leaves were listed by `leaves`."""
    tree = Tree()
    for path, leaf in pairs.items():
        set_path(tree, path, leaf)
    return tree


def set_path(tree: Tree, path: str, leaf: Any) -> None:
    """Put a leaf at its place, with the branches that lead there."""
    *branches, name = path.split("/")
    for branch in branches:
        tree = tree.setdefault(branch, Tree())
    tree[name] = leaf


def stack(trees: Sequence[Any]) -> Any:
    """Put one tree per client into a single tree with a leading client axis."""
    return map_tree(lambda *parts: torch.stack([torch.as_tensor(part) for part in parts]), trees[0], *trees[1:])


def select_clients(tree: Any, positions: Tensor | int) -> Any:
    """Pick clients, or with a plain number one client, out of a tree with a leading client axis."""
    return map_tree(lambda leaf: leaf[positions], tree)


ARCHITECTURE_MARK = (
    "@"  # begins the name of a branch that only some clients of a fleet have: those with that kind of model
)


@dataclass(frozen=True)
class Owners:
    """Which clients of a fleet, by position, have a row in a leaf: all, or those of the kind that its path names."""

    clients: int
    kinds: Mapping[str, range] = field(default_factory=dict)  # by the names of their branches

    def __call__(self, path: str) -> range:
        marks = [name for name in path.split("/") if name in self.kinds] if self.kinds else []
        return self.kinds[marks[0]] if marks else range(self.clients)

    def of(self, path: str, values: Tensor) -> Tensor:
        """Of one value a client, those of the clients that have a row in a leaf."""
        mine = self(path)
        return values[mine.start : mine.stop]

    def rows(self, path: str, chosen: Sequence[int]) -> list[int]:
        """Where the rows of some clients are in a leaf, as far as they have any there."""
        mine = self(path)
        return [client - mine.start for client in chosen if client in mine]


def strip_architectures(tree: Tree) -> Tree:
    """What one client keeps, without the name of its kind of model in every path."""
    paths = {
        path: [name for name in path.split("/") if not name.startswith(ARCHITECTURE_MARK)] for path, _ in flatten(tree)
    }
    return unflatten({"/".join(paths[path]): leaf for path, leaf in flatten(tree)})


def broadcast_tree(tree: Any, clients: int, device: torch.device) -> Any:
    """Give every client the same tree: a leading client axis that costs no memory."""

    def one(leaf: Any) -> Tensor:
        tensor = torch.as_tensor(leaf, device=device)
        return tensor.expand(clients, *tensor.shape)

    return map_tree(one, tree)


def weighted_mean(models: Any, weights: Tensor) -> Any:
    """Average stacked models over the client axis; whole-number leaves are taken from the first client."""
    shares = weights.double() / weights.sum()

    def mean(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf[0].clone()
        averaged: Tensor = torch.tensordot(shares.to(leaf), leaf, dims=1)
        return averaged

    return map_tree(mean, models)


def trainable(weights: Weights, frozen: frozenset[str]) -> Tree:
    """The part of a model that training moves: numbers that are not whole, without the frozen paths of buffers."""
    return unflatten({path: leaf for path, leaf in flatten(weights) if leaf.is_floating_point() and path not in frozen})


def difference(end: Weights, start: Weights, frozen: frozenset[str] = frozenset()) -> Tree:
    """How far training moved a model, in all that is not a whole number and not frozen."""
    return map_tree(torch.sub, trainable(end, frozen), trainable(start, frozen))  # type: ignore[no-any-return]


def add_update(model: Weights, shift: Weights) -> Tree:
    """A model moved along the paths of a shift."""
    moves = dict(flatten(shift))
    return unflatten({path: leaf + moves[path] if path in moves else leaf for path, leaf in flatten(model)})


def unsqueeze_to(values: Tensor, leaf: Tensor) -> Tensor:
    """Values with further axes at the end, to be multiplied with a leaf that begins with theirs."""
    return values.view(*values.shape, *[1] * (leaf.dim() - values.dim()))


def inner_product(first: Weights, second: Weights) -> Tensor:
    """The inner product of two stacked models, client by client, over the paths of the second."""
    others = dict(flatten(first))
    parts = [(others[path] * leaf).reshape(len(leaf), -1).sum(1) for path, leaf in flatten(second)]
    return torch.stack(parts).sum(0)


def squared_distance(first: Weights, second: Weights, skip: frozenset[str] = frozenset()) -> Tensor:
    """The squared Euclidean distance between two stacked models, client by client, without the paths to skip."""
    others = dict(flatten(second))
    parts = [
        (leaf - others[path]).square().reshape(len(leaf), -1).sum(1)
        for path, leaf in flatten(first)
        if path not in skip
    ]
    return torch.stack(parts).sum(0)


def count_bytes(tree: Any) -> int:
    """The payload of a message: tensors at their own width, a bare number as eight bytes."""
    return sum(leaf.nbytes if isinstance(leaf, Tensor) else 8 for _, leaf in flatten(tree))


def check_message(tree: Any, where: str, path: str = "") -> None:
    """Refuse anything in a message that is not a tensor or a number, so that it can cross a network."""
    if not isinstance(tree, dict):
        raise TypeError(f"{where} is a bare {type(tree).__name__}; a message is a tree with named fields")
    for name, leaf in tree.items():
        # A slash would come back from a network as a branch.
        if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
            raise TypeError(f"{where} has the unusable field name {name!r}")
        if isinstance(leaf, Mapping):
            check_message(leaf, where, f"{path}{name}/")
        elif not isinstance(leaf, Tensor | int | float):
            raise TypeError(
                f"{where} holds a {type(leaf).__name__} at '{path}{name}'; a message may hold tensors and numbers"
            )
