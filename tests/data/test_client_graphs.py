"""Graphs as clients: names, classes, features, and data that training does not see."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graft.data.client_graphs import Federation, join
from graft.data.federation import build
from graft.data.graphs import make_graph
from graft.data.perturbations import Perturbation
from graft.data.sources import open_data
from graft.errors import DataWarning, InputError


def make_client(nodes=30, classes=(0, 1, 2), seed=0, width=4, **more):
    random = np.random.default_rng(seed)
    y = np.array([*classes, *random.choice(classes, nodes - len(classes))]) if classes else np.full(nodes, -1)
    return make_graph("any", random.normal(size=(nodes, width)), random.integers(0, nodes, (2, 60)), y, **more)


def make_data(**more):
    graph = make_client()
    x, edges, y = (torch.from_numpy(values) for values in (graph.x, graph.edges, graph.y))
    return Data(x=x, edge_index=edges, y=y, **more)


def test_every_graph_is_a_client_with_its_name():
    federation = Federation({"alpha": make_client(), "beta": make_client(20, seed=1)})
    built = build(federation, None)
    assert built.names == ("alpha", "beta")
    assert [part.name for part in built.clients] == ["alpha", "beta"]
    assert [row["client"] for row in built.card["per_client"]] == ["alpha", "beta"]
    assert built.card["edges"]["lost"] == 0
    assert np.bincount(built.membership).tolist() == [30, 20]
    assert built.graph.edge_count == sum(part.edge_count for part in built.clients)


def test_a_list_gives_numbers_instead_of_names():
    built = build(open_data([make_client(), make_client(20, seed=1)]), None)
    assert built.names is None
    assert [row["client"] for row in built.card["per_client"]] == [0, 1]


def test_clients_share_one_list_of_classes_though_some_lack_a_few():
    built = build(Federation({"all": make_client(), "two": make_client(classes=(0, 1), seed=1)}), None)
    assert [part.classes for part in built.clients] == [3, 3]
    named = {
        "a": make_client(classes=(0, 1), class_names=("no", "yes")),
        "b": make_client(classes=(0, 1), class_names=("maybe", "yes"), seed=1),
    }
    parts = build(Federation(named), None).clients
    assert parts[0].class_names == parts[1].class_names == ("maybe", "no", "yes")
    assert set(parts[0].y) == {1, 2}
    assert set(parts[1].y) == {0, 2}


def test_a_client_without_labels_has_empty_masks_and_stays():
    built = build(Federation({"seen": make_client(), "unseen": make_client(classes=(), seed=1)}), None)
    assert built.clients[0].train.any()
    assert not any(mask.any() for mask in built.clients[1].masks.values())
    with pytest.raises(InputError, match="no label at all"):
        build(Federation({"unseen": make_client(classes=())}), None)


def test_a_single_class_is_refused():
    with pytest.raises(InputError, match="single class"):
        build(Federation({"a": make_client(classes=(1,)), "b": make_client(classes=(1,), seed=1)}), None)


def test_another_width_names_the_client():
    with pytest.raises(InputError, match="Client beta has 5 features, but client alpha has 4"):
        build(Federation({"alpha": make_client(), "beta": make_client(width=5)}), None)


def test_another_feature_names_client_and_column():
    names = ["age", "balance", "turnover", "visits"]
    clients = {
        "alpha": make_client(feature_names=names),
        "beta": make_client(feature_names=[*names[:3], "calls"], seed=1),
    }
    with pytest.raises(InputError, match="Client beta has no feature 'visits'"):
        build(Federation(clients), None)


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 101, "new\nline"])
def test_names_that_could_not_be_files_are_refused(name):
    with pytest.raises(InputError, match="client's name"):
        Federation({name: make_client()})


def test_names_that_differ_by_case_alone_are_refused():
    with pytest.raises(InputError, match="differ by case alone"):
        Federation({"Alpha": make_client(), "alpha": make_client()})


def test_what_is_no_graph_is_refused_with_the_name_of_its_client():
    with pytest.raises(InputError, match="client 'beta' is a int"):
        Federation({"alpha": make_client(), "beta": 3})
    with pytest.raises(InputError, match="at least one"):
        Federation({})


def test_published_client_graphs_bring_masks_as_lists_of_nodes():
    data = make_data(train_idx=torch.arange(10), val_idx=torch.arange(10, 15), test_idx=torch.arange(15, 30))
    parts = build(Federation([data, data]), None, split="own").clients
    assert parts[0].train.nonzero()[0].tolist() == list(range(10))
    assert parts[1].test.sum() == 15


def test_masks_that_are_not_used_are_mentioned():
    data = make_data(train_idx=torch.arange(10), val_idx=torch.arange(10, 15), test_idx=torch.arange(15, 30))
    with pytest.warns(DataWarning, match="--split own"):
        build(Federation([data, data]), None)


def test_join_keeps_what_every_client_has():
    parts = [make_client(weights=np.full(60, 2.0)), make_client(20, seed=1)]
    whole = join(parts, "both")
    assert whole.nodes == 50
    assert set(whole.weights[whole.edges[0] >= 30]) == {1.0}
    assert (whole.edges[:, whole.edges[0] >= 30] >= 30).all()


# Nodes that training does not see.


def test_inductive_clients_train_without_their_test_nodes_and_are_scored_on_all():
    built = build(Federation({"a": make_client(), "b": make_client(20, seed=1)}), None, inductive=True)
    for seen, whole in zip(built.clients, built.clean.clients, strict=True):
        assert not seen.test.any()
        assert seen.nodes == whole.nodes - whole.test.sum()
        kept = np.flatnonzero(~whole.test)
        assert np.array_equal(seen.x, whole.x[kept])
        assert seen.edge_count == np.isin(whole.edges, kept).all(axis=0).sum() // 2
    assert built.graph.nodes == len(built.membership) == sum(part.nodes for part in built.clients)
    assert built.partition.endswith("inductive")


def test_inductive_works_for_one_graph_that_is_shared_out():
    whole = make_client(60)
    built = build(whole, 3, "random", inductive=True)
    assert built.graph.nodes == 60 - built.clean.graph.test.sum()
    assert np.bincount(built.membership).tolist() == [part.nodes for part in built.clients]
    crossing = built.clean.membership[whole.edges[0]] != built.clean.membership[whole.edges[1]]
    seen = ~built.clean.graph.test[whole.edges].any(axis=0)
    inside = sum(part.edge_count for part in built.clients)
    assert built.graph.edge_count == inside + (crossing & seen).sum() // 2


def test_a_split_by_time_trains_on_what_came_first():
    graph = make_client(node_times=np.arange(30)[::-1])
    built = build(Federation({"a": graph, "b": graph}), None, split="time:50/20/30")
    part = built.clean.clients[0]
    assert part.train.nonzero()[0].tolist() == list(range(15, 30))
    assert part.test.nonzero()[0].tolist() == list(range(9))
    assert built.clients[0].nodes == 21


def test_times_of_edges_do_where_nodes_have_none_and_later_edges_are_not_trained_on():
    ends = np.array([[0, 1, 2, 3, 0], [1, 2, 3, 4, 2]])
    graph = make_graph("any", np.eye(5) + 1, ends, [0, 1, 0, 1, 0], edge_times=[1.0, 2.0, 3.0, 4.0, 9.0])
    built = build(Federation({"a": graph}), None, split="time:40/20/40")
    # Nodes come with their first edge: 0 and 1 at 1, 2 at 2, 3 at 3, 4 at 4.
    assert built.clean.clients[0].test.tolist() == [False, False, False, True, True]
    assert built.clients[0].edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]


def test_a_split_by_time_needs_times():
    with pytest.raises(InputError, match="Client a of 'a' has no times"):
        build(Federation({"a": make_client()}), None, split="time:50/20/30")


def test_perturbed_inductive_data_are_scored_as_they_were():
    graphs = Federation({"a": make_client(), "b": make_client(20, seed=1)})
    built = build(graphs, None, inductive=True, perturbation=Perturbation(edge_sparsity=0.5))
    assert built.clean.clients[0].nodes == 30
    assert built.clients[0].edge_count < build(graphs, None, inductive=True).clients[0].edge_count
    with pytest.raises(InputError, match="evaluate_on is perturbed"):
        build(graphs, None, inductive=True, perturbation=Perturbation(edge_sparsity=0.5, evaluate_on="perturbed"))


def test_a_graph_that_stays_one_needs_a_partition():
    with pytest.raises(InputError, match="one graph"):
        build(replace(make_client(), name="cora"), 3, "own")


def test_moments_of_inductive_data_are_those_of_nodes_that_training_sees():
    graphs = Federation({"a": make_client(), "b": make_client(20, seed=1)})
    seen, everything = (build(graphs, None, features="standard", inductive=way) for way in (True, False))
    assert np.allclose(seen.clients[0].x.mean(axis=0), 0, atol=1e-6)
    assert not np.allclose(seen.clean.clients[0].x.mean(axis=0), 0, atol=1e-6)
    assert np.allclose(everything.clients[0].x.mean(axis=0), 0, atol=1e-6)
