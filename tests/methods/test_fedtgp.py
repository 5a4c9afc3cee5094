"""FedTGP: cases worked out by hand; what it shares with FedProto is tested there."""

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.federation.clients import Clients
from graft.federation.fleet import initial_weights
from graft.federation.server import Server
from graft.methods.fedproto import FedProto
from graft.methods.fedtgp import (
    FedTGP,
    Generator,
    contrast,
    contrast_gradient,
    generate,
    generator_gradients,
    nearest_gaps,
)
from graft.tensors.trees import flatten, map_tree
from tests.methods.prototypes import hand_graph, mirror_setup
from tests.toy import gap, run_rounds, same, toy_graphs, toy_setup, trained_tree

LINE = torch.tensor([[[0.0], [1.0], [3.0]]])  # what one client sent of three classes
ALL = torch.ones(1, 3, dtype=torch.bool)


def test_margin_is_the_largest_gap_to_the_nearest_class_but_no_more_than_its_cap():
    assert nearest_gaps(LINE[0], ALL[0]).tolist() == [1, 1, 2]
    assert float(FedTGP().margin(LINE, ALL)) == 2.0
    assert float(FedTGP(margin_cap=1.5).margin(LINE, ALL)) == 1.5


def test_margin_of_a_round_is_that_of_the_means_over_owners():
    graphs = [hand_graph([(-1, 1), (1, 1)], [0, 1], 3), hand_graph([(1, 1), (3, 1)], [0, 2], 3)]
    finished = run_rounds(mirror_setup(FedTGP(), graphs), rounds=1)  # means at 0, 1 and 3
    assert float(finished.records["margin"]) == 2.0


def test_server_loss_by_hand():
    owned = torch.tensor([[True, False, False]])
    prototypes = LINE[0]
    assert float(contrast(LINE, owned, prototypes, 2.0)) == pytest.approx(1.407606, abs=1e-6)
    assert float(contrast(LINE, owned, prototypes, 0.0)) == pytest.approx(0.349012, abs=1e-6)


def test_rows_of_absent_classes_are_no_samples():
    owned = torch.tensor([[True, False, True]])
    wild = LINE.clone()
    wild[0, 1] = 1e6
    for margin in (0.0, 2.0):
        assert torch.equal(contrast(LINE, owned, LINE[0], margin), contrast(wild, owned, LINE[0], margin))
        assert not torch.equal(contrast(LINE, ALL, LINE[0], margin), contrast(wild, ALL, LINE[0], margin))
    assert float(FedTGP().margin(LINE, owned)) == float(FedTGP().margin(wild, owned)) == 3.0


def test_client_without_a_class_does_not_change_its_gap():
    sent = torch.cat([LINE, torch.tensor([[[0.0], [0.0], [3.0]]])])  # the second client has no class 1: zeros
    owned = torch.tensor([[True, True, True], [True, False, True]])
    assert float(FedTGP().margin(sent, owned)) == float(FedTGP().margin(LINE, ALL))
    assert float(FedTGP().margin(sent, owned | True)) == 2.5  # as if its zeros were a prototype: means at 0, 0.5, 3


@pytest.mark.parametrize("classes", [0, 1])
def test_fewer_than_two_classes_have_no_margin(classes):
    owned = torch.arange(3).unsqueeze(0) < classes
    assert float(FedTGP().margin(LINE, owned)) == 0
    prototypes = LINE[0].clone().requires_grad_()
    loss = contrast(LINE, owned, prototypes, FedTGP().margin(LINE, owned))
    assert torch.autograd.grad(loss, prototypes)[0].isfinite().all()


def test_gradient_is_finite_where_a_prototype_meets_what_was_sent():
    prototypes = LINE[0].clone().requires_grad_()
    gradient = torch.autograd.grad(contrast(LINE, ALL, prototypes, 2.0), prototypes)[0]
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


def test_server_that_does_not_train_sends_what_its_generator_began_with():
    finished = run_rounds(toy_setup(FedTGP(server_epochs=0)), rounds=2)
    start = map_tree(lambda leaf: leaf.unsqueeze(0), initial_weights(Generator(3, 8, 8), 0))
    assert same(finished.server.state.generator, start)
    assert torch.equal(finished.server.state.known.prototypes, generate(start))
    trained = run_rounds(toy_setup(FedTGP(server_epochs=1)), rounds=2)
    assert not torch.equal(trained.server.state.known.prototypes, generate(start))


def test_generator_is_two_linear_layers_on_a_vector_for_each_class():
    weights = map_tree(lambda leaf: leaf.unsqueeze(0), initial_weights(Generator(3, 4, 5), 0))
    first, second = weights.first, weights.second
    assert first.weight.shape == (1, 4, 5)
    hidden = (weights.classes[0] @ first.weight[0] + first.bias[0]).clamp(min=0)
    torch.testing.assert_close(generate(weights), hidden @ second.weight[0] + second.bias[0])
    assert run_rounds(toy_setup(FedTGP(hidden=5)), rounds=1).server.state.generator.first.weight.shape == (1, 8, 5)
    assert run_rounds(toy_setup(FedTGP()), rounds=1).server.state.generator.first.weight.shape == (1, 8, 8)


