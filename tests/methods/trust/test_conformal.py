"""Sets of classes, and what they teach: cases worked out by hand."""

import math

import pytest
import torch
from torch.nn import functional

from graft.methods.trust.conformal import (
    COLDEST,
    HOTTEST,
    Calibration,
    best_sharpness,
    calibrate,
    class_scores,
    prediction_sets,
    ranking_loss,
    transfer_weights,
)

ONE = torch.ones(1)
PREDICTED = torch.tensor([[[0.1, 0.6, 0.3]]]).log()  # of one node of one client
HALF = torch.full((1, 1), 0.5)


def sets(*classes, count=3):
    """One node a set, of one client."""
    return torch.tensor([[[index in each for index in range(count)] for each in classes]])


def test_score_is_the_probability_before_a_share_of_the_own_and_the_penalties():
    scores, order = class_scores(PREDICTED, HALF, ONE, torch.tensor([[0.0, 0.0, 0.2]]))
    assert order.tolist() == [[[1, 2, 0]]]
    assert scores[0, 0].tolist() == pytest.approx([0.3, 0.75, 1.15], abs=1e-4)
    none, _ = class_scores(PREDICTED, 0 * HALF, ONE, torch.zeros(1, 3))
    assert none[0, 0].tolist() == pytest.approx([0.0, 0.6, 0.9], abs=1e-4)


def test_set_holds_what_scores_no_more_than_the_threshold_and_always_the_most_probable_class():
    def of(threshold, sharpness=1.0):
        found = Calibration(torch.tensor([sharpness]), torch.zeros(1, 3), torch.tensor([threshold]))
        return prediction_sets(PREDICTED, HALF, found)[0, 0].nonzero().flatten().tolist()

    assert (of(0.1), of(0.5), of(0.76), of(1.0)) == ([1], [1], [1, 2], [0, 1, 2])
    assert of(0.76, sharpness=5.0) == [1]  # a sharper model is as sure as that
    assert of(0.76, sharpness=0.5) == [1, 2]


def test_penalty_is_of_every_place_beyond_the_free_ones_and_of_the_last_one_at_least():
    logits, nodes = torch.zeros(2, 1, 4), torch.zeros(2, 1, dtype=torch.bool)
    penalty = torch.tensor([0.5, 1.0])
    few = calibrate(logits, torch.zeros(2, 1).long(), nodes, torch.zeros(2, 1), error=0.1, penalty=penalty, free=2)
    assert few.penalties.tolist() == [[0, 0, 0.5, 1.0], [0, 0, 1.0, 2.0]]
    many = calibrate(logits, torch.zeros(2, 1).long(), nodes, torch.zeros(2, 1), error=0.1, penalty=penalty, free=5)
    assert many.penalties.tolist() == [[0, 0, 0, 0.5], [0, 0, 0, 1.0]]


def test_without_nodes_to_calibrate_on_sets_are_nominal():
    nodes = torch.zeros(1, 1, dtype=torch.bool)
    found = calibrate(PREDICTED, torch.tensor([[0]]), nodes, HALF, error=0.1, penalty=0 * ONE, free=5)
    assert (float(found.sharpness), float(found.threshold)) == (1.0, pytest.approx(0.9))
    assert prediction_sets(PREDICTED, 0 * HALF, found)[0, 0].tolist() == [True, True, True]  # 0, 0.6 and 0.9
    assert prediction_sets(PREDICTED, HALF, found)[0, 0].tolist() == [False, True, True]


@pytest.mark.parametrize(("error", "missed"), [(0.05, 1), (0.3, 5), (0.5, 9)])
def test_sets_miss_the_share_of_calibration_nodes_that_they_may(error, missed):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 40, 6, generator=generator)
    classes = torch.randint(6, (2, 40), generator=generator)
    draws = torch.rand(2, 40, generator=generator)
    nodes = torch.zeros(2, 40, dtype=torch.bool)
    nodes[0, :20], nodes[1, 10:30] = True, True
    found = calibrate(logits, classes, nodes, draws, error=error, penalty=torch.full((2,), 0.5), free=3)
    inside = prediction_sets(logits, draws, found).gather(2, classes.unsqueeze(2)).squeeze(2)
    # The quantile is one of the 20 scores, with index ceil((1 - error) * 19): as many are above it.
    counts = (~inside & nodes).sum(1).tolist()
    assert all(missed - 2 <= count <= missed for count in counts)
    longer = [functional.pad(logits, (0, 0, 0, 3)), *(functional.pad(each, (0, 3)) for each in (classes, nodes, draws))]
    again = calibrate(*longer, error=error, penalty=torch.full((2,), 0.5), free=3)  # padding changes nothing
    torch.testing.assert_close(again.threshold, found.threshold)


def test_sharpness_is_what_makes_probabilities_the_frequencies():
    # Logits 0 and 4 say 98 %; three of four nodes are of that class, which is a logit of log 3.
    logits = torch.tensor([[[0.0, 4.0]]]).expand(1, 4, 2)
    classes, nodes = torch.tensor([[1, 1, 1, 0]]), torch.ones(1, 4, dtype=torch.bool)
    assert float(best_sharpness(logits, classes, nodes)) == pytest.approx(math.log(3) / 4, rel=1e-4)
    assert float(best_sharpness(logits, torch.ones_like(classes), nodes)) == pytest.approx(1 / COLDEST, rel=1e-4)
    assert float(best_sharpness(logits, torch.zeros_like(classes), nodes)) == pytest.approx(1 / HOTTEST, rel=1e-4)


def test_nodes_are_taught_by_how_far_the_sets_agree():
    proxy = sets([0, 1], [0, 1], [0], [0, 1], [0])
    private = sets([0, 1], [0], [0, 1, 2], [2], [1])
    # The same; surer: of both together a half; less sure: all of the proxy's; surer of another; as sure of another.
    assert transfer_weights(proxy, private)[0].tolist() == [1, 0.5, 1, 0, 0]
    assert transfer_weights(sets([0, 1]), sets([1, 2, 0]))[0].tolist() == [1]
    assert transfer_weights(sets([0, 1]), sets([1, 2]))[0].tolist() == pytest.approx([1 / 3])


def test_ranking_loss_by_hand():
    logits = torch.tensor([[[1.0, 3.0, 2.0, 0.0]]])
    # Pairs (in, out) of {0, 2}: (0, 1) is 2 apart, (2, 1) is 1, class 3 is below both: 3 / 4.
    assert float(ranking_loss(logits, sets([0, 2], count=4))) == pytest.approx(0.75)
    assert float(ranking_loss(logits, sets([1, 2], count=4))) == 0
    assert float(ranking_loss(logits, sets([0, 1, 2, 3], count=4))) == 0


def test_ranking_loss_and_its_gradient_are_those_over_all_pairs():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 5, 7, generator=generator, dtype=torch.float64).requires_grad_()
    inside = torch.rand(3, 5, 7, generator=generator) < 0.4
    apart = (logits.unsqueeze(2) - logits.unsqueeze(3)).relu() * inside.unsqueeze(3) * ~inside.unsqueeze(2)
    wanted = apart.sum((2, 3)) / (inside.sum(2) * (~inside).sum(2)).clamp(min=1)
    found = ranking_loss(logits, inside)
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad(loss.sum(), logits, retain_graph=True)[0] for loss in (found, wanted)]
    torch.testing.assert_close(*gradients)
    assert float(gradients[0].abs().max()) > 0.1
