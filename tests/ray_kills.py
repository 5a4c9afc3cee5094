"""Runs on Ray whose workers, nodes or drivers are killed at random moments: each must end equal to the unbroken run.

`python -m tests.ray_kills workers 20`, `nodes 5` or `drivers 5` kills so many and prints how the runs went on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.damage import essence

SETTINGS = dict(
    dataset="synthetic:nodes=400,degree=4,classes=3,features=8",
    clients=6,
    width=16,
    rounds=60,
    checkpoint_every=4,
    participation=0.7,
    partition="random",
    engine="ray",
    workers=3,
)
METHODS = {"fedavg": {}, "fedgkc": {"models": "gcn,gat"}, "dfed_sst": {}}
WORKER = "ray::RayWorker"
AGENT_SECONDS = 100.0  # Ray's two agents of a node end a minute after the cluster that they have lost


def processes_below(ancestor: int) -> dict[int, str]:
    """Returns the command lines of all processes that a process has started, and that these have started."""
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
                commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    below: dict[int, str] = {}
    for process in parents:
        above = process
        while above in parents and above != ancestor:
            above = parents[above]
        if above == ancestor and process != ancestor:
            below[process] = commands[process]
    return below


def is_running(process: int) -> bool:
    """Returns whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def wait_until_gone(processes, seconds: float = AGENT_SECONDS) -> list[int]:
    """Returns those of some processes that are still there after so many seconds."""
    until = time.monotonic() + seconds
    while any(map(is_running, processes)) and time.monotonic() < until:
        time.sleep(0.1)
    return [process for process in processes if is_running(process)]


def workers_below(ancestor: int) -> list[int]:
    return sorted(process for process, command in processes_below(ancestor).items() if command.startswith(WORKER))


def run_method(method: str, **options):
    import graft
    from graft.errors import GraftWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraftWarning)
        return graft.run(method, **SETTINGS | METHODS[method], **options)


class Reference:
    """The unbroken runs, and how long each takes once a cluster is there."""

    def __init__(self) -> None:
        self.essences: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def measure(self, **options) -> None:
        for method in METHODS:
            begun = time.monotonic()
            self.essences[method] = essence(run_method(method, **options))
            self.seconds[method] = time.monotonic() - begun


class Killer:
    """Kills what `victims` lists, once: a while after a round of a run, or with round 0 while it starts."""

    def __init__(self, victims: Callable[[], list[int]], round: int, delay: float) -> None:
        self._victims, self._round, self._delay = victims, round, delay
        self._due, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._wait_and_kill)
        self.killed: list[int] = []

    def __enter__(self) -> Killer:
        self._thread.start()
        if self._round == 0:
            self._due.set()
        return self

    def see(self, record: dict[str, Any]) -> None:
        """Hears of every round, and lets the run go on meanwhile."""
        if record["round"] >= self._round:
            self._due.set()

    def wait_for(self, record: dict[str, Any]) -> None:
        """Hears of every round, and returns when the killing is done."""
        self.see(record)
        while self._due.is_set() and not self.killed:
            time.sleep(0.01)

    def _wait_and_kill(self) -> None:
        self._due.wait()
        self._over.wait(self._delay)
        while not self._over.is_set() and not self.killed:
            self.killed = self._victims()
            for process in self.killed:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self._over.wait(0.02)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._due.set()
        self._thread.join()


def moment(number: int, random: Random, seconds: float) -> tuple[int, float]:
    """Returns after which round to kill, and the seconds to wait then: every fifth time while a run starts."""
    if number % 5 == 4:
        return 0, random.random() * 0.8 * seconds
    return random.randint(1, SETTINGS["rounds"] - 5), random.random() * 0.05


def judge(result, expected: str, killed, place: Path) -> str:
    """Returns how a run went that was meant to lose somebody."""
    from graft.experiments.run_directory import RunDirectory

    RunDirectory(place).read_record()
    if essence(result) != expected:
        return "differs"
    if not killed:
        return "over before it was killed"
    return "equal, went back" if "recoveries" in result.summary else "equal, lost at start or end"


def kill_workers(folder: Path, count: int, seed: int = 0) -> Counter[str]:
    """Returns the outcomes of runs of which a worker is killed at a random moment of their lives."""
    from graft.engines.ray import Resources, connected

    outcomes: Counter[str] = Counter()
    reference = Reference()

    with connected("", SETTINGS["workers"] + 1, Resources()):
        reference.measure()
        for number in range(count):
            method, random = list(METHODS)[number % len(METHODS)], Random(seed + number)

            def one_worker(random: Random = random) -> list[int]:
                workers = workers_below(os.getpid())
                return [random.choice(workers)] if workers else []

            place = folder / f"worker{number}"
            begun = time.monotonic()
            with Killer(one_worker, *moment(number, random, reference.seconds[method])) as killer:
                result = run_method(method, out=place, callbacks=[killer.see])
            outcome = judge(result, reference.essences[method], killer.killed, place)
            tell("worker", number, method, outcome, result.summary.get("recoveries"), begun)
            outcomes[outcome] += 1
            shutil.rmtree(place)
    return outcomes


