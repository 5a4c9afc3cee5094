"""Messages as bytes: what crosses a network is what is counted, and gives the same result."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch

from graft.engines.envelopes import ANSWER, REQUEST, StepRequest, unseal
from graft.engines.loopback import Loopback
from graft.engines.messages import unpack
from graft.federation.clients import Traffic
from graft.federation.method import Method
from graft.federation.setup import Setup
from graft.tensors.trees import flatten
from graft.testing.claim import claim, contract_setup, require
from graft.testing.toy import gap, run_rounds


@claim
def in_process_equals_messages_as_bytes(method: Method) -> None:
    """Clients in processes of their own give the same result, and as many bytes cross the pipes as are counted."""
    setup = contract_setup(method, dropout=0.5)
    here = run_rounds(setup)
    engine = CountingLoopback(setup)
    try:
        there = run_rounds(setup, engine=engine)
        counted = engine.counted()
        states = engine.state()
    finally:
        engine.close()
    difference = gap(here.server.state, there.server.state)
    require(difference < 1e-5, f"the server differs by {difference:.1e} when messages are bytes")
    for client, state in here.engine.state().items():
        difference = gap(state, states[client], relative=True)
        require(difference < 1e-5, f"client {client} differs by {difference:.1e} when messages are bytes")
    require(here.traffic == there.traffic, f"{here.traffic} in process, {there.traffic} as bytes")
    require(there.traffic == counted, f"{there.traffic} on record, {counted} through the pipes")


class CountingLoopback(Loopback):
    """A loopback engine that weighs the tensors and numbers in all bytes that go through its pipes."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._traffic = Traffic()
        self._between_peers = False
        self.pipes.watch = self.weigh

    def weigh(self, client: str, data: bytes, sent: bool) -> None:
        if not sent:
            body = unseal(data, ANSWER)[1]
            self._traffic.up += payload(body) if body else 0
            return
        request, body = unseal(data, REQUEST)
        if not isinstance(request, StepRequest):
            return
        _, message = unpack(body)
        if isinstance(message, dict) and message.keys() == {"sent", "links", "senders"}:
            self._between_peers = True
            self._traffic.peer += heard_bytes(message, int(client))
        else:
            self._traffic.down += payload(body)

    def counted(self) -> Traffic:
        """Returns the traffic so far; where peers exchange, what goes through here in between is nobody's message."""
        return Traffic(peer=self._traffic.peer) if self._between_peers else replace(self._traffic)


def payload(data: bytes) -> int:
    """Returns the bytes of a message without its framing: those of its tensors, and eight for every bare number."""
    length = int.from_bytes(data[:8], "little")
    frame, tensors = json.loads(data[8 : 8 + length]), data[8 + length :]
    header = int.from_bytes(tensors[:8], "little")
    return len(tensors) - 8 - header + 8 * len(frame["numbers"])


def heard_bytes(inbox: Any, client: int) -> int:
    """Returns the bytes in an inbox that others sent and that were heard, part by part where parts travel apart."""
    others = inbox["senders"] != client
    heard = ((inbox["links"] != 0) & others).reshape(-1, len(others))
    parts = len(heard)
    by_part: int = sum(leaf[0].nbytes for _, leaf in flatten(inbox["sent"])) // parts
    return int(torch.count_nonzero(heard)) * by_part
