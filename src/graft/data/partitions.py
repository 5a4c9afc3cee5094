"""How the nodes of one graph become those of K clients."""

import heapq
import inspect
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from graft.data import PARTITIONS, check_partition
from graft.data.graphs import Graph, Ints, adjacency, undirected
from graft.data.partition_files import Assignment, read_partition
from graft.data.streams import check_seed, stream
from graft.errors import InputError

FEDSAGE_TOLERANCE = 20  # nodes; FedSage's delta


def partition(graph: Graph, clients: int | None, by: str | Path = "louvain", seed: int = 0, **options: Any) -> Ints:
    """Returns the client id of every node, by a method of `names()` or from a file; every client gets at least one
    node."""
    return assign(graph, clients, by, seed, **options).membership


def assign(graph: Graph, clients: int | None, by: str | Path = "louvain", seed: int = 0, **options: Any) -> Assignment:
    """Returns what `partition` does, and the names of the clients where a file has some."""
    check_seed(seed)
    check_partition(by)
    if str(by) not in PARTITIONS:
        return _from_file(graph, clients, by, options)
    check_options(str(by), options)
    if isinstance(clients, bool) or not isinstance(clients, int | np.integer) or clients < 1:
        raise InputError(f"The number of clients is a whole number of at least 1, not {clients!r}.")
    if clients > graph.nodes:
        raise InputError(f"'{graph.name}' has {graph.nodes} nodes, too few for {clients} clients with one node each.")
    membership = PARTITIONS[str(by)](graph, int(clients), seed, **options)
    return Assignment(_fill_empty(membership, int(clients)))


def check_options(by: str, options: Collection[str]) -> None:
    """Refuses options that a method of partitioning does not have."""
    parameters = inspect.signature(PARTITIONS[by]).parameters.items()
    possible = [name for name, parameter in parameters if parameter.kind == parameter.KEYWORD_ONLY]
    for option in options:
        if option not in possible:
            raise InputError(
                f"Partition '{by}' has no option '{option}'; its options are {', '.join(possible) or 'none'}."
            )


def names() -> list[str]:
    """Returns the names of the partition methods."""
    return list(PARTITIONS)


def _fill_empty(membership: Ints, clients: int) -> Ints:
    """Gives each empty client one node of the client that is then the largest, the one with the highest id."""
    sizes = np.bincount(membership, minlength=clients)
    for client in np.flatnonzero(sizes == 0):
        largest = sizes.argmax()
        membership[np.flatnonzero(membership == largest)[-1]] = client
        sizes[largest] -= 1
        sizes[client] += 1
    return membership


def _look_up(table: dict[str, Any], option: str, value: Any) -> Any:
    if value not in table:
        raise InputError(f"Option {option}='{value}' does not exist; choose one of {', '.join(table)}.")
    return table[value]


