"""FedDC: cases worked out by hand."""

import pytest
import torch

import graft
from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.methods.fedavg import FedAvg
from graft.methods.feddc import FedDC
from graft.methods.fedprox import FedProx
from graft.methods.scaffold import SCAFFOLD
from graft.tensors.trees import Tree, count_bytes, flatten, map_tree, stack, weighted_mean
from tests.methods.normed import Normed
from tests.methods.quadratic import Parabolas, number_setup
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup


class Drifting(FedDC, Parabolas):
    """FedDC on two parabolas."""


def x_after(method, rounds, **settings):
    return float(run_rounds(number_setup(method, **({"epochs": 3} | settings)), rounds=rounds).server.state.model.x)


def kept(finished, name):
    """One field of the state of all clients, stacked."""
    return stack([finished.client(client)[name] for client in finished.engine.members()])


def test_first_average_moves_twice_as_far_as_fedavgs():
    assert x_after(Drifting(alpha=0.0, correction="off"), 1) == pytest.approx(2 * 1.314, abs=1e-6)
    assert x_after(Drifting(alpha=0.0, correction="off", drift=False), 1) == pytest.approx(1.314, abs=1e-6)


@pytest.mark.parametrize(
    ("alpha", "values"), [(0.1, (2.599320, 4.279258, 4.549212)), (1.0, (2.352, 3.650304, 3.835805))]
)
def test_three_rounds_on_two_parabolas_by_hand_and_their_limit(alpha, values):
    assert [x_after(Drifting(alpha=alpha), rounds) for rounds in (1, 2, 3)] == pytest.approx(values, abs=1e-5)
    assert x_after(Drifting(alpha=alpha), 200) == pytest.approx(3.0, abs=1e-4)  # the optimum of the mean


def test_without_pull_and_correction_it_ends_where_fedavg_does():
    assert x_after(Drifting(alpha=0.0, correction="off"), 200) == pytest.approx(2.831897, abs=1e-5)
    assert x_after(Drifting(alpha=0.0, correction="on"), 200) == pytest.approx(3.0, abs=1e-4)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_in_the_first_round_clients_train_as_in_fedprox(optimizer):
    settings = {"optimizer": optimizer, "dropout": 0.5, "learning_rate": 0.1}

    def after(method, rounds):
        return run_rounds(toy_setup(method, **settings), rounds=rounds)

    ours, wanted = after(FedDC(alpha=0.3), 1), after(FedProx(mu=0.3), 1)
    assert all(same(ours.client(client).model, wanted.client(client).model) for client in range(3))
    assert not same(ours.client(0).model, after(FedProx(mu=0.2), 1).client(0).model)
    assert not same(after(FedDC(alpha=0.3), 2).client(0).model, after(FedProx(mu=0.3), 2).client(0).model)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("average", ["uniform", "votes"])
def test_without_drift_pull_and_correction_it_is_fedavg_bit_for_bit(average, optimizer):
    weight_by = "uniform" if average == "uniform" else "nodes"
    settings = {"optimizer": optimizer, "dropout": 0.5}
    bare = {"alpha": 0.0, "correction": "off", "drift": False, "average": average}

    def after(method, **more):
        return run_rounds(toy_setup(method, **settings, **more), rounds=3)

    ours, wanted = after(FedDC(**bare)), after(FedAvg(), weight_by=weight_by)
    assert same(ours.server.state, wanted.server.state)
    assert all(same(ours.client(client), wanted.client(client)) for client in range(3))
    for field, value in (("alpha", 0.1), ("correction", "on"), ("drift", True)):
        assert not same(after(FedDC(**(bare | {field: value}))).server.state.model, wanted.server.state.model)


def test_without_drift_and_pull_it_is_scaffold_with_controls_from_steps():
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "dropout": 0.5}
    ours = run_rounds(toy_setup(FedDC(alpha=0.0, drift=False), **settings), rounds=4)
    wanted = run_rounds(toy_setup(SCAFFOLD(control="steps"), **settings), rounds=4)
    assert gap(ours.server.state, wanted.server.state) < 1e-6
    assert gap(kept(ours, "control"), kept(wanted, "control")) < 1e-5
    other = run_rounds(toy_setup(SCAFFOLD(control="gradient"), **settings), rounds=4)
    assert gap(ours.server.state, other.server.state) > 1e-4


def test_clients_that_do_not_move_keep_their_drift_and_the_server_adds_the_mean_drift():
    setup = number_setup(Drifting(alpha=0.0, correction="off"), epochs=3, learning_rate=1e-12)
    engine = InProcess(setup)
    engine.fleets[0].state.drift = Tree(x=torch.tensor([1.0, 4.0]))
    before = Tree(model=Tree(x=torch.tensor(7.0)), drift=Tree(x=torch.tensor(2.5)))
    finished = run_rounds(setup, rounds=1, engine=engine, state=before)
    assert kept(finished, "drift").x.tolist() == [1.0, 4.0]
    assert float(finished.server.state.drift.x) == 2.5
    assert float(finished.server.state.model.x) == 7.0 + 2.5


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_server_knows_the_mean_of_all_drifts_and_controls(participation):
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "participation": participation}
    finished = run_rounds(toy_setup(FedDC(), **settings), rounds=5)
    for name in ("drift", "control"):
        assert gap(finished.server.state[name], weighted_mean(kept(finished, name), torch.ones(3))) < 1e-5
        assert gap(finished.server.state[name], finished.client(0)[name]) > 1e-4


