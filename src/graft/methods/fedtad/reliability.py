"""How reliable a client's model is for each class, as the client works it out from its own graph (FedTAD, Eqs. 3
to 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from graft.methods.fedtad.walks import as_scipy, blocks, return_probabilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from graft.federation.fleet import Fleet
    from graft.methods.fedtad.distillation import Distillation


def class_reliability(method: Distillation, fleet: Fleet) -> np.ndarray:
    """Returns the reliability of a single client for each class, [classes], by the measure that the method names."""
    measures: dict[str, Callable[[], np.ndarray]] = {
        "topology": lambda: topology_reliability(method, fleet),
        "count": lambda: sum_by_class(fleet, np.ones(len(train_nodes(fleet)))),
        "equal": lambda: np.ones(fleet.classes),
    }
    return measures[method.reliability]()


def topology_reliability(method: Distillation, fleet: Fleet) -> np.ndarray:
    """Eqs. 3 to 5: how similar labelled nodes are to their neighbours, in features and in position, summed by class."""
    nodes = int(fleet.size[0])
    adjacency = as_scipy(fleet.graph.neighbours, nodes, nodes)
    train = train_nodes(fleet)
    rows = adjacency[train]
    nearby = np.union1d(train, rows.indices).astype(np.int64)
    positions = np.zeros((nodes, method.walk_length))
    positions[nearby] = return_probabilities(
        adjacency,
        nearby,
        method.walk_length,
        fleet.random,
        loops=method.walk_loops,
        budget=method.walk_budget,
        probes=method.walk_probes,
    )
    # Weights enter everywhere: a walk follows an edge, and a neighbour counts, in proportion to its weight.
    similarity, degree = similarity_sums(rows, train, [node_features(fleet), positions]), rows.sum(1)
    mean = (1 + similarity) / (degree + 1) if method.include_self else similarity / np.where(degree > 0, degree, 1)
    return sum_by_class(fleet, mean)


def similarity_sums(adjacency_rows: csr_array, nodes: np.ndarray, tables: list[Any]) -> np.ndarray:
    """Returns the sum of cosines of each of the nodes with its neighbours; a node is described by several tables side
    by side, dense or sparse."""
    norms = np.sqrt(sum(squared_norms(table) for table in tables))
    scale = 1 / np.maximum(norms, 1e-12)
    sums = np.zeros(len(nodes))
    for table in tables:
        sparse = isinstance(table, csr_array)
        unit = csr_array(diags_array(scale) @ table) if sparse else scale[:, None] * table
        for block in blocks(np.full(len(nodes), table.shape[1])):
            own, others = unit[nodes[block]], adjacency_rows[block] @ unit
            sums[block] += own.multiply(others).sum(1) if sparse else (own * others).sum(1)
    return sums


def mean_feature_norm(fleet: Fleet) -> float:
    return float(np.sqrt(squared_norms(node_features(fleet))).mean())


def squared_norms(rows: Any) -> np.ndarray:
    squared: np.ndarray = rows.multiply(rows).sum(1) if isinstance(rows, csr_array) else np.square(rows).sum(1)
    return squared


def node_features(fleet: Fleet) -> Any:
    """Returns the features of a single client without padding, dense or sparse."""
    nodes, features = int(fleet.size[0]), fleet.graph.features
    if isinstance(features, Tensor):
        return features[0, :nodes].cpu().numpy()
    return as_scipy(features, nodes, features.width)


def train_nodes(fleet: Fleet) -> np.ndarray:
    return fleet.labels.masks[0, 0].nonzero().flatten().cpu().numpy()


def sum_by_class(fleet: Fleet, values: np.ndarray) -> np.ndarray:
    """Returns sums over each class of one value a training node, [classes]."""
    labels = fleet.labels.classes[0].cpu().numpy()[train_nodes(fleet)]
    return np.bincount(labels, weights=values, minlength=fleet.classes)
