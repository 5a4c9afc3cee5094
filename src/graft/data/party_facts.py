"""What a party tells of its data before training, and whether that is what the federation agreed on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le, MaxLen
from numpy.typing import NDArray

from graft.data.class_agreement import Source, own_classes
from graft.data.data_agreement import DataAgreement
from graft.data.exchange import Exchange, as_bytes
from graft.data.graphs import MOST_CLASSES
from graft.data.tables.classes import class_spelling
from graft.data.tables.node_table import NodeTable
from graft.errors import InputError
from graft.files import printable

WIDEST = 2**20  # features that facts may tell of
LONGEST_NAME = 1000  # letters of a feature or a class
LONGEST_SHOWN = 80  # letters of a name that are shown
REVEALS = {
    "features": "number of features",
    "feature_names": "names of the features",
    "classes": "names of the classes that occur",
    "preprocessing": "how features are scaled and nodes are split",
    "edges": "whether edges have a direction, and weights",
}

Name = Annotated[str, MaxLen(LONGEST_NAME)]


@dataclass(frozen=True)
class PartyFacts:
    """All that leaves a party before training."""

    features: Annotated[int, Ge(1), Le(WIDEST)]
    feature_names: Annotated[tuple[Name, ...], MaxLen(WIDEST)] | None  # None: its features have none
    names_hash: Annotated[str, MaxLen(64)] | None  # SHA-256 of these names
    classes: Annotated[tuple[Name, ...], MaxLen(MOST_CLASSES)]  # those that occur in its labels
    preprocessing: dict[Name, Name | bool | float]  # settings by name, as `DataAgreement.preprocessing`
    directed: bool | None  # whether its edges have a direction; None: it has no tables that would say so
    weighted: bool

    def to_json(self) -> dict[str, Any]:
        """Returns all of it as JSON can hold it."""
        content = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in content.items()}

    @classmethod
    def from_json(cls, content: Any) -> PartyFacts:
        """Returns what `to_json` gave; anything else, which others may have sent, is refused with one sentence."""
        from pydantic import TypeAdapter, ValidationError

        unknown = sorted(set(content) - {*cls.__dataclass_fields__}, key=str) if isinstance(content, dict) else []
        if unknown:
            raise InputError(f"The facts of a party hold '{_shown(str(unknown[0]))}', which is none of them.")
        try:
            facts: PartyFacts = TypeAdapter(cls).validate_json(json.dumps(content), strict=True)
            return facts
        except ValidationError as error:
            first = error.errors()[0]
            path = _shown(".".join(map(str, first["loc"]))) or "they"
            raise InputError(f"The facts of a party cannot be used: {path}: {first['msg']}.") from None
        except (TypeError, ValueError, RecursionError):
            raise InputError("The facts of a party cannot be used: they are not what JSON can hold.") from None

    @property
    def exchange(self) -> Exchange:
        """Returns the facts as what a client sent before the first round, for the records of a run."""
        up: dict[str, NDArray[Any]] = {
            "features": np.array([self.features], np.int64),
            "feature_names": as_bytes(self.feature_names or ()),
            "classes": as_bytes(self.classes),
            "preprocessing": as_bytes([f"{name}={value}" for name, value in self.preprocessing.items()]),
            "edges": np.array([bool(self.directed), self.weighted]),
        }
        return Exchange((up,), ({},), REVEALS)


def hash_names(names: Sequence[str]) -> str:
    """Returns the SHA-256 of names in their order."""
    return hashlib.sha256(as_bytes(names).tobytes()).hexdigest()


def facts_of(source: Source, agreement: DataAgreement) -> PartyFacts:
    """Returns the facts of what a party holds, prepared as the federation agreed on."""
    occurring = np.unique(source.y[source.y >= 0])
    own = list(class_spelling(own_classes(source)).values())
    if isinstance(source, NodeTable):
        names = agreement.feature_names
        width = agreement.width
    else:
        names, width = source.feature_names, source.features
    return PartyFacts(
        width,
        names,
        None if names is None else hash_names(names),
        tuple(own[label] for label in occurring),
        agreement.preprocessing,
        source.schema.directed if isinstance(source, NodeTable) else None,
        source.weights is not None,
    )


def compare_facts(name: str, facts: PartyFacts, agreed: DataAgreement) -> str | None:
    """Returns one sentence about the first thing in which a party is not as agreed, with party and field; None where
    there is none."""
    checks = (_features, _order_of_names, _classes, _preprocessing, _edges)
    return next((sentence for check in checks if (sentence := check(name, facts, agreed))), None)


def _features(name: str, facts: PartyFacts, agreed: DataAgreement) -> str | None:
    own, names = facts.feature_names, agreed.feature_names
    if own is not None and (len(own) != facts.features or facts.names_hash != hash_names(own)):
        return f"{name} names {len(own)} features that are not those of its number and hash."
    lacking = [] if own is None else [text for text in names or () if text not in set(own)]
    extra = [] if own is None or names is None else [text for text in own if text not in set(names)]
    parts = [f"{_quoted(texts)} {what}" for texts, what in ((lacking, "missing"), (extra, "too many")) if texts]
    details = f": {' and '.join(parts)}" if parts else ""
    if facts.features != agreed.width:
        return f"{name} has {facts.features} features, but the federation agreed on {agreed.width}{details}."
    return f"{name} has other features than the federation agreed on{details}." if parts else None


def _quoted(names: Sequence[str]) -> str:
    first = f"'{_shown(names[0])}'"
    return f"{first} is" if len(names) == 1 else f"{first} and {len(names) - 1} more are"


def _shown(text: str) -> str:
    """Returns a text that came from elsewhere as it can stand in a sentence."""
    return printable(text).replace("\n", " ")[:LONGEST_SHOWN]


def _order_of_names(name: str, facts: PartyFacts, agreed: DataAgreement) -> str | None:
    own, names = facts.feature_names, agreed.feature_names
    if own is None or names is None or own == names:
        return None
    position = next(index for index, pair in enumerate(zip(own, names, strict=True)) if pair[0] != pair[1])
    return (
        f"Feature {position} of {name} is '{_shown(own[position])}', but the federation agreed on "
        f"'{_shown(names[position])}' there: the order of its features differs."
    )


def _classes(name: str, facts: PartyFacts, agreed: DataAgreement) -> str | None:
    known = agreed.class_names or tuple(map(str, range(agreed.class_count)))
    spellings = {text.casefold() for text in class_spelling(known).values()}
    unknown = next((text for text in facts.classes if text.casefold() not in spellings), None)
    if unknown is None:
        return None
    listed = ", ".join(known) if agreed.class_names else f"numbers from 0 to {agreed.class_count - 1}"
    return f"{name} has the class '{_shown(unknown)}', but the classes that the federation agreed on are {listed}."


def _preprocessing(name: str, facts: PartyFacts, agreed: DataAgreement) -> str | None:
    for setting, value in agreed.preprocessing.items():
        own = facts.preprocessing.get(setting)
        if own != value:
            return (
                f"{name} prepares its data with {setting} = {_shown(str(own))}, but the federation agreed on "
                f"{setting} = {value}."
            )
    return None


def _edges(name: str, facts: PartyFacts, agreed: DataAgreement) -> str | None:
    if facts.directed is not None and facts.directed != agreed.schema.directed:
        ways = ("without a direction", "with a direction")
        return (
            f"{name} has edges {ways[facts.directed]}, but the federation agreed on edges {ways[not facts.directed]}."
        )
    if agreed.schema.edge_weight is not None and not facts.weighted:
        return (
            f"{name} has edges without weights, but the federation agreed on '{agreed.schema.edge_weight}' as theirs."
        )
    return None
