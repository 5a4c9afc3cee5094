"""FedDyn: cases worked out by hand."""

import pytest
import torch

from graft.errors import InputError
from graft.methods.fedavg import FedAvg
from graft.methods.feddc import FedDC
from graft.methods.feddyn import FedDyn
from graft.methods.fedprox import FedProx
from graft.tensors.trees import Tree, flatten, map_tree, stack, weighted_mean
from tests.methods.normed import Normed
from tests.methods.quadratic import Parabolas, number_setup
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup


class Tilted(FedDyn, Parabolas):
    """FedDyn on two parabolas."""


def finish(method, rounds, **settings):
    return run_rounds(number_setup(method, **({"epochs": 1} | settings)), rounds=rounds)


def kept(finished):
    """The gradients that all clients keep, stacked."""
    return stack([finished.client(client).gradient for client in finished.engine.members()])


def test_two_rounds_on_two_parabolas_by_hand():
    """From 0, steps of 0.1 lead to 0 and 1.2: gradients are 0 and -0.6, their mean -0.3, and the server has 0.6 + 0.6.

    From 1.2 with these tilts: 1.2 - 0.1 * 1.2 = 1.08, and 1.2 - 0.1 * (3 * (1.2 - 4) + 0.6) = 1.98.
    """
    first, second = (finish(Tilted(alpha=0.5), rounds) for rounds in (1, 2))
    torch.testing.assert_close(kept(first).x, torch.tensor([0.0, -0.6]))
    assert float(first.server.state.gradient.x) == pytest.approx(-0.3)
    assert float(first.server.state.model.x) == pytest.approx(1.2)
    torch.testing.assert_close(kept(second).x, torch.tensor([0.06, -0.99]))
    assert float(second.server.state.gradient.x) == pytest.approx(-0.465)
    assert float(second.server.state.model.x) == pytest.approx(1.53 + 0.93)


def test_tilted_loss_by_hand():
    setup = number_setup(Tilted(alpha=0.5))
    fleet = setup.fleet([0, 1])
    weights, received = Tree(x=torch.tensor([1.0, 2.0])), Tree(x=torch.tensor([5.0, 5.0]))
    gradient = Tree(x=torch.tensor([3.0, -1.0]))
    plain = setup.method.loss(fleet, weights, received)
    tilted = setup.method.tilted_loss(fleet, weights, received, gradient)
    torch.testing.assert_close(tilted - plain, torch.tensor([-3.0 + 0.25 * 16, 2.0 + 0.25 * 9]))


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_it_comes_to_the_optimum_of_the_sum_and_keeps_the_gradients_there(alpha):
    finished = finish(Tilted(alpha=alpha), 300, epochs=3)
    assert float(finished.server.state.model.x) == pytest.approx(3.0, abs=1e-3)
    torch.testing.assert_close(kept(finished).x, torch.tensor([3.0, -3.0]), atol=1e-2, rtol=0)
    assert float(finish(Parabolas(), 300, epochs=3).server.state.model.x) == pytest.approx(2.831897, abs=1e-4)


@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_it_is_feddc_without_correction_seen_from_the_other_side(participation, optimizer):
    """A gradient is minus alpha times a drift."""

    def after(method):
        setup = toy_setup(method, optimizer=optimizer, participation=participation, dropout=0.5, learning_rate=0.05)
        return run_rounds(setup, rounds=3)

    ours, wanted = after(FedDyn(alpha=0.3)), after(FedDC(alpha=0.3, correction="off"))
    assert gap(ours.server.state.model, wanted.server.state.model) < 2e-5
    assert gap(ours.server.state.gradient, map_tree(lambda leaf: -0.3 * leaf, wanted.server.state.drift)) < 1e-5
    other = after(FedDC(alpha=0.3, correction="off", drift=False))
    assert gap(ours.server.state.model, other.server.state.model) > 1e-3


def test_in_the_first_round_clients_train_as_in_fedprox():
    def after(method, rounds=1):
        return run_rounds(toy_setup(method, dropout=0.5), rounds=rounds)

    ours, wanted = after(FedDyn(alpha=0.3)), after(FedProx(mu=0.3))
    assert all(same(ours.client(client).model, wanted.client(client).model) for client in range(3))
    assert not same(ours.client(0).model, after(FedProx(mu=0.2)).client(0).model)


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_server_knows_the_mean_of_all_gradients(participation):
    finished = run_rounds(toy_setup(FedDyn(), participation=participation), rounds=5)
    assert gap(finished.server.state.gradient, weighted_mean(kept(finished), torch.ones(3))) < 1e-5
    assert gap(finished.server.state.gradient, finished.client(0).gradient) > 1e-4


def test_who_does_not_take_part_keeps_its_gradient():
    setup = toy_setup(FedDyn(), participation=0.67)
    finished = run_rounds(setup, rounds=1)
    (absent,) = set(range(3)) - set(finished.session.participants(1))
    assert not any(leaf.any() for _, leaf in flatten(finished.client(absent).gradient))
    present = finished.session.participants(1)[0]
    assert any(leaf.any() for _, leaf in flatten(finished.client(present).gradient))


def test_messages_are_those_of_fedavg():
    ours, wanted = (run_rounds(toy_setup(method), rounds=2).traffic for method in (FedDyn(), FedAvg()))
    assert (ours.down, ours.up) == (wanted.down, wanted.up)


def test_buffers_have_no_gradient():
    with torch.random.fork_rng():
        setup = toy_setup(FedDyn(), 2, Normed(), graphs=[toy_graph(9), toy_graph(8)], optimizer="sgd")
    finished = run_rounds(setup, rounds=2)
    paths = ["norm/weight", "norm/bias", "head/weight", "head/bias"]
    assert [path for path, _ in flatten(finished.client(0).gradient)] == paths
    mean = (finished.client(0).model.norm.running_mean + finished.client(1).model.norm.running_mean) / 2
    torch.testing.assert_close(finished.server.state.model.norm.running_mean, mean)


@pytest.mark.parametrize("value", [0.0, -0.1, float("nan")])
def test_alpha_must_be_above_zero(value):
    with pytest.raises(InputError, match="alpha"):
        FedDyn(alpha=value)
