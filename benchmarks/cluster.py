"""What a Ray cluster costs beside this process: overhead of an exchange, many registered clients, the driver's work.

`overhead`: FedAvg, 1,000 generated clients with 10^5 and 10^6 nodes in all, in process and on Ray with 1, 2 and 4
workers of one thread. Workers time their clients themselves; the overhead of an exchange is the driver's time less that
of the slowest worker. `registered`: 100 clients a round of 1,000 and of 100,000 registered. `driver`: what the driver
itself does for a client, with workers that answer at once. `bytes`: exchanges of larger models with few clients.
`calls`: what a call to one worker more takes, from 2 to 64 calls. Every measurement has a process of its own, so that
peaks of memory are its own, and measurements take turns, so that a busy machine disturbs all of them.

Ray has to start anew every time, which is not counted. `cost_model.py` reads the file of results.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import make_setup

import graft
from graft.data.generated import Generated, GeneratedGraphs
from graft.engines.cluster import Cluster
from graft.engines.in_process import InProcess
from graft.engines.ray import RayPool, Resources, connected
from graft.engines.worker import Answer
from graft.federation.clients import Clients
from graft.federation.session import Session
from graft.federation.setup import Setup
from graft.machine import peak_ram
from graft.methods.fedavg import FedAvg

OUT = Path("benchmarks/out/cluster.json")
CLIENTS = 1_000
DEGREE, CLASSES = 5, 5
SIDES = {"in process, 1 thread": (0, 1), "in process, 2 threads": (0, 2), "1 worker": (1, 1), "2 workers": (2, 1)}
SIDES |= {"4 workers": (4, 1)}  # workers, where 0 is none, and threads of each
WARM_UP = 3  # rounds that are not timed


def generated_setup(nodes: int, clients: int = CLIENTS, features: int = 64) -> Setup:
    """Returns a federation of generated clients with so many nodes in all."""
    model = Generated(nodes=nodes // clients, degree=DEGREE, classes=CLASSES, features=features)
    return make_setup(FedAvg(), GeneratedGraphs(model, clients), torch.device("cpu"))


@contextmanager
def session_on(setup: Setup, workers: int) -> Iterator[Session]:
    """Returns a session in this process, or on a Ray cluster of so many workers that is started for it."""
    if not workers:
        setup = replace(setup, graphs=list(setup.graphs))
        yield Session(setup, InProcess(setup))
        return
    with connected("", workers, Resources()) as ray, closing(RayPool(ray, workers, Resources())) as pool:
        yield Session(setup, Cluster(setup, pool))


def measure_overhead(
    nodes: int, workers: int, threads: int, rounds: int, clients: int = CLIENTS, features: int = 64
) -> dict[str, Any]:
    """Returns the seconds of rounds and, with workers, those of every exchange and what of them was work."""
    torch.set_num_threads(threads)
    begun = time.perf_counter()
    with session_on(generated_setup(nodes, clients, features), workers) as session:
        engine = session.engine
        for number in range(1, WARM_UP + 1):
            session.round(number)
        row: dict[str, Any] = {"start_s": time.perf_counter() - begun, "rounds": [], "exchanges": [], "load": []}
        for number in range(WARM_UP + 1, WARM_UP + 1 + rounds):
            if isinstance(engine, Cluster):
                engine.timings.clear()
            begun = time.perf_counter()
            session.round(number)
            row["rounds"].append(time.perf_counter() - begun)
            row["load"].append(os.getloadavg()[0])
            if isinstance(engine, Cluster):
                row["exchanges"].append([timing._asdict() for timing in engine.timings])
        row["driver_bytes"] = peak_ram()
        if isinstance(engine, Cluster):
            row["worker_bytes"] = [told["peak"] for told in engine.describe_workers()]
    return row


def measure_registered(registered: int, asked: int, workers: int, nodes: int, rounds: int) -> dict[str, Any]:
    """Returns seconds of the rounds of a whole run of which few clients of many take part in each, and memory."""
    seconds: list[float] = []
    peaks: dict[int, int] = {}

    def on_round(record: dict[str, Any]) -> None:
        seconds.append(record["seconds"])
        peaks.update(worker_peaks())

    begun = time.perf_counter()
    graft.run(
        "fedavg",
        f"generated:nodes={nodes},degree={DEGREE},classes={CLASSES}",
        clients=registered,
        participation=asked / registered,
        rounds=WARM_UP + rounds,
        evaluate_clients="participants",
        engine="ray" if workers else "in_process",
        workers=workers or 1,
        threads=0 if workers else 1,
        callbacks=[on_round],
    )
    return {
        "start_s": time.perf_counter() - begun - sum(seconds),
        "rounds": seconds[WARM_UP:],
        "driver_bytes": peak_ram(),
        "worker_bytes": list(peaks.values()),
    }


def worker_peaks() -> dict[int, int]:
    """Returns the most memory that each worker of this process's Ray has held, by process."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
            names[int(folder.name)] = (folder / "cmdline").read_text()
        except (OSError, ValueError):  # it has ended
            continue
        parents[int(folder.name)] = int(fields["PPid"])
        if "VmHWM" in fields:
            names[int(folder.name)] += f"\n{1024 * int(fields['VmHWM'].split()[0])}"
    mine = {os.getpid()}
    for _ in range(4):  # driver, raylet, worker
        mine |= {process for process, parent in parents.items() if parent in mine}
    return {
        process: int(names[process].rpartition("\n")[2])
        for process in mine
        if names[process].startswith("ray::RayWorker")
    }


