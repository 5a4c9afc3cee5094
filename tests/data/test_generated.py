import pickle
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import graft
from graft.data import cards
from graft.data.datasets import load
from graft.data.generated import Generated, GeneratedGraphs, hashed_uniform
from graft.data.lazy_federation import lazy_federation
from graft.data.sources import open_data
from graft.errors import InputError

SMALL = "generated:nodes=60,degree=3,classes=3,features=5"
MODEL = Generated(nodes=60, degree=3, classes=3, features=5)


def content(graph):
    return cards.data_hash([graph], graph.y)


def test_client_is_the_same_in_whatever_order_it_is_made():
    graphs = GeneratedGraphs(MODEL, 20)
    forwards = [content(graphs[client]) for client in range(20)]
    again = GeneratedGraphs(MODEL, 20)
    assert [content(again[client]) for client in reversed(range(20))] == forwards[::-1]
    assert len(set(forwards)) == 20


def test_client_is_the_same_in_another_process():
    graphs = GeneratedGraphs(MODEL, 20)
    code = (
        "import pickle, sys; from graft.data import cards; graph = pickle.load(sys.stdin.buffer)[7];"
        "print(cards.data_hash([graph], graph.y))"
    )
    made = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(graphs), capture_output=True, check=True)
    assert made.stdout.decode().strip() == content(graphs[7]) != content(graphs[8])


def test_client_does_not_depend_on_how_many_there_are():
    assert content(GeneratedGraphs(MODEL, 5)[3]) == content(GeneratedGraphs(MODEL, 500)[3])


def test_sizes_of_all_clients_are_those_of_their_graphs():
    graphs = GeneratedGraphs(MODEL, 12)
    assert graphs.nodes().tolist() == [graph.nodes for graph in graphs]
    assert graphs.edges().tolist() == [graph.edge_count for graph in graphs]


def test_sizes_lie_within_the_spread_and_differ_only_with_one():
    sizes = GeneratedGraphs(replace(MODEL, spread=0.5), 2000).nodes()
    assert 30 <= sizes.min() < 35 < 85 < sizes.max() <= 90
    assert sizes.mean() == pytest.approx(60, abs=1)
    assert set(GeneratedGraphs(replace(MODEL, spread=0), 2000).nodes()) == {60}


def test_hashed_numbers_are_uniform_and_of_one_client_alone():
    numbers = hashed_uniform(3, np.arange(100_000))
    assert np.histogram(numbers, 10, (0, 1))[0] == pytest.approx(10_000, abs=500)
    assert hashed_uniform(3, np.array([17]))[0] == numbers[17] != hashed_uniform(4, np.array([17]))[0]


def test_class_means_are_those_of_all_clients():
    graphs = GeneratedGraphs(replace(MODEL, nodes=2000, degree=2, signal=4.0, spread=0), 2)
    first, second = (
        np.stack([graph.x[graph.y == label].mean(0) for label in range(3)]) for graph in (graphs[0], graphs[1])
    )
    assert np.abs(first - second).max() < 0.2 < np.abs(first[0] - first[1]).max()


def test_seed_of_the_split_changes_masks_and_no_graph():
    first, second = (GeneratedGraphs(MODEL, 3, "50/25/25", seed) for seed in (0, 1))
    assert np.array_equal(first[1].x, second[1].x)
    assert not np.array_equal(first[1].train, second[1].train)
    assert first.graph_hash == second.graph_hash
    assert first.hash != second.hash
    assert first[1].train.sum() == pytest.approx(first[1].nodes / 2, abs=1)


@pytest.mark.parametrize("change", [{"nodes": 61}, {"seed": 1}, {"homophily": 0.7}, {"spread": 0.4}])
def test_hash_tells_settings_apart(change):
    assert GeneratedGraphs(replace(MODEL, **change), 3).graph_hash != GeneratedGraphs(MODEL, 3).graph_hash
    assert GeneratedGraphs(MODEL, 4).graph_hash != GeneratedGraphs(MODEL, 3).graph_hash


def test_text_gives_the_settings():
    assert open_data(SMALL) == MODEL
    assert open_data("generated") == Generated()
    assert MODEL.name == SMALL


BAD = [
    ("generated:size=3", "no setting 'size'"),
    ("generated:nodes=many", "whole number"),
    ("generated:spread=1", "spread=1"),
    ("generated:nodes=30,degree=10,classes=1,homophily=1", "too dense"),
    ("generated:nodes=8,classes=9,degree=1", "classes=9"),
    ("generated:lcc", "not the one graph"),
]


@pytest.mark.parametrize(("source", "words"), BAD)
def test_settings_that_no_graph_can_have_are_refused(source, words):
    with pytest.raises(InputError, match=words):
        open_data(source)


def test_generated_clients_are_not_one_graph():
    with pytest.raises(InputError, match="not the one graph"):
        load(SMALL)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"split": "own"}, "split is own"),
        ({"split": "time:50/25/25"}, "neither masks nor times"),
        ({"partition": "metis"}, "partition is metis"),
        ({"inductive": True}, "inductive is True"),
        ({"features": "standard"}, "features is standard"),
        ({"label_noise": 0.1}, "label_noise is 0.1"),
        ({"clients": 2_000_000}, "at most 1,000,000"),
    ],
)
def test_what_would_need_all_graphs_is_refused(settings, words):
    with pytest.raises(InputError, match=words):
        graft.run("fedavg", SMALL, rounds=1, **settings)


def test_a_run_on_generated_clients_learns_together(tmp_path):
    data = "generated:nodes=80,degree=4,classes=3,features=8,signal=5"
    together = graft.run("fedavg", data, clients=6, rounds=15, width=8, out=tmp_path / "run")
    assert together.summary["partition"] == "own"
    assert [row["nodes"] for row in together.summary["per_client"]] == (open_data(data).sizes(np.arange(6)).tolist())
    assert together.summary["accuracy"]["test"] > 0.6
    predicted = graft.load_result(tmp_path / "run").models.client(2).predict()
    assert len(predicted.classes) == together.summary["per_client"][2]["nodes"]


def test_resumed_run_equals_the_unbroken_one(tmp_path):
    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    settings = {"clients": 3, "rounds": 4, "width": 8, "checkpoint_every": 1}
    whole = graft.run("fedavg", SMALL, **settings)
    with pytest.raises(KeyboardInterrupt):
        graft.run("fedavg", SMALL, out=tmp_path / "run", callbacks=[stop], **settings)
    resumed = graft.resume(tmp_path / "run")
    assert [record["test"] for record in resumed.rounds] == [record["test"] for record in whole.rounds]


def test_a_million_clients_are_described_in_little_memory():
    tracemalloc.start()
    try:
        graphs = GeneratedGraphs(Generated(), 10**6)
        federation = lazy_federation(graphs)
        assert (len(pickle.dumps(graphs)), len(federation.clients)) < (1000, 10**6 + 1)
        assert federation.card["per_client"] == []
        assert federation.card["nodes"] == pytest.approx(10**9, rel=0.01)
        assert federation.preparations[999_999].features == 64
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2**20
    assert peak < 20 * 2**20  # the sizes of all of them are 8 MB


def test_pooling_what_is_made_one_by_one_is_refused():
    with pytest.raises(InputError, match="one by one"):
        graft.run("centralised", SMALL, clients=3, rounds=1)
