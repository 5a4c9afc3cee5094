"""Which client goes to which worker: by what its training is estimated to cost, so that no worker waits long."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from graft.data.graphs import Floats, Graph, Ints
from graft.data.lazy_graphs import ClientGraphs
from graft.engines.memory import parameters_of
from graft.federation.setup import Setup
from graft.models.architecture import LayeredModel, Model
from graft.models.assigned import AssignedModels, different_models
from graft.models.gat import GAT

MANY = 50_000  # clients, from which on they are dealt out in turns: with so many, none of them matters


def share_out(setup: Setup, workers: int) -> list[Ints]:
    """Returns the clients of every worker, sorted; there are never more workers than clients."""
    costs = estimate_costs(setup)
    return deal(costs, workers) if len(costs) >= MANY else fill(costs, workers)


def estimate_costs(setup: Setup) -> Floats:
    """Returns what an epoch of every client costs, in multiplications: each weight once a node, and a row of the width
    once an edge and layer, for every head of attention."""
    nodes, edges = graph_sizes(setup.graphs)
    entries = setup.models.entries if isinstance(setup.models, AssignedModels) else setup.models
    weights = {model: (parameters_of(model), edge_cost(model)) for model in different_models(setup.models)}
    of_entries = np.array([weights[model] for model in entries], np.float64)
    per_node, per_edge = of_entries[np.arange(len(setup.models)) % len(entries)].T
    costs: Floats = nodes * per_node + (2 * edges + nodes) * per_edge
    return costs


def edge_cost(model: Model) -> int:
    """Returns how many multiplications an edge takes in all layers."""
    width, layers = (model.width, model.hidden) if isinstance(model, LayeredModel) else (64, 2)
    return width * layers * (1 + (model.heads if isinstance(model, GAT) else 0))


def graph_sizes(graphs: Sequence[Graph]) -> tuple[Ints, Ints]:
    """Returns the numbers of nodes and of undirected edges of all clients, without reading a graph that is not here."""
    if isinstance(graphs, ClientGraphs):
        return graphs.nodes(), graphs.edges()
    return np.array([graph.nodes for graph in graphs]), np.array([graph.edge_count for graph in graphs])


def fill(costs: Floats, workers: int) -> list[Ints]:
    """Gives every client, the dearest first, to the worker that has the least so far."""
    loads = [(0.0, worker) for worker in range(min(workers, len(costs)))]
    clients: list[list[int]] = [[] for _ in loads]
    for client in np.argsort(-costs, kind="stable").tolist():
        load, worker = heapq.heappop(loads)
        clients[worker].append(client)
        heapq.heappush(loads, (load + float(costs[client]), worker))
    return [np.sort(np.array(own, np.int64)) for own in clients]


def deal(costs: Floats, workers: int) -> list[Ints]:
    """Deals clients out, the dearest first, there and back again."""
    order = np.argsort(-costs, kind="stable")
    turn = np.arange(len(costs)) % (2 * workers)
    worker = np.minimum(turn, 2 * workers - 1 - turn)
    return [np.sort(order[worker == number]) for number in range(workers)]
