import numpy as np
import pytest
from scipy.sparse import csr_array, issparse

from graft.data.graphs import cut, largest_component, make_graph, normalise, subgraph
from graft.errors import InputError


def test_edges_become_symmetric_sorted_and_unique_without_loops():
    graph = make_graph("g", np.ones((3, 1)), [[2, 0, 1, 1, 2], [0, 2, 1, 0, 0]], [0, 1, 0])
    assert graph.edges.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert graph.edges.dtype == np.int64
    assert graph.edge_count == 2
    assert (graph.nodes, graph.features, graph.classes) == (3, 1, 2)


def test_random_edges_equal_those_of_a_slow_set(toy):
    pairs = np.random.default_rng(0).integers(0, 30, (200, 2))
    wanted = sorted({(a, b) for a, b in pairs.tolist() if a != b} | {(b, a) for a, b in pairs.tolist() if a != b})
    assert list(zip(*toy(30, pairs).edges.tolist(), strict=True)) == wanted


def test_unsigned_and_empty_edges_are_read():
    assert make_graph("g", np.ones((2, 1)), np.array([[1], [0]], np.uint8), [0, 1]).edges.tolist() == [[0, 1], [1, 0]]
    assert make_graph("g", np.ones((2, 1)), [], [0, 1]).edges.shape == (2, 0)


def test_missing_labels_become_minus_one():
    assert make_graph("g", np.ones((3, 1)), [], [1.0, np.nan, -1.0]).y.tolist() == [1, -1, -1]
    assert make_graph("g", np.ones((2, 1)), [], [[1], [0]]).y.tolist() == [1, 0]


def test_features_are_sparse_at_one_tenth_and_dense_above():
    x = np.zeros((10, 2))
    x[:2, 0] = 3
    assert issparse(make_graph("g", x, [], np.zeros(10)).x)
    x[2, 0] = 3
    assert not issparse(make_graph("g", x, [], np.zeros(10)).x)
    assert not issparse(make_graph("g", csr_array(x), [], np.zeros(10)).x)


def test_cleaning_leaves_a_sparse_matrix_of_the_user_alone():
    mine = csr_array((np.array([1.0, 0.0]), np.array([0, 5]), np.array([0, 2])), shape=(1, 40))
    assert make_graph("g", mine, [], [0]).x.nnz == 1
    assert mine.nnz == 2


