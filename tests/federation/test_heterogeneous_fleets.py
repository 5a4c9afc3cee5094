"""Methods on mixed fleets: results do not depend on who shares a fleet, and neither does what a checkpoint holds."""

from dataclasses import replace
from functools import cache

import pytest
import torch

import graft
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.federation.clients import Clients
from graft.methods import METHODS
from graft.methods.centralised import Centralised
from graft.methods.fedgkc import FedGKC
from graft.methods.majority import Majority
from graft.tensors.trees import Owners, flatten
from tests.contract import contract_method
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup

MIXED = sorted(
    name
    for name, method in METHODS.items()
    if method.heterogeneous and method not in (Centralised, Majority) and not method.architecture
)
TINY = 1  # byte: every client is a fleet of its own, and state lives in files

every_mixed_method = pytest.mark.parametrize("name", MIXED)
pytestmark = pytest.mark.filterwarnings("ignore::graft.errors.MemoryWarning")


def setup_of(name="fedgkc", clients=7, models="architectures", dropout=0.5, **settings):
    return toy_setup(contract_method(name), clients=clients, models=models, dropout=dropout, **settings)


@cache
def usual_rounds(name, rounds, first=1, participation=1.0):
    """Rounds that many cases are compared with; they read them only."""
    return run_rounds(setup_of(name, participation=participation), rounds=rounds, first=first)


def on_common_paths(first, second):
    """Two states without the optimisers of clients that have not trained: zeros in a fleet, nothing alone."""
    one, other = dict(flatten(first)), dict(flatten(second))
    for mine, yours in ((one, other), (other, one)):
        spare = [path for path in mine if path not in yours]
        assert all(path.startswith("optimizer/") and not mine[path].any() for path in spare)
    return ({path: tree[path] for path in one if path in other} for tree in (one, other))


def assert_alike(first, second, clients=7, least=1e-5):
    for client in range(clients):
        assert gap(*on_common_paths(first.client(client), second.client(client))) < least


def test_the_methods_that_qualify():
    assert MIXED == [
        "fedgkc",
        "fedgkc_alone",
        "fedgkc_paper",
        "fedkd",
        "fedppn",
        "fedproto",
        "fedtgp",
        "fml",
        "local",
        "trust",
    ]


@every_mixed_method
@pytest.mark.parametrize("models", ["architectures", "scales"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_mixed_fleet_equals_its_clients_one_by_one(name, models, participation):
    setup = setup_of(name, models=models, participation=participation)
    together, alone = run_rounds(setup, rounds=3), run_rounds(setup, rounds=3, engine=InProcess(setup, alone=True))
    assert (len(together.engine.fleets), len(alone.engine.fleets)) == (1, 7)
    assert_alike(together, alone)
    other = run_rounds(replace(setup, training=replace(setup.training, learning_rate=0.02)), rounds=3)
    assert max(gap(*on_common_paths(together.client(one), other.client(one))) for one in range(7)) > 1e-3


@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "sgd", "learning_rate": 0.1},
        {"optimizer": "momentum", "learning_rate": 0.1},
        {"optimizer_state": "reset"},
        {"clip_norm": 0.05},
        {"batches": 3},
        {"batches": 3, "clip_norm": 0.05, "optimizer": "momentum"},
    ],
    ids=str,
)
def test_however_clients_train(training):
    setup = setup_of("fedgkc_paper", **training)
    together, alone = run_rounds(setup, rounds=3), run_rounds(setup, rounds=3, engine=InProcess(setup, alone=True))
    assert_alike(together, alone)
    usual = usual_rounds("fedgkc_paper", rounds=3)
    assert gap(together.client(0).model, usual.client(0).model) > 1e-4


def test_kinds_that_begin_to_train_later_have_optimisers_that_have_seen_nothing():
    setup = setup_of("local", participation=0.15)  # one client a round
    together = run_rounds(setup, rounds=6)
    counts = [int(together.client(one).optimizer.model.steps) for one in range(7)]
    assert sum(counts) == 6 * 3
    assert len(set(counts)) > 1
    assert_alike(together, run_rounds(setup, rounds=6, engine=InProcess(setup, alone=True)))


@pytest.mark.parametrize("name", ["fedgkc_paper", "fedkd", "fedproto"])
@pytest.mark.parametrize("participation", [1.0, 0.3])
@pytest.mark.parametrize(
    ("before", "after"), [("mixed", "alone"), ("alone", "mixed"), ("mixed", "small"), ("small", "mixed")]
)
def test_a_run_goes_on_in_fleets_of_any_kind(name, participation, before, after):
    setup = setup_of(name, participation=participation)
    engines = {
        "mixed": lambda: InProcess(setup),
        "alone": lambda: InProcess(setup, alone=True),
        "small": lambda: InProcess(replace(setup, memory=TINY)),
    }
    half = run_rounds(setup, rounds=2, engine=engines[before]())
    engine = engines[after]()
    engine.restore(half.engine.state())
    rest = run_rounds(setup, rounds=2, engine=engine, first=3, state=half.server.state)
    unbroken = usual_rounds(name, rounds=4, participation=participation)
    assert_alike(unbroken, rest)
    assert gap(unbroken.server.state, rest.server.state) < 1e-5
    forgetful = usual_rounds(name, rounds=2, first=3, participation=participation)
    assert gap(unbroken.server.state, forgetful.server.state) > 1e-4


