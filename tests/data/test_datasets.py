import gzip
import os
import pickle
import sys
import time
import types
import urllib.error
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, issparse

from graft.data import datasets
from graft.data.datasets import default_root, load, names
from graft.errors import InputError


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    from torch_geometric.datasets import Amazon, Coauthor, Planetoid

    def refuse(_):
        raise urllib.error.URLError("no network in tests")

    for kind in (Amazon, Coauthor, Planetoid):
        monkeypatch.setattr(kind, "download", refuse)


# Names and roots.


def test_unknown_name_is_refused_with_the_list_and_a_guess():
    with pytest.raises(InputError, match=r"did you mean 'cora'.*digits, cora, citeseer"):
        load("corra")
    with pytest.raises(InputError, match="no dataset or file 'zzzz'; the datasets"):
        load("zzzz")


def test_names_are_the_ten_datasets():
    wanted = "digits cora citeseer pubmed photo computers cs physics ogbn-arxiv synthetic"
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


# Raw files of PyG's datasets, made small.


def write_cora(root):
    """Two training nodes, 500 for validation, and two test nodes listed in reverse order."""
    folder = root / "Cora" / "raw"
    folder.mkdir(parents=True)
    one_hot = np.eye(2, dtype=np.int32)
    first = csr_matrix(np.eye(502, 40, dtype=np.float32))
    parts = {
        "x": first[:2],
        "allx": first,
        "tx": csr_matrix(np.eye(2, 40, k=10, dtype=np.float32)),
        "y": one_hot[[0, 1]],
        "ally": one_hot[[0, 1, *[0] * 500]],
        "ty": one_hot[[1, 0]],
        "graph": defaultdict(list, {0: [1, 1, 0], 1: [0, 2], 2: [1], 503: [0]}),
    }
    for part, value in parts.items():
        (folder / f"ind.cora.{part}").write_bytes(pickle.dumps(value, protocol=4))
    (folder / "ind.cora.test.index").write_text("503\n502\n")
    return folder


def write_photo(root):
    folder = root / "Photo" / "raw"
    folder.mkdir(parents=True)
    attributes = csr_matrix(np.array([[2.0, 0], [0, 1], [1, 1]]))
    links = csr_matrix(np.array([[0, 1, 0], [0, 1, 0], [0, 1, 0]]))
    parts = {
        f"{kind}_{part}": getattr(matrix, part)
        for kind, matrix in (("attr", attributes), ("adj", links))
        for part in ("data", "indices", "indptr", "shape")
    }
    np.savez(folder / "amazon_electronics_photo.npz", **parts, labels=[0, 1, 1])
    return folder


def everything(root):
    return sorted(root.rglob("*"))


def test_cora_is_read_by_pyg_with_its_public_split(tmp_path):
    write_cora(tmp_path)
    for _ in range(2):  # made from the raw files, then read as PyG kept it
        graph = load("cora", str(tmp_path))
        assert graph.name == "cora"
        assert issparse(graph.x)
        assert graph.x[[0, 1, 502, 503]].toarray().argmax(axis=1).tolist() == [0, 1, 11, 10]
        assert graph.y[[0, 1, 502, 503]].tolist() == [0, 1, 0, 1]
        assert graph.edges.tolist() == [[0, 0, 1, 1, 2, 503], [1, 503, 0, 2, 1, 0]]
        assert [np.flatnonzero(mask)[[0, -1]].tolist() for mask in graph.masks.values()] == [
            [0, 1],
            [2, 501],
            [502, 503],
        ]
        assert (tmp_path / "Cora" / "processed" / "data.pt").is_file()


def test_photo_is_read_by_pyg_with_binary_features_and_no_split(tmp_path):
    write_photo(tmp_path)
    graph = load("Photo", tmp_path)
    assert graph.name == "photo"
    assert graph.x.tolist() == [[1, 0], [0, 1], [1, 1]]
    assert graph.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graph.masks == {}


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    """A root with raw files that nobody may write to, not even the superuser, and a cache of one's own."""
    root = tmp_path / "root"
    write_photo(root)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "_writable", lambda _: False)
    return root


