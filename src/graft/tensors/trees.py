"""Arithmetic on trees: nested dictionaries whose leaves are tensors (or numbers, in messages)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
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


def map_tree(function: Callable[..., Any], tree: Weights, *others: Weights) -> Tree:
    """Applies a function leaf by leaf over one or several trees of the same structure; a bare leaf is one, too."""
    mapped: Tree = _map(function, tree, *others)
    return mapped


def _map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    if isinstance(tree, dict):
        return Tree({name: _map(function, tree[name], *(other[name] for other in others)) for name in tree})
    return function(tree, *others)


def flatten(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields pairs of a path, such as 'model/head/weight', and a leaf."""
    if isinstance(tree, dict):
        for name, branch in tree.items():
            yield from flatten(branch, f"{path}/{name}" if path else name)
    else:
        yield path, tree


def unflatten(leaves: Mapping[str, Any]) -> Tree:
    """Returns the tree that `flatten` gave these leaves of."""
    tree = Tree()
    for path, leaf in leaves.items():
        set_path(tree, path, leaf)
    return tree


def set_path(tree: Tree, path: str, leaf: Any) -> None:
    """Sets the leaf at a path, with the branches that lead there."""
    *branches, name = path.split("/")
    for branch in branches:
        tree = tree.setdefault(branch, Tree())
    tree[name] = leaf


def stack(trees: Sequence[Weights]) -> Tree:
    """Stacks one tree a client into a single tree with a leading client axis."""
    return map_tree(lambda *leaves: torch.stack([torch.as_tensor(leaf) for leaf in leaves]), trees[0], *trees[1:])


def select_clients(tree: Weights, positions: Tensor | int | slice) -> Tree:
    """Returns the rows of some clients, or with a plain number one client's without the client axis."""
    return map_tree(lambda leaf: leaf[positions], tree)


def broadcast_tree(tree: Weights, clients: int, device: torch.device) -> Tree:
    """Returns the same tree for every client: a leading client axis that takes no memory."""

    def broadcast(leaf: Any) -> Tensor:
        tensor = torch.as_tensor(leaf, device=device)
        return tensor.expand(clients, *tensor.shape)

    return map_tree(broadcast, tree)


def write_rows(stacked: Weights, positions: Tensor, rows: Weights) -> Tree:
    """Returns a copy of a stacked tree in which the rows at some positions are others."""
    return map_tree(lambda leaf, new: leaf.index_copy(0, positions, new), stacked, rows)


# Begins the name of a branch that belongs to one architecture: only its clients have rows there.
ARCHITECTURE_MARK = "@"


@dataclass(frozen=True)
class Owners:
    """Which clients of a fleet, by position, have a row in a leaf: all, or those of the architecture in its path."""

    clients: int
    kinds: Mapping[str, range] = field(default_factory=dict)  # by the names of their branches

    def __call__(self, path: str) -> range:
        named = [name for name in path.split("/") if name in self.kinds] if self.kinds else []
        return self.kinds[named[0]] if named else range(self.clients)

    def select(self, path: str, values: Tensor) -> Tensor:
        """Returns the values, out of one a client, of the clients that have a row in a leaf."""
        owners = self(path)
        return values[owners.start : owners.stop]

    def rows(self, path: str, chosen: Sequence[int]) -> list[int]:
        """Returns where the rows of some clients are in a leaf, as far as they have any there."""
        owners = self(path)
        return [client - owners.start for client in chosen if client in owners]


def strip_architectures(tree: Tree) -> Tree:
    """Returns one client's state without the name of its architecture in the paths."""

    def plain(path: str) -> str:
        return "/".join(name for name in path.split("/") if not name.startswith(ARCHITECTURE_MARK))

    return unflatten({plain(path): leaf for path, leaf in flatten(tree)})


def weighted_mean(models: Any, weights: Tensor) -> Any:
    """Returns the mean of stacked models over the client axis; integer leaves are the first client's."""
    return weighted_sum(models, vote_shares(weights))


