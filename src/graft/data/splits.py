"""Which nodes of each client train, validate and test."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import floor

import numpy as np

from graft.data.graphs import MASKS, Bools, Graph, Ints, Times, keep_edges, subgraph
from graft.data.streams import stream
from graft.errors import InputError

Ratios = tuple[Fraction, Fraction, Fraction]  # exact, so that no share is lost to floating point
Draw = Callable[[str, Graph, np.random.Generator], Graph]  # masks for a graph, whose owner the text names
BY_TIME = "time:"  # what a split by time begins with
HELD_OUT = 5  # one in so many training nodes is held out, where methods judge by these
EXPECTED = (
    "three numbers above 0 that sum to at most 100 (or at most 1), such as '20/40/40' or 'time:60/20/20', or 'own'"
)


def split(
    graphs: Sequence[Graph],
    ratios: str | Sequence[float],
    seed: int,
    stratify: bool = True,
    rounding: str = "largest_remainder",
    min_train: int = 1,
    names: Sequence[str] | None = None,
    may_lack_labels: bool = False,
) -> list[Graph]:
    """Returns the clients' graphs with masks; a client's masks depend on the seed and its index only.

    With `may_lack_labels` a client without any label has empty masks instead of being refused.
    """
    draw = _drawing(ratios, stratify, rounding, min_train)
    parts = []
    for client, graph in enumerate(graphs):
        if may_lack_labels and not (graph.y >= 0).any():
            nothing = np.zeros(graph.nodes, bool)
            parts.append(replace(graph, train=nothing, validation=nothing, test=nothing))
        else:
            owner = f"Client {client if names is None else names[client]}"
            parts.append(draw(owner, graph, stream("split", seed, client)))
    return parts


def split_client(graph: Graph, client: int, ratios: str | Sequence[float], seed: int) -> Graph:
    """Returns one client's graph with the masks that `split` would give it among all."""
    draw = _drawing(ratios, stratify=True, rounding="largest_remainder", min_train=1)
    return draw(f"Client {client}", graph, stream("split", seed, client))


