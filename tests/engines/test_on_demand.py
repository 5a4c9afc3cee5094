"""Clients that are read when they are asked: the same numbers as with all of them here, and nothing of the others."""

import itertools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from graft.data.lazy_graphs import ClientGraphs
from graft.engines import on_demand
from graft.engines.cluster import Cluster
from graft.engines.in_process import InProcess
from graft.engines.on_demand import OnDemand
from graft.federation.clients import Clients
from graft.federation.method import Method, step
from graft.federation.session import Session
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC
from graft.methods.fedkd import FedKD
from graft.methods.fedomd import FedOMD
from graft.methods.fedprox import FedProx
from graft.methods.scaffold import SCAFFOLD
from graft.tensors.trees import Tree, flatten
from graft.testing.local_pool import LocalPool
from tests.toy import gap, run_rounds, run_session, same, toy_graphs, toy_setup

CLIENTS = 10
METHODS = [
    (FedAvg(), "gcn"),
    (FedProx(), "gcn"),
    (SCAFFOLD(), "gcn"),
    (FedGKC(), ["gcn", "gat", "sage"]),
    (FedOMD(), "gcn"),
    (FedKD(), "gcn"),  # some participants are asked before all of them are
]


class CountedGraphs(ClientGraphs):
    """Toy graphs that count how often each is read."""

    def __init__(self, clients):
        self.graphs = toy_graphs(clients)
        self.name, self.features, self.classes = "counted", self.graphs[0].features, self.graphs[0].classes
        self.reads = Counter()

    @property
    def hash(self):
        return "counted"

    def __len__(self):
        return len(self.graphs)

    def read(self, client):
        self.reads[client] += 1
        return self.graphs[client]

    def nodes(self):
        return np.array([graph.nodes for graph in self.graphs])

    def edges(self):
        return np.array([graph.edge_count for graph in self.graphs])


@dataclass(frozen=True)
class Probe(Method):
    """Steps that count how often a client was asked."""

    def start_client(self, fleet):
        super().start_client(fleet)
        fleet.state.asked = torch.zeros(len(fleet.clients), dtype=torch.int64)

    @step
    def tell(self, fleet):
        fleet.state.asked = fleet.state.asked + 1
        return Tree(number=fleet.client_ids, asked=fleet.state.asked)

    @step(pure=True)
    def look(self, fleet):
        return Tree(asked=fleet.state.asked)


def some_of(method, models="gcn", **settings):
    """A federation of which a few clients take part in a round, who are the only ones to be read."""
    setup = toy_setup(method, CLIENTS, models, participation=0.3, dropout=0.5, epochs=2, **settings)
    return replace(setup, on_demand=True)


def probe(clients=CLIENTS):
    graphs = CountedGraphs(clients)
    setup = replace(toy_setup(Probe(), clients), graphs=graphs, on_demand=True, participation=0.3)
    return OnDemand(setup), graphs


def ask(engine, step, members, number=1):
    return Clients(engine, number, members).ask(step)


def states(finished):
    return dict(sorted(finished.engine.state().items()))


@pytest.mark.parametrize(("method", "models"), METHODS, ids=lambda value: getattr(type(value), "__name__", None))
@pytest.mark.parametrize("workers", [0, 3])
def test_rounds_are_those_of_an_engine_that_holds_everybody(method, models, workers):
    setup = some_of(method, models)
    whole = replace(setup, on_demand=False)
    here = run_rounds(whole, 5, InProcess(whole))
    there = run_rounds(setup, 5, Cluster(setup, LocalPool(workers)) if workers else OnDemand(setup))
    took_part = sorted({client for number in range(1, 6) for client in here.session.participants(number)})
    kept = states(there)
    assert list(kept) == took_part
    everybody = here.engine.state()
    for client in took_part:
        ours, theirs = dict(flatten(kept[client])), dict(flatten(everybody[client]))
        # In a fleet of everybody, an optimiser of another architecture may have counted steps.
        assert gap(ours, {path: theirs[path] for path in ours}, relative=True) < 1e-5
    assert gap(here.server.state, there.server.state, relative=True) < 1e-5
    other = replace(setup, seed=1)
    assert gap(here.server.state, run_rounds(other, 5, OnDemand(other)).server.state, relative=True) > 1e-3


