"""From one graph, or the clients' own graphs, to a federation: encode, partition, scale, split and perturb."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graft.data import OWN_GRAPHS, cards, partitions, perturbations, splits
from graft.data.client_graphs import Federation, join
from graft.data.exchange import Exchange
from graft.data.graphs import MASKS, Graph, Ints, cut, keep_edges, subgraph
from graft.data.lazy_graphs import ClientGraphs
from graft.data.perturbations import Perturbation
from graft.data.preparation import (
    Encoded,
    Preparation,
    Source,
    check_labels,
    encode,
    preparations,
    scale,
)
from graft.data.scaling import Scaling
from graft.data.survey import schema_sentence
from graft.data.tables import NodeTable
from graft.errors import DataWarning, InputError


@dataclass(frozen=True, eq=False)
class FederationData:
    """The graphs of all clients, split and ready to train on."""

    graph: Graph | None  # the whole graph, with the union of the clients' masks; None where nobody has it in memory
    membership: Ints | None  # [N], the client of every node; None with the graph
    clients: Sequence[Graph]  # a list, or `ClientGraphs` that are read or made one by one
    card: dict[str, Any]
    clean: FederationData | None = None  # what models are scored on, where they are trained on other data
    names: tuple[str, ...] | None = None  # of the clients; None: they have numbers only
    preparations: Sequence[Preparation] = ()  # of every client: how its files became a graph
    positive: int | None = None  # the class of interest, if one was named
    notes: Sequence[str] = ()  # what tables were taken for, and what a person should know of them
    exchange: Exchange = field(default_factory=Exchange)  # what clients agreed on before they trained

    @property
    def lazy(self) -> ClientGraphs | None:
        """Returns the graphs of clients where they are not in memory."""
        return self.clients if isinstance(self.clients, ClientGraphs) else None

    @property
    def _about(self) -> Graph | ClientGraphs:
        """Returns what knows the name, the features and the classes."""
        return self.graph or self.lazy or self.clients[0]

    @property
    def name(self) -> str:
        """Returns the name of the dataset."""
        return self._about.name

    @property
    def features(self) -> int:
        """Returns the number of features of a node."""
        return self._about.features

    @property
    def classes(self) -> int:
        return self._about.classes

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self._about.class_names

    @property
    def hash(self) -> str:
        """Returns the SHA-256 that runs on the same data share: that of the partition, or that of the perturbed
        data."""
        return str(self.card.get("perturbation", self.card)["hash"])

    @cached_property
    def graph_hash(self) -> str:
        """Returns the SHA-256 of the edges and labels of all nodes, which runs share whatever their seed is: features
        may be scaled by a split, and labels and edges are those before a perturbation."""
        graphs = (self.clean or self).clients
        return graphs.graph_hash if isinstance(graphs, ClientGraphs) else cards.graph_hash((self.clean or self).whole)

    @cached_property
    def data_hash(self) -> str:
        """Returns the hash of everything that models are trained and scored on; a second or two for a gigabyte."""
        if self.lazy is not None:
            return self.lazy.hash
        whole = [self.whole] if self.clean is None else [self.whole, self.clean.whole]
        perturbed = self.clients if "perturbation" in self.card else []
        return cards.data_hash([*whole, *perturbed], self.owners)

    @property
    def partition(self) -> str:
        """Returns the partition, and what else was done to the data, in words: runs that differ here are not
        averaged."""
        perturbation = self.card.get("perturbation", {})
        words = [self.card["method"], "inductive" if self.card.get("inductive") else "", perturbation.get("summary")]
        return ", ".join(filter(None, words))

    @property
    def described(self) -> Sequence[Graph]:
        """Returns the clients' graphs as records describe them: perturbed, but with nodes that training does not
        see."""
        return self.clean.clients if self.card.get("inductive") and self.clean is not None else self.clients

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        """Returns how many nodes and how many undirected edges every client has, as records describe them."""
        graphs = self.described
        if isinstance(graphs, ClientGraphs):
            return graphs.nodes(), graphs.edges()
        sizes = np.array([(graph.nodes, graph.edge_count) for graph in graphs], np.int64)
        return sizes[:, 0], sizes[:, 1]

    @property
    def whole(self) -> Graph:
        """Returns the whole graph; refused where the clients' graphs are read or made one by one."""
        if self.graph is None:
            raise InputError(
                f"All data of '{self.name}' are asked for in one place, but its {len(self.clients):,} clients' graphs "
                f"are read or made one by one, where they train: use a method that leaves them there, as fedavg."
            )
        return self.graph

    @property
    def owners(self) -> Ints:
        """Returns the client of every node of the whole graph, [N]."""
        assert self.membership is not None, "a whole graph comes with the client of every node"
        return self.membership

    def client_name(self, client: int) -> str | int:
        """Returns what people call a client: its name, or its number."""
        return client if self.names is None else self.names[client]

    def pooled(self, edges: str = "all") -> Graph:
        """Returns the whole graph as if one party held it, with all edges or with those inside clients only."""
        if edges not in POOLS:
            raise InputError(f"There are no edges='{edges}' to pool; choose one of {', '.join(POOLS)}.")
        return POOLS[edges](self.whole, self.owners)


