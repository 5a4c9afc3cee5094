"""Samples of nodes: every metric is what scikit-learn gives of the nodes that were drawn."""

import numpy as np
import pytest

from graft.experiments.bootstrap import paired_differences, sampled
from graft.federation.metric_names import METRICS
from graft.federation.metrics import Predictions


def make_predictions(classes=2, nodes=60, seed=0, positive=None):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, nodes)
    raw = random.random((nodes, classes)) + 0.5 * np.eye(classes)[labels]
    raw = np.round(raw, 1)  # so that some nodes score alike
    return Predictions(labels, raw / raw.sum(axis=1, keepdims=True), positive)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_of_a_sample_is_that_of_the_nodes_drawn(metric, classes):
    predictions = make_predictions(classes, positive=1)
    counts = np.random.default_rng(1).multinomial(60, np.full(60, 1 / 60), size=5)
    values = sampled(metric, predictions, counts)
    for value, drawn in zip(values, counts, strict=True):
        chosen = np.repeat(np.arange(60), drawn)
        part = Predictions(predictions.classes[chosen], predictions.probabilities[chosen], 1)
        assert value == pytest.approx(part.value(metric))
    assert len(set(values)) > 1


def test_samples_without_a_node_of_the_class_are_left_out():
    labels = np.array([1] + [0] * 19)
    predictions = Predictions(labels, np.tile([0.5, 0.5], (20, 1)))
    differences = paired_differences("auprc", predictions, predictions, seed=0, draws=200)
    assert 0 < len(differences) < 200
    assert (differences == 0).all()


def test_many_nodes_are_sampled_in_parts_and_the_same_seed_draws_the_same(monkeypatch):
    first, second = make_predictions(seed=1), make_predictions(seed=2)
    whole = paired_differences("auroc", first, second, seed=3, draws=50)
    assert np.array_equal(whole, paired_differences("auroc", first, second, seed=3, draws=50))
    assert not np.array_equal(whole, paired_differences("auroc", first, second, seed=4, draws=50))
    monkeypatch.setattr("graft.experiments.bootstrap.CELLS", 7 * 60)
    assert np.array_equal(whole, paired_differences("auroc", first, second, seed=3, draws=50))
