import json

import numpy as np
import pytest

from graft.data.cards import save
from graft.data.federation import build
from graft.data.graphs import MASKS
from graft.data.partitions import partition
from graft.data.synthetic import generate
from graft.errors import InputError


@pytest.fixture(scope="module")
def graph():
    return generate(nodes=600, degree=8, classes=4, homophily=0.9, features=5)


def test_clients_share_out_the_graph_and_its_masks(graph):
    federation = build(graph, 6, "random", seed=2)
    for client, part in enumerate(federation.clients):
        nodes = np.flatnonzero(federation.membership == client)
        assert np.array_equal(part.x, graph.x[nodes])
        for name in MASKS:
            assert np.array_equal(getattr(federation.graph, name)[nodes], getattr(part, name))
    assert federation.graph.train.sum() == 6 * 20
    assert federation.card["clients"] == 6
    json.dumps(federation.card)


def test_same_seed_gives_the_same_federation_and_another_seed_another(graph):
    one, two, other = (build(graph, 5, "random", seed=seed) for seed in (1, 1, 2))
    assert one.card["hash"] == two.card["hash"] != other.card["hash"]
    assert np.array_equal(one.graph.train, two.graph.train)
    assert not np.array_equal(one.graph.train, other.graph.train)


def test_federation_uses_the_partition_that_partition_gives(graph):
    assert np.array_equal(
        build(graph, 5, "label-skew", seed=3, alpha=2.0).membership,
        partition(graph, 5, "label-skew", seed=3, alpha=2.0),
    )


def test_split_does_not_depend_on_how_the_partition_draws(graph, tmp_path):
    drawn = build(graph, 5, "random", seed=1)
    save(drawn.card, drawn.membership, tmp_path / "card.json")
    read = build(graph, None, tmp_path / "card.json", seed=1)
    assert read.card["hash"] == drawn.card["hash"]
    assert np.array_equal(read.graph.test, drawn.graph.test)


def test_pooled_graph_has_all_edges_or_those_inside_clients(graph):
    federation = build(graph, 6, "random")
    assert federation.pooled().edge_count == graph.edge_count
    inside = federation.pooled("inside")
    assert inside.edge_count == federation.card["edges"]["kept"] == sum(part.edge_count for part in federation.clients)
    assert inside.edge_count < graph.edge_count
    assert np.array_equal(inside.train, federation.graph.train)
    with pytest.raises(InputError, match="all, inside"):
        federation.pooled("outside")


def test_clients_scale_by_themselves_unless_they_agree_on_moments(graph):
    alone, agreed = (build(graph, 3, "random", features="standard", scaling=way) for way in ("local", "federated"))
    assert all(np.allclose(part.x.mean(axis=0), 0, atol=1e-5) for part in alone.clients)
    assert alone.exchange.up_bytes == 0
    assert np.allclose(agreed.graph.x.mean(axis=0), 0, atol=1e-5)
    assert not np.allclose(agreed.clients[0].x.mean(axis=0), 0, atol=1e-5)
    assert agreed.exchange.up_bytes == 3 * 3 * 5 * 8  # of three clients: count, mean and spread of five columns


def test_one_client_keeps_the_graph_unchanged(graph):
    (only,) = build(graph, 1, "random").clients
    assert np.array_equal(only.edges, graph.edges)


def test_rounding_reaches_the_split(graph):
    floor, largest = (build(graph, 30, "random", rounding=rounding) for rounding in ("floor", "largest_remainder"))
    assert floor.graph.train.sum() < largest.graph.train.sum()


def test_own_split_keeps_the_masks_of_the_dataset(toy):
    masks = {"train": [1, 0, 0, 1, 0, 0], "validation": [0, 1, 0, 0, 1, 0], "test": [0, 0, 1, 0, 0, 1]}
    graph = toy(6, [(0, 1)], **masks)
    federation = build(graph, 1, "random", split="own")
    assert federation.graph.train.tolist() == graph.train.tolist()


def test_bad_settings_are_refused(graph):
    for change in ({"features": "max"}, {"split": "1/2"}, {"partition": "none"}, {"clients": 0}, {"alpha": 1}):
        with pytest.raises(InputError):
            build(**{"data": graph, "clients": 3, "partition": "random", **change})
