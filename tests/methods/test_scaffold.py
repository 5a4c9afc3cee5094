"""SCAFFOLD: cases worked out by hand."""

import os
from operator import mul

import pytest
import torch

import graft
from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.methods.scaffold import SCAFFOLD, path_length
from graft.tensors.trees import Tree, broadcast_tree, count_bytes, flatten, map_tree, stack, weighted_mean
from tests.methods.normed import Normed
from tests.methods.quadratic import Parabolas, number_setup
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup


class Controlled(SCAFFOLD, Parabolas):
    """SCAFFOLD on two parabolas."""


def x_after(method, rounds, **settings):
    return float(run_rounds(number_setup(method, **({"epochs": 3} | settings)), rounds=rounds).server.state.model.x)


def controls(finished):
    """The controls of all clients, stacked."""
    return stack([finished.client(client).control for client in finished.engine.members()])


def test_three_rounds_on_two_parabolas_by_hand():
    first = run_rounds(number_setup(Controlled(), epochs=3), rounds=1)
    assert [float(first.client(client).model.x) for client in (0, 1)] == pytest.approx([0, 2.628], abs=1e-6)
    assert [float(first.client(client).control.x) for client in (0, 1)] == pytest.approx([0, -8.76], abs=1e-5)
    assert float(first.server.state.control.x) == pytest.approx(-4.38, abs=1e-5)
    assert float(first.server.state.model.x) == pytest.approx(1.314, abs=1e-6)
    second = run_rounds(number_setup(Controlled(), epochs=3), rounds=2)
    assert [float(second.client(client).model.x) for client in (0, 1)] == pytest.approx([2.144886, 2.119482], abs=1e-5)
    assert float(second.server.state.model.x) == pytest.approx(2.132184, abs=1e-5)
    assert x_after(Controlled(), 3) == pytest.approx(2.569630, abs=1e-5)


def test_it_reaches_the_optimum_that_fedavg_misses():
    assert x_after(Controlled(), 100) == pytest.approx(3.0, abs=1e-5)
    assert x_after(Parabolas(), 100) == pytest.approx(2.831897, abs=1e-5)


@pytest.mark.parametrize(("own", "still"), [((3.0, -3.0), True), ((0.0, 0.0), False)])
def test_nothing_moves_at_the_optimum_with_the_gradients_there_as_controls(own, still):
    setup = number_setup(Controlled(), epochs=3)
    engine = InProcess(setup)
    engine.fleets[0].state.control = Tree(x=torch.tensor(own))
    before = Tree(model=Tree(x=torch.tensor(3.0)), control=Tree(x=torch.tensor(0.0)))
    finished = run_rounds(setup, rounds=2, engine=engine, state=map_tree(torch.clone, before))
    assert (gap(finished.server.state, before) < 1e-5) == still
    assert (gap(controls(finished), Tree(x=torch.tensor(own))) < 1e-5) == still


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("model", ["gcn", "gat", "mlp"])
def test_one_local_step_without_controls_is_fedavg_bit_for_bit(model, optimizer):
    settings = {"models": model, "epochs": 1, "optimizer": optimizer, "dropout": 0.5, "weight_by": "uniform"}

    def after(method, rounds):
        return run_rounds(toy_setup(method, **settings), rounds=rounds)

    ours, wanted = after(SCAFFOLD(), 1), after(FedAvg(), 1)
    assert same(ours.server.state.model, wanted.server.state.model)
    assert all(same(ours.client(client).model, wanted.client(client).model) for client in range(3))
    assert not same(after(SCAFFOLD(), 2).server.state.model, after(FedAvg(), 2).server.state.model)


