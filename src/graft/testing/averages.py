"""What a method declares in `averages` may stay where the clients are: the server needs nothing of it but means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graft.engines.in_process import InProcess
from graft.federation.clients import HeldField, Replies, Request
from graft.federation.method import Method
from graft.federation.reveals import covering, declared
from graft.federation.setup import Setup
from graft.tensors.randomness import index_tensor
from graft.tensors.trees import Tree, add_sums, count_bytes, select_clients, vote_shares, weighted_sum
from graft.testing.claim import claim, contract_setup, require
from graft.testing.toy import gap, run_rounds


@claim
def averaged_fields_are_read_as_means_alone(method: Method) -> None:
    """Rounds in which the fields of `averages` stay where the clients are, and are summed there, end as all others."""
    for field in method.averages:
        require(
            field.count("/") == 1 and covering(declared(method), field) is not None,
            f"{field} is declared in `averages`, but not as the field of a step, step/field, in `reveals`",
        )
    for participation in (1.0, 0.5) if method.averages else ():
        setup = contract_setup(method, clients=4, dropout=0.5, participation=participation)
        whole, summed = run_rounds(setup, rounds=3), run_rounds(setup, rounds=3, engine=SumsHalves(setup))
        where = f"where averages are summed in two halves, with participation {participation}"
        compared: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
            "the server": (whole.server.state, summed.server.state),
            "the record of the last round": (as_tensors(whole.records), as_tensors(summed.records)),
        }
        compared |= {f"client {k}": (whole.client(k), summed.client(k)) for k in whole.engine.members()}
        for what, (here, there) in compared.items():
            difference = gap(here, there, relative=True)
            require(difference < 1e-5, f"{what} differs by {difference:.1e} {where}")
        require(whole.traffic == summed.traffic, f"{summed.traffic} {where}, {whole.traffic} elsewhere")


class SumsHalves(InProcess):
    """An engine that gives out averaged fields only as the sum of two halves of the clients, as two workers would."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.averages: tuple[str, ...] = setup.method.averages

    def ask(self, request: Request) -> Replies:
        replies = super().ask(request)
        names = {name for name in replies.parts[0][1] if f"{request.step}/{name}" in self.averages}
        parts = [
            (clients, Tree({name: branch for name, branch in part.items() if name not in names}))
            for clients, part in replies.parts
        ]
        stacked = replies.stacked() if names else {}
        return Replies(parts, {name: summed_in_halves(stacked[name]) for name in names})


def summed_in_halves(stacked: Any) -> HeldField:
    """Returns a field whose mean is added up from those of every other client."""

    def mean(weights: Tensor) -> Any:
        shares = vote_shares(weights)
        halves = [tuple(range(first, len(shares), 2)) for first in range(min(2, len(shares)))]
        rows = [index_tensor(half, shares.device) for half in halves]
        return add_sums([weighted_sum(select_clients(stacked, own), shares[own]) for own in rows])

    return HeldField(mean, count_bytes(stacked))


def as_tensors(records: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """Returns what a method recorded, numbers as tensors too."""
    return {name: torch.as_tensor(value) for name, value in records.items()}
