"""FedNova: cases worked out by hand."""

import pytest
import torch

from graft.methods.fedavg import FedAvg
from graft.methods.fednova import FedNova
from graft.methods.fedprox import FedProx
from graft.methods.scaffold import SCAFFOLD
from tests.methods.quadratic import Parabolas, number_setup
from tests.toy import gap, run_rounds, same, toy_setup


class Normalised(FedNova, Parabolas):
    """FedNova on two parabolas."""


def uneven(method, first, second, epochs, **settings):
    """A federation whose two clients take so many epochs in round 1: that of the first seed that draws these."""
    for seed in range(200):
        setup = number_setup(method, epochs=epochs, least_epochs=1, seed=seed, **settings)
        if setup.fleet([0, 1]).for_call(1, "train").steps.tolist() == [first, second]:
            return setup
    raise AssertionError("no seed draws these")


def x_of(setup, rounds=1):
    return float(run_rounds(setup, rounds).server.state.model.x)


def steps_of(method, first, second, epochs, **settings):
    setup = uneven(method, first, second, epochs, **settings)
    return setup.method.normalised_steps(setup.fleet([0, 1]).for_call(1, "train")).tolist()


def test_one_step_of_one_client_and_two_of_the_other_by_hand():
    """From 1: the first steps by -0.1 to 0.9; the second by 0.9 to 1.9 and by 0.63 to 2.53, over 2 steps 0.765.

    The mean is (0.765 - 0.1) / 2, and the mean number of steps 1.5.
    """
    setup = uneven(Normalised(), 1, 2, 2, start=1.0)
    assert x_of(setup) == pytest.approx(1 + 1.5 * (0.765 - 0.1) / 2, abs=1e-6)
    assert float(run_rounds(setup, 1).records["effective_steps"]) == pytest.approx(1.5)
    assert x_of(uneven(Parabolas(), 1, 2, 2, start=1.0)) == pytest.approx((0.9 + 2.53) / 2, abs=1e-6)


def test_votes_are_those_of_the_experiment():
    """As above, with shares of the nodes in the place of halves."""
    setup = uneven(Normalised(), 1, 2, 2, start=1.0, weight_by="nodes")
    x, nodes = x_of(setup), [graph.nodes for graph in setup.graphs]
    shares = [count / sum(nodes) for count in nodes]
    assert shares[0] != pytest.approx(0.5)
    effective = shares[0] + 2 * shares[1]
    assert x == pytest.approx(1 + effective * (0.765 * shares[1] - 0.1 * shares[0]), abs=1e-6)


def test_where_clients_stay_it_has_the_optimum_of_the_sum_and_fedavg_has_not():
    """With tiny steps, FedNova stays where the mean gradient is 0, at 3; FedAvg where gradients times steps are."""
    ours, plain = Normalised(), Parabolas()
    settings = {"epochs": 6, "least_epochs": 1, "learning_rate": 1e-3, "start": 3.0}
    moved = {}
    for name, method in (("fednova", ours), ("fedavg", plain)):
        setup = number_setup(method, seed=3, **settings)
        steps = [setup.fleet([0, 1]).for_call(number, "train").steps.tolist() for number in range(1, 21)]
        moved[name] = abs(x_of(setup, 20) - 3.0)
    assert len(set(map(tuple, steps))) > 5
    assert moved["fednova"] < 1e-3 < 5e-3 < moved["fedavg"]


def test_steps_of_momentum_count_what_each_carries_on():
    """With 0.9 kept, gradients of 1 move by 1, then 1.9, then 2.71."""
    settings = {"optimizer": "momentum", "optimizer_state": "reset"}
    assert steps_of(Normalised(), 1, 3, 3, **settings) == pytest.approx([1.0, 5.61])
    rho = 0.9
    assert (3 - rho * (1 - rho**3) / (1 - rho)) / (1 - rho) == pytest.approx(5.61)  # as the paper writes it


def test_steps_with_a_pull_count_what_it_takes_back():
    """With mu = 2 and steps of 0.1, each keeps 0.8 of the way so far: 1, 0.8 + 1, ..., (1 - 0.8^3) / 0.2."""
    assert steps_of(Normalised(mu=2.0), 1, 3, 3) == pytest.approx([1.0, 1 + 0.8 + 0.64])


def test_steps_of_sgd_and_adam_count_as_they_are():
    assert steps_of(Normalised(), 2, 4, 4) == [2.0, 4.0]
    assert steps_of(Normalised(mu=2.0), 2, 4, 4, optimizer="adam") == [2.0, 4.0]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_steps_are_how_far_a_constant_gradient_moves_a_client(optimizer):
    class Slope(FedNova):
        def loss(self, fleet, weights, received):  # noqa: ARG002
            pull = 0.5 * self.mu * (weights.x - received.x).square()
            return weights.x + pull

    setup = uneven(Slope(mu=1.0), 2, 5, 5, optimizer=optimizer, optimizer_state="reset")
    finished = run_rounds(setup, 1)
    moved = [-float(finished.client(client).model.x) / 0.1 for client in range(2)]
    assert setup.method.normalised_steps(setup.fleet([0, 1]).for_call(1, "train")).tolist() == pytest.approx(moved)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_with_equal_steps_it_is_fedavg_or_with_a_pull_fedprox(optimizer):
    def after(method, **more):
        return run_rounds(toy_setup(method, optimizer=optimizer, dropout=0.5, **more), rounds=3).server.state

    assert gap(after(FedNova()), after(FedAvg())) < 1e-6
    assert gap(after(FedNova(mu=0.5)), after(FedProx(mu=0.5))) < 1e-6
    apart = {"epochs": 4, "least_epochs": 1}
    assert gap(after(FedNova(), **apart), after(FedAvg(), **apart)) > 1e-4


def test_scaffold_divides_by_the_steps_that_each_client_took():
    """Its controls are mean gradients: 1 of the first client, and of the second the mean of -9 and -6.3."""

    class Controlled(SCAFFOLD, Parabolas):
        pass

    setup = uneven(Controlled(control="steps"), 1, 2, 2, start=1.0)
    finished = run_rounds(setup, 1)
    controls = [float(finished.client(client).control.x) for client in range(2)]
    assert controls == pytest.approx([1.0, -(9.0 + 6.3) / 2])


def test_same_clients_train_as_in_fedavg():
    def after(method):
        return run_rounds(toy_setup(method, epochs=4, least_epochs=1), rounds=1)

    ours, wanted = after(FedNova()), after(FedAvg())
    assert all(same(ours.client(client).model, wanted.client(client).model) for client in range(3))
    assert torch.isfinite(ours.records["effective_steps"])
