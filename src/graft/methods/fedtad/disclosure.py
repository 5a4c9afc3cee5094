"""Real graphs at the server, for simulations that distil on them instead of on synthetic nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from graft.data.graphs import Graph
from graft.federation.reveals import Reveals
from graft.graphs.fleet_graph import FleetGraph, build_fleet_graph
from graft.tensors.trees import Tree

ASKED_FOR = "if distil_on is real and reveal_data is set"
DISCLOSED = {
    "edges": Reveals("all of the client's edges", ("edges",), raw=True, when=ASKED_FOR),
    "weights": Reveals("the weights of its edges", ("edges",), raw=True, when=f"{ASKED_FOR}, and edges have weights"),
    **{
        name: Reveals("all of its features", ("features",), raw=True, when=ASKED_FOR)
        for name in ("features", "starts", "columns", "values")
    },
}


def disclosed(graph: FleetGraph) -> Tree:
    """Returns the edges and features of a single client's graph, without padding, as a message."""
    nodes = int(graph.sizes[0])
    edges = torch.stack([graph.neighbours.row_of, graph.neighbours.columns.long()]).unsqueeze(0)
    features, weights = graph.features, graph.neighbours.values
    message = Tree(edges=edges) if weights is None else Tree(edges=edges, weights=weights.unsqueeze(0))
    if isinstance(features, Tensor):
        return Tree(**message, features=features[:, :nodes])
    starts = features.starts[: nodes + 1].unsqueeze(0)
    columns, values = features.columns.unsqueeze(0), features.values.unsqueeze(0)
    return Tree(**message, starts=starts, columns=columns, values=values)


def merge_disclosed(parts: Sequence[Tree], width: int, device: torch.device) -> FleetGraph:
    """Returns the disclosed graphs of several clients as one; edges between clients are known to nobody and stay
    out."""
    tables = [feature_table(part, width) for part in parts]
    offsets = np.cumsum([0, *(table.shape[0] for table in tables)])
    edges = [part.edges.cpu().numpy() + offset for part, offset in zip(parts, offsets[:-1], strict=True)]
    if all(isinstance(table, np.ndarray) for table in tables):
        table = np.concatenate(tables)
    else:  # fleets of one federation may hold features in both forms
        table = csr_array(vstack([csr_array(table) for table in tables]))
    unlabelled = np.full(offsets[-1], -1)
    weights = [part.weights.cpu().numpy() if "weights" in part else np.ones(part.edges.shape[1]) for part in parts]
    merged = Graph("merged", table, np.concatenate(edges, axis=1), unlabelled, 1)
    if any("weights" in part for part in parts):
        merged = replace(merged, weights=np.concatenate(weights).astype(np.float32))
    return build_fleet_graph([merged], device)


def feature_table(part: Tree, width: int) -> Any:
    """Disclosed features, dense or sparse as they came."""
    if "features" in part:
        return part.features.cpu().numpy()
    values, columns, starts = (part[name].cpu().numpy() for name in ("values", "columns", "starts"))
    return csr_array((values, columns, starts), shape=(len(starts) - 1, width))
