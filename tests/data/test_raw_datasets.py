"""Datasets in the files in which they were published, made small: what is read, what is refused, what is downloaded."""

import os
import pickle
import shutil
import subprocess
import sys
import urllib.error
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import issparse

from graft.data.datasets import default_root, load
from graft.data.pyg_data import from_pyg
from graft.errors import InputError
from tests.raw_files import FILES, FORMS, everything, write_benchmark, write_citations


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    from torch_geometric.datasets import Amazon, Coauthor, Planetoid

    def refuse(_):
        raise urllib.error.URLError("no network in tests")

    for kind in (Amazon, Coauthor, Planetoid):
        monkeypatch.setattr(kind, "download", refuse)


def assert_same(graph, other):
    assert (graph.name, graph.classes) == (other.name, other.classes)
    assert issparse(graph.x) == issparse(other.x)
    parts = ("data", "indices", "indptr") if issparse(graph.x) else ("real",)
    pairs = [(getattr(graph.x, part), getattr(other.x, part)) for part in parts]
    pairs += [(graph.edges, other.edges), (graph.y, other.y)]
    pairs += [(graph.masks[mask], other.masks[mask]) for mask in graph.masks]
    assert graph.masks.keys() == other.masks.keys()
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def load_by_pyg(root, title, kind):
    from torch_geometric import datasets

    return from_pyg(getattr(datasets, kind)(str(root), title)[0], title.lower())


# What is read.


@pytest.mark.parametrize("form", FORMS)
def test_citations_are_read_with_their_public_split_however_they_were_pickled(tmp_path, form):
    write_citations(tmp_path, form=FORMS[form])
    before = everything(tmp_path)
    graph = load("cora", str(tmp_path))
    assert graph.name == "cora"
    assert issparse(graph.x)
    assert graph.x[[0, 1, 502, 503]].toarray().argmax(axis=1).tolist() == [0, 1, 11, 10]
    assert graph.y[[0, 1, 502, 503]].tolist() == [0, 1, 0, 1]
    assert graph.edges.tolist() == [[0, 0, 1, 1, 2, 503], [1, 503, 0, 2, 1, 0]]
    assert [np.flatnonzero(mask)[[0, -1]].tolist() for mask in graph.masks.values()] == [[0, 1], [2, 501], [502, 503]]
    assert everything(tmp_path) == before


def test_pyg_reads_the_same_of_citations(tmp_path):
    write_citations(tmp_path)
    assert_same(load("cora", tmp_path), load_by_pyg(tmp_path, "Cora", "Planetoid"))


def test_gaps_between_test_nodes_are_nodes_without_features_as_pyg_has_it(tmp_path):
    write_citations(tmp_path, "CiteSeer", gap=True)
    graph = load("citeseer", tmp_path)
    assert graph.nodes == 505
    assert graph.x[[503]].nnz == 0
    assert graph.y[503] == 0
    assert not graph.test[503]
    assert graph.edges[:, -1].tolist() == [504, 0]
    assert_same(graph, load_by_pyg(tmp_path, "CiteSeer", "Planetoid"))


@pytest.mark.parametrize(("title", "kind", "features"), [("Photo", "Amazon", 2), ("CS", "Coauthor", 30)])
def test_benchmarks_are_read_with_binary_features_and_no_split_as_pyg_does(tmp_path, title, kind, features):
    write_benchmark(tmp_path, title, features)
    before = everything(tmp_path)
    graph = load(title, tmp_path)
    assert everything(tmp_path) == before
    dense = graph.x.toarray() if issparse(graph.x) else graph.x
    assert dense[:, :2].tolist() == [[1, 0], [0, 1], [1, 0]]
    assert issparse(graph.x) == (title == "CS")
    assert graph.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graph.masks == {}
    assert_same(graph, load_by_pyg(tmp_path, title, kind))


def test_comparison_of_graphs_sees_a_changed_label(tmp_path):
    write_benchmark(tmp_path / "a")
    graph, changed = load("photo", tmp_path / "a"), load("photo", tmp_path / "a")
    changed.y[0] = 1
    with pytest.raises(AssertionError):
        assert_same(graph, changed)


# What is damaged.