class InstantPool:
    """Workers that answer at once: all that takes time is the driver's own work."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __len__(self) -> int:
        return self.workers

    def share(self, arrays: Any) -> Any:
        return arrays

    def call(self, worker: int, name: str, *arguments: Any) -> Any:  # noqa: ARG002
        if name != "ask":
            return None
        call = arguments[0]
        rows = len(call.clients)
        return Answer([(call.clients, {"correct": np.ones((rows, 1, 3), np.int64)})], [], {}, {}, 0.0)

    def gather(self, calls: Sequence[Any]) -> list[Any]:
        return list(calls)

    def replace_lost(self) -> list[int]:
        return []


def measure_driver(clients: int, workers: int, repetitions: int) -> dict[str, Any]:
    """Returns the seconds of the driver's own work in an exchange with all of many clients: request, join, order."""
    setup = generated_setup(100 * clients, clients)
    engine = Cluster(setup, InstantPool(workers))
    seconds = []
    for number in range(repetitions + 1):
        everyone = Clients(engine, number, engine.members())
        gc.collect()
        begun = time.perf_counter()
        replies = everyone.ask(setup.method.score)
        assert len(replies.correct) == clients
        seconds.append(time.perf_counter() - begun)
    return {"exchanges": seconds[1:]}


def measure_calls(few: int, many: int, repetitions: int) -> dict[str, Any]:
    """Returns the seconds of few and of many calls at once, which two workers answer without computing."""
    seconds: dict[int, list[float]] = {few: [], many: []}
    with connected("", 2, Resources()) as ray, closing(RayPool(ray, 2, Resources())) as pool:
        for _ in range(WARM_UP + repetitions):
            for count, taken in seconds.items():
                begun = time.perf_counter()
                pool.gather([pool.call(number % 2, "drop_copy", 0) for number in range(count)])
                taken.append(time.perf_counter() - begun)
    return {"few_s": seconds[few][WARM_UP:], "many_s": seconds[many][WARM_UP:]}


MEASURES = {
    "overhead": measure_overhead,
    "registered": measure_registered,
    "driver": measure_driver,
    "bytes": measure_overhead,
    "calls": measure_calls,
}


