"""What an exchange with real parties costs: mutual TLS between processes, beside pipes and beside this process alone.

`engines`: 1 MB to each party and 1 MB back, in process, through pipes and over zenoh with mutual TLS, exchanges of all
taking turns. Each party has a process of its own; above `--own` parties those of zenoh share one. `parts`: where the
time of such an exchange over zenoh goes. `fedgkc`: what exchanges of FedGKC with 10 parties add to the computing of the
slowest one: in real rounds, in which parties compete for the cores, and with parties that reply at once what they
replied before, which leaves nothing but the exchange. `many`: 200 parties connect, train FedAvg for 5 rounds on tiny
graphs, and leave.

`flower_exchanges.py` has Flower's simulation and its deployment beside these engines, in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from harness import make_setup
from party_process import NAMESPACE, RUN, SERVER, Clock, Membership, PartyProcesses

from graft.data.generated import Generated, GeneratedGraphs
from graft.engines import remote
from graft.engines.forms import Forms
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.engines.parties import Parties
from graft.engines.rehearsal import Rehearsal, rehearse
from graft.engines.wire import Patience
from graft.engines.zenoh import ZenohNode
from graft.federation.clients import Clients, Request
from graft.federation.fleet import Fleet
from graft.federation.method import LASTING, Method, step
from graft.federation.session import Session
from graft.federation.setup import Setup
from graft.keys import key_files, make_ca, make_party_keys
from graft.machine import peak_ram
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC
from graft.tensors.trees import Tree, Weights, count_bytes, map_tree

OUT = Path("benchmarks/out/exchanges.json")
WARM_UP = 3
FEATURES = 3_900  # of a model of 1 MB
PATIENCE = Patience(300)
SERVER_PARTS = {
    "packing": [(remote, "pack")],
    "envelopes": [(remote, "seal"), (remote, "unseal")],
    "hashing": [(remote, "digests")],
    "unpacking": [(remote, "unpack")],
    "checks": [(Parties, "checked"), (Parties, "screen")],
    "asking": [(ZenohNode, "ask")],
    "the rest of the server": [(remote.Remote, "ask")],
}


@dataclass(frozen=True)
class Echo(FedAvg):
    """Clients keep the model that they are sent and send it back: an exchange, and nothing else."""

    @step
    def train(self, fleet: Fleet, model: Weights) -> Tree:
        fleet.state.model = map_tree(torch.clone, model)
        return Tree(model=fleet.state.model, weight=fleet.weight)


class Star(NamedTuple):
    """A server of this process and the parties it asks."""

    engine: Parties
    processes: PartyProcesses
    connecting: float  # seconds until all were there


def tiny_setup(method: Method, parties: int, features: int, nodes: int = 40, classes: int = 3) -> Setup:
    """Returns a federation of generated graphs."""
    model = Generated(nodes=nodes, degree=2, classes=classes, features=features)
    setup = make_setup(method, list(GeneratedGraphs(model, parties)), torch.device("cpu"))
    names = tuple(f"party_{number}" for number in range(parties))
    return replace(setup, names=names, minimum=1, rounds=10**6)


def free_address() -> str:
    """Returns an address of this machine that nobody has."""
    while True:
        address = "127.0.0.1", random.randrange(16_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(address)
            return f"{address[0]}:{address[1]}"


def refuse(sender: str, data: bytes) -> bytes:  # noqa: ARG001
    """Returns nothing: parties ask nothing here."""
    return b""


def forms_of(setup: Setup) -> Forms:
    """Returns what the steps of such a federation may be told and may reply."""
    shape = len(setup.graphs), setup.features, setup.classes
    return rehearse(Rehearsal(setup.method, setup.name, *shape, ["gcn"], setup.width, rounds=setup.rounds))


@contextmanager
def star(setup: Setup, folder: Path, processes: int, timed: bool = False) -> Iterator[Star]:
    """Connects a server to parties in so many processes, by mutual TLS."""
    names, address = list(setup.names or ()), free_address()
    make_ca(folder / "ca")
    for name in (SERVER, *names):
        make_party_keys(name, folder / "ca", folder / "keys" / name)
    forms = forms_of(setup)
    members = [
        Membership(
            name,
            replace(setup.part([number]), kinds=(setup.models[number],)),
            folder / "keys" / name,
            folder / name,
            address,
        )
        for number, name in enumerate(names)
    ]
    begun = time.perf_counter()
    with ExitStack() as stack:
        keys = key_files(folder / "keys" / SERVER, SERVER)
        node = ZenohNode(
            SERVER,
            keys,
            refuse,
            others=names,
            listen=[address],
            namespace=NAMESPACE,
        )
        stack.enter_context(closing(node))
        groups = [members[number::processes] for number in range(processes)]
        parties = stack.enter_context(closing(PartyProcesses(groups, forms, timed)))
        while len(node.present()) < len(names):
            time.sleep(0.01)
        connecting = time.perf_counter() - begun
        yield Star(Parties(setup, node, names, PATIENCE, run=RUN, forms=forms), parties, connecting)


class EchoSide:
    """Exchanges of one engine."""

    def __init__(self, setup: Setup, engine: Any) -> None:
        self.setup, self.engine, self.round = setup, engine, 0
        self.model = Session(setup, InProcess(setup)).server.state.model

    def exchange(self) -> float:
        """Returns the seconds of one exchange with everybody."""
        self.round += 1
        clients = Clients(self.engine, self.round, self.engine.members())
        begun = time.perf_counter()
        replies = clients.ask(self.setup.method.train, self.model)
        taken = time.perf_counter() - begun
        assert len(replies) == len(self.setup.graphs)
        return taken


@contextmanager
def echo_sides(setup: Setup, folder: Path, processes: int) -> Iterator[dict[str, EchoSide]]:
    """Returns exchanges of every engine that needs nothing else to run, by its name."""
    with star(setup, folder, processes) as there, closing(Loopback(setup, PATIENCE)) as loopback:
        engines = {"in process": InProcess(setup), "pipes": loopback, "zenoh, mutual TLS": there.engine}
        yield {name: EchoSide(setup, engine) for name, engine in engines.items()}


def measure_engines(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns the seconds of exchanges of every engine, with several numbers of parties."""
    results: dict[str, Any] = {}
    for parties in options.parties:
        setup = tiny_setup(Echo(), parties, FEATURES)
        processes = parties if parties <= options.own else 1
        with echo_sides(setup, folder / str(parties), processes) as sides:
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            loads = []
            for turn in range(WARM_UP + options.turns):
                for name, side in sides.items():
                    taken = side.exchange()
                    if turn >= WARM_UP:
                        seconds[name].append(taken)
                loads.append(os.getloadavg()[0])
            sent = count_bytes(sides["in process"].model)
            results[str(parties)] = {"seconds": seconds, "load": loads, "bytes": sent, "processes": processes}
            say(f"engines: {parties} parties")
    return results


