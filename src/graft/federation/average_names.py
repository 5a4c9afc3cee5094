"""How a server averages what clients send: names, and which methods take which. Imports neither PyTorch nor NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graft.errors import InputError
from graft.federation.reveals import covering, declared
from graft.registry import close_to

if TYPE_CHECKING:
    from graft.federation.method import Method


class AverageKind(NamedTuple):
    """How an average is written."""

    words: str  # what it is
    amount: float | None = None  # what follows the colon, where nobody says
    whole: bool = False  # whether that is a number of clients, and else a share of them


AVERAGES = {
    "mean": AverageKind("weighted by the clients' votes"),
    "median": AverageKind("the middle of the clients, number by number"),
    "trimmed": AverageKind("the mean of what is left, number by number, without a share at each end", 0.2),
    "krum": AverageKind("what the client sent that is closest to the others; so many may be bad", 1, whole=True),
    "multi_krum": AverageKind("the mean without the so many that are farthest from the others", 1, whole=True),
}


class Average(NamedTuple):
    """How a server averages."""

    kind: str = "mean"
    amount: float = 0.0  # the share that is cut at each end, or how many clients may be bad

    @property
    def robust(self) -> bool:
        """Returns whether it looks at every client's numbers: sums over some of them are not enough then."""
        return self.kind != "mean"

    def check(self, clients: int) -> None:
        """Refuses an average that could leave nobody out of so many clients in a round, or promises nothing there."""
        if self.kind == "trimmed" and not count_cut(self.amount, clients):
            raise InputError(
                f"average is trimmed:{self.amount:g}, which cuts nobody of {clients} clients in a round: use a larger "
                f"share, or median."
            )
        least = 2 * int(self.amount) + 3
        if AVERAGES[self.kind].whole and clients < least:
            raise InputError(
                f"average is {self.kind}:{self.amount:g}, which needs at least {least} clients in a round, not "
                f"{clients}: use median."
            )


MEAN = Average()


def parse_average(text: str) -> Average:
    """Returns the average of that name, as median or trimmed:0.2; refuses what there is not."""
    name, colon, rest = text.partition(":")
    if name not in AVERAGES:
        raise InputError(f"There is no average '{name}'{close_to(name, AVERAGES)}: there are {', '.join(AVERAGES)}.")
    kind = AVERAGES[name]
    if kind.amount is None:
        if colon:
            raise InputError(f"average is '{text}', but {name} takes nothing after it.")
        return Average(name)
    if not colon:
        return Average(name, kind.amount)
    try:
        amount = int(rest) if kind.whole else float(rest)
    except ValueError:
        amount = -1.0
    usable = 1 <= amount <= 2**31 if kind.whole else 0 < amount < 0.5
    if not usable:
        possible = "a number of clients of at least 1, as" if kind.whole else "a share above 0 and below 0.5, as"
        raise InputError(f"average is '{text}'; after {name} comes {possible} {name}:{kind.amount:g}.")
    return Average(name, amount)


def count_cut(share: float, clients: int) -> int:
    """Returns how many clients a trimmed mean cuts at each end."""
    return min(int(share * clients + 1e-9), (clients - 1) // 2)


def takes_averages(kind: type[Method]) -> bool:
    """Returns whether a method has its server read models through `replies.mean` alone: any average of them will do
    then."""
    averaged = dict.fromkeys(kind.averages)
    models = [field for field, reveals in declared(kind).items() if reveals.model]
    return bool(averaged) and all(covering(averaged, field) is not None for field in models)
