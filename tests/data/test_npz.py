"""Graphs in .npz files: what they may hold, and archives that lie about themselves."""

import struct
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
from scipy.sparse import csr_matrix, issparse

from graft.data import arrays
from graft.data.datasets import load
from graft.data.npz import read_npz
from graft.errors import DataWarning, InputError

GOOD = {"x": np.eye(3), "edges": np.array([[0, 1, 2], [1, 2, 0]]), "y": np.array([0, 1, 0])}
RING = [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]


@pytest.fixture
def npz(tmp_path):
    def write(**changed):
        np.savez(tmp_path / "mine.npz", **{**GOOD, **changed})
        return tmp_path / "mine.npz"

    return write


def without(path, *names):
    with np.load(path) as content:
        kept = {name: content[name] for name in content.files if name not in names}
    np.savez(path, **kept)
    return path


def refused(path, reason):
    with pytest.raises(InputError, match=rf"mine.npz is not a readable .npz file of plain arrays \(.*{reason}"):
        read_npz(path)


# What a file may hold.


def test_edges_are_read_in_both_layouts(npz):
    pairs = np.array([[0, 1], [1, 2], [2, 0]])
    assert load(npz()).edges.tolist() == RING
    assert load(npz(edges=pairs)).edges.tolist() == RING
    assert load(str(npz())).name == "mine"


def test_edges_of_two_by_two_are_rows_of_ends(npz):
    assert load(npz(edges=np.array([[0, 0], [1, 2]]))).edges.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]


def test_names_of_pyg_and_masks_are_understood(npz):
    path = without(npz(edge_index=GOOD["edges"], val_mask=[True, False, False], train=[False, True, False]), "edges")
    graph = load(path)
    assert graph.edges.tolist() == RING
    assert graph.validation.tolist() == [True, False, False]
    assert graph.train.tolist() == [False, True, False]
    assert graph.test is None


