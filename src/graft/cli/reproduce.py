"""`graft reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from graft.cli.cluster_options import JOBS, Address, CpusPerRun, Engine, GpusPerRun
from graft.cli.console import Number, Text, complain, say, split_names, whole_numbers
from graft.cli.progress import study_progress
from graft.errors import InputError
from graft.experiments.run_cluster import RunCluster, choose_cluster
from graft.options import parse_seeds

if TYPE_CHECKING:
    from graft.experiments.reproduce import Plan


TOURNAMENT = "tournament"
PANEL = "Tournament"
SEEDS = "5"  # of a study

# Typer reads these at run time.
Families = Annotated[Text, typer.Option(help="Only these families, as general,peers.", rich_help_panel=PANEL)]
Trials = Annotated[Number, typer.Option(help="Trials of every method. (40)", rich_help_panel=PANEL)]
FinalSeeds = Annotated[
    Number, typer.Option(help="Other seeds for the runs at the end, which are tested. (5)", rich_help_panel=PANEL)
]
JudgeOn = Annotated[
    Text,
    typer.Option(
        help="By what methods judge in training: validation, or a fifth of the training nodes. (validation)",
        rich_help_panel=PANEL,
    ),
]
Timeout = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(help="Seconds after which nothing new begins.", rich_help_panel=PANEL),
]


def reproduce(
    name: Annotated[Text, typer.Argument(help="A study, or tournament; without a name, the list of them.")] = None,
    datasets: Annotated[Text, typer.Option(help="Only these datasets of the study, as cora,cs.")] = None,
    clients: Annotated[Text, typer.Option(help="Only these numbers of clients, as 5,10.")] = None,
    methods: Annotated[Text, typer.Option(help="Only these rows, as local,fedgkc.")] = None,
    seeds: Annotated[
        Text, typer.Option(help="How many seeds, as 5, or which, as 0,3. (5; 2 of every trial in a tournament)")
    ] = None,
    rounds: Annotated[Number, typer.Option(help="Rounds of every run.")] = None,
    jobs: Annotated[Number, typer.Option(help=JOBS)] = None,
    device: Annotated[Text, typer.Option(help="auto, cpu or cuda.")] = None,
    out: Annotated[Optional[Path], typer.Option(help="Where it goes; reproductions/NAME if not given.")] = None,  # noqa: UP045
    no_run: Annotated[bool, typer.Option("--no-run", help="Only write the tables of what is finished.")] = False,
    families: Families = None,
    trials: Trials = None,
    final_seeds: FinalSeeds = None,
    judge_on: JudgeOn = None,
    timeout: Timeout = None,
    engine: Engine = None,
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
) -> None:
    """Run a published study and write its table with our numbers beside the paper's; run it again to go on."""
    if name is None:
        for study, meaning in study_meanings().items():
            say(f"{study:26} {meaning}")
        return
    numbers = whole_numbers("--clients", clients)
    own = {"engine": engine, "address": address, "device": device}
    extra, cluster = choose_cluster({key: value for key, value in own.items() if value}, cpus_per_run, gpus_per_run)
    parts: dict[str, Any] = {"datasets": split_names(datasets), "methods": split_names(methods)}
    of_tournament: dict[str, Any] = {"families": split_names(families), "trials": trials, "final_seeds": final_seeds}
    of_tournament["judge_on"] = judge_on
    if name == TOURNAMENT:
        from graft.cli.tournament import hold

        if cluster is not None:
            raise InputError("A tournament runs on one machine: leave --engine ray out.")
        hold({**parts, **of_tournament, "rounds": rounds, **extra}, numbers, seeds, jobs, out, timeout, not no_run)
        return
    for option, value in {**of_tournament, "timeout": timeout}.items():
        if value is not None:
            raise InputError(f"--{option.replace('_', '-')} is for `graft reproduce {TOURNAMENT}`.")
    from graft.experiments.studies import PORTRAITS

    if name in PORTRAITS:
        draw_portrait(name, out, parts["datasets"], numbers)
        return
    from graft.experiments.reproduce import make_plan

    plan = make_plan(name, out, clients=numbers, seeds=parse_seeds(seeds or SEEDS), rounds=rounds, **parts, **extra)
    run_study(plan, name, jobs, no_run, cluster)


def run_study(plan: Plan, name: str, jobs: int | None, no_run: bool, cluster: RunCluster | None) -> None:
    """Run what is not finished yet, write the tables, and say what failed."""
    from graft.experiments.many_runs import Outcome
    from graft.experiments.reports.tables import StudyTable
    from graft.experiments.reproduce import reproduce as run_plan

    outcome = Outcome()
    if no_run:
        if not plan.out.is_dir():
            raise InputError(f"There is nothing in {plan.out} to make tables of.")
    else:
        with study_progress(name) as tell:
            outcome = run_plan(plan, jobs, tell, cluster)
    table = StudyTable(plan)
    files = table.write()
    if table.figure.missing:
        complain(table.figure.missing)
    failures = {**table.failures(), **outcome.failures}
    for cell, reason in failures.items():
        complain(f"failed: {cell}: {reason}")
    done = f"{table.done()} of {len(plan.cells)} runs are done"
    if outcome.skipped:
        done += f", {outcome.skipped} of them before this call"
    say(f"{done}. Written: {', '.join(map(str, files))}")
    if outcome.stopped:
        say("Stopped; the same command goes on from here.")
    if outcome.stopped or failures:
        raise typer.Exit(1)


def study_meanings() -> dict[str, str]:
    """Returns all studies and portraits, with what each is about."""
    from graft.experiments.studies import PORTRAITS, STUDIES

    meanings = {name: entry.meaning for table in (STUDIES, PORTRAITS) for name, entry in table.items()}
    return {**meanings, TOURNAMENT: "Every method gets the same search, and is compared on new seeds"}


def draw_portrait(name: str, out: Path | None, datasets: list[str] | None, clients: list[int] | None) -> None:
    """Draw the figures of a study that runs nothing."""
    from graft.experiments.reports.portraits import write_portrait
    from graft.experiments.reproduce import choose
    from graft.experiments.studies import PORTRAITS

    portrait = PORTRAITS[name]
    files = write_portrait(
        portrait,
        name,
        out or Path("reproductions") / name,
        choose("dataset", datasets, portrait.datasets, portrait.datasets, name),
        choose("number of clients", clients, portrait.clients, portrait.clients, name),
        say,
    )
    say(f"Written: {', '.join(map(str, files))}")
