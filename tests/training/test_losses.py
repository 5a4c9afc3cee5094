"""Losses that several methods share."""

import pytest
import torch

from graft.methods.local import Local
from graft.training.losses import divergence, log_softmax, mean_over
from tests.toy import toy_setup

SURE = torch.tensor([0.75, 0.25]).log()
EVEN = torch.tensor([0.5, 0.5]).log()


def everywhere(logits, nodes=3):
    return logits.expand(1, nodes, 2)


def test_divergence_by_hand_has_the_teacher_first():
    nodes = torch.ones(1, 3, dtype=torch.bool)
    assert float(divergence(everywhere(EVEN), everywhere(SURE), nodes)) == pytest.approx(0.143841, abs=1e-6)
    assert float(divergence(everywhere(SURE), everywhere(EVEN), nodes)) == pytest.approx(0.130812, abs=1e-6)
    assert float(divergence(everywhere(SURE), everywhere(SURE) + 7, nodes)) == pytest.approx(0, abs=1e-6)


def test_divergence_is_a_mean_over_the_nodes_that_count():
    teacher, student = torch.stack([EVEN, EVEN, SURE])[None], torch.stack([EVEN, SURE, EVEN])[None]
    first_two, none = torch.tensor([[True, True, False]]), torch.zeros(1, 3, dtype=torch.bool)
    assert float(divergence(teacher, student, first_two)) == pytest.approx(0.143841 / 2, abs=1e-6)
    assert float(divergence(teacher, student, none)) == 0
    both = divergence(teacher.repeat(2, 1, 1), student.repeat(2, 1, 1), torch.cat([first_two, none]))
    torch.testing.assert_close(both, torch.tensor([0.0719205, 0.0]), atol=1e-6, rtol=0)


def test_no_gradient_reaches_the_teacher():
    teacher, student = everywhere(EVEN).clone().requires_grad_(), everywhere(SURE).clone().requires_grad_()
    loss = divergence(teacher, student, torch.ones(1, 3, dtype=torch.bool)).sum()
    to_teacher, to_student = torch.autograd.grad(loss, [teacher, student], allow_unused=True)
    assert to_teacher is None
    # The gradient of KL(p || softmax(z)) is softmax(z) - p, here over three nodes.
    torch.testing.assert_close(to_student, torch.tensor([0.25, -0.25]).expand(1, 3, 2) / 3)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 50.0])
def test_temperature_softens_both_and_keeps_the_size_of_the_gradient(temperature):
    teacher, student = everywhere(EVEN), everywhere(SURE).clone().requires_grad_()
    nodes = torch.ones(1, 3, dtype=torch.bool)
    loss = divergence(teacher, student, nodes, temperature)
    odds = 3 ** (1 / temperature)  # of SURE, softened
    log_found = torch.tensor([odds / (odds + 1), 1 / (odds + 1)], dtype=torch.float64).log()
    wanted = temperature**2 * float((0.5 * (torch.tensor(0.5).double().log() - log_found)).sum())
    assert loss.item() == pytest.approx(wanted, rel=1e-2 if temperature == 50 else 1e-5)
    (gradient,) = torch.autograd.grad(loss.sum(), student)
    assert 0.25 <= float(gradient.abs().sum(1).max()) <= 0.29  # without the square it would shrink to 1/50


def test_extreme_logits_stay_finite():
    teacher, student = torch.tensor([[[1e4, -1e4]]]), torch.tensor([[[-1e4, 1e4]]])
    assert divergence(teacher, student, torch.ones(1, 1, dtype=torch.bool)).isfinite().all()


def test_mean_over_nothing_is_zero():
    values = torch.tensor([[1.0, 3.0, 100.0], [5.0, 6.0, 7.0]])
    nodes = torch.tensor([[True, True, False], [False, False, False]])
    assert mean_over(values, nodes).tolist() == [2.0, 0.0]


def test_all_nodes_are_all_but_the_padding():
    fleet = toy_setup(Local()).fleet([0, 1, 2])
    assert fleet.node_mask("all").sum(1).tolist() == [12, 9, 7]
    assert fleet.node_mask("train").sum(1).tolist() == fleet.labels.masks[:, 0].sum(1).tolist()
    assert fleet.graph.nodes == 12


@pytest.mark.parametrize("classes", [1, 2, 7, 15, 16, 40])
def test_log_softmax_is_that_of_the_last_axis_however_many_classes_there_are(classes):
    logits = torch.randn(3, 5, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for given in (logits, logits.mT.contiguous().mT):
        torch.testing.assert_close(log_softmax(given), logits.log_softmax(2))
    assert torch.autograd.gradcheck(log_softmax, logits.clone().requires_grad_())
