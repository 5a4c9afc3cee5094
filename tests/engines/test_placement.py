"""Who goes to which worker."""

import numpy as np

from graft.engines.placement import deal, estimate_costs, fill, share_out
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from tests.toy import toy_setup


def loads(costs, shares):
    return [float(costs[clients].sum()) for clients in shares]


def everyone_once(shares, clients):
    return sorted(np.concatenate(shares).tolist()) == list(range(clients))


def test_dear_clients_are_spread_before_cheap_ones():
    costs = np.array([1.0, 1.0, 4.0, 1.0, 3.0])
    shares = fill(costs, 2)
    assert [clients.tolist() for clients in shares] == [[1, 2], [0, 3, 4]]
    assert loads(costs, shares) == [5.0, 5.0]


def test_no_worker_has_more_than_a_third_above_the_best_possible():
    costs = np.random.default_rng(0).pareto(1.5, 500) + 0.1
    for workers in (2, 3, 7, 16):
        shares = fill(costs, workers)
        assert everyone_once(shares, 500)
        best_possible = max(costs.max(), costs.sum() / workers)
        assert max(loads(costs, shares)) <= (4 / 3) * best_possible
    blocks = np.array_split(np.argsort(costs), workers)  # as many clients each, whatever they cost
    assert max(loads(costs, blocks)) > (4 / 3) * best_possible


def test_very_many_clients_are_dealt_out_in_a_moment_and_evenly():
    costs = np.random.default_rng(0).uniform(1, 2, 100_000)
    shares = deal(costs, 8)
    assert everyone_once(shares, len(costs))
    assert max(loads(costs, shares)) < 1.001 * costs.sum() / 8


def test_there_are_never_more_workers_than_clients():
    assert [clients.tolist() for clients in share_out(toy_setup(FedAvg()), 5)] == [[0], [1], [2]]


def test_larger_graphs_and_attention_cost_more():
    setup = toy_setup(Local(), clients=4, models="gcn,gat", sizes=(12, 12, 8, 8))
    gcn, gat, small_gcn, small_gat = estimate_costs(setup)
    assert gat > gcn > small_gcn
    assert small_gat > small_gcn
