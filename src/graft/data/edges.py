"""Lists of edges as people bring them, made undirected, unique and free of self-loops, with their weights and times."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from graft.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Times = NDArray[np.float64]  # seconds since 1970, or whatever else grows with time

LEAST_WEIGHT = float(np.finfo(np.float32).tiny)  # one over less would be infinite
SAME_WEIGHT = 1e-6  # relative difference up to which the weights of both directions are one weight, rounded


class Edges(NamedTuple):
    """Undirected edges in both directions, sorted by (row, col), and what is known of each; None: nothing."""

    ends: Ints  # [2, E]
    weights: Floats | None = None  # [E]
    times: Times | None = None  # [E]


def clean_edges(
    name: str, edges: ArrayLike, nodes: int, weights: ArrayLike | None = None, times: ArrayLike | None = None
) -> Edges:
    """Returns checked edges, each once in both directions.

    Where every row has its reverse with the same weight, a pair of them is one edge of that weight; otherwise the
    weights of all rows between two nodes are summed. Of their times the earliest counts. A weight of 0 is no edge.
    """
    ends = _checked_ends(name, edges, nodes)
    weight = None if weights is None else _checked_weights(name, ends, weights)
    time = None if times is None else checked_times(f"The edge_times of '{name}'", times, ends.shape[1], "edges")
    if weight is None and time is None:
        return Edges(_both_directions(sorted_unique(_pair_keys(ends, nodes, ends[0] != ends[1])), nodes))
    kept = ends[0] != ends[1] if weight is None else (ends[0] != ends[1]) & (weight > 0)
    keys = _pair_keys(ends, nodes, kept)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    summed, earliest = None, None
    if weight is not None:
        forward = (ends[0] < ends[1])[kept][order]
        summed = _pair_weights(name, keys, weight[kept][order], forward, first, nodes)
    if time is not None:
        earliest = np.minimum.reduceat(time[kept][order], first) if len(first) else time[:0]
    return _mirrored(keys[first], nodes, summed, earliest)


def with_both_directions(edges: Ints, nodes: int, weights: Floats | None = None, times: Times | None = None) -> Edges:
    """Returns different undirected edges, each given once in any order, in both directions and sorted."""
    keys = edges[0] * nodes + edges[1]
    return (
        Edges(_both_directions(keys, nodes))
        if weights is None and times is None
        else _mirrored(keys, nodes, weights, times)
    )


def _checked_ends(name: str, edges: ArrayLike, nodes: int) -> NDArray[Any]:
    ends = as_array(f"The edges of '{name}'", edges)
    if ends.size == 0:
        return np.empty((2, 0), np.int64)
    if ends.ndim != 2 or ends.shape[0] != 2 or ends.dtype.kind not in "iu":
        raise InputError(
            f"The edges of '{name}' must be whole numbers of shape [2, edges], not {ends.dtype} of shape {ends.shape}."
        )
    if ends.min() < 0 or ends.max() >= nodes:
        column = int(np.flatnonzero(((ends < 0) | (ends >= nodes)).any(axis=0))[0])
        raise InputError(
            f"Edge {column} of '{name}' joins {ends[0, column]} and {ends[1, column]}, but its nodes are 0 to "
            f"{nodes - 1}."
        )
    return ends


def _checked_weights(name: str, ends: NDArray[Any], weights: ArrayLike) -> NDArray[np.float64]:
    values = as_array(f"The edge weights of '{name}'", weights)
    edges = ends.shape[1]
    if values.shape not in ((edges,), (edges, 1)) or values.dtype.kind not in "biuf":
        raise InputError(
            f"The edge weights of '{name}' must be one number for each of its {edges} edges, not {values.dtype} of "
            f"shape {values.shape}."
        )
    values = values.reshape(edges).astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        edge = wrong[0]
        raise InputError(
            f"Edge {edge} of '{name}', between nodes {ends[0, edge]} and {ends[1, edge]}, has weight {values[edge]:g}: "
            f"weights must be finite and above 0, or 0 for no edge; leave them out if they mean something else."
        )
    return values


def checked_times(subject: str, times: ArrayLike, count: int, of: str) -> Times:
    """Returns one finite time for each node or edge; dates become seconds since 1970."""
    values = as_array(subject, times)
    if values.dtype.kind == "M":
        missing = np.isnat(values)
        values = np.where(missing, np.nan, values.astype("datetime64[us]").astype(np.float64) / 1e6)
    if values.shape not in ((count,), (count, 1)) or values.dtype.kind not in "iuf":
        raise InputError(
            f"{subject} must be one number for each of its {count} {of}, not {values.dtype} of shape {values.shape}."
        )
    values = values.reshape(count).astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise InputError(f"{subject} must be finite, but that of {of[:-1]} {wrong[0]} is {values[wrong[0]]}.")
    return values


def _pair_keys(ends: NDArray[Any], nodes: int, kept: NDArray[np.bool_]) -> Ints:
    """Returns every kept edge as one number, low * nodes + high, so that sorting it sorts pairs without a second
    array."""
    low, high = np.minimum(ends[0], ends[1])[kept], np.maximum(ends[0], ends[1])[kept]
    keys: Ints = low.astype(np.int64) * nodes + high
    return keys


def _pair_weights(
    name: str, keys: Ints, weights: NDArray[np.float64], forward: NDArray[np.bool_], first: Ints, nodes: int
) -> Floats:
    """Returns the weight of every pair of nodes, from rows sorted by pair."""
    if not len(first):
        return np.empty(0, np.float32)
    one_way = _is_symmetric(keys, weights, forward)
    summed = np.add.reduceat(np.where(forward, weights, 0) if one_way else weights, first)
    with np.errstate(over="ignore"):
        pair_weights = summed.astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(pair_weights) & (pair_weights >= LEAST_WEIGHT)))
    if len(wrong):
        low, high = divmod(int(keys[first[wrong[0]]]), nodes)
        raise InputError(
            f"The edge between nodes {low} and {high} of '{name}' has weight {summed[wrong[0]]:g}, which is too "
            f"{'small' if pair_weights[wrong[0]] < 1 else 'large'} for a 32-bit number: rescale the weights."
        )
    return pair_weights


def _is_symmetric(keys: Ints, weights: NDArray[np.float64], forward: NDArray[np.bool_]) -> bool:
    """Returns whether rows in one direction are those in the other, pair by pair and weight by weight."""
    if not np.array_equal(keys[forward], keys[~forward]):
        return False
    pairs = keys[forward]
    up, down = (weights[side][np.lexsort((weights[side], pairs))] for side in (forward, ~forward))
    return bool((np.abs(up - down) <= SAME_WEIGHT * up).all())


def _both_directions(keys: Ints, nodes: int) -> Ints:
    both = np.concatenate([keys, keys % nodes * nodes + keys // nodes])
    del keys
    both.sort()
    return _ends(both, nodes)


def _mirrored(keys: Ints, nodes: int, weights: Floats | None, times: Times | None) -> Edges:
    both = np.concatenate([keys, keys % nodes * nodes + keys // nodes])
    order = np.argsort(both)
    edge = order % len(keys) if len(keys) else order
    return Edges(
        _ends(both[order], nodes), None if weights is None else weights[edge], None if times is None else times[edge]
    )


def _ends(keys: Ints, nodes: int) -> Ints:
    ends = np.empty((2, len(keys)), np.int64)
    np.divmod(keys, nodes, out=(ends[0], ends[1]))
    return ends


def sorted_unique(keys: Ints) -> Ints:
    """Returns the different values of an array in ascending order, as `np.unique` but sorting the array itself in
    place."""
    keys.sort()
    differs = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=differs[1:])
    return keys[differs]


def as_array(subject: str, values: Any) -> NDArray[Any]:
    """Returns values as an array, or says of what they cannot be one."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{subject} cannot be read as an array: {error}.") from error
