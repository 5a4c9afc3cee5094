"""FedGTA: cases worked out by hand."""

import math

import numpy as np
import pytest
import torch

import graft
from graft.data.graphs import make_graph
from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.experiments.build import build_federation, build_setup
from graft.experiments.experiment import make_experiment
from graft.federation.clients import Request
from graft.methods.fedavg import FedAvg
from graft.methods.fedgta import FedGTA, mix, shares
from graft.methods.local import Local
from graft.tensors.trees import Tree, count_bytes, flatten, map_tree, select_clients, stack, weighted_mean
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup


def linked(nodes, edges, classes, train, total=2):
    """A graph by hand; some of its nodes train."""
    masks = {"train": np.isin(np.arange(nodes), train)}
    masks |= dict.fromkeys(("validation", "test"), ~masks["train"])
    return make_graph(
        "hand", np.ones((nodes, 2)), np.asarray(edges, int).reshape(-1, 2).T, np.asarray(classes), total, masks
    )


def fleet_of(*graphs, method=None):
    return toy_setup(method or FedGTA(), models="gcn", graphs=list(graphs)).fleet(list(range(len(graphs))))


def star():
    return linked(4, [(0, 1), (0, 2), (0, 3)], [0, 0, 1, 1], train=[])


@pytest.mark.parametrize(("hub", "wanted"), [((0.5, 0.5), 0.127835), ((1.0, 0.0), 2.207277)])
def test_confidence_at_a_node_of_degree_three(hub, wanted):
    chances = torch.tensor([[hub, (1.0, 0.0), (0.0, 1.0), (1.0, 0.0)]])
    leaves_of_star = 3 * 2 / math.e  # three sure nodes with one neighbour each
    found = float(FedGTA().confidence(fleet_of(star()), chances)) - leaves_of_star
    assert found == pytest.approx(wanted, abs=2e-6)


def test_padding_nodes_and_lonely_clients_have_no_confidence():
    alone = linked(2, [], [0, 1], train=[0])
    sure = torch.tensor([1.0, 0.0]).expand(2, 4, 2)
    assert FedGTA().confidence(fleet_of(star(), alone), sure).tolist() == pytest.approx([6 * 2 / math.e, 0.0], abs=1e-5)


def start_labels():
    """Two linked nodes, the first of which trains: its label, and a prediction for the other."""
    return torch.tensor([[[1.0, 0.0], [0.25, 0.75]]])


def pair(**settings):
    method = FedGTA(**settings)
    return method, fleet_of(linked(2, [(0, 1)], [0, 1], train=[0]), method=method)


def test_no_propagation_leaves_predictions_alone_and_one_step_of_nothing_doubles_labels():
    method, fleet = pair(propagation_steps=0)
    assert torch.equal(method.propagate(fleet, start_labels()), start_labels())
    method, fleet = pair(propagation_steps=1, propagation=0.0)
    assert torch.equal(method.propagate(fleet, start_labels()), start_labels() * torch.tensor([[[2.0], [1.0]]]))


def test_two_steps_of_propagation_by_hand():
    method, fleet = pair(propagation_steps=2)
    first, second = start_labels()[0]
    for _ in range(2):  # both degrees are 2 with the loop, so a neighbourhood is the plain mean
        around = (first + second) / 2
        first, second = (
            0.5 * around + 0.5 * start_labels()[0, 0] + start_labels()[0, 0],
            0.5 * around + 0.5 * start_labels()[0, 1],
        )
    torch.testing.assert_close(method.propagate(fleet, start_labels())[0], torch.stack([first, second]))


def test_training_nodes_know_the_truth_and_others_their_prediction():
    method, fleet = pair(propagation_steps=0)
    logits = torch.tensor([[[-3.0, 3.0], [0.0, math.log(3)]]])
    sharp, soft = method.smoothed(fleet, logits)
    assert sharp[0, 0].tolist() == soft[0, 0].tolist() == [1.0, 0.0]
    chances = torch.tensor([0.25, 0.75])
    torch.testing.assert_close(sharp[0, 1], chances.softmax(0))
    torch.testing.assert_close(soft[0, 1], (chances / 20).softmax(0))


