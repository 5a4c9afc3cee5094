"""Where graphs come from: a name, a file, a folder or a PyG `Data`."""

import difflib
import fcntl
import hashlib
import inspect
import io
import os
import socket
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from graft.data.graphs import MASKS, Features, Graph, clean, largest_component
from graft.data.synthetic import generate
from graft.data.tables import read_tables
from graft.errors import InputError

DOWNLOAD_SECONDS = 60  # without an answer for this long, a download has failed
DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    UnicodeError,
    zipfile.BadZipFile,
    zlib.error,
)  # all that reading a damaged file is known to raise


def load(source: Any, root: str | Path | None = None) -> Graph:
    """The graph of a dataset's name, of a path, or of a PyG `Data`."""
    if isinstance(source, Graph):
        return source
    if isinstance(source, str | Path):
        return _load_text(str(source), Path(root) if root else default_root())
    if hasattr(source, "edge_index"):
        return from_pyg(source)
    raise InputError(
        f"A dataset is a name ({', '.join(names())}), a path, or a PyG Data with x, edge_index and y, not a "
        f"{type(source).__name__}."
    )


def names() -> list[str]:
    """The names that `load` knows."""
    return list(DATASETS)


def default_root() -> Path:
    """The folder of the datasets: GRAFT_DATA, or else a folder in the user's cache."""
    return Path(os.environ["GRAFT_DATA"]) if os.environ.get("GRAFT_DATA") else _cache()


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "graft"


def _load_text(source: str, root: Path) -> Graph:
    rest, colon, last = source.rpartition(":")
    if colon and last in SUFFIXES:
        return SUFFIXES[last](_load_text(rest, root))
    name, _, settings = source.partition(":")
    if name.lower() in DATASETS:
        return DATASETS[name.lower()](root, settings)
    path = Path(source)
    if path.is_dir():
        return read_tables(path)
    if path.suffix == ".npz" and path.is_file():
        return read_npz(path)
    if path.is_file():
        raise InputError(f"{path} cannot be read: a dataset is a .npz file or a folder with nodes.csv and edges.csv.")
    close = difflib.get_close_matches(name.lower(), DATASETS, n=1)
    hint = f", did you mean '{close[0]}'" if close else ""
    raise InputError(f"There is no dataset or file '{source}'{hint}; the datasets are {', '.join(names())}.")


def _no_settings(name: str, settings: str) -> None:
    if settings:
        raise InputError(f"Dataset '{name}' knows no ':{settings}'; what may follow a name is {_suffixes()}.")


def _suffixes() -> str:
    return ", ".join(f"':{suffix}'" for suffix in SUFFIXES)


# Files that people bring.


def read_npz(path: Path) -> Graph:
    """The graph in a .npz file with the arrays x (or the parts of a sparse one), edges, y and perhaps masks."""
    aliases = {"edges": "edge_index", "train": "train_mask", "validation": "val_mask", "test": "test_mask"}
    wanted = (
        "it needs x (or x_data, x_indices, x_indptr and x_shape), edges and y, and may have train, validation and test"
    )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = dict(content)
    except DAMAGED as error:
        raise InputError(f"{path} is not a readable .npz file of plain arrays ({error}); {wanted}.") from error
    arrays.update({name: arrays[alias] for name, alias in aliases.items() if alias in arrays and name not in arrays})
    if "x" not in arrays and "x_data" in arrays:
        arrays["x"] = _sparse_parts(path, arrays, wanted)
    missing = [name for name in ("x", "edges", "y") if name not in arrays]
    if missing:
        raise InputError(f"{path} lacks {' and '.join(missing)}: {wanted}.")
    edges = arrays["edges"]
    if edges.ndim == 2 and edges.shape[0] != 2 and edges.shape[1] == 2:
        edges = edges.T
    return clean(path.stem, arrays["x"], edges, arrays["y"], masks={name: arrays.get(name) for name in MASKS})


