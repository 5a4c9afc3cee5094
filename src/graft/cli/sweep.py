"""`graft sweep`, and what is said of many runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from graft.cli.cluster_options import JOBS, Address, CpusPerRun, Engine, GpusPerRun, read_cluster
from graft.cli.console import Number, Text, complain, say, split_names
from graft.cli.options import with_options_of_many
from graft.cli.progress import phase_progress, study_progress
from graft.cli.report import show_comparison
from graft.errors import InputError
from graft.experiments.experiment import draft_experiment
from graft.experiments.experiment_files import given_settings, read_experiment
from graft.experiments.make_method import setting_names
from graft.experiments.sweep.design import Design, check_variants, parse_grid
from graft.options import check_jobs, parse_seeds, parse_settings

if TYPE_CHECKING:
    from graft.experiments.sweep.sweep import Sweep

SEEDS = "5"
Words = Optional[list[str]]  # noqa: UP045  (Typer reads it at run time)


@with_options_of_many
def sweep(
    file: Annotated[Optional[Path], typer.Argument(help="An experiment file (TOML); flags win over it.")] = None,  # noqa: UP045
    *,
    set_: Annotated[
        Words,
        typer.Option("--set", help="A field of methods or plugs, for those that have it.", rich_help_panel="Method"),
    ] = None,
    grid: Annotated[
        Words,
        typer.Option(
            help="Values of a field or of a method's setting, as mu=0,0.01,1; may be given for several.",
            rich_help_panel="Sweep",
        ),
    ] = None,
    methods: Annotated[Text, typer.Option(help="Several methods, as fedavg,fedprox.", rich_help_panel="Sweep")] = None,
    datasets: Annotated[Text, typer.Option(help="Several datasets, as cora,cs.", rich_help_panel="Sweep")] = None,
    seeds: Annotated[
        Text, typer.Option(help=f"How many seeds, as 5, or which, as 0,3. ({SEEDS})", rich_help_panel="Sweep")
    ] = None,
    jobs: Annotated[
        Number,
        typer.Option(help=JOBS, rich_help_panel="Sweep"),
    ] = None,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Keep checkpoints and best models.", rich_help_panel="Sweep")
    ] = False,
    out: Annotated[Optional[Path], typer.Option(help="Where it goes; sweeps/... if not given.")] = None,  # noqa: UP045
    engine: Engine = None,
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    **flags: Any,
) -> None:
    """Run every combination of methods, data, settings and seeds, and compare them; run it again to go on."""
    values = read_experiment(file) if file else {}
    settings = given_settings(values)
    given = {name: value for name, value in flags.items() if value is not None}
    axes = read_axes(given, parse_grid(grid or []), split_names(methods), split_names(datasets))
    replaced = {"seed", "settings", *axes["grid"], *(name for name in ("method", "dataset") if axes[f"{name}s"])}
    values = {name: value for name, value in values.items() if name not in replaced}
    values, cluster = read_cluster(values, given, engine, address, cpus_per_run, gpus_per_run)
    design = Design(
        **axes,
        seeds=choose_seeds(seeds, values.pop("seed", None)),
        settings={**usable(settings, axes, values.get("plug", "")), **parse_settings(set_ or [])},
        values=values,
        keep_models=keep_models,
    )
    check_jobs(jobs)
    # All that can be wrong with what was typed is said before PyTorch is imported.
    variants = design.variants()
    check_variants(variants)
    folder = out or Path("sweeps") / default_name(variants)
    with phase_progress("sweep", "loading PyTorch"):
        from graft.experiments.sweep.sweep import run_design

    with study_progress("sweep") as tell:
        result = run_design(design, folder, jobs=jobs, report=tell, cluster=cluster)
    tell_result(result, folder)


def read_axes(
    flags: dict[str, Any], grid: dict[str, list[Any]], methods: list[str] | None, datasets: list[str] | None
) -> dict[str, Any]:
    """Returns the methods, datasets and grid of a sweep; what is also given as a single value is refused."""
    axes: dict[str, Any] = {"grid": grid}
    for name, chosen in (("method", methods), ("dataset", datasets)):
        if chosen == []:
            raise InputError(f"--{name}s is empty; it should be a list, as in `graft list {name}s`.")
        axes[f"{name}s"] = chosen or []
    several = {name: f"--grid {name}" for name in grid} | {
        name: f"--{name}s" for name in ("method", "dataset") if axes[f"{name}s"]
    }
    for name, flag in several.items():
        if name in flags:
            raise InputError(f"--{name.replace('_', '-')} and {flag} were both given: leave one of them out.")
    return axes


def choose_seeds(text: str | None, single: int | None) -> tuple[int, ...]:
    """Returns the seeds that were asked for: several, or with --seed a single one."""
    if text is not None and single is not None:
        raise InputError("--seed and --seeds were both given: leave one of them out.")
    return (single,) if single is not None else parse_seeds(SEEDS if text is None else text)


def usable(settings: dict[str, Any], axes: dict[str, Any], plug: str) -> dict[str, Any]:
    """Returns the settings of a file that a method of the sweep has: other methods may have been asked for since."""
    methods = [*axes["methods"], *axes["grid"].get("method", [])]
    names = {name for method in methods for name in setting_names(method, plug)}
    return {name: value for name, value in settings.items() if name in names or not methods}


def default_name(variants: list[dict[str, Any]]) -> str:
    """Returns a name for the folder of a sweep: its methods and its data."""
    drafts = [draft_experiment(variant) for variant in variants]
    parts = dict.fromkeys(draft.label for draft in drafts) | dict.fromkeys(draft.data_label for draft in drafts)
    return "-".join(parts)[:100]


def tell_result(result: Sweep, folder: Path) -> None:
    """Say what came of many runs, and end the command with 1 where some failed."""
    for name, reason in result.failures.items():
        complain(f"failed: {name}: {reason}")
    if result.runs:
        try:
            result.report(folder)
        except ImportError as error:  # the records and the table need none of the packages of reports
            complain(f"report.html was not written: {error}.")
        show_comparison(result.comparison, folder)
    if result.outcome.skipped:
        say(f"{result.outcome.skipped} of {len(result.runs)} runs were finished before this call.")
    if result.outcome.stopped:
        say("Stopped; the same command goes on from here.")
    if result.outcome.stopped or result.failures:
        raise typer.Exit(1)
