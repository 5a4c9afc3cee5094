"""The losses of FedTAD's server phase, worked out by hand."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from graft.methods.fedtad.losses import logit_gap, mean_cosine, nearness, prediction_gap, recognition


def random_logits(students=2, teachers=3, nodes=4, classes=3, seed=0):
    """Logits of students and of teachers, and votes."""
    settings = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    by_students, by_teachers = (torch.randn(models, nodes, classes, **settings) for models in (students, teachers))
    return by_students, by_teachers, torch.rand(1, teachers, nodes, **settings)


def test_divergence_is_that_of_the_student_from_each_teacher():
    students, teachers, votes = random_logits()
    by_hand = torch.zeros(2, dtype=torch.float64)
    turned = torch.zeros(2, dtype=torch.float64)
    for student in range(2):
        for teacher in range(3):
            for node in range(4):
                mine, theirs = students[student, node].log_softmax(0), teachers[teacher, node].log_softmax(0)
                weight = votes[0, teacher, node]
                by_hand[student] += weight * functional.kl_div(theirs, mine.exp(), reduction="sum")
                turned[student] += weight * functional.kl_div(mine, theirs.exp(), reduction="sum")
    torch.testing.assert_close(prediction_gap(students, teachers, votes), by_hand)
    assert (by_hand - turned).abs().min() > 1e-2


@pytest.mark.parametrize("loss", [prediction_gap, logit_gap])
def test_gradient_of_the_divergence_is_that_of_finite_differences(loss):
    students, teachers, votes = random_logits(students=1, teachers=2, nodes=2, classes=2)
    start, targets = students.requires_grad_(), teachers.requires_grad_()
    gradients = torch.autograd.grad(loss(start, targets, votes).sum(), (start, targets))
    for leaf, gradient in zip((start, targets), gradients, strict=True):
        slopes = torch.zeros_like(gradient).flatten()
        for place in range(slopes.numel()):
            move = torch.zeros_like(slopes)
            move[place] = 1e-6
            move = move.view_as(gradient)
            mine, theirs = (move, 0) if leaf is start else (0, move)
            up, down = (loss(start + sign * mine, targets + sign * theirs, votes) for sign in (1, -1))
            slopes[place] = (up - down).item() / 2e-6
        torch.testing.assert_close(gradient.flatten(), slopes, atol=1e-6, rtol=1e-6)


def test_student_that_agrees_with_its_teacher_feels_nothing():
    students, _, votes = random_logits(students=1, teachers=1)
    for loss in (prediction_gap, logit_gap):
        start = students.float().requires_grad_()
        value = loss(start, students.float(), votes[:, :1].float())
        assert value.item() == 0
        assert (torch.autograd.grad(value.sum(), start)[0] == 0).all()


def test_logit_gap_and_recognition_by_hand():
    students, teachers = torch.zeros(1, 2, 2), torch.tensor([[[1.0, 3.0], [0.0, 0.0]], [[-2.0, 0.0], [4.0, 0.0]]])
    votes = torch.tensor([[[1.0, 10.0], [100.0, 1000.0]]])
    assert logit_gap(students, teachers, votes).tolist() == [1 * 2 + 0 + 100 * 1 + 1000 * 2]
    labels = torch.tensor([1, 0])
    missed = [np.log1p(np.exp(-2)), np.log(2), np.log1p(np.exp(-2)), np.log1p(np.exp(-4))]
    by_hand = sum(vote * miss for vote, miss in zip((1, 10, 100, 1000), missed, strict=True))
    assert recognition(teachers, labels, votes[0]).item() == pytest.approx(by_hand, rel=1e-6)


def test_diversity_of_orthogonal_identical_and_opposite_rows():
    noise = torch.zeros(2, 1)
    assert mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 5.0]]), noise, 1).item() == pytest.approx(0.5)
    assert mean_cosine(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), noise, 1).item() == pytest.approx(1)
    assert mean_cosine(torch.tensor([[1.0, 2.0], [-1.0, -2.0]]), noise, 1).item() == pytest.approx(0)


def test_nearness_of_the_released_code():
    generator = torch.Generator().manual_seed(0)
    rows, noise = torch.randn(5, 3, generator=generator), torch.randn(5, 2, generator=generator)
    pairs = [
        (rows[i] - rows[j]).abs().mean() * (noise[i] - noise[j]).square().mean() for i in range(5) for j in range(5)
    ]
    assert nearness(rows, noise, 4).item() == pytest.approx(4 * np.exp(-np.mean(pairs)), rel=1e-5)
