"""Moments of all clients together equal those of their data in one place; alone, every client has its own."""

import numpy as np
import pytest
from scipy.sparse import csr_array, issparse

from graft.data.graphs import make_graph
from graft.data.preparation import resolve_features, scale
from graft.data.scaling import merge, moments, standard
from graft.errors import InputError

RANDOM = np.random.default_rng(0)


def clients(offset=0.0, sizes=(5, 1, 40)):
    return [(RANDOM.normal(offset, 1 + k, (size, 3))).astype(np.float32) for k, size in enumerate(sizes)]


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_federated_moments_are_those_of_the_pooled_data(offset):
    xs = clients(offset)
    scalings, exchange = standard(xs, None, [None] * 3, shared=True)
    pooled = np.concatenate(xs).astype(np.float64)
    for scaling in scalings:
        np.testing.assert_allclose(scaling.mean, pooled.mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(scaling.deviation, pooled.std(axis=0), rtol=1e-9)
    assert exchange.up_bytes == 3 * 3 * 3 * 8
    own, nothing = standard(xs, None, [None] * 3, shared=False)
    assert np.abs(own[0].mean - own[2].mean).min() > 1e-3
    assert nothing.up_bytes == nothing.down_bytes == 0


def test_merging_does_not_depend_on_the_order():
    parts = [moments(x) for x in clients()]
    forward = merge(merge(parts[0], parts[1]), parts[2])
    backward = merge(parts[2], merge(parts[1], parts[0]))
    for first, second in zip(forward, backward, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-12)


def test_missing_cells_count_in_no_moment_and_become_zero():
    x = np.array([[1, 10], [3, 0], [5, 30]], np.float32)
    missing = np.array([[False, False], [False, True], [False, False]])
    (scaling,), _ = standard([x], None, [missing], shared=False)
    assert scaling.mean.tolist() == [3, 20]
    assert scaling.deviation[1] == 10
    assert scaling.apply(x, missing)[:, 1].tolist() == [-1, 0, 1]
    assert scaling.apply(x)[1, 1] == -2  # without knowing that it is missing


def test_constant_columns_become_zero_and_large_means_cost_no_digits():
    x = np.array([[0.1, 2**23 + 1], [0.1, 2**23 + 2], [0.1, 2**23 + 3]], np.float32)
    (scaling,), _ = standard([x], None, [None], shared=False)
    assert scaling.deviation[0] == 0
    scaled = scaling.apply(x)
    assert scaled[:, 0].tolist() == [0, 0, 0]
    np.testing.assert_allclose(scaled[:, 1], np.array([-1, 0, 1]) * np.sqrt(1.5), rtol=1e-6)


def test_a_client_without_a_value_leaves_the_others_moments_alone():
    x = np.array([[1.0], [3.0]], np.float32)
    nothing = moments(np.zeros((2, 1), np.float32), None, np.ones((2, 1), bool))
    for merged in (merge(moments(x), nothing), merge(nothing, moments(x))):
        assert (merged.counts[0], merged.means[0], merged.spreads[0]) == (2, 2, 2)


def test_moments_can_be_those_of_some_nodes_only():
    xs = clients()
    rows = [np.arange(len(x)) % 2 == 0 for x in xs]
    scalings, _ = standard(xs, None, [None] * 3, True, rows)
    pooled = np.concatenate([x[keep] for x, keep in zip(xs, rows, strict=True)]).astype(np.float64)
    np.testing.assert_allclose(scalings[0].mean, pooled.mean(axis=0), rtol=1e-9)
    nobody = [np.zeros(len(x), bool) for x in xs]
    assert standard(xs, None, [None] * 3, True, nobody)[0][0].deviation.tolist() == [0, 0, 0]


def test_sparse_features_become_dense_for_standard_alone():
    x = csr_array(np.eye(30, dtype=np.float32))
    graph = make_graph("sparse", x, [[0], [1]], np.arange(30) % 2)
    scaled = scale([graph], ["sparse"], None, "standard")
    assert isinstance(scaled.graphs[0].x, np.ndarray)
    np.testing.assert_allclose(scaled.graphs[0].x.std(axis=0), 1, rtol=1e-5)
    for features in ("raw", "row", "l2"):
        assert not isinstance(scale([graph], ["sparse"], None, features).graphs[0].x, np.ndarray)
    assert not isinstance(graph.x, np.ndarray)


def test_blocks_of_columns_change_nothing(monkeypatch):
    (x, _, _) = clients()
    (whole,), _ = standard([x], None, [None], shared=False)
    monkeypatch.setattr("graft.data.scaling.BLOCK", 1)
    (blocks,), _ = standard([x], None, [None], shared=False)
    np.testing.assert_array_equal(whole.apply(x), blocks.apply(x))


def test_auto_is_standard_for_tables_and_raw_for_the_rest():
    assert resolve_features("auto", None) == resolve_features("auto", [None]) == "raw"
    assert resolve_features("auto", [None, object()]) == "standard"
    assert resolve_features("row", [object()]) == "row"


def test_unknown_features_are_refused():
    graph = make_graph("g", np.eye(2), [[0], [1]], [0, 1])
    with pytest.raises(InputError, match="normalisation 'max'; choose one of auto, raw, row, l2, standard"):
        scale([graph], ["g"], None, "max")


def graph_of(rows):
    return make_graph("rows", np.array(rows, np.float32), np.empty((2, 0), np.int64), np.arange(len(rows)) % 2)


def dense(graph):
    return graph.x.toarray() if issparse(graph.x) else graph.x


def median_length(graph):
    return np.median(np.linalg.norm(dense(graph), axis=1))


def test_rows_get_the_norm_by_one_factor_a_client():
    # Of the lengths 1, 5 and 10 the middle one becomes 2; a row of zeros does not count.
    graph = graph_of([[0, 1], [3, 4], [6, 8], [0, 0]])
    twice = graph_of([[0, 2], [6, 8], [12, 16], [0, 0]])
    scaled = scale([graph, twice], ["a", "b"], None, "raw", norm=2.0)
    for result in scaled.graphs:
        np.testing.assert_allclose(dense(result), [[0, 0.4], [1.2, 1.6], [2.4, 3.2], [0, 0]], rtol=1e-6)
    assert [entry.factor for entry in scaled.scalings] == pytest.approx([0.4, 0.2])
    assert scaled.exchange.up_bytes == 0  # nobody tells anybody its factor
    as_it_is = scale([graph], ["a"], None, "raw")
    assert as_it_is.graphs[0].x is graph.x
    assert as_it_is.scalings[0].factor == 1


@pytest.mark.parametrize("features", ["raw", "row", "l2", "standard"])
@pytest.mark.parametrize("sparse", [False, True])
def test_every_scaling_ends_at_the_norm_and_new_data_come_to_the_same(features, sparse):
    x = RANDOM.random((30, 7)).astype(np.float32)
    graph = make_graph("thirty", csr_array(x) if sparse else x, np.empty((2, 0), np.int64), np.arange(30) % 2)
    scaled = scale([graph], ["a"], None, features, norm=4.0)
    assert median_length(scaled.graphs[0]) == pytest.approx(4, rel=1e-5)
    assert median_length(scale([graph], ["a"], None, features).graphs[0]) != pytest.approx(4, rel=1e-2)
    again = scaled.scalings[0].apply(graph.x)
    assert median_length(make_graph("again", again, graph.edges, graph.y)) == pytest.approx(4, rel=1e-5)


def test_the_norm_is_that_of_the_rows_that_training_may_see():
    graph = graph_of([[3, 4], [0, 100]])
    scaled = scale([graph], ["a"], None, "raw", fitted_on=[np.array([True, False])], norm=1.0)
    np.testing.assert_allclose(dense(scaled.graphs[0]), [[0.6, 0.8], [0, 20]], rtol=1e-6)


def test_one_absurd_row_does_not_make_all_others_small():
    rows = [[3, 4], [4, 3], [3e38, 3e38]]
    factors = [scale([graph_of(rows[:count])], ["a"], None, "raw", norm=1.0).scalings[0].factor for count in (2, 3)]
    assert factors == pytest.approx([0.2, 0.2])


def test_features_of_zeros_stay_zeros():
    scaled = scale([graph_of([[0, 0], [0, 0]])], ["a"], None, "raw", norm=4.0)
    assert not dense(scaled.graphs[0]).any()
    assert scaled.scalings[0].factor == 1
