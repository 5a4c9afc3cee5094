"""Who teaches whom in FedTAD, how much, and on nodes of which classes."""

import pytest
import torch

from graft.methods.fedtad import FedTADPaper
from graft.methods.fedtad.lesson import mixing_coefficients, relative_reliability, teacher_votes
from graft.methods.fedtad.losses import recognition
from graft.models import build_model
from graft.tensors.trees import map_tree
from tests.toy import CLASSES, random_weights, run_rounds, toy_setup


def test_shares_of_a_class_add_up_to_one_over_clients():
    reliability = torch.tensor([[1.0, 0.0, 3.0], [3.0, 0.0, 0.0]])
    all_teachers, first_teacher = torch.ones(1, 2), torch.tensor([[1.0, 0.0]])
    shares = relative_reliability(reliability, all_teachers)[0]
    assert shares.tolist() == [[0.25, 0, 1], [0.75, 0, 0]]
    assert torch.equal(relative_reliability(reliability.flip(0), all_teachers)[0], shares.flip(0))
    assert relative_reliability(reliability[:1], torch.ones(1, 1))[0].tolist() == [[1, 0, 1]]
    assert relative_reliability(reliability, first_teacher)[0].tolist() == [[1, 0, 1], [0, 0, 0]]


def test_votes_make_a_mean_over_the_nodes_of_each_class():
    labels = torch.tensor([0, 0, 0, 2])
    votes = teacher_votes(torch.tensor([[1.0, 0.0, 3.0], [3.0, 0.0, 0.0]]), torch.ones(1, 2), labels)[0]
    torch.testing.assert_close(votes, torch.tensor([[1 / 12, 1 / 12, 1 / 12, 1], [0.25, 0.25, 0.25, 0]]))


def test_votes_for_a_sum_are_those_for_a_mean_times_the_nodes_of_a_class():
    reliability, labels = torch.tensor([[1.0, 0.0, 3.0], [3.0, 0.0, 0.0]]), torch.tensor([0, 0, 0, 2])
    votes = teacher_votes(reliability, torch.ones(1, 2), labels, "sum")[0]
    assert votes.tolist() == [[0.25, 0.25, 0.25, 1], [0.75, 0.75, 0.75, 0]]
    logits = torch.tensor([[[0.0, 3.0]] * 4, [[2.0, 0.0]] * 4])
    several, one = torch.tensor([1, 1, 1, 1]), torch.tensor([1])
    means, sums = (
        teacher_votes(reliability[:, :2] + 1, torch.ones(1, 2), several, kind)[0] for kind in ("mean", "sum")
    )
    assert recognition(logits, several, sums).item() == pytest.approx(4 * recognition(logits, several, means).item())
    single = teacher_votes(reliability[:, :2] + 1, torch.ones(1, 2), one, "sum")[0]
    assert recognition(logits[:, :1], one, single).item() == pytest.approx(recognition(logits, several, means).item())


def test_partial_participation_shares_out_among_those_who_take_part():
    seen = []

    class Watched(FedTADPaper):
        def distil(self, server, teachers, reliability, scope, students):
            seen.append((reliability, scope))
            super().distil(server, teachers, reliability, scope, students)

    run_rounds(toy_setup(Watched(), clients=4, participation=0.5), rounds=2)
    assert len(seen) == 2
    for reliability, scope in seen:
        assert len(reliability) == 2
        shares = relative_reliability(reliability, scope)[0].sum(0)
        torch.testing.assert_close(shares, (reliability.sum(0) > 0).float())


def test_shares_of_a_mean_are_found_in_the_weights():
    model = build_model("gcn", 6, CLASSES, width=8)
    teachers = random_weights(model, 3, seed=1)
    shares = torch.tensor([[0.2, 0.8, 0.0], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    students = map_tree(lambda leaf: torch.tensordot(shares, leaf, dims=1), teachers)
    torch.testing.assert_close(mixing_coefficients(students, teachers).float(), shares, atol=1e-5, rtol=0)
    alike = map_tree(lambda leaf: leaf[:1].expand_as(leaf), teachers)
    torch.testing.assert_close(mixing_coefficients(alike, alike), torch.full((3, 3), 1 / 3, dtype=torch.float64))