def test_moments_by_hand_without_padding_nodes():
    graphs = [linked(3, [(0, 1)], [0, 1, 0], train=[0]), linked(2, [(0, 1)], [0, 1], train=[0])]
    chances = torch.tensor([[[0.2, 0.8], [0.4, 0.6], [0.9, 0.1]], [[0.2, 0.8], [0.4, 0.6], [9.0, 9.0]]])
    found = {
        kind: FedGTA(moments=kind, orders=2).fingerprint(fleet_of(*graphs), chances)
        for kind in ("raw", "central", "hybrid")
    }
    wanted = {"raw": [0.3, 0.7, 0.1, 0.5], "central": [0.0, 0.0, 0.01, 0.01]}
    for kind, values in wanted.items():
        assert found[kind][1].tolist() == pytest.approx(values, abs=1e-6)
    assert torch.equal(found["hybrid"], torch.cat([found["raw"], found["central"]], dim=1))
    assert found["raw"][0].tolist() == pytest.approx([0.5, 0.5, 1.01 / 3, 1.01 / 3], abs=1e-6)


def test_partners_are_those_above_the_threshold_and_oneself():
    moments = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])  # cosines 0.707, 0.707 and 0
    assert FedGTA().partners(moments).tolist() == [[True, True, False], [True, True, True], [False, True, True]]
    assert torch.equal(FedGTA(threshold=0.8).partners(moments), torch.eye(3).bool())
    twins = torch.rand(50, 7, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    assert torch.equal(FedGTA(threshold=1.0).partners(twins), torch.eye(100).bool())  # rounded cosines may exceed 1
    assert FedGTA(threshold=-1.1).partners(-moments).all()


def test_shares_add_up_to_one_and_are_equal_where_nobody_is_confident():
    partners = torch.tensor([[True, True, False], [True, True, True], [False, True, True]])
    found = shares(partners, torch.tensor([1.0, 3.0, 4.0]))
    torch.testing.assert_close(found[0], torch.tensor([0.25, 0.75, 0.0]).double())
    torch.testing.assert_close(found.sum(1), torch.ones(3).double())
    nobody = shares(partners, torch.tensor([0.0, 0.0, 2.0]))
    assert nobody.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]


def test_permuted_clients_get_permuted_models():
    generator = torch.Generator().manual_seed(0)
    moments, confidence = torch.rand(4, 6, generator=generator), torch.rand(4, generator=generator)
    models = Tree(weight=torch.randn(4, 3, 2, generator=generator), seen=torch.arange(4))
    method, order = FedGTA(threshold=0.8), torch.tensor([2, 0, 3, 1])

    def mixed(places):
        return mix(select_clients(models, places), shares(method.partners(moments[places]), confidence[places]))

    straight, turned = mixed(torch.arange(4)), mixed(order)
    torch.testing.assert_close(turned.weight, straight.weight[order])
    assert not torch.allclose(turned.weight, straight.weight)
    assert turned.seen.tolist() == order.tolist()


def test_identical_clients_get_the_plain_average():
    graphs = [toy_graph(12)] * 3
    ours = run_rounds(toy_setup(FedGTA(), graphs=graphs), rounds=3)
    wanted = run_rounds(toy_setup(FedAvg(), graphs=graphs, weight_by="uniform"), rounds=3).server.state.model
    assert all(gap(select_clients(ours.server.state.models, client), wanted) < 1e-6 for client in range(3))
    others = run_rounds(
        toy_setup(FedGTA(), graphs=[toy_graph(12), toy_graph(12, seed=1), toy_graph(12, seed=2)]), rounds=3
    )
    assert gap(select_clients(others.server.state.models, 0), wanted) > 1e-3


class Sized(FedGTA):
    """Clients are as confident as they are large."""

    def confidence(self, fleet, chances):  # noqa: ARG002
        return fleet.size.float()


def test_everyone_as_partner_and_sizes_as_confidence_is_fedavg():
    ours = run_rounds(toy_setup(Sized(threshold=-1.1), dropout=0.5), rounds=3)
    wanted = run_rounds(toy_setup(FedAvg(), dropout=0.5), rounds=3)
    for client in range(3):
        assert gap(select_clients(ours.server.state.models, client), wanted.server.state.model) < 1e-5
        assert gap(ours.client(client).model, wanted.client(client).model) < 1e-5
    weighted = run_rounds(toy_setup(FedGTA(threshold=-1.1), dropout=0.5), rounds=3)
    assert gap(select_clients(weighted.server.state.models, 0), wanted.server.state.model) > 1e-4


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_nobody_as_partner_is_local_training_bit_for_bit(dropout):
    ours = run_rounds(toy_setup(FedGTA(threshold=1.0), dropout=dropout), rounds=3)
    wanted = run_rounds(toy_setup(Local(), dropout=dropout), rounds=3)
    for client in range(3):
        assert same(ours.client(client).model, wanted.client(client).model)
        assert same(select_clients(ours.server.state.models, client), wanted.client(client).model)
    mixed = run_rounds(toy_setup(FedGTA(threshold=-1.1), dropout=dropout), rounds=3)
    assert not same(mixed.client(0).model, wanted.client(0).model)


