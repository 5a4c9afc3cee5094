"""All carriers side by side in one run: 1 MB to each party and 1 MB back, in process, through pipes, over zenoh with
mutual TLS, and by Flower's simulation and its deployment.

Flower's grid exists only within an app of its server, so both runs of Flower's wait there until they are told from here
to make an exchange. All take turns: in each one exchange of the deployment, and several of every other. A first turn
counts for nobody. The deployment is a SuperLink with TLS and a SuperNode with a key for each party; its parties and
those of the simulation are opened from their folders, as those of a real federation are. Above `--own` parties those of
zenoh share a process. A carrier that fails, or takes too long, is left out from then on, and the table says why.

SuperNodes look for work as often as Flower has it: ten times as often, thirty of them take more than a core of two.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from exchanges import FEATURES, Echo, EchoSide, between, echo_sides, forms_of, low_and_median, say, tiny_setup
from party_process import RUN, SERVER

from graft.engines.parties import Parties
from graft.engines.party import Party, Terms
from graft.engines.policy import Policy
from graft.engines.wire import Handler, Node, Patience
from graft.machine import free_ram
from graft.tensors.trees import count_bytes

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))
from tests.engines import flower_processes as processes  # noqa: E402  (starts and ends Flower's programs)

OUT = Path("benchmarks/out/flower_exchanges.json")
SIMULATION, DEPLOYMENT = "Flower, simulation", "Flower, deployment"
TURNS = "turns"  # the socket over which a run of Flower's is told what to do
PATIENCE = Patience(600)
LOOK_SECONDS = 0.5  # between two looks at how much memory is left


# Within Flower's processes.


class EchoInFolder:
    """A party that sends back what it is sent; its graph is made and its method rehearsed once in every process."""

    def __init__(self, folder: Path) -> None:
        number, parties = int(folder.name.rpartition("_")[2]), len(list(folder.parent.iterdir()))
        setup = tiny_setup(Echo(), parties, FEATURES)
        self._folder, self._setup = folder, replace(setup.part([number]), kinds=(setup.models[number],))
        self._terms = Terms(SERVER, RUN, setup.rounds, forms_of(setup))
        self.read_state()

    def read_state(self) -> None:
        """Takes up what other processes have done for this party."""
        policy = Policy(scores="all", minimum_count=0)
        self.handle = Party(self._setup, self._terms, policy, self._folder).handle


def open_echo(folder: str) -> Handler:
    """Returns what answers for a party, which a process keeps open just as it does a real one."""
    from graft.experiments import flower_run

    flower_run.PartyInFolder = EchoInFolder  # type: ignore[assignment,misc]
    return flower_run.open_party(folder)


def serve_turns(node: Node, federation: str, out: str) -> None:
    """Makes an exchange with all parties whenever it is told to, and says how many seconds it took, or why not."""
    torch.set_num_threads(1)
    names = tomllib.loads(federation)["parties"]
    setup = tiny_setup(Echo(), len(names), FEATURES)
    side = EchoSide(setup, Parties(setup, node, names, PATIENCE, run=RUN, forms=forms_of(setup)))
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(str(Path(out) / TURNS))
        with door.makefile("rw") as lines:
            for _ in lines:
                try:
                    answer = {"seconds": side.exchange()}
                except Exception as error:
                    answer = {"failed": f"{type(error).__name__}: {error}"}
                print(json.dumps(answer), file=lines, flush=True)


# The process that measures.


class Side(Protocol):
    """A carrier whose exchanges are timed."""

    def exchange(self) -> float: ...


class CarrierFailed(Exception):
    """Says why a carrier has no more exchanges."""


class FlowerSide:
    """Exchanges of a run of Flower's, which waits for the word in its own process."""

    def __init__(self, door: socket.socket, seconds: float) -> None:
        try:
            connection, _ = door.accept()
        except TimeoutError:
            raise CarrierFailed("its run did not begin in time") from None
        connection.settimeout(seconds)
        self._lines = connection.makefile("rw")
        connection.close()  # the file keeps it open until it is closed itself

    def exchange(self) -> float:
        print("exchange", file=self._lines, flush=True)
        try:
            answer = json.loads(self._lines.readline() or '{"failed": "its run has ended"}')
        except TimeoutError:
            raise CarrierFailed("an exchange took too long") from None
        if "failed" in answer:
            raise CarrierFailed(answer["failed"])
        return float(answer["seconds"])

    def close(self) -> None:
        """Ends the run: there is nothing more to do."""
        self._lines.close()