def plan(options: argparse.Namespace) -> list[tuple[str, str, dict[str, Any]]]:
    """Returns what is measured in one pass: the part, a name and arguments."""
    jobs: list[tuple[str, str, dict[str, Any]]] = []
    for nodes in map(int, options.nodes.split(",")):
        rounds = options.rounds if nodes <= 10**5 else max(3, options.rounds // 3)
        for side, (workers, threads) in SIDES.items():
            settings = {"nodes": nodes, "workers": workers, "threads": threads, "rounds": rounds}
            jobs.append(("overhead", f"{nodes} nodes, {side}", settings))
    for workers in (0, 2):
        for registered in map(int, options.registered.split(",")):
            settings = {"registered": registered, "asked": 100, "workers": workers, "nodes": 100}
            name = f"{registered} registered, {workers} workers"
            jobs.append(("registered", name, settings | {"rounds": options.rounds}))
    for clients in (1_000, 10_000, 100_000):
        settings = {"clients": clients, "workers": 4, "repetitions": 5}
        jobs.append(("driver", f"{clients} clients", settings))
    for features in (64, 2_000, 16_000):
        settings = {"nodes": 4 * 100, "workers": 2, "threads": 1, "rounds": 2 * options.rounds, "clients": 4}
        jobs.append(("bytes", f"{features} features", settings | {"features": features}))
    jobs.append(("calls", "2 and 64 calls", {"few": 2, "many": 64, "repetitions": 2 * options.rounds}))
    return [job for job in jobs if job[0] in options.parts.split(",")]


def measure_apart(part: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns what a process of its own measured."""
    words = [sys.executable, __file__, "--measure", json.dumps([part, settings])]
    environment = os.environ | {"OMP_NUM_THREADS": str(settings.get("threads", 1))}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def pool_passes(passes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the measurements of several passes as one: series one after the other, peaks and starts as lists."""
    pooled: dict[str, Any] = defaultdict(list)
    for measured in passes:
        for name, value in measured.items():
            pooled[name] += value if isinstance(value, list) else [value]
    return dict(pooled)


def low_and_median(values: Sequence[float]) -> dict[str, float]:
    """Returns the least, the lower quartile and the median of milliseconds, of values in seconds."""
    ordered = sorted(1000 * value for value in values)
    return {"min": ordered[0], "low": ordered[len(ordered) // 4], "median": statistics.median(ordered)}


def overheads(row: dict[str, Any]) -> list[float]:
    """Returns the seconds above those of the slowest worker of every exchange."""
    return [timing["seconds"] - timing["working"] for round in row["exchanges"] for timing in round]


def show(results: dict[str, Any]) -> str:
    """Returns tables in Markdown of what was measured."""
    lines = ["| nodes | | ms a round: least, quartile, median | ms above computing, an exchange | exchanges |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for name, row in results.get("overhead", {}).items():
        nodes, side = name.split(" nodes, ")
        times = low_and_median(row["rounds"])
        cells = [f"{int(nodes):,}", side, ", ".join(f"{value:.1f}" for value in times.values())]
        if row["exchanges"]:
            extra = low_and_median(overheads(row))
            cells += [", ".join(f"{value:.1f}" for value in extra.values()), str(len(row["exchanges"][0]))]
        else:
            cells += ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| | ms a round: least, quartile, median | driver, MB | largest worker, MB | start, s |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for name, row in results.get("registered", {}).items():
        times = ", ".join(f"{value:.1f}" for value in low_and_median(row["rounds"]).values())
        workers = f"{max(row['worker_bytes']) / 1e6:.0f}" if row["worker_bytes"] else ""
        start = min(row["start_s"])
        lines.append(f"| {name} | {times} | {max(row['driver_bytes']) / 1e6:.0f} | {workers} | {start:.1f} |")
    lines += ["", "| the driver's own work in an exchange | ms: least, quartile, median | us a client |"]
    lines += ["| --- | --- | --- |"]
    for name, row in results.get("driver", {}).items():
        times = low_and_median(row["exchanges"])
        each = 1000 * times["median"] / int(name.split()[0])
        lines.append(f"| {name} | {', '.join(f'{value:.1f}' for value in times.values())} | {each:.2f} |")
    lines += ["", "| bytes of a model | ms above computing of its exchange, out and back |", "| --- | --- |"]
    for row in results.get("bytes", {}).values():
        trained = [timing for round in row["exchanges"] for timing in round if timing["step"] == "train"]
        times = low_and_median([timing["seconds"] - timing["working"] for timing in trained])
        lines.append(f"| {trained[0]['sent']:,} | {', '.join(f'{value:.1f}' for value in times.values())} |")
    for row in results.get("calls", {}).values():
        each = [
            (many - few) / (row["many"] - row["few"]) for few, many in zip(row["few_s"], row["many_s"], strict=True)
        ]
        times = ", ".join(f"{value:.2f}" for value in low_and_median(each).values())
        lines += ["", f"A call to one worker more: {times} ms (least, quartile, median)."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(MEASURES))
    parser.add_argument("--nodes", default="100000,1000000", help="of all clients together")
    parser.add_argument("--registered", default="1000,100000")
    parser.add_argument("--rounds", type=int, default=20, help="that are timed; a third of them with a million nodes")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--show", action="store_true", help="only print the tables of the file of results")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        part, settings = json.loads(options.measure)
        print(json.dumps(MEASURES[part](**settings)))
        return
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    if not options.show:
        jobs = plan(options)
        passes: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for turn in range(options.passes):
            for part, name, settings in jobs:
                begun = time.perf_counter()
                passes[part, name].append(measure_apart(part, settings))
                results.setdefault(part, {})[name] = settings | pool_passes(passes[part, name])
                took = f"{time.perf_counter() - begun:.0f} s"
                print(f"pass {turn + 1}, {part}: {name} ({took})", file=sys.stderr, flush=True)
                results["cores"] = os.cpu_count()
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(results, indent=1))
    print(show(results))


if __name__ == "__main__":
    main()
