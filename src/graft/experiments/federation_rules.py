"""What a federation file may say of names, addresses, waiting and limits; imports neither PyTorch nor NumPy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge, Gt, Le
from typing_extensions import Doc

from graft.engines.wire import MOST_BYTES, Patience
from graft.errors import InputError
from graft.fields import check_fields
from graft.files import printable

LONGEST_WAIT = 30 * 24 * 3600  # seconds
LONG = 10_000_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?):([0-9]{1,5})")

Seconds = Annotated[float, Ge(0), Le(LONGEST_WAIT)]

# Fields of an experiment that mean nothing between organisations, and why.
_OWN_DATA = "every party brings its own data"
_AS_THEY_ARE = "the data of parties are used as they are"
_OWN_MACHINE = "every party and the server run on machines of their own"
_OWN_CHOICE = "that is everybody's own choice, for the machine at hand"
NO_MEANING = {
    "dataset": _OWN_DATA,
    "graphs": _OWN_DATA,
    "clients": "the parties are the clients, and are listed at the top",
    "partition": "nothing is shared out: every party brings its own graph",
    **dict.fromkeys(("label_sparsity", "label_noise", "edge_sparsity", "edge_noise"), _AS_THEY_ARE),
    **dict.fromkeys(("feature_sparsity", "feature_noise", "perturbed_clients", "evaluate_on"), _AS_THEY_ARE),
    "evaluate_clients": "whose models are scored is what parties let out and who is there",
    **dict.fromkeys(("engine", "workers", "cpus_per_worker", "gpus_per_worker", "max_failures"), _OWN_MACHINE),
    "address": "the server's address stands at the top",
    **dict.fromkeys(("device", "precision", "threads", "memory"), _OWN_CHOICE),
    "settings": "the settings of the method have a table of their own, [settings]",
    "checkpoint_every": "that is checkpoint in [rounds]",
}


@dataclass(frozen=True)
class RoundRules:
    """How long a round waits, and for how many."""

    minimum: Annotated[
        int | None, Ge(1), Le(LONG), Doc("Parties without which no round counts; otherwise 2, or all if fewer.")
    ] = None
    timeout: Annotated[Seconds, Gt(0), Doc("Seconds for an answer; whoever takes longer is absent in the round.")] = 600
    quorum: Annotated[
        float, Gt(0), Le(1), Doc("Share of those asked after whose answers the others have only the grace left.")
    ] = 1.0
    grace: Annotated[Seconds, Doc("Seconds that late ones have after the quorum.")] = 30
    comeback: Annotated[Seconds, Doc("Seconds in which a party that was lost in a round may come back to it.")] = 60
    join_timeout: Annotated[
        Seconds, Gt(0), Doc("Seconds to wait for parties at the start, and when fewer than the minimum are there.")
    ] = 3600
    checkpoint: Annotated[int, Ge(0), Le(LONG), Doc("Rounds between checkpoints; 0 writes none but the last.")] = 1

    def __post_init__(self) -> None:
        check_fields(self)

    def for_parties(self, parties: int) -> RoundRules:
        """Returns the rules of a federation of so many parties; a minimum above is refused."""
        if self.minimum is None:
            return replace(self, minimum=max(1, min(2, parties)))
        if self.minimum > parties:
            raise InputError(f"[rounds] has minimum = {self.minimum}, but there are {parties} parties.")
        return self

    def patience(self, asked: int) -> Patience:
        """Returns how long answers are waited for where so many are asked."""
        count = math.ceil(self.quorum * asked - 1e-9)
        return Patience(self.timeout, count if count < asked else None, self.grace, self.comeback)


@dataclass(frozen=True)
class Limits:
    """What is left out, and refused, of what others send."""

    max_norm: Annotated[
        float | None,
        Gt(0),
        Doc("An update is left out whose norm is so many times the median of the round's, or more."),
    ] = None
    most_bytes: Annotated[int, Ge(1024), Le(MOST_BYTES), Doc("Bytes of one message; more are refused.")] = MOST_BYTES

    def __post_init__(self) -> None:
        check_fields(self)


def check_name(what: str, name: str) -> None:
    """Refuses what cannot be the common name of a certificate, and the name of a folder."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"{what} is {printable(name)[:80]!r}; it has 1 to 64 of the letters A to Z, digits, _, - and ., and begins "
            f"with a letter or digit."
        )


def check_party_names(names: Sequence[str]) -> None:
    """Refuses names of server and parties that cannot be, and those that differ by case alone or not at all."""
    spellings: dict[str, str] = {}
    for name in names:
        check_name("The name of a party or server", name)
        if name.casefold() in spellings:
            raise InputError(
                f"Both '{spellings[name.casefold()]}' and '{name}' take part: server and parties need names of their "
                f"own, which do not differ by case alone."
            )
        spellings[name.casefold()] = name


def check_address(what: str, address: str) -> None:
    """Refuses what is no address of a host with a port."""
    match = ADDRESS.fullmatch(address)
    if match is None or not 1 <= int(match[1]) <= 65535:
        raise InputError(
            f"{what} is {printable(address)[:80]!r}; it should read HOST:PORT, as 10.0.0.1:7447, [::1]:7447 or "
            f"bank.example:7447."
        )
