"""Files in a folder, or below any URL that fsspec knows: read in parts, and written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from graft.data import is_url
from graft.errors import InputError
from graft.files import LARGEST_TEXT, PART, explained, sync_folder

LOCAL = "file://"


class Store(Protocol):
    """A place for files that are written once."""

    url: str

    def names(self) -> list[str]:
        """Returns the names of the files that are there; none where the place does not exist yet."""
        ...

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Returns some bytes of a file, or all from `start` on."""
        ...

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Puts a file in its place when all of its parts are written."""
        ...

    def remove(self, name: str) -> None: ...


def open_store(source: str | Path) -> Store:
    """Returns the store in a folder or below a URL; what is there is not looked at."""
    text = str(source)
    if text.startswith(LOCAL):
        text = text.removeprefix(LOCAL)
    return UrlStore(text) if is_url(text) else Folder(Path(text).expanduser().resolve())


class Folder:
    """Files in a folder of this machine, or of a drive that others reach by the same path."""

    def __init__(self, path: Path) -> None:
        self.path, self.url = path, str(path)

    def names(self) -> list[str]:
        with explained(f"{self.path} cannot be read", InputError):
            if self.path.exists() and not self.path.is_dir():
                raise InputError(f"{self.path} is a file; shards need a folder.")
            return sorted(entry.name for entry in self.path.iterdir()) if self.path.is_dir() else []

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        path = self.path / name
        with explained(f"{path} cannot be read", InputError), path.open("rb") as file:
            file.seek(start)
            return file.read(LARGEST_TEXT if length is None else length)

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        path = self.path / name
        unfinished = path.with_name(name + PART)
        with explained(f"{path} cannot be written", InputError):
            self.path.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
            sync_folder(self.path)

    def remove(self, name: str) -> None:
        with explained(f"{self.path / name} cannot be removed", InputError):
            (self.path / name).unlink(missing_ok=True)
            sync_folder(self.path)


class UrlStore:
    """Files below a URL as memory://, s3:// or gs://, by fsspec."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}  # a connection is made where it is used

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """Returns the file system and the path in it."""
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise InputError(f"{self.url} is a URL, which needs fsspec: pip install 'graft-fgl[ray]'.") from error
        with self._explained("opened"):
            file_system, path = url_to_fs(self.url)
            return file_system, path.rstrip("/")

    @contextmanager
    def _explained(self, what: str, name: str = "") -> Iterator[None]:
        """Turns whatever a file system raises into one sentence."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # of the network, of a cloud, or of a package that is not installed
            where = f"{self.url}/{name}" if name else self.url
            missing = isinstance(error, FileNotFoundError)
            reason = "there is no such file" if missing else " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{where} cannot be {what}: {reason.rstrip('.')}.") from error

    def names(self) -> list[str]:
        file_system, path = self._opened
        with self._explained("listed"):
            if not file_system.exists(path):
                return []
            file_system.invalidate_cache(path)
            return sorted(str(entry).rsplit("/", 1)[-1] for entry in file_system.ls(path, detail=False))

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        file_system, path = self._opened
        with self._explained("read", name):
            end = None if length is None else start + length
            return bytes(file_system.cat_file(f"{path}/{name}", start=start, end=end))

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        file_system, path = self._opened
        with self._explained("written", name):
            file_system.makedirs(path, exist_ok=True)
            # Beside its place first where a file would be seen while it grows; in a cloud it appears when it is closed.
            with file_system.transaction, file_system.open(f"{path}/{name}", "wb") as file:
                for part in parts:
                    file.write(part)

    def remove(self, name: str) -> None:
        file_system, path = self._opened
        with self._explained("removed", name):
            file_system.rm_file(f"{path}/{name}")