@pytest.mark.parametrize("model", ["gcn", "mlp"])
def test_after_one_local_step_both_options_hold_the_gradient_at_the_received_model(model):
    settings = {"models": model, "epochs": 1, "optimizer": "sgd", "learning_rate": 0.5, "weight_decay": 0.1}
    options = [run_rounds(toy_setup(SCAFFOLD(control=one), **settings), rounds=1) for one in ("gradient", "steps")]
    assert gap(*map(controls, options)) < 1e-5
    setup = toy_setup(SCAFFOLD(), **settings)
    fleet = setup.fleet([0, 1, 2])
    start = map_tree(lambda leaf: leaf.clone().requires_grad_(), fleet.initial())
    decay = sum(0.05 * leaf.square().sum() for _, leaf in flatten(start))  # each step pulls at the weights too
    total = fleet.cross_entropy(fleet.forward(start).logits).sum() + decay
    wanted = torch.autograd.grad(total, [leaf for _, leaf in flatten(start)])
    for (_, found), gradient in zip(flatten(controls(options[0])), wanted, strict=True):
        torch.testing.assert_close(found, gradient, atol=1e-6, rtol=1e-5)
    longer = [
        run_rounds(toy_setup(SCAFFOLD(control=one), **(settings | {"epochs": 3})), rounds=1)
        for one in ("gradient", "steps")
    ]
    assert gap(*map(controls, longer)) > 1e-3


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("model", ["gcn", "mlp"])
def test_one_client_is_local_training_bit_for_bit(model, optimizer):
    settings = {"clients": 1, "models": model, "optimizer": optimizer, "dropout": 0.5, "learning_rate": 0.05}
    ours = run_rounds(toy_setup(SCAFFOLD(), **settings), rounds=4)
    assert same(ours.client(0).model, run_rounds(toy_setup(Local(), **settings), rounds=4).client(0).model)
    assert same(ours.server.state.control, ours.client(0).control)
    assert max(float(leaf.abs().max()) for _, leaf in flatten(ours.server.state.control)) > 1e-3


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("average", ["uniform", "votes"])
def test_servers_control_is_the_mean_of_the_clients(average, optimizer):
    setup = toy_setup(SCAFFOLD(average=average), optimizer=optimizer)
    nodes = torch.tensor([12, 9, 7])
    for rounds in (1, 2, 3):
        finished = run_rounds(setup, rounds=rounds)
        mine, other = (nodes, torch.ones(3)) if average == "votes" else (torch.ones(3), nodes)
        assert gap(finished.server.state.control, weighted_mean(controls(finished), mine)) < 1e-5
        assert gap(finished.server.state.control, weighted_mean(controls(finished), other)) > 1e-4


@pytest.mark.parametrize("average", ["uniform", "votes"])
def test_models_are_averaged_as_controls_are(average):
    finished = run_rounds(toy_setup(SCAFFOLD(average=average)), rounds=1)
    models = stack([finished.client(client).model for client in range(3)])
    votes = {"uniform": torch.ones(3), "votes": torch.tensor([12, 9, 7])}
    for name, weights in votes.items():
        assert (gap(finished.server.state.model, weighted_mean(models, weights)) < 1e-6) == (name == average)


def test_clients_that_never_took_part_have_no_control_and_still_count():
    setup = toy_setup(SCAFFOLD(), participation=0.34)  # one client a round
    finished = run_rounds(setup, rounds=1)
    (asked,) = finished.session.participants(1)
    silent = [client for client in range(3) if client != asked]
    assert not any(leaf.any() for client in silent for _, leaf in flatten(finished.client(client).control))
    third = map_tree(lambda leaf: leaf / 3, finished.client(asked).control)
    assert gap(finished.server.state.control, third) < 1e-7
    assert gap(finished.server.state.control, finished.client(asked).control) > 1e-3
    later = run_rounds(setup, rounds=6)
    assert gap(later.server.state.control, weighted_mean(controls(later), torch.ones(3))) < 1e-5


def test_server_goes_its_step_towards_the_mean():
    settings = {"epochs": 3, "rounds": 1}
    assert x_after(Controlled(server_step=0.5), **settings) == pytest.approx(1.314 / 2, abs=1e-6)
    assert x_after(Controlled(server_step=2.0), **settings) == pytest.approx(1.314 * 2, abs=1e-6)
    assert x_after(Controlled(server_step=0.5), 200) == pytest.approx(3.0, abs=1e-4)


