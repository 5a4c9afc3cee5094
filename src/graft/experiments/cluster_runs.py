"""Many experiments on a cluster: every chunk of orders is a task there, and the files of each run come back as bytes.

Neither disk nor code is shared with the machines of a cluster: a run is given what it needs of this one, works in a
folder that is gone afterwards, and this process writes what it has left there.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import graft
from graft.data import DATASETS, parse_dataset
from graft.data.sources import open_data
from graft.engines.ray import Resources, send_code
from graft.engines.tasks import Lost, Share, Stop, Tasks, capacity, cluster_for_tasks
from graft.errors import GraftError, RunError
from graft.experiments.experiment import Experiment, own_files
from graft.experiments.free_folder import EXPERIMENT
from graft.experiments.given import Given
from graft.experiments.many_runs import (
    RESULT,
    Message,
    Order,
    Outcome,
    Perform,
    Report,
    default_jobs,
    one_line,
    replaced_folder,
    run_chunk,
    run_orders,
)
from graft.experiments.run_cluster import RunCluster
from graft.files import explained, write_bytes
from graft.methods import METHODS, PLUGS
from graft.models import MODELS
from graft.options import check_jobs
from graft.registry import COPIES, FILE_MODULE, Registry, parse_reference

LOCK = ".lock"
TABLES: Mapping[str, Registry[Any]] = {"methods": METHODS, "plugs": PLUGS, "models": MODELS}

Files = dict[str, bytes]  # by their paths in a folder; a single file that is no folder by an empty one


def run_missing(
    orders: Sequence[Order],
    perform: Perform,
    cluster: RunCluster | None = None,
    *,
    jobs: int | None = None,
    device: str = "cpu",
    report: Report | None = None,
) -> Outcome:
    """Runs orders in processes here, or as tasks of a cluster, which is not even asked where nothing is missing."""
    if cluster is None or not orders:
        return run_orders(orders, perform, jobs=jobs, device=device, report=report)
    with connect(cluster, check_jobs(jobs)) as (ray, resources):
        return run_orders(orders, perform, report=report, workers=ClusterWorkers(ray, resources, jobs))


@contextmanager
def connect(cluster: RunCluster, jobs: int | None) -> Iterator[tuple[Any, Resources]]:
    """Joins or starts a cluster for many runs; gives Ray and what each run is given."""
    resources = Resources(cluster.cpus, cluster.gpus)
    most = jobs or max(1, default_jobs(resources.device) // cluster.cpus)
    with cluster_for_tasks(cluster.address, most, resources) as ray:
        yield ray, resources


class ClusterWorkers:
    """The workers of a cluster that is open: as many as it has resources for, or `most`."""

    def __init__(self, ray: Any, resources: Resources, most: int | None = None) -> None:
        self.ray, self.resources, self.most = ray, resources, most
        room = max(1, capacity(ray, resources))
        self.count = room if most is None else min(room, most)

    def run(self, chunks: Sequence[list[Order]], perform: Perform, report: Report) -> None:
        send_code(self.ray, own_modules([order.given for chunk in chunks for order in chunk]))
        pack = partial(pack_orders, perform, self.resources)
        tasks = Tasks(self.ray, run_packed, chunks, self.resources, pack, graft.__version__, self.most)
        try:
            for order, result in tasks.results():
                message = take_in(order, result)
                if message is None:  # Ctrl-C was heard there first
                    raise KeyboardInterrupt
                report(message)
        except BaseException:
            for order, result in tasks.stop():
                take_in(order, result)
            raise
        finally:
            tasks.close()


# What travels.


@dataclass(frozen=True)
class Code:
    """Code of a person's own that runs name, and that other machines may not have."""

    files: Files = field(default_factory=dict)  # by their paths
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)  # what was added to tables of names

    @contextmanager
    def unpacked(self, folder: Path) -> Iterator[None]:
        """Puts files where this machine finds them, and entries into tables of names, for a while."""
        for number, (text, content) in enumerate(self.files.items()):
            path = Path(text).resolve()
            if not path.is_file() or path.read_bytes() != content:
                COPIES[path] = folder / str(number) / path.name
                write_files(COPIES[path], {"": content})
        for name, entries in self.entries.items():
            TABLES[name].update(entries)
        try:
            yield
        finally:
            for text in self.files:
                COPIES.pop(Path(text).resolve(), None)
            for name, entries in self.entries.items():
                for entry in entries:
                    del TABLES[name][entry]


def pack_code(experiments: Sequence[Experiment]) -> Code:
    """Returns the files and the added entries that experiments name."""
    return Code(
        {str(file): file.read_bytes() for experiment in experiments for file in own_files(experiment)},
        {name: added for name, table in TABLES.items() if (added := added_entries(table, experiments))},
    )


@dataclass(frozen=True)
class Packed:
    """Orders with all that they need of the machine which sends them."""

    orders: list[Order]
    perform: Perform
    threads: int
    code: Code
    begun: dict[str, Files]  # of runs to go on with, by the paths of their orders