def write_run(folder: Path, parties: int, **settings: Any) -> list[str]:
    """Writes what `flwr run` is given, and the folders of parties; returns the words of the command."""
    # Here and not above: the processes of pipes and zenoh import this file again, each for itself.
    from graft.cli.flower import project_text, readme_text
    from graft.experiments.federation_file import parse_federation

    names = [f"party_{number}" for number in range(parties)]
    for name in names:
        (folder / "parties" / name).mkdir(parents=True)
    text = f'name = "measured"\nserver = "{SERVER}"\naddress = "127.0.0.1:8000"\nparties = {json.dumps(names)}\n'
    text += f"classes = 3\nfeatures = {FEATURES}\n"
    file = parse_federation(tomllib.loads(text), "federation.toml")
    (folder / "app").mkdir()
    (folder / "app" / "pyproject.toml").write_text(project_text(file, text))
    (folder / "app" / "README.md").write_text(readme_text(file))
    settings |= {"out": str(folder), "serve": "flower_exchanges:serve_turns"}
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    return ["run", str(folder / "app"), "here", "--run-config", config]


@contextmanager
def told(folder: Path, seconds: float) -> Iterator[socket.socket]:
    """Opens the socket on which a run of Flower's says that it has begun."""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / TURNS))
        door.listen()
        door.settimeout(seconds)
        yield door


@contextmanager
def simulation(folder: Path, parties: int, options: argparse.Namespace) -> Iterator[FlowerSide]:
    """Runs parties as simulated nodes, with an actor of Ray's for each core."""
    settings = {"folders": str(folder / "parties"), "open-party": "flower_exchanges:open_echo"}
    command = write_run(folder, parties, **settings, **{"meeting-seconds": options.seconds})
    actors = f"client-resources-num-cpus=1 init-args-num-cpus={os.cpu_count()}"
    with told(folder, options.seconds) as door, processes.simulation_link(folder, **variables(options)) as home:
        processes.flwr(home, *command, "--federation-config", f"num-supernodes={parties} {actors}")
        side = FlowerSide(door, options.seconds)
        try:
            yield side
        finally:
            side.close()


@contextmanager
def deployment(folder: Path, parties: int, options: argparse.Namespace) -> Iterator[FlowerSide]:
    """Runs a SuperLink with TLS, and a SuperNode with a key of its own for each party."""
    command = write_run(folder, parties, **{"meeting-seconds": options.seconds})
    open_words = 'open-party="flower_party:open_echo"'
    with told(folder, options.seconds) as door, processes.Deployment(folder, **variables(options)) as deployed:
        compile_all(deployed.env)
        for path in sorted((folder / "parties").iterdir()):
            deployed.register(path.name)
            deployed.start_node(path.name, f'name="{path.name}" folder="{path}" {open_words}')
        processes.flwr(deployed.home, *command, env=deployed.env)
        side = FlowerSide(door, options.seconds)
        try:
            yield side
        finally:
            side.close()


def compile_all(env: Mapping[str, str]) -> None:
    """Has what a message's process loads compiled once, and not by all of them at the same time."""
    code = "import flwr.supernode.cli, flower_exchanges, graft.engines.flower, graft.experiments.flower_run"
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=600)


def variables(options: argparse.Namespace) -> dict[str, str]:
    """Returns what Flower's processes have to be told besides: where this file is, and how often to look for work."""
    found = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    return {"PYTHONPATH": found, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(options.poll)}


class Watch:
    """Sees how little memory is left at the worst moment."""

    def __init__(self) -> None:
        self.least = self.first = free_ram()
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.least = min(self.least, free_ram())

    def close(self) -> None:
        self._over.set()