@pytest.mark.parametrize("make", [OnDemand, lambda setup: Cluster(setup, LocalPool(2))], ids=["here", "cluster"])
def test_resumed_rounds_are_those_of_an_unbroken_run_bit_for_bit(make):
    setup = some_of(SCAFFOLD())
    unbroken, half = run_rounds(setup, 5, make(setup)), run_rounds(setup, 3, make(setup))
    session = Session(setup, make(setup))
    session.restore(half.session.state())
    resumed = run_session(session, first=4, rounds=2)
    assert states(unbroken).keys() == states(resumed).keys()
    assert all(same(state, resumed.engine.state()[client]) for client, state in states(unbroken).items())
    assert same(unbroken.server.state, resumed.server.state)
    assert not same(unbroken.server.state, half.server.state)


def test_only_clients_that_are_drawn_are_read_and_those_who_stay_not_again():
    graphs = CountedGraphs(CLIENTS)
    setup = replace(some_of(FedAvg()), graphs=graphs)
    session = Session(setup, OnDemand(setup))
    drawn = [session.participants(number) for number in (1, 2, 3, 4)]
    for number in (1, 2, 3, 4):
        session.round(number)
    expected = Counter(drawn[0])
    for before, now in itertools.pairwise(drawn):
        expected.update(set(now) - set(before))
    assert graphs.reads == expected
    assert set(graphs.reads) == set().union(*drawn) != set(range(CLIENTS))


def test_scores_and_counts_are_those_of_the_participants():
    setup = some_of(FedAvg())
    whole = replace(setup, on_demand=False)
    sessions = Session(whole, InProcess(whole)), Session(setup, OnDemand(setup))
    everybody, some = (session.round(1) for session in sessions)
    drawn = some.facts.participants
    assert everybody.facts.scored is None
    assert some.facts.scored == drawn == sessions[0].participants(1)
    assert torch.equal(everybody.tensors.correct.own[drawn], some.tensors.correct.own)
    nodes, totals = sessions[0].count_nodes()
    assert torch.equal(nodes[drawn], some.tensors.counts.nodes)
    assert torch.equal(totals[drawn], some.tensors.counts.totals)
    assert "counts" not in everybody.tensors
    assert all(len(count) == 0 for count in sessions[1].count_nodes())
    assert sessions[1].round(2, evaluate=False).facts.scored is None


def test_a_client_that_comes_back_goes_on_with_its_state_and_its_optimiser():
    engine, _ = probe()
    assert ask(engine, Probe().tell, [1, 4]).asked.tolist() == [1, 1]
    assert ask(engine, Probe().tell, [2], number=2).asked.tolist() == [1]
    assert ask(engine, Probe().tell, [2, 4], number=3).asked.tolist() == [2, 2]
    setup = some_of(FedAvg())
    finished = run_rounds(setup, 6, OnDemand(setup))
    rounds = Counter(client for number in range(1, 7) for client in finished.session.participants(number))
    steps = {client: int(state.optimizer.model.steps) for client, state in finished.engine.state().items()}
    assert steps == {client: 2 * count for client, count in rounds.items()}
    assert max(rounds.values()) > 1


def test_asking_some_participants_and_then_all_does_not_read_or_start_any_twice(monkeypatch):
    started = []
    monkeypatch.setattr(on_demand, "InProcess", lambda setup: started.append(list(setup.numbers)) or InProcess(setup))
    engine, graphs = probe()
    for members in ([1, 3], [3], [1, 3, 5], [5], [1, 3, 5], [3, 5]):
        ask(engine, Probe().tell, members)
    assert started == [[1, 3], [1, 3, 5]]
    ask(engine, Probe().tell, [7], number=2)
    assert started[2:] == [[7]]  # those of the round before are put away
    ask(engine, Probe().tell, [1, 7], number=2)
    assert started[3:] == [[1, 7]]
    assert graphs.reads == {1: 2, 3: 1, 5: 1, 7: 1}
    assert {client: int(state.asked) for client, state in engine.state().items()} == {1: 4, 3: 5, 5: 4, 7: 2}


