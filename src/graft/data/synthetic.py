"""A degree-corrected stochastic block model with class-dependent features, for tests of scale.

Karrer and Newman, "Stochastic blockmodels and community structure in networks", Physical Review E 83, 2011.
"""

import numpy as np
from numpy.typing import NDArray

from graft.data.edges import sorted_unique
from graft.data.graphs import Graph, Ints, make_graph
from graft.data.streams import stream
from graft.errors import InputError

ROWS_AT_ONCE = 1 << 16  # features are shifted in blocks, so that no second copy of them is ever held


def generate(
    nodes: int = 1000,
    degree: float = 10.0,
    classes: int = 10,
    homophily: float = 0.8,
    features: int = 64,
    seed: int = 0,
    signal: float = 2.0,
    exponent: float = 2.5,
    name: str = "synthetic",
) -> Graph:
    """Returns a random graph with classes of equal size, drawn from the model.

    `degree` is the mean number of neighbours, `homophily` the share of edges inside a class, `signal` the distance
    between two class means in standard deviations of the noise, and `exponent` that of the degrees' power law.
    """
    check_model("The synthetic graph", nodes, degree, classes, homophily, features, signal, exponent)
    rng = stream("synthetic", seed)
    y, ends = draw_edges(nodes, degree, classes, homophily, exponent, rng)
    means = draw_means(classes, features, signal, rng)
    return make_graph(name, draw_features(y, means, rng), ends, y, classes)


def draw_edges(
    nodes: int, degree: float, classes: int, homophily: float, exponent: float, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Returns the class of every node, and every edge once, [2, edges]."""
    inside, across = _count_edges(nodes, degree, homophily)
    y = rng.permutation(np.arange(nodes) % classes)
    propensity = np.minimum((1 - rng.random(nodes)) ** (-1 / (exponent - 1)), np.sqrt(nodes))
    sampler = _PairSampler(y, propensity, rng)
    pairs = np.concatenate([sampler.sample(inside, same=True), sampler.sample(across, same=False)])
    return y, np.stack(np.divmod(pairs, nodes))


def _count_edges(nodes: int, degree: float, homophily: float) -> tuple[int, int]:
    """Returns the number of edges inside classes, and of those between them."""
    edges = round(nodes * degree / 2)
    inside = round(edges * homophily)
    return inside, edges - inside


def check_model(
    what: str,
    nodes: int,
    degree: float,
    classes: int,
    homophily: float,
    features: int,
    signal: float,
    exponent: float,
) -> None:
    """Refuses settings that no graph can have; `what` it is begins the sentence."""
    rules = [
        (nodes >= 2, "nodes", nodes, "at least 2"),
        (0 < degree < nodes, "degree", degree, f"above 0 and below the number of nodes, {nodes}"),
        (1 <= classes <= nodes, "classes", classes, f"between 1 and the number of nodes, {nodes}"),
        (0 <= homophily <= 1, "homophily", homophily, "between 0 and 1"),
        (classes > 1 or homophily == 1, "homophily", homophily, "1 when there is one class"),
        (features >= 1, "features", features, "at least 1"),
        (0 <= signal < np.inf, "signal", signal, "0 or a positive number"),
        (1 < exponent < np.inf, "exponent", exponent, "above 1"),
    ]
    for holds, setting, value, bound in rules:
        if not holds:
            raise InputError(f"{what} cannot have {setting}={value}: it must be {bound}.")
    _check_density(what, nodes, classes, *_count_edges(nodes, degree, homophily))


def _check_density(what: str, nodes: int, classes: int, inside: int, across: int) -> None:
    sizes = np.bincount(np.arange(nodes) % classes)
    possible_inside = int((sizes * (sizes - 1)).sum()) // 2
    possible_across = nodes * (nodes - 1) // 2 - possible_inside
    for edges, possible, where in ((inside, possible_inside, "inside"), (across, possible_across, "between")):
        if 2 * edges > possible:
            raise InputError(
                f"{what} is too dense: {edges} edges {where} classes were asked for, and at most half "
                f"of the {possible} possible ones can be drawn; lower the degree or the number of classes."
            )


class _PairSampler:
    """Samples pairs of nodes in proportion to their propensities, inside a class or between classes."""

    def __init__(self, y: Ints, propensity: NDArray[np.float64], rng: np.random.Generator) -> None:
        self.rng = rng
        self.order = np.argsort(y, kind="stable")  # nodes of one class side by side
        self.y = y[self.order]
        self.propensity = propensity[self.order]
        self.cumulative = np.cumsum(self.propensity)
        last = np.cumsum(np.bincount(y)) - 1
        self.class_stop = self.cumulative[last]
        self.class_start = np.concatenate([[0.0], self.class_stop[:-1]])

    def sample(self, count: int, same: bool) -> Ints:
        """Returns exactly `count` different pairs, each as the number low * nodes + high."""
        keys = np.empty(0, np.int64)
        while len(keys) < count:
            missing = count - len(keys)
            keys = sorted_unique(np.concatenate([keys, self.draw(missing + missing // 50 + 16, same)]))
        surplus = self.rng.choice(len(keys), len(keys) - count, replace=False)
        return np.delete(keys, surplus)

    def draw(self, count: int, same: bool) -> Ints:
        """Returns about `count` pairs, some of them equal."""
        total = self.cumulative[-1]
        source = np.repeat(np.arange(len(self.y)), self.rng.poisson(self.propensity * (count / total)))
        start, stop = self.class_start[self.y[source]], self.class_stop[self.y[source]]
        if same:
            position = start + self.rng.random(len(source)) * (stop - start)
        else:
            position = self.rng.random(len(source)) * (total - (stop - start))
            position += np.where(position >= start, stop - start, 0)
        target = np.minimum(np.searchsorted(self.cumulative, position, side="right"), len(self.y) - 1)
        # Rounding may land just outside the class that was asked for, and a node may meet itself.
        keep = (source != target) & ((self.y[source] == self.y[target]) == same)
        source, target = self.order[source[keep]], self.order[target[keep]]
        keys: Ints = np.minimum(source, target) * len(self.y) + np.maximum(source, target)
        return keys


def draw_means(classes: int, width: int, signal: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Returns the mean of the features of each class, [classes, features]."""
    return rng.standard_normal((classes, width), dtype=np.float32) * np.float32(signal / np.sqrt(2 * width))


def draw_features(y: Ints, means: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Returns the features of every node: the mean of its class, and noise."""
    x = rng.standard_normal((len(y), means.shape[1]), dtype=np.float32)
    for first in range(0, len(y), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        x[rows] += means[y[rows]]
    return x
