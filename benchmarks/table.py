"""All that Graft's speed is asked to show, in one run and one table.

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
import large
import methods
import roofline
import torch
import torch_geometric

from graft.data import datasets, federation
from graft.engines.threads import cores

FLAT = 1.1  # the most that a client among 1,000 may cost, as a multiple of one among 100
HEADER = f"{'work':46}{'loop ms':>10}{'Graft ms':>10}{'ratio':>8}   {'asked':24}{'found':62}holds"


@dataclass
class Row:
    """One line of the table."""

    work: str
    asked: str
    found: str
    holds: bool | None  # None: nothing was asked that could fail
    loop_ms: float | None = None
    graft_ms: float | None = None
    ratio: float | None = None
    detail: Any = field(default_factory=dict)  # all that was measured

    def __str__(self) -> str:
        numbers = "".join(
            f"{'-' if value is None else format(value, form):>{wide}}"
            for value, form, wide in ((self.loop_ms, ".1f", 10), (self.graft_ms, ".2f", 10), (self.ratio, ".1f", 8))
        )
        said = "-" if self.holds is None else "yes" if self.holds else "NO"
        return f"{self.work:46}{numbers}   {self.asked:24}{self.found:62}{said}"


@dataclass
class Bench:
    """How to measure: where, for how many turns, and how many of Graft's rounds come with one of the loop."""

    device: torch.device
    turns: int
    few: int  # turns of what takes long
    warm: int
    often: int
    scale: float
    threads: int

    def fedavg(self, work: str, dataset: str, count: int, least: float, note: str = "") -> list[Row]:
        turns = self.turns if dataset == "cora" else self.few
        found = fleet.compare(dataset, count, turns, self.device, warm=self.warm, often=self.often)
        accuracy = scores(found["loop_accuracy"][0], found["fleet_accuracy"][0])
        times = found["loop_ms"], found["fleet_ms"], found["ratio"]
        return [Row(work, f">= {least:g} x{note}", accuracy, found["ratio"] >= least, *times, found)]

    def fedgkc(self, work: str, dataset: str, count: int, least: float) -> list[Row]:
        found = methods.compare("fedgkc", dataset, count, self.turns, self.device, self.warm, self.often)
        accuracy = scores(found["accuracy"]["loop"], found["accuracy"]["graft"])
        times = found["ms"]["loop"], found["ms"]["graft"], found["ratio"]
        return [Row(work, f">= {least:g} x", accuracy, found["ratio"] >= least, *times, found)]

    def hundred(self, work: str, dataset: str, least: float, most: float) -> list[Row]:
        """A hundred clients against the loop, and against ten clients."""
        graphs = {count: federation.build(datasets.load(dataset), count, seed=0).clients for count in (10, 100)}
        sides = {"loop": fleet.Loop(graphs[100], self.device, cached=False)}
        sides |= {count: fleet.OneFleet(graphs[count], self.device) for count in graphs}  # type: ignore[misc]
        middle, found = fleet.alternate(sides, self.turns, self.warm, dict.fromkeys(graphs, self.often))
        detail = {"ms": {str(name): value for name, value in middle.items()}}
        detail |= {"accuracy": {str(name): value for name, value in found.items()}}
        ratio, growth = middle["loop"] / middle[100], middle[100] / middle[10]
        accuracy = scores(found["loop"][0], found[100][0])
        against = f"{middle[10]:.2f} ms with 10 clients, {growth:.2f} x"
        return [
            Row(work, f">= {least:g} x", accuracy, ratio >= least, middle["loop"], middle[100], ratio, detail),
            Row(f"{work} / 10 clients", f"<= {most:g} x", against, growth <= most, None, middle[100], None, detail),
        ]

    def arxiv(self, work: str) -> list[Row]:
        found = self.large("arxiv")
        memory = f"{found['peak_bytes'] / 1e9:.2f} GB"
        if self.device.type == "cpu":
            return [Row(work, "<= 8 GB", memory, found["peak_bytes"] <= 8e9, None, found["ms"], None, found)]
        # Every family of kernels that takes a tenth of the time or more must be fast, not just the fastest of them.
        longest = [one for one in found["families"] if one["share"] >= 0.1]
        said = f"{100 * found['all']['of_copy']:.0f} % of {found['copy_gb_s']:.0f} GB/s: "
        said += ", ".join(f"{one['family']} {100 * one['of_copy']:.0f} %" for one in longest)
        holds = bool(longest) and all(one["of_copy"] >= 0.25 for one in longest)
        return [Row(work, ">= 25 % of bandwidth", f"{said}; {memory}", holds, None, found["ms"], None, found)]

    def products(self, work: str) -> list[Row]:
        found = self.large("products")
        return [
            Row(work, "time and memory", f"{found['peak_bytes'] / 1e9:.2f} GB", None, None, found["ms"], None, found)
        ]

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
        return json.loads(out.read_text())["rows"][0]  # type: ignore[no-any-return]

    def many(self, work: str, method: str) -> list[Row]:
        counts = [100, 1000]
        graphs = clients.build_graphs(counts[-1], nodes=100)
        found = clients.measure(method, graphs, counts, 0.1, self.few, self.device)
        first, last = found["us_a_client"][0], found["us_a_client"][-1]
        said = f"{first:.0f}, {last:.0f} us a client and round"
        return [
            Row(work, f"<= {FLAT:g} x, 100 to 1,000", said, last <= FLAT * first, None, found["ms"][-1], None, found)
        ]

    def roofline(self, work: str) -> list[Row]:
        """What a round must move and do, against what it takes."""
        return [
            Row(
                f"{work} {row['method']}",
                "lower bound",
                f"{row['bound_ms']:.3f} ms at least: {100 * row['share']:.1f} %",
                None,
                None,
                row["ms"],
                None,
                row,
            )
            for row in roofline.measure(self.device, rounds=6 * self.few)
        ]


def scores(loop: float, graft: float) -> str:
    return f"accuracy: loop {100 * loop:.1f}, Graft {100 * graft:.1f}"


def rows_for(bench: Bench, products: bool) -> dict[str, Callable[[str], list[Row]]]:
    """What is measured, by the name that it has in the table."""
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
    """The machine and the versions."""
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
        "graft_rounds_a_turn": bench.often,
        "scale": bench.scale,
    }


def main() -> None:
    parser = fleet.options_of(__doc__, None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--products", action="store_true", help="the largest graph on a CPU too")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--scale", type=float, default=1.0, help="of the two large graphs, to try it out")
    options = fleet.begun(parser)
    cuda = options.device == "cuda"
    few, often = (3 if options.quick else 5), 8 if cuda else 1
    turns = few if cuda or options.quick else 15
    bench = Bench(torch.device(options.device), turns, few, 2, often, options.scale, options.threads)
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