def hold_out(graph: Graph, client: int, seed: int) -> tuple[Graph, Bools]:
    """Returns a client's graph without a fifth of its training nodes, and which these are; none of fewer than five."""
    train = np.zeros(graph.nodes, bool) if graph.train is None else graph.train
    nodes = np.flatnonzero(train)
    held = np.zeros(graph.nodes, bool)
    held[stream("held out", seed, client).permutation(nodes)[: len(nodes) // HELD_OUT]] = True
    return replace(graph, train=train & ~held), held


def is_by_time(ratios: str | Sequence[float]) -> bool:
    """Returns whether a split is by time."""
    return isinstance(ratios, str) and ratios.startswith(BY_TIME)


def _drawing(ratios: str | Sequence[float], stratify: bool, rounding: str, min_train: int) -> Draw:
    """Returns how masks are drawn."""
    if ratios == "own":
        return _keep_own_masks
    shares = parse(ratios)
    if is_by_time(ratios):
        return partial(_split_by_time, shares=shares, min_train=min_train)
    if rounding not in ROUNDINGS:
        raise InputError(f"There is no rounding '{rounding}'; choose one of {', '.join(ROUNDINGS)}.")
    if rounding == "floor" and sum(shares) < 1:
        raise InputError(
            f"Rounding 'floor' needs ratios that sum to 100, and {ratios!r} do not: it would leave clients without a "
            f"training node, so use 'largest_remainder'."
        )
    return partial(_draw_masks, shares=shares, stratify=stratify, rounding=rounding, min_train=min_train)


def parse(ratios: str | Sequence[float]) -> Ratios:
    """Returns the shares of train, validation and test, as fractions of one."""
    try:
        parts = (
            re.split("[/-]", ratios.removeprefix(BY_TIME))
            if isinstance(ratios, str)
            else [str(part) for part in ratios]
        )
        train, validation, test = (Fraction(part.strip()) for part in parts)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise InputError(f"The split {ratios!r} cannot be read: give {EXPECTED}.") from error
    total = train + validation + test
    if min(train, validation, test) <= 0 or total > 100:
        raise InputError(f"The split {ratios!r} is not possible: give {EXPECTED}.")
    nearly_one = abs(total - 1) < Fraction(1, 10**9)
    whole = total if nearly_one else 1 if total < 1 else 100
    return train / whole, validation / whole, test / whole


def _keep_own_masks(owner: str, graph: Graph, random: np.random.Generator) -> Graph:  # noqa: ARG001
    missing = [name for name in MASKS if name not in graph.masks]
    if missing:
        raise InputError(
            f"The split 'own' needs the dataset's own masks, and '{graph.name}' has none for {' and '.join(missing)}: "
            f"choose ratios such as '20/40/40'."
        )
    masks = [mask & (graph.y >= 0) for mask in graph.masks.values()]
    if (np.sum(masks, axis=0) > 1).any():
        raise InputError(f"The own masks of '{graph.name}' overlap: a node may be in one of {', '.join(MASKS)} only.")
    return _with_masks(owner, graph, masks, 1, "choose ratios such as '20/40/40', or fewer clients")


def _with_masks(owner: str, graph: Graph, masks: Sequence[Bools], least: int, advice: str) -> Graph:
    train, validation, test = masks
    if train.sum() < max(least, 1):
        raise InputError(
            f"{owner} of '{graph.name}' has {graph.nodes} nodes, {int((graph.y >= 0).sum())} of them labelled, "
            f"and gets {int(train.sum())} training nodes where it needs {max(least, 1)}: {advice}."
        )
    return replace(graph, train=train, validation=validation, test=test)


def _split_by_time(
    owner: str,
    graph: Graph,
    random: np.random.Generator,  # noqa: ARG001
    shares: Ratios,
    min_train: int,
) -> Graph:
    """The oldest labelled nodes train and the newest test."""
    times = node_times(graph)
    if times is None:
        raise InputError(
            f"{owner} of '{graph.name}' has no times to split by: give its nodes or its edges a time, or choose a "
            f"split such as '20/40/40'."
        )
    labelled = np.flatnonzero(graph.y >= 0)
    oldest_first = labelled[np.argsort(times[labelled], kind="stable")]
    sizes = [int(counts[0]) for counts in _largest_remainder(np.array([len(labelled)]), shares, min_train)]
    masks = [np.zeros(graph.nodes, bool) for _ in MASKS]
    for mask, part in zip(masks, np.split(oldest_first, np.cumsum(sizes))[:-1], strict=True):
        mask[part] = True
    return _with_masks(owner, graph, masks, min_train, "use a larger train share")


def node_times(graph: Graph) -> Times | None:
    """Returns when every node came: its own time, or else that of its first edge, or -inf without any; None where
    neither nodes nor edges have times."""
    if graph.node_times is not None or graph.edge_times is None:
        return graph.node_times
    times = np.full(graph.nodes, np.inf)
    np.minimum.at(times, graph.edges[0], graph.edge_times)
    return np.where(np.isinf(times), -np.inf, times)


def training_graph(graph: Graph, by_time: bool) -> Graph:
    """Returns a graph without its test nodes and their edges; by time, without anything else that came after the last
    node that is trained or validated on."""
    seen = subgraph(graph, np.flatnonzero(seen_in_training(graph, by_time)))
    return seen if seen.edge_times is None else keep_edges(seen, seen.edge_times <= _latest(graph, by_time))


def seen_in_training(graph: Graph, by_time: bool) -> Bools:
    """Returns which nodes `training_graph` keeps."""
    times = node_times(graph)
    seen: Bools = ~graph.masks["test"]
    return seen if times is None else seen & (times <= _latest(graph, by_time))


def _latest(graph: Graph, by_time: bool) -> float:
    """Returns when the last node came that is trained or validated on."""
    times, used = node_times(graph), graph.masks["train"] | graph.masks["validation"]
    return float(times[used].max()) if by_time and times is not None and used.any() else np.inf


def _draw_masks(
    owner: str,
    graph: Graph,
    random: np.random.Generator,
    shares: Ratios,
    stratify: bool,
    rounding: str,
    min_train: int,
) -> Graph:
    groups = graph.y if stratify else np.where(graph.y >= 0, 0, -1)
    sizes = np.bincount(groups[groups >= 0], minlength=graph.classes)
    counts = ROUNDINGS[rounding](sizes, shares, min_train)
    masks = [np.zeros(graph.nodes, bool) for _ in MASKS]
    for group in np.flatnonzero(sizes):
        nodes = random.permutation(np.flatnonzero(groups == group))
        for mask, part in zip(masks, np.split(nodes, np.cumsum([count[group] for count in counts]))[:-1], strict=True):
            mask[part] = True
    return _with_masks(owner, graph, masks, min_train, "use fewer clients, a larger train share or 'largest_remainder'")


def _largest_remainder(sizes: Ints, shares: Ratios, min_train: int) -> list[Ints]:
    """Returns the counts of each class in train, validation and test: totals first, then apportioned to the classes."""
    nodes = int(sizes.sum())
    train = min(max(min_train, _round_half_up(shares[0] * nodes)), nodes)
    validation = min(_round_half_up(shares[1] * nodes), nodes - train)
    rest = nodes - train - validation
    test = rest if sum(shares) == 1 else min(_round_half_up(shares[2] * nodes), rest)
    counts: list[Ints] = []
    for total, reserve in ((train, 1), (validation, 1), (test, 0)):
        free = sizes - np.sum(counts, axis=0, dtype=np.int64)
        available = np.where(sizes >= 3, np.maximum(free - reserve, 0), free)
        # A class of three or more keeps a node for the test, unless the totals leave no other choice.
        counts.append(_apportion(total, sizes, available if available.sum() >= total else free))
    return counts


def _apportion(total: int, sizes: Ints, most: Ints) -> Ints:
    """Whole numbers that sum to the total, nearly proportional to the sizes and at most `most`."""
    exact = [Fraction(total * int(size), max(int(sizes.sum()), 1)) for size in sizes]
    counts = np.minimum([floor(count) for count in exact], most)
    # The largest remainder first; of equal ones the larger class, then the lower one.
    order = sorted(range(len(sizes)), key=lambda label: (floor(exact[label]) - exact[label], -sizes[label], label))
    while counts.sum() < total:
        for label in order:
            counts[label] += counts.sum() < total and counts[label] < most[label]
    return counts


def _floor(sizes: Ints, shares: Ratios, min_train: int) -> list[Ints]:  # noqa: ARG001
    """Returns the counts of each class, rounded down class by class and the rest for the test, as FedTAD does."""
    train, validation = (np.array([floor(share * int(size)) for size in sizes], np.int64) for share in shares[:2])
    return [train, validation, sizes - train - validation]


def _round_half_up(number: Fraction) -> int:
    return floor(number + Fraction(1, 2))


ROUNDINGS: dict[str, Callable[[Ints, Ratios, int], list[Ints]]] = {
    "largest_remainder": _largest_remainder,
    "floor": _floor,
}
