"""Plain arrays out of .npz archives that nobody vouches for: what an archive declares is checked before it is read."""

import io
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from graft.files import printable
from graft.machine import free_ram

MOST_MEMBERS = 1000
LARGEST_DIRECTORY = 2**20  # bytes of the list of members
LARGEST_ITEM = 2**16  # bytes of one cell, which is what a long text takes in every row
UNPACKED_ANYWAY = 2**28  # bytes that any archive may unpack to
LARGEST_RATIO = 100  # beyond that, so many times its size; real graphs come to 20, zeros to 1000
MEMBER_HEADER = 30  # bytes before the name of a member
ENCRYPTED = 0x1
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # 3.0 is for structured arrays
PLAIN = "biufUSM"  # kinds of dtypes: truth values, numbers, text and dates

DAMAGED_FILE_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)  # all that reading a damaged file is known to raise


class DamagedFileError(ValueError):
    """Why a file cannot be read, as the end of a sentence that names the file."""


def read_arrays(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Returns those arrays of a .npz file that have one of some names; a `DamagedFileError` says why it cannot."""
    try:
        with _BoundedFile(path) as file, zipfile.ZipFile(file) as archive:
            _check_directory(archive, path.stat().st_size)
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            return {name: _read_member(archive, members[name]) for name in names if name in members}
    except DamagedFileError:
        raise
    except DAMAGED_FILE_ERRORS as error:
        raise DamagedFileError(printable(error) or type(error).__name__) from error


class _BoundedFile(io.FileIO):
    """A file of which no more is read at once than a list of members of sensible length."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LARGEST_DIRECTORY:
            raise DamagedFileError(f"its list of members is longer than {LARGEST_DIRECTORY:,} bytes")
        return super().read(size)


def _check_directory(archive: zipfile.ZipFile, size: int) -> None:
    members = sorted(archive.infolist(), key=lambda member: member.header_offset)
    if len(members) > MOST_MEMBERS:
        raise DamagedFileError(f"it has {len(members):,} members, and {MOST_MEMBERS:,} are the most that are read")
    for member, following in zip(members, [*members[1:], None], strict=True):
        end = member.header_offset + MEMBER_HEADER + len(member.orig_filename) + member.compress_size
        if end > (following.header_offset if following else archive.start_dir):
            raise DamagedFileError(f"its member '{printable(member.filename)}' overlaps what follows it")
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise DamagedFileError("two of its members have the same name")
    unpacked = sum(member.file_size for member in members)
    if unpacked > max(UNPACKED_ANYWAY, LARGEST_RATIO * size):
        raise DamagedFileError(
            f"its {size:,} bytes declare that they unpack to {unpacked:,}: over {UNPACKED_ANYWAY:,} bytes, "
            f"{LARGEST_RATIO} times the size is the most that is unpacked, so save it with np.savez instead of "
            "np.savez_compressed, or x in its sparse parts"
        )
    if unpacked > free_ram():
        raise DamagedFileError(f"it unpacks to {unpacked:,} bytes, and {free_ram():,} bytes of memory are free")


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    name = printable(member.filename)
    if member.flag_bits & ENCRYPTED:
        raise DamagedFileError(f"its member '{name}' is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DamagedFileError(
            f"its member '{name}' is compressed by method {member.compress_type}, not by deflate as numpy does"
        )
    try:
        with archive.open(member) as content:
            _check_header(content, member.file_size)
        with archive.open(member) as content:
            array: NDArray[Any] = npy.read_array(content, allow_pickle=False)
            return array
    except DAMAGED_FILE_ERRORS as error:
        raise DamagedFileError(f"its member '{name}': {printable(error) or type(error).__name__}") from error


def _check_header(content: IO[bytes], size: int) -> None:
    version = npy.read_magic(content)
    if version not in HEADERS:
        raise DamagedFileError(f"format {version[0]}.{version[1]} of arrays is not read")
    shape, _, dtype = HEADERS[version](content)
    if dtype.kind not in PLAIN:
        what = "Python objects, which only running a pickle could make" if dtype.hasobject else f"a {dtype}"
        raise DamagedFileError(f"it holds {what}; arrays hold numbers, truth values, text or dates")
    if dtype.itemsize > LARGEST_ITEM:
        raise DamagedFileError(f"one of its cells takes {dtype.itemsize:,} bytes, and {LARGEST_ITEM:,} are the most")
    declared, held = prod(shape) * dtype.itemsize, size - content.tell()
    if min(shape, default=0) < 0 or dtype.itemsize == 0 or declared != held:
        raise DamagedFileError(f"its shape {shape} of {dtype} takes {declared:,} bytes, but {held:,} are there")
