"""Who is to be left out of a round: clients whose replies are not numbers, claim absurd votes, or are far too large.

What is seen here is one reply a client, without a client axis. Steps that only tell how good a model is are not for
screening: a metric of theirs may be undefined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor

from graft.federation.method import Method
from graft.federation.reveals import NODES, VOTE, declared
from graft.tensors.trees import Tree, all_finite, flatten, unflatten

LARGEST_VOTE = 2**36  # nobody has more nodes: some 69 billion
LARGEST_SHARE = 1000  # times the median of the others' votes
FEWEST = 3  # of fewer clients nobody can say which of them is far from the others


def screen_step(
    method: Method, step: str, replies: Mapping[int, Any], sent: Mapping[int, Any], max_norm: float | None = None
) -> dict[int, str]:
    """Returns who is to be left out after a step of a method, and why: as `screen`, with what the method declares.

    Fields that a method only logs are left alone: where clients keep them to themselves they are no numbers.
    """
    fields = {field.partition("/")[2]: reveals for field, reveals in declared(method).items() if within(field, step)}
    votes = [name for name, reveals in fields.items() if reveals in (VOTE, NODES)]
    models = [name for name, reveals in fields.items() if reveals.model]
    kept = [field.partition("/")[2] for field in method.logged if within(field, step)]
    seen = {client: without(reply, kept) for client, reply in replies.items()}
    return screen(seen, sent, votes, models, max_norm)


def without(tree: Any, names: Collection[str]) -> Tree:
    """Returns a tree without some branches."""
    leaves = {path: leaf for path, leaf in flatten(tree) if not any(within(path, name) for name in names)}
    return unflatten(leaves)


def within(field: str, branch: str) -> bool:
    """Returns whether a field is in a branch, or is the branch itself."""
    return field == branch or field.startswith(f"{branch}/")


def screen(
    replies: Mapping[int, Any],
    sent: Mapping[int, Any],
    votes: Collection[str] = (),
    models: Collection[str] = (),
    max_norm: float | None = None,
) -> dict[int, str]:
    """Returns who is to be left out of a round, and why, as what follows a name in a sentence.

    Out are clients with a number that is not finite; with a vote, of the fields `votes`, that is negative, above 2^36
    or above 1,000 times the median of the others; and with `max_norm` those whose update is more than so many times as
    long as the median of all. An update is a model of the reply, of the fields `models`, less what the client was sent
    in its shape, or the model itself; without any such fields, all that is no vote. Medians leave out who sent nothing
    or 0, and who is out already; of fewer than three clients none are taken.
    """
    reasons: dict[int, str] = {}
    for client, reply in replies.items():
        broken = [path for path, leaf in flatten(reply or {}) if not all_finite(torch.as_tensor(leaf))]
        if broken:
            reasons[client] = f"sent numbers that are not finite ('{broken[0]}')"
    for name in votes:
        reasons |= screen_votes(name, {client: replies[client] for client in replies if client not in reasons})
    if max_norm is not None:
        norms = {
            client: update_norm(replies[client], sent.get(client), votes, models)
            for client in replies
            if client not in reasons
        }
        usual = middle(norms.values())
        for client, norm in norms.items():
            if usual is not None and norm > max_norm * usual:
                reasons[client] = (
                    f"sent an update {norm / usual:.3g} times as long as the median one, and {max_norm:g} times is the "
                    f"most"
                )
    return reasons


def screen_votes(name: str, replies: Mapping[int, Any]) -> dict[int, str]:
    """Returns who claims a vote that cannot be, or that would drown all others."""
    claimed = {client: torch.cat(values) for client, reply in replies.items() if (values := vote_of(reply, name))}
    reasons = {}
    for client, vote in claimed.items():
        if bool((vote < 0).any()) or bool((vote > LARGEST_VOTE).any()):
            reasons[client] = f"claims a vote of {float(vote[vote.abs().argmax()]):.6g} ('{name}')"
    totals = {client: float(vote.sum()) for client, vote in claimed.items() if client not in reasons}
    for client, total in totals.items():
        others = [totals[other] for other in totals if other != client]
        usual = middle(others, FEWEST - 1)
        if usual is not None and total > LARGEST_SHARE * usual:
            reasons[client] = f"claims a vote of {total:.6g}, {total / usual:.3g} times the median of the others"
    return reasons


def vote_of(reply: Any, name: str) -> list[Tensor]:
    """Returns the numbers of a field."""
    return [in_double(leaf).reshape(-1) for path, leaf in flatten(reply or {}) if within(path, name)]


def middle(values: Collection[float], fewest: int = FEWEST) -> float | None:
    """Returns the median of the values above 0, if there are enough."""
    positive = [value for value in values if value > 0]
    return median(positive) if len(positive) >= fewest else None


def update_norm(reply: Any, sent: Any, votes: Collection[str], models: Collection[str]) -> float:
    """Returns the Euclidean norm of the models of a reply, each less what was sent in its shape, where anything was."""
    leaves = dict(leaves_of(reply))
    here = {name: {path: leaf for path, leaf in leaves.items() if within(path, name)} for name in models}
    fields = {name: own for name, own in here.items() if own}
    if not fields:
        fields = {"": {path: leaf for path, leaf in leaves.items() if not any(within(path, vote) for vote in votes)}}
    squares = 0.0
    for name, own in fields.items():
        model = {path.removeprefix(name).removeprefix("/"): leaf for path, leaf in own.items()}
        start = sent_alike(name, model, sent)
        for path, leaf in model.items():
            if leaf.is_floating_point():
                squares += float((leaf - start[path] if start else leaf).square().sum())
    return float(squares**0.5)


def sent_alike(name: str, model: Mapping[str, Tensor], sent: Any) -> dict[str, Tensor]:
    """Returns the leaves of what was sent in the shape of a model that was replied: those of its name, if there are,
    or else the first; empty where nothing was."""
    trees = {branch: dict(leaves_of(tree)) for branch, tree in branches(sent)}
    alike = {branch: leaves for branch, leaves in trees.items() if same_shapes(leaves, model)}
    return alike.get(name, next(iter(alike.values()), {}))


def branches(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields a tree, all branches of it and all leaves, with their paths."""
    yield path, {} if tree is None else tree
    for name, branch in tree.items() if isinstance(tree, Mapping) else ():
        yield from branches(branch, f"{path}/{name}" if path else name)


def same_shapes(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Returns whether two models have the same paths and shapes."""
    return first.keys() == second.keys() and all(first[path].shape == second[path].shape for path in first)


def leaves_of(tree: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the leaves of a tree with their paths, as `in_double` has them."""
    for path, leaf in flatten(tree if tree is not None else {}):
        yield path, in_double(leaf)


def in_double(leaf: Any) -> Tensor:
    """Returns a leaf as a tensor on the host, fractions in double precision."""
    tensor = torch.as_tensor(leaf).detach().cpu()
    return tensor.double() if tensor.is_floating_point() else tensor
