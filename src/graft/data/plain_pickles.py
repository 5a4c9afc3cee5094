"""Pickles of arrays, sparse matrices and lists of neighbours, read without running what else a pickle can ask for.

Before a pickle is read, its operations are checked: they are those that such files are made of, and none claims more
memory than the file has bytes. The few names in it stand for classes of this module, never for what they name.
"""

import io
import pickle
import pickletools
import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from graft.data.arrays import DAMAGED_FILE_ERRORS, DamagedFileError
from graft.files import printable

LARGEST_PICKLE = 2**25  # bytes; the largest file of the three datasets has 7.6 million
MOST_OTHER_OPERATIONS = 200  # tuples, texts and calls: a sparse matrix takes 50
# Whole numbers, lists, dicts, None, marks and the memo, which is as long as its largest entry: 2^20 at most.
MANY = re.compile(rb"(?s:K.|M..|J....|[\](}aeusN]|[qh].|[rj]..[\x00-\x0f]\x00|\x94)*+")
# True, False, tuples, calls, states; protocol, frame, names.
OTHER = re.compile(rb"(?s:[)t\x81\x85-\x89\x93Rb]|\x80[\x02-\x04]|\x95.{8}|c[\w.]+\n\w+\n)")
LONGEST_OPERATION = 9  # bytes, without texts and names
TEXTS = {b"U": 1, b"C": 1, b"\x8c": 1, b"T": 4, b"X": 4, b"B": 4}  # bytes of the length before a text
OPCODES = {opcode.code.encode("latin1"): opcode.name for opcode in pickletools.opcodes}
DTYPE = re.compile(r"[iuf][1248]|b1")


def read_pickle(path: Path) -> Any:
    """Returns the array, the sparse matrix or the dict of lists in a pickle of protocol 2 to 4."""
    try:
        if path.stat().st_size > LARGEST_PICKLE:
            raise DamagedFileError(f"it is larger than {LARGEST_PICKLE:,} bytes")
        content = path.read_bytes()
        _check_operations(content)
        record = _Unpickler(content).load()
        return record.value() if isinstance(record, _Array | _Csr) else record
    except (*DAMAGED_FILE_ERRORS, pickle.UnpicklingError) as error:
        raise DamagedFileError(f"{path.name}: {printable(error) or type(error).__name__}") from error


def _check_operations(content: bytes) -> None:
    position = 0
    for _ in range(MOST_OTHER_OPERATIONS):
        position = _end(MANY, content, position)
        operation = content[position : position + 1]
        if operation == b".":
            return
        if operation in TEXTS:
            start = position + 1 + TEXTS[operation]
            position = start + int.from_bytes(content[position + 1 : start], "little")
            continue
        end = _end(OTHER, content, position)
        if end == position:
            if len(content) - position > LONGEST_OPERATION:
                raise _refusal(f"the operation {OPCODES.get(operation, repr(operation))}")
            raise DamagedFileError("it breaks off")
        position = end
    raise _refusal(f"over {MOST_OTHER_OPERATIONS} tuples, texts and calls")


def _end(pattern: re.Pattern[bytes], content: bytes, position: int) -> int:
    match = pattern.match(content, position)
    return match.end() if match else position


def _refusal(what: str) -> DamagedFileError:
    return DamagedFileError(f"it holds {what}, which no array needs; none of it was run")


class _Array:
    """What stands for an array until its state is known."""

    def __init__(self, *_: object) -> None:
        self._array: NDArray[Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, by_column, data = state
        cells = data.encode("latin1") if isinstance(data, str) else data
        if not isinstance(dtype, _Dtype) or min(shape) < 0 or prod(shape) * dtype.value.itemsize != len(cells):
            raise DamagedFileError("the shape of an array is not that of its data")
        self._array = np.frombuffer(cells, dtype.value).reshape(shape, order="F" if by_column else "C")

    def value(self) -> NDArray[Any]:
        if self._array is None:
            raise DamagedFileError("an array has no data")
        return self._array


class _Dtype:
    """What stands for the dtype of an array of numbers or truth values."""

    def __init__(self, code: str, *_: object) -> None:
        if not DTYPE.fullmatch(code):
            raise DamagedFileError(f"an array is of '{code}'")
        self.value = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.value = self.value.newbyteorder(state[1])


class _Csr:
    """What stands for a sparse matrix until all its parts are known."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._state = state

    def value(self) -> csr_array:
        data, indices, indptr = (self._state[part].value() for part in ("data", "indices", "indptr"))
        matrix = csr_array((data, indices, indptr), shape=self._state["_shape"])
        matrix.check_format(full_check=True)
        return matrix


class _Bytes(bytes):
    """What stands for the way in which Python 3 writes bytes by protocol 2."""

    def __new__(cls, text: str, _: object) -> "_Bytes":
        return super().__new__(cls, text.encode("latin1"))

    def __setstate__(self, state: object) -> None:
        raise DamagedFileError("bytes have a state")


class _Neighbours(dict[Any, Any]):
    """What stands for a `defaultdict(list)`."""

    def __init__(self, _: object = None) -> None:
        super().__init__()

    def __setstate__(self, state: object) -> None:
        raise DamagedFileError("a dict has a state")


STAND_INS: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.ndarray": "ndarray",
    "numpy.dtype": _Dtype,
    "scipy.sparse.csr.csr_matrix": _Csr,
    "scipy.sparse._csr.csr_matrix": _Csr,
    "_codecs.encode": _Bytes,
    "collections.defaultdict": _Neighbours,
    "__builtin__.list": "list",
    "builtins.list": "list",
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), fix_imports=False, encoding="latin1")  # as Python 2 wrote them

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}"
        if full_name not in STAND_INS:
            raise _refusal(f"the name '{printable(full_name)}'")
        return STAND_INS[full_name]
