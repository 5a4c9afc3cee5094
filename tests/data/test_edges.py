"""Weights and times of edges: cleaned with them, and with them wherever they go."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from graft.data import cards
from graft.data.federation import FederationData
from graft.data.graphs import cut, edge_weights, keep_edges, largest_component, make_graph, subgraph
from graft.data.perturbations import Perturbation, assemble, describe, drop_edges, perturb, rewire_edges
from graft.errors import InputError


def weighted(nodes, rows, **more):
    """A graph of rows (source, target, weight)."""
    ends, weights = [[row[0] for row in rows], [row[1] for row in rows]], [row[2] for row in rows]
    return make_graph("g", np.eye(nodes), ends, np.arange(nodes) % 2, weights=weights, **more)


def table(graph):
    """The weight of every edge, by its ends."""
    assert graph.weights.dtype == np.float32
    return dict(zip(map(tuple, graph.edges.T.tolist()), graph.weights.tolist(), strict=True))


def random_graph(nodes=40, edges=150, seed=0):
    """A graph in which the weight of every edge says between which nodes it is, and its time too."""
    random = np.random.default_rng(seed)
    ends = random.integers(0, nodes, (2, edges))
    ends = np.unique(np.sort(ends[:, ends[0] != ends[1]], axis=0), axis=1)
    x = np.stack([np.arange(nodes), np.ones(nodes)], axis=1)
    y, masks = np.arange(nodes) % 3, {"train": np.arange(nodes) % 2, "test": 1 - np.arange(nodes) % 2}
    marks = ends[0] * 1000 + ends[1] + 1
    graph = make_graph("g", x, ends, y, masks=masks, weights=marks, edge_times=marks / 2)
    assert graph.edge_count == ends.shape[1]
    return graph


def marks_of(graph):
    """What the weight of every edge of `random_graph` must be, from the original numbers of its nodes."""
    low, high = np.sort(graph.x[:, 0].astype(int)[graph.edges], axis=0)
    return low * 1000 + high + 1


def test_weights_of_a_symmetric_list_are_those_of_the_pairs():
    assert table(weighted(3, [(0, 1, 2), (1, 2, 3), (1, 0, 2), (2, 1, 3)])) == {
        (0, 1): 2,
        (1, 0): 2,
        (1, 2): 3,
        (2, 1): 3,
    }


def test_weights_of_any_other_list_are_summed():
    # Payments: one of the pairs has the same in both directions, but not every row has its reverse.
    assert table(weighted(3, [(0, 1, 2), (1, 0, 2), (1, 2, 3), (1, 2, 4), (2, 1, 0.5)])) == {
        (0, 1): 4,
        (1, 0): 4,
        (1, 2): 7.5,
        (2, 1): 7.5,
    }
    assert table(weighted(2, [(1, 0, 2)])) == {(0, 1): 2, (1, 0): 2}


def test_repeated_rows_of_a_symmetric_list_are_summed_in_one_direction():
    assert table(weighted(2, [(0, 1, 2), (1, 0, 5), (0, 1, 5), (1, 0, 2)])) == {(0, 1): 7, (1, 0): 7}
    # The same sums in both directions, but of other rows: not symmetric.
    assert table(weighted(2, [(0, 1, 1), (0, 1, 6), (1, 0, 5), (1, 0, 2)])) == {(0, 1): 14, (1, 0): 14}


def test_weights_that_differ_by_rounding_are_one_weight():
    weight = np.float32(0.1)
    assert weighted(2, [(0, 1, weight), (1, 0, np.nextafter(weight, np.float32(1)))]).weights.tolist() == [weight] * 2
    assert weighted(2, [(0, 1, 0.1), (1, 0, 0.1001)]).weights[0] == pytest.approx(0.2001)


def test_zero_weights_and_self_loops_are_no_edges():
    assert table(weighted(3, [(0, 1, 0), (1, 2, 3), (2, 2, 9), (1, 0, 0)])) == {(1, 2): 3, (2, 1): 3}
    assert weighted(2, [(0, 1, 0)]).edges.shape == (2, 0)
    assert weighted(2, [(0, 1, 0)]).weights.shape == (0,)
    assert make_graph("g", np.eye(2), [], [0, 1], weights=[]).weights.shape == (0,)


def test_random_weights_equal_those_of_a_slow_dictionary():
    random = np.random.default_rng(0)
    ends, weights, times = random.integers(0, 12, (2, 400)), random.random(400), random.random(400)
    summed, earliest = {}, {}
    for source, target, weight, time in zip(*ends.tolist(), weights.tolist(), times.tolist(), strict=True):
        if source != target:
            for pair in ((source, target), (target, source)):
                summed[pair] = summed.get(pair, 0) + weight
                earliest[pair] = min(earliest.get(pair, np.inf), time)
    graph = make_graph("g", np.eye(12), ends, np.zeros(12), weights=weights, edge_times=times)
    plain = make_graph("g", np.eye(12), ends, np.zeros(12))
    assert np.array_equal(graph.edges, plain.edges)
    assert table(graph) == pytest.approx(summed)
    assert dict(zip(map(tuple, graph.edges.T.tolist()), graph.edge_times.tolist(), strict=True)) == earliest
    assert plain.weights is None
    assert plain.edge_times is None


def test_times_need_no_weights_and_may_be_dates():
    graph = make_graph("g", np.eye(3), [[0, 1, 2], [1, 0, 1]], [0, 1, 0], edge_times=[5, 3, 4])
    assert graph.weights is None
    assert graph.edge_times.tolist() == [3, 3, 4, 4]
    dates = np.array(["1970-01-02", "1970-01-01T00:00:01.5"], "datetime64[ms]")
    assert make_graph("g", np.eye(2), [], [0, 1], node_times=dates).node_times.tolist() == [86400, 1.5]


BAD = {
    "negative weight": ({"weights": [1, -2]}, "Edge 1 of 'g', between nodes 1 and 2, has weight -2"),
    "weight that is no number": ({"weights": [np.nan, 1]}, "Edge 0 of 'g', between nodes 0 and 1, has weight nan"),
    "infinite weight": ({"weights": [1, np.inf]}, "Edge 1 .* weight inf"),
    "too few weights": ({"weights": [1]}, "each of its 2 edges"),
    "several weights an edge": ({"weights": [[1, 2], [3, 4]]}, "each of its 2 edges"),
    "words for weights": ({"weights": ["a", "b"]}, "each of its 2 edges"),
    "weight too large": ({"weights": [1, 1e300]}, "between nodes 1 and 2 .* too large"),
    "weight too small": ({"weights": [1e-300, 1]}, "between nodes 0 and 1 .* too small"),
    "endless edge time": ({"edge_times": [1, np.inf]}, "edge_times of 'g' must be finite, but that of edge 1 is inf"),
    "too few edge times": ({"edge_times": [1]}, "each of its 2 edges"),
    "missing node time": ({"node_times": [0, np.nan, 1]}, "node_times of 'g' must be finite, but that of node 1"),
    "missing date": ({"node_times": np.array(["2020-01-01", "NaT", "NaT"], "datetime64[D]")}, "that of node 1"),
    "too few node times": ({"node_times": [0, 1]}, "each of its 3 nodes"),
    "equal ids": ({"ids": ["a", "b", "a"]}, "nodes 0 and 2 are both 'a'"),
    "too few ids": ({"ids": ["a", "b"]}, "one for each of its 3 nodes"),
    "too many feature names": ({"feature_names": ["a", "b", "c", "d"]}, "are 4, but it has 3 features"),
    "too few class names": ({"class_names": ["a"]}, "are 1, but it has 2 classes"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_weights_times_and_names_are_refused_with_one_sentence(case):
    change, message = BAD[case]
    with pytest.raises(InputError, match=message):
        make_graph("g", np.eye(3), [[0, 1], [1, 2]], [0, 1, 0], **change)


def test_good_weights_times_and_names_are_not_refused():
    graph = make_graph(
        "g",
        np.eye(3),
        [[0, 1], [1, 2]],
        [0, 1, 0],
        weights=[[1], [2]],
        ids=[7, 8, 9],
        feature_names=["a", "b", "c"],
        class_names=["x", "y"],
        node_times=[1, 2, 3],
        edge_times=[0, -1],
    )
    assert graph.ids.tolist() == ["7", "8", "9"]
    assert graph.weights.tolist() == [1, 1, 2, 2]
    assert graph.edge_times.tolist() == [0, 0, -1, -1]


def test_one_class_alone_is_not_refused():
    assert make_graph("g", np.eye(2), [], [1, 1]).classes == 2


@pytest.mark.parametrize(
    "part",
    [
        lambda graph: subgraph(graph, np.arange(5, 30)),
        largest_component,
        lambda graph: cut(graph, np.arange(40) % 3)[1],
        lambda graph: keep_edges(graph, graph.edges.sum(axis=0) % 2 == 0),
        lambda graph: drop_edges(graph, Fraction(1, 3), np.random.default_rng(0)),
    ],
)
def test_edges_of_a_part_keep_their_weights_and_times(part):
    graph = random_graph()
    smaller = part(graph)
    assert 0 < smaller.edge_count <= graph.edge_count
    assert smaller.weights.tolist() == marks_of(smaller).tolist()
    assert smaller.edge_times.tolist() == (marks_of(smaller) / 2).tolist()


def test_edges_that_replace_others_take_their_weights():
    graph = random_graph()
    rewired = rewire_edges(graph, Fraction(1, 2), np.random.default_rng(0))
    assert sorted(rewired.weights) == sorted(graph.weights)
    assert (rewired.edge_times == rewired.weights / 2).all()
    assert table(rewired) == {(target, source): weight for (source, target), weight in table(rewired).items()}
    moved = rewired.weights != marks_of(rewired)
    assert moved.sum() == 2 * round(graph.edge_count / 2)
    assert np.array_equal(rewired.edges, rewire_edges(bare(graph), Fraction(1, 2), np.random.default_rng(0)).edges)


def bare(graph):
    return replace(graph, weights=None, edge_times=None)


def test_perturbed_parts_make_a_whole_graph_with_their_weights():
    graph, membership = random_graph(), np.arange(40) % 3
    parts = perturb(cut(graph, membership), Perturbation(edge_sparsity=0.5), seed=0)
    whole = assemble(graph, parts, membership)
    assert whole.weights.tolist() == marks_of(whole).tolist()
    assert whole.edge_times.tolist() == (marks_of(whole) / 2).tolist()
    without = assemble(bare(graph), [bare(part) for part in parts], membership)
    assert np.array_equal(whole.edges, without.edges)
    assert without.weights is None
    inside = FederationData(whole, membership, parts, {}).pooled("inside")
    assert inside.weights.tolist() == marks_of(inside).tolist()
    assert inside.edge_count == sum(part.edge_count for part in parts)


def test_hashes_tell_weights_apart_and_a_graph_without_them_has_its_own():
    graph, membership = random_graph(), np.zeros(40, int)
    others = [bare(graph), graph, replace(graph, weights=graph.weights * 2)]
    assert len({cards.data_hash([other], membership) for other in others}) == 3
    assert len({describe([other], Perturbation())["hash"] for other in others}) == 3
    assert edge_weights(bare(graph)).tolist() == [1] * graph.edges.shape[1]


def test_hash_of_a_graph_without_weights_is_what_it_was():
    graph = make_graph("g", [[1.0, 2.0], [3.0, 4.0]], [[0], [1]], [0, 1], masks={"train": [1, 0]})
    assert cards.data_hash([graph], np.zeros(2, int)).startswith("d8de6f29fd346d31")
