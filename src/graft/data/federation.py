"""From one graph to a federation: normalise, partition, cut, split and perturb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graft.data import cards, partitions, perturbations, splits
from graft.data.graphs import MASKS, Graph, Ints, cut, keep_edges, normalise
from graft.data.perturbations import Perturbation
from graft.errors import InputError


@dataclass(frozen=True, eq=False)
class FederationData:
    """The graphs of all clients, split and ready to train on."""

    graph: Graph  # the whole graph, with the union of the clients' masks
    membership: Ints  # [N], the client of every node
    clients: list[Graph]
    card: dict[str, Any]
    clean: FederationData | None = None  # before it was perturbed, if models are scored there
    names: tuple[str, ...] | None = None  # of the clients; None: they have numbers only
    positive: int | None = None  # the class that F1, AUROC and AUPRC are of, where the data say so

    @property
    def hash(self) -> str:
        """Returns the SHA-256 that runs on the same data share: that of the partition, or that of the perturbed
        data."""
        return str(self.card.get("perturbation", self.card)["hash"])

    @cached_property
    def data_hash(self) -> str:
        """Returns the hash of everything that models are trained and scored on; a second or two for a gigabyte."""
        whole = [self.graph] if self.clean is None else [self.graph, self.clean.graph]
        perturbed = self.clients if "perturbation" in self.card else []
        return cards.data_hash([*whole, *perturbed], self.membership)

    @property
    def partition(self) -> str:
        """Returns the partition method and the perturbation in words: runs that differ here are not averaged."""
        perturbation = self.card.get("perturbation")
        return self.card["method"] if perturbation is None else f"{self.card['method']}, {perturbation['summary']}"

    def pooled(self, edges: str = "all") -> Graph:
        """Returns the whole graph as if one party held it, with all edges or with those inside clients only."""
        if edges not in POOLS:
            raise InputError(f"There are no edges='{edges}' to pool; choose one of {', '.join(POOLS)}.")
        return POOLS[edges](self.graph, self.membership)


def _inside(graph: Graph, membership: Ints) -> Graph:
    return keep_edges(graph, membership[graph.edges[0]] == membership[graph.edges[1]])


POOLS: dict[str, Callable[[Graph, Ints], Graph]] = {"all": lambda graph, _: graph, "inside": _inside}


def build(
    graph: Graph,
    clients: int | None,
    partition: str | Path = "louvain",
    split: str | Sequence[float] = "20/40/40",
    features: str = "raw",
    seed: int = 0,
    rounding: str = "largest_remainder",
    perturbation: Perturbation | None = None,
    **partition_options: Any,
) -> FederationData:
    """Returns a graph partitioned among clients; partition, split and perturbation draw from separate streams of the
    seed."""
    scaled = normalise(graph, features)
    membership = partitions.partition(scaled, clients, partition, seed, **partition_options)
    parts = splits.split(cut(scaled, membership), split, seed, rounding=rounding)
    order = np.argsort(membership, kind="stable")  # the order in which `cut` hands out the nodes
    masks: dict[str, Any] = {}
    for name in MASKS:
        masks[name] = np.empty(graph.nodes, bool)
        masks[name][order] = np.concatenate([getattr(part, name) for part in parts])
    card = cards.card(scaled, membership, partition, seed, partition_options)
    clean = FederationData(replace(scaled, **masks), membership, parts, card)
    return clean if perturbation is None or not perturbation.active else perturbed(clean, perturbation, features)


def perturbed(clean: FederationData, perturbation: Perturbation, features: str = "raw") -> FederationData:
    """Returns the same federation with the data of its clients perturbed; its card describes the perturbed data."""
    parts = perturbations.perturb(clean.clients, perturbation, clean.card["seed"], features)
    whole = perturbations.assemble(clean.graph, parts, clean.membership)
    card = cards.card(whole, clean.membership, *(clean.card[name] for name in ("method", "seed", "options")))
    card["perturbation"] = perturbations.describe(parts, perturbation)
    return FederationData(whole, clean.membership, parts, card, clean if perturbation.evaluate_on == "clean" else None)