def test_features_may_be_sparse(npz):
    x = csr_matrix(np.eye(3, 50))
    parts = {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": x.shape}
    graph = load(without(npz(**parts), "x"))
    assert issparse(graph.x)
    assert graph.x.toarray().tolist() == np.eye(3, 50).tolist()
    with pytest.raises(InputError, match="do not fit together"):
        load(without(npz(**{**parts, "x_indices": x.indices + 100}), "x"))
    with pytest.raises(InputError, match="declares 1,000,000,000,000 features, and 16,777,216 are the most"):
        load(without(npz(**{**parts, "x_shape": (3, 10**12)}), "x"))


def test_ids_names_times_and_weights_are_kept(npz):
    graph = load(
        npz(
            ids=np.array([b"a", "ü".encode(), b"c"]),
            feature_names=["age", "size", "7"],
            class_names=["no", "yes", "maybe"],
            node_time=np.array(["1970-01-02", "1970-01-01", "1970-01-03"], "datetime64[D]"),
            edge_times=[5.0, 6.0, 7.0],
            edge_weight=[1.0, 2.0, 3.0],
        )
    )
    assert graph.ids.tolist() == ["a", "ü", "c"]
    assert graph.feature_names == ("age", "size", "7")
    assert (graph.class_names, graph.classes) == (("no", "yes", "maybe"), 3)
    assert graph.node_times.tolist() == [86400, 0, 2 * 86400]
    assert graph.edge_times.tolist() == [5, 7, 5, 6, 7, 6]
    assert graph.weights.tolist() == [1, 3, 1, 2, 3, 2]
    assert load(npz()).weights is None


def test_edge_attr_of_one_column_is_the_weight_and_of_several_is_not_used(npz):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(npz(edge_attr=[[1.0], [2.0], [3.0]])).weights.tolist() == [1, 3, 1, 2, 3, 2]
        assert load(npz(edge_attr=[1.0, 2.0, 3.0], weights=[1, 1, 2])).weights.tolist() == [1, 2, 1, 1, 2, 1]
    with pytest.warns(DataWarning, match=r"edge_attr .* is not used: it is of shape \(3, 2\)"):
        assert load(npz(edge_attr=np.ones((3, 2)))).weights is None


def test_array_that_means_nothing_here_is_not_even_read(npz):
    assert load(npz(notes=np.array([None, {}], dtype=object))).nodes == 3


# Labels.


@pytest.mark.parametrize(
    ("y", "labels", "names"),
    [
        ([1, -1, 0], [1, -1, 0], None),
        ([1.0, np.nan, -1.0], [1, -1, -1], None),
        (["cat", "", "ant"], [1, -1, 0], ("ant", "cat")),
        (["cat", "NA", " ant "], [1, -1, 0], ("ant", "cat")),
        (["10", "nan", "9"], [1, -1, 0], ("9", "10")),
        (["2.0", "n/a", "02"], [0, -1, 0], ("2",)),
        (["10", "-1", "x"], [0, -1, 1], ("10", "x")),
        ([b"b", b"na", b"a"], [1, -1, 0], ("a", "b")),
        ([["b"], [""], ["a"]], [1, -1, 0], ("a", "b")),
    ],
)
def test_labels_are_numbers_or_names_and_may_be_missing(npz, y, labels, names):
    graph = load(npz(y=y))
    assert graph.y.tolist() == labels
    assert graph.class_names == names


def test_names_of_classes_order_labels_that_are_text(npz):
    graph = load(npz(y=["low", "high", ""], class_names=["low", "middle", "high"]))
    assert graph.y.tolist() == [0, 2, -1]
    assert graph.classes == 3
    with pytest.raises(InputError, match="'mine' has the label 'hgih', which is not one of its class_names"):
        load(npz(y=["low", "hgih", ""], class_names=["low", "middle", "high"]))
    with pytest.raises(InputError, match="Two of the class_names of 'mine' are the same"):
        load(npz(y=["low", "high", ""], class_names=["low", "low", "high"]))


@pytest.mark.parametrize("y", [None, ["", "NA", "-1"], [-1, -1, -1], [np.nan] * 3])
def test_file_without_any_label_is_an_unlabelled_graph(npz, y):
    graph = load(without(npz(), "y") if y is None else npz(y=y))
    assert graph.y.tolist() == [-1, -1, -1]
    assert graph.class_names is None


def test_label_of_a_million_makes_no_million_classes(npz):
    with pytest.raises(
        InputError, match="Node 1 of 'mine' has label 1000000, but a graph of 3 nodes has at most 1000 classes"
    ):
        load(npz(y=[0, 10**6, 1]))
    with pytest.raises(InputError, match=r"label 1e\+300, but"):
        load(npz(y=[0, 1e300, 1]))
    assert load(npz(y=[0, 999, 1])).classes == 1000


# Files that are damaged, foreign, or lie.


def test_files_that_are_foreign_damaged_or_pickled_are_refused(npz, tmp_path):
    with pytest.raises(InputError, match=r"mine.npz lacks x and edges: it needs x .* and edges, usually y"):
        load(without(npz(), "x", "edges"))
    refused(npz(y=np.array([0, None, 1])), "its member 'y.npy': it holds Python objects, which only running a pickle")
    refused(npz(x=np.eye(3) * 1j), "it holds a complex128")
    refused(npz(y=np.zeros(3, [("a", int)])), r"it holds a \[\('a', '<i8'\)\]")
    refused(npz(ids=np.array([b"\xff", b"a", b"b"])), "utf-8")
    refused(npz(y=np.array([b"\xff", b"a", b"b"])), "utf-8")
    whole = npz().read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2], whole[:-30]):
        (tmp_path / "mine.npz").write_bytes(content)
        refused(tmp_path / "mine.npz", "")
    with (tmp_path / "mine.npz").open("wb") as file:
        np.save(file, np.ones(3))
    refused(tmp_path / "mine.npz", "not a zip file")


