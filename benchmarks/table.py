"""Graft's speed in one run and one table, beside what we aim at.

A loop is stock PyG layers, client by client, with the same work and accuracy; its rounds and Graft's alternate in one
process. Rows without a loop say what was measured. Every row is printed and written as soon as it is there, and one
that fails says why and does not end the rest.
"""

from __future__ import annotations

import gc
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import clients
import fleet
import harness
import large
import methods
import roofline
import torch
import torch_geometric

from graft.data import datasets, federation
from graft.engines.threads import cores

FLAT = 1.1  # the most that a client among 1,000 may cost, as a multiple of one among 100
HEADER = f"{'work':46}{'loop ms':>10}{'Graft ms':>10}{'ratio':>8}   {'aim':24}{'measured':62}met"


@dataclass
class Row:
    """One line of the table."""

    work: str
    aim: str
    measured: str
    met: bool | None  # None: there is no aim that could be missed
    loop_ms: float | None = None
    graft_ms: float | None = None
    ratio: float | None = None
    detail: Any = field(default_factory=dict)  # all that was measured

    def __str__(self) -> str:
        numbers = "".join(
            f"{'-' if value is None else format(value, precision):>{width}}"
            for value, precision, width in (
                (self.loop_ms, ".1f", 10),
                (self.graft_ms, ".2f", 10),
                (self.ratio, ".1f", 8),
            )
        )
        met = "-" if self.met is None else "yes" if self.met else "NO"
        return f"{self.work:46}{numbers}   {self.aim:24}{self.measured:62}{met}"


@dataclass
class Bench:
    """How to measure: where, for how many turns, and how many of Graft's rounds come with one of the loop."""

    device: torch.device
    turns: int
    few: int  # turns of what takes long
    warmup: int
    graft_rounds: int
    scale: float
    threads: int

    def fedavg(self, work: str, dataset: str, count: int, least: float, note: str = "") -> list[Row]:
        turns = self.turns if dataset == "cora" else self.few
        comparison = fleet.compare(
            dataset, count, turns, self.device, warmup=self.warmup, graft_rounds=self.graft_rounds
        )
        return [against_loop(work, comparison, least, note)]

    def fedgkc(self, work: str, dataset: str, count: int, least: float) -> list[Row]:
        comparison = methods.compare("fedgkc", dataset, count, self.turns, self.device, self.warmup, self.graft_rounds)
        return [against_loop(work, comparison, least)]

    def hundred(self, work: str, dataset: str, least: float, most: float) -> list[Row]:
        """A hundred clients against the loop, and against ten clients."""
        graphs = {count: federation.build(datasets.load(dataset), count, seed=0).clients for count in (10, 100)}
        sides: dict[str, harness.Side] = {"loop": fleet.Loop(graphs[100], self.device)}
        sides |= {str(count): fleet.graft_fedavg(graphs[count], self.device) for count in graphs}
        medians, accuracies = harness.alternate(
            sides, self.turns, self.warmup, {"10": self.graft_rounds, "100": self.graft_rounds}
        )
        comparison = {
            "ms": {**medians, "graft": medians["100"]},
            "ratio": medians["loop"] / medians["100"],
            "accuracy": {**accuracies, "graft": accuracies["100"]},
        }
        growth = medians["100"] / medians["10"]
        measured = f"{medians['10']:.2f} ms with 10 clients, {growth:.2f} x"
        row = Row(f"{work} / 10 clients", f"<= {most:g} x", measured, growth <= most, graft_ms=medians["100"])
        return [against_loop(work, comparison, least), row]

    def arxiv(self, work: str) -> list[Row]:
        sizes = self.large("arxiv")
        memory, milliseconds = f"{sizes['peak_bytes'] / 1e9:.2f} GB", sizes["ms"]
        if self.device.type == "cpu":
            met = sizes["peak_bytes"] <= 8e9
            return [Row(work, "<= 8 GB", memory, met, graft_ms=milliseconds, detail=sizes)]
        # Every family of kernels that takes a tenth of the time or more must be fast, not just the fastest of them.
        longest = [family for family in sizes["families"] if family["share"] >= 0.1]
        measured = f"{100 * sizes['all']['of_copy']:.0f} % of {sizes['copy_gb_s']:.0f} GB/s: "
        measured += ", ".join(f"{family['family']} {100 * family['of_copy']:.0f} %" for family in longest)
        met = bool(longest) and all(family["of_copy"] >= 0.25 for family in longest)
        measured = f"{measured}; {memory}"
        return [Row(work, ">= 25 % of bandwidth", measured, met, graft_ms=milliseconds, detail=sizes)]

    def products(self, work: str) -> list[Row]:
        sizes = self.large("products")
        memory = f"{sizes['peak_bytes'] / 1e9:.2f} GB"
        return [Row(work, "-", memory, None, graft_ms=sizes["ms"], detail=sizes)]

    def large(self, size: str) -> dict[str, Any]:
        """On a CPU in a process of its own, whose memory nothing else is in."""
        if self.device.type == "cuda":
            return large.measure(size, self.device, self.scale)
        out = Path("benchmarks/out") / f"large-{size}.json"
        script = Path(__file__).with_name("large.py")
        options = ["--sizes", size, "--scale", str(self.scale), "--rounds", str(self.few), "--out", str(out)]
        options += ["--device", "cpu", "--threads", str(self.threads)]
        done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it was ended")
        row: dict[str, Any] = json.loads(out.read_text())["rows"][0]
        return row

    def many(self, work: str, method: str) -> list[Row]:
        counts = [100, 1000]
        graphs = clients.build_graphs(counts[-1], nodes=100)
        costs = clients.measure(method, graphs, counts, 0.1, self.few, self.device)
        first, last = costs["us_a_client"][0], costs["us_a_client"][-1]
        measured = f"{first:.0f}, {last:.0f} us a client and round"
        aim = f"<= {FLAT:g} x, 100 to 1,000"
        return [Row(work, aim, measured, last <= FLAT * first, graft_ms=costs["ms"][-1], detail=costs)]

    def roofline(self, work: str) -> list[Row]:
        """What a round must move and do, against what it takes."""
        return [
            Row(
                f"{work} {row['method']}",
                "-",
                f"{row['bound_ms']:.3f} ms at least: {100 * row['share']:.1f} %",
                None,
                graft_ms=row["ms"],
                detail=row,
            )
            for row in roofline.measure(self.device, rounds=6 * self.few)
        ]


