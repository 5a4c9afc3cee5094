"""Where graphs come from: a name, a file, a folder or a PyG `Data`."""

import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graft.data import DATASETS, SUFFIXES, default_root, is_generated, is_sharded, parse_dataset
from graft.data.arrays import DAMAGED_FILE_ERRORS
from graft.data.graphs import Graph, largest_component, make_graph
from graft.data.npz import read_npz
from graft.data.pyg_data import from_pyg
from graft.data.raw_datasets import RawDataset, benchmark, damaged, planetoid
from graft.data.synthetic import generate
from graft.data.tables import read_tables
from graft.errors import GraftError, InputError
from graft.options import parse_options
from graft.registry import parse_reference


def load(source: Any, root: str | Path | None = None) -> Graph:
    """Returns the graph of a dataset's name, of a path, or of a PyG `Data`."""
    if isinstance(source, Graph):
        return source
    if isinstance(source, str | Path):
        return _load_name_or_path(str(source), Path(root) if root else default_root())
    if hasattr(source, "edge_index"):
        return from_pyg(source)
    raise InputError(
        f"A dataset is a name ({', '.join(names())}), a path, or a PyG Data with x, edge_index and y, not a "
        f"{type(source).__name__}."
    )


def names() -> list[str]:
    """Returns the names of the datasets."""
    return list(DATASETS)


def _load_name_or_path(source: str, root: Path) -> Graph:
    name, options, suffix = parse_dataset(source)
    if is_generated(name) or is_sharded(name):
        raise InputError(f"'{source}' has a graph for every client and is not the one graph that is asked for.")
    if name in DATASETS.targets:
        graph: Graph = DATASETS[name](root, options)
    elif name in DATASETS or parse_reference(name):
        graph = call_own(name, options)
    else:
        graph = read_tables(Path(name)) if Path(name).is_dir() else read_npz(Path(name))
    return largest_component(graph) if suffix == "lcc" else graph


def call_own(name: str, options: str) -> Graph:
    """Returns the graph that your own function returns for options such as 'size=3,noise=0.1'."""
    function = DATASETS[name]
    try:
        dataset = function(**parse_options(options))
    except GraftError:
        raise
    except Exception as error:  # code that somebody brought may raise anything
        reason = DATASETS.failure(name, error)
        raise InputError(f"Dataset '{name}' cannot be made: {reason}.") from error
    if not isinstance(dataset, Graph) and not hasattr(dataset, "edge_index"):
        raise InputError(f"Dataset '{name}' is a {type(dataset).__name__}; it should be a PyG Data or a graft.Graph.")
    return dataset if isinstance(dataset, Graph) else from_pyg(dataset, DATASETS.label(name))


def _no_settings(name: str, settings: str) -> None:
    if settings:
        raise InputError(f"Dataset '{name}' knows no ':{settings}'; what may follow a name is {_suffixes()}.")


def _suffixes() -> str:
    return ", ".join(f"':{suffix}'" for suffix in SUFFIXES)


# Datasets with a name.


def _load_raw(dataset: RawDataset, root: Path, settings: str) -> Graph:
    _no_settings(dataset.name, settings)
    return dataset.load(root)


cora = partial(_load_raw, planetoid("Cora"))  # these three with their public split
citeseer = partial(_load_raw, planetoid("CiteSeer"))
pubmed = partial(_load_raw, planetoid("PubMed"))
photo = partial(_load_raw, benchmark("Photo", "Amazon", "amazon_electronics_photo.npz"))  # these four without a split
computers = partial(_load_raw, benchmark("Computers", "Amazon", "amazon_electronics_computers.npz"))
cs = partial(_load_raw, benchmark("CS", "Coauthor", "ms_academic_cs.npz"))
physics = partial(_load_raw, benchmark("Physics", "Coauthor", "ms_academic_phy.npz"))


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
    return make_graph("digits", pixels / 16, edges, labels)


def arxiv(root: Path, settings: str) -> Graph:
    """The ogbn-arxiv citation graph with its split by year (Hu et al., NeurIPS 2020)."""
    _no_settings("ogbn-arxiv", settings)
    folder = root / "ogbn_arxiv"
    if not (folder / "raw").is_dir():
        _download_arxiv(root)
    try:
        nodes = int(_read_gzipped_csv(folder / "raw" / "num-node-list.csv.gz", np.int64)[0, 0])
        x = _read_gzipped_csv(folder / "raw" / "node-feat.csv.gz", np.float32)
        y = _read_gzipped_csv(folder / "raw" / "node-label.csv.gz", np.float64)
        edges = _read_gzipped_csv(folder / "raw" / "edge.csv.gz", np.int64)
        masks = {}
        for mask, file in (("train", "train"), ("validation", "valid"), ("test", "test")):
            masks[mask] = np.zeros(nodes, bool)
            masks[mask][_read_gzipped_csv(folder / "split" / "time" / f"{file}.csv.gz", np.int64)[:, 0]] = True
        return make_graph("ogbn-arxiv", x, edges.T, y, masks=masks)
    except (*DAMAGED_FILE_ERRORS, InputError) as error:
        raise damaged("ogbn-arxiv", folder, error) from error


def _read_gzipped_csv(path: Path, dtype: type) -> Any:
    return np.loadtxt(path, dtype=dtype, delimiter=",", ndmin=2)


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
    parameters = inspect.signature(generate).parameters.items()
    kinds = {name: parameter.annotation for name, parameter in parameters if name != "name"}
    values = parse_settings("The synthetic graph", kinds, settings)
    return generate(**values, name=f"synthetic:{settings}" if settings else "synthetic")


def parse_settings(what: str, kinds: Mapping[str, type], settings: str) -> dict[str, Any]:
    """Returns the values in a text such as 'nodes=1000,degree=10', of the kinds that they should have."""
    values: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, _, text = (part.strip() for part in setting.partition("="))
        if key not in kinds:
            raise InputError(f"{what} has no setting '{key}'; its settings are {', '.join(kinds)}.")
        try:
            values[key] = kinds[key](text)
        except ValueError as error:
            raise InputError(f"{what}'s setting {key} is a {TYPE_NAMES[kinds[key]]}, not '{text}'.") from error
    return values


TYPE_NAMES = {int: "whole number", float: "number"}