def weighted_sum(models: Any, shares: Tensor) -> Any:
    """Returns the sum of stacked models over the client axis, each times its share; integer leaves are the first
    client's."""

    def total(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf[0].clone()
        summed: Tensor = torch.tensordot(shares.to(leaf), leaf, dims=1)
        return summed

    return map_tree(total, models)


def add_sums(parts: Sequence[Any]) -> Any:
    """Returns the sum over all clients from `weighted_sum` over some of them each, added in the order given; integer
    leaves are those of the first part, which should hold the first client."""

    def add(first: Tensor, *others: Tensor) -> Tensor:
        return sum(others, first) if first.is_floating_point() else first

    return map_tree(add, parts[0], *parts[1:])


def vote_shares(votes: Tensor) -> Tensor:
    """Returns the shares of clients in a mean, from a vote of each; all are equal where nobody has a vote."""
    total = votes.sum()
    return torch.where(total > 0, votes.double() / total, 1 / len(votes))


def shares_among(votes: Tensor, heard: Tensor) -> Tensor:
    """Returns the shares of those that are heard, bool [..., clients], in as many means; all that are heard have equal
    ones where none of them has a vote."""
    weights = heard * votes
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, heard / heard.sum(-1, keepdim=True).clamp(min=1))


def trainable(weights: Weights, frozen: frozenset[str]) -> Tree:
    """Returns the leaves that training moves: floating-point ones, without the frozen paths of buffers."""
    return unflatten({path: leaf for path, leaf in flatten(weights) if leaf.is_floating_point() and path not in frozen})


def difference(end: Weights, start: Weights, frozen: frozenset[str] = frozenset()) -> Tree:
    """Returns the update that training made to a model, over its trainable leaves."""
    return map_tree(torch.sub, trainable(end, frozen), trainable(start, frozen))


def add_update(model: Weights, update: Weights) -> Tree:
    """Returns a model with an update added; leaves that the update lacks stay as they are."""
    updates = dict(flatten(update))
    return unflatten({path: leaf + updates[path] if path in updates else leaf for path, leaf in flatten(model)})


def unsqueeze_to(values: Tensor, leaf: Tensor) -> Tensor:
    """Returns values with trailing axes of size 1, so that they broadcast over a leaf that begins with their axes."""
    return values.view(*values.shape, *[1] * (leaf.dim() - values.dim()))


def inner_product(first: Weights, second: Weights) -> Tensor:
    """Returns the inner product of two stacked models, client by client, over the paths of the second."""
    others = dict(flatten(first))
    products = [(others[path] * leaf).reshape(len(leaf), -1).sum(1) for path, leaf in flatten(second)]
    return torch.stack(products).sum(0)


def squared_distance(first: Weights, second: Weights, skip: frozenset[str] = frozenset()) -> Tensor:
    """Returns the squared Euclidean distance of two stacked models, client by client, without the paths to skip."""
    others = dict(flatten(second))
    squares = [
        (leaf - others[path]).square().reshape(len(leaf), -1).sum(1)
        for path, leaf in flatten(first)
        if path not in skip
    ]
    return torch.stack(squares).sum(0)


def all_finite(leaf: Tensor) -> bool:
    """Returns whether no number of a tensor is infinite or nan."""
    if not leaf.is_floating_point() or not leaf.numel():
        return True
    return all(isfinite(extreme.item()) for extreme in torch.aminmax(leaf))  # in one pass, which a nan gets through


def count_bytes(tree: Any) -> int:
    """Returns the payload of a message: tensors at their own width, a bare number as eight bytes."""
    return sum(leaf.nbytes if isinstance(leaf, Tensor) else 8 for _, leaf in flatten(tree))


def check_message(tree: Any, where: str, path: str = "") -> None:
    """Refuses anything in a message that is not a tensor or a number, so that it can cross a network."""
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
