"""`graft run` and `graft resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from graft.cli.console import Text, split_names
from graft.cli.options import with_experiment_options
from graft.cli.progress import round_progress
from graft.cli.report import finish_run, show_results
from graft.errors import InputError
from graft.experiments.experiment import check_names, draft_experiment, make_experiment
from graft.experiments.experiment_files import read_experiment
from graft.experiments.free_folder import check_free
from graft.experiments.make_method import make_method
from graft.methods import METHODS
from graft.options import parse_settings


@with_experiment_options
def run(
    file: Annotated[Optional[Path], typer.Argument(help="An experiment file (TOML); flags win over it.")] = None,  # noqa: UP045
    *,
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", help="A field of the method or plug, as mu=0.1.", rich_help_panel="Method"),
    ] = None,
    against: Annotated[
        Text, typer.Option(help="Run these methods too and compare, as local,centralised.", rich_help_panel="Method")
    ] = None,
    out: Annotated[Optional[Path], typer.Option(help="Where the record goes; runs/... if not given.")] = None,  # noqa: UP045
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in that place.")] = False,
    **flags: Any,
) -> None:
    """Train a federation and keep its record; without arguments, a small one on the embedded dataset."""
    values = read_experiment(file) if file else {}
    values |= {name: value for name, value in flags.items() if value is not None}
    values["settings"] = {**given_settings(values), **parse_settings(set_ or [])}
    others = split_names(against) or []
    # All that can be wrong with what was typed is said before PyTorch is imported.
    variants = [values, *({**values, "method": name, "plug": "", "settings": {}} for name in others)]
    drafts = [draft_experiment(variant) for variant in variants]
    first = drafts[0]
    root = out or Path("runs") / f"{first.label}-{first.data_label}-{first.clients}-{first.seed}"
    folders = [root / draft.label if others else root for draft in drafts]
    if len(set(folders)) < len(folders):
        raise InputError(f"--against {against} names a method twice; each is run once.")
    for draft, folder in zip(drafts, folders, strict=True):
        check_names(draft)
        check_free(folder, overwrite)
    run_all(variants, folders, root, overwrite)


def run_all(variants: list[dict[str, Any]], folders: list[Path], root: Path, overwrite: bool) -> None:
    """Run some experiments one after the other, each in a folder of its own, and compare them."""
    from graft.experiments.run import run_experiment

    experiments = [make_experiment(variants[0]), *(make_experiment(drop_topology(other)) for other in variants[1:])]
    for experiment in experiments:
        make_method(experiment.method, experiment.settings, experiment.plug)
    results = []
    for experiment, folder in zip(experiments, folders, strict=True):
        with round_progress(experiment.rounds, experiment.label) as tell:
            result = run_experiment(experiment, folder, overwrite=overwrite, progress=tell)
        results.append(finish_run(folder, result))
    show_results(results, root)


def given_settings(values: dict[str, Any]) -> dict[str, Any]:
    settings = values.get("settings", {})
    if not isinstance(settings, dict):
        raise InputError(f"settings is {settings!r}; it should be a table of the method's fields.")
    return settings


def drop_topology(values: dict[str, Any]) -> dict[str, Any]:
    """Without the topology that another method was asked for, where this one sends nothing between peers."""
    return values if METHODS[values["method"]].takes_topology else {**values, "topology": ""}


def resume(directory: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Go on with a run from its last checkpoint, as if it had never stopped."""
    rounds = draft_experiment(read_experiment(directory / "experiment.toml")).rounds
    from graft.experiments import run as runs

    with round_progress(rounds, directory.name) as tell:
        result = runs.resume(directory, progress=tell)
    show_results([finish_run(directory, result)], directory)
