"""Published files of datasets, made small."""

import pickle
import struct
from collections import defaultdict

import numpy as np
from scipy.sparse import csr_matrix

# How Python 2 wrote arrays, sparse matrices and lists of neighbours: by protocol 2, with bytes where text is today.


def python2_pickle(value):
    return b"\x80\x02" + _written(value) + b"."


def _written(value):
    return next(write(value) for kind, write in WRITERS.items() if isinstance(value, kind))


def _array(array):
    start = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85U\x01b\x87R"
    shape = b"(" + b"".join(map(_written, array.shape)) + b"t"
    dtype = b"cnumpy\ndtype\n" + _written(array.dtype.str[1:]) + b"K\x00K\x01\x87R(K\x03"
    dtype += _written(array.dtype.str[0]) + b"NNN" + 2 * _written(-1) + b"K\x00tb"
    return start + b"(K\x01" + shape + dtype + b"\x89" + _written(array.tobytes().decode("latin1")) + b"tb"


def _sparse(matrix):
    parts = {"_shape": tuple(matrix.shape), **{name: getattr(matrix, name) for name in ("data", "indices", "indptr")}}
    return b"cscipy.sparse.csr\ncsr_matrix\n)\x81}(" + _items(parts) + b"ub"


def _items(mapping):
    return b"".join(_written(part) for item in mapping.items() for part in item)


WRITERS = {
    int: lambda value: b"J" + struct.pack("<i", value),
    str: lambda value: b"T" + struct.pack("<i", len(value)) + value.encode("latin1"),
    tuple: lambda value: b"(" + b"".join(map(_written, value)) + b"t",
    list: lambda value: b"](" + b"".join(map(_written, value)) + b"e",
    np.ndarray: _array,
    csr_matrix: _sparse,
    dict: lambda value: b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R(" + _items(value) + b"u",
}
FORMS = {
    "python 2": python2_pickle,
    **{f"protocol {number}": lambda value, number=number: pickle.dumps(value, number) for number in (2, 3, 4)},
}


def citation_parts(gap=False):
    """Two training nodes, 500 for validation, and two test nodes listed in reverse order."""
    one_hot = np.eye(2, dtype=np.int32)
    first = csr_matrix(np.eye(502, 40, dtype=np.float32))
    last = 504 if gap else 503
    return {
        "x": first[:2],
        "allx": first,
        "tx": csr_matrix(np.eye(2, 40, k=10, dtype=np.float32)),
        "y": one_hot[[0, 1]],
        "ally": one_hot[[0, 1, *[0] * 500]],
        "ty": one_hot[[1, 0]],
        "graph": defaultdict(list, {0: [1, 1, 0], 1: [0, 2], 2: [1], last: [0]}),
        "test.index": f"{last}\n502\n",
    }


def write_citations(root, title="Cora", form=python2_pickle, gap=False):
    folder = root / title / "raw"
    folder.mkdir(parents=True)
    for part, value in citation_parts(gap).items():
        content = value.encode() if isinstance(value, str) else form(value)
        (folder / f"ind.{title.lower()}.{part}").write_bytes(content)
    return folder


FILES = {"Photo": "amazon_electronics_photo.npz", "CS": "ms_academic_cs.npz"}


def write_benchmark(root, title="Photo", features=2):
    folder = root / title / "raw"
    folder.mkdir(parents=True)
    attributes = csr_matrix(np.array([[2.0, *[0] * (features - 1)], [0, 1, *[0] * (features - 2)]] * 2)[:3])
    links = csr_matrix(np.array([[0, 1, 0], [0, 1, 0], [0, 1, 0]]))
    parts = {
        f"{kind}_{part}": getattr(matrix, part)
        for kind, matrix in (("attr", attributes), ("adj", links))
        for part in ("data", "indices", "indptr", "shape")
    }
    np.savez_compressed(folder / FILES[title], **parts, labels=[0, 1, 1])
    return folder


def everything(root):
    return sorted(root.rglob("*"))
