"""The metrics that models are scored by: names, and which values are better. Imports neither PyTorch nor NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graft.errors import InputError
from graft.registry import close_to


class MetricKind(NamedTuple):
    """How a metric is read."""

    title: str  # within a sentence
    words: str  # what it is
    higher: bool = True  # whether more of it is better
    percent: bool = True  # whether it is shown in percent

    @property
    def sign(self) -> int:
        """Returns what a difference is multiplied by, so that positive is an improvement."""
        return 1 if self.higher else -1


METRICS = {
    "accuracy": MetricKind("accuracy", "share of the nodes whose class is predicted"),
    "balanced_accuracy": MetricKind(
        "balanced accuracy", "mean over the classes of the share of their nodes that are found"
    ),
    "macro_f1": MetricKind("macro F1", "mean over the classes of their F1"),
    "f1": MetricKind("F1", "harmonic mean of precision and recall of the positive class"),
    "auroc": MetricKind("AUROC", "area under the ROC curve: of the positive class, or mean over the classes"),
    "auprc": MetricKind("AUPRC", "average precision: of the positive class, or mean over the classes"),
    "log_loss": MetricKind(
        "log loss", "mean of minus the log-probability of the true class", higher=False, percent=False
    ),
    "ece": MetricKind("ECE", "how far probabilities are from the share that is right, on average", higher=False),
}
ACCURACY = ("accuracy",)  # what is always recorded, and all that is where nothing else is asked for


def parse_metrics(text: str) -> tuple[str, ...]:
    """Returns the metrics that are named in a text, separated by commas; refuses unknown ones."""
    names = tuple(name.strip() for name in text.split(","))
    for index, name in enumerate(names):
        if name not in METRICS:
            raise InputError(f"There is no metric '{name}'{close_to(name, METRICS)}: there are {', '.join(METRICS)}.")
        if name in names[:index]:
            raise InputError(f"metric is '{text}', which names {name} twice.")
    return names


def check_positive(metrics: Sequence[str], classes: int, positive: int | None) -> None:
    """Refuses F1 of the positive class where nobody says which of several that is."""
    if "f1" in metrics and classes != 2 and positive is None:
        raise InputError(
            f"metric f1 is of the positive class, and none of the {classes} classes of these data is said to be that; "
            "use macro_f1."
        )


def format_metric(metric: str, value: float | None, missing: str = "none") -> str:
    """Returns a value as people read it: shares in percent, the log loss as it is."""
    if value is None:
        return missing
    return f"{100 * value:.1f} %" if METRICS[metric].percent else f"{value:.3f}"


def format_difference(metric: str, value: float | None, missing: str = "none") -> str:
    """Returns a difference with its sign: of shares, in points of percent."""
    if value is None:
        return missing
    return f"{100 * value:+.1f}" if METRICS[metric].percent else f"{value:+.3f}"