def measure_parts(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns the parts of exchanges of 1 MB over zenoh, at the server and at the slowest party of each."""
    parties = options.part_parties
    setup, clock = tiny_setup(Echo(), parties, FEATURES), Clock()
    clock.install(SERVER_PARTS, "the rest of the server")
    with star(setup, folder / "parts", parties, timed=True) as there:
        side = EchoSide(setup, there.engine)
        load = []
        for _ in range(WARM_UP + 2 * options.turns):
            side.exchange()
            load.append(os.getloadavg()[0])
        reports = [report["exchanges"] for report in there.processes.tell("report")]
    slowest = [max(row, key=lambda entry: entry["all"]) for row in zip(*reports, strict=True)]
    server = clock.exchanges[WARM_UP:]
    for row, party in zip(server, slowest[WARM_UP:], strict=True):
        row["sending"] = row.pop("asking") - party["all"]
    say(f"parts: {parties} parties")
    return {"parties": parties, "server": server, "party": slowest[WARM_UP:], "load": load}


def measure_fedgkc(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns what each exchange of FedGKC adds to computing, and what its parts take."""
    setup = tiny_setup(FedGKC(copilot="gcn", self_weight=0.0), options.part_parties, 1_433, nodes=270, classes=7)
    asked: list[dict[str, Any]] = []

    def timed_ask(self: Parties, request: Request) -> Any:
        begun, cpu = time.perf_counter(), time.process_time()
        replies = asking(self, request)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        if request.step not in LASTING:  # after the warm-up nobody is asked that any more
            asked.append({"step": request.step, "seconds": seconds, "server_cpu": cpu})
        return replies

    asking, Parties.ask = Parties.ask, timed_ask  # type: ignore[method-assign]
    results: dict[str, Any] = {}
    number = 0
    with star(setup, folder / "fedgkc", options.part_parties, timed=True) as there:
        session = Session(replace(setup, on_demand=True), there.engine)
        for _ in range(WARM_UP):
            number += 1
            session.round(number)
        for kind, words in {
            "computing": ("compute", "sync"),
            "at once": ("reply at once", "sync"),
            "at once, without fsync": ("reply at once", "do not sync"),
        }.items():
            for word in words:
                there.processes.tell(word)
            before = sum(report["cpu"] for report in there.processes.tell("report"))
            asked.clear()
            load = []
            for _ in range(options.rounds):
                number += 1
                session.round(number)
                load.append(os.getloadavg()[0])
            reports = there.processes.tell("report")
            rows = zip(*(report["exchanges"] for report in reports), strict=True)
            exchanges = [
                {
                    **exchange,
                    "slowest": max(party.get("computing", 0.0) for party in row),
                    "disk": statistics.median(party.get("the disk", 0.0) + party.get("fsync", 0.0) for party in row),
                    "fsync": statistics.median(party.get("fsync", 0.0) for party in row),
                    "all": statistics.median(party["all"] for party in row),
                }
                for exchange, row in zip(asked, rows, strict=True)
            ]
            cpu = sum(report["cpu"] for report in reports) - before
            results[kind] = {"exchanges": exchanges, "party_cpu": cpu, "load": load}
            say(f"fedgkc: {kind}")
    del Parties.ask  # it has that of its base class again
    return results


def measure_many(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns what many parties on this machine take to connect, in a round and to leave, and memory."""
    setup = tiny_setup(FedAvg(), options.many, 16)
    base = peak_ram()
    with star(setup, folder / "many", options.hosts) as there:
        session = Session(replace(setup, on_demand=True), there.engine)
        seconds = []
        for number in range(1, 6):
            begun = time.perf_counter()
            outcome = session.round(number)
            seconds.append(time.perf_counter() - begun)
            assert not outcome.facts.absent
        there.engine.end()
        peaks = [report["peak"] for report in there.processes.tell("report")]
        begun = time.perf_counter()
        there.processes.close()
        while there.engine.node.present():
            time.sleep(0.01)
        leaving = time.perf_counter() - begun
    say(f"many: {options.many} parties")
    return {
        "parties": options.many,
        "processes": options.hosts,
        "connecting_s": there.connecting,
        "rounds": seconds,
        "leaving_s": leaving,
        "server_bytes": peak_ram(),
        "server_bytes_before": base,
        "party_bytes": peaks,
        "load": [os.getloadavg()[0]],
    }


MEASURES = {
    "engines": measure_engines,
    "parts": measure_parts,
    "fedgkc": measure_fedgkc,
    "many": measure_many,
}


def low_and_median(values: Sequence[float]) -> str:
    """Returns the least, the lower quartile and the median of milliseconds, of values in seconds."""
    ordered = sorted(1000 * value for value in values)
    return f"{ordered[0]:.1f}, {ordered[len(ordered) // 4]:.1f}, {statistics.median(ordered):.1f}"


def between(values: Sequence[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def show_engines(results: dict[str, Any]) -> Iterator[str]:
    yield "| parties | in process | pipes | zenoh, mutual TLS | load |"
    yield "| --- | --- | --- | --- | --- |"
    for parties, row in results.items():
        cells = [low_and_median(seconds) for seconds in row["seconds"].values()]
        where = "" if row["processes"] == int(parties) else f" ({row['processes']} process)"
        yield f"| {parties}{where} | {' | '.join(cells)} | {between(row['load'])} |"


def show_parts(results: dict[str, Any]) -> Iterator[str]:
    yield f"| part of an exchange with {results['parties']} parties | ms: least, quartile, median |"
    yield "| --- | --- |"
    for side in ("server", "party"):
        for part in sorted({part for row in results[side] for part in row}):
            values = [row.get(part, 0.0) for row in results[side]]
            yield f"| {side}: {part} | {low_and_median(values)} |"


def show_fedgkc(results: dict[str, Any]) -> Iterator[str]:
    yield "| FedGKC | step | exchange, ms | above the slowest party | server's CPU | a party's disk | fsync | load |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for kind, row in results.items():
        for name in dict.fromkeys(entry["step"] for entry in row["exchanges"]):
            rows = [entry for entry in row["exchanges"] if entry["step"] == name]
            cells = [[entry["seconds"] for entry in rows], [entry["seconds"] - entry["slowest"] for entry in rows]]
            cells += [[entry[part] for entry in rows] for part in ("server_cpu", "disk", "fsync")]
            yield f"| {kind} | `{name}` | {' | '.join(map(low_and_median, cells))} | {between(row['load'])} |"
        yield f"| {kind} | CPU of all parties, an exchange | {1000 * row['party_cpu'] / len(row['exchanges']):.1f} |"


def show_many(results: dict[str, Any]) -> Iterator[str]:
    yield "| parties | processes | connecting, s | round, s | leaving, s | server, MB | largest process, MB | load |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    rounds = ", ".join(f"{value:.2f}" for value in results["rounds"])
    memory = f"{results['server_bytes'] / 1e6:.0f} (before: {results['server_bytes_before'] / 1e6:.0f})"
    cells = [f"{results['connecting_s']:.1f}", rounds, f"{results['leaving_s']:.1f}", memory]
    cells += [f"{max(results['party_bytes']) / 1e6:.0f}", between(results["load"])]
    yield f"| {results['parties']} | {results['processes']} | {' | '.join(cells)} |"


SHOWN = {"engines": show_engines, "parts": show_parts, "fedgkc": show_fedgkc, "many": show_many}


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(MEASURES))
    parser.add_argument("--parties", type=lambda text: list(map(int, text.split(","))), default=[3, 10, 30])
    parser.add_argument("--own", type=int, default=10, help="up to how many parties each has a process of its own")
    parser.add_argument("--part-parties", type=int, default=10, help="of `parts` and `fedgkc`")
    parser.add_argument("--turns", type=int, default=40, help="exchanges of every engine that are timed")
    parser.add_argument("--rounds", type=int, default=25, help="of FedGKC that are timed")
    parser.add_argument("--many", type=int, default=200, help="parties that connect")
    parser.add_argument("--hosts", type=int, default=2, help="processes that they share")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for part in options.parts.split(","):
        with tempfile.TemporaryDirectory() as folder:
            results[part] = MEASURES[part](options, Path(folder))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1))
    for part, result in results.items():
        print("\n".join(SHOWN[part](result)), end="\n\n")


if __name__ == "__main__":
    main()