@pytest.mark.parametrize(("option", "noisy"), [("gradient", False), ("steps", True)])
def test_gradient_is_taken_without_dropout(option, noisy):
    setup = toy_setup(SCAFFOLD(control=option), dropout=0.5, optimizer="sgd", epochs=1)
    found = []
    for round in (1, 2):  # other draws, but the same start
        fleet = setup.fleet([0, 1, 2])
        setup.method.start_client(fleet)
        fleet = fleet.for_call(round, "train")
        received = Tree(model=fleet.initial(), control=map_tree(torch.zeros_like, fleet.initial()))
        setup.method.train(fleet, received)
        found.append(fleet.state.control)
    assert same(*found) != noisy


@pytest.mark.parametrize(
    ("optimizer", "option", "other"),
    [("adam", "gradient", "steps"), ("sgd", "steps", "gradient"), ("momentum", "steps", "gradient")],
)
def test_by_itself_it_takes_the_gradient_with_adam_and_the_steps_with_sgd(optimizer, option, other):
    auto, alike, unlike = (
        run_rounds(toy_setup(SCAFFOLD(control=one), optimizer=optimizer), rounds=2) for one in ("auto", option, other)
    )
    assert same(auto.server.state, alike.server.state)
    assert not same(auto.server.state, unlike.server.state)


def heavy_ball(start, velocity, gradient, steps=3, rate=0.1, momentum=0.5):
    """Where the steps end, with what velocity, and the gradients each times how far it moved the model."""
    x, gradients = start, []
    for _ in range(steps):
        gradients.append(gradient(x))
        velocity = momentum * velocity + gradients[-1]
        x -= rate * velocity
    reach = [sum(momentum**later for later in range(steps - step)) for step in range(steps)]
    return x, velocity, sum(map(mul, reach, gradients)) / sum(reach)


def test_with_momentum_a_control_weighs_gradients_by_how_far_they_moved_the_model():
    finished = run_rounds(number_setup(Controlled(), optimizer="momentum", momentum=0.5, epochs=3), rounds=1)
    # The second client has the gradients -12, -8.4 and -4.08, which move it 1.75, 1.5 and 1 times: to 3.768.
    assert float(finished.client(1).model.x) == pytest.approx(3.768, abs=1e-6)
    assert float(finished.client(1).control.x) == pytest.approx(-(21 + 12.6 + 4.08) / 4.25, abs=1e-5)
    assert path_length(3, 0.5) == 4.25
    assert path_length(3, 0.0) == 3
    assert heavy_ball(0.0, 0.0, lambda x: 3 * (x - 4))[2] == pytest.approx(-37.68 / 4.25)


@pytest.mark.parametrize("optimizer_state", ["persistent", "reset"])
def test_the_velocity_of_earlier_rounds_is_no_gradient_of_this_one(optimizer_state):
    settings = {"optimizer": "momentum", "momentum": 0.5, "epochs": 3, "optimizer_state": optimizer_state}
    velocity, control = [0.0, 0.0], [0.0, 0.0]
    model = mean = 0.0
    for rounds in (1, 2, 3):
        finished = run_rounds(number_setup(Controlled(), **settings), rounds=rounds)
        ends, controls = [0.0, 0.0], list(control)
        for client, (curvature, minimum) in enumerate(((1.0, 0.0), (3.0, 4.0))):
            correction, before = mean - control[client], velocity[client] * (optimizer_state == "persistent")
            ends[client], velocity[client], average = heavy_ball(
                model, before, lambda x, a=curvature, m=minimum, c=correction: a * (x - m) + c
            )
            controls[client] = average - correction
        model, mean, control = sum(ends) / 2, sum(controls) / 2, controls
        assert [float(finished.client(client).control.x) for client in (0, 1)] == pytest.approx(control, abs=1e-4)
        assert float(finished.server.state.model.x) == pytest.approx(model, abs=1e-5)