def against_loop(work: str, comparison: dict[str, Any], least: float, note: str = "") -> Row:
    """Returns the row of a comparison with a loop, which Graft should be so many times as fast as."""
    loop, graft = (100 * comparison["accuracy"][side]["own"] for side in ("loop", "graft"))
    times = comparison["ms"]["loop"], comparison["ms"]["graft"], comparison["ratio"]
    accuracy = f"accuracy: loop {loop:.1f}, Graft {graft:.1f}"
    return Row(work, f">= {least:g} x{note}", accuracy, comparison["ratio"] >= least, *times, comparison)


def rows_for(bench: Bench, products: bool) -> dict[str, Callable[[str], list[Row]]]:
    """Returns what is measured, by the name that it has in the table."""
    if bench.device.type == "cuda":
        rows: dict[str, Callable[[str], list[Row]]] = {
            "FedAvg, Cora, 20 clients": partial(bench.fedavg, dataset="cora", count=20, least=150, note=", about 1 ms"),
            "FedAvg, Cora, 100 clients": partial(bench.hundred, dataset="cora", least=300, most=1.5),
            "FedGKC, five architectures, Cora, 20 clients": partial(bench.fedgkc, dataset="cora", count=20, least=40),
        }
    else:
        rows = {
            "FedAvg, Cora, 10 clients": partial(bench.fedavg, dataset="cora", count=10, least=10),
            "FedAvg, Cora, 20 clients": partial(bench.fedavg, dataset="cora", count=20, least=10),
            "FedGKC, five architectures, Cora, 20 clients": partial(bench.fedgkc, dataset="cora", count=20, least=8),
            "FedAvg, Physics, 20 clients": partial(bench.fedavg, dataset="physics", count=20, least=10),
        }
    rows |= {
        "Roofline, Cora, 20 clients:": bench.roofline,
        "FedGKC, arxiv size, 10 clients": bench.arxiv,
        "FedAvg, 100 and 1,000 clients": partial(bench.many, method="fedavg"),
        "FedGKC, 100 and 1,000 clients": partial(bench.many, method="fedgkc"),
    }
    if products:
        rows["FedAvg, products size, 20 clients"] = bench.products
    return rows


def about(bench: Bench) -> dict[str, Any]:
    """Returns the machine and the versions."""
    cuda = bench.device.type == "cuda"
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "device": torch.cuda.get_device_name() if cuda else processor,
        "processor": processor,
        "cores": cores(),
        "threads": bench.threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "turns": bench.turns,
        "turns_of_what_takes_long": bench.few,
        "graft_rounds_a_turn": bench.graft_rounds,
        "scale": bench.scale,
    }


def main() -> None:
    parser = harness.make_parser(__doc__, None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--products", action="store_true", help="the largest graph on a CPU too")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--scale", type=float, default=1.0, help="of the two large graphs, to try it out")
    options = harness.parse(parser)
    cuda = options.device == "cuda"
    few = 3 if options.quick else 5
    bench = Bench(
        device=torch.device(options.device),
        turns=few if cuda or options.quick else 15,
        few=few,
        warmup=2,
        graft_rounds=8 if cuda else 1,
        scale=options.scale,
        threads=options.threads,
    )
    out = options.out or Path(f"benchmarks/out/table-{options.device}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"about": about(bench), "rows": []}
    print(", ".join(f"{name} {value}" for name, value in result["about"].items()), HEADER, sep="\n", flush=True)
    for work, measure in rows_for(bench, options.products or cuda).items():
        if options.only.lower() not in work.lower():
            continue
        started = time.perf_counter()
        try:
            rows = measure(work)
        except Exception as error:  # a row that fails must not end the rest
            rows = [Row(work, "", f"failed: {str(error).splitlines()[0] if str(error) else repr(error)}", False)]
        for row in rows:
            print(row, flush=True)
            result["rows"].append(vars(row) | {"took_s": time.perf_counter() - started})
        out.write_text(json.dumps(result, indent=1))
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
    for row in result["rows"]:
        if "kernels" in row["detail"]:
            print(f"\n{large.show(row['detail'])}")


if __name__ == "__main__":
    main()
