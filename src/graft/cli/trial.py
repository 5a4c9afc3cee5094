"""`graft trial`: a whole federation on one machine, with real processes, ports and certificates."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from graft.cli.console import say
from graft.cli.federations import score_in_words
from graft.errors import InputError, RunError
from graft.files import explained

if TYPE_CHECKING:
    from graft.experiments.federation_file import FederationFile

COMMAND = "import sys; from graft.cli import main; sys.argv[0] = 'graft'; main()"
POLL_SECONDS = 0.2
PORTS = range(20_000, 32_000)
LAST_LINES = 5  # of the log of one that failed


def trial(
    federation: Annotated[Path, typer.Argument(metavar="FEDERATION", help="The federation's file.")],
    data: Annotated[
        str,
        typer.Option(help="Folder in which every party finds its data under its name; or a dataset to share out."),
    ],
    models: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Architectures, dealt out to the parties in turn, where each may have its own."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the trial: keys, logs, and a run for everybody.")] = Path(
        "runs/trial"
    ),
    scores: Annotated[str, typer.Option(help="Whose scores parties let out: never, own, all.")] = "own",
    seconds: Annotated[float, typer.Option(help="How long it may take before everything is stopped.")] = 3600.0,
) -> None:
    """Try a federation on this machine before organisations do: a process, a port and a certificate for everybody."""
    from graft.experiments.federation_file import read_federation

    file = read_federation(federation)
    sources = own_data(file.parties, data)
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty: give another folder with --out.")
    with explained(f"{out} cannot be written", InputError):
        out.mkdir(parents=True, exist_ok=True)
    written = set_up(file, out)
    everybody = [*([file.server] if file.has_server else []), *file.parties]
    choices = (models or "").split(",") if models else [None]
    with ExitStack() as stack:
        previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
        stack.callback(signal.signal, signal.SIGTERM, previous)
        processes = {}
        for name in everybody:
            position = file.parties.index(name) if name in file.parties else 0
            words = command_of(name, file, written, out, sources, choices[position % len(choices)], scores)
            processes[name] = stack.enter_context(started(name, words, out))
        say(f"{len(processes)} processes: {', '.join(everybody)}. Logs: {out}/NAME.log")
        wait_for(processes, out, seconds)
    show(everybody, out)


def own_data(parties: Sequence[str], data: str) -> dict[str, str]:
    """Returns where each party finds its data: under its name in a folder, or a part of a dataset."""
    folder = Path(data)
    if not folder.is_dir():
        return {name: f"{data}#{number}/{len(parties)}" for number, name in enumerate(parties)}
    sources = {}
    for name in parties:
        candidates = [
            path for path in (folder / name, folder / f"{name}.npz", folder / f"{name}.toml") if path.exists()
        ]
        if not candidates:
            raise InputError(f"{folder} holds nothing for {name}: a folder {name}, {name}.npz or {name}.toml.")
        sources[name] = str(candidates[0])
    return sources


def set_up(file: FederationFile, out: Path) -> Path:
    """Makes certificates, and writes the federation's file with addresses on this machine; returns where that is."""
    from dataclasses import replace

    from graft.experiments.federation_text import write_federation
    from graft.keys import make_ca, make_party_keys

    make_ca(out / "keys")
    for name in [*([file.server] if file.has_server else []), *file.parties]:
        make_party_keys(name, out / "keys", out / "keys" / name)
    ports = free_ports(max(1, len(file.peers)))
    addresses = [f"127.0.0.1:{port}" for port in ports]
    here = (
        replace(file, address=addresses[0])
        if file.has_server
        else replace(file, peers=dict(zip(file.peers, addresses, strict=True)))
    )
    path = out / "federation.toml"
    write_federation(path, here)
    return path


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens at now, below those that connections going out are given."""
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as here, suppress(OSError):
            here.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RunError(f"There are no {count} free ports on this machine.")


def command_of(
    name: str,
    file: FederationFile,
    written: Path,
    out: Path,
    sources: Mapping[str, str],
    model: str | None,
    scores: str,
) -> list[str]:
    """Returns the words of the command that somebody would type."""
    keys = ["--keys", str(out / "keys" / name), "--out", str(out / name)]
    if name == file.server:
        return ["serve", str(written), *keys]
    own = [str(written), "--as", name, "--data", sources[name], *keys, "--approve", "--device", "cpu"]
    own += ["--model", model] if model else []
    return ["join", *own, "--scores", scores] if file.has_server else ["peer", *own]


@contextmanager
def started(name: str, words: Sequence[str], out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process of the trial, and does not leave it running."""
    with (out / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def wait_for(processes: Mapping[str, subprocess.Popen[bytes]], out: Path, seconds: float) -> None:
    """Returns when all have ended well; where one does not, says so with the last lines of its log."""
    end = time.monotonic() + seconds
    while any(process.poll() is None for process in processes.values()):
        for name, process in processes.items():
            if process.poll():
                lines = (out / f"{name}.log").read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
                raise RunError("\n".join([f"{name} ended with an error:", *lines]))
        if time.monotonic() > end:
            raise RunError(f"The trial did not end within {seconds:g} s.")
        time.sleep(POLL_SECONDS)
    for name, process in processes.items():
        if process.returncode:
            raise RunError(f"{name} ended with an error: see {out / f'{name}.log'}.")


def show(everybody: Sequence[str], out: Path) -> None:
    """Print what everybody ended with."""
    from graft.experiments.run_directory import RunDirectory

    for name in everybody:
        summary = RunDirectory(out / name).read_result()
        scored = score_in_words(summary, width=7) or "no score"
        say(f"{name:<16} {summary['rounds']} rounds, {scored}, best round {summary['best_round']}")
    say(f"Records, reports and predictions: {out}")
