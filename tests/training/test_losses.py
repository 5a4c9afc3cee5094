"""Losses that several methods share."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from graft.data.graphs import make_graph
from graft.methods import METHODS
from graft.methods.local import Local
from graft.testing.claim import contract_setup
from graft.training.losses import divergence, focal, log_softmax, mean_over
from tests.toy import gap, run_rounds, toy_graph, toy_graphs, toy_setup

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


# Rare classes.


def fleet_of(graphs, **training):
    return toy_setup(Local(), graphs=graphs, **training).fleet(list(range(len(graphs))))


def graph_with_labels(y, train):
    graph = replace(toy_graph(len(y)), y=np.array(y), train=np.array(train, bool))
    return replace(graph, validation=~graph.train, test=~graph.train)


def logits_of(fleet, seed=0):
    nodes = fleet.train_nodes.nodes
    return torch.randn(*nodes.shape, fleet.classes, generator=torch.Generator().manual_seed(seed))


def test_focal_loss_by_hand():
    log_likelihood = torch.tensor([0.9, 0.5, 0.1]).log()
    expected = [-(0.1**2) * 0.105361, -(0.5**2) * 0.693147, -(0.9**2) * 2.302585]
    assert focal(log_likelihood, 2.0).tolist() == pytest.approx(expected, abs=1e-6)
    assert focal(log_likelihood, 1.0).tolist() == pytest.approx([-0.0105361, -0.3465736, -2.0723266], abs=1e-6)


def test_focal_loss_without_gamma_is_the_cross_entropy():
    graphs = toy_graphs()
    plain, flat, focused = (
        fleet_of(graphs, **training)
        for training in ({}, {"loss": "focal", "focal_gamma": 0.0}, {"loss": "focal", "focal_gamma": 2.0})
    )
    logits = logits_of(plain)
    assert torch.equal(flat.train_loss(logits), plain.train_loss(logits))
    assert (focused.train_loss(logits) < plain.train_loss(logits)).all()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_the_gradient_of_the_focal_loss_is_finite_where_a_model_is_sure(gamma):
    logits = torch.tensor([[0.0, 200.0], [200.0, 0.0], [0.0, 0.0]], requires_grad=True)
    loss = -focal(logits.log_softmax(1)[:, 0], gamma).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()
    assert gradient[0].abs().max() > 0.5  # the one that is wrong
    assert gradient[1].abs().max() < 1e-3  # and the one that is right


def test_class_weights_by_hand():
    # Four nodes of class 0, one of class 1, none of class 2: weights 5 / (2 * 4) and 5 / (2 * 1).
    graph = graph_with_labels([0, 0, 0, 0, 1, 2, 2], [1, 1, 1, 1, 1, 0, 0])
    balanced, plain = fleet_of([graph], class_weights="balanced"), fleet_of([graph])
    _, classes, shares = balanced.train_nodes
    real = shares[0] > 0
    assert balanced.labels.balanced_shares[0][real].tolist() == pytest.approx([0.125] * 4 + [0.5])
    logits = logits_of(balanced)
    errors = -logits.log_softmax(2)[0, torch.arange(len(real)), classes[0]]
    by_hand = 0.5 * errors[real & (classes[0] == 0)].mean() + 0.5 * errors[real & (classes[0] == 1)].mean()
    assert float(balanced.train_loss(logits)) == pytest.approx(float(by_hand), abs=1e-6)
    assert float(plain.train_loss(logits)) != pytest.approx(float(by_hand), abs=1e-3)


def test_class_weights_are_a_client_s_own():
    rare, even = graph_with_labels([0, 0, 0, 1, 2, 2], [1, 1, 1, 1, 0, 0]), graph_with_labels([0, 1, 2], [1, 1, 1])
    without = graph_with_labels([0, 1, 2], [0, 0, 0])
    fleet = fleet_of([rare, even, without], class_weights="balanced")
    alone = fleet_of([rare], class_weights="balanced")
    shares = fleet.labels.balanced_shares
    assert torch.equal(shares[0][shares[0] > 0], alone.labels.balanced_shares[0][alone.labels.balanced_shares[0] > 0])
    assert shares[1][shares[1] > 0].tolist() == pytest.approx([1 / 3] * 3)
    assert shares[2].sum() == 0
    logits = logits_of(fleet)
    assert fleet.train_loss(logits)[2] == 0
    picked = fleet.select([1, 0])
    assert torch.equal(picked.labels.balanced_shares, shares[[1, 0]])


def test_batches_weigh_a_class_as_the_whole_client_does():
    graph = replace(toy_graph(40), train=np.ones(40, bool))
    y = np.zeros(40, int)
    y[:4] = 1
    setup = toy_setup(Local(), graphs=[replace(graph, y=y)], batches=2, class_weights="balanced")
    fleet = setup.fleet([0])
    batches = [batch.labels for batch in fleet.cut_batches()]
    for labels in batches:
        weights = labels.balanced_shares / labels.train_nodes.shares
        real, classes = labels.train_nodes.shares > 0, labels.train_nodes.classes
        assert weights[real & (classes == 0)].tolist() == pytest.approx(
            [40 / (2 * 36)] * int((real & (classes == 0)).sum())
        )
        assert weights[real & (classes == 1)].tolist() == pytest.approx(
            [40 / (2 * 4)] * int((real & (classes == 1)).sum())
        )
    assert sum(int((labels.train_nodes.classes == 1).sum()) for labels in batches) >= 4


def test_training_for_rare_classes_finds_more_of_them():
    random = np.random.default_rng(0)
    y = (random.random(300) < 0.1).astype(int)
    x = random.normal(size=(300, 6)) + 0.8 * y[:, None]
    graph = replace(make_graph("rare", x, np.empty((2, 0), int), y, 2), train=np.ones(300, bool))
    graph = replace(graph, validation=~graph.train, test=~graph.train)
    recalls = {}
    for name in ("none", "balanced"):
        setup = toy_setup(Local(), graphs=[graph], class_weights=name, epochs=20)
        finished = run_rounds(setup, rounds=2)
        (fleet,) = finished.engine.fleets
        predicted = setup.method.logits(fleet)[0, :300].argmax(1).numpy()
        recalls[name] = predicted[y == 1].mean()
    assert recalls["balanced"] > recalls["none"] + 0.2


@pytest.mark.parametrize(
    "name", ["fedavg", "fedgkc", "fedkd", "fml", "moon", "fedproto", "fedomd", "scaffold", "dpsgd"]
)
def test_methods_train_with_the_loss_that_is_asked_for(name):
    runs = [
        run_rounds(contract_setup(METHODS[name](), **training), rounds=1)
        for training in ({}, {"class_weights": "balanced"}, {"loss": "focal"}, {"loss": "focal", "focal_gamma": 0.0})
    ]
    plain, balanced, focused, flat = (finished.client(1) for finished in runs)
    assert gap(plain, balanced) > 1e-5
    assert gap(plain, focused) > 1e-5
    assert gap(plain, flat) < 1e-5