def _sparse_parts(path: Path, arrays: dict[str, Any], wanted: str) -> csr_array:
    try:
        parts = (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"])
        x = csr_array(parts, shape=tuple(arrays["x_shape"]))
        x.check_format(full_check=True)
    except DAMAGED as error:
        raise InputError(f"The parts of the sparse x in {path} do not fit together ({error}); {wanted}.") from error
    return x


def from_pyg(data: Any, name: str = "pyg") -> Graph:
    """The graph of a PyG `Data`; of masks with several columns, the first."""
    missing = [field for field in ("x", "edge_index", "y") if getattr(data, field, None) is None]
    if missing:
        raise InputError(f"The PyG Data lacks {' and '.join(missing)}: it needs x, edge_index and y.")
    masks = {mask: _first_column(data, attribute) for mask, attribute in PYG_MASKS.items()}
    return clean(name, _tensor_features(data.x), _array(data.edge_index), _array(data.y), masks=masks)


PYG_MASKS = {"train": "train_mask", "validation": "val_mask", "test": "test_mask"}


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)


def _first_column(data: Any, attribute: str) -> Any:
    mask = getattr(data, attribute, None)
    if mask is None:
        return None
    return _array(mask) if mask.ndim == 1 else _array(mask)[:, 0]


def _tensor_features(x: Any) -> Features:
    import torch

    if not isinstance(x, torch.Tensor) or x.layout == torch.strided:
        return _array(x)
    cells = x.detach().cpu().to_sparse(layout=torch.sparse_coo).coalesce()
    return csr_array((cells.values().numpy(), tuple(cells.indices().numpy())), shape=tuple(cells.shape))


# Datasets with a name.


def pyg(title: str, kind: str, root: Path, settings: str) -> Graph:
    """A dataset that PyG has a class for, whole, and with its public split where it has one."""
    from torch_geometric import datasets

    name = title.lower()
    _no_settings(name, settings)
    raw, place = root / title / "raw", root
    try:
        place = _workplace(root, title)
        with _whole_or_nothing(place / title), _quiet():
            data = getattr(datasets, kind)(root=str(place.absolute()), name=title)[0]
        return from_pyg(data, name)
    except Exception as error:  # damaged pickles and archives raise almost anything
        if not any(os.access(folder, os.R_OK) and any(folder.iterdir()) for folder in (raw, place / title / "raw")):
            raise InputError(
                f"The files of dataset '{name}' are not in {raw}, and PyG could not download them "
                f"({type(error).__name__}: {error}): put them there, or let GRAFT_DATA name the folder that has "
                f"{title}/raw."
            ) from error
        processed = place / title / "processed"
        raise _damaged(name, processed if (processed / "data.pt").is_file() else raw, error) from error


PYG = {
    "Cora": "Planetoid",  # with the public split of Yang et al., ICML 2016
    "CiteSeer": "Planetoid",
    "PubMed": "Planetoid",
    "Photo": "Amazon",  # these four of Shchur et al., 2018, have no split
    "Computers": "Amazon",
    "CS": "Coauthor",
    "Physics": "Coauthor",
}


def _workplace(root: Path, title: str) -> Path:
    """The root that PyG can work in: the given one, or one in the user's cache that shows the same raw files."""
    raw, processed = root / title / "raw", root / title / "processed"
    if os.access(processed / "data.pt", os.R_OK) or _writable(processed):
        return root
    place = _cache() / hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:16]
    if os.access(raw, os.R_OK):
        (place / title).mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (place / title / "raw").symlink_to(raw.absolute())
    return place


def _writable(folder: Path) -> bool:
    """Whether the folder can be written, or made."""
    present = (path for path in (folder, *folder.absolute().parents) if os.access(path, os.F_OK))
    return os.access(next(present), os.W_OK)


@contextmanager
def _whole_or_nothing(folder: Path) -> Iterator[None]:
    """Let one process at a time work in a folder, and remove all that is new in it when the work fails."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network drives cannot lock
            fcntl.flock(lock, fcntl.LOCK_EX)
        before = set(folder.rglob("*"))
        try:
            yield
        except BaseException:
            for path in sorted(set(folder.rglob("*")) - before, reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            with suppress(OSError):  # another dataset may have come into the root
                for path in made:
                    path.rmdir()
            raise
    finally:
        os.close(lock)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what PyG says on the terminal, and let no download wait for ever."""
    seconds = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_SECONDS)
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        socket.setdefaulttimeout(seconds)


