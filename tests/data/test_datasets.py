import gzip
import sys
import types
import urllib.error
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import issparse

from graft.data.datasets import default_root, load, names
from graft.errors import InputError

# Names and roots.


def test_unknown_name_is_refused_with_the_list_and_a_guess():
    with pytest.raises(InputError, match=r"did you mean 'cora'.*digits, cora, citeseer"):
        load("corra")
    with pytest.raises(InputError, match="no dataset or file 'zzzz'; the datasets"):
        load("zzzz")


def test_names_are_those_of_the_table():
    wanted = "digits cora citeseer pubmed photo computers cs physics ogbn-arxiv synthetic generated"
    assert names() == wanted.split()


@pytest.mark.parametrize("source", [3, None, [1, 2]])
def test_other_objects_are_refused(source):
    with pytest.raises(InputError, match=r"a name .*, a path, or a PyG Data"):
        load(source)


def test_a_graph_is_already_loaded(toy):
    graph = toy(2, [])
    assert load(graph) is graph


def test_root_is_graft_data_or_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAFT_DATA", str(tmp_path / "mine"))
    assert default_root() == tmp_path / "mine"
    monkeypatch.delenv("GRAFT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_root() == tmp_path / "cache" / "graft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_root() == Path.home() / ".cache" / "graft"


# Digits and synthetic.


def test_digits_are_a_symmetric_graph_of_five_nearest_images():
    graph = load("Digits")
    assert (graph.nodes, graph.features, graph.classes) == (1797, 64, 10)
    assert graph.x.min() == 0
    assert graph.x.max() == 1
    degrees = np.bincount(graph.edges[0])
    assert degrees.min() >= 5
    nearest = np.argsort(((graph.x - graph.x[0]) ** 2).sum(axis=1), kind="stable")[1:6]
    assert set(nearest) <= set(graph.edges[1][graph.edges[0] == 0])
    assert (graph.y[graph.edges[0]] == graph.y[graph.edges[1]]).mean() > 0.95


def test_synthetic_reads_its_settings():
    graph = load("synthetic:nodes=300, degree=6,classes=3,homophily=0.5,features=7,seed=2")
    assert (graph.nodes, graph.edge_count, graph.classes, graph.features) == (300, 900, 3, 7)
    assert load("synthetic").name == "synthetic"


def test_lcc_takes_the_largest_component_of_any_dataset(tmp_path):
    whole, part = load("synthetic:nodes=500,degree=2"), load("synthetic:nodes=500,degree=2:lcc")
    assert part.nodes < whole.nodes
    assert np.bincount(part.edges[0], minlength=part.nodes).min() >= 1
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.ones((3, 1)), edges=[[0], [1]], y=[0, 1, 0])
    assert load(f"{path}:lcc").nodes == 2


BAD_NAMES = [
    ("synthetic:size=3", "no setting 'size'; its settings are nodes, degree"),
    ("synthetic:name=x", "no setting 'name'"),
    ("synthetic:nodes", "whole number, not ''"),
    ("synthetic:nodes=many", "whole number, not 'many'"),
    ("synthetic:degree=x", "nodes|number, not 'x'"),
    ("digits:big", "knows no ':big'; what may follow a name is ':lcc'"),
    ("cora:lccc", "':lcc'"),
    ("photo:x", "':lcc'"),
    ("ogbn-arxiv:x", "':lcc'"),
]


@pytest.mark.parametrize(("name", "message"), BAD_NAMES)
def test_bad_settings_of_a_name_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        load(name)


# ogbn-arxiv.


def write_arxiv(root):
    files = {
        "raw/edge.csv.gz": "0,1\n1,0\n2,1\n",
        "raw/node-feat.csv.gz": "0.5,1\n-1,2.25\n3,4\n",
        "raw/node-label.csv.gz": "4\n0\n1\n",
        "raw/num-node-list.csv.gz": "3\n",
        "split/time/train.csv.gz": "0\n",
        "split/time/valid.csv.gz": "2\n",
        "split/time/test.csv.gz": "1\n",
    }
    for name, content in files.items():
        path = root / "ogbn_arxiv" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content.encode()))


def test_arxiv_is_read_from_its_raw_folder(tmp_path):
    write_arxiv(tmp_path)
    graph = load("ogbn-arxiv", tmp_path)
    assert graph.x.tolist() == [[0.5, 1], [-1, 2.25], [3, 4]]
    assert graph.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graph.y.tolist() == [4, 0, 1]
    assert [mask.tolist() for mask in graph.masks.values()] == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_arxiv_without_ogb_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb", None)
    with pytest.raises(InputError, match=r"needs the ogb package: pip install 'graft-fgl\[ogb\]'"):
        load("ogbn-arxiv", tmp_path)


def test_arxiv_is_downloaded_by_ogb(tmp_path, monkeypatch):
    module = types.ModuleType("ogb.nodeproppred")
    module.NodePropPredDataset = lambda _, root: write_arxiv(Path(root))
    monkeypatch.setitem(sys.modules, "ogb", types.ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    assert load("ogbn-arxiv", tmp_path).nodes == 3

    def fail(*_, **__):
        raise urllib.error.URLError("no route")

    module.NodePropPredDataset = fail
    with pytest.raises(InputError, match=r"could not download it.*no route"):
        load("ogbn-arxiv", tmp_path / "other")


def test_damaged_arxiv_files_are_refused(tmp_path):
    write_arxiv(tmp_path)
    (tmp_path / "ogbn_arxiv" / "raw" / "edge.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(InputError, match=r"'ogbn-arxiv' in .* damaged"):
        load("ogbn-arxiv", tmp_path)


def test_files_of_other_kinds_and_missing_paths_are_refused(tmp_path):
    (tmp_path / "graph.gml").write_text("graph []")
    with pytest.raises(InputError, match=r"graph.gml cannot be read: a dataset is a folder .*, a .npz file"):
        load(tmp_path / "graph.gml")
    with pytest.raises(InputError, match="no dataset or file"):
        load(tmp_path / "none.npz")


# A PyG Data.


@pytest.fixture
def data():
    torch = pytest.importorskip("torch")
    pyg = pytest.importorskip("torch_geometric.data")
    return pyg.Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([[0], [1], [0]]))


def test_pyg_data_is_read_with_the_first_column_of_its_masks(data):
    import torch

    data.train_mask = torch.tensor([[1, 0], [0, 1], [0, 1]], dtype=torch.bool)
    data.test_mask = torch.tensor([0, 0, 1], dtype=torch.bool)
    graph = load(data)
    assert graph.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graph.y.tolist() == [0, 1, 0]
    assert graph.train.tolist() == [True, False, False]
    assert graph.test.tolist() == [False, False, True]
    assert graph.validation is None


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr"])
def test_pyg_data_with_sparse_features_is_read(data, layout):
    import torch

    data.x = torch.eye(3, 50).to_sparse(layout=getattr(torch, layout))
    graph = load(data)
    assert issparse(graph.x)
    assert graph.x.toarray().tolist() == np.eye(3, 50).tolist()


def test_pyg_data_without_features_or_edges_is_refused(data):
    for name in ("x", "edge_index"):
        kept = data[name]
        data[name] = None
        with pytest.raises(InputError, match=f"lacks {name}"):
            load(data)
        data[name] = kept
    assert load(data).nodes == 3
