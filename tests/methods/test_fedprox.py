"""FedProx: cases worked out by hand."""

import pytest
import torch

from graft.methods.fedavg import FedAvg
from graft.methods.fedprox import FedProx
from graft.tensors.trees import flatten, squared_distance, unflatten
from tests.methods.quadratic import PulledValley, Valley, number_setup
from tests.toy import gap, run_rounds, same, toy_setup


def final(method, **settings):
    """Where one client ends that starts at 1 and slides towards 3."""
    finished = run_rounds(number_setup(method, clients=1, start=1.0, **settings), rounds=1)
    return float(finished.server.state.model.x)


def test_two_steps_by_hand():
    assert final(PulledValley(mu=0.5), epochs=2) == pytest.approx(1.7, abs=1e-6)
    assert final(Valley(), epochs=2) == pytest.approx(1.72, abs=1e-6)


def test_long_training_ends_at_the_minimum_of_loss_and_pull():
    assert final(PulledValley(mu=0.5), epochs=200) == pytest.approx(2.6, abs=1e-5)
    assert final(Valley(), epochs=200) == pytest.approx(3.0, abs=1e-5)


def test_strong_pull_holds_the_client_where_it_began():
    assert final(PulledValley(mu=1e6), epochs=200, learning_rate=1e-7) == pytest.approx(1.0, abs=1e-4)
    assert final(Valley(), epochs=200, learning_rate=1e-2) > 2.9


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_without_pull_it_is_fedavg_bit_for_bit(model, optimizer):
    settings = {"models": model, "optimizer": optimizer, "dropout": 0.5}
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=2)
    ours = run_rounds(toy_setup(FedProx(mu=0.0), **settings), rounds=2)
    assert same(ours.server.state, wanted.server.state)
    assert all(same(ours.client(client), wanted.client(client)) for client in range(3))
    pulled = run_rounds(toy_setup(FedProx(mu=1.0), **settings), rounds=2)
    assert not same(pulled.server.state, wanted.server.state)


@pytest.mark.parametrize("mu", [0.001, 1.0, 1000.0])
def test_one_local_step_is_fedavg_whatever_the_pull(mu):
    def after(method, epochs):
        return run_rounds(toy_setup(method, epochs=epochs, dropout=0.5), rounds=2).server.state

    assert same(after(FedProx(mu=mu), 1), after(FedAvg(), 1))
    assert not same(after(FedProx(mu=mu), 2), after(FedAvg(), 2))


def test_reference_is_a_copy_so_that_the_pull_grows_with_training():
    pulls = []

    class Watched(FedProx):
        def loss(self, fleet, weights, received):
            pulls.append(squared_distance(weights, received).detach())
            return super().loss(fleet, weights, received)

    run_rounds(toy_setup(Watched(mu=0.1), epochs=3), rounds=2)
    first, second, third, next_round, *_ = pulls
    assert not first.any()
    assert (second > 0).all()
    assert (third > second).all()
    assert not next_round.any()  # a new round has a new reference


def test_pull_adds_its_gradient_to_every_weight():
    fleet = toy_setup(FedProx()).fleet([0, 1, 2])
    received = fleet.initial()
    moved = [leaf + 0.5 for _, leaf in flatten(received)]
    paths = [path for path, _ in flatten(received)]

    def gradients(method):
        tree = unflatten({path: leaf.clone().requires_grad_() for path, leaf in zip(paths, moved, strict=True)})
        loss = method.loss(fleet, tree, received)
        return torch.autograd.grad(loss.sum(), [leaf for _, leaf in flatten(tree)])

    for pulled, plain in zip(gradients(FedProx(mu=0.2)), gradients(FedAvg()), strict=True):
        torch.testing.assert_close(pulled - plain, torch.full_like(plain, 0.2 * 0.5), atol=1e-6, rtol=1e-5)


def test_stronger_pull_keeps_clients_closer():
    def drift(mu):
        finished = run_rounds(toy_setup(FedProx(mu=mu), epochs=10, optimizer="sgd", learning_rate=0.1), rounds=1)
        return gap(finished.client(0).model, finished.client(2).model)

    assert drift(0.0) > drift(1.0) > drift(5.0) > 0


def test_messages_are_those_of_fedavg():
    ours, wanted = run_rounds(toy_setup(FedProx())), run_rounds(toy_setup(FedAvg()))
    assert (ours.traffic.up, ours.traffic.down) == (wanted.traffic.up, wanted.traffic.down)
    assert FedProx().mu == 1e-3  # not 0, which is FedAvg
