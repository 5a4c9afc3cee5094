"""Datasets that are read from the files in which they were published, and that PyG downloads where they are missing."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graft.data.arrays import DAMAGED_FILE_ERRORS, DamagedFileError
from graft.data.benchmark_npz import read_benchmark_npz
from graft.data.graphs import Graph
from graft.data.planetoid import PARTS, read_planetoid
from graft.errors import InputError

DOWNLOAD_SECONDS = 60  # without an answer for this long, a download has failed


@dataclass(frozen=True)
class RawDataset:
    """A dataset of published files in `<root>/<title>/raw`; nothing else is read there, and nothing processed kept."""

    title: str
    kind: str  # the class of PyG that downloads it
    files: tuple[str, ...]
    read: Callable[[Path, str], Graph]  # of the folder and the name

    @property
    def name(self) -> str:
        """Returns the name of the dataset and of its graph."""
        return self.title.lower()

    def load(self, root: Path) -> Graph:
        """Returns the graph, after downloading what is missing."""
        folder = root / self.title / "raw"
        # What cannot be looked at, and what is no plain file, is missing as well.
        missing = [file for file in self.files if not os.path.isfile(folder / file)]  # noqa: PTH113
        if missing:
            self._download(folder, missing)
        try:
            return self.read(folder, self.name)
        except (*DAMAGED_FILE_ERRORS, InputError) as error:
            raise damaged(self.name, folder, error) from error

    def _download(self, folder: Path, missing: Sequence[str]) -> None:
        try:
            with _new_folder(folder) as created, TemporaryDirectory(prefix=".download-", dir=created) as work_folder:
                _run_pyg_download(self.kind, self.title, work_folder)
                for file in missing:
                    (Path(work_folder) / self.title / "raw" / file).replace(folder / file)
        except Exception as error:  # networks and disks fail in almost any way
            files = "The files" if len(missing) == len(self.files) else f"The files {', '.join(missing)}"
            raise InputError(
                f"{files} of dataset '{self.name}' are not in {folder}, and PyG could not download them "
                f"({type(error).__name__}: {error}): put them there, or let GRAFT_DATA name the folder that has "
                f"{self.title}/raw."
            ) from error


def planetoid(title: str) -> RawDataset:
    """Returns a citation graph of Yang et al., ICML 2016."""
    return RawDataset(title, "Planetoid", tuple(f"ind.{title.lower()}.{part}" for part in PARTS), read_planetoid)


def benchmark(title: str, kind: str, file: str) -> RawDataset:
    """Returns a graph of Shchur et al., 2018."""
    return RawDataset(title, kind, (file,), lambda folder, name: read_benchmark_npz(folder / file, name))


def damaged(name: str, folder: Path, error: Exception) -> InputError:
    """Returns what is said of files that cannot be read."""
    kind = "" if isinstance(error, InputError | DamagedFileError) else f"{type(error).__name__}: "
    reason = kind + str(error).rstrip(".")
    return InputError(
        f"The files of dataset '{name}' in {folder} cannot be used and may be damaged ({reason}): "
        "delete them, so that they are downloaded again, or put good ones there."
    )


def _run_pyg_download(kind: str, title: str, root: str) -> None:
    from torch_geometric import datasets

    # Without these two, PyG would go on to unpickle the files and to keep what it made of them.
    no_processing: dict[str, Any] = {"has_process": False, "load": lambda *_: None}
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_SECONDS)
    try:
        type(kind, (getattr(datasets, kind),), no_processing)(root=root, name=title)
    finally:
        socket.setdefaulttimeout(timeout)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Creates a folder and those above it, and removes them again, as far as they are empty, when the work fails."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):  # another dataset may have come into the root
            for path in created:
                path.rmdir()
        raise
