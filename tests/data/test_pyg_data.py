"""What is read of a PyG `Data`, under the names that people use."""

import warnings

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from graft.cli.console import show_warning
from graft.data.pyg_data import from_pyg
from graft.errors import DataWarning, GraftWarning, InputError, MemoryWarning

EDGES = torch.tensor([[0, 1, 2], [1, 2, 3]])


def make_data(**more):
    given = {"x": torch.eye(4), "edge_index": EDGES, "y": torch.tensor([0, 1, 1, 0]), **more}
    return Data(**{name: values for name, values in given.items() if values is not None})


@pytest.mark.parametrize(
    "fields",
    [
        {"edge_weight": torch.tensor([1.0, 2.0, 0.5])},
        {"edge_attr": torch.tensor([1.0, 2.0, 0.5])},
        {"edge_attr": torch.tensor([[1.0], [2.0], [0.5]])},
        {"edge_weight": torch.tensor([1.0, 2.0, 0.5]), "edge_attr": torch.tensor([[1.0], [2.0], [0.5]])},
    ],
)
def test_one_number_an_edge_is_its_weight(fields):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = from_pyg(make_data(**fields))
    assert graph.weights.tolist() == [1, 1, 2, 2, 0.5, 0.5]
    assert from_pyg(make_data()).weights is None


def test_weights_of_pygs_undirected_form_are_taken_once():
    edges, weights = to_undirected(EDGES, torch.tensor([1.0, 2.0, 0.5]))
    assert from_pyg(make_data(edge_index=edges, edge_weight=weights)).weights.tolist() == [1, 1, 2, 2, 0.5, 0.5]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"edge_attr": torch.ones(3, 2)}, r"shape \(3, 2\)"),
        ({"edge_attr": torch.ones(3), "edge_weight": torch.ones(3) / 2}, "edge_weight holds the weights"),
    ],
)
def test_edge_attributes_that_are_not_used_are_named_in_a_warning(fields, reason):
    with pytest.warns(DataWarning, match=f"edge_attr of 'mine' is not used: .*{reason}"):
        graph = from_pyg(make_data(**fields), "mine")
    assert graph.weights is None or graph.weights.tolist() == [0.5] * 6


def test_own_warnings_are_shown_as_one_sentence(capsys):
    shown = []
    for kind in (DataWarning, MemoryWarning, UserWarning):
        show_warning(lambda message, *_: shown.append(message), f"a {kind.__name__}", kind, "file.py", 1)
    assert capsys.readouterr().err.splitlines() == ["graft: a DataWarning", "graft: a MemoryWarning"]
    assert shown == ["a UserWarning"]
    assert issubclass(DataWarning, GraftWarning)


TRAIN, VALIDATION, TEST = [True, False, False, True], [False, True, False, False], [False, False, True, False]


@pytest.mark.parametrize(
    "fields",
    [
        {"train_mask": torch.tensor(TRAIN), "val_mask": torch.tensor(VALIDATION), "test_mask": torch.tensor(TEST)},
        {"train_mask": torch.tensor(TRAIN), "valid_mask": torch.tensor(VALIDATION), "test_mask": torch.tensor(TEST)},
        {"train_idx": torch.tensor([3, 0]), "val_idx": torch.tensor([1]), "test_idx": torch.tensor([2])},
        {"train_idx": np.array([3, 0]), "valid_idx": [1], "test_idx": torch.tensor([[2]])},
        {"train_idx": torch.tensor(TRAIN), "val_idx": torch.tensor(VALIDATION), "test_idx": torch.tensor(TEST)},
        {
            "train_mask": torch.tensor([TRAIN, TEST]).T,
            "val_mask": torch.tensor([VALIDATION, TRAIN]).T,
            "test_mask": torch.tensor([TEST, TEST]).T,
        },
    ],
)
def test_masks_and_lists_of_nodes_are_understood(fields):
    graph = from_pyg(make_data(**fields))
    assert [graph.train.tolist(), graph.validation.tolist(), graph.test.tolist()] == [TRAIN, VALIDATION, TEST]


def test_masks_that_are_not_there_stay_none():
    graph = from_pyg(make_data(train_idx=torch.tensor([], dtype=torch.int64)))
    assert graph.train.tolist() == [False] * 4
    assert graph.validation is None


def test_ids_and_times_are_read_under_their_names():
    graph = from_pyg(make_data(node_id=["a", "b", "c", "d"], time=torch.arange(4), edge_time=torch.tensor([5, 7, 6])))
    assert graph.ids.tolist() == ["a", "b", "c", "d"]
    assert graph.node_times.tolist() == [0, 1, 2, 3]
    assert graph.edge_times.tolist() == [5, 5, 7, 7, 6, 6]
    assert from_pyg(make_data(n_id=torch.tensor([9, 3, 4, 1]))).ids.tolist() == ["9", "3", "4", "1"]
    by_edge = from_pyg(make_data(time=torch.arange(3)))
    assert by_edge.node_times is None
    assert by_edge.edge_times.tolist() == [0, 0, 1, 1, 2, 2]
    assert from_pyg(make_data(time=torch.tensor(3.0))).node_times is None


@pytest.mark.parametrize("y", [None, torch.full((4,), -1), torch.full((4,), torch.nan), torch.zeros(4, 3)])
def test_graph_without_labels_is_read(y):
    assert from_pyg(make_data(y=y)).y.tolist() == [-1] * 4


def test_one_hot_labels_are_classes():
    y = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]])
    graph = from_pyg(make_data(y=y))
    assert graph.y.tolist() == [2, 0, -1, 1]
    assert graph.classes == 4


BAD = {
    "several labels a node": ({"y": torch.tensor([[1, 1], [0, 1], [0, 0], [1, 0]])}, "not one-hot"),
    "several numbers a node": ({"y": torch.rand(4, 2)}, "not one-hot"),
    "no features": ({"x": None}, "lacks x"),
    "neither features nor edges": ({"x": None, "edge_index": None}, "lacks x and edge_index"),
    "node that is not there": ({"train_idx": torch.tensor([0, 4])}, "train_idx of 'pyg' must be .* 0 to 3"),
    "half a node": ({"test_idx": torch.tensor([0.5])}, "test_idx of 'pyg'"),
    "negative attribute": ({"edge_attr": torch.tensor([1.0, -1, 1])}, "Edge 1 .* leave them out"),
    "too few weights": ({"edge_weight": torch.ones(2)}, "each of its 3 edges"),
    "equal ids": ({"node_id": ["a", "a", "b", "c"]}, "both 'a'"),
}


@pytest.mark.parametrize("case", BAD)
def test_data_that_cannot_be_right_is_refused_with_one_sentence(case):
    fields, message = BAD[case]
    with pytest.raises(InputError, match=message):
        from_pyg(make_data(**fields))