def measure(parties: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns the seconds of exchanges of every carrier with so many parties."""
    setup, watch, begun = tiny_setup(Echo(), parties, FEATURES), Watch(), time.perf_counter()
    processes_of_zenoh = parties if parties <= options.own else 1
    failed: dict[str, str] = {}
    loads: list[float] = []
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, start in {DEPLOYMENT: deployment, SIMULATION: simulation}.items():
            if name.rpartition(" ")[2] not in options.flower:
                continue
            place = folder / name.rpartition(" ")[2]
            place.mkdir()
            try:
                sides[name] = stack.enter_context(start(place, parties, options))
            except (CarrierFailed, AssertionError, OSError) as error:  # of tests: what a program printed
                failed[name] = f"did not start: {error}"
            say(f"{parties} parties: {name} after {time.perf_counter() - begun:.0f} s")
        here = stack.enter_context(echo_sides(setup, folder / "zenoh", processes_of_zenoh))
        sides = {**here, **dict(reversed(sides.items()))}
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(1 + options.turns):
            take_turn(sides, failed, {} if turn == 0 else seconds, options.quick)
            loads.append(os.getloadavg()[0])
            say(f"{parties} parties: turn {turn} after {time.perf_counter() - begun:.0f} s")
    watch.close()
    return {
        "seconds": seconds,
        "failed": failed,
        "load": loads,
        "bytes": count_bytes(here["in process"].model),
        "processes_of_zenoh": processes_of_zenoh,
        "free_bytes": [watch.first, watch.least],
        "all_s": time.perf_counter() - begun,
    }


def take_turn(
    sides: Mapping[str, Side], failed: dict[str, str], seconds: Mapping[str, list[float]], quick: int
) -> None:
    """Has every carrier that has not failed make its exchanges; they are put down where there is a list for them."""
    for name, side in sides.items():
        for _ in range(1 if name == DEPLOYMENT else quick):
            if name in failed:
                break
            try:
                taken = side.exchange()
            except (CarrierFailed, OSError) as error:
                failed[name] = str(error)
            else:
                seconds.get(name, []).append(taken)


def show(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields the table of all carriers: milliseconds, the least, the lower quartile and the median."""
    names = list(dict.fromkeys(name for row in results.values() for name in row["seconds"]))
    yield f"| parties | {' | '.join(names)} | load | memory used, GB |"
    yield "| --- " * (len(names) + 3) + "|"
    for parties, row in results.items():
        cells = [low_and_median(row["seconds"][name]) if row["seconds"].get(name) else "failed" for name in names]
        first, least = row["free_bytes"]
        yield f"| {parties} | {' | '.join(cells)} | {between(row['load'])} | {(first - least) / 1e9:.1f} |"
    for parties, row in results.items():
        counts = ", ".join(f"{len(values)} {name}" for name, values in row["seconds"].items())
        yield f"\n{parties} parties: {row['all_s']:.0f} s in all; exchanges: {counts}."
        for name, reason in row["failed"].items():
            yield f"{name} failed: {reason}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=lambda text: list(map(int, text.split(","))), default=[3, 10, 30])
    parser.add_argument("--turns", type=int, default=5, help="exchanges of the deployment that are timed")
    parser.add_argument("--quick", type=int, default=8, help="exchanges of every other carrier in a turn")
    parser.add_argument("--own", type=int, default=10, help="up to how many parties of zenoh's have a process each")
    parser.add_argument("--flower", default="simulation,deployment", help="which of Flower's runs there are")
    parser.add_argument("--poll", type=float, default=1.0, help="seconds between two looks of a SuperNode for work")
    parser.add_argument("--seconds", type=float, default=900, help="that a run may take to begin, or an exchange")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Ended from outside."))  # with all that was started
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for parties in options.parties:
        with tempfile.TemporaryDirectory() as folder:
            results[str(parties)] = measure(parties, options, Path(folder))
        options.out.write_text(json.dumps(results, indent=1))
    print("\n".join(show(dict(sorted(results.items(), key=lambda entry: int(entry[0]))))))


if __name__ == "__main__":
    main()
