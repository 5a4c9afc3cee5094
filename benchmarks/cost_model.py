"""A model of what a round on a cluster costs, fitted to small runs that `cluster.py` measured, and what it predicts.

An exchange with w workers on c cores takes

    latency + turn * w + clients / joining + bytes / bandwidth + max(1, w / c) * (call + work / w)

seconds: what Ray takes for any exchange, and for each worker more; what the driver does for every client, and for every
byte; and what the slowest worker computes, where workers that have no core of their own take turns. A round is its
exchanges and the rest of the driver's work. Latency, turn, call and work come from the runs with one and with two
workers; joining, bandwidth and the least that turn can be from measurements of their own. The run with four workers is
predicted, and compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT = Path("benchmarks/out/cluster.json")


@dataclass(frozen=True)
class Exchange:
    """A step of a round: how it is sent, and how long workers take for it."""

    step: str
    bytes: float  # that all workers are told alike, and what they reply
    call: float  # seconds of any worker, however few clients it has
    work: float  # seconds of one worker that has all clients


@dataclass(frozen=True)
class Costs:
    """What was fitted."""

    latency: float  # seconds of any exchange
    turn: float  # seconds for every worker more
    joining: float  # clients a second
    bandwidth: float  # bytes a second
    rest: float  # seconds of the driver in a round, between exchanges
    clients: int
    exchanges: tuple[Exchange, ...]

    def overhead(self, workers: int, clients: int, size: float) -> float:
        """Returns the seconds of an exchange in which nobody computes."""
        return self.latency + self.turn * workers + clients / self.joining + size / self.bandwidth

    def round(self, workers: int, cores: int) -> float:
        """Returns the seconds of a round."""
        waiting = max(1.0, workers / cores)
        return self.rest + sum(
            self.overhead(workers, self.clients, exchange.bytes) + waiting * (exchange.call + exchange.work / workers)
            for exchange in self.exchanges
        )


def fit(results: dict[str, Any], nodes: int) -> Costs:
    """Returns the costs of a federation of so many nodes from its runs with one and with two workers."""
    one, two = (results["overhead"][f"{nodes} nodes, {name}"] for name in ("1 worker", "2 workers"))
    joining, bandwidth = fit_joining(results), fit_bandwidth(results)
    exchanges = tuple(
        Exchange(
            first["step"],
            second["bytes"],
            2 * second["working"] - first["working"],
            2 * (first["working"] - second["working"]),
        )
        for first, second in zip(typical(one), typical(two), strict=True)
    )
    clients = 1_000
    fixed = [
        statistics.median(entry["extra"] - clients / joining - entry["bytes"] / bandwidth for entry in typical(run))
        for run in (one, two)
    ]
    turn = max(fixed[1] - fixed[0], fit_call(results))
    rests = [
        total - sum(timing["seconds"] for timing in round)
        for run in (one, two)
        for total, round in zip(run["rounds"], run["exchanges"], strict=True)
    ]
    return Costs(max(0.0, fixed[0] - turn), turn, joining, bandwidth, statistics.median(rests), clients, exchanges)


def typical(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the exchanges of a round with their medians over all rounds."""
    rows = []
    for timings in zip(*run["exchanges"], strict=True):
        rows.append(
            {
                "step": timings[0]["step"],
                "working": statistics.median(timing["working"] for timing in timings),
                "extra": statistics.median(timing["seconds"] - timing["working"] for timing in timings),
                "bytes": statistics.median(timing["sent"] + timing["received"] for timing in timings),
            }
        )
    return rows


def fit_joining(results: dict[str, Any]) -> float:
    """Returns for how many clients a second the driver sends requests and joins replies."""
    points = [(row["clients"], statistics.median(row["exchanges"])) for row in results["driver"].values()]
    return 1 / slope(points)


def fit_bandwidth(results: dict[str, Any]) -> float:
    """Returns how many bytes a second messages travel that are too large to go with a call, out and back."""
    points = []
    for row in results["bytes"].values():
        trained = next(entry for entry in typical(row) if entry["step"] == "train")
        points.append((trained["bytes"], trained["extra"]))
    return 1 / slope(points)


def fit_call(results: dict[str, Any]) -> float:
    """Returns the seconds that a call to one worker more takes; with few workers they are hidden by other things."""
    return max(
        (statistics.median(row["many_s"]) - statistics.median(row["few_s"])) / (row["many"] - row["few"])
        for row in results["calls"].values()
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Returns by how much the second number grows with the first, from the least to the largest."""
    (low, first), (high, last) = min(points), max(points)
    return (last - first) / (high - low)


def predict_large(costs: Costs, per_round: int, gpus: int, compute: float, network: float) -> dict[str, float]:
    """Returns the seconds of a round on GPUs: computing, Ray, the driver's joining, and the network of the driver."""
    down = costs.exchanges[0].bytes
    counted = 3 * len(costs.exchanges) * 8 * per_round  # a client's weight, losses and counts, 8 bytes each
    parts = {
        "computing": compute,
        "latency of Ray": len(costs.exchanges) * (costs.latency + costs.turn * gpus),
        "joining at the driver": len(costs.exchanges) * per_round / costs.joining,
        "network of the driver": (2 * down * gpus + counted) / network,
    }
    return parts | {"round": sum(parts.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=OUT)
    parser.add_argument("--network", type=float, default=25e9 / 8, help="bytes a second of the driver's network")
    parser.add_argument("--node-ns", type=float, default=21.4, help="a GPU's time for a node in a round")
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    print("| nodes | workers | predicted, ms a round | measured | error | |\n| --- | --- | --- | --- | --- | --- |")
    fitted = {}
    for name in results["overhead"]:
        size, side = name.split(" nodes, ")
        if not side.endswith(("worker", "workers")):
            continue
        nodes, workers = int(size), int(side.split()[0])
        fitted[nodes] = costs = fit(results, nodes)
        predicted = costs.round(workers, results["cores"])
        measured = statistics.median(results["overhead"][name]["rounds"])
        how = "predicted" if workers > 2 else "fitted"
        cells = [f"{nodes:,}", str(workers), f"{1000 * predicted:.0f}", f"{1000 * measured:.0f}"]
        print(f"| {' | '.join(cells)} | {100 * (predicted / measured - 1):+.0f} % | {how} |")
    for nodes, costs in fitted.items():
        print(
            f"\n{nodes:,} nodes: latency {1000 * costs.latency:.2f} ms, {1000 * costs.turn:.2f} ms a worker, "
            f"{costs.joining / 1e6:.2f} million clients a second, {costs.bandwidth / 1e6:.0f} MB/s, rest "
            f"{1000 * costs.rest:.1f} ms"
        )
        for exchange in costs.exchanges:
            print(f"  {exchange.step}: call {1000 * exchange.call:.1f} ms, work {1000 * exchange.work:.1f} ms")
    costs = fitted[min(fitted)]
    print("\n| a million clients of 100 nodes on 64 GPUs, a prediction | ms |\n| --- | --- |")
    for per_round in (10_000, 1_000_000):
        # A GPU is not faster than for few clients: docs/performance.md has 26 ms for 100 of 1,000.
        compute = max(0.026, options.node_ns * 1e-9 * 100 * per_round / 64)
        for part, seconds in predict_large(costs, per_round, 64, compute, options.network).items():
            print(f"| {per_round:,} a round: {part} | {1000 * seconds:.0f} |")


if __name__ == "__main__":
    main()
