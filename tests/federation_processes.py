"""Federations of real processes: a server and its parties, or peers, each started by the command that a person would
give, over mutual TLS, and what all of them end with."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from graft.experiments.following import modified

PARTIES = ("a", "b", "c")
SERVER = "coordinator"
NODES, FEATURES, CLASSES = 60, 8, 3
PATIENT = {"timeout": 60, "comeback": 60, "join_timeout": 60}
LONGEST = 150.0  # seconds that a federation may take, on a busy machine and with all that is done to it
BEGINNINGS = {"reaching the server", "reading data", "rehearsing", "waiting for parties", "waiting for peers"}

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [f"graft.experiments.{name}" for name in ("serving", "party_run", "peering")]
    + ["graft.cli.main", "graft.cli.federations", "graft.cli.report", "graft.engines.zenoh"]
)


def act(words: list[str], log: str) -> None:
    """Runs a command of Graft, in a process and a session of its own."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    import torch

    from graft.cli import main

    torch.set_num_threads(1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = ["graft", *words]
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.exit(70)


class Federation:
    """A server and its parties, or peers, each in a process that can be killed, frozen and started again."""

    def __init__(self, folder: Path, method: str, rounds: int, **rules: float) -> None:
        from graft.cli.trial import own_data, set_up
        from graft.experiments.federation_file import parse_federation

        who: dict[str, Any] = {"server": SERVER, "address": "127.0.0.1:1", "parties": list(PARTIES)}
        if method == "dfed_sst":
            who = {"peers": {name: f"127.0.0.1:{number}" for number, name in enumerate(PARTIES, 1)}}
        experiment = {"method": method, "rounds": rounds, "width": 8, "split": "20/40/40"}
        content = {"name": "small", "classes": CLASSES, "features": FEATURES, "experiment": experiment, **who}
        self.file = parse_federation({**content, "rounds": {**PATIENT, **rules}}, "federation.toml")
        self.out = folder
        write_graphs(folder / "data")
        self.written = set_up(self.file, folder)
        self.sources = own_data(self.file.parties, str(folder / "data"))
        self.everybody = [*([SERVER] if self.file.has_server else []), *PARTIES]
        self.processes: dict[str, Any] = {}
        self.started: dict[str, float] = {}
        self.leaders: list[int] = []
        self.deadline = time.monotonic() + LONGEST

    def start(self, name: str) -> None:
        """Starts somebody, or starts it again with the command that a person would give."""
        from graft.cli.trial import command_of
        from graft.experiments.record_files import FEDERATION

        words = command_of(name, self.file, self.written, self.out, self.sources, None, "own")
        if name == SERVER and (self.out / name / FEDERATION).is_file():
            words = [word if word != "--out" else "--resume" for word in words]
        self.started[name] = time.time()
        process = context.Process(target=act, args=(words, str(self.out / f"{name}.log")))
        process.start()
        self.processes[name] = process
        self.leaders.append(process.pid)

    def kill(self, name: str) -> str:
        """Kills somebody and returns what it was at."""
        phase = self.phase(name)
        self.processes[name].kill()
        self.processes[name].join(30)
        return phase

    def freeze(self, name: str, seconds: float) -> str:
        """Stops somebody for a while and returns what it was at."""
        phase = self.phase(name)
        with suppress(ProcessLookupError):
            os.kill(self.processes[name].pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(self.processes[name].pid, signal.SIGCONT)
        return phase

    def phase(self, name: str) -> str:
        """Returns what somebody is at, by what its log and its disk show."""
        process, path = self.processes[name], self.out / name
        if process.exitcode is not None:
            return "has ended"
        if (path / "result.json").exists():
            return "writing"
        written = [entry for entry in (path / "party").rglob("*") if entry.suffix != ".json"] if path.exists() else []
        if name == SERVER:
            written = [path / "rounds.jsonl", path / "checkpoint" / "checkpoint.json"]
        if any(modified(entry) > self.started[name] for entry in written) and self.rounds(name):
            if name == SERVER or not self.file.has_server:
                return "at work"
            return "in an open round" if (path / "party" / "state" / "pending").exists() else "between rounds"
        log = self.out / f"{name}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        last = lines[-1].rpartition(": ")[2] if lines and modified(log) > self.started[name] else ""
        return last if last in BEGINNINGS else "starting"

    def rounds(self, name: str) -> int:
        """Returns how many rounds somebody has on record."""
        path = self.out / name / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        while not condition():
            if time.monotonic() > self.deadline:
                raise AssertionError(f"{what} did not happen in time.\n{self.logs()}")
            for name, process in self.processes.items():
                assert process.exitcode in (None, 0, -signal.SIGKILL), f"{name} failed.\n{self.logs()}"
            time.sleep(0.02)

    def wait(self) -> None:
        """Waits until everybody has ended well."""
        self.wait_for(lambda: all(process.exitcode == 0 for process in self.processes.values()), "the end")

    def logs(self) -> str:
        """Returns the end of everybody's log."""
        logs = {name: self.out / f"{name}.log" for name in self.processes}
        texts = {name: log.read_text(errors="replace")[-1500:] for name, log in logs.items() if log.exists()}
        return "\n".join(f"-- {name} ({self.processes[name].exitcode}): {text}" for name, text in texts.items())

    def close(self) -> None:
        """Ends whatever still runs, and fails if anything of it is left."""
        for process in self.processes.values():
            if process.exitcode is None:
                process.kill()
                process.join(30)
        for leader in self.leaders:
            with suppress(ProcessLookupError):
                os.killpg(leader, 0)
                raise AssertionError(f"something of the session {leader} still runs")


def write_graphs(folder: Path) -> None:
    """Writes a small graph for every party."""
    folder.mkdir(parents=True)
    for number, name in enumerate(PARTIES):
        draw = np.random.default_rng(number)
        labels = draw.integers(0, CLASSES, NODES)
        x = draw.normal(size=(NODES, FEATURES)).astype(np.float32)
        x[np.arange(NODES), labels] += 1.0
        np.savez(folder / f"{name}.npz", x=x, y=labels, edges=draw.integers(0, NODES, (2, 3 * NODES)))


@contextmanager
def running(folder: Path, method: str, rounds: int, **rules: float) -> Iterator[Federation]:
    """Starts all of a federation and leaves nothing of it behind."""
    federation = Federation(folder, method, rounds, **rules)
    try:
        for name in federation.everybody:
            federation.start(name)
        yield federation
    finally:
        federation.close()


def essence(federation: Federation) -> dict[str, Any]:
    """Returns all that everybody ended with: states, number by number, and records without times."""
    from graft.experiments.run_directory import RunDirectory
    from graft.tensors.trees import flatten

    def listed(tree: Any) -> dict[str, Any]:
        return {path: leaf.tolist() if hasattr(leaf, "tolist") else leaf for path, leaf in flatten(tree)}

    ended: dict[str, Any] = {}
    for name in federation.everybody:
        directory = RunDirectory(federation.out / name)
        checkpoint = directory.load()
        assert checkpoint is not None
        assert checkpoint.finished
        committed = federation.out / name / "party" / "state" / "committed"
        records = [
            {key: value for key, value in record.items() if key not in ("seconds", "checksum", "absent")}
            for record in directory.read_rounds()
        ]
        ended[name] = {
            "rounds": records,
            "best": directory.read_result()["best_round"],
            "server": listed(checkpoint.server),
            "clients": {client: listed(state) for client, state in checkpoint.clients.items()},
            "committed": listed(read_state(committed)) if committed.exists() else {},
        }
    return ended


def read_state(path: Path) -> Any:
    """Returns what a party keeps after the last round that counted."""
    from graft.engines.messages import DamagedMessage, unpack

    content = path.read_bytes()
    try:
        return unpack(content)[1].state
    except DamagedMessage:  # a checksum comes first
        return unpack(content[4:])[1].state


def differences(expected: dict[str, Any], ended: dict[str, Any]) -> list[str]:
    """Returns who ended otherwise, in what, and from which round on."""
    lines = []
    for name, parts in expected.items():
        for part, value in parts.items():
            if json.dumps(value) != json.dumps(ended[name][part]):
                where = ""
                if part == "rounds":
                    pairs = zip(value, ended[name][part], strict=False)
                    first = next(((x, y) for x, y in pairs if json.dumps(x) != json.dumps(y)), None)
                    where = "" if first is None else f" first {first}"
                lines.append(f"{name}: {part}{where}")
    return lines


def absent_on_record(place: Path) -> list[str]:
    """Returns what everybody has on record of rounds in which somebody was absent, or oneself."""
    from graft.experiments.run_directory import RunDirectory

    return [
        f"{name}, round {record['round']}: {record.get('absent') or 'left out'}"
        for name in (SERVER, *PARTIES)
        if (place / name).exists()
        for record in RunDirectory(place / name).read_rounds()
        if record.get("absent") or not record["participants"]
    ]


def absences(federation: Federation, name: str = SERVER) -> dict[str, list[list[int]]]:
    """Returns in which stretches of rounds each party was absent, by the record of the server or of a peer."""
    from graft.experiments.run_directory import RunDirectory

    records = RunDirectory(federation.out / name).read_rounds()
    assert [record["round"] for record in records] == list(range(1, federation.file.experiment.rounds + 1))
    stretches = {}
    for party in PARTIES:
        absent = [record["round"] for record in records if party in record.get("absent", {})]
        runs = groupby(enumerate(absent), lambda pair: pair[1] - pair[0])
        stretches[party] = [[number for _, number in run] for _, run in runs]
    return stretches
