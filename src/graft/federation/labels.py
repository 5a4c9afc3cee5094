"""Labels and masks of a fleet's nodes, and the data that a fleet trains on or is scored on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graft.data.graphs import Bools, Graph, cut
from graft.data.partitions import partition
from graft.graphs.fleet_graph import FleetGraph, build_fleet_graph
from graft.graphs.node_subset import NodeSubset
from graft.tensors.randomness import index_tensor
from graft.tensors.sparse import padded_size


class TrainNodes(NamedTuple):
    """The training nodes of each client; one with fewer than the most repeats one of its nodes with share zero."""

    nodes: Tensor  # int64 [clients, most]
    classes: Tensor  # int64 [clients, most]
    shares: Tensor  # [clients, most]: of each in a mean over the client's training nodes


@dataclass(frozen=True, eq=False)
class Labels:
    """Classes and masks of the nodes of a fleet."""

    classes: Tensor  # int64 [clients, nodes]; 0 where there is no label, and then in no mask
    masks: Tensor  # bool [clients, 3, nodes]: train, validation, test
    judged: Tensor  # bool [clients, nodes]: those by which a client may judge models while it trains
    membership: Tensor  # int64 [clients, nodes]: whose node it was before graphs were pooled, else 0
    pooled_clients: int  # whose graphs each one is: 1 where none were pooled
    class_counts: Tensor  # [clients, classes]: training nodes of each class; in a batch, of the whole client
    source: tuple[Labels, list[int]] | None = None  # what these were selected from, and which clients

    def select(self, chosen: list[int]) -> Labels:
        """Returns the labels of some clients."""
        return Labels(
            self.classes[chosen],
            self.masks[chosen],
            self.judged[chosen],
            self.membership[chosen],
            self.pooled_clients,
            self.class_counts[chosen],
            source=(self, chosen),
        )

    @cached_property
    def train_nodes(self) -> TrainNodes:
        if self.source is not None:  # as many as there, so that a subset of one can be cut like the other
            labels, chosen = self.source
            return TrainNodes(*(values[chosen] for values in labels.train_nodes))
        train = self.masks[:, 0]
        counts = train.sum(1, keepdim=True)
        most = padded_size(max(1, int(counts.max())), train.device)
        nodes = train.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        real = torch.arange(nodes.shape[1], device=nodes.device) < counts
        nodes = torch.where(real, nodes, nodes[:, :1])
        return TrainNodes(nodes, self.classes.gather(1, nodes), real / counts.clamp(min=1))

    @cached_property
    def balanced_shares(self) -> Tensor:
        """Returns the shares of training nodes that give every class of a client the same weight, [clients, most]: n /
        (classes * n of the class) times the plain ones."""
        counts = self.class_counts
        occurring = (counts > 0).sum(1, keepdim=True).clamp(min=1)
        weights = counts.sum(1, keepdim=True) / (occurring * counts.clamp(min=1))
        return self.train_nodes.shares * weights.gather(1, self.train_nodes.classes)


@dataclass(frozen=True, eq=False)
class FleetData:
    """The graphs and labels of some clients: of all their nodes, or of the nodes of a batch."""

    graph: FleetGraph
    labels: Labels
    nodes: Tensor | None = None  # int64 [clients, nodes]: in a batch, which node of the client each one is
    lacking: tuple[bool, ...] = ()  # which clients have no training node in it; empty: none of them
    source: tuple[FleetData, list[int]] | None = None  # what this was selected from, and which clients

    def select(self, chosen: list[int]) -> FleetData:
        """Returns the data of some clients."""
        nodes = None if self.nodes is None else self.nodes[chosen]
        return FleetData(
            self.graph.select(chosen),
            self.labels.select(chosen),
            nodes,
            tuple(self.lacking[client] for client in chosen) if self.lacking else (),
            source=(self, chosen),
        )

    @property
    def may_lack_labels(self) -> bool:
        """Returns whether some client has no training node in it."""
        return any(self.lacking)

    @property
    def without_labels(self) -> Tensor | None:
        """Returns which clients have no training node in it, bool [clients]; None where all have."""
        return index_tensor(self.lacking, self.labels.classes.device) if self.may_lack_labels else None

    @cached_property
    def train_subset(self) -> NodeSubset:
        """Returns the training nodes; what was prepared for more clients is cut, not made again."""
        nodes, _, shares = self.labels.train_nodes
        if self.source is None:
            return NodeSubset(self.graph, nodes, shares > 0)
        data, chosen = self.source
        return NodeSubset(self.graph, nodes, shares > 0, (data.train_subset, chosen))


def build_data(
    graphs: Sequence[Graph],
    device: torch.device,
    membership: np.ndarray | None = None,
    judged: Sequence[Bools] | None = None,
) -> FleetData:
    """Puts the graphs and labels of some clients on a device, padded to one size; `judged` are nodes that clients may
    judge models by, where these are not the validation nodes."""
    graph = build_fleet_graph(graphs, device)
    shape = (len(graphs), graph.nodes)
    classes = torch.zeros(shape, dtype=torch.int64)
    masks = torch.zeros(len(graphs), 3, graph.nodes, dtype=torch.bool)
    for client, data in enumerate(graphs):
        classes[client, : data.nodes] = torch.from_numpy(data.y).clamp(min=0)
        for kind, mask in enumerate((data.train, data.validation, data.test)):
            if mask is not None:
                masks[client, kind, : data.nodes] = torch.from_numpy(mask)
    judged_nodes = masks[:, 1]
    if judged is not None:
        judged_nodes = torch.zeros(shape, dtype=torch.bool)
        for client, nodes in enumerate(judged):
            judged_nodes[client, : len(nodes)] = torch.from_numpy(nodes)
    owner = torch.zeros(shape, dtype=torch.int64)
    if membership is not None:
        owner[0, : len(membership)] = torch.from_numpy(membership)
    pooled_clients = 1 if membership is None else int(membership.max()) + 1
    counts = count_classes(graphs, device)
    labels = Labels(
        classes.to(device), masks.to(device), judged_nodes.to(device), owner.to(device), pooled_clients, counts
    )
    return FleetData(graph, labels, lacking=tuple(data.train is None or not data.train.any() for data in graphs))


def count_classes(graphs: Sequence[Graph], device: torch.device) -> Tensor:
    """Returns how many training nodes of each class every client has, [clients, classes]."""
    counts = torch.zeros(len(graphs), max(graph.classes for graph in graphs))
    for client, graph in enumerate(graphs):
        if graph.train is not None:
            classes = graph.y[graph.train & (graph.y >= 0)]
            counts[client] = torch.from_numpy(np.bincount(classes, minlength=counts.shape[1]))
    return counts.to(device)


def build_batches(
    graphs: Sequence[Graph],
    count: int,
    seed: int,
    device: torch.device,
    judged: Sequence[Bools] | None = None,
) -> list[FleetData]:
    """Cuts each client's nodes into batches of like size with few edges between them, and drops those edges.

    Cluster-GCN (Chiang et al., KDD 2019), with one cluster a step.
    """
    clusters = [partition(graph, count, "metis", seed) for graph in graphs]
    parts = [cut(graph, membership) for graph, membership in zip(graphs, clusters, strict=True)]
    counts = count_classes(graphs, device)
    batches = []
    for batch in range(count):
        batch_graphs = [part[batch] for part in parts]
        of_batch = judged and [nodes[membership == batch] for nodes, membership in zip(judged, clusters, strict=True)]
        data = build_data(batch_graphs, device, judged=of_batch)
        nodes = torch.zeros(len(graphs), data.graph.nodes, dtype=torch.int64)
        for client, membership in enumerate(clusters):
            nodes[client, : batch_graphs[client].nodes] = torch.from_numpy(np.flatnonzero(membership == batch))
        batches.append(replace(data, labels=replace(data.labels, class_counts=counts), nodes=nodes.to(device)))
    return batches
