"""`graft tune`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from graft.cli.cluster_options import JOBS, Address, CpusPerRun, Engine, GpusPerRun, read_cluster
from graft.cli.console import Number, Text, complain, out_console, safe, say, split_names
from graft.cli.options import with_options_of_many
from graft.cli.progress import is_terminal, showing
from graft.cli.run_state import short_time
from graft.errors import InputError
from graft.experiments.experiment import Experiment, draft_experiment
from graft.experiments.experiment_files import given_settings, read_experiment
from graft.experiments.tuning.design import FINAL_SEEDS, SEEDS, TRIALS, Design
from graft.experiments.tuning.optuna_study import check_optuna
from graft.experiments.tuning.space import parse_changes
from graft.federation.metric_names import METRICS, format_metric
from graft.options import check_jobs, parse_seeds, parse_settings

if TYPE_CHECKING:
    from rich.table import Table

    from graft.experiments.run_cluster import RunCluster
    from graft.experiments.tuning.tuning import Tuning

Words = Optional[list[str]]  # noqa: UP045  (Typer reads it at run time)
Tell = Callable[[dict[str, Any]], None]


@with_options_of_many
def tune(
    methods: Annotated[Text, typer.Argument(help="Methods, as fedprox or fedavg,fedprox,fedavg+fedtad.")] = None,
    file: Annotated[Optional[Path], typer.Argument(help="An experiment file (TOML); flags win over it.")] = None,  # noqa: UP045
    *,
    set_: Annotated[
        Words,
        typer.Option("--set", help="A field of methods or plugs, for those that have it.", rich_help_panel="Method"),
    ] = None,
    trials: Annotated[
        int, typer.Option(help="Trials of every method; the first has the defaults.", rich_help_panel="Tuning")
    ] = TRIALS,
    seeds: Annotated[
        Text, typer.Option(help=f"Seeds of every trial, as 3 or 0,7. ({SEEDS})", rich_help_panel="Tuning")
    ] = None,
    final_seeds: Annotated[
        int, typer.Option(help="Other seeds for the runs at the end, which are tested.", rich_help_panel="Tuning")
    ] = FINAL_SEEDS,
    space: Annotated[
        Words,
        typer.Option(
            help="Values to try of a field, as learning_rate=0.001..0.1:log, epochs=1..5 or optimizer=adam,sgd.",
            rich_help_panel="Tuning",
        ),
    ] = None,
    fix: Annotated[
        Words,
        typer.Option(help="Fields that stay, as optimizer or epochs=3.", rich_help_panel="Tuning"),
    ] = None,
    search: Annotated[
        Words,
        typer.Option(help="Search these fields alone, as mu,learning_rate.", rich_help_panel="Tuning"),
    ] = None,
    jobs: Annotated[
        Number,
        typer.Option(help=JOBS.replace("Runs", "Trials"), rich_help_panel="Tuning"),
    ] = None,
    timeout: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Seconds after which no trial begins.", rich_help_panel="Tuning"),
    ] = None,
    out: Annotated[Optional[Path], typer.Option(help="Where it goes; tunings/... if not given.")] = None,  # noqa: UP045
    engine: Engine = None,
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    **flags: Any,
) -> None:
    """Search values that suit methods on validation nodes, with the same budget for each; run it again to go on."""
    if methods is not None and methods.endswith(".toml") and file is None:
        file, methods = Path(methods), None
    in_file = read_experiment(file) if file else {}
    given = {name: value for name, value in flags.items() if value is not None}
    values, cluster = read_cluster(in_file, given, engine, address, cpus_per_run, gpus_per_run)
    settings = {**given_settings(values), **parse_settings(set_ or [])}
    chosen = choose_methods(methods, flags.get("method"), values.get("method"))
    tried = choose_seeds(seeds, flags.get("seed"), values.get("seed", Experiment.seed))
    check_numbers(final_seeds, jobs, timeout)
    design = Design(
        chosen,
        values={name: value for name, value in values.items() if name not in ("method", "seed", "settings")},
        settings=settings,
        changes=parse_changes(space or [], fix or [], search or []),
        trials=trials,
        seeds=tried,
        final_seeds=range(max(tried) + 1, max(tried) + 1 + final_seeds),
    )
    run_tuning(design, out, jobs, timeout, cluster)


def check_numbers(final_seeds: int, jobs: int | None, timeout: float | None) -> None:
    """Refuses numbers that make no sense."""
    if final_seeds < 0:
        raise InputError(f"--final-seeds is {final_seeds}; it must be at least 0.")
    check_jobs(jobs)
    if timeout is not None and not timeout > 0:
        raise InputError(f"--timeout is {timeout}; it must be above 0.")


def run_tuning(
    design: Design, out: Path | None, jobs: int | None, timeout: float | None, cluster: RunCluster | None
) -> None:
    """Run a tuning with a view of it, and say what came of it."""
    # All that can be wrong with what was typed is said before PyTorch is imported.
    candidates = design.candidates()
    check_optuna()
    draft = draft_experiment(candidates[0].variant)
    label = ",".join(candidate.label for candidate in candidates)
    folder = out or Path("tunings") / f"{label.replace(',', '-')}-{draft.data_label}-{draft.clients}"[:100]
    from graft.experiments.tuning.tune import run_design

    with tuning_progress(f"tune {label}") as tell:
        tuning = run_design(design, folder, jobs=jobs, timeout=timeout, report=tell, cluster=cluster)
    tell_result(tuning, folder)


def choose_methods(argument: str | None, flag: str | None, in_file: str | None) -> list[str]:
    """Returns the methods that were asked for, in one of the three ways there are."""
    if argument is not None and flag is not None:
        raise InputError("Methods were given twice, as an argument and by --method: leave one of them out.")
    names = split_names(argument or flag or in_file or "")
    if not names:
        raise InputError("Say which method to tune, as in `graft tune fedprox --dataset cora`.")
    return names


def choose_seeds(text: str | None, flag: int | None, first: int) -> tuple[int, ...]:
    """Returns the seeds of every trial: those of --seeds, or some from that of the experiment on."""
    if text is not None and flag is not None:
        raise InputError("--seed and --seeds were both given: leave one of them out.")
    return tuple(range(first, first + SEEDS)) if text is None else parse_seeds(text)


@contextmanager
def tuning_progress(label: str) -> Iterator[Tell]:
    """Yields a function that is told of every trial, and of every run at the end: a view on a terminal, lines
    elsewhere."""
    from graft.cli.many_view import ManyState, ManyView

    states = [ManyState(label, unit="trial", phase="validation nodes only")]
    ended = [time.monotonic()]  # when something was over

    def see(message: dict[str, Any]) -> str:
        """Takes in a message; returns the line about it."""
        if "trial" not in message and len(states) == 1:
            states.append(ManyState(label, begun=ended[-1]))
        ended.append(time.monotonic())
        state = states[-1]
        if state.done == 0:
            state.done_before = message["done"] - 1  # those of an earlier call do not count for the pace
        state.done, state.total = message["done"], message["total"]
        text = trial_line(message) if "trial" in message else final_line(message)
        state.last.append(text)
        left = f", about {short_time(state.seconds_left)} left" if state.seconds_left else ""
        return f"{message['done']}/{message['total']} {text}{left}"

    if not is_terminal():
        yield lambda message: say(see(message))
        return
    view = ManyView(states[0])

    def advance(message: dict[str, Any]) -> None:
        line = see(message)
        if message.get("reason"):
            states[-1].failures[f"{message['method']} trial {message['trial']}"] = message["reason"]
        view.state = states[-1]
        if message["done"] == message["total"]:
            say(line)

    with showing(view):
        yield advance


def trial_line(message: dict[str, Any]) -> str:
    """Returns what came of a trial: its score, the best so far, and its values."""
    from graft.experiments.comparison.comparison import spell

    metric = message["metric"]
    outcome = {"complete": "", "pruned": ", ended early", "failed": f"failed: {message['reason']}"}[message["state"]]
    score = "" if message["validation"] is None else format_metric(metric, message["validation"])
    best = (
        ""
        if message["best"] is None
        else f" (best {format_metric(metric, message['best'])}, trial {message['best_trial']})"
    )
    values = " ".join(
        f"{name}={f'{value:.3g}' if isinstance(value, float) else spell(value)}"
        for name, value in message["params"].items()
    )
    took = short_time(message["seconds"])
    return f"{message['method']} trial {message['trial']}: {score}{outcome}{best} {values}, {took}"


def final_line(message: dict[str, Any]) -> str:
    """Returns what came of a run at the end."""
    if "error" in message:
        return f"{message['cell']}: failed"
    test = "no score" if message["test"] is None else f"test {format_metric(message['metric'], message['test'])}"
    return f"{message['cell']}: {test}, {short_time(message['seconds'])}"


def tell_result(tuning: Tuning, folder: Path) -> None:
    """Say what was chosen and what it gains, and end the command with 1 where it was stopped or a run failed."""
    for name, reason in tuning.failures.items():
        complain(f"failed: {name}: {reason}")
    if tuning.runs:
        with suppress(ImportError):  # without the packages of reports, the files and this table are enough
            tuning.report()
    out_console.print(result_table(tuning))
    for label, entry in tuning.summary["methods"].items():
        say(f"{label}: {values_of(entry)}; {fates_of(entry)}.")
    page = " and report.html" if (folder / "report.html").is_file() else ""
    say(f"Chosen values, all trials{page}: {folder}")
    if tuning.stopped:
        say("Stopped; the same command goes on from here.")
    if tuning.stopped or tuning.failures:
        raise typer.Exit(1)


def values_of(entry: Mapping[str, Any]) -> str:
    """Returns the chosen values of a method, and whether they are those it would have had anyway."""
    from graft.experiments.tuning.tuning import spell_params

    if entry["best"] is None:
        return "no trial is complete, so nothing was chosen"
    chosen = spell_params(entry["best"]["params"])
    return chosen if entry["best"]["trial"] else f"no trial was better than the first, {chosen}"


def fates_of(entry: Mapping[str, Any]) -> str:
    """Returns how many trials were not complete."""
    states = [row["state"] for row in entry["history"]]
    return f"of {len(states)} trials {states.count('pruned')} were ended early and {states.count('failed')} failed"


def result_table(tuning: Tuning) -> Table:
    """Returns the table of what was gained, on validation nodes and on test nodes of other seeds."""
    from rich.table import Table

    from graft.experiments.tuning.tuning import gain_on_test, gains

    summary, metric = tuning.summary, tuning.metric
    seeds = len(summary["final_seeds"])
    title = f"{METRICS[metric].title}: validation of {len(summary['seeds'])} seeds, test of {seeds} others"
    table = Table(title=safe(title), title_justify="left")
    table.add_column("method", overflow="fold")
    for name in ("trials", "validation, default", "tuned", "test, default", "tuned", "gain"):
        table.add_column(name, justify="right")
    for label, entry in summary["methods"].items():
        scores = [format_metric(metric, value, "-") for kind in ("validation", "test") for value in gains(entry, kind)]
        table.add_row(safe(label), str(len(entry["history"])), *scores, gain_on_test(metric, entry))
    return table