def _inside(graph: Graph, membership: Ints) -> Graph:
    return keep_edges(graph, membership[graph.edges[0]] == membership[graph.edges[1]])


POOLS: dict[str, Callable[[Graph, Ints], Graph]] = {"all": lambda graph, _: graph, "inside": _inside}


class Shares(NamedTuple):
    """The graphs of clients before they are scaled and split."""

    parts: list[Graph]
    encoded: Encoded
    whole: Graph | None  # the graph that was shared out, if one was
    membership: Ints
    names: tuple[str, ...] | None


def build(
    data: Source | Federation,
    clients: int | None,
    partition: str | Path = "louvain",
    split: str | Sequence[float] = "20/40/40",
    features: str = "auto",
    seed: int = 0,
    rounding: str = "largest_remainder",
    perturbation: Perturbation | None = None,
    scaling: str = "local",
    inductive: bool = False,
    feature_norm: float = 0.0,
    **partition_options: Any,
) -> FederationData:
    """Returns the data of all clients; partition, split and perturbation draw from separate streams of the seed."""
    if isinstance(data, Federation):
        shares = _own_graphs(data, scaling)
        partition = OWN_GRAPHS
    else:
        shares = _share_out(data, clients, partition, seed, scaling, partition_options)
    own = shares.whole is None
    check_labels(shares.parts, _labels(shares) if own else [data.name])
    _warn_of_unused_masks(shares.parts if own else [], split)
    may_lack_labels = own and len(shares.parts) > 1
    masked = splits.split(
        shares.parts, split, seed, rounding=rounding, names=shares.names, may_lack_labels=may_lack_labels
    )
    by_time = splits.is_by_time(split)
    seen = [splits.seen_in_training(part, by_time) for part in masked] if inductive or by_time else None
    scaled = scale(masked, _labels(shares), shares.encoded.encodings, features, scaling, seen, feature_norm)
    parts = scaled.graphs
    whole = join(parts, data.name) if shares.whole is None else _assemble(shares, parts)
    card = cards.card(whole, shares.membership, partition, seed, partition_options, shares.names)
    fitted = preparations(shares.encoded, scaled)
    federation = FederationData(
        whole,
        shares.membership,
        parts,
        card,
        names=shares.names,
        exchange=shares.encoded.exchange + scaled.exchange,
        preparations=fitted,
        positive=fitted[0].positive_class,
        notes=_notes(data, shares.encoded),
    )
    if seen is not None:
        federation = without_test_nodes(federation, by_time)
    if perturbation is None or not perturbation.active:
        return federation
    return perturbed(federation, perturbation, scaled.scalings)


def _notes(data: Source | Federation, encoded: Encoded) -> list[str]:
    sources = data.sources if isinstance(data, Federation) else [data]
    taken_for = [schema_sentence(source) for source in sources if isinstance(source, NodeTable)]
    return [*taken_for, *encoded.notes, *encoded.agreement_notes]


