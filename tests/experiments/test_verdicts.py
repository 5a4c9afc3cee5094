"""Verdicts: whether joining helps a client, and what a client is worth to others."""

import numpy as np
import pytest

from graft.experiments.verdicts import HELPS, HURTS, UNCLEAR, UNKNOWN, contribution, judge
from graft.federation.metrics import Predictions


def predictions(right: float, nodes: int = 400, seed: int = 0) -> Predictions:
    """Returns predictions of two classes of which a share is right."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, 2, nodes)
    hit = np.arange(nodes) < round(right * nodes)
    sure = np.where(hit == (classes == 1), 0.9, 0.1)
    return Predictions(classes, np.stack([1 - sure, sure], axis=1))


def test_a_much_better_model_helps_and_a_much_worse_one_hurts():
    weak, strong = predictions(0.6), predictions(0.9)
    helped, hurt = judge("alpha", "accuracy", weak, strong), judge("alpha", "accuracy", strong, weak)
    assert (helped.verdict, hurt.verdict) == (HELPS, HURTS)
    assert helped.difference == pytest.approx(0.3)
    assert helped.low < 0.3 < helped.high
    assert hurt.high < 0


def test_two_like_models_cannot_be_told_apart():
    verdict = judge(0, "auroc", predictions(0.8), predictions(0.805), draws=200)
    assert verdict.verdict == UNCLEAR
    assert verdict.low < 0 < verdict.high or verdict.low <= 0 <= verdict.high


def test_the_interval_of_an_accuracy_is_that_of_a_difference_of_paired_nodes():
    alone, federated = predictions(0.6), predictions(0.7)
    verdict = judge(0, "accuracy", alone, federated)
    # 40 of 400 nodes differ, all in one direction: their share is binomial.
    spread = 1.96 * np.sqrt(0.1 * 0.9 / 400)
    assert verdict.low == pytest.approx(0.1 - spread, abs=0.01)
    assert verdict.high == pytest.approx(0.1 + spread, abs=0.01)


def test_less_loss_is_an_improvement():
    verdict = judge(0, "log_loss", predictions(0.6), predictions(0.9), draws=200)
    assert verdict.federated < verdict.alone
    assert verdict.difference > 0
    assert verdict.verdict == HELPS


def test_a_handful_of_nodes_or_one_class_gives_no_verdict():
    few = predictions(1.0, nodes=5)
    assert judge(0, "accuracy", few, few).verdict == UNKNOWN
    single = Predictions(np.zeros(50, np.int64), np.tile([0.8, 0.2], (50, 1)))
    verdict = judge(0, "auroc", single, single)
    assert verdict.verdict == UNKNOWN
    assert verdict.alone is None


def test_a_contribution_is_the_mean_gain_of_the_others():
    assert contribution("accuracy", 1, [0.8, 0.1, 0.6], [0.7, 0.4]) == pytest.approx(0.15)
    assert contribution("log_loss", 1, [0.8, 0.1, 0.6], [0.7, 0.4]) == pytest.approx(-0.15)
    assert contribution("accuracy", 0, [0.8, None], [0.7]) is None
