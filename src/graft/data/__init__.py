"""How one graph becomes a federation; here, the tables of datasets and partitions, and which names are possible."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from graft.errors import InputError
from graft.registry import Registry, close_to, parse_reference

# A dataset of your own is a function that returns a PyG `Data` or a `Graph`.
DATASETS: Registry[Callable[..., Any]] = Registry(
    "dataset",
    {
        "digits": "graft.data.datasets:digits",
        "cora": "graft.data.datasets:cora",
        "citeseer": "graft.data.datasets:citeseer",
        "pubmed": "graft.data.datasets:pubmed",
        "photo": "graft.data.datasets:photo",
        "computers": "graft.data.datasets:computers",
        "cs": "graft.data.datasets:cs",
        "physics": "graft.data.datasets:physics",
        "ogbn-arxiv": "graft.data.datasets:arxiv",
        "synthetic": "graft.data.datasets:synthetic",
        "generated": "graft.data.generated:Generated",
    },
    group="graft.datasets",
)
GENERATED = "generated"  # the one dataset in which every client has a graph of its own
SHARDS = "shards.json"  # makes a folder or a URL a dataset of clients whose graphs are read one by one
SUFFIXES = ("lcc",)  # what may follow a dataset's name: its largest connected component

PARTITIONS: Registry[Callable[..., Any]] = Registry(
    "partition",
    {
        "louvain": "graft.data.partitions:louvain",
        "metis": "graft.data.partitions:metis",
        "random": "graft.data.partitions:random_nodes",
        "label-skew": "graft.data.partitions:label_skew",
    },
)
PARTITION_FILES = (".npy", ".json", ".csv", ".txt")
OWN_GRAPHS = "own"  # stands for a partition where every client brings its own graph


class DatasetName(NamedTuple):
    """What the text of a dataset asks for, as 'synthetic:nodes=100:lcc' or 'my_data.py:load:size=3'."""

    name: str  # of the table, a reference to your own function, or a path
    options: str = ""
    suffix: str = ""


def default_root() -> Path:
    """Returns the folder of the datasets: GRAFT_DATA, or else a folder in the user's cache."""
    if os.environ.get("GRAFT_DATA"):
        return Path(os.environ["GRAFT_DATA"])
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "graft"


def parse_dataset(source: str) -> DatasetName:
    """Returns the parts of a dataset's text; one that does not exist is refused, and nothing is imported."""
    if not source.strip():
        raise InputError("The dataset is an empty text: give a name, a file or a folder.")
    if is_url(source):
        return DatasetName(source)
    rest, _, last = source.rpartition(":")
    if last in SUFFIXES and rest:
        return parse_dataset(rest)._replace(suffix=last)
    name, _, options = source.partition(":")
    if name.lower() in DATASETS:
        return DatasetName(name.lower(), options)
    path = Path(source)
    if path.is_dir() or (path.suffix in (".npz", ".toml") and path.is_file()):
        return DatasetName(source)
    for own, settings in ((source, ""), (rest, last)):
        if parse_reference(own):
            DATASETS.check(own)
            return DatasetName(own, settings)
    if path.is_file():
        raise InputError(
            f"{path} cannot be read: a dataset is a folder with nodes.csv and edges.csv, a .npz file or a data file, "
            f"which is TOML."
        )
    hint = close_to(name.lower(), DATASETS)
    raise InputError(f"There is no dataset or file '{source}'{hint}; the datasets are {', '.join(DATASETS)}.")


def is_url(source: str) -> bool:
    """Returns whether a dataset's text is a URL, which only shards have, and no path."""
    return "://" in source


def is_sharded(source: str) -> bool:
    """Returns whether a dataset's text is the place of shards."""
    return is_url(source) or (Path(source) / SHARDS).is_file()


def is_generated(source: str) -> bool:
    """Returns whether a dataset's text asks for clients whose graphs are made one by one."""
    return source.partition(":")[0].lower() == GENERATED


def is_one_graph(dataset: str) -> bool:
    """Returns whether a dataset is one graph, to be shared out among clients."""
    return not is_sharded(dataset) and not is_generated(dataset) and count_clients(dataset) is None


def parse_graphs(graphs: list[str]) -> dict[str, Path]:
    """Returns the paths of clients' own graphs by their names, given as path or name=path."""
    paths: dict[str, Path] = {}
    for text in graphs:
        name, equals, rest = text.partition("=")
        path = Path(rest) if equals and not Path(text).exists() else Path(text)
        if not path.is_dir() and not (path.suffix == ".npz" and path.is_file()):
            raise InputError(_no_graph(path))
        name = name if path == Path(rest) else path.resolve().stem
        if name in paths:
            raise InputError(f"Two of the graphs are called '{name}': give one another name, as other={path}.")
        paths[name] = path
    from graft.data.data_file import check_names

    check_names("--graphs", paths)
    return paths


def _no_graph(path: Path) -> str:
    """Returns the sentence about what cannot be a client's graph."""
    if path.suffix == ".toml" and path.is_file():
        return f"{path} is a data file, which names all clients itself: give it as the dataset, --dataset {path}."
    if path.is_file():
        return f"{path} is no .npz file; of tables, give the folder that holds them: {path.parent}."
    return f"There is no folder or .npz file {path}: --graphs takes one for each client."


def count_clients(dataset: str) -> int | None:
    """Returns how many clients bring their own graph in a data file; None for a dataset that is one graph."""
    if Path(dataset).suffix != ".toml" or not Path(dataset).is_file():
        return None
    from graft.data.data_file import read_data_file

    return len(read_data_file(Path(dataset)).clients) or None


def check_partition(by: str | Path) -> None:
    """Refuses a partition that is neither a name nor a file of client ids."""
    path = Path(by)
    if str(by) not in PARTITIONS and (path.suffix not in PARTITION_FILES or not path.is_file()):
        raise InputError(
            f"There is no partition method or file '{by}'; the methods are {', '.join(PARTITIONS)}, and a file of "
            f"client ids ends in {', '.join(PARTITION_FILES)}."
        )
