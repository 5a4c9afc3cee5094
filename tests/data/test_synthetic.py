import numpy as np
import pytest

from graft.data.synthetic import generate
from graft.errors import InputError


def homophily(graph):
    return (graph.y[graph.edges[0]] == graph.y[graph.edges[1]]).mean()


@pytest.mark.parametrize(("degree", "asked"), [(10, 0.8), (6, 0.3), (20, 0.95)])
def test_degree_and_homophily_are_as_asked(degree, asked):
    graph = generate(nodes=20_000, degree=degree, classes=10, homophily=asked, features=4, seed=1)
    assert 2 * graph.edge_count / graph.nodes == pytest.approx(degree, rel=1e-3)
    assert homophily(graph) == pytest.approx(asked, abs=1e-3)
    assert np.bincount(graph.y).tolist() == [2000] * 10


def test_degrees_have_a_heavy_tail():
    graph = generate(nodes=20_000, degree=10, features=2)
    degrees = np.bincount(graph.edges[0], minlength=graph.nodes)
    assert degrees.max() > 20 * degrees.mean()
    flat = generate(nodes=20_000, degree=10, features=2, exponent=50)
    assert np.bincount(flat.edges[0]).max() < 5 * degrees.mean()


def test_features_tell_the_classes_apart_only_where_there_is_signal():
    def accuracy(signal):
        graph = generate(nodes=3000, classes=4, features=16, signal=signal)
        means = np.stack([graph.x[graph.y == label].mean(axis=0) for label in range(4)])
        guess = ((graph.x[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
        return (guess == graph.y).mean()

    assert accuracy(4.0) > 0.9
    assert accuracy(0.0) < 0.35


def test_same_seed_gives_the_same_graph_and_another_seed_another():
    one, two, other = (generate(nodes=500, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.edges, two.edges)
    assert np.array_equal(one.x, two.x)
    assert not np.array_equal(one.edges, other.edges)


def test_dense_small_graph_still_gets_every_edge():
    graph = generate(nodes=60, degree=20, classes=2, homophily=0.7, features=3)
    assert graph.edge_count == 600
    assert homophily(graph) == pytest.approx(0.7)


BAD = [
    ({"nodes": 1}, "nodes=1"),
    ({"degree": 0}, "degree=0"),
    ({"degree": float("nan")}, "degree=nan"),
    ({"nodes": 10, "degree": 10}, "below the number of nodes, 10"),
    ({"classes": 0}, "classes=0"),
    ({"nodes": 5, "classes": 6, "degree": 1}, "classes=6"),
    ({"homophily": 1.5}, "homophily=1.5"),
    ({"classes": 1}, "1 when there is one class"),
    ({"features": 0}, "features=0"),
    ({"signal": -1}, "signal=-1"),
    ({"exponent": 1}, "exponent=1"),
    ({"seed": -1}, "at least 0"),
    ({"nodes": 40, "degree": 10, "classes": 10}, "too dense"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        generate(**settings)
