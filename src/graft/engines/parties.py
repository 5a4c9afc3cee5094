"""The engine of a server whose clients are organisations: nothing that they send is taken on trust."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import torch

from graft.engines.forms import FieldForm, Forms, RefusedMessage, check_tree
from graft.engines.party import MOST_SIZE
from graft.engines.remote import Remote
from graft.engines.wire import Node, Patience
from graft.federation.clients import Request
from graft.federation.method import SCORING
from graft.federation.screening import screen_step
from graft.federation.setup import Setup
from graft.tensors.trees import Tree, flatten, set_path

log = logging.getLogger(__name__)


class Parties(Remote):
    """Parties behind a node; every reply must have the form that was agreed, and be like those of the others."""

    def __init__(
        self,
        setup: Setup,
        node: Node,
        names: Sequence[str],
        patience: Patience,
        *,
        run: str,
        forms: Forms,
        after: Mapping[int, int] | None = None,
        max_norm: float | None = None,
        most_size: int = MOST_SIZE,
    ) -> None:
        super().__init__(setup, node, names, patience, run=run, after=after)
        self._forms, self._max_norm, self._most_size = forms, max_norm, most_size

    def check(self, request: Request, reply: Any) -> str:
        """Returns in words what is wrong with the form of a reply; one that is fine gets NaN for what stays there."""
        form = self._forms.get(request.step)
        if form is None:
            return f"was asked for step '{request.step}', which nobody agreed on"
        try:
            check_tree(reply, form.sent, f"the reply of step '{request.step}'", self._most_size)
        except RefusedMessage as error:
            return f"sent what is refused: {error}"
        for path, field in form.reply.items():
            if field.logged:
                set_path(reply, path, unknown(field))
        return ""

    def screen(self, request: Request, replies: Mapping[int, Any]) -> dict[int, str]:
        if request.step in SCORING:
            return {}
        sent = {client: request.each[client] if request.each else request.message for client in replies}
        logged = {path for path, field in self._forms[request.step].reply.items() if field.logged}
        travelled = {client: without(reply, logged) for client, reply in replies.items()}
        return screen_step(self._setup.method, request.step, travelled, sent, self._max_norm)

    def note(self, client: int, what: str) -> None:
        log.warning("%s %s", self.names[client], what)


def unknown(field: FieldForm) -> Any:
    """Returns what a server reads in the place of a value that its owner keeps."""
    return torch.full([size or 0 for size in field.shape], nan)


def without(tree: Any, paths: set[str]) -> Tree:
    """Returns a tree without some of its leaves."""
    kept = Tree()
    for path, leaf in flatten(tree):
        if path not in paths:
            set_path(kept, path, leaf)
    return kept
