"""The runs of a sweep, checked before the first of them starts: what each is called, where it goes, what is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from graft.errors import InputError
from graft.experiments.brief_records import perform_brief
from graft.experiments.build import build_federation
from graft.experiments.callbacks import Callbacks
from graft.experiments.cluster_runs import run_missing
from graft.experiments.combinations import check_combination, suited
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.finished_runs import FinishedRun, read_cell, read_run
from graft.experiments.experiment import Experiment, check_names, data_settings, own_files
from graft.experiments.given import Given, describe
from graft.experiments.identity import experiment_hash
from graft.experiments.many_runs import RESULT, Order, Outcome, Perform, Report, perform_run
from graft.experiments.run_cluster import RAY, RunCluster
from graft.experiments.sweep.design import with_settings
from graft.federation.method import Method
from graft.federation.server_optimizer_names import takes_server_optimizer
from graft.files import checksum
from graft.methods import METHODS, PLUGS
from graft.models import MODELS

Variant = Mapping[str, Any]  # the values of an experiment, among them objects where they were given in Python
FolderOf = Callable[[str, str, int], Path]  # of a row, a column and a seed


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep, and the folder that gets its record."""

    row: str
    column: str
    seed: int
    experiment: Experiment  # everything resolved
    given: Given
    hashes: Mapping[str, str]  # of what the experiment names, as far as they are known before it is run
    folder: Path
    brief: bool = False  # whether its record is a single file in the place of the folder, without its rounds

    @property
    def path(self) -> Path:
        """Returns the folder, or the file, that gets its record."""
        return self.folder.with_name(f"{self.folder.name}.json") if self.brief else self.folder

    @property
    def name(self) -> str:
        return f"{self.row} on {self.column}, seed {self.seed}"

    @property
    def order(self) -> Order:
        """Returns what a worker needs to run it."""
        data = f"{data_settings(self.experiment)} {id(self.given.dataset)}"
        return Order(self.name, str(self.path), asdict(self.experiment), data, self.given)

    @property
    def crosses_processes(self) -> bool:
        """Returns whether all that it needs can be found by its name in another process; a cluster that its clients
        are on is joined by this one."""
        experiment, given = self.experiment, self.given
        added = (experiment.method in METHODS.added, experiment.plug in PLUGS.added)
        own_models = any(name in MODELS.added for name in experiment.model_names)
        objects = (entry is not None for entry in (given.method, given.dataset, given.models))
        return not (any(added) or own_models or any(objects) or experiment.engine == RAY)

    def read(self) -> FinishedRun | None:
        """Returns the run if its folder, or file, holds exactly this one, finished and undamaged."""
        if not (self.path if self.brief else self.path / RESULT).is_file():
            return None
        try:
            run = read_cell(self.path) if self.brief else read_run(self.path)
        except InputError:
            return None
        if run is None:
            return None
        same = experiment_hash(run.experiment) == experiment_hash(asdict(self.experiment))
        return run if same and self.hashes.items() <= run.hashes.items() else None


def plan_runs(variants: Sequence[Variant], folder_of: FolderOf) -> list[PlannedRun]:
    """Returns the runs of some variants, each of them once; what cannot be run is refused.

    Rows and columns are called as in a `Comparison` of the results.
    """
    drafts: dict[str, tuple[Experiment, Given, dict[str, str]]] = {}
    graphs: dict[int, str] = {}
    for variant in variants:
        experiment, given = resolve(variant)
        hashes = {"code": checksum(*(file.read_bytes() for file in own_files(experiment)))}
        if given.dataset is not None:
            key = id(given.dataset)
            if key not in graphs:
                graphs[key] = build_federation(experiment, given.dataset).graph_hash
            hashes["graph"] = graphs[key]
        drafts.setdefault(checksum(experiment_hash(asdict(experiment)), *hashes.values()), (experiment, given, hashes))
    return name_runs(list(drafts.values()), folder_of)


def name_runs(drafts: Sequence[tuple[Experiment, Given, dict[str, str]]], folder_of: FolderOf) -> list[PlannedRun]:
    """Returns planned runs under the names that they will have beside each other."""
    stubs = [FinishedRun(asdict(draft), {"method": draft.label, "hashes": hashes}) for draft, _, hashes in drafts]
    names = {id(run): where for where, cell in Comparison(stubs).cells.items() for run in cell.values()}
    runs = []
    for stub, (experiment, given, hashes) in zip(stubs, drafts, strict=True):
        row, column = names[id(stub)]
        folder = folder_of(row, column, stub.seed)
        runs.append(PlannedRun(row, column, stub.seed, experiment, given, hashes, folder))
    if len({run.folder for run in runs}) < len(runs):
        raise InputError("Two runs would have the same folder: give them other names, or run them apart.")
    return runs


def resolve(values: Variant) -> tuple[Experiment, Given]:
    """Returns the experiment of a variant with every setting of its method, and the objects among its values."""
    values = dict(values)
    method = values.pop("method", Experiment.method)
    dataset, models = values.pop("dataset", Experiment.dataset), values.pop("models", None)
    if not isinstance(method, str):
        method, values["settings"] = with_settings(method, values.get("settings", {}))
    experiment, given = describe(method, dataset, models, values)
    if given.method is None:
        check_names(experiment)
    made = given.method_of(experiment)
    experiment = replace(experiment, settings=asdict(made), models=made.architecture or experiment.models)
    check_combination(experiment, made)
    return experiment, given


def suit(variants: Sequence[Variant]) -> list[Variant]:
    """Returns variants without what their methods cannot do and another among them can; what none can do stays, to be
    refused."""
    methods = [variant.get("method", Experiment.method) for variant in variants]
    kinds = [METHODS[method] if isinstance(method, str) else type(method) for method in methods]
    able = {
        "topology": any(kind.takes_topology for kind in kinds),
        "server_optimizer": any(map(takes_server_optimizer, kinds)),
        "score": any(kind.shared is not Method.shared for kind in kinds),
    }
    return [
        {**suited(variant, kind), **{name: variant[name] for name in able if name in variant and not able[name]}}
        for variant, kind in zip(variants, kinds, strict=True)
    ]


def run_planned(
    runs: Sequence[PlannedRun],
    *,
    keep_models: bool = False,
    anew: bool = False,
    jobs: int | None = None,
    report: Report | None = None,
    callbacks: Callbacks = (),
    cluster: RunCluster | None = None,
) -> Outcome:
    """Runs what is not finished yet, or all `anew`: on a cluster, in several processes, or, where objects or callbacks
    were given, in this one."""
    if cluster is not None and callbacks:
        raise InputError("Callbacks hear of runs in this process, and those of a cluster are not: leave callbacks out.")
    missing = [run for run in runs if anew or run.read() is None]
    perform: Perform = partial(perform_run, keep_models=keep_models, callbacks=callbacks)
    if any(run.brief for run in runs):
        perform = perform_brief
    device = "cpu"
    if cluster is None:
        device = missing[0].experiment.torch_device().type if missing else "cpu"
        if callbacks or not all(run.crosses_processes for run in missing):
            jobs = 1
    orders = [run.order for run in missing]
    outcome = run_missing(orders, perform, cluster, jobs=jobs, device=device, report=report)
    return replace(outcome, skipped=len(runs) - len(missing))
