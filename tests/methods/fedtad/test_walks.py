"""Return probabilities of random walks: cases worked out by hand, and the estimate against the exact values."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array

import graft.methods.fedtad.walks as walks
from graft.methods.fedtad.walks import (
    as_scipy,
    cost,
    estimate,
    exact,
    return_probabilities,
    step_matrix,
)
from graft.tensors.randomness import streams
from tests.toy import toy_graph


def graph_of(nodes, *pairs):
    matrix = np.zeros((nodes, nodes))
    for one, other in pairs:
        matrix[one, other] = matrix[other, one] = 1
    return csr_array(matrix)


def draws(seed=0):
    return streams(torch.device("cpu"), seed, [0])


def every(adjacency):
    return np.arange(adjacency.shape[0])


def plainly(adjacency, length, loops=False):
    """The diagonals as they are defined, from dense powers of A D^-1."""
    dense = adjacency.toarray() + (np.eye(adjacency.shape[0]) if loops else 0)
    degree = dense.sum(0)
    transition = np.divide(dense, degree, out=np.zeros_like(dense), where=degree > 0)
    powers = [np.linalg.matrix_power(transition, power) for power in range(1, length + 1)]
    return np.stack([np.diag(power) for power in powers], axis=1)


def random_graph(nodes=60, density=0.06, seed=0):
    half = random_array((nodes, nodes), density=density, rng=np.random.default_rng(seed))
    matrix = ((half + half.T) > 0).astype(float).toarray()
    np.fill_diagonal(matrix, 0)
    return csr_array(matrix)


PATH = graph_of(3, (0, 1), (1, 2))
TRIANGLE = graph_of(3, (0, 1), (1, 2), (0, 2))


def test_path_and_triangle_by_hand():
    found = return_probabilities(PATH, every(PATH), 3, draws())
    np.testing.assert_allclose(found, [[0, 0.5, 0], [0, 1, 0], [0, 0.5, 0]], atol=1e-12)
    found = return_probabilities(TRIANGLE, every(TRIANGLE), 4, draws())
    np.testing.assert_allclose(found, [[0, 0.5, 0.25, 0.375]] * 3, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 5, 6])
@pytest.mark.parametrize("loops", [False, True])
def test_exact_values_are_the_diagonals_of_the_powers_for_the_nodes_asked_for(length, loops):
    adjacency = random_graph()
    nodes = np.array([3, 41, 7])
    found = return_probabilities(adjacency, nodes, length, draws(), loops=loops)
    np.testing.assert_allclose(found, plainly(adjacency, length, loops)[nodes], atol=1e-12)
    assert not np.allclose(found, plainly(adjacency, length, not loops)[nodes], atol=1e-3)


def test_blocks_of_rows_change_nothing(monkeypatch):
    adjacency = random_graph()
    whole = exact(step_matrix(adjacency, False), every(adjacency), 5)
    monkeypatch.setattr(walks, "BLOCK", 100)
    groups = list(walks.blocks(np.full(60, 30.0)))
    assert len(groups) > 10
    assert np.concatenate(groups).tolist() == list(range(60))
    np.testing.assert_array_equal(exact(step_matrix(adjacency, False), every(adjacency), 5), whole)


def test_bound_of_the_cost_counts_walks():
    steps = step_matrix(PATH, False)
    # One step: 1, 2 and 1 walks; two steps: 2, 2 and 2; a matrix of four entries never takes more than four.
    np.testing.assert_array_equal(cost(steps, every(PATH), 3), [3, 4, 3])
    star = step_matrix(graph_of(11, *((0, leaf) for leaf in range(1, 11))), False)
    assert cost(star, np.array([1]), 4)[0] == 1 + 10
    assert cost(star, np.array([0]), 6)[0] == 10 + 10 + 20


def test_estimate_is_taken_above_the_budget_and_only_there():
    adjacency = random_graph()
    nodes = every(adjacency)
    right = plainly(adjacency, 5)
    needed = int(cost(step_matrix(adjacency, False), nodes, 5).sum())
    np.testing.assert_allclose(return_probabilities(adjacency, nodes, 5, draws(), budget=needed), right, atol=1e-12)
    rough = return_probabilities(adjacency, nodes, 5, draws(), budget=needed - 1)
    np.testing.assert_allclose(rough[:, :2], right[:, :2], atol=1e-12)
    assert np.abs(rough[:, 2:] - right[:, 2:]).max() > 1e-4


def stated_error(values, probes):
    """What `estimated` promises, for the values of 3, 4, 5 and 6 steps."""
    v = [np.ones(len(values)), *values.T]
    even = {step: 2 * v[step] ** 2 for step in (4, 6)}
    odd = {step: v[step - 1] * v[step + 1] + v[step] ** 2 for step in (3, 5)}
    return np.sqrt(np.stack([(even | odd)[step] for step in (3, 4, 5, 6)], axis=1) / probes)


def test_estimate_is_unbiased_and_within_its_stated_error():
    adjacency = random_graph(40)
    steps, nodes = step_matrix(adjacency, False), every(adjacency)
    right, probes, repeats = exact(steps, nodes, 6), 64, 200
    found = np.stack([estimate(steps, nodes, 6, draws(seed), probes) for seed in range(repeats)])
    bound = stated_error(right, probes)
    spread = found[:, :, 2:].std(axis=0)
    assert (spread <= 1.25 * bound).all()  # the spread itself is only known to about 5 %
    bias = np.abs(found.mean(axis=0)[:, 2:] - right[:, 2:])
    assert (bias <= 5 * bound / np.sqrt(repeats) + 1e-12).all()
    # The negative control: with a sixteenth of the probes the error is four times as large.
    few = np.stack([estimate(steps, nodes, 6, draws(seed), probes // 16) for seed in range(repeats)])
    assert few[:, :, 2:].std(axis=0).mean() > 3 * spread.mean()


def test_probes_in_blocks_are_as_many_as_were_asked_for(monkeypatch):
    adjacency = random_graph(40)
    steps, nodes = step_matrix(adjacency, False), every(adjacency)
    monkeypatch.setattr(walks, "BLOCK", 400)
    rough = estimate(steps, nodes, 4, draws(), 2000)
    assert (np.abs(rough[:, 3] - exact(steps, nodes, 4)[:, 3]) <= 5 * np.sqrt(2 / 2000) * rough[:, 3] + 1e-9).all()


def test_isolated_node_is_never_back_unless_it_may_stay():
    adjacency = graph_of(3, (0, 1))
    np.testing.assert_array_equal(return_probabilities(adjacency, np.array([2]), 3, draws()), [[0, 0, 0]])
    np.testing.assert_array_equal(return_probabilities(adjacency, np.array([2]), 3, draws(), loops=True), [[1, 1, 1]])
    none = return_probabilities(adjacency, np.array([], dtype=int), 3, draws())
    assert none.shape == (0, 3)


def test_scipy_sees_the_graph_without_its_padding_nodes():
    from graft.graphs.fleet_graph import build_fleet_graph

    graphs = [toy_graph(12), toy_graph(9)]
    small = build_fleet_graph(graphs, torch.device("cpu")).select([1])
    found = as_scipy(small.neighbours, 9, 9)
    assert found.shape == (9, 9)
    assert sorted(zip(*found.nonzero(), strict=True)) == sorted(map(tuple, graphs[1].edges.T.tolist()))
