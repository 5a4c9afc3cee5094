"""A step as a single client runs it, on its own."""

from __future__ import annotations

from math import isfinite
from typing import Any

from graft.engines.capture import Message, step_arguments
from graft.engines.envelopes import StepRequest
from graft.engines.in_process import labelled_losses
from graft.engines.messages import drop_client_axis
from graft.federation.clients import check_reply
from graft.federation.fleet import Fleet
from graft.federation.method import find_step
from graft.federation.setup import Setup
from graft.tensors.trees import Tree


def run_step(setup: Setup, fleet: Fleet, request: StepRequest, message: Any) -> tuple[Tree, dict[str, float | None]]:
    """Returns what a step replies, without a client axis, and its last training losses, None for one that is no number.

    Nothing but a marked step can be run.
    """
    step = request.step
    function, _ = find_step(setup.method, step)
    view = fleet.for_call(request.round, step, request.turn)
    reply = function(view, *step_arguments(Message(message), view))
    check_reply(reply, 1, f"step '{step}'")
    losses = {label: float(loss) for label, loss in labelled_losses(step, view)}
    return drop_client_axis(reply), {label: loss if isfinite(loss) else None for label, loss in losses.items()}
