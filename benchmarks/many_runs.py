"""A comparison for a paper in one command, against the same runs as a `graft run` each: 5 methods, 3 datasets, 5 seeds.

A single call imports PyTorch, reads the data and writes a report every time, and has a thread for every idle core;
`graft sweep` imports once a worker, builds data once for all methods, and has a worker a core. By default one seed of
every method and dataset is run singly and counts for all seeds; `--all` runs every one of them. The more rounds a run
has, the less its start matters: the ratio falls towards what a second core is worth.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

METHODS = ("fedavg", "fedprox", "scaffold", "local", "fedgta")
DATASETS = ("cora", "citeseer", "pubmed")
GRAFT = (sys.executable, "-c", "from graft.cli import main; main()")


def timed(*arguments: str) -> tuple[float, float]:
    """Returns the seconds that a call of `graft` took, and those of its cores, its workers included."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*GRAFT, *arguments], check=True, stdout=subprocess.DEVNULL)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--all", action="store_true", help="run every seed singly, too")
    options = parser.parse_args()
    methods, datasets = options.methods.split(","), options.datasets.split(",")
    total = len(methods) * len(datasets) * options.seeds
    shared = ["--rounds", str(options.rounds), "--clients", str(options.clients), "--device", "cpu"]
    folder = Path(tempfile.mkdtemp(prefix="graft-many-runs-"))
    try:
        axes = ["--methods", options.methods, "--datasets", options.datasets, "--seeds", str(options.seeds)]
        together, cores = timed("sweep", *axes, *shared, "--out", str(folder / "sweep"))
        print(f"{total} runs, graft sweep: {together:.1f} s ({cores:.1f} s of all cores)", flush=True)
        single, single_cores, calls = 0.0, 0.0, 0
        for seed in range(options.seeds if options.all else 1):
            for dataset in datasets:
                for method in methods:
                    words = ["--method", method, "--dataset", dataset, "--seed", str(seed), *shared]
                    seconds, work = timed("run", *words, "--out", str(folder / f"{method}-{dataset}-{seed}"))
                    single, single_cores, calls = single + seconds, single_cores + work, calls + 1
        scale = total / calls
        how = "all of them" if calls == total else f"{calls} calls, times {scale:g}"
        print(f"{total} runs, graft run: {single * scale:.1f} s ({single_cores * scale:.1f} s of all cores), {how}")
        print(f"ratio: {single * scale / together:.2f} (aim: 3)")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