def kill_nodes(folder: Path, count: int, seed: int = 0) -> Counter[str]:
    """Returns the outcomes of runs of which a node dies, with all its workers, on a cluster of three on this host."""
    from ray.cluster_utils import Cluster

    from graft.engines.ray import Resources, connected, import_ray

    import_ray()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
    outcomes: Counter[str] = Counter()
    reference = Reference()
    try:
        with connected(cluster.address, SETTINGS["workers"], Resources()):
            reference.measure()
            for number in range(count):
                method, random = list(METHODS)[number % len(METHODS)], Random(seed + number)
                node = nodes.pop(random.randrange(len(nodes)))
                raylet = node.all_processes["raylet"][0].process.pid

                def whole_node(raylet: int = raylet) -> list[int]:
                    below = processes_below(raylet)
                    return [raylet, *below] if any(command.startswith(WORKER) for command in below.values()) else []

                place = folder / f"node{number}"
                begun = time.monotonic()
                with Killer(whole_node, *moment(number, random, reference.seconds[method])) as killer:
                    result = run_method(method, out=place, callbacks=[killer.see])
                outcome = judge(result, reference.essences[method], killer.killed, place)
                tell("node", number, method, outcome, result.summary.get("recoveries"), begun)
                outcomes[outcome] += 1
                cluster.remove_node(node, allow_graceful=False)
                nodes.append(cluster.add_node(num_cpus=2))
                shutil.rmtree(place)
    finally:
        cluster.shutdown()
    return outcomes


def kill_drivers(folder: Path, count: int, seed: int = 0) -> Counter[str]:
    """Returns the outcomes of runs whose driver is killed: those with an odd number are on a cluster that stays."""
    import graft
    from graft.engines.ray import Resources, connected
    from graft.errors import InputError

    outcomes: Counter[str] = Counter()
    reference = Reference()
    with connected("", SETTINGS["workers"] + 1, Resources()) as ray:
        reference.measure()
        address = ray.get_runtime_context().gcs_address
        for number in range(count):
            method, random = list(METHODS)[number % len(METHODS)], Random(seed + number)
            place, begun = folder / f"driver{number}", time.monotonic()
            driver = start_driver(method, place, address if number % 2 else "")
            wait_for_checkpoint(place, random.randint(0, SETTINGS["rounds"] - 5))
            time.sleep(random.random() * 0.05)
            below = list(processes_below(driver.pid))
            died = driver.poll() is None
            driver.kill()
            driver.wait()
            try:
                result = graft.resume(place)
                outcome = "equal" if essence(result) == reference.essences[method] else "differs"
            except InputError as error:
                outcome = "over before it was killed" if "is a finished run" in str(error) else f"refused: {error}"
            left = wait_until_gone(below) + wait_until_gone(workers_below(os.getpid()))  # those of a joined cluster
            outcome += "" if died else ", over before it was killed"
            outcome += f", {len(left)} processes left" if left else ""
            tell("driver", number, method, outcome, "joined" if number % 2 else "own Ray", begun)
            outcomes[outcome] += 1
            shutil.rmtree(place)
    return outcomes


def start_driver(method: str, place: Path, address: str) -> subprocess.Popen[str]:
    """Starts a process that runs a method on a Ray of its own, or on one that is there; it leads a process group."""
    command = [sys.executable, "-m", "tests.ray_kills", "run", method, str(place), address]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for_checkpoint(place: Path, number: int = 0, seconds: float = 120.0) -> None:
    """Returns when the checkpoint of a round, or of a later one, is on the disk."""
    from graft.experiments.run_directory import RunDirectory

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        written = RunDirectory(place).last_checkpoint()
        if written is not None and written >= number:
            return
        time.sleep(0.05)
    raise TimeoutError(f"There is no checkpoint of round {number} in {place} after {seconds} seconds.")


def tell(what: str, number: int, method: str, outcome: str, more, begun: float) -> None:
    print(f"{what} {number} {method}: {outcome} {more} {time.monotonic() - begun:.1f} s", flush=True)


CAMPAIGNS = {"workers": kill_workers, "nodes": kill_nodes, "drivers": kill_drivers}


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "run":
        method, place, address = arguments
        run_method(method, out=Path(place), address=address)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(dict(CAMPAIGNS[what](Path(folder), int(arguments[0]), *map(int, arguments[1:]))))


if __name__ == "__main__":
    main()