def _own_graphs(data: Federation, scaling: str) -> Shares:
    encoded = encode(data.sources, data.labels, scaling)
    membership = np.repeat(np.arange(len(data)), [graph.nodes for graph in encoded.graphs])
    return Shares(encoded.graphs, encoded, None, membership, data.names)


def _share_out(
    data: Source, clients: int | None, partition: str | Path, seed: int, scaling: str, options: dict[str, Any]
) -> Shares:
    if str(partition) == OWN_GRAPHS:
        raise InputError(f"'{data.name}' is one graph: give a partition to share it out, or clients' own graphs.")
    encoded = encode([data], [data.name], scaling)
    (graph,) = encoded.graphs
    membership, names = partitions.assign(graph, clients, partition, seed, **options)
    parts = cut(graph, membership)
    return Shares(parts, encoded, graph, membership, names)


def _labels(shares: Shares) -> Sequence[str]:
    return shares.names or [f"client {client}" for client in range(len(shares.parts))]


def _assemble(shares: Shares, parts: Sequence[Graph]) -> Graph:
    """Returns the whole graph with the masks, and the features where they were scaled, of the clients' parts."""
    whole = shares.whole
    assert whole is not None
    order = np.argsort(shares.membership, kind="stable")  # the order in which `cut` hands out the nodes
    masks: dict[str, Any] = {}
    for name in MASKS:
        masks[name] = np.empty(whole.nodes, bool)
        masks[name][order] = np.concatenate([getattr(part, name) for part in parts])
    if all(part.x is before.x for part, before in zip(parts, shares.parts, strict=True)):
        return replace(whole, **masks)
    return perturbations.assemble(whole, parts, shares.membership)


def _warn_of_unused_masks(graphs: Sequence[Graph], split: str | Sequence[float]) -> None:
    if split != "own" and graphs and all(len(graph.masks) == len(MASKS) for graph in graphs):
        warnings.warn(
            f"The clients' graphs bring a split of their own, and the split {split} takes its place; --split own would "
            f"use theirs.",
            DataWarning,
            stacklevel=3,
        )


def without_test_nodes(whole: FederationData, by_time: bool) -> FederationData:
    """Returns a federation whose clients train without their test nodes and the edges of these, and are scored on all
    they have."""
    parts = [splits.training_graph(part, by_time) for part in whole.clients]
    kept = [splits.seen_in_training(part, by_time) for part in whole.clients]
    order = np.argsort(whole.owners, kind="stable")
    nodes = np.empty(whole.whole.nodes, bool)
    nodes[order] = np.concatenate(kept)
    membership = whole.owners[nodes]
    graph = perturbations.assemble(subgraph(whole.whole, np.flatnonzero(nodes)), parts, membership)
    card = {**whole.card, "inductive": True}
    return replace(whole, graph=graph, membership=membership, clients=parts, card=card, clean=whole)


def perturbed(
    clean: FederationData, perturbation: Perturbation, scalings: Sequence[Scaling] | None = None
) -> FederationData:
    """Returns the same federation with the data of its clients perturbed; its card describes the perturbed data."""
    if clean.clean is not None and perturbation.evaluate_on == "perturbed":
        raise InputError("evaluate_on is perturbed, but test nodes that training does not see are not perturbed.")
    parts = perturbations.perturb(clean.clients, perturbation, clean.card["seed"], scalings)
    whole = perturbations.assemble(clean.whole, parts, clean.owners)
    method, seed, options = (clean.card[name] for name in ("method", "seed", "options"))
    card = {**clean.card, **cards.card(whole, clean.owners, method, seed, options, clean.names)}
    card["perturbation"] = perturbations.describe(parts, perturbation)
    scored = (clean.clean or clean) if perturbation.evaluate_on == "clean" else None
    return replace(clean, graph=whole, clients=parts, card=card, clean=scored)
