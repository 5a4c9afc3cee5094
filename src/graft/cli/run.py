"""`graft run` and `graft resume`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from graft.cli.console import Number, Text, say, split_names
from graft.cli.options import with_experiment_options
from graft.cli.predict import check_run
from graft.cli.progress import phase_progress, round_progress
from graft.cli.report import finish_run, show_results
from graft.cli.run_seeds import LOCAL, run_seeds
from graft.cli.sweep import choose_seeds
from graft.data import OWN_GRAPHS
from graft.errors import InputError
from graft.experiments.experiment import Experiment, check_names, data_settings, draft_experiment, make_experiment
from graft.experiments.experiment_files import given_settings, read_experiment
from graft.experiments.free_folder import check_free
from graft.experiments.make_method import make_method
from graft.experiments.trackers import kept_trackers, make_tracker
from graft.methods import METHODS
from graft.options import parse_settings

if TYPE_CHECKING:
    from graft.data.federation import FederationData
    from graft.experiments.result import Result
    from graft.experiments.trackers.tracker import Tracker

MAJORITY = "majority"
MOST_LEFT_OUT = 10  # clients up to which each is left out once, if nobody says otherwise


@with_experiment_options
def run(
    file: Annotated[Optional[Path], typer.Argument(help="An experiment file (TOML); flags win over it.")] = None,  # noqa: UP045
    *,
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", help="A field of the method or plug, as mu=0.1.", rich_help_panel="Method"),
    ] = None,
    against: Annotated[
        Text,
        typer.Option(
            help="Run these methods too and compare, as local,centralised; local gives each client a verdict.",
            rich_help_panel="Method",
        ),
    ] = None,
    contribution: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option(
            help="With --against local: run once more without each client, to see what it gives the others; as it is, "
            "for up to ten clients with graphs of their own.",
            rich_help_panel="Method",
        ),
    ] = None,
    seeds: Annotated[
        Text, typer.Option(help="Several seeds, as 5 or 0,3, averaged; the same command goes on where it stopped.")
    ] = None,
    jobs: Annotated[
        Number, typer.Option(help="With --seeds: worker processes; a core each, or 6 on a GPU, if not given.")
    ] = None,
    track: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="Tell a tracker of it: tensorboard[:DIR], wandb[:PROJECT] or mlflow[:URI]."),
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
    if contribution:
        check_contribution(others, seeds)
    # All that can be wrong with what was typed is said before PyTorch is imported.
    variants = with_others(values, others)
    drafts = check_variants(variants, against)
    first = drafts[0]
    trackers = [make_tracker(text) for text in track or []]
    if seeds is not None:
        chosen = choose_seeds(seeds, flags.get("seed"))
        root = out or Path("runs") / f"{first.label}-{first.data_label}-{first.clients}"
        run_seeds(variants, chosen, root, jobs, overwrite, trackers)
        return
    if jobs is not None:
        raise InputError("--jobs is about several runs: add --seeds.")
    root = out or Path("runs") / f"{first.label}-{first.data_label}-{first.clients}-{first.seed}"
    folders = [root / draft.label if others else root for draft in drafts]
    for folder in folders:
        check_free(folder, overwrite)
    run_all(variants, folders, root, overwrite, contribution, trackers)


def with_others(values: dict[str, Any], others: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the values of an experiment and of those that it is compared with, the majority class among them."""
    bare = {**values, "plug": "", "settings": {}}
    variants = [values, *({**bare, "method": name} for name in others)]
    if others and MAJORITY not in {draft_experiment(variant).label for variant in variants}:
        variants.append({**bare, "method": MAJORITY, "rounds": 1})
    return variants


def check_contribution(others: Sequence[str], seeds: str | None) -> None:
    """Refuses to find out what clients give to the others where that cannot be said."""
    if LOCAL not in others:
        raise InputError("--contribution is part of the comparison with training alone: add --against local.")
    if seeds is not None:
        raise InputError("--contribution runs a federation once more without each client: leave --seeds out.")


def check_variants(variants: Sequence[dict[str, Any]], against: str | None) -> list[Experiment]:
    """Returns drafts of experiments; names that do not exist, and a method that is named twice, are refused."""
    drafts = [draft_experiment(variant) for variant in variants]
    if len({draft.label for draft in drafts}) < len(drafts):
        raise InputError(f"--against {against} names a method twice; each is run once.")
    for draft in drafts:
        check_names(draft)
    return drafts


