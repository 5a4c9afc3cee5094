"""What one organisation does with its own files: the features, classes and masks that the federation agreed on, without
a look at anybody else's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graft.data import OWN_GRAPHS, cards, splits
from graft.data.class_agreement import find_positive
from graft.data.data_agreement import DataAgreement as DataAgreement
from graft.data.federation import FederationData, without_test_nodes
from graft.data.graphs import MASKS, Graph
from graft.data.party_facts import PartyFacts as PartyFacts
from graft.data.party_facts import compare_facts as compare_facts
from graft.data.party_facts import facts_of
from graft.data.party_sources import open_party
from graft.data.preparation import Preparation, Source, scale
from graft.data.survey import schema_sentence
from graft.data.tables import NodeTable
from graft.errors import InputError


@dataclass(frozen=True, eq=False)
class PartyData:
    """A party's graph, ready to train on, how it was made, and what is told of it; only the facts leave."""

    name: str
    graph: Graph  # scaled and split, with the nodes that training may not see
    preparation: Preparation
    facts: PartyFacts
    agreement: DataAgreement
    notes: Sequence[str] = ()  # what a person should know of the files

    def federation(self) -> FederationData:
        """Returns the data as those of a federation in which this party is the only client."""
        agreement, graph = self.agreement, self.graph
        membership = np.zeros(graph.nodes, np.int64)
        data = FederationData(
            graph,
            membership,
            [graph],
            cards.card(graph, membership, OWN_GRAPHS, agreement.seed, {}, (self.name,)),
            names=(self.name,),
            preparations=[self.preparation],
            positive=self.preparation.positive_class,
            notes=self.notes,
            exchange=self.facts.exchange,
        )
        by_time = splits.is_by_time(agreement.split)
        return without_test_nodes(data, by_time) if agreement.inductive or by_time else data


def read_party(source: Any, agreement: DataAgreement, name: str = "party", number: int = 0) -> PartyData:
    """Returns the data of a party under the federation's agreement; what does not fit is refused with one sentence.

    `number` is the party's in the federation. The split is drawn by it, so that it is that of a client of this number
    where all graphs are in one process.
    """
    held = open_party(source, agreement, name)
    facts = facts_of(held, agreement)
    problem = _unnamed_classes(name, held, agreement) or compare_facts(name, facts, agreement)
    if problem is not None:
        raise InputError(problem)
    prepared = _preparation(held, agreement)
    graph = _split(prepared.apply(held), agreement, number)
    by_time = splits.is_by_time(agreement.split)
    seen = splits.seen_in_training(graph, by_time) if agreement.inductive or by_time else None
    scaled = scale(
        [graph],
        [name],
        [agreement.encoding],
        agreement.features,
        fitted_on=None if seen is None else [seen],
        norm=agreement.feature_norm,
    )
    preparation = replace(prepared, scaling=scaled.scalings[0])
    return PartyData(name, scaled.graphs[0], preparation, facts, agreement, _notes(held, agreement))


def party_federation(name: str, source: Any, agreement: DataAgreement, number: int = 0) -> FederationData:
    """Returns the data of a party as those of a federation in which it is the only client."""
    return read_party(source, agreement, name, number).federation()


def _preparation(held: Source, agreement: DataAgreement) -> Preparation:
    """Returns how a party's data become features and labels, not scaled yet."""
    class_names = agreement.class_names
    texts = isinstance(held, NodeTable) or held.class_names is not None or agreement.positive is not None
    if class_names is None and texts:
        class_names = tuple(map(str, range(agreement.class_count)))
    encoding = agreement.encoding
    if encoding is not None and isinstance(held, NodeTable):
        encoding = replace(encoding, schema=held.schema.without_files())
    names = agreement.feature_names or (held.feature_names if isinstance(held, Graph) else None)
    positive = find_positive([agreement.positive], class_names)
    return Preparation(encoding, None, agreement.width, names, agreement.class_count, class_names, positive)


def _unnamed_classes(name: str, held: Source, agreement: DataAgreement) -> str | None:
    """Returns the sentence about classes that are numbers where names were agreed on: which is which, nobody knows."""
    names = agreement.class_names
    if names is None or isinstance(held, NodeTable) or held.class_names is not None or not (held.y >= 0).any():
        return None
    if set(map(str, range(int(held.y.max()) + 1))) <= set(names):
        return None
    return (
        f"The classes of {name} are numbers without names, but the federation agreed on {', '.join(names)}: give "
        f"class_names beside y, so that nobody has to guess which is which."
    )


def _split(graph: Graph, agreement: DataAgreement, number: int) -> Graph:
    if (graph.y >= 0).any():
        return splits.split_client(graph, number, agreement.split, agreement.seed)
    nothing = np.zeros(graph.nodes, bool)  # it trains nothing, and receives a model all the same
    return replace(graph, train=nothing, validation=nothing, test=nothing)


def _notes(held: Source, agreement: DataAgreement) -> list[str]:
    if isinstance(held, NodeTable):
        return [schema_sentence(held), *held.notes]
    if agreement.split != "own" and len(held.masks) == len(MASKS):
        return [f"{held.name} brings a split of its own, and the split {agreement.split} takes its place"]
    return []
