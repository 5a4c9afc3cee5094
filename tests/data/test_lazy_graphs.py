"""What is made of graphs that are not in memory without reading them."""

import pickle

import numpy as np
import pytest

import graft
from graft.data.generated import Generated, GeneratedGraphs
from graft.data.lazy_federation import SharedPreparations, different_preparations, lazy_federation
from graft.data.lazy_graphs import ChangedGraphs, ClientGraphs, SelectedGraphs
from graft.experiments.build import build_federation, build_setup
from graft.experiments.experiment import make_experiment
from graft.experiments.joining import without
from graft.experiments.make_method import make_method
from graft.experiments.prepared_data import describe_data, load_prepared, save_prepared
from graft.experiments.tuning.trial import hide_labels, without_test_labels

MODEL = Generated(nodes=40, degree=3, classes=3, features=5)


class Watched(GeneratedGraphs):
    """Generated graphs that note which were made."""

    def __init__(self, clients):
        super().__init__(MODEL, clients)
        self.made = []

    def read(self, client):
        self.made.append(client)
        return super().read(client)


def test_sequence_has_ends_and_slices():
    graphs = GeneratedGraphs(MODEL, 4)
    assert np.array_equal(graphs[-1].x, graphs[3].x)
    assert np.array_equal(graphs[np.int64(2)].x, graphs[2].x)
    assert [graph.nodes for graph in graphs[1:3]] == graphs.nodes()[1:3].tolist()
    assert len(list(graphs)) == 4
    for beyond in (4, -5):
        with pytest.raises(IndexError):
            graphs[beyond]


def test_federation_is_described_without_reading_a_graph():
    graphs = Watched(50)
    federation = lazy_federation(graphs)
    assert (federation.name, federation.features, federation.classes) == (graphs.name, 5, 3)
    assert federation.data_hash == graphs.hash
    assert federation.card["edges"]["total"] == graphs.edges().sum()
    assert federation.sizes[0].tolist() == graphs.nodes().tolist()
    assert without(federation, 3).sizes[0].tolist() == np.delete(graphs.nodes(), 3).tolist()
    assert without_test_labels(federation).sizes[0].tolist() == graphs.nodes().tolist()
    assert graphs.made == []


@pytest.mark.parametrize("engine", ["ray", "participants", "in_process"])
def test_only_an_engine_in_this_process_that_scores_all_reads_graphs_at_once(engine):
    graphs = Watched(3)
    values = {"ray": {"engine": "ray"}, "participants": {"evaluate_clients": "participants"}, "in_process": {}}[engine]
    experiment = make_experiment({"method": "fedavg", "dataset": "generated", "clients": 3, **values})
    setup = build_setup(experiment, make_method("fedavg", {}), lazy_federation(graphs))
    assert isinstance(setup.graphs, ClientGraphs) == (engine != "in_process")
    assert graphs.made == ([0, 1, 2] if engine == "in_process" else [])


def test_hidden_labels_are_hidden_where_graphs_are_read():
    graphs = GeneratedGraphs(MODEL, 3)
    hidden = without_test_labels(lazy_federation(graphs))
    for before, after in zip(graphs, hidden.clients, strict=True):
        assert before.test.any()
        assert not after.test.any()
        assert (after.y[before.test] == -1).all()
        assert (after.y[before.train] == before.y[before.train]).all()
    assert hidden.data_hash != graphs.hash


@pytest.mark.parametrize("kind", ["changed", "selected"])
def test_views_of_graphs_can_be_sent(kind):
    graphs = GeneratedGraphs(MODEL, 5)
    view = ChangedGraphs(graphs, hide_labels) if kind == "changed" else SelectedGraphs(graphs, [4, 1])
    sent = pickle.loads(pickle.dumps(view))
    assert sent.hash == view.hash != graphs.hash
    assert [graph.nodes for graph in sent] == view.nodes().tolist()
    assert [graph.edge_count for graph in sent] == view.edges().tolist()
    assert sent.scored is None


def test_selected_clients_are_those_clients():
    graphs = GeneratedGraphs(MODEL, 5)
    chosen = SelectedGraphs(graphs, [4, 1])
    assert np.array_equal(chosen[0].x, graphs[4].x)
    assert not np.array_equal(chosen[0].x, chosen[1].x)


def test_graphs_of_a_class_of_your_own_are_a_dataset():
    class Rings(ClientGraphs):
        """Every client a ring, whose labels its features tell."""

        name, features, classes, hash = "rings", 2, 2, "rings"

        def __len__(self):
            return 3

        def read(self, client):
            nodes = 20 + client
            y = np.arange(nodes) % 2
            ring = np.stack([np.arange(nodes), (np.arange(nodes) + 2) % nodes])
            third = np.arange(nodes) % 3
            masks = {name: third == part for part, name in enumerate(("train", "validation", "test"))}
            return graft.make_graph("ring", np.eye(2)[y], ring, y, 2, masks)

        def nodes(self):
            return 20 + np.arange(3)

        def edges(self):
            return 20 + np.arange(3)

    result = graft.run("fedavg", Rings(), rounds=10, width=8)
    assert result.summary["dataset"] == "rings"
    assert result.summary["experiment"]["split"] == "own"
    assert result.summary["accuracy"]["test"] > 0.9
    with pytest.raises(graft.InputError, match="split is 20/40/40"):
        graft.run("fedavg", Rings(), split="20/40/40")


def test_preparations_that_are_one_are_written_once(tmp_path):
    federation = lazy_federation(GeneratedGraphs(MODEL, 1000))
    described = describe_data(federation, make_experiment({"dataset": "generated", "clients": 1000}), pooled=False)
    save_prepared(tmp_path / "preparation.json", described, "run")
    assert (tmp_path / "preparation.json").stat().st_size < 1000
    loaded = load_prepared(tmp_path / "preparation.json", "run")
    assert len(loaded.preparations) == loaded.clients == 1000
    assert loaded.preparations[999].to_json() == federation.preparations[0].to_json()


def test_preparations_that_differ_are_each_clients_own(tmp_path):
    experiment = make_experiment({"dataset": "digits", "clients": 3, "features": "standard"})
    federation = build_federation(experiment)
    save_prepared(tmp_path / "preparation.json", describe_data(federation, experiment, pooled=False), "run")
    loaded = load_prepared(tmp_path / "preparation.json", "run")
    assert [entry.to_json() for entry in loaded.preparations] == [entry.to_json() for entry in federation.preparations]
    different, of_client = different_preparations(loaded.preparations)
    assert (len(different), of_client) == (3, [0, 1, 2])
    assert isinstance(loaded.preparations, SharedPreparations)