@pytest.mark.parametrize("name", ["fedgkc", "fedproto"])
def test_processes_give_the_same_and_their_state_goes_on_here(name):
    setup = setup_of(name, clients=5)
    workers = Loopback(setup)
    try:
        there = run_rounds(setup, rounds=2, engine=workers)
        state = workers.state()
        here = run_rounds(setup, rounds=2)
        assert_alike(here, there, clients=5)
        assert here.traffic == there.traffic
    finally:
        workers.close()
    engine = InProcess(setup)
    engine.restore(state)
    rest = run_rounds(setup, rounds=1, engine=engine, first=3, state=there.server.state)
    assert_alike(run_rounds(setup, rounds=3), rest, clients=5)


def test_a_clients_state_is_written_the_same_in_every_grouping():
    setup = setup_of("fedgkc")
    states = [
        run_rounds(setup, rounds=1, engine=InProcess(*given, **named)).engine.state()
        for given, named in (((setup,), {}), ((setup,), {"alone": True}), ((replace(setup, memory=TINY),), {}))
    ]
    for client in range(7):
        paths = [[path for path, _ in flatten(state[client])] for state in states]
        assert paths[0] == paths[1] == paths[2]


def test_replies_have_a_row_for_every_client_in_the_order_of_clients():
    setup = setup_of("fedgkc", sizes=(12, 11, 10, 9, 8, 7, 6))
    engine = InProcess(setup)
    seen = []
    ask = engine.ask
    engine.ask = lambda request: seen.append(ask(request)) or seen[-1]
    run_rounds(setup, rounds=1, engine=engine)
    assert seen[0].clients == list(range(7))
    assert seen[0].size.tolist() == [graph.nodes for graph in setup.graphs]
    assert seen[0].copilot.head.weight.shape[0] == 7
    for client in range(7):
        assert torch.equal(seen[0][client].copilot.head.weight, seen[0].copilot.head.weight[client])


def test_losses_are_listed_beside_those_they_belong_to():
    setup = setup_of("local", dropout=0.0)
    engine, alone = InProcess(setup), InProcess(setup, alone=True)
    for each in (engine, alone):
        Clients(each, 1, each.members()).ask(setup.method.train)
    ((_, clients, losses),) = engine.losses()
    assert clients == [0, 5, 1, 6, 2, 3, 4]
    wanted = {client: float(loss) for _, (client,), loss in alone.losses()}
    assert losses.tolist() == pytest.approx([wanted[client] for client in clients], abs=1e-6)


def test_a_client_without_edges_may_share_a_mixed_fleet():
    graphs = [toy_graph(9, seed=1), toy_graph(8, edgeless=True), toy_graph(9, seed=2)]
    finished = run_rounds(toy_setup(FedGKC(), models="gcn,gat,gin", graphs=graphs), rounds=2)
    assert len(finished.engine.fleets) == 1
    assert all(leaf.isfinite().all() for client in range(3) for _, leaf in flatten(finished.client(client)))


def test_results_show_plain_weights(tmp_path):
    settings = {"clients": 5, "models": "architectures", "rounds": 2, "device": "cpu", "width": 8}
    result = graft.run("local", "digits", out=tmp_path / "run", **settings)
    assert set(result.clients[0].model) == {"layer0", "layer1", "head"}
    assert [one["model"] for one in result.summary["per_client"]] == ["gcn", "gat", "sage", "gin", "sgc"]


def test_owners_of_a_leaf_are_told_by_its_path():
    owners = Owners(5, {"@gcn": range(2), "@gat": range(2, 5)})
    assert owners("copilot/layer0/weight") == range(5)
    assert owners("optimizer/model/first/@gat/layer0/weight") == range(2, 5)
    assert owners.rows("model/@gat/head/bias", [0, 2, 4]) == [0, 2]
    assert owners.rows("model/@gcn/head/bias", [2, 3]) == []
    assert owners.select("model/@gat/head/bias", torch.arange(5)).tolist() == [2, 3, 4]
    assert Owners(3)("model/@gcn/head/bias") == range(3)  # no such kind here


def test_equal_runs_are_equal_to_the_last_bit():
    first, second = (run_rounds(setup_of("fedgkc_paper"), rounds=2) for _ in range(2))
    assert all(same(first.client(one), second.client(one)) for one in range(7))
