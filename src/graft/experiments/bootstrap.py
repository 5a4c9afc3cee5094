"""A metric on many samples of the same nodes, drawn with replacement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from graft.federation.metrics import OF_RANKING, Bools, Predictions, cheap_checks

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]  # [samples, nodes]: how often each node was drawn
CELLS = 2**21  # of the arrays that are worked on at a time


def paired_differences(
    metric: str, first: Predictions, second: Predictions, seed: int, draws: int
) -> NDArray[np.float64]:
    """Returns the second's metric less the first's on samples that are the same for both; those on which it is not
    defined, as without a node of the positive class, are left out."""
    nodes = len(first.classes)
    random = np.random.default_rng(seed)
    parts = []
    for start in range(0, draws, size := max(1, CELLS // nodes)):
        samples = min(size, draws - start)
        counts = random.multinomial(nodes, np.full(nodes, 1 / nodes), size=samples)
        parts.append(sampled(metric, second, counts) - sampled(metric, first, counts))
    differences: Floats = np.concatenate(parts)
    return differences[~np.isnan(differences)]


def sampled(metric: str, predictions: Predictions, counts: Counts) -> Floats:
    """Returns the metric on every sample; nan where it is not defined.

    Scikit-learn takes milliseconds a call, most of them for checks; curves of all samples at once take a hundredth.
    """
    if metric in OF_RANKING:
        hits, scores, _ = predictions.ranking
        by_class = np.stack([AREAS[metric](*curve(*columns, counts)) for columns in zip(hits.T, scores.T, strict=True)])
        defined = ~np.isnan(by_class)
        total = np.where(defined, by_class, 0).sum(axis=0)
        return np.where(defined.any(axis=0), total / np.maximum(defined.sum(axis=0), 1), np.nan)
    if metric == "accuracy":
        right = predictions.probabilities.argmax(1) == predictions.classes
        return np.asarray(counts @ right / counts.sum(axis=1), dtype=np.float64)
    values = np.empty(len(counts))
    with cheap_checks((metric,)):
        for sample, drawn in enumerate(counts):
            chosen = np.repeat(np.arange(len(drawn)), drawn)
            part = Predictions(predictions.classes[chosen], predictions.probabilities[chosen], predictions.positive)
            values[sample] = part.value(metric)
    return values


def curve(is_hit: Bools, scores: Floats, counts: Counts) -> tuple[Floats, Floats]:
    """Returns the numbers of hits and of misses above every threshold, [samples, thresholds], from 0 up."""
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], is_hit[order]
    last = np.append(scores[1:] != scores[:-1], True)  # of nodes that score alike
    drawn = counts[:, order]
    above = [np.cumsum(drawn * chosen, axis=1)[:, last].astype(np.float64) for chosen in (hits, ~hits)]
    above_hits, above_misses = (np.pad(values, ((0, 0), (1, 0))) for values in above)
    return above_hits, above_misses


def area_under_roc(hits: Floats, misses: Floats) -> Floats:
    """Returns the area under the curve of hits over misses; nan without any of one kind."""
    area = (np.diff(misses, axis=1) * (hits[:, 1:] + hits[:, :-1]) / 2).sum(axis=1)
    return _share(area, hits[:, -1] * misses[:, -1])


def average_precision(hits: Floats, misses: Floats) -> Floats:
    """Returns the precision at every threshold, weighted by the hits that it adds; nan without any hit."""
    precision = hits[:, 1:] / np.maximum(hits[:, 1:] + misses[:, 1:], 1)
    return _share((np.diff(hits, axis=1) * precision).sum(axis=1), hits[:, -1])


def _share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


AREAS: dict[str, Callable[[Floats, Floats], Floats]] = {"auroc": area_under_roc, "auprc": average_precision}
