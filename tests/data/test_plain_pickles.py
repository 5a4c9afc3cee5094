"""Pickles in the data root: arrays are read, and nothing that somebody planted is run."""

import os
import pickle
import struct

import numpy as np
import pytest

from graft.data.datasets import load
from graft.data.plain_pickles import read_pickle
from graft.errors import InputError
from tests.raw_files import citation_parts, python2_pickle, write_benchmark, write_citations


@pytest.mark.filterwarnings("ignore:Please import:DeprecationWarning")
def test_what_the_tests_write_as_python_2_did_is_what_python_reads():
    for part, value in citation_parts().items():
        if part != "test.index":
            read = pickle.loads(python2_pickle(value), encoding="latin1")
            assert type(read) is type(value)
            assert (read != value).sum() == 0 if part != "graph" else read == value


# What is planted.


class Marker:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_planted_processed_file_is_not_looked_at(tmp_path):
    import torch

    marker = tmp_path / "marker"
    write_benchmark(tmp_path)
    processed = tmp_path / "Photo" / "processed"
    processed.mkdir()
    torch.save(Marker(marker), processed / "data.pt")
    assert load("photo", tmp_path).nodes == 3
    assert not marker.exists()
    torch.load(processed / "data.pt", weights_only=False)  # the control: it does create the file
    assert marker.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_planted_raw_file_is_refused_and_not_run(tmp_path, protocol):
    marker = tmp_path / "marker"
    folder = write_citations(tmp_path)
    path = folder / "ind.cora.allx"
    path.write_bytes(pickle.dumps(Marker(marker), protocol))
    with pytest.raises(InputError, match=f"'cora' in {folder} .*ind.cora.allx: it holds .* none of it was run"):
        load("cora", tmp_path)
    assert not marker.exists()
    pickle.loads(path.read_bytes())
    assert marker.exists()


def planted(*names):
    """A pickle that pushes names, one after the other, and calls the last with an empty tuple."""
    return b"\x80\x02" + b"".join(f"c{module}\n{name}\n".encode() for module, name in names) + b")R."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (planted(("posix", "system")), "the name 'posix.system', which no array needs; none of it was run"),
        (planted(("builtins", "eval")), "the name 'builtins.eval'"),
        (planted(("numpy", "load")), "the name 'numpy.load'"),
        (planted(("numpy.core.multiarray", "scalar")), "the name 'numpy.core.multiarray.scalar'"),
        (b"cos\nsystem\n(S'true'\ntR." + bytes(20), "the operation STRING"),
        (b"\x80\x02\x82\x01" + bytes(20), "the operation EXT1"),
        (b"\x80\x05\x96" + struct.pack("<q", 2**40) + bytes(20), "operation"),
        (b"\x80\x02]r\xff\xff\xff\xff." + bytes(20), "the operation LONG_BINPUT"),
        (b"\x80\x02)" + b"\x85" * 10**6 + b".", "over 200 tuples"),
        (b"\x80\x02}()" + b"\x85" * 100 + b"K\x01u.", "holds no matrix"),
        (b"\x80\x02T\xff\xff\xff\x7fabc.", "breaks off"),
        (b"\x80\x02cnumpy\ndtype\nN(NU\x01>tb.", "ind.cora.allx: "),  # the state of a class
        (b"\x80\x02ccollections\ndefaultdict\n}U\x01aK\x01sb.", "ind.cora.allx: "),
        (b"\x80\x02ccollections\ndefaultdict\n(NU\x01aK\x01tb.", "ind.cora.allx: "),
        (b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81.", "ind.cora.allx: "),
        (b"\x80\x02K\x01.", "holds no matrix"),
        (b"", "breaks off"),
    ],
)
def test_pickle_that_is_more_than_an_array_is_refused(tmp_path, content, reason):
    folder = write_citations(tmp_path)
    (folder / "ind.cora.allx").write_bytes(content)
    with pytest.raises(InputError, match=f"'cora' in {folder} cannot be used and may be damaged .*{reason}"):
        load("cora", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array.replace(struct.pack("<i", 6), struct.pack("<i", 7), 1),
        lambda array: array.replace(b"i4", b"O8"),
        lambda array: array.replace(b"i4", b"V4"),
        lambda array: array.replace(b"<", b"?"),
    ],
    ids=["shape", "objects", "structure", "byte order"],
)
def test_array_that_lies_about_itself_is_refused(tmp_path, change):
    array = python2_pickle(np.arange(6, dtype=np.int32))
    path = tmp_path / "array"
    path.write_bytes(array)
    assert read_pickle(path).tolist() == [0, 1, 2, 3, 4, 5]
    assert change(array) != array
    path.write_bytes(change(array))
    with pytest.raises(ValueError, match="array: "):
        read_pickle(path)


def test_arrays_by_column_and_of_the_other_byte_order_are_read(tmp_path):
    path = tmp_path / "array"
    for array in (np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(3, dtype=">i8")):
        path.write_bytes(pickle.dumps(array, 4))
        np.testing.assert_array_equal(read_pickle(path), array)


def test_list_of_neighbours_that_is_used_again_and_again_is_refused(tmp_path):
    folder = write_citations(tmp_path)
    shared = list(range(100))
    (folder / "ind.cora.graph").write_bytes(pickle.dumps(dict.fromkeys(range(500), shared), 2))
    with pytest.raises(InputError, match=r"ind.cora.graph has more edges than bytes"):
        load("cora", tmp_path)


def test_pickle_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    write_citations(tmp_path)
    monkeypatch.setattr("graft.data.plain_pickles.LARGEST_PICKLE", 3000)
    with pytest.raises(InputError, match="larger than 3,000 bytes"):
        load("cora", tmp_path)


@pytest.mark.parametrize("part", ["allx", "graph", "ty"])
def test_any_damaged_byte_of_a_pickle_is_refused_or_harmless(tmp_path, part):
    folder = write_citations(tmp_path)
    path = folder / f"ind.cora.{part}"
    whole = path.read_bytes()
    refusals = 0
    for position in range(0, min(len(whole), 400)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x2A]) + whole[position + 1 :])
        try:
            load("cora", tmp_path)
        except InputError:
            refusals += 1
    assert refusals > 100 if part != "ty" else refusals > 20
