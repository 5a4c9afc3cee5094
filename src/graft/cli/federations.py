"""`graft serve`, `graft join`, `graft peer`: a federation between organisations, each command at one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Optional

import typer

from graft.cli.console import say
from graft.errors import InputError

if TYPE_CHECKING:
    from graft.engines.wire import Handler, Node
    from graft.experiments.callbacks import Callback
    from graft.experiments.consent import ConsentSheet
    from graft.experiments.federation_file import FederationFile

NAMESPACE = "graft"  # of keys on the wire; a federation has an address of its own

FederationPath = Annotated[Path, typer.Argument(metavar="FEDERATION", help="The federation's file.")]
Keys = Annotated[Path, typer.Option(help="Folder with the certificates: ca.crt, NAME.crt and NAME.key.")]
As = Annotated[str, typer.Option("--as", help="Your name in the federation, and in your certificate.")]
Data = Annotated[str, typer.Option(help="Your graph: a folder with tables, a .npz file, a data file, a dataset.")]
ModelName = Annotated[
    Optional[str],  # noqa: UP045  (Typer reads it at run time)
    typer.Option("--model", help="Your architecture, where the method lets everybody have one of their own."),
]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where your model is trained.")]
Out = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="Folder of your run; one that is there is gone on with. Otherwise runs/FEDERATION-NAME."),
]
Approve = Annotated[bool, typer.Option("--approve", help="Approve of what will leave without being asked.")]
PolicyFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--policy", help="File of your policy: which scores leave, how often, from how many nodes on."),
]
Scores = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--scores", help="Whose scores leave: never, own, all. In place of the policy's."),
]
LogFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--log-file", help="File to which is added what happens."),
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Write it as JSON, a line for everything that happens.")]
Monitor = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--monitor", help="Address of a health and metrics endpoint, as 127.0.0.1:9100."),
]


def serve(
    federation: FederationPath,
    keys: Keys = Path("keys"),
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder of the run; one that was stopped is gone on with. Otherwise runs/FEDERATION-SERVER."),
    ] = None,
    listen: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Address to listen at, where it is not the one in the file, as 0.0.0.0:7447."),
    ] = None,
    resume: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder of a run that was stopped, to go on with it."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite the run in the folder.")] = False,
    monitor: Monitor = None,
    log_file: LogFile = None,
    log_json: LogJson = False,
) -> None:
    """Run the server of a federation: it never sees a graph, and it goes on with the parties that are there."""
    import tomllib

    from graft.experiments.federation_file import read_federation
    from graft.experiments.record_files import FEDERATION
    from graft.experiments.serving import serve as serve_federation

    file = read_federation(federation)
    if not file.has_server:
        raise InputError(f"Method '{file.experiment.method}' has no server: every peer runs `graft peer {federation}`.")
    if resume is not None and out is not None and out != resume:
        raise InputError("Give --resume or --out, not both: a run goes on in its own folder.")
    folder = resume or out or Path("runs") / f"{file.name}-{file.server}"
    goes_on = resume is not None or ((folder / FEDERATION).is_file() and not overwrite)
    content = tomllib.loads(federation.read_text(encoding="utf-8"))
    connect = node_opener(file.server, keys, file.parties, file, listen=[listen or file.address])
    rounds, watching = file.experiment.rounds, Watching(monitor, log_file, log_json)
    with showing(rounds, f"{file.name}: {file.server}", watching, "server", file.server) as callbacks:
        summary = serve_federation(
            file, content, folder, connect, resume=goes_on, overwrite=overwrite, callbacks=callbacks
        )
    from graft.experiments.reports.report import write_report

    write_report(folder)
    tell_end(folder, summary)


def join(
    federation: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(metavar="[FEDERATION]", help="Your own copy of the file; nothing else is joined then."),
    ] = None,
    name: As = ...,  # type: ignore[assignment]
    data: Data = ...,  # type: ignore[assignment]
    server: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="HOST:PORT of the server, where the file does not say it or there is none."),
    ] = None,
    keys: Keys = Path("keys"),
    model: ModelName = None,
    out: Out = None,
    approve: Approve = False,
    policy: PolicyFile = None,
    scores: Scores = None,
    device: Device = "auto",
    monitor: Monitor = None,
    log_file: LogFile = None,
    log_json: LogJson = False,
) -> None:
    """Take part in a federation with your own graph and model; both stay here."""
    from graft.engines.policy import read_policy
    from graft.experiments.federation_file import read_federation
    from graft.experiments.party_run import Joining
    from graft.experiments.party_run import join as join_federation
    from graft.keys import load_keys, server_name

    file = None if federation is None else read_federation(federation)
    address = server or (file.address if file else None)
    if not address:
        raise InputError("Where is the server? Give --server HOST:PORT, or the federation's file.")
    if file is not None:
        file.number(name)  # refused before anybody is asked
    joining = Joining(name, data, model, device, read_policy(policy, scores=scores))
    who = file.server if file else server_name(address, load_keys(keys, name))
    folder = out or Path("runs") / f"{file.name if file else who}-{name}"
    connect = node_opener(name, keys, [who], file, connect=[address])
    rounds, watching = file.experiment.rounds if file else 0, Watching(monitor, log_file, log_json)
    with showing(rounds, f"{folder.name}", watching, "party", name) as callbacks:
        result = join_federation(joining, who, folder, connect, asking(approve), file=file, callbacks=callbacks)
    finish_own(folder, result)


def peer(
    federation: FederationPath,
    name: As = ...,  # type: ignore[assignment]
    data: Data = ...,  # type: ignore[assignment]
    keys: Keys = Path("keys"),
    model: ModelName = None,
    out: Out = None,
    approve: Approve = False,
    listen: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Address to listen at, where it is not yours in the file, as 0.0.0.0:7451."),
    ] = None,
    device: Device = "auto",
    monitor: Monitor = None,
    log_file: LogFile = None,
    log_json: LogJson = False,
) -> None:
    """Take part in a federation without a server: peers hear each other, and nobody else."""
    from graft.experiments.federation_file import read_federation
    from graft.experiments.peering import Peering, take_part_as_peer

    file = read_federation(federation)
    if file.has_server:
        raise InputError(
            f"Method '{file.experiment.method}' has a server: `graft serve` runs it, and you `graft join` it."
        )
    number = file.number(name)
    folder = out or Path("runs") / f"{file.name}-{name}"
    others = [other for other in file.parties if other != name]
    # Each connects to those before it in the file, and is connected to by those after it.
    before = [file.peers[other] for other in file.parties[:number]]
    connect = node_opener(name, keys, others, file, listen=[listen or file.peers[name]], connect=before)
    peering, watching = Peering(name, data, model, device), Watching(monitor, log_file, log_json)
    with showing(file.experiment.rounds, f"{file.name}: {name}", watching, "peer", name) as callbacks:
        result = take_part_as_peer(peering, file, folder, connect, asking(approve), callbacks=callbacks)
    finish_own(folder, result)


class Watching(NamedTuple):
    """Who else is told how a run goes on."""

    monitor: str | None  # the address of an endpoint
    log_file: Path | None
    log_json: bool


@contextmanager
def showing(
    rounds: int, label: str, watching: Watching, role: Literal["server", "party", "peer"], name: str
) -> Iterator[list[Callback]]:
    """Shows a run line by line, in a log, and to whoever asks at the address of a monitor."""
    from graft.cli.progress import PlainProgress
    from graft.experiments.json_logs import logging_to
    from graft.experiments.monitoring import monitoring

    with (
        logging_to(watching.log_file, watching.log_json, role, name) as logged,
        monitoring(watching.monitor, role, name) as monitored,
    ):
        yield [PlainProgress(rounds, label), logged, monitored]


def node_opener(
    name: str,
    keys: Path,
    others: Any,
    file: FederationFile | None,
    *,
    listen: list[str] | None = None,
    connect: list[str] | None = None,
) -> Callable[[Handler], Node]:
    """Returns what connects somebody to the others, by mutual TLS and nothing else; keys are looked at now."""
    from graft.engines.wire import MOST_BYTES
    from graft.engines.zenoh import ZenohNode
    from graft.keys import load_keys

    files = load_keys(keys, name, listens=bool(listen), connects=bool(connect))
    most = MOST_BYTES if file is None else file.limits.most_bytes

    def open_node(handler: Handler) -> Node:
        return ZenohNode(
            name,
            files,
            handler,
            others=others,
            listen=listen or [],
            connect=connect or [],
            namespace=NAMESPACE,
            most_bytes=most,
        )

    return open_node


def asking(approve: bool) -> Callable[[ConsentSheet], bool]:
    """Returns what shows a person what will leave, and asks for approval."""

    def ask(sheet: ConsentSheet) -> bool:
        from graft.experiments.consent import describe_consent

        say(describe_consent(sheet))
        if approve:
            return True
        if not sys.stdin.isatty():
            raise InputError("Nobody is here to approve of that: read it, and give --approve if you do.")
        return typer.confirm("Approve?", default=False)

    return ask


def finish_own(folder: Path, result: Any) -> None:
    """Write the report and the predictions of a party or a peer, and say where all is."""
    from graft.experiments.reports.report import write_report

    if not result.finished:
        say(f"Stopped after round {result.rounds[-1]['round']}; the same command goes on with it.")
        raise typer.Exit(1)
    write_report(folder)
    predictions = result.client(0).predict()
    predictions.to_csv(folder / "predictions.csv", overwrite=True)
    tell_end(folder, result.summary)
    say(f"Predictions of your nodes: {folder / 'predictions.csv'}; of others: graft predict {folder} --data FOLDER")


def tell_end(folder: Path, summary: Mapping[str, Any]) -> None:
    scored = score_in_words(summary)
    say(f"{summary['rounds']} rounds{f', {scored} at the best one' if scored else ''}. Record: {folder}")


def score_in_words(summary: Mapping[str, Any], width: int = 0) -> str:
    """Returns the test score of a result in words, by the metric that picked the best round; empty if there is none."""
    from graft.federation.metric_names import METRICS, format_metric

    metric = summary.get("metric", "accuracy")
    scores = summary["accuracy"] if metric == "accuracy" else summary.get("metrics", {}).get(metric, {})
    value = scores.get("test")
    return "" if value is None else f"test {METRICS[metric].title} {format_metric(metric, value):>{width}}"