@pytest.mark.filterwarnings("ignore::graft.errors.MemoryWarning")
def test_who_does_not_fit_into_memory_comes_some_at_a_time():
    setup = some_of(FedAvg())
    small = replace(setup, memory=1)
    roomy, cramped = run_rounds(setup, 3, OnDemand(setup)), run_rounds(small, 3, OnDemand(small))
    assert gap(states(roomy), states(cramped)) < 1e-6
    assert cramped.engine._here is None
    assert len(cramped.engine._graphs) == 1


def test_everybody_can_be_asked():
    engine, graphs = probe()
    assert Clients(engine, 1, [3]).everyone.ask(Probe().tell).number.tolist() == list(range(CLIENTS))
    assert graphs.reads == dict.fromkeys(range(CLIENTS), 1)


def test_who_is_only_looked_at_leaves_no_state():
    engine, _ = probe()
    ask(engine, Probe().tell, [2])
    assert ask(engine, Probe().look, [2, 6]).asked.tolist() == [1, 0]
    assert set(engine.state()) == {2}


@pytest.mark.parametrize("make", [OnDemand, lambda setup: Cluster(setup, LocalPool(2))], ids=["here", "cluster"])
def test_a_copy_of_some_clients_stays_as_it_was_and_strangers_are_as_they_begin(make):
    setup = some_of(FedAvg())
    finished = run_rounds(setup, 2, make(setup))
    kept = states(finished)
    known, stranger = min(kept), next(client for client in range(CLIENTS) if client not in kept)
    copied = finished.engine.copy_state(["model"], [known, stranger])
    assert set(copied) == {known, stranger}
    before = copied[known]
    assert list(before) == ["model"]
    assert same(before.model, kept[known].model)
    assert same(copied[stranger].model, InProcess(replace(setup, on_demand=False)).state()[stranger].model)
    later = run_session(finished.session, first=3, rounds=8)
    assert same(copied[known], before)
    assert not same(later.engine.state()[known].model, before.model)
    assert set(finished.engine.state()) >= set(kept)


def test_a_cluster_fetches_only_states_that_changed():
    setup = some_of(FedAvg())
    pool = LocalPool(2)
    fetched = []
    for worker in pool.workers:
        worker.read_states = lambda clients, read=worker.read_states: fetched.extend(clients) or read(clients)
    finished = run_rounds(setup, 2, Cluster(setup, pool))
    finished.engine.state()
    assert sorted(fetched) == sorted({*finished.session.participants(1), *finished.session.participants(2)})
    fetched.clear()
    finished.engine.state()
    assert not fetched
    finished.session.round(3)
    finished.engine.state()
    assert sorted(fetched) == finished.session.participants(3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("method", "models"), METHODS, ids=lambda value: getattr(type(value), "__name__", None))
def test_rounds_on_a_gpu_are_those_of_an_engine_that_holds_everybody(method, models):
    setup = replace(some_of(method, models), device=torch.device("cuda"))
    whole = replace(setup, on_demand=False)
    here, there = run_rounds(whole, 4, InProcess(whole)), run_rounds(setup, 4, OnDemand(setup))
    assert not there.engine._here._steps  # nothing is captured for so few calls
    everybody = here.engine.state()
    for client, state in there.engine.state().items():
        ours, theirs = dict(flatten(state)), dict(flatten(everybody[client]))
        assert gap(ours, {path: theirs[path].cpu() for path in ours}, relative=True) < 1e-4
    assert gap(here.server.state, there.server.state, relative=True) < 1e-4
    resumed = Session(setup, OnDemand(setup))
    resumed.restore(there.session.state())
    assert resumed.round(5).facts.scored == resumed.participants(5)