def clusters(cap, rounds=10):
    """Three clients whose two classes lie around (-8, 0) and (8, 0), after some rounds."""
    shifts = [(0, 0.5), (0.5, -0.5), (-0.5, 0.5)]
    graphs = [hand_graph([(x - 8, y), (x + 8, y)], [0, 1], 2) for x, y in shifts]
    method = FedTGP(margin_cap=cap, hidden=16)  # two hidden units, as many as dimensions here, may both be dead
    finished = run_rounds(mirror_setup(method, graphs), rounds=rounds)
    return finished, torch.stack([torch.from_numpy(graph.x) for graph in graphs])


def test_trained_prototypes_tell_separate_clusters_apart():
    finished, sent = clusters(cap=1.0)
    nearest = torch.cdist(sent, finished.server.state.known.prototypes).argmin(2)
    assert nearest.tolist() == [[0, 1]] * 3
    assert float(finished.records["server_loss"]) < 0.05
    untrained, _ = clusters(cap=1.0, rounds=0)
    assert not untrained.server.state.known.present.any()


def test_margin_as_wide_as_the_gap_of_two_classes_holds_the_loss_at_log_two():
    # By the triangle inequality no two prototypes can beat the handicap, so a low loss needs the cap.
    finished, sent = clusters(cap=100.0)
    assert float(finished.records["margin"]) == pytest.approx(16.0)
    assert float(finished.records["server_loss"]) > 0.69
    assert torch.cdist(sent, finished.server.state.known.prototypes).argmin(2).tolist() == [[0, 1]] * 3


def test_server_training_lowers_the_server_loss():
    def losses(epochs):
        setup = toy_setup(FedTGP(server_epochs=epochs, margin_cap=0.5))
        return float(run_rounds(setup, rounds=3).records["server_loss"])

    assert losses(100) < losses(10) < losses(0)


def test_generator_and_its_optimiser_go_on_over_rounds():
    setup = toy_setup(FedTGP(server_epochs=7), epochs=0)
    assert run_rounds(setup, rounds=3).server.state.optimizer.steps.tolist() == [21]
    # Clients that do not train send the same every round, so rounds of few steps are one round of many.
    many = run_rounds(toy_setup(FedTGP(server_epochs=21), epochs=0), rounds=1).server.state
    few = run_rounds(setup, rounds=3).server.state
    assert same(few.generator, many.generator)
    assert not same(run_rounds(setup, rounds=1).server.state.generator, many.generator)


def test_server_trains_as_adam_would():
    setup = toy_setup(FedTGP(server_epochs=5, server_learning_rate=0.02), epochs=0)
    method, server, clients = setup.method, Server.of(setup), Clients(InProcess(setup), 1, [0, 1, 2])
    weights = map_tree(lambda leaf: leaf.clone().requires_grad_(), server.state.generator)
    flat = [weights.classes, *weights.first.values(), *weights.second.values()]
    optimizer = torch.optim.Adam(flat, lr=0.02)
    replies = clients.ask(method.train, server.state.known)
    owned = replies.counts > 0
    margin = method.margin(replies.prototypes, owned)
    for _ in range(5):
        optimizer.zero_grad()
        contrast(replies.prototypes, owned, generate(weights), margin).backward()
        optimizer.step()
    method.round(server, clients)
    assert gap(server.state.generator, map_tree(torch.Tensor.detach, weights)) < 1e-6


@pytest.mark.parametrize(("clients", "classes", "width", "hidden"), [(4, 3, 6, 5), (10, 7, 64, 64), (2, 2, 20, 8)])
def test_gradients_that_are_written_out_are_those_of_autograd(clients, classes, width, hidden):
    random = torch.Generator().manual_seed(classes)
    sent = torch.randn(clients, classes, width, generator=random)
    owned = torch.rand(clients, classes, generator=random) > 0.3
    start = map_tree(lambda leaf: leaf.unsqueeze(0), initial_weights(Generator(classes, width, hidden), 0))
    weights, leaves = trained_tree(start)
    wanted = torch.autograd.grad(contrast(sent, owned, generate(weights), 1.5), leaves)
    flat = dict(flatten(start))
    ours = {path: torch.empty_like(leaf) for path, leaf in flat.items()}
    generator_gradients(flat, contrast_gradient(sent, owned, torch.tensor(1.5)), ours)
    torch.testing.assert_close(list(ours.values()), list(wanted), atol=1e-7, rtol=1e-5)
    generator_gradients(flat, contrast_gradient(sent, owned, torch.tensor(0.0)), ours)
    assert not torch.allclose(ours["classes"], wanted[0], atol=1e-7, rtol=1e-5)


def test_class_that_nobody_has_is_sent_as_absent():
    graphs = [graph for graph in toy_graphs() if (graph.y[graph.train] != 2).all()]
    assert len(graphs) == 1
    known = run_rounds(toy_setup(FedTGP(), graphs=graphs), rounds=2).server.state.known
    assert known.present.tolist() == [True, True, False]
    assert known.prototypes[2].abs().sum() > 0  # the generator makes one all the same


def test_it_is_not_fedproto():
    ours, averaged = run_rounds(toy_setup(FedTGP()), rounds=2), run_rounds(toy_setup(FedProto()), rounds=2)
    assert gap(ours.client(0).model, averaged.client(0).model) > 1e-3
    assert ours.traffic == averaged.traffic