def test_every_client_trains_from_its_own_row_of_the_servers_models():
    setup = toy_setup(FedGTA(threshold=1.0), epochs=1, optimizer="sgd", learning_rate=1e-12)
    start = stack([setup.models[0].start(torch.Generator().manual_seed(client)) for client in range(3)])
    finished = run_rounds(setup, rounds=1, state=Tree(models=start))
    for client in range(3):
        assert gap(finished.client(client).model, select_clients(start, client)) < 1e-6
    assert gap(finished.client(0).model, select_clients(start, 1)) > 1e-2


def test_clients_that_were_not_asked_keep_the_model_made_for_them():
    setup = toy_setup(FedGTA(threshold=-1.1), clients=4, participation=0.5)
    finished = run_rounds(setup, rounds=1)
    asked = finished.session.participants(1)
    assert asked != [0, 1]  # or positions and numbers could not be told apart
    start = run_rounds(setup, rounds=0).server.state.models
    for client in range(4):
        moved = gap(select_clients(finished.server.state.models, client), select_clients(start, client))
        assert moved > 1e-3 if client in asked else moved == 0


def test_models_go_to_the_clients_they_were_made_for():
    setup = toy_setup(FedGTA(threshold=1.0), clients=4, participation=0.5)
    finished = run_rounds(setup, rounds=1)
    for client in finished.session.participants(1):
        assert same(select_clients(finished.server.state.models, client), finished.client(client).model)


def test_federation_without_edges_counts_all_partners_alike():
    graphs = [toy_graph(9, edgeless=True), toy_graph(8, edgeless=True)]
    finished = run_rounds(toy_setup(FedGTA(threshold=-1.1), graphs=graphs), rounds=1)
    mean = weighted_mean(stack([finished.client(client).model for client in (0, 1)]), torch.ones(2))
    assert all(gap(select_clients(finished.server.state.models, client), mean) < 1e-6 for client in (0, 1))
    assert finished.records["confidence"].tolist() == [0.0, 0.0]


def test_partners_and_confidence_are_recorded():
    records = run_rounds(toy_setup(FedGTA(threshold=-1.1)), rounds=1).records
    assert records["partners"].tolist() == [3, 3, 3]
    assert all(value > 0 for value in records["confidence"])


@pytest.mark.parametrize(("kind", "length"), [("hybrid", 2 * 10 * 3), ("raw", 10 * 3), ("central", 10 * 3)])
def test_bytes_are_a_model_down_and_a_model_its_moments_and_a_number_up(kind, length):
    finished = run_rounds(toy_setup(FedGTA(moments=kind)), rounds=2)
    model = count_bytes(select_clients(finished.server.state.models, 0))
    assert (finished.traffic.down, finished.traffic.up) == (2 * 3 * model, 2 * 3 * (model + 4 * length + 4))


def test_the_models_made_at_the_server_are_scored():
    settings = {"clients": 3, "partition": "random", "seed": 0, "rounds": 2, "epochs": 2, "device": "cpu"}
    result = graft.run("fedgta", **settings)
    experiment = make_experiment(settings)
    setup = build_setup(experiment, FedGTA(), build_federation(experiment))
    engine, clients = InProcess(setup), [0, 1, 2]

    def accuracy(models):
        asked = Request("score_shared", 2, clients, each={client: select_clients(models, client) for client in clients})
        correct, totals = engine.ask(asked).correct, engine.ask(Request("count", 2, clients)).totals
        return float((correct / totals)[:, 0, 2].double().mean())

    assert result.rounds[-1]["test"] == pytest.approx(accuracy(result.server.models), abs=1e-6)
    trained = stack([result.clients[client].model for client in clients])
    assert result.rounds[-1]["test_trained"] == pytest.approx(accuracy(trained), abs=1e-6)
    assert accuracy(trained) != pytest.approx(accuracy(result.server.models), abs=1e-6)
    assert result.accuracy["test_global"] is None


def test_server_and_clients_share_no_memory():
    finished = run_rounds(toy_setup(FedGTA(threshold=1.0)), rounds=1)
    before = map_tree(torch.clone, finished.server.state.models)
    for fleet in finished.engine.fleets:
        for _, leaf in flatten(fleet.state):
            leaf.fill_(7)
    assert same(finished.server.state.models, before)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("propagation_steps", -1),
        ("orders", 0),
        ("propagation", 1.5),
        ("temperature", 0.0),
        ("threshold", float("nan")),
    ],
)
def test_values_that_make_no_sense_are_refused(field, value):
    with pytest.raises(InputError, match=field):
        FedGTA(**{field: value})
