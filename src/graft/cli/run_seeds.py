"""`graft run --seeds`: the same experiment, or several that are compared, with several seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graft.cli.console import say
from graft.cli.progress import study_progress
from graft.cli.sweep import tell_result
from graft.errors import InputError
from graft.experiments.free_folder import check_free
from graft.experiments.run_cluster import RAY
from graft.files import explained
from graft.methods import METHODS
from graft.options import check_jobs

if TYPE_CHECKING:
    from graft.experiments.callbacks import Callbacks
    from graft.experiments.sweep.plan import PlannedRun
    from graft.experiments.sweep.sweep import Sweep

LOCAL = "local"


def run_seeds(
    variants: Sequence[dict[str, Any]],
    seeds: Sequence[int],
    root: Path,
    jobs: int | None,
    overwrite: bool,
    callbacks: Callbacks = (),
) -> None:
    """Run experiments with each seed in full run directories, as ROOT/seed-0 or ROOT/fedavg/seed-0, and compare."""
    from graft.experiments.combinations import suited
    from graft.experiments.many_runs import exclusive
    from graft.experiments.progress_log import logged
    from graft.experiments.sweep.plan import plan_runs, run_planned
    from graft.experiments.sweep.sweep import collect

    check_jobs(jobs)
    first, *others = variants
    fitting = [first, *(suited(other, METHODS[other["method"]]) for other in others)]
    runs = plan_runs(
        [{**values, "seed": seed} for values in fitting for seed in seeds],
        lambda row, _, seed: (root / row if others else root) / f"seed-{seed}",
    )
    on_cluster = [run for run in runs if run.experiment.engine == RAY and (overwrite or run.read() is None)]
    if on_cluster and jobs is not None and jobs > 1:
        raise InputError(
            f"--jobs is {jobs}, but with --engine ray the clients of a run have the whole cluster, one seed after the "
            f"other; `graft sweep --engine ray` has many runs at a time."
        )
    check_folders(root, runs, overwrite)
    with exclusive(root, "graft run --seeds"), one_cluster(on_cluster), study_progress(root.name) as tell:
        report = logged(root, len(runs), tell)
        outcome = run_planned(runs, keep_models=True, anew=overwrite, jobs=jobs, report=report, callbacks=callbacks)
        result = collect(runs, outcome, root)
    tell_result(result, root)
    if any(other["method"] == LOCAL for other in others):
        judge_seeds(result, runs[0])


@contextmanager
def one_cluster(runs: Sequence[PlannedRun]) -> Iterator[None]:
    """Joins or starts the cluster of some runs once for all of them."""
    if not runs:
        yield
        return
    from graft.engines.ray import Resources, connected

    first = runs[0].experiment
    resources = Resources(first.cpus_per_worker, first.gpus_per_worker)
    with connected(first.address, min(first.workers, first.clients), resources):
        yield


def check_folders(root: Path, runs: Sequence[PlannedRun], overwrite: bool) -> None:
    """Refuses folders that hold another run than the one that is to go there, unless it may be overwritten."""
    from graft.experiments.many_runs import can_go_on

    for run in runs:
        if run.read() is None and not can_go_on(run.folder, run.experiment):
            check_free(run.folder, overwrite)
    with explained(f"{root} cannot be written to", InputError):
        root.mkdir(parents=True, exist_ok=True)


def judge_seeds(result: Sweep, first: PlannedRun) -> None:
    """Say for each client whether joining helps it over all seeds, or why that cannot be told."""
    from graft.cli.report import show_verdicts
    from graft.experiments.joining import judge_over_seeds

    row, column = first.row, first.column
    federated, alone = (result.comparison.cell(name, column) for name in (row, LOCAL))
    verdicts = judge_over_seeds(federated, alone)
    if verdicts is None:
        say(
            "Every seed draws another partition, and with it other clients, which get no verdict: run one seed, or "
            "clients with graphs of their own."
        )
        return
    show_verdicts(verdicts, row, contribution=False, seeds=len(federated.keys() & alone.keys()))