def run_all(
    variants: list[dict[str, Any]],
    folders: list[Path],
    root: Path,
    overwrite: bool,
    contribution: bool | None,
    trackers: Sequence[Tracker] = (),
) -> None:
    """Run some experiments one after the other, each in a folder of its own, and compare them."""
    with phase_progress(draft_experiment(variants[0]).label, "loading PyTorch") as tell_phase:
        from graft.experiments.given import Given
        from graft.experiments.run import run_experiment

        tell_phase("reading data")
        experiments, data = prepare_runs(variants, contribution)
    results = []
    for experiment, folder in zip(experiments, folders, strict=True):
        with round_progress(experiment.rounds, experiment.label) as progress:
            given = Given(federation=data[data_settings(experiment)])
            callbacks = [progress, *trackers]
            results.append(run_experiment(experiment, folder, overwrite=overwrite, callbacks=callbacks, given=given))
        finish_run(folder, results[-1])
    show_results(folders, root)
    alone = next((result for result in results[1:] if result.summary["method"] == LOCAL), None)
    if alone is not None:
        federation = data[data_settings(experiments[0])]
        if contribution is None:
            few = experiments[0].partition == OWN_GRAPHS and len(federation.clients) <= MOST_LEFT_OUT
            contribution = few and not experiments[0].topology  # which may need all of them
        judge_joining(experiments[0], results[0], alone, federation, folders[0], contribution)


def prepare_runs(
    variants: list[dict[str, Any]], contribution: bool | None
) -> tuple[list[Experiment], dict[str, FederationData]]:
    """Returns experiments and their data; all that does not go together is said before anything is run."""
    from graft.experiments.build import build_federation, build_setup
    from graft.experiments.combinations import build_topology, check_combination, suited

    others = [suited(other, METHODS[other["method"]]) for other in variants[1:]]
    experiments = [make_experiment(values) for values in (variants[0], *others)]
    methods = [make_method(entry.method, entry.settings, entry.plug) for entry in experiments]
    for experiment, method in zip(experiments, methods, strict=True):
        check_combination(experiment, method)
    if contribution:
        build_topology(experiments[0], max(experiments[0].clients - 1, 1))  # of those who are left
    data: dict[str, FederationData] = {}
    for experiment, method in zip(experiments, methods, strict=True):
        key = data_settings(experiment)
        if key not in data:
            data[key] = build_federation(experiment)
            for note in data[key].notes:
                say(note)
        if experiment is not experiments[0]:
            build_setup(experiment, method, data[key])  # what does not fit the data
    return experiments, data


def judge_joining(
    experiment: Experiment,
    federated: Result,
    alone: Result,
    federation: FederationData,
    folder: Path,
    contribution: bool,
) -> None:
    """Say for each client whether joining helps it, and what it gives to the others."""
    from graft.cli.report import show_verdicts
    from graft.experiments.joining import leave_out
    from graft.experiments.reports.report import write_report
    from graft.experiments.verdicts import write_verdicts

    verdicts = federated.against(alone)
    write_verdicts(folder, verdicts, LOCAL)
    if contribution and len(verdicts) > 1:
        for client, verdict in enumerate(verdicts):
            with round_progress(experiment.rounds, f"without {verdict.client}") as progress:
                gain = leave_out(client, federated, federation, experiment, [progress])
            verdicts[client] = verdict.with_contribution(gain)
        write_verdicts(folder, verdicts, LOCAL)
    write_report(folder)
    show_verdicts(verdicts, federated.summary["method"], contribution)


def resume(
    directory: Annotated[Path, typer.Argument(help="A run directory.")],
    address: Annotated[
        Text, typer.Option(help="With the engine ray: another cluster than before; '' starts one here.")
    ] = None,
) -> None:
    """Go on with a run from its last checkpoint, as if it had never stopped."""
    check_run(directory)
    rounds = draft_experiment(read_experiment(directory / "experiment.toml")).rounds
    trackers = [make_tracker(text) for text in kept_trackers(directory)]
    with phase_progress(directory.name, "loading PyTorch"):
        from graft.experiments import run as runs

    with round_progress(rounds, directory.name) as progress:
        result = runs.resume(directory, callbacks=[progress, *trackers], address=address)
    finish_run(directory, result)
    show_results([directory], directory)
