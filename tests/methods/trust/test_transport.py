"""Transport between predictions: cases worked out by hand."""

import math

import pytest
import torch
from torch import nn

from graft.errors import InputError
from graft.federation.server import Server
from graft.methods.trust import TRUST
from graft.methods.trust.transport import branches, class_costs, potentials, transport_value
from graft.models.build import build_model
from graft.tensors.trees import Tree
from tests.toy import random_weights, run_rounds, toy_setup

OFF_DIAGONAL = 0.6 * (1 - torch.eye(2, dtype=torch.float64)).unsqueeze(0)


def log_of(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log().view(1, 1, -1)


def plan(rows, columns, costs, eta, iterations):
    f, g = potentials(rows, columns, costs, eta, iterations)
    return ((f.unsqueeze(3) + g.unsqueeze(2) - costs.unsqueeze(1)) / eta).exp()[0, 0]


def test_ten_iterations_are_not_enough_for_the_exact_cost_and_the_default_is():
    rows, columns = log_of(0.8, 0.2), log_of(0.5, 0.5)
    few = plan(rows, columns, OFF_DIAGONAL, 0.05, 10)
    assert float((few * OFF_DIAGONAL[0]).sum()) == pytest.approx(0.16467, abs=1e-5)
    assert float((few.sum(1) - rows.exp()[0, 0]).abs().max()) == pytest.approx(0.026, abs=1e-3)
    many = plan(rows, columns, OFF_DIAGONAL, 0.05, TRUST().iterations)
    assert float((many.sum(1) - rows.exp()[0, 0]).abs().max()) < 1e-6
    assert float((many * OFF_DIAGONAL[0]).sum()) == pytest.approx(0.18, abs=1e-4)


def test_identical_distributions_cost_nothing_as_the_entropy_counts_less():
    same = log_of(0.8, 0.2)
    costs = [float((plan(same, same, OFF_DIAGONAL, eta, 500) * OFF_DIAGONAL[0]).sum()) for eta in (0.4, 0.2, 0.05)]
    assert costs[0] > costs[1] > costs[2]
    assert costs[2] < 1e-3
    assert float(transport_value(same, same, OFF_DIAGONAL, 0.03, 500)) == pytest.approx(0, abs=0.03)


def test_value_is_that_of_the_plan():
    rows, columns = log_of(0.7, 0.2, 0.1), log_of(0.1, 0.3, 0.6)
    costs = torch.tensor([[[0.0, 0.3, 0.6], [0.3, 0.0, 0.2], [0.6, 0.2, 0.0]]], dtype=torch.float64)
    best = plan(rows, columns, costs, 0.1, 2000)
    wanted = float((best * costs[0]).sum() + 0.1 * (best * best.log()).sum())
    assert float(transport_value(rows, columns, costs, 0.1, 2000)) == pytest.approx(wanted, abs=1e-9)


def test_gradient_is_that_of_the_value_though_nothing_is_kept_of_the_iterations():
    costs = torch.tensor([[[0.0, 0.3, 0.6], [0.3, 0.0, 0.2], [0.6, 0.2, 0.0]]], dtype=torch.float64)
    rows = log_of(0.7, 0.2, 0.1)
    logits = torch.tensor([[[0.3, -0.2, 0.5]]], dtype=torch.float64, requires_grad=True)

    def value(logits):
        return transport_value(rows, logits.log_softmax(2), costs, 0.1, 2000).sum()

    (gradient,) = torch.autograd.grad(value(logits), logits)
    step = 1e-5 * torch.eye(3, dtype=torch.float64)
    numeric = [float(value(logits.detach() + move) - value(logits.detach() - move)) / 2e-5 for move in step]
    assert gradient[0, 0].tolist() == pytest.approx(numeric, abs=1e-7)
    assert max(map(abs, numeric)) > 0.01


def test_no_gradient_reaches_the_teacher():
    teacher = log_of(0.7, 0.3).requires_grad_()
    student = log_of(0.4, 0.6).requires_grad_()
    value = transport_value(teacher, student, OFF_DIAGONAL, 0.1, 50).sum()
    assert torch.autograd.grad(value, [teacher, student], allow_unused=True)[0] is None


def test_predictions_that_are_sure_to_the_last_bit_leave_all_finite():
    teacher, student = (torch.tensor([[[x, -x]]]).log_softmax(2) for x in (200.0, -200.0))
    student.requires_grad_()
    value = transport_value(teacher, student, OFF_DIAGONAL.float(), 0.03, 50)
    (gradient,) = torch.autograd.grad(value.sum(), student)
    assert value.isfinite().all()
    assert gradient.isfinite().all()
    assert float(value.detach()) == pytest.approx(0.6, abs=1e-4)  # all goes from one class to the other


def test_classes_whose_weights_point_the_same_way_cost_nothing():
    model = build_model("gcn", 6, 3, width=2)
    head = torch.tensor([[[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]]])  # [clients, width, classes]: 0 and 1 agree
    costs = class_costs(model, Tree(head=Tree(weight=head)), 1.0)[0]
    across = 1 - math.exp(-1)
    wanted = [[0, 0, across], [0, 0, across], [across, across, 0]]
    torch.testing.assert_close(costs, torch.tensor(wanted), atol=1e-6, rtol=0)
    assert float(class_costs(model, Tree(head=Tree(weight=head)), 0.0).abs().max()) == 0


class Net(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.first, self.head = nn.Linear(features, 8), nn.Linear(8, classes)

    def forward(self, x, edge_index):  # noqa: ARG002
        return self.head(self.first(x).relu())


class Headless(Net):
    def __init__(self, features, classes):
        super().__init__(features, classes)
        self.last, self.head = self.head, None

    def forward(self, x, edge_index):  # noqa: ARG002
        return self.last(self.first(x).relu())


def test_classes_are_the_columns_of_our_heads_and_the_rows_of_those_of_modules():
    weight = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    module, ours = build_model(Net(6, 3), 6, 3), build_model("gcn", 6, 3, width=8)
    of_module = class_costs(module, Tree(head=Tree(weight=weight)), 1.0)
    torch.testing.assert_close(of_module, class_costs(ours, Tree(head=Tree(weight=weight.mT)), 1.0))
    assert of_module.shape == (1, 3, 3)


def test_costs_of_a_mixed_fleet_are_in_the_order_of_its_clients():
    (fleet,) = run_rounds(toy_setup(TRUST(pretrain_epochs=1), models="gcn,sage", clients=4), rounds=1).engine.fleets
    parts = branches(fleet.model, fleet.state.model)
    assert [len(part.head.weight) for part in parts] == [2, 2]
    costs = class_costs(fleet.model, fleet.state.model, 1.0)
    for position in range(4):
        part, row = parts[position // 2], position % 2
        alone = Tree(head=Tree(weight=part.head.weight[row : row + 1]))
        torch.testing.assert_close(costs[position : position + 1], class_costs(build_model("gcn", 6, 3), alone, 1.0))


def test_models_without_a_linear_head_are_refused_unless_no_transport_is_asked_for():
    for setup in (
        toy_setup(TRUST(), head="conv"),
        toy_setup(TRUST(), models=["gcn", Headless(6, 3)]),
    ):
        with pytest.raises(InputError, match="set w_wd to 0"):
            Server.of(setup)
    run_rounds(toy_setup(TRUST(w_wd=0, pretrain_epochs=1), head="conv"), rounds=1)
    run_rounds(toy_setup(TRUST(pretrain_epochs=1), models=["gcn", Net(6, 3)]), rounds=1)


def test_random_heads_cost_between_nothing_and_one():
    model = build_model("gcn", 6, 5, width=4)
    costs = class_costs(model, random_weights(model, 3), 2.0)
    assert float(costs.amin()) > -1e-6
    assert float(costs.amax()) < 1
    torch.testing.assert_close(costs, costs.mT)
