"""Features scaled by each client for itself, or by moments that all clients agree on; nothing else leaves a client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from graft.data.exchange import Exchange
from graft.data.graphs import NORMALISATIONS, Bools, Features, Floats, Ints

Doubles = NDArray[np.float64]
BLOCK = 2**24  # cells that are made dense or 64-bit at a time
REVEALS = {
    "moments/counts": "numbers of nodes with a value, column by column",
    "moments/means": "mean of every numeric column",
    "moments/spreads": "sum of squared deviations from that mean, column by column",
    "scaling/mean": "mean of every numeric column over all clients",
    "scaling/deviation": "standard deviation of every numeric column over all clients",
}


class Moments(NamedTuple):
    """Of every column: how many values it has, their mean, and the sum of their squared deviations from it."""

    counts: Ints
    means: Doubles
    spreads: Doubles

    @property
    def deviation(self) -> Doubles:
        """Returns the standard deviation of every column; 0 where there is no value."""
        return np.sqrt(self.spreads / np.maximum(self.counts, 1))


@dataclass(frozen=True, eq=False)
class Scaling:
    """How the features of a client are scaled."""

    features: str  # raw, row, l2 or standard
    columns: Ints | None = None  # those that are scaled, where not all are
    mean: Doubles | None = None  # of these columns, for standard
    deviation: Doubles | None = None  # 0: the column is constant, and 0 after scaling
    factor: float = 1.0  # that all of them are multiplied by in the end

    def apply(self, x: Features, missing: Bools | None = None) -> Features:
        """Returns scaled features; `missing` says which cells of the scaled columns become 0, the mean."""
        scaled = self._standard(x, missing) if self.features == "standard" else NORMALISATIONS[self.features](x)
        return multiplied(scaled, self.factor)

    def to_norm(self, norm: float, rows: Features) -> Scaling:
        """Returns the scaling with the factor that brings the median length of rows, scaled by it so far, to a norm;
        rows of zeros do not count."""
        lengths = row_lengths(rows)
        median = float(np.median(lengths[lengths > 0])) if lengths.any() else 0.0
        return replace(self, factor=norm / median) if median else self

    def _standard(self, x: Features, missing: Bools | None) -> Floats:
        if self.mean is None or self.deviation is None:
            raise ValueError("a standard scaling needs a mean and a deviation")
        columns = _columns(x, self.columns)
        scaled: Floats = x.toarray() if issparse(x) else x.copy()
        inverse = np.divide(1, self.deviation, out=np.zeros_like(self.deviation), where=self.deviation > 0)
        for part in _blocks(x.shape[0], len(columns)):
            values = (scaled[:, columns[part]] - self.mean[part]) * inverse[part]
            if missing is not None:
                values[missing[:, part]] = 0
            scaled[:, columns[part]] = values
        return scaled

    def to_json(self) -> dict[str, Any]:
        """Returns the scaling as JSON can hold it."""
        arrays = {name: getattr(self, name) for name in ("columns", "mean", "deviation")}
        lists = {name: None if values is None else values.tolist() for name, values in arrays.items()}
        return {"features": self.features, **lists, "factor": self.factor}


def standard(
    xs: Sequence[Features],
    columns: Ints | None,
    missing: Sequence[Bools | None],
    shared: bool,
    fitted_on: Sequence[Bools] | None = None,
) -> tuple[list[Scaling], Exchange]:
    """Returns the standard scaling of every client: its own, or where moments are shared, that of all together.

    `fitted_on` says which nodes count, such as those that training may see.
    """
    if fitted_on is not None:
        xs = [x[rows] for x, rows in zip(xs, fitted_on, strict=True)]
        missing = [None if gaps is None else gaps[rows] for gaps, rows in zip(missing, fitted_on, strict=True)]
    own = [moments(x, columns, gaps) for x, gaps in zip(xs, missing, strict=True)]
    if not shared or len(own) == 1:
        return [Scaling("standard", columns, part.means, part.deviation) for part in own], Exchange()
    merged = reduce(merge, own)
    everyone = Scaling("standard", columns, merged.means, merged.deviation)
    up = tuple({f"moments/{name}": values for name, values in part._asdict().items()} for part in own)
    down = {"scaling/mean": merged.means, "scaling/deviation": merged.deviation}
    return [everyone] * len(own), Exchange(up, (down,) * len(own), REVEALS)


def multiplied(x: Features, factor: float) -> Features:
    """Returns features times a factor; an infinity that comes of it is met where models train."""
    with np.errstate(over="ignore"):
        return x if factor == 1 else x * np.float32(factor)


def row_lengths(x: Features) -> Doubles:
    """Returns the Euclidean length of every row."""
    squares = csr_array(x, dtype=np.float64).power(2) if issparse(x) else np.square(x, dtype=np.float64)
    lengths: Doubles = np.sqrt(squares.sum(axis=1))
    return lengths


def moments(x: Features, columns: Ints | None = None, missing: Bools | None = None) -> Moments:
    """Returns the moments of some columns over the cells that are present."""
    columns = _columns(x, columns)
    source = x.tocsc() if issparse(x) else x
    parts = []
    for part in _blocks(x.shape[0], len(columns)):
        cells = source[:, columns[part]]
        values = (cells.toarray() if issparse(cells) else cells).astype(np.float64)
        present = np.ones(values.shape, bool) if missing is None else ~missing[:, part]
        parts.append(_moments(values, present))
    return Moments(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def _moments(values: Doubles, present: Bools) -> Moments:
    # From the first value: a constant column has a spread of exactly 0, and large means cost no digits.
    if not len(values):
        nothing = np.zeros(values.shape[1])
        return Moments(nothing.astype(np.int64), nothing, nothing)
    reference = values[present.argmax(axis=0), np.arange(values.shape[1])]
    values -= reference
    values[~present] = 0
    count = present.sum(axis=0)
    mean = values.sum(axis=0) / np.maximum(count, 1)
    values -= mean
    values[~present] = 0
    spread = np.square(values, out=values).sum(axis=0)
    return Moments(count.astype(np.int64), np.where(count > 0, reference + mean, 0.0), spread)


def merge(first: Moments, second: Moments) -> Moments:
    """Returns the moments of two clients' values together (Chan, Golub and LeVeque, 1983)."""
    count = first.counts + second.counts
    difference = second.means - first.means
    share = second.counts / np.maximum(count, 1)
    mean = np.where(first.counts == 0, second.means, first.means + difference * share)
    gap = np.where((first.counts > 0) & (second.counts > 0), np.square(difference) * first.counts * share, 0.0)
    return Moments(count, mean, first.spreads + second.spreads + gap)


def _columns(x: Features, columns: Ints | None) -> Ints:
    return np.arange(x.shape[1]) if columns is None else columns


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    width = max(1, BLOCK // max(rows, 1))
    for start in range(0, max(columns, 1), width):
        yield slice(start, min(start + width, columns))