def _damaged(name: str, folder: Path, error: Exception) -> InputError:
    return InputError(
        f"The files of dataset '{name}' in {folder} cannot be used and may be damaged ({type(error).__name__}: "
        f"{error}): delete them, so that they are downloaded or made again, or put good ones there."
    )


def digits(root: Path, settings: str) -> Graph:  # noqa: ARG001
    """Scikit-learn's 1,797 images of digits, each joined to its five nearest images."""
    from sklearn.datasets import load_digits

    _no_settings("digits", settings)
    neighbours = 5
    pixels, labels = load_digits(return_X_y=True)
    # Pixels are whole numbers, so the squared distances are exact and the graph is the same on every machine.
    squares = (pixels * pixels).sum(axis=1)
    distance = (squares[:, None] + squares - 2 * pixels @ pixels.T).astype(np.int64)
    np.fill_diagonal(distance, distance.max() + 1)
    nodes = len(labels)
    ranked = np.sort(distance * nodes + np.arange(nodes), axis=1)[:, :neighbours]  # ties: the lower node
    edges = np.stack([np.repeat(np.arange(nodes), neighbours), (ranked % nodes).ravel()])
    return clean("digits", pixels / 16, edges, labels)


def arxiv(root: Path, settings: str) -> Graph:
    """The ogbn-arxiv citation graph with its split by year (Hu et al., NeurIPS 2020)."""
    _no_settings("ogbn-arxiv", settings)
    folder = root / "ogbn_arxiv"
    if not (folder / "raw").is_dir():
        _download_arxiv(root)
    try:
        nodes = int(_gzipped(folder / "raw" / "num-node-list.csv.gz", np.int64)[0, 0])
        x = _gzipped(folder / "raw" / "node-feat.csv.gz", np.float32)
        y = _gzipped(folder / "raw" / "node-label.csv.gz", np.float64)
        edges = _gzipped(folder / "raw" / "edge.csv.gz", np.int64)
        masks = {}
        for mask, file in (("train", "train"), ("validation", "valid"), ("test", "test")):
            masks[mask] = np.zeros(nodes, bool)
            masks[mask][_gzipped(folder / "split" / "time" / f"{file}.csv.gz", np.int64)[:, 0]] = True
        return clean("ogbn-arxiv", x, edges.T, y, masks=masks)
    except (*DAMAGED, InputError) as error:
        raise _damaged("ogbn-arxiv", folder, error) from error


def _gzipped(path: Path, kind: type) -> Any:
    return np.loadtxt(path, dtype=kind, delimiter=",", ndmin=2)


def _download_arxiv(root: Path) -> None:
    try:
        from ogb.nodeproppred import NodePropPredDataset
    except ImportError as error:
        raise InputError(
            f"ogbn-arxiv needs the ogb package: pip install 'graft-fgl[ogb]' (or its files in {root / 'ogbn_arxiv'})."
        ) from error
    try:
        NodePropPredDataset("ogbn-arxiv", root=str(root))
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"ogbn-arxiv is not in {root / 'ogbn_arxiv'}, and ogb could not download it: {error}."
        ) from error


def synthetic(root: Path, settings: str) -> Graph:  # noqa: ARG001
    """A generated graph, with settings such as 'nodes=1000,degree=10'."""
    kinds = {name: entry.annotation for name, entry in inspect.signature(generate).parameters.items() if name != "name"}
    chosen: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = (part.strip() for part in setting.partition("="))
        if key not in kinds:
            raise InputError(f"The synthetic graph has no setting '{key}'; its settings are {', '.join(kinds)}.")
        try:
            chosen[key] = kinds[key](value)
        except ValueError as error:
            raise InputError(f"The synthetic graph's setting {key} is a {WORDS[kinds[key]]}, not '{value}'.") from error
    return generate(**chosen, name=f"synthetic:{settings}" if settings else "synthetic")


WORDS = {int: "whole number", float: "number"}

DATASETS: dict[str, Callable[[Path, str], Graph]] = {
    "digits": digits,
    **{title.lower(): partial(pyg, title, kind) for title, kind in PYG.items()},
    "ogbn-arxiv": arxiv,
    "synthetic": synthetic,
}

SUFFIXES: dict[str, Callable[[Graph], Graph]] = {"lcc": largest_component}
