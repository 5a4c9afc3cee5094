"""What is written on a request and on its answer, beside the message inside: read and checked before anything is made
of the message.

On the wire: `length of the envelope (4 bytes, little-endian) | envelope (JSON) | message`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Le, MaxLen
from pydantic import ConfigDict, TypeAdapter, ValidationError

from graft.engines.messages import DamagedMessage

LARGEST_ENVELOPE = 2**20  # bytes
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Count = Annotated[int, Ge(0), Le(2**62)]
Name = Annotated[str, MaxLen(200)]
Words = Annotated[str, MaxLen(10_000)]


@dataclass(frozen=True)
class StepRequest:
    """Asks a client to run a step."""

    run: Name  # which federation, so that nothing of another one is ever taken for this
    start: Count  # when the server's process began: what an earlier one said does not count any more
    number: Count  # of the requests of this process to this client, each larger than all before it
    round: Count
    attempt: Name  # another one where the round is begun anew
    after: Count  # the last round in which this client's work counted
    step: Name
    turn: Count
    do: Literal["step"] = "step"

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class EndRequest:
    """Tells a client that there are no more rounds."""

    run: Name
    start: Count
    number: Count
    after: Count
    reason: Words  # empty: all rounds were run
    do: Literal["end"] = "end"

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class StateRequest:
    """Asks a client that is simulated for its state, or has it take another: no organisation answers this."""

    fields: list[str] | None = None
    do: Literal["state", "restore"] = "state"
    all_fields: bool = False

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Answer:
    """What became of a request."""

    # A message is inside; or it was refused, or failed, or the client's state is that after another round.
    kind: Literal["reply", "refused", "failed", "behind"]
    run: Name = ""
    number: Count = 0
    reason: Words = ""
    has: Count = 0  # the round that its state is after
    losses: Annotated[dict[str, float | None], MaxLen(1000)] | None = None  # only of simulated clients

    __pydantic_config__ = STRICT


Envelope = TypeVar("Envelope")
Request = StepRequest | EndRequest | StateRequest
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)


def seal(envelope: Any, message: bytes = b"") -> bytes:
    """Returns a message with an envelope around it."""
    text = json.dumps(asdict(envelope)).encode()
    return b"".join((len(text).to_bytes(4, "little"), text, message))


def unseal(data: bytes, kind: TypeAdapter[Envelope]) -> tuple[Envelope, bytes]:
    """Returns an envelope, checked, and the message in it, which is not looked at."""
    length = int.from_bytes(data[:4], "little")
    if length > LARGEST_ENVELOPE or len(data) < 4 + length:
        raise DamagedMessage("not a Graft message: its envelope is not whole")
    try:
        return kind.validate_json(data[4 : 4 + length]), data[4 + length :]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DamagedMessage(f"not a Graft message: {where + ': ' if where else ''}{first['msg']}") from None