@pytest.mark.parametrize("optimizer_state", ["persistent", "reset"])
def test_with_momentum_it_reaches_the_optimum_and_with_sgds_path_length_it_diverges(optimizer_state, monkeypatch):
    settings = {"optimizer": "momentum", "learning_rate": 0.003, "epochs": 10, "optimizer_state": optimizer_state}
    assert x_after(Controlled(), 60, **settings) == pytest.approx(3.0, abs=1e-4)
    monkeypatch.setattr("graft.methods.scaffold.path_length", lambda steps, momentum: steps)  # noqa: ARG005
    assert abs(x_after(Controlled(), 14, **settings)) > 100


@pytest.mark.skipif(not os.environ.get("GRAFT_DATA"), reason="needs Cora under GRAFT_DATA")
@pytest.mark.parametrize("method", ["scaffold", "feddc"])
def test_on_cora_momentum_does_not_diverge(method):
    settings = {"optimizer": "momentum", "learning_rate": 0.1, "rounds": 60, "evaluate_every": 60}
    result = graft.run(method, "cora", clients=10, partition="louvain", **settings)
    assert result.accuracy["test_global"] > 0.7


def test_change_is_taken_against_the_old_control_and_the_server_control_of_this_round():
    setup = number_setup(Controlled(), epochs=1)
    fleet = setup.fleet([0, 1])
    setup.method.start_client(fleet)
    fleet.state.control = Tree(x=torch.tensor([1.0, 2.0]))
    received = broadcast_tree(Tree(model=Tree(x=torch.tensor(2.0)), control=Tree(x=torch.tensor(0.5))), 2, fleet.device)
    reply = setup.method.train(fleet, received)
    # Gradients at 2 are 2 and -6; steps go along 2 - 1 + 0.5 and -6 - 2 + 0.5; the new controls are the gradients.
    torch.testing.assert_close(reply.model.x, torch.tensor([2 - 0.15, 2 + 0.75]))
    torch.testing.assert_close(fleet.state.control.x, torch.tensor([2.0, -6.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(reply.change.x, torch.tensor([1.0, -8.0]), atol=1e-5, rtol=0)


def test_messages_are_twice_those_of_fedavg():
    ours, wanted = (run_rounds(toy_setup(method), rounds=2) for method in (SCAFFOLD(), FedAvg()))
    model = count_bytes(wanted.server.state.model)
    assert ours.traffic.down == 2 * wanted.traffic.down
    assert ours.traffic.up == wanted.traffic.up + 2 * 3 * model


@pytest.mark.parametrize("option", ["gradient", "steps"])
def test_buffers_have_no_control_and_are_averaged(option):
    with torch.random.fork_rng():
        setup = toy_setup(SCAFFOLD(control=option, server_step=3.0), 2, Normed(), graphs=[toy_graph(9), toy_graph(8)])
    finished = run_rounds(setup, rounds=2)
    assert [path for path, _ in flatten(finished.client(0).control)] == [
        "norm/weight",
        "norm/bias",
        "head/weight",
        "head/bias",
    ]
    state = finished.server.state.model.norm
    assert int(state.num_batches_tracked) == int(finished.client(0).model.norm.num_batches_tracked) > 0
    mean = (finished.client(0).model.norm.running_var + finished.client(1).model.norm.running_var) / 2
    torch.testing.assert_close(state.running_var, mean)


def test_perceptrons_train_in_a_fleet_as_alone_and_score():
    setup = toy_setup(SCAFFOLD(), models="mlp", dropout=0.5)
    fleet, alone = run_rounds(setup, rounds=3), run_rounds(setup, rounds=3, engine=InProcess(setup, alone=True))
    assert gap(fleet.server.state, alone.server.state) < 1e-5
    result = graft.run("scaffold", clients=3, rounds=3, models="mlp", partition="random", seed=0)
    assert result.accuracy["test_global"] > 0.2  # ten classes


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_server_step_must_be_above_zero(value):
    with pytest.raises(InputError, match="server_step"):
        SCAFFOLD(server_step=value)