@pytest.mark.parametrize("part", ["allx", "ty", "graph", "test.index"])
def test_damaged_files_of_citations_are_refused(tmp_path, part):
    folder = write_citations(tmp_path)
    path = folder / f"ind.cora.{part}"
    before = everything(tmp_path)
    for content in (path.read_bytes()[:20] + b"?\n", b"hello\n"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"'cora' in {folder} .* damaged"):
            load("cora", tmp_path)
        assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("test.index", b"503\n503\n", "does not number the 2 nodes of tx from 502 on"),
        ("test.index", b"502\n", "does not number"),
        ("test.index", b"0\n1\n", "does not number"),
        ("test.index", b"502\n9999999999\n", "far beyond its 2 nodes"),
        ("test.index", b"502\nx\n", "ValueError"),
        ("ty", np.eye(3), "labels are not as many"),
        ("tx", np.eye(2, 5), "dimension"),
        ("graph", {0: 1}, "holds no lists of neighbours"),
        ("graph", {0: ["a"]}, "ValueError|invalid"),
        ("graph", {0: [504]}, "joins 0 and 504, but its nodes are 0 to 503"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(tmp_path, part, value, reason):
    folder = write_citations(tmp_path)
    content = value if isinstance(value, bytes) else pickle.dumps(value, 4)
    (folder / f"ind.cora.{part}").write_bytes(content)
    with pytest.raises(InputError, match=f"'cora' in {folder} cannot be used and may be damaged .*({reason})"):
        load("cora", tmp_path)


def test_damaged_benchmark_file_is_refused(tmp_path):
    folder = write_benchmark(tmp_path)
    path = folder / FILES["Photo"]
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", whole[:100] + b"????" + whole[104:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"'photo' in {folder} .* damaged"):
            load("photo", tmp_path)
    np.savez(path, labels=[0, 1])
    with pytest.raises(InputError, match="lacks attr_data and attr_indices"):
        load("photo", tmp_path)


# What is missing.


@pytest.mark.parametrize("title", ["Cora", "CiteSeer", "PubMed", "Photo", "Computers", "CS", "Physics"])
def test_files_that_cannot_be_downloaded_are_asked_for_and_leave_no_trace(tmp_path, title):
    root = tmp_path / "new" / "root"
    expected = (
        f"The files of dataset '{title.lower()}' are not in {root / title / 'raw'}, .*no network in tests.*GRAFT_DATA"
    )
    with pytest.raises(InputError, match=expected):
        load(title, root)
    assert everything(tmp_path) == []


def test_missing_file_of_several_is_named_and_the_others_are_kept(tmp_path):
    folder = write_citations(tmp_path)
    (folder / "ind.cora.x").unlink()
    before = everything(tmp_path)
    with pytest.raises(InputError, match=f"The files ind.cora.x of dataset 'cora' are not in {folder}, .*no network"):
        load("cora", tmp_path)
    assert everything(tmp_path) == before


def test_root_that_is_a_file_is_named(tmp_path):
    (tmp_path / "root").write_text("a file")
    with pytest.raises(InputError, match=f"'cora' are not in {tmp_path / 'root' / 'Cora' / 'raw'}"):
        load("cora", tmp_path / "root")


def test_download_puts_only_missing_files_into_place_and_makes_nothing_of_them(tmp_path, monkeypatch):
    from torch_geometric.datasets import Planetoid

    published = write_citations(tmp_path / "web")

    def arrive(dataset):
        for name in dataset.raw_file_names:
            (Path(dataset.raw_dir) / name).write_bytes((published / name).read_bytes())

    monkeypatch.setattr(Planetoid, "download", arrive)
    monkeypatch.setattr(Planetoid, "process", lambda _: pytest.fail("PyG unpickled the files"))
    folder = write_citations(tmp_path / "mine", form=FORMS["protocol 3"])
    kept = (folder / "ind.cora.graph").read_bytes()
    (folder / "ind.cora.allx").unlink()
    assert_same(load("cora", tmp_path / "mine"), load("cora", tmp_path / "new"))
    assert (folder / "ind.cora.graph").read_bytes() == kept
    arrived = [path.relative_to(tmp_path / "new") for path in everything(tmp_path / "new")]
    assert arrived == [path.relative_to(tmp_path / "web") for path in everything(tmp_path / "web")]


def test_broken_download_does_not_pass_for_the_file(tmp_path, monkeypatch):
    from torch_geometric.datasets import Amazon

    def break_off(dataset):
        Path(dataset.raw_paths[0]).write_bytes(b"half")
        raise ConnectionResetError("broken off")

    def arrive(dataset):
        Path(dataset.raw_paths[0]).write_bytes(
            (write_benchmark(tmp_path / "web") / dataset.raw_file_names).read_bytes()
        )

    monkeypatch.setattr(Amazon, "download", break_off)
    with pytest.raises(InputError, match="broken off"):
        load("photo", tmp_path)
    assert everything(tmp_path) == []
    monkeypatch.setattr(Amazon, "download", arrive)
    assert load("photo", tmp_path).nodes == 3


def test_named_dataset_is_read_without_pytorch(tmp_path):
    write_citations(tmp_path)
    code = "import sys; from graft.data.datasets import load; load('cora'); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "GRAFT_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


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


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("name", FACTS)
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
@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("CiteSeer", "Planetoid"),
        ("Photo", "Amazon"),
        *(
            pytest.param(title, kind, marks=pytest.mark.slow)
            for title, kind in [
                ("Cora", "Planetoid"),
                ("PubMed", "Planetoid"),
                ("Computers", "Amazon"),
                ("CS", "Coauthor"),
                ("Physics", "Coauthor"),
            ]
        ),
    ],
)
def test_real_dataset_is_what_pyg_makes_of_it(tmp_path, title, kind):
    shutil.copytree(default_root() / title / "raw", tmp_path / title / "raw")
    assert_same(load(title), load_by_pyg(tmp_path, title, kind))


@pytest.mark.usefixtures("real_data")
def test_real_photo_has_no_split():
    assert load("photo").masks == {}
