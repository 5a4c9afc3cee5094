"""Centralised training: one party holds everything."""

import pytest

from graft.federation.clients import Request
from graft.methods.centralised import Centralised
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from tests.toy import SIZES, gap, run_rounds, same, toy_federation, toy_setup


@pytest.mark.parametrize("edges", ["all", "inside"])
@pytest.mark.parametrize("model", ["gcn", "gat", "sage", "gin", "sgc", "mlp"])
def test_with_one_client_centralised_fedavg_and_local_agree_bit_for_bit(model, edges):
    settings = {"clients": 1, "models": model, "dropout": 0.5}
    central = run_rounds(toy_setup(Centralised(edges=edges), **settings), rounds=3).client(0)
    assert same(central, run_rounds(toy_setup(Local(), **settings), rounds=3).client(0))
    averaged = run_rounds(toy_setup(FedAvg(), **settings), rounds=3)
    assert same(central, averaged.client(0))
    assert same(central.model, averaged.server.state.model)
    assert not same(central, run_rounds(toy_setup(Local(), **settings), rounds=2).client(0))


STEPS = {"optimizer": "sgd", "learning_rate": 0.1, "weight_by": "train"}


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("model", ["gcn", "gat", "sage", "gin", "sgc", "mlp", "gcn4"])
def test_union_of_clients_equals_fedavg_with_one_step(model, sparse):
    settings = {"models": model, "sparse": sparse} | STEPS
    union = run_rounds(toy_setup(Centralised(edges="inside"), epochs=1, **settings), rounds=5).client(0).model
    averaged = run_rounds(toy_setup(FedAvg(), epochs=1, **settings), rounds=5).server.state.model
    assert gap(union, averaged) < 1e-6
    by_nodes = run_rounds(toy_setup(FedAvg(), epochs=1, **(settings | {"weight_by": "nodes"})), rounds=5)
    assert gap(union, by_nodes.server.state.model) > 1e-4


def test_union_of_clients_is_neither_fedavg_with_more_steps_nor_training_on_all_edges():
    union = run_rounds(toy_setup(Centralised(edges="inside"), epochs=1, **STEPS), rounds=6).client(0).model
    drifting = run_rounds(toy_setup(FedAvg(), epochs=3, **STEPS), rounds=2).server.state.model
    assert gap(union, drifting) > 1e-4
    full = run_rounds(toy_setup(Centralised(), epochs=1, **STEPS), rounds=6).client(0).model
    assert gap(union, full) > 1e-3


def test_lost_edges_are_those_between_clients():
    federation = toy_federation()
    full, union = federation.pooled("all"), federation.pooled("inside")
    lost = federation.card["edges"]["lost"]
    assert lost == full.edge_count - union.edge_count
    assert union.edge_count == sum(graph.edge_count for graph in federation.clients)
    assert lost > 0


def test_scores_are_those_of_each_client_and_add_up():
    setup = toy_setup(Centralised())
    finished = run_rounds(setup, rounds=1)
    counted = finished.engine.ask(Request("count", 1, [0]))
    assert counted.nodes.flatten().tolist() == list(SIZES)
    clients = toy_federation().clients
    wanted = [[int(mask.sum()) for mask in (graph.train, graph.validation, graph.test)] for graph in clients]
    assert counted.totals[0].tolist() == wanted
    whole = setup.graphs[0]
    assert counted.totals.sum((0, 1)).tolist() == [whole.train.sum(), whole.validation.sum(), whole.test.sum()]
    correct = finished.engine.ask(Request("score", 1, [0])).correct
    assert correct.shape == (1, 3, 3)
    fleet = finished.engine.fleets[0]
    right = fleet.predict(fleet.state.model).logits[0].argmax(1).numpy() == whole.y
    for client in range(3):
        own = toy_federation().membership == client
        assert correct[0, client].tolist() == [
            int((right & own & mask).sum()) for mask in (whole.train, whole.validation, whole.test)
        ]


def test_nothing_is_counted_as_sent():
    finished = run_rounds(toy_setup(Centralised()))
    assert (finished.traffic.up, finished.traffic.down, finished.traffic.peer) == (0, 0, 0)
    assert run_rounds(toy_setup(FedAvg())).traffic.up > 0
