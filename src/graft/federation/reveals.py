"""What a message reveals of a client's data, declared by every method field by field.

The contract of methods proves each declaration: a field that is not declared must not be sent, and one that is must not
change with data that it does not name. An audit prints them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

DATA = ("features", "edges", "labels")  # what a client's data consist of


@dataclass(frozen=True)
class Reveals:
    """One field of a message: what it is, and which of the client's data it depends on.

    That is what it is computed from beside the messages that the client was sent before: a mean over nodes of what a
    received model predicts depends on features and edges, although others trained that model on their labels.
    """

    what: str
    depends_on: tuple[str, ...] = DATA
    model: bool = False  # whether it is trained weights, or an update or a gradient of the shape of some
    raw: bool = False  # whether it is the data themselves, as no message may be that does not say so
    when: str = ""  # the settings with which it is sent, or depends on anything, if not always

    def __str__(self) -> str:
        condition = f", only {self.when}" if self.when else ""
        return f"{self.what} (depends on {', '.join(self.depends_on) or 'no data but its amount'}){condition}"


MODEL = Reveals("weights of a model trained on the client's data", model=True)
NODES = Reveals("number of nodes", ())
NODE_COUNTS = Reveals("numbers of nodes, of all and in each mask", ())
VOTE = Reveals("the client's vote in an average: a number of nodes", ())
SCORES = Reveals("how many nodes a model classifies correctly")
MEASURED = "where metrics beside the accuracy are asked for"
METRIC_VALUES = Reveals("metrics of a model on the client's nodes", when=MEASURED)
CONFUSION = Reveals("how many nodes of each class a model takes for each class", when=MEASURED)
HISTOGRAMS = Reveals(
    "how many nodes of each class have a score in each of 1,000 ranges", when=f"{MEASURED}: AUROC, AUPRC"
)
GAPS = Reveals("sums of the top probability less whether it is right, in 15 ranges of it", when=f"{MEASURED}: ECE")


def measures(step: str) -> dict[str, Reveals]:
    """Returns the declarations of a step that replies with `graft.federation.metrics.measure`."""
    fields = {
        "values": METRIC_VALUES,
        "confusion": CONFUSION,
        "histograms": HISTOGRAMS,
        "gaps": GAPS,
    }
    return {f"{step}/{field}": reveals for field, reveals in fields.items()}


RANDOM_LINKS = Reveals("the peers that it wants to hear, drawn at random", ())


def declared(method: Any) -> dict[str, Reveals]:
    """Returns all declarations of a method, or of its class, those of base classes included; None takes one back."""
    kind = method if isinstance(method, type) else type(method)
    tables: list[Mapping[str, Reveals | None]] = [vars(base).get("reveals", {}) for base in reversed(kind.__mro__)]
    merged = {field: reveals for table in tables for field, reveals in table.items()}
    return {field: reveals for field, reveals in merged.items() if reveals is not None}


def covering(table: Container[str], field: str) -> str | None:
    """Returns the key of a table that covers a field: its own, or the nearest branch that it is in."""
    while field not in table and "/" in field:
        field = field.rpartition("/")[0]
    return field if field in table else None