BAD = {
    "NaN": ({"x": [[1.0], [np.nan]]}, "NaN or infinity, first at node 1"),
    "infinity": ({"x": [[np.inf], [1.0]]}, "first at node 0"),
    "too large for float32": ({"x": [[1.0], [1e300]]}, "first at node 1"),
    "sparse NaN": ({"x": csr_array([[0.0, 0.0], [0.0, np.nan]])}, "first at node 1"),
    "flat features": ({"x": [1.0, 2.0]}, r"shape \[nodes, features\]"),
    "words": ({"x": [["a"], ["b"]]}, "must be numbers"),
    "ragged features": ({"x": [[1.0], [1.0, 2.0]]}, "cannot be read as an array"),
    "no nodes": ({"x": np.ones((0, 3)), "y": [], "edges": []}, "empty"),
    "no features": ({"x": np.ones((2, 0))}, "empty"),
    "edge to nowhere": ({"edges": [[0, 1], [1, 2]]}, "Edge 1 of 'g' joins 1 and 2, but its nodes are 0 to 1"),
    "negative node": ({"edges": [[0], [-1]]}, "joins 0 and -1"),
    "edges on their side": ({"edges": [[0, 1], [1, 0], [0, 1]]}, r"shape \[2, edges\]"),
    "fractional edges": ({"edges": [[0.0], [1.0]]}, "whole numbers"),
    "label above classes": ({"classes": 1}, "label 1, but labels are 0 to 0"),
    "label below -1": ({"y": [0, -2]}, "label -2"),
    "fractional label": ({"y": [0, 0.5]}, "whole numbers"),
    "infinite label": ({"y": [0, np.inf]}, "whole numbers"),
    "too few labels": ({"y": [0]}, "each of its 2 nodes"),
    "several labels a node": ({"y": [[0, 1], [1, 0]]}, "each of its 2 nodes"),
    "short mask": ({"masks": {"train": [True]}}, "train mask"),
    "mask of indices": ({"masks": {"test": [0, 2]}}, "test mask"),
    "unknown mask": ({"masks": {"dev": [True, False]}}, "train, validation, test"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_one_sentence(case):
    change, message = BAD[case]
    with pytest.raises(InputError, match=message):
        make_graph(**{"name": "g", "x": [[1.0], [2.0]], "edges": [[0], [1]], "y": [0, 1], **change})


def test_good_input_is_not_refused():
    graph = make_graph("g", [[1.0], [2.0]], [[0], [1]], [0, 1], masks={"train": [1, 0], "test": None})
    assert graph.train.tolist() == [True, False]
    assert graph.test is None


def test_subgraph_renumbers_and_carries_masks(toy):
    graph = toy(5, [(0, 1), (1, 3), (3, 4), (0, 4)], train=[1, 0, 0, 1, 0])
    part = subgraph(graph, [4, 3, 1])
    assert part.x[:, 0].tolist() == [1, 3, 4]
    assert part.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert part.train.tolist() == [False, True, False]
    assert part.validation is None
    assert part.classes == graph.classes


@pytest.mark.parametrize("nodes", [[], [5], [-1]])
def test_subgraph_of_no_or_foreign_nodes_is_refused(toy, nodes):
    with pytest.raises(InputError, match="0 to 4"):
        subgraph(toy(5, []), nodes)


@pytest.mark.parametrize("sparse", [False, True])
def test_cut_equals_one_subgraph_per_client(sparse):
    rng = np.random.default_rng(1)
    x = csr_array(rng.random((60, 40)) * (rng.random((60, 40)) < 0.05)) if sparse else rng.random((60, 4))
    edges, labels = rng.integers(0, 60, (2, 300)), rng.integers(0, 3, 60)
    graph = make_graph("g", x, edges, labels, masks={"test": rng.random(60) < 0.5})
    membership = rng.permutation(np.arange(60) % 7)
    parts = cut(graph, membership)
    assert len(parts) == 7
    for client, part in enumerate(parts):
        alone = subgraph(graph, np.flatnonzero(membership == client))
        assert np.array_equal(part.edges, alone.edges)
        assert np.array_equal(part.y, alone.y)
        assert np.array_equal(part.test, alone.test)
        assert issparse(part.x) == sparse
        assert not (part.x != alone.x).sum()


def test_client_without_edges_keeps_an_empty_edge_array(toy):
    first, second = cut(toy(3, [(0, 1)]), np.array([0, 0, 1]))
    assert first.edge_count == 1
    assert second.edges.shape == (2, 0)
    assert second.edges.dtype == np.int64


def test_row_and_l2_make_rows_of_length_one_and_leave_zero_rows():
    x = np.array([[3, 4], [0, 0], [-1, 1]])
    graph = make_graph("g", x, [], [0, 1, 0])
    assert np.allclose(normalise(graph, "row").x, [[3 / 7, 4 / 7], [0, 0], [-0.5, 0.5]])
    assert np.allclose(normalise(graph, "l2").x, [[0.6, 0.8], [0, 0], [-(0.5**0.5), 0.5**0.5]])
    assert normalise(graph, "raw").x is graph.x


@pytest.mark.parametrize("how", ["raw", "row", "l2"])
def test_sparse_and_dense_features_normalise_alike(how):
    rng = np.random.default_rng(0)
    dense = (rng.random((40, 30)) * (rng.random((40, 30)) < 0.08)).astype(np.float32)
    graph = make_graph("g", dense, [], np.zeros(40))
    assert issparse(graph.x)
    scaled = normalise(graph, how).x
    assert issparse(scaled)
    assert scaled.dtype == np.float32
    twin = normalise(type(graph)("g", dense, graph.edges, graph.y, 1), how).x
    assert np.allclose(scaled.toarray(), twin, atol=1e-6)


def test_unknown_normalisation_is_refused_with_the_list(toy):
    with pytest.raises(InputError, match="raw, row, l2\\."):
        normalise(toy(2, []), "max")


def test_largest_component_wins_and_ties_go_to_the_lowest_node(toy):
    assert largest_component(toy(6, [(0, 1), (2, 3), (3, 4)])).x[:, 0].tolist() == [2, 3, 4]
    assert largest_component(toy(5, [(3, 4), (1, 2)])).x[:, 0].tolist() == [1, 2]
