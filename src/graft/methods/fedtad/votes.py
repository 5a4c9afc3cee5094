"""Reliabilities as votes in the average of a host, instead of as weights of teachers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graft.errors import InputError
from graft.federation.clients import Replies
from graft.methods.fedtad.lesson import relative_reliability
from graft.tensors.trees import Tree, Weights, flatten, unflatten

if TYPE_CHECKING:
    from graft.federation.server import Server

NO_VOTES = "votes = client needs a host that averages by the votes of its clients, and this one does not."


class ReliableVotes(Replies):
    """Replies of a host's clients with other votes than they sent."""

    def __init__(self, replies: Replies, votes: Tensor) -> None:
        super().__init__(replies.parts)
        self._average = replies._average
        self._votes, self._asked = votes, False

    @property
    def weight(self) -> Tensor:
        self._asked = True
        return self._votes

    def check_asked(self) -> None:
        """Refuses a host that averages by something else."""
        if not self._asked:
            raise InputError(NO_VOTES)


def check_votes(replies: Replies) -> None:
    """Refuses a host whose clients send no votes."""
    if "weight" not in replies:
        raise InputError(NO_VOTES)


def by_client(reliability: Tensor, votes: Tensor) -> Tensor:
    """Returns a vote for each client: the mean over classes of its share in their reliabilities.

    A client without a vote has nothing to train on, and without any reliable client votes stay as they are.
    """
    shares = relative_reliability(reliability, torch.ones(1, len(reliability), device=reliability.device))[0].mean(1)
    reliable = shares * (votes > 0)
    return torch.where(reliable.sum() > 0, reliable, votes.to(reliable))


def check_head(server: Server) -> None:
    """Refuses what has no last layer to which every class has its own weights, or no single model."""
    head = server.state.get("model", Tree()).get("head", Tree()) if "models" not in server.state else Tree()
    if not any(leaf.shape[-1] == server.classes for _, leaf in flatten(head)):
        raise InputError(
            "votes = class needs one model at the server with a last layer called 'head', a column for each class."
        )


def with_reliable_head(model: Weights, models: Weights, votes: Tensor, reliability: Tensor) -> Tree:
    """Returns a host's model whose last layer has moved from the clients' mean by votes to that by reliability for each
    class; where nobody is reliable for a class it stays.

    It is moved and not replaced, since a host may do more than average.
    """
    everyone = torch.ones(1, len(votes), device=votes.device)
    by_class = relative_reliability(reliability, everyone)[0]
    usual = (votes / votes.sum().clamp(min=1e-12)).unsqueeze(1)
    shift = torch.where(by_class.sum(0) > 0, by_class - usual, 0)  # [clients, classes]
    theirs = dict(flatten(models))
    moved = {
        path: leaf + torch.einsum("k...c,kc->...c", theirs[path], shift) if of_classes(path, leaf, shift) else leaf
        for path, leaf in flatten(model)
    }
    return unflatten(moved)


def of_classes(path: str, leaf: Tensor, shift: Tensor) -> bool:
    return path.startswith("head/") and leaf.shape[-1] == shift.shape[1]
