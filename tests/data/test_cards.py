import hashlib
import json

import numpy as np
import pytest

from graft.data.cards import card, content_hash, save
from graft.data.partitions import partition


@pytest.fixture
def graph(toy):
    """Client 0: a triangle 0-1-2 and the lone node 3; client 1: the edge 4-5 and an unlabelled node 6 tied to 5."""
    edges = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (5, 6)]
    return toy(7, edges, labels=[0, 0, 1, 1, 2, 2, -1])


MEMBERSHIP = np.array([0, 0, 0, 0, 1, 1, 1])


def test_card_counts_by_hand(graph):
    made = card(graph, MEMBERSHIP, "louvain", 3, {"cut": "bfs"})
    assert made["edges"] == {"total": 6, "kept": 5, "lost": 1, "lost_share": 1 / 6}
    assert (made["dataset"], made["method"], made["clients"], made["seed"]) == ("toy", "louvain", 2, 3)
    assert made["options"] == {"cut": "bfs"}
    assert made["nodes"] == 7
    assert made["per_client"][0] == {
        "client": 0,
        "nodes": 4,
        "edges": 3,
        "components": 2,
        "isolated": 1,
        "labels": [2, 2, 0],
        "unlabelled": 0,
        "homophily": 1 / 3,  # only 0-1 joins equals
        "class_homophily": [1 / 3, 0.0, None],
    }
    assert made["per_client"][1] == {
        "client": 1,
        "nodes": 3,
        "edges": 2,
        "components": 1,
        "isolated": 0,
        "labels": [0, 0, 2],
        "unlabelled": 1,
        "homophily": 1.0,  # 5-6 has an unlabelled end and does not count
        "class_homophily": [None, None, 1.0],
    }


def test_clients_without_edges_have_no_homophily(toy):
    made = card(toy(2, [(0, 1)]), np.array([0, 1]), "random", 0, {})
    assert made["edges"]["lost_share"] == 1
    assert [entry["homophily"] for entry in made["per_client"]] == [None, None]
    assert [entry["isolated"] for entry in made["per_client"]] == [1, 1]


def test_a_graph_without_edges_loses_nothing(toy):
    assert card(toy(2, []), np.array([0, 1]), "random", 0, {})["edges"]["lost_share"] == 0


def test_hash_is_that_of_little_endian_int64_bytes():
    assert content_hash(np.array([1, 0])) == hashlib.sha256(b"\x01" + b"\x00" * 15).hexdigest()
    assert content_hash(np.array([1, 0], ">i8")) == content_hash(np.array([1, 0], np.int32))
    assert content_hash(np.array([0, 1])) != content_hash(np.array([1, 0]))


def test_a_saved_card_is_json_and_reads_back_as_the_same_partition(graph, tmp_path):
    made = card(graph, MEMBERSHIP, "random", 0, {})
    save(made, MEMBERSHIP, tmp_path / "card.json")
    stored = json.loads((tmp_path / "card.json").read_text())
    assert stored.pop("membership") == MEMBERSHIP.tolist()
    assert stored == made
    assert np.array_equal(partition(graph, 2, tmp_path / "card.json"), MEMBERSHIP)
