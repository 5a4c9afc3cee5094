"""A federation in which one client sends what it should not: how far does an average let it go?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from graft.engines.in_process import InProcess
from graft.federation.clients import Replies, Request
from graft.federation.screening import screen_step, sent_alike
from graft.federation.setup import Setup
from graft.tensors.randomness import seed_for
from graft.tensors.trees import Tree, flatten, stack, unflatten

Attack = Callable[[Tensor, Tensor, torch.Generator], Tensor]  # of a leaf, what it was before training, and randomness

ATTACKS: dict[str, Attack] = {
    "noise": lambda leaf, start, random: torch.randn(leaf.shape, generator=random).to(leaf),  # noqa: ARG005
    "flip": lambda leaf, start, random: start - (leaf - start),  # noqa: ARG005
    "flip x10": lambda leaf, start, random: start - 10 * (leaf - start),  # noqa: ARG005
    "nan": lambda leaf, start, random: torch.full_like(leaf, float("nan")),  # noqa: ARG005
    "huge": lambda leaf, start, random: 1e6 * leaf,  # noqa: ARG005
}


class Poisoned(InProcess):
    """An engine in which one client attacks all that is averaged; with `screened` replies are screened as those of
    organisations are, and whoever fails has not replied."""

    def __init__(
        self, setup: Setup, client: int, attack: Attack, *, screened: bool = False, max_norm: float | None = None
    ) -> None:
        super().__init__(setup)
        self._bad, self._attack, self._screened, self._max_norm = client, attack, screened, max_norm
        self._random = torch.Generator().manual_seed(seed_for(setup.seed, client, "poison"))
        self.left_out: list[dict[int, str]] = []  # of every step that was screened

    def ask(self, request: Request) -> Replies:
        replies = super().ask(request)
        method = self._setup.method
        averaged = [field.partition("/")[2] for field in method.averages if field.startswith(f"{request.step}/")]
        if not averaged:
            return replies
        trees = {client: replies[client] for client in replies.clients}
        sent = {client: request.message if request.each is None else request.each[client] for client in trees}
        if self._bad in trees:
            changed = {name: self._poison(name, trees[self._bad][name], sent[self._bad]) for name in averaged}
            trees[self._bad] = Tree({**trees[self._bad], **changed})
        if self._screened:
            out = screen_step(method, request.step, trees, sent, self._max_norm)
            self.left_out.append(out)
            trees = {client: tree for client, tree in trees.items() if client not in out}
        return Replies([(list(trees), stack(list(trees.values())))])

    def _poison(self, name: str, model: Any, sent: Any) -> Any:
        """Returns a field of a reply after the attack."""
        leaves: Mapping[str, Tensor] = dict(flatten(model))
        start = sent_alike(name, leaves, sent)
        attacked = {
            path: self._attack(leaf, start.get(path, torch.zeros_like(leaf)).to(leaf), self._random)
            if leaf.is_floating_point()
            else leaf
            for path, leaf in leaves.items()
        }
        return attacked[""] if "" in attacked else unflatten(attacked)