def test_pyg_works_in_the_cache_when_the_root_is_read_only(read_only, tmp_path):
    before = everything(read_only)
    assert load("photo", read_only).nodes == 3
    assert load("photo", read_only).nodes == 3
    assert everything(read_only) == before
    (place,) = (tmp_path / "cache" / "graft").iterdir()
    assert (place / "Photo" / "raw").resolve() == (read_only / "Photo" / "raw").resolve()
    assert (place / "Photo" / "processed" / "data.pt").is_file()


def test_a_cache_that_cannot_be_made_is_named(read_only, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InputError, match=f"'photo' in {read_only}.*{tmp_path / 'cache'}"):
        load("photo", read_only)


def test_two_read_only_roots_do_not_share_a_place_in_the_cache(read_only, tmp_path):
    write_photo(tmp_path / "other")
    load("photo", read_only)
    load("photo", tmp_path / "other")
    assert len(list((tmp_path / "cache" / "graft").iterdir())) == 2


def test_what_pyg_made_in_a_read_only_root_is_read_there(tmp_path, monkeypatch):
    write_photo(tmp_path)
    load("photo", tmp_path)
    monkeypatch.setattr(datasets, "_writable", lambda _: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert load("photo", tmp_path).nodes == 3
    assert not (tmp_path / "cache").exists()


def test_a_folder_is_writable_when_it_or_what_would_hold_it_is(tmp_path, monkeypatch):
    assert datasets._writable(tmp_path / "a" / "b")
    monkeypatch.setattr(
        datasets.os, "access", lambda path, mode: path.exists() and (mode == os.F_OK or path != tmp_path)
    )
    assert not datasets._writable(tmp_path / "a" / "b")
    (tmp_path / "a").mkdir()
    assert datasets._writable(tmp_path / "a" / "b")


@pytest.mark.parametrize("title", ["Cora", "CiteSeer", "PubMed", "Photo", "Computers", "CS", "Physics"])
def test_files_that_cannot_be_downloaded_are_asked_for_and_leave_no_trace(tmp_path, title):
    root = tmp_path / "new" / "root"
    with pytest.raises(InputError, match=f"'{title.lower()}' are not in {root / title / 'raw'}, .*no network in tests"):
        load(title, root)
    assert everything(tmp_path) == []


def test_files_missing_from_a_read_only_root_are_asked_for_there(read_only, tmp_path):
    before = everything(tmp_path)
    with pytest.raises(InputError, match=f"'cora' are not in {read_only / 'Cora' / 'raw'}, .*no network in tests"):
        load("cora", read_only)
    assert everything(tmp_path) == before


def test_a_broken_download_does_not_pass_for_the_file(tmp_path, monkeypatch):
    from torch_geometric.datasets import Amazon

    def break_off(dataset):
        Path(dataset.raw_paths[0]).write_bytes(b"half")
        raise ConnectionResetError("broken off")

    def arrive(dataset):
        Path(dataset.raw_paths[0]).write_bytes((write_photo(tmp_path / "web") / dataset.raw_file_names).read_bytes())

    monkeypatch.setattr(Amazon, "download", break_off)
    with pytest.raises(InputError, match="broken off"):
        load("photo", tmp_path)
    assert everything(tmp_path) == []
    monkeypatch.setattr(Amazon, "download", arrive)
    assert load("photo", tmp_path).nodes == 3


def test_an_incomplete_folder_is_named_and_keeps_its_files(tmp_path):
    folder = write_cora(tmp_path)
    (folder / "ind.cora.x").unlink()
    before = everything(tmp_path)
    with pytest.raises(InputError, match=f"'cora' in {folder} .*no network in tests"):
        load("cora", tmp_path)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("part", ["allx", "ty", "graph", "test.index"])
def test_damaged_raw_files_of_cora_are_refused(tmp_path, part):
    folder = write_cora(tmp_path)
    path = folder / f"ind.cora.{part}"
    before = everything(tmp_path)
    for content in (path.read_bytes()[:20] + b"?\n", b"hello\n"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"'cora' in {folder} .* damaged"):
            load("cora", tmp_path)
        assert everything(tmp_path) == before


def test_damaged_raw_file_of_photo_is_refused(tmp_path):
    folder = write_photo(tmp_path)
    path = folder / "amazon_electronics_photo.npz"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", whole[:300] + b"????" + whole[304:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"'photo' in {folder} .* damaged"):
            load("photo", tmp_path)


def test_damaged_processed_file_is_refused_and_made_again_once_deleted(tmp_path):
    import torch
    from torch_geometric.data import Data

    write_photo(tmp_path)
    load("photo", tmp_path)
    path = tmp_path / "Photo" / "processed" / "data.pt"
    whole = path.read_bytes()
    torch.save(({"x": torch.eye(2)}, None, Data), path)
    for content in (path.read_bytes(), whole[: len(whole) // 2], b"", b"hello"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"'photo' in {path.parent} .* damaged"):
            load("photo", tmp_path)
    path.unlink()
    assert load("photo", tmp_path).nodes == 3


def test_pyg_says_nothing_on_the_terminal(tmp_path, monkeypatch, capfd):
    from torch_geometric.datasets import Amazon

    process = Amazon.process

    def warn(dataset):
        warnings.warn("a change is coming", stacklevel=1)
        process(dataset)

    monkeypatch.setattr(Amazon, "process", warn)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # PyG is quiet where it is set
    write_photo(tmp_path / "ours")
    write_photo(tmp_path / "theirs")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        load("photo", tmp_path / "ours")
        assert not heard
        assert capfd.readouterr() == ("", "")
        Amazon(str(tmp_path / "theirs"), "Photo")
        assert heard
        assert "Processing..." in capfd.readouterr().err


def test_loading_waits_for_another_that_is_half_way(tmp_path, monkeypatch):
    from torch_geometric.datasets import Amazon

    process = Amazon.process

    def half_first(dataset):
        Path(dataset.processed_paths[0]).write_bytes(b"half")
        time.sleep(0.2)
        process(dataset)

    monkeypatch.setattr(Amazon, "process", half_first)
    write_photo(tmp_path)
    with ThreadPoolExecutor() as threads:  # the lock treats threads as it treats processes
        first = threads.submit(load, "photo", tmp_path)
        time.sleep(0.1)
        second = threads.submit(load, "photo", tmp_path)
    assert first.result().nodes == second.result().nodes == 3


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


# A .npz file.

GOOD = {"x": np.eye(3), "edges": np.array([[0, 1, 2], [1, 2, 0]]), "y": np.array([0, 1, 0])}
RING = [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "mine.npz", **arrays)
        return tmp_path / "mine.npz"

    return write


def test_npz_file_is_read_in_both_layouts_of_edges(npz):
    pairs = np.array([[0, 1], [1, 2], [2, 0]])
    assert load(npz(**GOOD)).edges.tolist() == RING
    assert load(npz(**{**GOOD, "edges": pairs})).edges.tolist() == RING
    assert load(str(npz(**GOOD))).name == "mine"


def test_npz_edges_of_two_by_two_are_rows_of_ends(npz):
    graph = load(npz(**{**GOOD, "edges": np.array([[0, 0], [1, 2]])}))
    assert graph.edges.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]


def test_npz_file_may_use_the_names_of_pyg_and_carry_masks(npz):
    arrays = {"x": GOOD["x"], "y": GOOD["y"], "edge_index": GOOD["edges"], "val_mask": [True, False, False]}
    graph = load(npz(**arrays, train=[False, True, False]))
    assert graph.edges.tolist() == RING
    assert graph.validation.tolist() == [True, False, False]
    assert graph.train.tolist() == [False, True, False]
    assert graph.test is None


def test_npz_file_may_hold_sparse_features(npz):
    x = csr_matrix(np.eye(3, 50))
    parts = {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": x.shape}
    graph = load(npz(**parts, edges=GOOD["edges"], y=GOOD["y"]))
    assert issparse(graph.x)
    assert graph.x.toarray().tolist() == np.eye(3, 50).tolist()
    with pytest.raises(InputError, match="do not fit together"):
        load(npz(**{**parts, "x_indices": x.indices + 100}, edges=GOOD["edges"], y=GOOD["y"]))


def test_npz_files_that_are_foreign_damaged_or_pickled_are_refused(npz, tmp_path):
    with pytest.raises(InputError, match=r"mine.npz lacks x and edges: it needs x .*, edges and y"):
        load(npz(y=[0, 1]))
    with pytest.raises(InputError, match=r"mine.npz is not a readable"):
        load(npz(**{**GOOD, "y": np.array([0, None, 1])}))
    whole = npz(**GOOD).read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2]):
        (tmp_path / "mine.npz").write_bytes(content)
        with pytest.raises(InputError, match=r"mine.npz is not a readable"):
            load(tmp_path / "mine.npz")
    with (tmp_path / "mine.npz").open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(InputError, match=r"mine.npz is not a readable"):
        load(tmp_path / "mine.npz")


def test_files_of_other_kinds_and_missing_paths_are_refused(tmp_path):
    (tmp_path / "graph.gml").write_text("graph []")
    with pytest.raises(InputError, match=r"graph.gml cannot be read: a dataset is a .npz file or a folder"):
        load(tmp_path / "graph.gml")
    with pytest.raises(InputError, match="no dataset or file"):
        load(tmp_path / "none.npz")


# A folder with two tables.

NODES = "id,label,age,height,split\na,cat,1,2.5,train\nb,,3,4,\nc,dog,5,6,test\nd,cat,0,1,validation\n"
EDGES = "source,target,weight\na,b,3\nb,a,3\nc,a,1\n"


@pytest.fixture
def folder(tmp_path):
    def write(nodes=NODES, edges=EDGES):
        (tmp_path / "nodes.csv").write_text(nodes)
        (tmp_path / "edges.csv").write_text(edges)
        return tmp_path

    return write


def test_folder_of_tables_is_read(folder):
    graph = load(folder())
    assert graph.x.tolist() == [[1, 2.5], [3, 4], [5, 6], [0, 1]]
    assert graph.y.tolist() == [0, -1, 1, 0]
    assert graph.edges.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert [mask.tolist() for mask in graph.masks.values()] == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    assert graph.classes == 2
    assert load(str(folder())).nodes == 4


def test_labels_that_are_whole_numbers_are_ordered_by_value(folder):
    graph = load(folder("id,label,f\na,10,1\nb,2,1\nc,-1,1\n", "source,target\na,b\n"))
    assert graph.y.tolist() == [2, 1, 0]
    mixed = load(folder("id,label,f\na,10,1\nb,2,1\nc,x,1\n", "source,target\n"))
    assert mixed.y.tolist() == [0, 1, 2]
    assert mixed.masks == {}


def test_tables_may_have_a_byte_order_mark_spaces_quotes_and_blank_lines(folder):
    graph = load(folder('\ufeffid, label, f\n"a, 1", x, 2\n\nb,y,3\n', 'target,source\n"a, 1", b\n'))
    assert graph.x.tolist() == [[2], [3]]
    assert graph.edge_count == 1


BAD_TABLES = [
    ({"nodes": NODES.replace("2.5", "tall")}, r"nodes.csv, line 2, column height: 'tall' is not a finite number"),
    ({"nodes": NODES.replace("2.5", "nan")}, "line 2, column height"),
    ({"nodes": NODES.replace("2.5", "1e300")}, "line 2, column height"),
    ({"nodes": NODES.replace("2.5", "")}, "line 2, column height: ''"),
    ({"nodes": NODES.replace("c,dog", "a,dog")}, r"nodes.csv, line 4: the id 'a' was used before"),
    ({"nodes": NODES.replace("c,dog", ",dog")}, "line 4: the id is empty"),
    ({"nodes": NODES.replace("test", "tset")}, "line 4: the split 'tset' is not one of train, validation, test"),
    ({"nodes": NODES.replace(",dog", "")}, "line 4: 4 cells, but 5 columns"),
    ({"nodes": NODES.replace("id,", "name,")}, r"nodes.csv, line 1: the header lacks id"),
    ({"nodes": NODES.replace("height", "age")}, "two columns of the header have the same name"),
    ({"nodes": "id,label\na,1\n"}, "there is no feature"),
    ({"nodes": "id,label,f\na,,1\n"}, "no label at all"),
    ({"nodes": "id,label,f\n"}, "no node"),
    ({"nodes": ""}, "the header lacks id and label"),
    ({"edges": EDGES.replace("c,a", "c,z")}, r"edges.csv, line 4: there is no node 'z' in nodes.csv"),
    ({"edges": "a,b\n"}, r"edges.csv, line 1: the header lacks source and target"),
    ({"edges": ""}, "the header lacks source and target"),
]


@pytest.mark.parametrize(("change", "message"), BAD_TABLES)
def test_bad_tables_are_refused_with_file_and_line(folder, change, message):
    with pytest.raises(InputError, match=message):
        load(folder(**change))


def test_folders_without_tables_and_tables_that_are_not_text_are_refused(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no nodes.csv"):
        load(tmp_path / "empty")
    path = folder()
    (path / "edges.csv").write_bytes(b"source,target\n\xff\xfe,a\n")
    with pytest.raises(InputError, match=r"edges.csv is not a readable CSV file"):
        load(path)
    (path / "edges.csv").unlink()
    with pytest.raises(InputError, match=r"has no edges.csv"):
        load(path)


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


def test_pyg_data_without_features_labels_or_edges_is_refused(data):
    for name in ("x", "edge_index", "y"):
        kept = data[name]
        data[name] = None
        with pytest.raises(InputError, match=f"lacks {name}"):
            load(data)
        data[name] = kept
    assert load(data).nodes == 3


# The real datasets.

FACTS = {
    "cora": (2708, 5278, 1433, 7),
    "citeseer": (3327, 4552, 3703, 6),
    "pubmed": (19717, 44324, 500, 3),
    "photo": (7650, 119081, 745, 8),
    "photo:lcc": (7487, 119043, 745, 8),
    "computers": (13752, 245861, 767, 10),
    "computers:lcc": (13381, 245778, 767, 10),
    "cs": (18333, 81894, 6805, 15),
    "physics": (34493, 247962, 8415, 5),
}
SLOW = {"physics": pytest.mark.slow}  # PyG makes it dense: over a gigabyte


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in FACTS])
def test_real_dataset_has_the_published_size(name):
    graph = load(name)
    assert graph.name == name.partition(":")[0]
    assert (graph.nodes, graph.edge_count, graph.features, graph.classes) == FACTS[name]
    assert issparse(graph.x) == (name in ("cora", "citeseer", "cs", "physics"))


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize(("name", "train"), [("cora", 140), ("citeseer", 120), ("pubmed", 60)])
def test_real_dataset_has_the_public_split(name, train):
    graph = load(name)
    assert [int(mask.sum()) for mask in graph.masks.values()] == [train, 500, 1000]
    assert sum(graph.masks.values()).max() == 1
    assert np.bincount(graph.y[graph.train]).tolist() == [20] * graph.classes


@pytest.mark.usefixtures("real_data")
def test_real_photo_has_no_split():
    assert load("photo").masks == {}
