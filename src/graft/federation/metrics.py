"""Metrics of what models predict.

They are computed where the nodes are. What leaves a client are the values for all of its nodes together and, for values
over the nodes of all clients, counts and sums that can be added: never the class or the score of a node.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graft.federation.metric_names import ACCURACY
from graft.tensors.trees import Tree

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KINDS = ("train", "validation", "test")
POOLED_KINDS = KINDS[1:]  # of which there are values over the nodes of all clients
SCORE_BINS = 1000  # of a histogram of scores
WIDEST_ODDS = 30.0  # log-odds beyond this share a bin; probabilities in double precision end there
CALIBRATION_BINS = 15


class Ranking(NamedTuple):
    """Nodes that are of some classes or not, and how high each scores for these."""

    hits: Bools  # [nodes, classes]: whether a node is of the class
    scores: NDArray[Any]  # [nodes, classes]
    counts: Ints | None = None  # how many nodes each entry stands for; None: one


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model predicts of some nodes of one client."""

    classes: Ints  # [nodes]: the true ones
    probabilities: Floats  # [nodes, classes]
    positive: int | None = None  # the class that F1, and with two classes AUROC and AUPRC, are of

    @cached_property
    def confusion(self) -> Ints:
        """Returns how many nodes of each class, a row, are taken for each class, a column."""
        classes = self.probabilities.shape[1]
        pairs = self.classes * classes + self.probabilities.argmax(1)
        return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)

    @cached_property
    def ranking(self) -> Ranking:
        """Returns the nodes by their scores: for the positive one of two classes, or for every one of more."""
        scored = scored_classes(self.probabilities.shape[1], self.positive)
        return Ranking(self.classes[:, None] == scored, self.probabilities[:, scored])

    def histograms(self) -> Ints:
        """Returns how many nodes score in each bin, [scored classes, 2, bins]: those of other classes, and its own."""
        hits, scores, _ = self.ranking
        bins = hits * SCORE_BINS + score_bins(scores)
        counts = [np.bincount(bins[:, scored], minlength=2 * SCORE_BINS) for scored in range(hits.shape[1])]
        return np.stack(counts).reshape(-1, 2, SCORE_BINS)

    def calibration_gaps(self) -> Floats:
        """Returns, for every bin of the top probability, its sum over nodes less the number that is right."""
        top = self.probabilities.max(1)
        bins = np.minimum((top * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        right = self.probabilities.argmax(1) == self.classes
        gaps: Floats = np.zeros(CALIBRATION_BINS)
        np.add.at(gaps, bins, top - right)
        return gaps

    def calibration_error(self) -> float:
        return calibration_error(self.calibration_gaps(), len(self.classes))

    def log_loss(self) -> float:
        from sklearn.metrics import log_loss

        return float(log_loss(self.classes, self.probabilities, labels=range(self.probabilities.shape[1])))

    def value(self, metric: str) -> float:
        """Returns the metric of these nodes; nan where it is not defined."""
        if not len(self.classes):
            return np.nan
        if metric in OF_CONFUSION:
            return OF_CONFUSION[metric](self.confusion, self.positive)
        if metric in OF_RANKING:
            return OF_RANKING[metric](self.ranking)
        return self.log_loss() if metric == "log_loss" else self.calibration_error()


def positive_class(classes: int, positive: int | None) -> int | None:
    """Returns the class that counts as positive: of two, the second unless another is named."""
    return 1 if classes == 2 and positive is None else positive


def scored_classes(classes: int, positive: int | None) -> list[int]:
    """Returns the classes whose scores are ranked: of two, the positive one."""
    single = positive_class(classes, positive)
    return [single] if classes == 2 and single is not None else list(range(classes))


# From counts of nodes by true and predicted class.


def accuracy(confusion: Ints, positive: int | None) -> float:  # noqa: ARG001
    return float(confusion.trace() / confusion.sum()) if confusion.any() else np.nan


def balanced_accuracy(confusion: Ints, positive: int | None) -> float:  # noqa: ARG001
    from sklearn.metrics import balanced_accuracy_score

    true, predicted, counts = cells(confusion)
    with warnings.catch_warnings():  # about classes that do not occur, which is no mistake
        warnings.simplefilter("ignore", UserWarning)
        return float(balanced_accuracy_score(true, predicted, sample_weight=counts)) if len(counts) else np.nan


def macro_f1(confusion: Ints, positive: int | None) -> float:  # noqa: ARG001
    from sklearn.metrics import f1_score

    true, predicted, counts = cells(confusion)
    if not len(counts):
        return np.nan
    return float(f1_score(true, predicted, average="macro", sample_weight=counts, zero_division=0.0))


def positive_f1(confusion: Ints, positive: int | None) -> float:
    """Returns F1 of the positive class; nan where no node is of it and none is taken for it."""
    from sklearn.metrics import f1_score

    chosen = positive_class(len(confusion), positive)
    if chosen is None or not (confusion[chosen].any() or confusion[:, chosen].any()):
        return np.nan
    true, predicted, counts = cells(confusion)
    return float(f1_score(true == chosen, predicted == chosen, sample_weight=counts, zero_division=0.0))


def cells(confusion: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns the true class, the predicted class and the number of nodes of every cell that is not empty."""
    true, predicted = confusion.nonzero()
    return true, predicted, confusion[true, predicted]


OF_CONFUSION: dict[str, Callable[[Ints, int | None], float]] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
    "f1": positive_f1,
}


# From scores.


def auroc(ranking: Ranking) -> float:
    """Returns the area under the ROC curve, a mean over the classes that some nodes are of and others are not."""
    from sklearn.metrics import roc_auc_score

    defined: Bools = np.asarray(ranking.hits.any(axis=0) & ~ranking.hits.all(axis=0))
    return mean_score(roc_auc_score, ranking, defined)


def auprc(ranking: Ranking) -> float:
    """Returns the average precision, a mean over the classes that occur."""
    from sklearn.metrics import average_precision_score

    defined: Bools = np.asarray(ranking.hits.any(axis=0))
    return mean_score(average_precision_score, ranking, defined)


def mean_score(score: Callable[..., Any], ranking: Ranking, defined: Bools) -> float:
    """Returns a score of scikit-learn's, the mean over the classes for which it is defined; nan without any."""
    if not defined.any():
        return np.nan
    hits, scores = ranking.hits[:, defined], ranking.scores[:, defined]
    if hits.shape[1] == 1:  # a single column is not taken for several labels of a node
        hits, scores = hits[:, 0], scores[:, 0]
    return float(score(hits, scores, sample_weight=ranking.counts))


OF_RANKING: dict[str, Callable[[Ranking], float]] = {"auroc": auroc, "auprc": auprc}


def mean_defined(values: Iterator[float]) -> float:
    """Returns the mean of the values that are defined; nan without any."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else np.nan


def score_bins(probabilities: Floats) -> Ints:
    """Returns the bin of every score: equal steps of the inverse hyperbolic sine of its log-odds.

    Equal steps of the probability would put all nodes into the first few bins where the class is rare.
    """
    with np.errstate(divide="ignore"):
        log_odds = np.log(probabilities) - np.log1p(-probabilities)
    position = np.arcsinh(log_odds.clip(-WIDEST_ODDS, WIDEST_ODDS)) / np.arcsinh(WIDEST_ODDS)  # from -1 to 1
    bins: Ints = ((position + 1) / 2 * SCORE_BINS).astype(np.int64).clip(0, SCORE_BINS - 1)
    return bins


def histogram_ranking(histogram: Ints) -> Ranking:
    """Returns the ranking that a histogram of scores, [2, bins], stands for: nodes of one bin score alike."""
    hits, bins = histogram.nonzero()
    return Ranking(hits[:, None].astype(bool), bins[:, None], histogram[hits, bins])


def calibration_error(gaps: Floats, nodes: float) -> float:
    """Returns the expected calibration error from sums over the nodes of every bin."""
    return float(np.abs(gaps).sum() / nodes) if nodes else np.nan


# At a client, and over all of them.


def measure(fleet: Fleet, logits: Tensor) -> Tree:
    """Returns the metrics of a client's nodes from logits of these, and what values over all clients are made of.

    `values` are [1, pooled, 3, metrics]; `confusion`, `histograms` and `gaps` are for validation and test nodes only.
    """
    labels = fleet.labels
    probabilities = logits.detach()[0].double().softmax(1).cpu().numpy()
    classes, masks, owners = (
        part[0, ..., : len(probabilities)].cpu().numpy()  # a method may give none for padding
        for part in (labels.classes, labels.masks, labels.membership)
    )
    if not np.isfinite(probabilities).all():  # a model that diverged has no metrics
        masks = np.zeros_like(masks)
    with cheap_checks(fleet.metrics):
        replies = [
            [
                describe(Predictions(classes[chosen], probabilities[chosen], fleet.positive), fleet.metrics)
                for chosen in masks & (owners == pooled)
            ]
            for pooled in range(labels.pooled_clients)
        ]
    fields = {name: np.stack([[kind[name] for kind in by_kind] for by_kind in replies]) for name in replies[0][0]}
    reply = {name: field if name == "values" else field[:, 1:] for name, field in fields.items()}
    return Tree({name: torch.from_numpy(field).unsqueeze(0) for name, field in reply.items()})


def describe(predictions: Predictions, metrics: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Returns the metrics of some nodes, and counts and sums that can be added to those of other clients."""
    fields: dict[str, NDArray[Any]] = {
        "values": np.array([predictions.value(metric) for metric in metrics]),
        "confusion": predictions.confusion,
    }
    if OF_RANKING.keys() & set(metrics):
        fields["histograms"] = predictions.histograms().astype(np.int32)
    if "ece" in metrics:
        fields["gaps"] = predictions.calibration_gaps()
    return fields


def cheap_checks(metrics: tuple[str, ...]) -> AbstractContextManager[Any]:
    """Spares scikit-learn its checks of arguments, which take longer than the metrics of a small client."""
    if metrics == ACCURACY:
        return nullcontext()
    from sklearn import config_context

    context: AbstractContextManager[Any] = config_context(assume_finite=True, skip_parameter_validation=True)
    return context


class Measured(NamedTuple):
    """What all clients replied to `measure`, as arrays with an entry a client; pooled ones are clients of their own."""

    metrics: tuple[str, ...]
    positive: int | None
    values: Floats  # [clients, 3, metrics]; nan where one is not defined
    statistics: dict[str, NDArray[Any]]  # [clients, 2, ...]: of validation and test nodes

    @classmethod
    def of(cls, reply: Tree, metrics: tuple[str, ...], positive: int | None) -> Measured:
        arrays = {name: leaf.cpu().flatten(0, 1).numpy() for name, leaf in reply.items()}
        return cls(metrics, positive, arrays.pop("values"), arrays)

    def of_metric(self, metric: str) -> Floats:
        """Returns the values of one metric, [clients, 3]."""
        values: Floats = self.values[:, :, self.metrics.index(metric)]
        return values

    def pooled(self, metric: str, kind: str) -> float | None:
        """Returns a metric over the nodes of all clients together; None where it is not defined.

        AUROC and AUPRC are approximate: nodes whose scores share a bin count as equal.
        """
        parts = {name: field[:, POOLED_KINDS.index(kind)] for name, field in self.statistics.items()}
        value = self._pooled(metric, kind, parts) if parts["confusion"].any() else np.nan
        return None if np.isnan(value) else value

    def _pooled(self, metric: str, kind: str, parts: dict[str, NDArray[Any]]) -> float:
        confusion = parts["confusion"].sum(0)
        if metric in OF_CONFUSION:
            return OF_CONFUSION[metric](confusion, self.positive)
        if metric in OF_RANKING:
            histograms = parts["histograms"].sum(0)
            return mean_defined(OF_RANKING[metric](histogram_ranking(histogram)) for histogram in histograms)
        if metric == "ece":
            return calibration_error(parts["gaps"].sum(0), confusion.sum())
        means = self.of_metric(metric)[:, KINDS.index(kind)]  # of the log loss, which is a mean over nodes
        return float(np.nansum(means * parts["confusion"].sum((1, 2))) / confusion.sum())