def test_new_model_is_the_mean_of_participants_and_the_mean_drift_of_all():
    setup = toy_setup(FedDC(), participation=0.67)
    finished = run_rounds(setup, rounds=1)
    asked = finished.session.participants(1)
    assert len(asked) == 2
    mean = weighted_mean(stack([finished.client(client).model for client in asked]), torch.ones(2))
    drift = weighted_mean(kept(finished, "drift"), torch.ones(3))
    wanted = map_tree(torch.add, mean, drift)
    assert gap(finished.server.state.model, wanted) < 1e-6
    (absent,) = set(range(3)) - set(asked)
    assert not any(leaf.any() for _, leaf in flatten(finished.client(absent).drift))


def test_drift_is_the_sum_of_all_updates():
    setup = number_setup(Drifting(alpha=0.5), epochs=3)
    engine, starts, total = InProcess(setup), 0.0, torch.zeros(2)
    state = None
    for number in range(1, 4):
        finished = run_rounds(setup, rounds=1, engine=engine, first=number, state=state)
        state = finished.server.state
        total += kept(finished, "model").x - starts
        starts = float(state.model.x)
        torch.testing.assert_close(kept(finished, "drift").x, total)


def test_pull_is_towards_the_received_model_less_the_drift():
    setup = number_setup(Drifting(alpha=0.5))
    fleet = setup.fleet([0, 1])
    weights, received = Tree(x=torch.tensor([1.0, 2.0])), Tree(x=torch.tensor([5.0, 5.0]))
    drift = torch.tensor([3.0, 1.0])
    plain = setup.method.loss(fleet, weights, received)
    pulled = setup.method.drifting_loss(fleet, weights, received, Tree(x=received.x - drift), None)
    torch.testing.assert_close(pulled - plain, 0.25 * torch.tensor([1.0, 4.0]))  # (x + h - w)^2


@pytest.mark.parametrize("correction", ["on", "off"])
def test_with_momentum_it_reaches_its_limit_since_velocity_begins_anew(correction, monkeypatch):
    settings = {"optimizer": "momentum", "learning_rate": 0.01, "epochs": 3, "optimizer_state": "persistent"}
    method = Drifting(alpha=1.0, correction=correction)
    assert x_after(method, 200, **settings) == pytest.approx(3.0, abs=1e-3)
    assert same(
        *(
            run_rounds(number_setup(method, **(settings | {"optimizer_state": state})), rounds=4).server.state
            for state in ("persistent", "reset")
        )
    )
    monkeypatch.setattr(Drifting, "training", lambda self, fleet: fleet.training)  # noqa: ARG005
    assert abs(x_after(method, 200, **settings)) > 1e3


def test_without_drift_the_velocity_is_the_experiments():
    settings = {"optimizer": "momentum", "learning_rate": 0.1}
    ours = run_rounds(toy_setup(FedDC(alpha=0.0, drift=False), **settings), rounds=4)
    wanted = run_rounds(toy_setup(SCAFFOLD(control="steps"), **settings), rounds=4)
    assert gap(ours.server.state, wanted.server.state) < 1e-5
    other = run_rounds(toy_setup(FedDC(alpha=0.0, drift=False), optimizer_state="reset", **settings), rounds=4)
    assert gap(ours.server.state, other.server.state) > 1e-3


@pytest.mark.parametrize(
    ("optimizer", "same_as", "unlike"), [("adam", "off", "on"), ("sgd", "on", "off"), ("momentum", "on", "off")]
)
def test_by_itself_it_corrects_with_sgd_and_not_with_adam(optimizer, same_as, unlike):
    auto, alike, other = (
        run_rounds(toy_setup(FedDC(correction=one), optimizer=optimizer), rounds=3) for one in ("auto", same_as, unlike)
    )
    assert same(auto.server.state.model, alike.server.state.model)
    assert not same(auto.server.state.model, other.server.state.model)


def test_messages_are_twice_those_of_fedavg_or_once_without_correction():
    ours, bare, wanted = (
        run_rounds(toy_setup(method), rounds=2) for method in (FedDC(), FedDC(correction="off"), FedAvg())
    )
    model, asked = count_bytes(wanted.server.state.model), 2 * 3
    assert ours.traffic.down == 2 * wanted.traffic.down
    assert ours.traffic.up == wanted.traffic.up + asked * (model + 4)  # and the length of the drift
    assert (bare.traffic.down, bare.traffic.up) == (wanted.traffic.down, wanted.traffic.up + asked * 4)


def test_length_of_every_drift_is_recorded():
    finished = run_rounds(number_setup(Drifting(alpha=0.0, correction="off"), epochs=3), rounds=1)
    assert finished.records["drift_norm"].tolist() == pytest.approx([0.0, 2.628], abs=1e-6)


def test_buffers_do_not_drift():
    with torch.random.fork_rng():
        setup = toy_setup(FedDC(), 2, Normed(), graphs=[toy_graph(9), toy_graph(8)], optimizer="sgd")
    finished = run_rounds(setup, rounds=2)
    paths = ["norm/weight", "norm/bias", "head/weight", "head/bias"]
    assert [path for path, _ in flatten(finished.client(0).drift)] == paths
    mean = (finished.client(0).model.norm.running_mean + finished.client(1).model.norm.running_mean) / 2
    torch.testing.assert_close(finished.server.state.model.norm.running_mean, mean)


def test_perceptrons_train_and_score():
    result = graft.run("feddc", clients=3, rounds=3, models="mlp", partition="random", seed=0)
    assert result.accuracy["test_global"] > 0.2  # ten classes
    assert len(result.rounds[-1]["details"]["drift_norm"]) == 3


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_alpha_must_not_be_negative(value):
    with pytest.raises(InputError, match="alpha"):
        FedDC(alpha=value)
