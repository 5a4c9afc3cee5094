"""FedAvg: cases worked out by hand."""

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.federation.fleet import initial_weights
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.tensors.trees import count_bytes, flatten, map_tree
from tests.methods.quadratic import Parabolas, number_setup
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup


def test_server_averages_one_and_five_with_weights_three_and_one_to_two():
    class Told(FedAvg):
        """Clients answer 1 and 5, whatever they were sent."""

        def loss(self, fleet, weights, received):  # noqa: ARG002
            return (weights.x - torch.tensor([1.0, 5.0])[fleet.clients]).square()

    # One step of SGD with a rate of 1/2 on (x - a)^2 lands on a; the clients have 9 and 3 nodes.
    def averaged(weight_by):
        setup = number_setup(Told(), sizes=(9, 3), epochs=1, learning_rate=0.5, weight_by=weight_by)
        return float(run_rounds(setup, rounds=1).server.state.model.x)

    assert averaged("nodes") == 2.0
    assert averaged("uniform") == 3.0


def test_clients_drift_to_the_fixed_point_of_two_parabolas_and_not_to_their_optimum():
    finished = run_rounds(number_setup(Parabolas(), epochs=3), rounds=100)
    assert float(finished.server.state.model.x) == pytest.approx(2.831897, abs=1e-5)
    one_step = run_rounds(number_setup(Parabolas(), epochs=1), rounds=100)
    assert float(one_step.server.state.model.x) == pytest.approx(3.0, abs=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_one_client_is_local_training_bit_for_bit(model, dropout):
    settings = {"clients": 1, "models": model, "dropout": dropout}
    federated = run_rounds(toy_setup(FedAvg(), **settings), rounds=3)
    local = run_rounds(toy_setup(Local(), **settings), rounds=3)
    assert same(federated.server.state.model, local.client(0).model)
    assert same(federated.client(0), local.client(0))
    assert not same(run_rounds(toy_setup(Local(), seed=1, **settings), rounds=3).client(0), local.client(0))


def test_identical_clients_agree_with_their_average():
    graph = toy_graph(12)
    finished = run_rounds(toy_setup(FedAvg(), graphs=[graph] * 3), rounds=2)
    for client in range(3):
        assert gap(finished.server.state.model, finished.client(client).model) < 1e-6
    other = run_rounds(toy_setup(FedAvg(), graphs=[graph, graph, toy_graph(12, seed=5)]), rounds=2)
    assert gap(other.server.state.model, other.client(2).model) > 1e-3


def test_average_is_weighted_by_nodes():
    finished = run_rounds(toy_setup(FedAvg()), rounds=1)
    models = [dict(flatten(finished.client(client).model)) for client in range(3)]
    shares = [12 / 28, 9 / 28, 7 / 28]
    for path, leaf in flatten(finished.server.state.model):
        wanted = sum(share * model[path].double() for share, model in zip(shares, models, strict=True))
        torch.testing.assert_close(leaf.double(), wanted, atol=1e-6, rtol=1e-6)
    plain = sum(model["head/weight"] for model in models) / 3
    assert (finished.server.state.model.head.weight - plain).abs().max() > 1e-5


def test_every_client_starts_its_round_from_the_servers_model():
    setup = toy_setup(FedAvg(), epochs=1, optimizer="sgd", learning_rate=1e-12)
    engine = InProcess(setup)
    for fleet in engine.fleets:
        for _, leaf in flatten(fleet.state.model):
            leaf.fill_(100.0)  # what clients held before does not matter
    finished = run_rounds(setup, rounds=1, engine=engine)
    start = initial_weights(setup.models[0], 0)
    assert all(gap(finished.client(client).model, start) < 1e-6 for client in range(3))


def test_server_and_clients_share_no_memory():
    finished = run_rounds(toy_setup(FedAvg()), rounds=1)
    before = map_tree(torch.clone, finished.server.state.model)
    for fleet in finished.engine.fleets:
        for _, leaf in flatten(fleet.state):
            leaf.fill_(7)
    assert same(finished.server.state.model, before)
    single = run_rounds(toy_setup(FedAvg(), clients=1), rounds=1)
    kept = map_tree(torch.clone, single.client(0).model)
    for _, leaf in flatten(single.server.state.model):
        leaf.zero_()
    assert same(single.client(0).model, kept)


def test_bytes_are_one_model_down_and_one_model_and_a_vote_up():
    setup = toy_setup(FedAvg())
    model = count_bytes(initial_weights(setup.models[0], 0))
    assert model == 4 * (6 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3)
    finished = run_rounds(setup, rounds=2)
    assert (finished.traffic.down, finished.traffic.up) == (2 * 3 * model, 2 * 3 * (model + 8))
    half = run_rounds(toy_setup(FedAvg(), participation=0.34), rounds=2)
    assert (half.traffic.down, half.traffic.up) == (2 * model, 2 * (model + 8))


def test_only_participants_have_a_vote():
    setup = toy_setup(FedAvg(), participation=0.34)  # one client a round
    finished = run_rounds(setup, rounds=1)
    agreeing = [gap(finished.server.state.model, finished.client(client).model) == 0 for client in range(3)]
    assert sum(agreeing) == 1


@pytest.mark.parametrize("model", ["gcn", "gat", "sage", "gin", "sgc", "mlp"])
def test_fleet_of_three_equals_three_fleets_of_one(model):
    setup = toy_setup(FedAvg(), models=model, dropout=0.5)
    fleet, alone = run_rounds(setup), run_rounds(setup, engine=InProcess(setup, alone=True))
    assert len(fleet.engine.fleets) == 1
    assert len(alone.engine.fleets) == 3
    assert gap(fleet.server.state, alone.server.state) < 1e-5
    assert (
        gap(fleet.server.state, run_rounds(toy_setup(FedAvg(), models=model, dropout=0.5, seed=1)).server.state) > 1e-3
    )
