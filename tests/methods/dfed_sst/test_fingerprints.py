"""Distances, and what DFed-SST makes of them, against hand-worked cases, networkx and the definitions."""

import itertools

import networkx
import numpy as np
import pytest
import torch

from graft.data.graphs import adjacency, make_graph
from graft.methods.dfed_sst.fingerprints import assumed_classes, fingerprint, scatter
from graft.methods.dfed_sst.paths import Paths
from graft.methods.dfed_sst.selection import adaptive_degree, mixing_shares, similarity, top_mask

SOFT = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.1, 0.9]])


def paths_of(nodes, edges):
    graph = make_graph("toy", np.ones((nodes, 1)), np.array(edges, int).reshape(-1, 2).T, np.zeros(nodes, int))
    matrix = adjacency(nodes, graph.edges)
    return Paths(matrix.indptr, matrix.indices)


def random_paths(nodes, edges, seed):
    """A random graph; about a tenth of its nodes have no neighbour."""
    random = np.random.default_rng(seed)
    return paths_of(nodes, random.choice(random.permutation(nodes)[: max(1, nodes * 9 // 10)], (edges, 2)))


def distances(paths, sources):
    """[sources, nodes], -1 where there is no path."""
    found = np.full((len(sources), paths.nodes), -1)
    found[np.arange(len(sources)), sources] = 0
    for distance, new in paths.waves(np.asarray(sources)):
        bits = np.unpackbits(np.ascontiguousarray(new).view(np.uint8), axis=1, bitorder="little")
        found[bits.T[: len(sources)].astype(bool)] = distance
    return found


def networkx_distances(paths):
    graph = networkx.Graph()
    graph.add_nodes_from(range(paths.nodes))
    rows = np.repeat(np.arange(paths.nodes), np.diff(paths.starts))
    graph.add_edges_from(zip(rows.tolist(), paths.columns.tolist(), strict=True))
    found = np.full((paths.nodes, paths.nodes), -1)
    for source, targets in networkx.all_pairs_shortest_path_length(graph):
        found[source, list(targets)] = list(targets.values())
    return found


def by_definition(apart, classes, soft, disconnected="penalty"):
    """Eqs. 1 to 5 pair by pair."""
    count = soft.shape[1]
    penalty = max(apart.max(), 0) + 1
    mean, rows = np.zeros(count), np.zeros((count, count))
    sizes = np.bincount(classes[classes >= 0], minlength=count)
    for one in range(count):
        pairs = list(itertools.permutations(np.flatnonzero(classes == one), 2))
        far = {pair: apart[pair] for pair in pairs}
        if disconnected == "ignore":
            far = {pair: hops for pair, hops in far.items() if hops >= 0}
        missing = {"penalty": penalty, "zero": 0}.get(disconnected)
        far = {pair: missing if hops < 0 else hops for pair, hops in far.items()}
        if far:
            mean[one] = np.mean(list(far.values()))
            rows[one] = np.mean([(soft[u] + soft[v]) / 2 * hops for (u, v), hops in far.items()], axis=0)
    emphasis = np.log1p(sizes) / np.log1p(sizes).sum()
    return emphasis @ mean, rows


def soft_labels(nodes, classes, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(classes), nodes)


# Distances.


@pytest.mark.parametrize("seed", range(100))
def test_distances_equal_networkx(seed):
    random = np.random.default_rng(seed)
    nodes = int(random.integers(2, 90))
    paths = random_paths(nodes, int(random.integers(0, 2 * nodes)), seed)
    expected = networkx_distances(paths)
    assert np.array_equal(distances(paths, np.arange(nodes)), expected)
    few = random.permutation(nodes)[: max(1, nodes // 3)]
    assert np.array_equal(distances(paths, few), expected[few])
    assert paths.farthest(np.arange(nodes))[0] == max(expected.max(), 0)


def test_searches_in_portions_equal_one_search(monkeypatch):
    paths = random_paths(300, 500, 1)
    classes, soft = np.arange(300) % 3, soft_labels(300, 3)
    whole = fingerprint(paths, classes, soft)
    monkeypatch.setattr("graft.methods.dfed_sst.paths.GATHERED", 1)
    assert len(list(paths.batches(np.arange(300)))) == 5
    parted = fingerprint(paths, classes, soft)
    assert parted.wlsd == whole.wlsd
    assert np.array_equal(parted.cse, whole.cse)


def test_a_source_may_be_named_twice_and_a_gap_is_no_source():
    paths = paths_of(3, [(0, 1), (1, 2)])
    assert distances(paths, np.array([0, 0])).tolist() == [[0, 1, 2]] * 2
    assert not list(paths.waves(np.array([-1, -1])))


# Cases worked out by hand.


@pytest.mark.parametrize(
    ("classes", "wlsd", "cse"),
    [((0, 0, 1, 1), 1.0, [[0.85, 0.15], [0.2, 0.8]]), ((0, 1, 0, 1), 2.0, [[1.2, 0.8], [0.9, 1.1]])],
)
def test_a_path_of_four_nodes(classes, wlsd, cse):
    found = fingerprint(paths_of(4, [(0, 1), (1, 2), (2, 3)]), np.array(classes), SOFT)
    assert found.wlsd == pytest.approx(wlsd)
    assert found.cse == pytest.approx(np.array(cse))


def test_the_two_labellings_of_the_path_are_similar():
    one, other = torch.tensor([[0.85, 0.15, 0.2, 0.8], [1.2, 0.8, 0.9, 1.1]])
    assert similarity(one, other[None]).item() == pytest.approx(0.910172, abs=1e-6)
    assert similarity(one, torch.stack([one, torch.zeros(4)])).tolist() == pytest.approx([1, 0])
    assert similarity(torch.zeros(4), one[None]).item() == 0


@pytest.mark.parametrize(("disconnected", "wlsd"), [("penalty", 2.115772), ("ignore", 1.0), ("zero", 0.628076)])
def test_an_isolated_node(disconnected, wlsd):
    paths = paths_of(5, [(0, 1), (1, 2), (2, 3)])
    classes, soft = np.array([0, 0, 1, 1, 1]), soft_labels(5, 2)
    assert scatter(paths, classes, 2).emphasis == pytest.approx([0.442114, 0.557886], abs=1e-6)
    found = fingerprint(paths, classes, soft, disconnected)
    assert found.wlsd == pytest.approx(wlsd, abs=1e-6)
    assert found.cse == pytest.approx(by_definition(networkx_distances(paths), classes, soft, disconnected)[1])


def test_degrees_and_weights_of_three_peers():
    wlsd = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert adaptive_degree(wlsd, wlsd.expand(3, 3)).tolist() == [0, 1, 2]
    similar = torch.tensor([0.5, 0.9, 1.0], dtype=torch.float64)
    literal = mixing_shares(similar, wlsd, torch.tensor([True, True, False]))
    assert literal.tolist() == pytest.approx([0.251026, 0.748974, 0], abs=1e-6)
    with_self = mixing_shares(similar, wlsd, torch.tensor([True, True, True]))
    assert with_self.tolist() == pytest.approx([0.111984, 0.334122, 0.553893], abs=1e-6)


def test_the_most_similar_peers_come_first_and_of_equal_ones_the_lower_number():
    similar = torch.tensor([[0.5, 0.9, 0.5, 0.1], [0.3, 0.3, 0.3, 0.3]])
    assert top_mask(similar, torch.tensor([2, 3])).tolist() == [
        [True, True, False, False],
        [True, True, True, False],
    ]
    assert not top_mask(similar, torch.tensor([0, 0])).any()


def test_weights_without_any_spread_are_equal_and_nobody_chosen_has_none():
    similar, nothing = torch.tensor([0.1, 0.9, 0.5], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    assert mixing_shares(similar, nothing, torch.tensor([True, False, True])).tolist() == [0.5, 0, 0.5]
    assert mixing_shares(similar, nothing + 1, torch.zeros(3, dtype=torch.bool)).tolist() == [0, 0, 0]


# The definitions, for any graph.


@pytest.mark.parametrize("disconnected", ["penalty", "ignore", "zero"])
@pytest.mark.parametrize("seed", range(12))
def test_fingerprint_equals_its_definition(seed, disconnected):
    random = np.random.default_rng(seed)
    nodes = int(random.integers(3, 40))
    paths = random_paths(nodes, nodes, seed)
    classes, soft = random.integers(-1, 3, nodes), soft_labels(nodes, 4, seed)  # the last class has no node
    classes[0] = 0
    wlsd, cse = by_definition(networkx_distances(paths), classes, soft, disconnected)
    found = fingerprint(paths, classes, soft, disconnected)
    assert found.wlsd == pytest.approx(wlsd)
    assert found.cse == pytest.approx(cse)
    assert not found.cse[3].any()


def test_row_sums_are_the_mean_distances_whatever_the_soft_labels():
    paths, classes = random_paths(60, 80, 3), np.arange(60) % 3
    first, second = (fingerprint(paths, classes, soft_labels(60, 3, seed)) for seed in (1, 2))
    assert np.abs(first.cse.sum(axis=1) - second.cse.sum(axis=1)).max() < 1e-9
    assert scatter(paths, classes, 3).emphasis @ first.cse.sum(axis=1) == pytest.approx(first.wlsd)
    assert np.abs(first.cse - second.cse).max() > 1e-2


def test_other_names_for_the_nodes_change_nothing():
    edges = np.random.default_rng(5).integers(0, 30, (40, 2))
    names = np.random.default_rng(6).permutation(35)
    classes, soft = np.arange(35) % 3, soft_labels(35, 3)
    back = np.argsort(names)
    here = fingerprint(paths_of(35, edges), classes, soft)
    there = fingerprint(paths_of(35, names[edges]), classes[back], soft[back])
    assert there.wlsd == pytest.approx(here.wlsd)
    assert there.cse == pytest.approx(here.cse)
    assert fingerprint(paths_of(35, names[edges]), classes, soft).wlsd != pytest.approx(here.wlsd)


def test_hard_labels_of_one_class_leave_one_number():
    found = fingerprint(paths_of(3, [(0, 1), (1, 2)]), np.ones(3, int), np.eye(3)[[1, 1, 1]])
    assert found.cse[1, 1] == pytest.approx(4 / 3)
    assert np.count_nonzero(found.cse) == 1


def test_lone_nodes_absent_classes_and_graphs_without_edges():
    alone = fingerprint(paths_of(3, [(0, 1), (1, 2)]), np.array([0, 0, 1]), np.eye(2)[[0, 0, 1]])
    assert not alone.cse[1].any()  # one node has no distance, but counts in the emphasis
    assert alone.wlsd == pytest.approx(np.log(3) / np.log(6))
    nobody = fingerprint(paths_of(3, [(0, 1)]), np.full(3, -1), np.eye(3))
    assert nobody.wlsd == 0
    assert not nobody.cse.any()
    edgeless = fingerprint(paths_of(3, []), np.zeros(3, int), np.eye(3))
    assert edgeless.wlsd == 1  # the penalty of a graph without distances
    assert fingerprint(paths_of(3, []), np.zeros(3, int), np.eye(3), "ignore").wlsd == 0


def test_the_penalty_is_that_of_the_whole_graph_not_of_the_nodes_with_a_class():
    paths = paths_of(6, [(0, 1), (1, 2), (2, 3)])
    classes = np.array([-1, -1, 0, -1, 0, -1])  # nodes 2 and 4 are not joined; the longest path is 0 to 3
    assert fingerprint(paths, classes, np.ones((6, 1))).wlsd == 4


def test_which_labels_a_client_may_use():
    truth, soft = np.array([1, 0, 0, 0, 0]), np.eye(2)[[0, 1, 1, 0, 1]]
    masks = np.array([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0]], bool)
    assert assumed_classes(truth, masks, soft, "mixed").tolist() == [1, 1, 1, 0, 1]
    assert assumed_classes(truth, masks, soft, "train").tolist() == [1, -1, -1, -1, -1]
    assert assumed_classes(truth, masks, soft, "oracle").tolist() == [1, 0, 0, -1, -1]


# Sampling.


@pytest.fixture(scope="module")
def sampled():
    """A graph with isolated nodes, its exact distances, and 200 estimates from 20 of about 100 nodes a class."""
    nodes = 300
    paths, classes, soft = random_paths(nodes, 500, 7), np.arange(nodes) % 3, soft_labels(nodes, 3)
    draws = [
        fingerprint(
            paths, classes, soft, exact_up_to=10, sources=20, priority=np.random.default_rng(seed).random(nodes)
        )
        for seed in range(200)
    ]
    return paths, classes, soft, draws


def test_sampled_distances_have_the_stated_error(sampled):
    paths, classes, soft, draws = sampled
    whole = scatter(paths, classes, 3)
    exact = fingerprint(paths, classes, soft).cse.sum(axis=1)
    estimates = np.array([draw.cse.sum(axis=1) for draw in draws])
    for one in range(3):
        means = whole.total[classes == one] / (whole.sizes[one] - 1)
        error = means.std(ddof=1) * np.sqrt((1 - 20 / whole.sizes[one]) / 20)
        assert abs(estimates[:, one] - exact[one]).max() < 4.5 * error
        assert estimates[:, one].std() == pytest.approx(error, rel=0.2)
        assert abs(estimates[:, one].mean() - exact[one]) < 3.5 * error / np.sqrt(len(draws))


def test_all_soft_labels_count_in_a_sample(sampled):
    paths, classes, soft, draws = sampled
    exact = fingerprint(paths, classes, soft).cse
    error = np.mean([np.abs(draw.cse - exact).max() for draw in draws])
    assert error < 0.1 * exact.max()
    assert np.abs(np.mean([draw.cse for draw in draws], axis=0) - exact).max() < 0.02 * exact.max()


def test_a_sample_of_all_nodes_is_exact_and_a_small_one_is_not(sampled):
    paths, classes, soft, _ = sampled
    exact = fingerprint(paths, classes, soft)
    priority = np.random.default_rng(0).permutation(300)
    full = fingerprint(paths, classes, soft, exact_up_to=10, sources=300, priority=priority)
    assert full.wlsd == pytest.approx(exact.wlsd)
    assert full.cse == pytest.approx(exact.cse)
    small = fingerprint(paths, classes, soft, exact_up_to=10, sources=5, priority=priority)
    assert small.wlsd != pytest.approx(exact.wlsd, rel=1e-4)
    assert fingerprint(paths, classes, soft, exact_up_to=300, sources=5, priority=priority).wlsd == exact.wlsd


def test_a_sampled_penalty_is_never_above_the_exact_one():
    paths = random_paths(200, 220, 2)
    longest = paths.farthest(np.arange(200))[0]
    classes = np.zeros(200, int)
    apart = networkx_distances(paths)
    for seed in range(20):
        priority = np.random.default_rng(seed).permutation(200)
        few = scatter(paths, classes, 1, sources=5, priority=priority)
        finite = scatter(paths, classes, 1, "zero", sources=5, priority=priority)
        missing = (apart[np.argsort(priority)[:5]] < 0).sum(axis=0)
        paid = (few.total - finite.total)[missing > 0] / missing[missing > 0]
        assert len(set(paid)) == 1
        assert longest / 2 < paid[0] <= longest + 1


@pytest.mark.parametrize("disconnected", ["penalty", "ignore", "zero"])
@pytest.mark.parametrize("seed", range(20))
def test_kept_distances_give_what_a_search_gives(monkeypatch, seed, disconnected):
    paths = random_paths(70, 60 + 3 * seed, seed)
    classes = np.random.default_rng(seed).integers(-1, 4, 70)
    kept = scatter(paths, classes, 4, disconnected)
    monkeypatch.setattr("graft.methods.dfed_sst.fingerprints.KEPT_UP_TO", -1)
    searched = scatter(paths, classes, 4, disconnected)
    known = classes >= 0
    assert np.array_equal(kept.total[known], searched.total[known])
    assert np.array_equal(kept.pairs, searched.pairs)


def test_all_distances_are_kept_for_a_graph_and_not_for_another():
    one, other = random_paths(40, 50, 1), random_paths(40, 50, 2)
    assert one.table() is one.table()
    apart = networkx_distances(one)
    assert np.array_equal(np.where(np.isfinite(apart), apart, -1), one.table())
    assert not np.array_equal(one.table(), other.table())
