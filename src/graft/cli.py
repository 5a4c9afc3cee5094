"""The command line: `graft run`, `resume`, `report`, `partition`, `reproduce` and `list`."""

from __future__ import annotations

import functools
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

import typer
from rich.console import Console

from graft import __version__
from graft.errors import GraftError, InputError, MemoryWarning

if TYPE_CHECKING:
    from graft.experiments.run import Result

# Everything that needs PyTorch is imported inside the commands, so that --help and mistakes answer at once.

app = typer.Typer(
    help="Federated training of graph neural networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out_console = Console(highlight=False)
error_console = Console(stderr=True, highlight=False)

Command = TypeVar("Command", bound=Callable[..., None])
Names = Optional[str]  # noqa: UP045  (Typer reads these at run time)
Number = Optional[int]  # noqa: UP045
Share = Optional[float]  # noqa: UP045


def guarded(command: Command) -> Command:
    """One sentence and an exit code for whatever a person can get wrong: 2 for bad input, 1 for a failed run."""

    @functools.wraps(command)
    def inner(*arguments: Any, **options: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = functools.partial(show_warning, warnings.showwarning)
                command(*arguments, **options)
        except GraftError as error:
            error_console.print(f"graft: {error}", markup=False, soft_wrap=True)
            raise typer.Exit(2 if isinstance(error, InputError) else 1) from None

    return inner  # type: ignore[return-value]


def show_warning(usual: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Graft's own warnings are one sentence too."""
    if issubclass(category, MemoryWarning):
        error_console.print(f"graft: {message}", markup=False, soft_wrap=True)
    else:
        usual(message, category, *place)


def version(wanted: bool) -> None:
    if wanted:
        out_console.print(f"graft {__version__}")
        raise typer.Exit


@app.callback()
def options(
    show: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Say the version.")] = False,
) -> None:
    """Federated training of graph neural networks."""


@app.command()
@guarded
def run(
    file: Annotated[Optional[Path], typer.Argument(help="An experiment file (TOML); flags win over it.")] = None,  # noqa: UP045
    method: Annotated[Names, typer.Option(help="The federated method.")] = None,
    plug: Annotated[Names, typer.Option(help="What is added to the method, as fedtad.")] = None,
    dataset: Annotated[
        Names, typer.Option(help="A name, a .npz file, or a folder with nodes.csv and edges.csv.")
    ] = None,
    clients: Annotated[Number, typer.Option(help="How many clients share the graph.")] = None,
    partition: Annotated[
        Names, typer.Option(help="louvain, metis, random, label-skew, or a file of client ids.")
    ] = None,
    split: Annotated[Names, typer.Option(help="Train/validation/test percent, as 20/40/40, or own.")] = None,
    features: Annotated[Names, typer.Option(help="raw, row, l2 or standard.")] = None,
    label_sparsity: Annotated[Share, typer.Option(help="Share of the training nodes that lose their label.")] = None,
    label_noise: Annotated[Share, typer.Option(help="Share of the training labels that are made wrong.")] = None,
    edge_sparsity: Annotated[Share, typer.Option(help="Share of each client's edges that are taken away.")] = None,
    edge_noise: Annotated[Share, typer.Option(help="Share of each client's edges that are replaced by others.")] = None,
    feature_sparsity: Annotated[Share, typer.Option(help="Share of a node's features that are set to zero.")] = None,
    feature_noise: Annotated[Share, typer.Option(help="Standard deviation of noise added to the features.")] = None,
    perturbed_clients: Annotated[Names, typer.Option(help="Whose data these change: all, or as 0,3.")] = None,
    evaluate_on: Annotated[Names, typer.Option(help="Score on the data as they were: clean, or perturbed.")] = None,
    models: Annotated[Names, typer.Option(help="Models by name; client k gets entry k modulo their number.")] = None,
    width: Annotated[Number, typer.Option(help="Width of the hidden layers.")] = None,
    dropout: Annotated[Share, typer.Option(help="Dropout between layers.")] = None,
    head: Annotated[Names, typer.Option(help="linear or conv.")] = None,
    rounds: Annotated[Number, typer.Option(help="Rounds of the federation.")] = None,
    epochs: Annotated[Number, typer.Option(help="Local epochs a round.")] = None,
    batches: Annotated[Number, typer.Option(help="Steps an epoch, each on a part of a client's nodes.")] = None,
    optimizer: Annotated[Names, typer.Option(help="adam, sgd or momentum.")] = None,
    learning_rate: Annotated[Share, typer.Option(help="Step size of the local optimiser.")] = None,
    weight_decay: Annotated[Share, typer.Option(help="L2 penalty of the local optimiser.")] = None,
    optimizer_state: Annotated[Names, typer.Option(help="persistent or reset.")] = None,
    weight_by: Annotated[Names, typer.Option(help="A client's vote: nodes, train or uniform.")] = None,
    participation: Annotated[Share, typer.Option(help="Share of the clients in a round.")] = None,
    topology: Annotated[
        Names, typer.Option(help="Who hears whom without a server: ring, random:k=3, ..., or a file of links.")
    ] = None,
    score: Annotated[Names, typer.Option(help="Models that pick the best round: personal or global.")] = None,
    evaluate_every: Annotated[Number, typer.Option(help="Rounds between evaluations.")] = None,
    patience: Annotated[Number, typer.Option(help="Stop after so many evaluations without progress.")] = None,
    seed: Annotated[Number, typer.Option(help="Seed of partition, split, weights and training.")] = None,
    device: Annotated[Names, typer.Option(help="auto, cpu or cuda.")] = None,
    engine: Annotated[Names, typer.Option(help="in_process or loopback.")] = None,
    precision: Annotated[Names, typer.Option(help="Of matrix products on a GPU: float32 or tf32.")] = None,
    threads: Annotated[Number, typer.Option(help="On a CPU; 0 is one for every core that is free.")] = None,
    memory: Annotated[Names, typer.Option(help="Memory that may be used, as 4GB; a share of what is free.")] = None,
    checkpoint_every: Annotated[Number, typer.Option(help="Rounds between checkpoints.")] = None,
    set_: Annotated[Optional[list[str]], typer.Option("--set", help="A field of the method or plug: mu=0.1.")] = None,  # noqa: UP045
    against: Annotated[Names, typer.Option(help="Run these methods too and compare, as local,centralised.")] = None,
    out: Annotated[Optional[Path], typer.Option(help="Where the record goes; runs/... if not given.")] = None,  # noqa: UP045
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier run in that place.")] = False,
) -> None:
    """Train a federation and keep its record; without arguments, a small one on the embedded dataset."""
    flags = {name: value for name, value in locals().items() if name not in NOT_FIELDS and value is not None}
    from graft.experiments.experiment import make_experiment, make_method, parse_value, read_experiment
    from graft.experiments.run import run_experiment

    values = (read_experiment(file) if file else {}) | flags
    settings = dict(values.pop("settings", {}))
    for pair in set_ or []:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InputError(f"--set {pair} should read --set name=value.")
        settings[name] = parse_value(text)
    first = make_experiment(values | {"settings": settings})
    others = [name.strip() for name in against.split(",")] if against else []
    experiments = [first, *(make_experiment(values_beside(values, name)) for name in others)]
    for experiment in experiments:
        make_method(experiment.method, experiment.settings, experiment.plug)
    place = out or Path("runs") / f"{first.label}-{Path(first.dataset).stem}-{first.clients}-{first.seed}"
    results = []
    for experiment in experiments:
        where = place / experiment.label if others else place
        with progress(experiment.rounds, experiment.label) as tell:
            result = run_experiment(experiment, where, overwrite=overwrite, progress=tell)
        results.append(finished(where, result))
    show_results(results, place)


NOT_FIELDS = {"file", "set_", "against", "out", "overwrite"}


def values_beside(values: dict[str, Any], method: str) -> dict[str, Any]:
    """The same experiment with another method; a topology is only for methods that send between peers."""
    from graft.federation.peers import PeerMethod
    from graft.methods import METHODS

    between_peers = issubclass(METHODS.get(method, PeerMethod), PeerMethod)
    return values | {"method": method, "plug": "", "settings": {}} | ({} if between_peers else {"topology": ""})


@app.command()
@guarded
def resume(directory: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Go on with a run from its last checkpoint, as if it had never stopped."""
    from graft.experiments import run as runs
    from graft.experiments.experiment import make_experiment, read_experiment
    from graft.experiments.records import RunDirectory

    rounds = make_experiment(read_experiment(RunDirectory(directory).experiment)).rounds
    with progress(rounds, directory.name) as tell:
        result = runs.resume(directory, progress=tell)
    show_results([finished(directory, result)], directory)


@app.command()
@guarded
def report(
    directories: Annotated[list[Path], typer.Argument(help="Run directories.")],
    rounds: Annotated[Names, typer.Option(help="Rounds whose links are drawn, as 1,10,100.")] = None,
) -> None:
    """Compare finished runs, and write report.html into each."""
    from graft.experiments.records import RunDirectory

    runs = [found for given in directories for found in sorted({place.parent for place in given.rglob("result.json")})]
    if not runs:
        raise InputError(f"There is no finished run in {', '.join(map(str, directories))}.")
    drawn = None if rounds is None else whole_numbers("--rounds", rounds)
    show_results([finish(place, RunDirectory(place).read_result(), drawn) for place in runs], directories[0])


@app.command()
@guarded
def partition(
    dataset: Annotated[str, typer.Argument(help="A name, a .npz file, or a folder with nodes.csv and edges.csv.")],
    clients: Annotated[int, typer.Option(help="How many clients share the graph.")] = 5,
    by: Annotated[str, typer.Option(help="louvain, metis, random, label-skew, or a file of client ids.")] = "louvain",
    seed: Annotated[int, typer.Option(help="Seed of the partition.")] = 0,
    out: Annotated[Optional[Path], typer.Option(help="Where to save it; partitions/... if not given.")] = None,  # noqa: UP045
) -> None:
    """Share a graph out among clients, show what each would hold, and save it for `graft run --partition FILE`."""
    from graft.data import cards, datasets, partitions
    from graft.experiments.experiment import split_options

    graph = datasets.load(dataset)
    name, settings = split_options(by)
    membership = partitions.partition(graph, clients, by=name, seed=seed, **settings)
    card = cards.card(graph, membership, name, seed, settings)
    place = out or Path("partitions") / f"{graph.name}-{Path(name).stem}-{clients}-{seed}.json"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        cards.save(card, membership, place)
    except OSError as error:
        raise InputError(f"{place} cannot be written: {error.strerror}.") from error
    out_console.print(card_table(card))
    lost = card["edges"]["lost"]
    out_console.print(f"{lost} of {card['edges']['total']} edges run between clients and are lost.", highlight=False)
    out_console.print(f"Saved as {place}, content hash {card['hash'][:16]}.", soft_wrap=True)


@app.command()
@guarded
def reproduce(
    name: Annotated[Names, typer.Argument(help="A study; without a name, the list of them.")] = None,
    datasets: Annotated[Names, typer.Option(help="Only these datasets of the study, as cora,cs.")] = None,
    clients: Annotated[Names, typer.Option(help="Only these numbers of clients, as 5,10.")] = None,
    methods: Annotated[Names, typer.Option(help="Only these rows, as local,fedgkc.")] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds, as 5, or which, as 0,3.")] = "5",
    rounds: Annotated[Number, typer.Option(help="Rounds of every run.")] = None,
    jobs: Annotated[Number, typer.Option(help="Worker processes; a core each, or 6 on a GPU, if not given.")] = None,
    device: Annotated[Names, typer.Option(help="auto, cpu or cuda.")] = None,
    out: Annotated[Optional[Path], typer.Option(help="Where it goes; reproductions/NAME if not given.")] = None,  # noqa: UP045
    no_run: Annotated[bool, typer.Option("--no-run", help="Only write the tables of what is finished.")] = False,
) -> None:
    """Run a published study and write its table with our numbers beside the paper's; run it again to go on."""
    from graft.experiments.studies import PORTRAITS

    if name is None:
        for known, meaning in study_meanings().items():
            out_console.print(f"{known:26} {meaning}", markup=False, soft_wrap=True)
        return
    if name in PORTRAITS:
        draw_portrait(
            name, out, split_names(datasets), None if clients is None else whole_numbers("--clients", clients)
        )
        return
    from graft.experiments.reports.tables import StudyTable
    from graft.experiments.reproduce import Outcome, make_plan, parse_seeds
    from graft.experiments.reproduce import reproduce as run_plan

    plan = make_plan(
        name,
        out,
        datasets=split_names(datasets),
        clients=None if clients is None else whole_numbers("--clients", clients),
        methods=split_names(methods),
        seeds=parse_seeds(seeds),
        rounds=rounds,
        device=device,
    )
    outcome = Outcome()
    if no_run:
        if not plan.out.is_dir():
            raise InputError(f"There is nothing in {plan.out} to make tables of.")
    else:
        with cell_progress(name) as tell:
            outcome = run_plan(plan, jobs, tell)
    table = StudyTable(plan)
    places = table.write()
    failures = {**table.failures(), **outcome.failures}
    for cell, reason in failures.items():
        error_console.print(f"failed: {cell}: {reason}", markup=False, soft_wrap=True)
    done = f"{table.done()} of {len(plan.cells)} runs are done"
    if outcome.skipped:
        done += f", {outcome.skipped} of them before this call"
    out_console.print(f"{done}. Written: {', '.join(map(str, places))}", markup=False, soft_wrap=True)
    if outcome.stopped:
        out_console.print("Stopped; the same command goes on from here.")
    if outcome.stopped or failures:
        raise typer.Exit(1)


def study_meanings() -> dict[str, str]:
    from graft.experiments.studies import PORTRAITS, STUDIES

    return {name: one.meaning for table in (STUDIES, PORTRAITS) for name, one in table.items()}


def draw_portrait(name: str, out: Path | None, datasets: list[str] | None, clients: list[int] | None) -> None:
    from graft.experiments.reports.portraits import draw
    from graft.experiments.reproduce import choose
    from graft.experiments.studies import PORTRAITS

    portrait = PORTRAITS[name]
    places = draw(
        portrait,
        name,
        out or Path("reproductions") / name,
        choose("dataset", datasets, portrait.datasets, portrait.datasets, name),
        choose("number of clients", clients, portrait.clients, portrait.clients, name),
        lambda text: out_console.print(text, markup=False),
    )
    out_console.print(f"Written: {', '.join(map(str, places))}", markup=False, soft_wrap=True)


def split_names(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(part) for part in split_names(text) or []]
    except ValueError:
        raise InputError(f"{flag} is '{text}'; it should be a list of whole numbers, as 5,10.") from None


@contextmanager
def cell_progress(label: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar over the runs of a study on a terminal, a plain line a run elsewhere."""
    if not sys.stdout.isatty():
        begun = time.perf_counter()

        def line(message: dict[str, Any]) -> None:
            left = (time.perf_counter() - begun) / message["done"] * (message["total"] - message["done"])
            out_console.print(
                f"{message['done']}/{message['total']} {outcome_of(message)}, about {left / 60:.1f} min left",
                markup=False,
                soft_wrap=True,
            )

        yield line
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times)
    with Progress(*columns, TextColumn("{task.fields[last]}", markup=False), console=out_console) as bar:
        task = bar.add_task(label, total=None, last="")

        def advance(message: dict[str, Any]) -> None:
            bar.update(task, total=message["total"], completed=message["done"], last=outcome_of(message))

        yield advance


def outcome_of(message: dict[str, Any]) -> str:
    if "error" in message:
        return f"{message['cell']}: failed"
    test = message["test"]
    return f"{message['cell']}: {'no score' if test is None else f'{100 * test:.1f} %'} in {message['seconds']:.1f} s"


@app.command(name="list")
@guarded
def list_names(
    what: Annotated[
        str, typer.Argument(help="methods, datasets, models, partitions, topologies, studies or plugs.")
    ] = "methods",
) -> None:
    """Say what exists."""
    from graft.data import datasets, partitions
    from graft.federation.topologies import TOPOLOGIES
    from graft.methods import METHODS, PLUGS
    from graft.models import FAMILIES, MODELS

    lists: dict[str, dict[str, str]] = {
        "methods": {name: summary(kind) for name, kind in sorted(METHODS.items())},
        "datasets": dict.fromkeys(datasets.names(), ""),
        "models": {name: summary(kind) for name, kind in MODELS.items()}
        | {name: "for client 0, 1, 2, ...: " + ", ".join(models) for name, models in FAMILIES.items()},
        "partitions": dict.fromkeys(partitions.names(), ""),
        "topologies": {name: summary(graph) for name, graph in TOPOLOGIES.items()},
        "studies": study_meanings(),
        "plugs": {name: summary(kind) for name, kind in PLUGS.items()},
    }
    if what not in lists:
        raise InputError(f"There is no list of '{what}': there are {', '.join(lists)}.")
    for name, meaning in lists[what].items():
        out_console.print(f"{name:17} {meaning}".rstrip(), markup=False, soft_wrap=True)


def summary(kind: Callable[..., Any]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


@contextmanager
def progress(rounds: int, label: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar on a terminal, about ten plain lines elsewhere."""
    if not sys.stdout.isatty():
        every = max(1, rounds // 10)

        def line(record: dict[str, Any]) -> None:
            if record["round"] % every == 0 or record["round"] == rounds:
                out_console.print(f"{label}: round {record['round']}/{rounds}{scores(record)}", soft_wrap=True)

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[scores]}"), console=out_console) as bar:
        task = bar.add_task(label, total=rounds, scores="")

        def advance(record: dict[str, Any]) -> None:
            if scores(record):
                bar.update(task, scores=scores(record))
            bar.update(task, completed=record["round"])

        yield advance


def scores(record: dict[str, Any]) -> str:
    if record.get("test") is None or record.get("validation") is None:
        return ""
    return f"  validation {100 * record['validation']:.1f}  test {100 * record['test']:.1f}"


def finished(place: Path, result: Result) -> dict[str, Any]:
    """What a run found out; one that was stopped before its time says how to go on and ends the command."""
    if not result.finished:
        out_console.print(f"Stopped after round {result.rounds[-1]['round']}; go on with: graft resume {place}")
        raise typer.Exit(1)
    return finish(place, result.summary)


def finish(place: Path, result: dict[str, Any], rounds: list[int] | None = None) -> dict[str, Any]:
    from graft.experiments.reports.report import write_report

    write_report(place, rounds)
    return result


def show_results(results: list[dict[str, Any]], place: Path) -> None:
    from graft.experiments.reports.report import comparison

    out_console.print(comparison(results))
    out_console.print(f"Record and report.html: {place}", soft_wrap=True)


def card_table(card: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=f"{card['dataset']}: {card['clients']} clients by {card['method']}", title_justify="left")
    for name in ("client", "nodes", "edges", "components", "isolated", "homophily", "labels"):
        table.add_column(name, justify="left" if name == "labels" else "right")
    for client, row in enumerate(card["per_client"]):
        homophily = "-" if row["homophily"] is None else f"{row['homophily']:.2f}"
        labels = " ".join(map(str, row["labels"])) + (f" (+{row['unlabelled']} without)" if row["unlabelled"] else "")
        counts = (client, row["nodes"], row["edges"], row["components"], row["isolated"])
        table.add_row(*map(str, counts), homophily, labels)
    return table


def main() -> None:
    app()
