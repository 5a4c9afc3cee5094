"""Ditto: cases worked out by hand."""

import pytest
import torch

from graft.errors import InputError
from graft.federation.fleet import initial_weights
from graft.methods.ditto import FACTORS, Ditto, best_validated
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.models.architecture import Output
from graft.tensors.trees import Tree, map_tree
from graft.testing.contract import unlabelled
from tests.methods.quadratic import Valley, number_setup
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup


class DittoValley(Ditto, Valley):
    """Both models slide towards 3."""


def numbers(rounds, lam, epochs=2, personal_epochs=0, learning_rate=0.1):
    """Where the global model and a client's own are, which start at 1."""
    method = DittoValley(lam=lam, personal_epochs=personal_epochs)
    setup = number_setup(method, clients=1, start=1.0, epochs=epochs, learning_rate=learning_rate)
    finished = run_rounds(setup, rounds=rounds)
    return float(finished.server.state.model.x), float(finished.client(0).model.x)


def test_two_rounds_by_hand():
    # Own model, first round: 1 + 0.1 * 4, then 1.4 + 0.1 * (3.2 - 2 * 0.4); the pull is to 1, then to 1.72.
    assert numbers(1, lam=2.0) == pytest.approx((1.72, 1.64), abs=1e-6)
    assert numbers(2, lam=2.0) == pytest.approx((2.1808, 2.1008), abs=1e-6)
    assert numbers(2, lam=0.0) == pytest.approx((2.1808, 2.1808), abs=1e-6)


def test_own_model_may_train_for_another_number_of_epochs():
    assert numbers(1, lam=2.0, personal_epochs=1) == pytest.approx((1.72, 1.4), abs=1e-6)
    # (x - 3)^2 + (x - 1)^2 is least at 2.
    assert numbers(1, lam=2.0, personal_epochs=200) == pytest.approx((1.72, 2.0), abs=1e-5)


def test_strong_pull_keeps_the_own_model_at_the_received_one():
    assert numbers(1, lam=1e5, personal_epochs=200, learning_rate=1e-6)[1] == pytest.approx(1.0, abs=1e-4)
    assert numbers(1, lam=0.0, personal_epochs=200, learning_rate=1e-2)[1] > 2.9


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_global_model_is_fedavgs_bit_for_bit_whatever_the_pull(lam, optimizer):
    settings = {"dropout": 0.5, "optimizer": optimizer, "clip_norm": 0.1}
    ours = run_rounds(toy_setup(Ditto(lam=lam), **settings), rounds=3)
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=3)
    assert same(ours.server.state, wanted.server.state)
    assert ours.traffic == wanted.traffic
    assert not same(ours.client(0).model, wanted.client(0).model)


def test_without_pull_the_own_model_is_trained_alone_bit_for_bit():
    wanted = run_rounds(toy_setup(Local()), rounds=3)
    alone, pulled = (run_rounds(toy_setup(Ditto(lam=lam)), rounds=3) for lam in (0.0, 1.0))
    for client in range(3):
        assert same(alone.client(client).model, wanted.client(client).model)
        assert gap(pulled.client(client).model, wanted.client(client).model) > 1e-4


def test_the_stronger_the_pull_the_nearer_are_own_models_to_the_received_one():
    def distance(lam):
        settings = {"optimizer": "sgd", "learning_rate": 0.1, "epochs": 10}
        finished = run_rounds(toy_setup(Ditto(lam=lam), **settings), rounds=2)
        before = run_rounds(toy_setup(Ditto(lam=lam), **settings), rounds=1).server.state.model
        return gap(finished.client(0).model, before)

    assert distance(0.0) > distance(1.0) > distance(5.0) > 0


WIDE = {"clients": 2, "graphs": [toy_graph(40), toy_graph(34, seed=1)], "epochs": 6}  # with 8 and 7 validation nodes


def test_a_client_may_choose_its_pull_on_its_validation_nodes():
    setup = toy_setup(Ditto(lam=0.5, choose=True), **WIDE)
    finished = run_rounds(setup, rounds=4)
    fleet = finished.engine.fleets[0]
    state = fleet.state
    for name, factor in FACTORS.items():  # each candidate is what it would be if nobody chose
        alone = run_rounds(toy_setup(Ditto(lam=factor * 0.5), **WIDE), rounds=4)
        assert same(state.candidates[name], alone.engine.fleets[0].state.model)
        assert same(finished.server.state, alone.server.state)
    scores = {name: fleet.count_validated(fleet.predict(one).logits) for name, one in state.candidates.items()}
    for client in range(2):
        best = max(FACTORS, key=lambda name, client=client: scores[name][client])  # the first of equals
        assert same(
            *(map_tree(lambda leaf, row=client: leaf[row], one) for one in (state.model, state.candidates[best]))
        )


def test_each_client_gets_the_candidate_that_is_best_at_its_own_nodes():
    fleet = toy_setup(Ditto(), **WIDE).fleet([0, 1])
    counts = {"usual": [3, 3], "weak": [4, 3], "strong": [4, 5]}
    models = {name: Tree(x=torch.full((2,), float(place))) for place, name in enumerate(counts)}

    class Counted:
        labels = fleet.labels

        def predict(self, model):
            return Output(model.x, next(name for name in models if models[name] is model))

        def count_validated(self, name):
            return torch.tensor(counts[name])

    assert best_validated(Counted(), Tree(models)).x.tolist() == [1, 2]


def test_a_client_with_few_validation_nodes_keeps_the_usual_pull():
    finished, plain = (run_rounds(toy_setup(Ditto(choose=choose)), rounds=3) for choose in (True, False))
    assert all(same(finished.client(client).model, plain.client(client).model) for client in range(3))
    assert not same(finished.client(0).candidates.weak, finished.client(0).candidates.usual)


def test_what_is_scored_is_the_own_model_and_beside_it_the_global_one():
    setup = toy_setup(Ditto())
    finished = run_rounds(setup, rounds=2)
    fleet = finished.engine.fleets[0]
    assert setup.method.personal(fleet) is fleet.state.model
    assert setup.method.shared(finished.server) is finished.server.state.model
    assert gap(finished.client(0).model, finished.server.state.model) > 1e-3


def test_client_that_is_never_asked_keeps_its_start():
    setup = toy_setup(Ditto(), participation=0.34)  # one client a round
    finished = run_rounds(setup, rounds=1)
    (asked,) = finished.session.participants(1)
    start = initial_weights(setup.models[0], 0)
    assert [same(finished.client(client).model, start) for client in range(3)] == [c != asked for c in range(3)]


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_client_without_labels_follows_the_global_model_by_the_pull_alone(lam):
    graphs = [toy_graph(9), unlabelled(toy_graph(8))]
    settings = {"graphs": graphs, "optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0, "epochs": 3}
    setup = toy_setup(Ditto(lam=lam), **settings)
    start = initial_weights(setup.models[0], 0)
    received = run_rounds(setup, rounds=1).server.state.model
    way = 1 - (1 - 0.1 * lam) ** 3  # in the first round it has the global model already
    wanted = map_tree(lambda old, new: old + way * (new - old), start, received)
    assert gap(run_rounds(setup, rounds=2).client(1).model, wanted) < 1e-6
    assert gap(start, received) > 1e-3


@pytest.mark.parametrize("settings", [{"lam": -1.0}, {"lam": float("inf")}, {"personal_epochs": -1}])
def test_senseless_settings_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        Ditto(**settings)
