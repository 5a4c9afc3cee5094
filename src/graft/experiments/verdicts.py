"""Does joining help? What a client's model of the federation is worth on its own test nodes, against the model that it
trains alone; and what the client is worth to the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graft.errors import InputError
from graft.federation.metric_names import METRICS
from graft.files import parse_json, read_text, seal, unseal, write_text

if TYPE_CHECKING:
    from graft.federation.metrics import Predictions

FILE = "verdicts.json"
DRAWS = 1000  # bootstrap samples of the test nodes
CONFIDENCE = 0.95
LEAST_NODES = 10  # test nodes below which no interval is worth its name

HELPS, HURTS, UNCLEAR, UNKNOWN = "joining helps", "joining hurts", "no clear difference", "cannot be told"


@dataclass(frozen=True)
class Verdict:
    """What joining changes for one client; differences are improvements, whichever way a metric counts."""

    client: str | int
    metric: str
    test_nodes: int | None  # None: other nodes in every run
    alone: float | None
    federated: float | None
    difference: float | None
    low: float | None  # of an interval of 95 % for the difference: by bootstrap over the test nodes, or over runs
    high: float | None
    verdict: str
    contribution: float | None = None  # what the others' models gain on average by this client's taking part

    @property
    def interval(self) -> tuple[float | None, float | None]:
        return self.low, self.high

    def with_contribution(self, gain: float | None) -> Verdict:
        """Returns the verdict with what the client gives to the others."""
        return replace(self, contribution=gain)

    def as_row(self) -> dict[str, Any]:
        """Returns the verdict for JSON."""
        return asdict(self)


def judge(
    client: str | int, metric: str, alone: Predictions, federated: Predictions, seed: int = 0, draws: int = DRAWS
) -> Verdict:
    """Returns the verdict for a client from what both models predict of the same test nodes."""
    from graft.experiments.bootstrap import paired_differences  # imports PyTorch, which reports do without

    nodes = len(alone.classes)
    values = alone.value(metric), federated.value(metric)
    if nodes < LEAST_NODES or np.isnan(values).any():
        before, after = (None if np.isnan(value) else float(value) for value in values)
        return Verdict(client, metric, nodes, before, after, None, None, None, UNKNOWN)
    sign = METRICS[metric].sign
    differences = sign * paired_differences(metric, alone, federated, seed, draws)
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    words = HELPS if low > 0 else HURTS if high < 0 else UNCLEAR
    return Verdict(client, metric, nodes, *values, sign * (values[1] - values[0]), low, high, words)


def judge_pairs(client: str | int, metric: str, pairs: Sequence[tuple[float | None, float | None]]) -> Verdict:
    """Returns the verdict for a client from its scores in several runs, each in the federation and alone.

    The interval is that of the mean difference over runs.
    """
    from graft.experiments.comparison.statistics import paired_difference  # SciPy's are slow to import

    scored = [(after, before) for after, before in pairs if after is not None and before is not None]
    if not scored:
        return Verdict(client, metric, None, None, None, None, None, None, UNKNOWN)
    federated, alone = ([float(score) for score in scores] for scores in zip(*scored, strict=True))
    sign = METRICS[metric].sign
    paired = paired_difference([sign * score for score in federated], [sign * score for score in alone])
    words = UNKNOWN
    if paired.low is not None and paired.high is not None:
        words = HELPS if paired.low > 0 else HURTS if paired.high < 0 else UNCLEAR
    means = float(np.mean(alone)), float(np.mean(federated))
    return Verdict(client, metric, None, *means, paired.mean, paired.low, paired.high, words)


def contribution(
    metric: str, client: int, everyone: Sequence[float | None], without: Sequence[float | None]
) -> float | None:
    """Returns how much better the others' models are, on average, with this client than without.

    `everyone` holds a score for each client, `without` those of all clients but this one, in the same order.
    """
    others = [score for index, score in enumerate(everyone) if index != client]
    sign = METRICS[metric].sign
    gains = [
        sign * (score - less)
        for score, less in zip(others, without, strict=True)
        if score is not None and less is not None
    ]
    return float(np.mean(gains)) if gains else None


def write_verdicts(folder: Path, verdicts: Sequence[Verdict], against: str) -> None:
    """Puts verdicts on record beside the run that they are about."""
    content = {"against": against, "clients": [verdict.as_row() for verdict in verdicts]}
    write_text(folder / FILE, json.dumps(seal(content), indent=1) + "\n")


def read_verdicts(folder: Path) -> list[Verdict]:
    """Returns the verdicts beside a run; none where it was compared with nothing."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        return [Verdict(**row) for row in unseal(parse_json(read_text(path)))["clients"]]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged: {error}.") from None