def _check_positive(option: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.inf:
        raise InputError(f"Option {option} is a number above 0, not {value!r}.")


# Louvain: communities, then chunks of communities packed onto clients.


def louvain(
    graph: Graph, clients: int, seed: int, *, resolution: float = 1.0, cut: str = "bfs", packing: str = "balanced"
) -> Ints:
    """Communities of high modularity (a larger resolution gives smaller ones), packed onto clients of similar size."""
    _check_positive("resolution", resolution)
    order = _look_up(CUTS, "cut", cut)
    limit, pack = _look_up(PACKINGS, "packing", packing)
    if clients == 1:
        return np.zeros(graph.nodes, np.int64)
    largest = limit(graph, clients)
    links = adjacency(graph.nodes, graph.edges)
    groups = []
    for nodes in _communities(graph, resolution, seed):
        if len(nodes) <= largest:
            groups.append(nodes)
        else:
            ordered = nodes[order(links, nodes)]
            groups += [ordered[start : start + largest] for start in range(0, len(nodes), largest)]
    groups.sort(key=lambda group: (-len(group), group.min()))
    membership = np.empty(graph.nodes, np.int64)
    for group, client in zip(groups, pack([len(group) for group in groups], graph.nodes, clients), strict=True):
        membership[group] = client
    return membership


def _communities(graph: Graph, resolution: float, seed: int) -> list[Ints]:
    try:
        import igraph
    except ImportError as error:
        raise InputError("Partition 'louvain' needs the igraph package: pip install igraph.") from error
    links = igraph.Graph(n=graph.nodes, edges=np.ascontiguousarray(undirected(graph.edges).T))
    igraph.set_random_number_generator(random.Random(seed))
    try:
        community = np.asarray(links.community_multilevel(resolution=resolution).membership)
    finally:
        igraph.set_random_number_generator(random)
    order = np.argsort(community, kind="stable")
    return np.split(order, np.cumsum(np.bincount(community))[:-1])


def _stored_order(links: csr_array, nodes: Ints) -> Ints:  # noqa: ARG001
    return np.arange(len(nodes))


def _breadth_first(links: csr_array, nodes: Ints) -> Ints:
    induced = links[nodes][:, nodes]
    roots = np.unique(connected_components(induced, directed=False)[1], return_index=True)[1]
    return np.concatenate(
        [breadth_first_order(induced, root, directed=False, return_predecessors=False) for root in roots]
    )


def _balanced_limit(graph: Graph, clients: int) -> int:
    return -(-graph.nodes // clients)


def _fedsage_limit(graph: Graph, clients: int) -> int:
    limit = graph.nodes // clients - FEDSAGE_TOLERANCE
    if limit < 1:
        raise InputError(
            f"Option packing='fedsage' needs more than {FEDSAGE_TOLERANCE} nodes a client, and '{graph.name}' has "
            f"{graph.nodes} nodes for {clients} clients; use packing='balanced' or fewer clients."
        )
    return limit


def _balanced(sizes: list[int], nodes: int, clients: int) -> list[int]:  # noqa: ARG001
    """Returns the client of each group: the one that is smallest by then, the lowest of several."""
    heap = [(0, client) for client in range(clients)]
    owners = []
    for size in sizes:
        held, client = heap[0]
        heapq.heapreplace(heap, (held + size, client))
        owners.append(client)
    return owners


def _fedsage(sizes: list[int], nodes: int, clients: int) -> list[int]:
    """Returns the client of each group, by FedSage's circle of owners (Zhang et al., NeurIPS 2021).

    A group that fits nowhere goes to the smallest client.
    """
    target = nodes // clients
    held = [0] * clients
    circle, pointer = list(range(clients)), 0
    owners = []
    for size in sizes:
        while len(circle) > 1 and held[circle[pointer]] >= target:
            del circle[pointer]
            pointer %= len(circle)
        turns = range(pointer, pointer + len(circle))
        fits = (turn for turn in turns if held[circle[turn % len(circle)]] + size < target + FEDSAGE_TOLERANCE)
        smallest = min(range(len(circle)), key=lambda index: (held[circle[index]], circle[index]))
        pointer = next(fits, smallest) % len(circle)
        held[circle[pointer]] += size
        owners.append(circle[pointer])
    return owners


CUTS: dict[str, Callable[[csr_array, Ints], Ints]] = {"bfs": _breadth_first, "order": _stored_order}
PACKINGS = {"balanced": (_balanced_limit, _balanced), "fedsage": (_fedsage_limit, _fedsage)}


# The other methods.


def metis(graph: Graph, clients: int, seed: int) -> Ints:
    """Parts of similar size with few edges between them (Karypis and Kumar, 1998)."""
    try:
        import pymetis
    except ImportError as error:
        raise InputError("Partition 'metis' needs the pymetis package: pip install pymetis.") from error
    if clients == 1:
        return np.zeros(graph.nodes, np.int64)
    links = adjacency(graph.nodes, graph.edges)
    neighbours = pymetis.CSRAdjacency(links.indptr, links.indices)
    _, parts = pymetis.part_graph(clients, adjacency=neighbours, options=pymetis.Options(seed=seed % 2**31))
    return np.array(parts, np.int64)


def random_nodes(graph: Graph, clients: int, seed: int) -> Ints:
    """Nodes drawn at random, the same number for each client, or one more."""
    return stream("partition", seed).permutation(np.arange(graph.nodes) % clients)


def label_skew(graph: Graph, clients: int, seed: int, *, alpha: float = 0.5) -> Ints:
    """Each class divided in proportions drawn from a Dirichlet(alpha); unlabelled nodes are divided evenly."""
    _check_positive("alpha", alpha)
    rng = stream("partition", seed)
    membership = np.empty(graph.nodes, np.int64)
    for label in range(graph.classes):
        nodes = rng.permutation(np.flatnonzero(graph.y == label))
        stops = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(nodes)
        membership[nodes] = np.searchsorted(stops, np.arange(len(nodes)), side="right")
    unlabelled = np.flatnonzero(graph.y < 0)
    membership[unlabelled] = rng.permutation(np.arange(len(unlabelled)) % clients)
    return membership


# Saved partitions.


def _from_file(graph: Graph, clients: int | None, by: str | Path, options: dict[str, Any]) -> Assignment:
    path = Path(by)
    if options:
        raise InputError(f"The saved partition {path} takes no options, but {', '.join(options)} was given.")
    assignment = read_partition(path, graph)
    count = int(assignment.membership.max()) + 1
    if clients is not None and clients != count:
        raise InputError(
            f"{path} is a partition into {count} clients, but {clients} were asked for; clients should be {count}."
        )
    return assignment
