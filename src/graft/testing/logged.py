"""What a method declares in `logged` may stay with the clients: the server only puts it on record."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from graft.engines.in_process import InProcess
from graft.federation.clients import Replies, Request
from graft.federation.method import Method
from graft.federation.reveals import covering, declared
from graft.federation.setup import Setup
from graft.tensors.trees import Tree, map_tree
from graft.testing.claim import claim, contract_setup, require
from graft.testing.toy import run_rounds, same


@claim
def logged_fields_are_only_put_on_record(method: Method) -> None:
    """Rounds in which the server reads NaN for the fields of `logged` leave server and clients as all others do."""
    for field in method.logged:
        require(
            field.count("/") == 1 and covering(declared(method), field) is not None,
            f"{field} is declared in `logged`, but not as the field of a step, step/field, in `reveals`",
        )
        require(field not in method.averages, f"{field} is declared in `logged`, and in `averages` too")
    for participation in (1.0, 0.5) if method.logged else ():
        setup = contract_setup(method, clients=4, dropout=0.5, participation=participation)
        told, untold = run_rounds(setup, rounds=3), run_rounds(setup, rounds=3, engine=KeepsLogs(setup))
        where = f"where the fields of `logged` stay with the clients, with participation {participation}"
        require(same(told.server.state, untold.server.state), f"the server differs {where}")
        for client in told.engine.members():
            require(same(told.client(client), untold.client(client)), f"client {client} differs {where}")


class KeepsLogs(InProcess):
    """An engine that gives out NaN for the fields of `logged`, as one between organisations does."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.logged: tuple[str, ...] = setup.method.logged

    def ask(self, request: Request) -> Replies:
        replies = super().ask(request)
        names = {name for _, part in replies.parts for name in part if f"{request.step}/{name}" in self.logged}
        return Replies([(clients, without(part, names)) for clients, part in replies.parts])


def without(reply: Any, names: Collection[str]) -> Tree:
    """Returns a reply with NaN for some of its fields, whole numbers among them."""

    def unknown(leaf: torch.Tensor) -> torch.Tensor:
        return torch.full_like(leaf, torch.nan, dtype=leaf.dtype if leaf.is_floating_point() else torch.float32)

    return Tree({name: map_tree(unknown, branch) if name in names else branch for name, branch in reply.items()})
