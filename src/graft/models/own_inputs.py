"""What a user's module is given of a graph: dense features, a list of edges and their weights, made once."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph, MaskedFeatures
from graft.models.recording import Recording
from graft.tensors.sparse import BlockSparse


class GraphInputs:
    """The inputs of a module for one graph; those of a view are made of what its base keeps."""

    def __init__(self, graph: FleetGraph) -> None:
        neighbours, features = graph.neighbours, graph.features
        self._features = features
        self._base = None if graph.base is None else inputs_of(graph.base)
        self.sparse = features if isinstance(features, BlockSparse) else None
        self.lasting = graph.cacheable  # whether the graph is used again and again
        self.recordings: dict[Any, Recording] = {}  # of passes of modules on it
        self.weighted = graph.weighted and (graph.cacheable or graph.base is not None)  # not: 0 where there is no edge
        if self._base is None:
            self.edge_index = torch.stack([neighbours.row_of, neighbours.columns.long()])
        else:
            self.edge_index = self._base.edge_index
        self.edge_weight = neighbours.values
        if neighbours.values is not None and not graph.cacheable:
            kept = neighbours.values > 0
            self.edge_index, self.edge_weight = self.edge_index[:, kept], neighbours.values[kept]

    @cached_property
    def x(self) -> Tensor:
        """Returns the features, dense and kept."""
        return self.dense()

    def dense(self) -> Tensor:
        """Returns the features, dense."""
        if "x" in self.__dict__:
            return self.x
        features = self._features
        if self._base is not None and features is self._base._features:
            return self._base.x
        if self._base is not None and isinstance(features, MaskedFeatures):
            return self._base.x * features.columns
        dense: Tensor = features if isinstance(features, Tensor) else features.dense()
        return dense[0]


INPUTS: WeakKeyDictionary[FleetGraph, GraphInputs] = WeakKeyDictionary()


def inputs_of(graph: FleetGraph) -> GraphInputs:
    """Returns the inputs for a graph, which are kept as long as it is."""
    if graph not in INPUTS:
        INPUTS[graph] = GraphInputs(graph)
    return INPUTS[graph]
