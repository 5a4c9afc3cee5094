"""pFedMe: cases worked out by hand."""

import pytest
import torch

from graft.errors import InputError
from graft.federation.fleet import initial_weights
from graft.methods.fedavg import FedAvg
from graft.methods.pfedme import PFedMe
from graft.testing.contract import unlabelled
from tests.methods.normed import Normed
from tests.methods.quadratic import Parabolas, number_setup
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup


class Enveloped(PFedMe, Parabolas):
    """The loss of a client is its parabola and the pull to the local copy."""


def numbers(rounds=1, epochs=1, **fields):
    """The global model, and the clients' own, of two parabolas; all start at 0, where the first is least."""
    finished = run_rounds(number_setup(Enveloped(**fields), epochs=epochs), rounds=rounds)
    return float(finished.server.state.model.x), [float(finished.client(client).model.x) for client in (0, 1)]


def test_two_local_rounds_of_one_inner_step_by_hand():
    # Second client: 0.1 * 12 = 1.2, the copy goes to 0.6; 1.2 + 0.1 * (8.4 - 2 * 0.6) = 1.92, the copy to 1.26.
    server, own = numbers(epochs=2, lam=2.0, inner_steps=1, local_step=0.5)
    assert own == pytest.approx([0, 1.92], abs=1e-6)
    assert server == pytest.approx(1.26 / 2, abs=1e-6)


def test_local_copy_stands_still_while_the_own_model_takes_its_inner_steps():
    # 1.2, then 1.2 + 0.1 * (8.4 - 2 * 1.2) = 1.8; the copy goes half of that way.
    server, own = numbers(lam=2.0, inner_steps=2, local_step=0.5)
    assert own == pytest.approx([0, 1.8], abs=1e-6)
    assert server == pytest.approx(0.9 / 2, abs=1e-6)


def test_many_inner_steps_solve_the_inner_problem():
    # 3 (x - 4)^2 / 2 + x^2 is least at 12 / 5.
    server, own = numbers(lam=2.0, inner_steps=200, local_step=0.25)
    assert own == pytest.approx([0, 2.4], abs=1e-5)
    assert server == pytest.approx(0.25 * 2.4 / 2, abs=1e-5)


@pytest.mark.parametrize("lam", [2.0, 10.0])
def test_global_model_ends_where_the_sum_of_the_envelopes_is_least(lam):
    # The envelope of c / 2 (x - m)^2 is that parabola with c * lam / (c + lam) for c.
    curvatures = [c * lam / (c + lam) for c in (1, 3)]
    server, own = numbers(rounds=150, lam=lam, inner_steps=100, local_step=0.5)
    assert server == pytest.approx(4 * curvatures[1] / sum(curvatures), abs=1e-4)
    assert abs(server - 3) > 0.1  # which is least for the sum of the losses themselves
    assert own == pytest.approx([lam * server / (1 + lam), (12 + lam * server) / (3 + lam)], abs=1e-3)


@pytest.mark.parametrize("server_step", [0.5, 1.0, 2.0])
def test_server_goes_its_step_towards_the_mean(server_step):
    server, _ = numbers(lam=2.0, inner_steps=2, local_step=0.5, server_step=server_step)
    assert server == pytest.approx(server_step * 0.45, abs=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_with_one_inner_step_and_a_copy_that_follows_at_once_it_is_fedavg_bit_for_bit(model, optimizer):
    settings = {"models": model, "optimizer": optimizer, "dropout": 0.5}
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=3)
    for lam in (0.0, 5.0):  # the pull is zero where every step begins
        ours = run_rounds(toy_setup(PFedMe(lam=lam, inner_steps=1, local_step=1.0), **settings), rounds=3)
        assert same(ours.server.state, wanted.server.state)
        assert all(same(ours.client(client), wanted.client(client)) for client in range(3))
        assert ours.traffic == wanted.traffic
    held = run_rounds(toy_setup(PFedMe(lam=0.0, inner_steps=1, local_step=0.5), **settings), rounds=3)
    assert not same(held.server.state, wanted.server.state)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_without_pull_own_models_train_for_epochs_times_inner_steps(dropout):
    method = PFedMe(lam=0.0, inner_steps=2, local_step=1.0)
    ours = run_rounds(toy_setup(method, epochs=3, dropout=dropout), rounds=2)
    wanted, shorter = (run_rounds(toy_setup(FedAvg(), epochs=epochs, dropout=dropout), rounds=2) for epochs in (6, 3))
    assert same(ours.server.state, wanted.server.state)
    assert not same(ours.server.state, shorter.server.state)


def test_the_stronger_the_pull_the_nearer_are_own_models_to_what_was_sent():
    def distance(lam):
        method = PFedMe(lam=lam, inner_steps=20, local_step=0.1)
        finished = run_rounds(toy_setup(method, optimizer="sgd", learning_rate=0.1, clients=1), rounds=1)
        return gap(finished.client(0).model, finished.server.state.model)

    assert distance(0.0) > distance(1.0) > distance(5.0) > 0


def test_own_models_are_scored_and_the_mean_of_the_copies_is_the_global_one():
    setup = toy_setup(PFedMe())
    finished = run_rounds(setup, rounds=2)
    fleet = finished.engine.fleets[0]
    assert setup.method.personal(fleet) is fleet.state.model
    assert setup.method.shared(finished.server) is finished.server.state.model


def test_clients_that_are_not_asked_keep_their_start_and_those_without_labels_what_they_received():
    setup = toy_setup(PFedMe(), participation=0.34)  # one client a round
    finished = run_rounds(setup, rounds=1)
    (asked,) = finished.session.participants(1)
    start = initial_weights(setup.models[0], 0)
    assert [same(finished.client(client).model, start) for client in range(3)] == [c != asked for c in range(3)]
    mixed = toy_setup(PFedMe(), graphs=[toy_graph(9), unlabelled(toy_graph(8))])
    before = run_rounds(mixed, rounds=1).server.state.model
    assert same(run_rounds(mixed, rounds=2).client(1).model, before)
    assert gap(before, start) > 1e-3


def test_buffers_are_not_pulled_and_are_averaged_as_they_are():
    with torch.random.fork_rng():
        setup = toy_setup(PFedMe(local_step=0.25), 2, Normed(), graphs=[toy_graph(9), toy_graph(8)])
    finished = run_rounds(setup, rounds=1)
    mean = (9 * finished.client(0).model.norm.running_var + 8 * finished.client(1).model.norm.running_var) / 17
    torch.testing.assert_close(finished.server.state.model.norm.running_var, mean)
    steps = setup.training.epochs * setup.method.inner_steps
    assert int(finished.server.state.model.norm.num_batches_tracked) == steps


@pytest.mark.parametrize(
    "settings", [{"lam": -1.0}, {"inner_steps": 0}, {"local_step": 0.0}, {"local_step": 1.5}, {"server_step": 0.0}]
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        PFedMe(**settings)
