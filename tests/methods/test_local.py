"""Local training: what nobody else can change."""

from dataclasses import replace

from graft.engines.in_process import InProcess
from graft.federation.clients import Request
from graft.federation.fleet import initial_weights
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from tests.toy import gap, run_rounds, same, toy_graph, toy_graphs, toy_setup


def test_nothing_is_sent():
    local, federated = run_rounds(toy_setup(Local())), run_rounds(toy_setup(FedAvg()))
    assert (local.traffic.up, local.traffic.down, local.traffic.peer) == (0, 0, 0)
    assert federated.traffic.up > 0
    assert not local.server.state


def test_all_epochs_in_one_go_equal_rounds_of_a_few_bit_for_bit():
    rounds = run_rounds(toy_setup(Local(), epochs=3), rounds=4)
    whole = run_rounds(toy_setup(Local(), epochs=12), rounds=1)
    fresh = run_rounds(toy_setup(Local(), epochs=3, optimizer_state="reset"), rounds=4)
    for client in range(3):
        assert same(rounds.client(client), whole.client(client))
        assert gap(fresh.client(client).model, whole.client(client).model) > 1e-4


def test_no_client_depends_on_the_others():
    graphs = toy_graphs()
    settings = {"dropout": 0.5, "models": "gat"}
    usual = run_rounds(toy_setup(Local(), graphs=graphs, **settings))
    fewer = run_rounds(toy_setup(Local(), graphs=graphs[:2], **settings))
    more = run_rounds(toy_setup(Local(), graphs=[*graphs, toy_graph(23, seed=7)], **settings))  # and other padding
    changed = run_rounds(
        toy_setup(Local(), graphs=[graphs[0], replace(graphs[1], x=-graphs[1].x), graphs[2]], **settings)
    )
    for other in (fewer, more, changed):
        assert gap(other.client(0).model, usual.client(0).model) < 1e-5
    assert gap(changed.client(2).model, usual.client(2).model) < 1e-5
    assert gap(changed.client(1).model, usual.client(1).model) > 1e-3


def test_clients_start_together_and_part():
    setup = toy_setup(Local())
    engine = InProcess(setup)
    start = initial_weights(setup.models[0], 0)
    assert all(same(engine.state()[client].model, start) for client in range(3))
    finished = run_rounds(setup, rounds=1, engine=engine)
    assert gap(finished.client(0).model, finished.client(1).model) > 1e-3


def test_every_client_may_have_an_architecture_of_its_own():
    mixed = run_rounds(toy_setup(Local(), clients=5, models="architectures"))
    assert [fleet.clients for fleet in mixed.engine.fleets] == [[0, 1, 2, 3, 4]]
    pure = run_rounds(toy_setup(Local(), clients=5, models="gin"))
    assert gap(mixed.client(3).model, pure.client(3).model) < 1e-5


def test_client_without_training_nodes_keeps_its_start():
    graphs = toy_graphs()
    graphs[1] = replace(graphs[1], train=graphs[1].train & False)
    setup = toy_setup(Local(), graphs=graphs, weight_decay=0.0)
    finished = run_rounds(setup)
    start = initial_weights(setup.models[0], 0)
    assert same(finished.client(1).model, start)
    assert gap(finished.client(0).model, start) > 1e-3
    scores = finished.engine.ask(Request("score", 1, [0, 1, 2]))
    counted = finished.engine.ask(Request("count", 1, [0, 1, 2]))
    assert counted.totals[:, 0].tolist() == [[6, 2, 4], [0, 2, 3], [4, 1, 2]]  # train, validation, test
    assert (scores.correct <= counted.totals).all()


def test_training_lowers_the_loss():
    fleet = run_rounds(toy_setup(Local(), epochs=30), rounds=1).engine.fleets[0]
    before = fleet.cross_entropy(fleet.predict(fleet.initial()).logits)
    after = fleet.cross_entropy(fleet.predict(fleet.state.model).logits)
    assert (after < before).all()
