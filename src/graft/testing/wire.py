"""Messages as bytes: what crosses a network is what is counted, and gives the same result."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch

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
        difference = gap(state, states[client])
        require(difference < 1e-5, f"client {client} differs by {difference:.1e} when messages are bytes")
    require(here.traffic == there.traffic, f"{here.traffic} in process, {there.traffic} as bytes")
    require(there.traffic == counted, f"{there.traffic} on record, {counted} through the pipes")


class CountingLoopback(Loopback):
    """A loopback engine that weighs the tensors and numbers in all bytes that go through its pipes."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._traffic = Traffic()
        self._between_peers = False
        counted: Any = {client: CountedPipe(pipe, client, self) for client, pipe in self._pipes.items()}
        self._pipes = counted

    def sent(self, client: int, data: bytes) -> None:
        head, message = unpack(data)
        if head["do"] != "step":
            return
        if isinstance(message, dict) and message.keys() == {"sent", "links", "senders"}:
            self._between_peers = True
            self._traffic.peer += heard_bytes(message, client)
        else:
            self._traffic.down += payload(data)

    def received(self, data: bytes) -> None:
        self._traffic.up += payload(data)

    def counted(self) -> Traffic:
        """Returns the traffic so far; where peers exchange, what goes through here in between is nobody's message."""
        return Traffic(peer=self._traffic.peer) if self._between_peers else replace(self._traffic)


class CountedPipe:
    """A pipe that shows what goes through it."""

    def __init__(self, pipe: Any, client: int, engine: CountingLoopback) -> None:
        self._pipe, self._client, self._engine = pipe, client, engine

    def send_bytes(self, data: bytes) -> None:
        self._engine.sent(self._client, data)
        self._pipe.send_bytes(data)

    def recv_bytes(self) -> bytes:
        data: bytes = self._pipe.recv_bytes()
        self._engine.received(data)
        return data

    def close(self) -> None:
        self._pipe.close()


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
