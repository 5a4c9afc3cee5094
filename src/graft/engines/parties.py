"""The engine of a server whose clients are organisations: nothing that they send is taken on trust."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from graft.engines.forms import Forms, check_tree, fill_logged
from graft.engines.party import MOST_SIZE
from graft.engines.remote import Remote
from graft.engines.wire import Node, Patience
from graft.federation.clients import Request
from graft.federation.method import SCORING
from graft.federation.screening import screen_step
from graft.federation.setup import Setup
from graft.tensors.trees import Tree

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
        start: int | None = None,
        max_norm: float | None = None,
        most_size: int = MOST_SIZE,
    ) -> None:
        super().__init__(setup, node, names, patience, run=run, after=after, start=start)
        self._forms, self._max_norm, self._most_size = forms, max_norm, most_size

    def checked(self, request: Request, reply: Any) -> Tree:
        """Returns a reply whose form is what was agreed on, with NaN for what stays where it is."""
        form = self._forms[request.step]
        check_tree(reply, form.sent, f"the reply of step '{request.step}'", self._most_size)
        return fill_logged(reply, form.reply)

    def screen(self, request: Request, replies: Mapping[int, Any]) -> dict[int, str]:
        if request.step in SCORING:
            return {}
        sent = {client: request.each[client] if request.each else request.message for client in replies}
        return screen_step(self._setup.method, request.step, replies, sent, self._max_norm)

    def note(self, client: int, what: str) -> None:
        log.warning("%s %s", self.names[client], what)
