"""Texts of files in whatever encoding and compression."""

from __future__ import annotations

import codecs
import gzip
import zlib
from io import BufferedReader
from pathlib import Path

from graft.errors import InputError
from graft.machine import free_ram

GZIP_MAGIC = b"\x1f\x8b"
BLOCK = 2**24  # bytes
SHARE_OF_RAM = 4  # a file may take so many parts of the free memory, since its cells need more than that
BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def read_text(path: Path, encoding: str | None, notes: list[str]) -> bytes:
    """Returns the text of a file, which may be packed, in UTF-8 with line feeds."""
    most = free_ram() // SHARE_OF_RAM
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
        with gzip.open(path) if packed else path.open("rb") as file:
            content = _read_at_most(file, most)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if content is None:
        raise InputError(f"{path} holds more than {most // 2**20} MB, which is more than there is memory for.")
    text = _to_utf8(path, content, encoding, notes)
    if b"\0" in text[:4096]:
        raise InputError(f"{path} is not a text file: a table is a CSV or a Parquet file.")
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text


def _read_at_most(file: gzip.GzipFile | BufferedReader, most: int) -> bytes | None:
    blocks, size = [], 0
    while block := file.read(BLOCK):
        size += len(block)
        if size > most:
            return None
        blocks.append(block)
    return b"".join(blocks)


def _to_utf8(path: Path, content: bytes, declared: str | None, notes: list[str]) -> bytes:
    mark, encoding = next((pair for pair in BYTE_ORDER_MARKS if content.startswith(pair[0])), (b"", None))
    content = content[len(mark) :]
    encoding = encoding or declared or _utf16_without_mark(content)
    if encoding is None:
        if content.isascii():
            return content
        try:
            content.decode("utf-8")
            return content
        except UnicodeDecodeError:
            encoding = "cp1252"
            notes.append(f"{path} is not in UTF-8; it was read as Windows-1252 (declare encoding if that is wrong)")
    try:
        return content if codecs.lookup(encoding).name == "utf-8" and content.isascii() else _recode(content, encoding)
    except UnicodeDecodeError as error:
        if declared is None and encoding == "cp1252":
            return _recode(content, "latin-1")
        raise InputError(f"{path} is not a readable text in {encoding}: {error}.") from error


def _recode(content: bytes, encoding: str) -> bytes:
    return content.decode(encoding).encode("utf-8")


def _utf16_without_mark(content: bytes) -> str | None:
    start = content[:512]
    odd, even = start[1::2].count(0), start[::2].count(0)
    for zeros, encoding in ((odd, "utf-16-le"), (even, "utf-16-be")):
        if zeros > 0.4 * len(start) and len(start) >= 2 and odd + even == zeros:
            return encoding
    return None