def pack_orders(perform: Perform, resources: Resources, orders: Sequence[Order], share: Share) -> tuple[Packed, Any]:
    """Returns orders as they are sent, and the data that all of them share where a worker cannot find them by name."""
    experiments = [Experiment(**order.experiment) for order in orders]
    first, given = experiments[0], orders[0].given.dataset
    from_files = given is None and lies_in_files(first)
    if from_files:
        dataset = share((first.dataset, *first.graphs), lambda: open_data(first.dataset, first.graphs))
    else:
        dataset = None if given is None else share(id(given), lambda: given)
    packed = Packed(
        orders=[
            replace(
                order,
                experiment={**order.experiment, "device": resources.device},
                given=replace(order.given, dataset=None),
            )
            for order in orders
        ],
        perform=perform,
        threads=resources.cpus,
        code=pack_code(experiments),
        begun={} if from_files else {order.path: files for order in orders if (files := begun_files(order))},
    )
    return packed, dataset


def lies_in_files(experiment: Experiment) -> bool:
    """Returns whether the data of an experiment are named by a path, which other machines may not have."""
    if experiment.graphs:
        return True
    name = parse_dataset(experiment.dataset).name
    return name not in DATASETS and parse_reference(name) is None


def begun_files(order: Order) -> Files:
    """Returns the files of a run that was begun and not finished; none where there is no such run."""
    folder = Path(order.path)
    unfinished = (folder / EXPERIMENT).is_file() and not (folder / RESULT).exists()
    return read_files(folder) if unfinished else {}


def added_entries(table: Registry[Any], experiments: Sequence[Experiment]) -> dict[str, Any]:
    """Returns those entries that were added to a table in Python and that experiments name."""
    names = {name for own in experiments for name in (own.method, own.plug, *own.model_names)}
    return {name: entry for name, entry in table.added.items() if name in names}


def own_modules(objects: Sequence[Given]) -> list[ModuleType]:
    """Returns the modules of a person's own files and of objects given in Python: other machines may not have them."""
    names = {name for name in sys.modules if name.startswith(FILE_MODULE)}
    names |= {getattr(entry, "__module__", "") for table in TABLES.values() for entry in table.added.values()}
    for given in objects:
        models = given.models if isinstance(given.models, list | tuple) else [given.models]
        names |= {type(entry).__module__ for entry in (given.method, *models)}
    return [module for name in names if (module := sys.modules.get(name)) is not None and not is_installed(module)]


def is_installed(module: ModuleType) -> bool:
    """Returns whether a module is part of an installed package, which the machines of a cluster have too."""
    file = getattr(module, "__file__", None)
    return module.__name__.partition(".")[0] == "graft" or file is None or "site-packages" in Path(file).parts


# On a worker.


def run_packed(stop: Stop, packed: Packed, dataset: Any) -> Iterator[Any]:
    """Runs orders on a worker and gives, after its version, what is told of each and the files that it has left."""
    yield graft.__version__
    torch.set_num_threads(packed.threads)
    with tempfile.TemporaryDirectory(prefix="graft-runs-") as name, packed.code.unpacked(Path(name) / "code"):
        moved = [
            replace(
                order,
                path=str(Path(name, str(number), Path(order.path).name)),
                given=replace(order.given, dataset=dataset),
            )
            for number, order in enumerate(packed.orders)
        ]
        for order, local in zip(packed.orders, moved, strict=True):
            write_files(Path(local.path), packed.begun.get(order.path, {}))
        messages = run_chunk(moved, packed.perform, stop)
        for local in moved:
            path = Path(local.path)
            try:
                message = next(messages)
            except KeyboardInterrupt:
                yield {"stopped": True, "files": read_files(path)}
                return
            yield {**message, "files": read_files(path)}
            shutil.rmtree(path.parent, ignore_errors=True)


# Files.


def read_files(path: Path) -> Files:
    """Returns all that a run has left at a path: a file, the files of a folder, or nothing."""
    if path.is_file():
        return {"": path.read_bytes()}
    files = (file for file in path.rglob("*") if file.is_file() and file.name != LOCK)
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def write_files(path: Path, files: Files) -> None:
    """Writes what came of a run to a path, whole or not at all."""
    with explained(f"{path} cannot be written to", RunError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if "" in files:
            write_bytes(path, files[""])
        elif files:
            with replaced_folder(path) as part:
                for name, content in files.items():
                    (part / name).parent.mkdir(parents=True, exist_ok=True)
                    write_bytes(part / name, content)


def take_in(order: Order, result: Any) -> Message | None:
    """Puts what came of an order into its place and returns what is told of it; None where it was stopped."""
    if isinstance(result, Lost):
        return {"path": order.path, "error": result.reason, "seconds": 0.0}
    message = {**result, "path": order.path}
    try:
        write_files(Path(order.path), message.pop("files"))
    except GraftError as error:  # a full disk, say: others may still have room
        message["error"] = one_line(error)
    return None if message.pop("stopped", False) else message