def test_any_damaged_byte_is_read_refused_in_a_sentence_or_harmless(npz):
    path = npz()
    whole = path.read_bytes()
    outcomes = set()
    for position in range(0, len(whole), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            outcomes.add(read_npz(path).nodes)
        except InputError as error:
            outcomes.add("refused" if "\n" not in str(error) else str(error))
    assert outcomes == {3, "refused"}


def write_members(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def npy(shape, dtype, data=b""):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def peak_of(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_bomb_is_refused_before_memory_is_taken(tmp_path, monkeypatch):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **{**GOOD, "x": np.zeros((3, 2**20))})  # 24 MB: many times its size, but small
    assert path.stat().st_size < 2**15
    assert peak_of(lambda: read_npz(path)) > 3 * 2**23
    assert read_npz(path).features == 2**20
    monkeypatch.setattr(arrays, "UNPACKED_ANYWAY", 2**20)  # as if it were 6 GB
    reason = "declare that they unpack to 25,166,.* 100 times the size is the most that is unpacked"
    assert peak_of(lambda: refused(path, reason)) < 2**20


def test_four_gigabytes_that_are_only_declared_are_refused(npz):
    path = patch_members(npz(x=np.ones((3, 160_000))), 24, 22, 0xFFF0_0000, "<I")
    assert path.stat().st_size < 4_000_000
    assert peak_of(lambda: refused(path, "declare that they unpack to 12,881,756,160")) < 2**20


def test_more_than_there_is_memory_for_is_refused(npz, monkeypatch):
    path = npz()
    monkeypatch.setattr(arrays, "free_ram", lambda: 500)
    refused(path, "it unpacks to .* bytes, and 500 bytes of memory are free")


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compression_is_refused(tmp_path, method):
    members = [("x.npy", npy((3, 1), "<f8", bytes(24)))]
    refused(write_members(tmp_path / "mine.npz", members, method), f"'x.npy' is compressed by method {method}")


def patch_members(path, offset_in_central, offset_in_local, value, form="<H"):
    """Writes a number into the headers of all members."""
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\1\2", offset_in_central), (b"PK\3\4", offset_in_local)):
        position = content.find(signature)
        while position >= 0:
            struct.pack_into(form, content, position + offset, value)
            position = content.find(signature, position + 1)
    path.write_bytes(content)
    return path


def test_encrypted_members_and_methods_that_do_not_exist_are_refused(npz):
    refused(patch_members(npz(), 8, 6, 1), "'x.npy' is encrypted")
    refused(patch_members(npz(), 10, 8, 99), "'x.npy' is compressed by method 99")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (npy((10**9, 10**9), "<f8", bytes(24)), "takes 8,000,000,000,000,000,000 bytes, but 24 are there"),
        (npy((3, 2), "<f8", bytes(24)), "takes 48 bytes, but 24 are there"),
        (npy((3, 1), "<f8", bytes(48)), "takes 24 bytes, but 48 are there"),
        (npy((-3, -1), "<f8", bytes(24)), "bytes"),
        (npy((10**12,), "<U0"), "0 bytes"),
        (npy((1,), "<U100000", bytes(400000)), "one of its cells takes 400,000 bytes"),
        (npy("(" * 200, "<f8"), "x.npy"),
        (npy((3, 1), "|O", bytes(24)), "Python objects"),
        (b"\x93NUMPY\x03\x00" + bytes(100), "format 3.0"),
        (b"\x93NUMPY\x01\x00\xff", "x.npy"),
        (b"x", "x.npy"),
        (b"", "x.npy"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path, content, reason):
    refused(write_members(tmp_path / "mine.npz", [("x.npy", content)]), reason)


def test_members_that_are_too_many_overlap_or_come_twice_are_refused(tmp_path, npz):
    path = tmp_path / "mine.npz"
    refused(write_members(path, [(f"{number}.npy", b"") for number in range(1001)]), "1,001 members, and 1,000")
    refused(write_members(path, [(f"{number:01000}.npy", b"") for number in range(1100)]), "list of members is longer")
    with pytest.warns(UserWarning, match="Duplicate name"):
        write_members(path, [("x.npy", b"1"), ("x.npy", b"2")])
    refused(path, "two of its members have the same name")
    content = bytearray(npz().read_bytes())
    second = content.find(b"PK\1\2", content.find(b"PK\1\2") + 1)
    struct.pack_into("<I", content, second + 42, 0)  # the second member starts where the first does
    path.write_bytes(content)
    refused(path, "overlaps what follows it")
