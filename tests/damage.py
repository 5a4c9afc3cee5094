"""Damaged files: a few hundred ways to spoil what a run wrote, and what Graft makes of each.

A case must be refused with one sentence, or accepted with the very result of the undamaged files. As a damaged file
may end or hang the process that reads it, cases run in a worker: `run_cases` starts it, notes what it says of each
case, and starts another one where it died.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from queue import Empty, Queue
from random import Random
from threading import Thread

from tests.mutations import damage_bytes, damage_json, damage_toml

CASE_SECONDS, START_SECONDS = 60, 600
FINE = {"equal", "refused"}
SETTINGS = dict(
    dataset="synthetic:nodes=60,degree=4,classes=3,features=6",
    clients=3,
    width=4,
    rounds=4,
    participation=0.7,
    checkpoint_every=2,
    device="cpu",
    threads=1,
    partition="random",
)
METHOD = "fedprox"


def reseal(path: Path, *bound_to: str) -> None:
    """Makes the checksum of a damaged JSON file right again, if it has one: now only its values can be wrong."""
    from graft.files import seal

    try:
        content = json.loads(path.read_bytes())
        content.pop("checksum")
        path.write_text(json.dumps(seal(content, *bound_to)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass


# What is damaged, and what is then done with it.


class Runs:
    """A run that was stopped half-way, a finished one, and another of each, all small; and what they come to."""

    def __init__(self, folder: Path) -> None:
        import graft
        from graft.data import datasets

        self.folder = folder
        for name, seed in (("one", 0), ("other", 1)):
            graft.run(METHOD, out=folder / name / "whole", seed=seed, **SETTINGS)
            self._stop(folder / name / "half", seed)
        shutil.copytree(folder / "one" / "half", folder / "resumed")
        self.resumed = essence(graft.resume(folder / "resumed"))
        shutil.copytree(folder / "one" / "whole", folder / "reported")
        self.page = report(folder / "reported")
        self.predicted = {which: predict(folder / "one" / which) for which in ("half", "whole")}
        self.graph = datasets.load(SETTINGS["dataset"])
        self.membership = read_partition(self.graph, folder / "one" / "whole" / "partition.json")

    def _stop(self, place: Path, seed: int) -> None:
        import graft

        def stop(record):
            if record["round"] == 3:
                raise RuntimeError("stopped")

        try:
            graft.run(METHOD, out=place, seed=seed, callbacks=[stop], **SETTINGS)
        except RuntimeError:
            return
        raise AssertionError("the run was not stopped")

    def copy(self, which: str) -> Path:
        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / "one" / which, place)
        return place


def essence(result) -> str:
    """Returns all of a result that must be the same when a run is repeated, as text."""
    from graft.experiments.identity import comparable
    from graft.tensors.trees import flatten

    best = {kind: {"round": models.round, **models.tree} for kind, models in result.models.best.items()}
    clients = {str(client): tree for client, tree in result.clients.items()}
    state = {"server": result.server, **clients, "best": best}
    rounds = [{name: value for name, value in record.items() if name != "seconds"} for record in result.rounds]
    varying = {"seconds", "peak_memory_bytes", "recoveries"}
    summary = {name: value for name, value in result.summary.items() if name not in varying}
    summary["experiment"] = comparable(summary["experiment"])
    leaves = {path: leaf.tolist() if hasattr(leaf, "tolist") else leaf for path, leaf in flatten(state)}
    return json.dumps([leaves, rounds, summary], sort_keys=True)


def report(place: Path) -> str:
    from graft.experiments.reports.report import write_report

    return write_report(place).read_text()


def read_partition(graph, path: Path) -> list[int]:
    from graft.data.partitions import partition

    return partition(graph, None, path).tolist()


def tensor_file(place: Path, random: Random) -> Path:
    return random.choice(sorted((place / "checkpoint").glob("*.safetensors")))


def damage_checkpoint(runs: Runs, random: Random) -> bool:
    place = runs.copy("half")
    spoil(place / "checkpoint" / "checkpoint.json", random, damage_json)
    return resume_equals(runs, place)


def damage_tensors(runs: Runs, random: Random) -> bool:
    place = runs.copy("half")
    spoil(tensor_file(place, random), random)
    return resume_equals(runs, place)


def damage_best(runs: Runs, random: Random) -> bool:
    """The best models are damaged: those that a run goes on with, or those that predictions are made with."""
    place = runs.copy(random.choice(("half", "whole")))
    if random.random() < 0.5:
        spoil(place / "best" / "best.json", random, damage_json)
    else:
        spoil(random.choice(sorted((place / "best").glob("*.safetensors"))), random)
    return best_equals(runs, place)


def forge_best(runs: Runs, random: Random) -> bool:
    """Values of best.json are damaged and its checksum right: no other result can be told, but nothing may break."""
    from graft.experiments.run_directory import RunDirectory

    place = runs.copy(random.choice(("half", "whole")))
    path = place / "best" / "best.json"
    path.write_bytes(damage_json(path.read_bytes(), random))
    reseal(path, RunDirectory(place).experiment_checksum())
    return best_equals(runs, place) or True


def damage_preparation(runs: Runs, random: Random) -> bool:
    place = runs.copy("whole")
    spoil(place / "preparation.json", random, damage_json)
    return predict(place) == runs.predicted["whole"]


def best_equals(runs: Runs, place: Path) -> bool:
    """Returns whether a run predicts as it did and, where it was stopped half-way, goes on as it should."""
    if (place / "result.json").exists():
        return predict(place) == runs.predicted["whole"]
    return predict(place) == runs.predicted["half"] and resume_equals(runs, place)


def predict(place: Path) -> list[list[float]]:
    import graft

    return graft.load_result(place).client(1).predict().probabilities.tolist()


def damage_rounds(runs: Runs, random: Random) -> bool:
    if random.random() < 0.5:
        place = runs.copy("half")
        spoil(place / "rounds.jsonl", random, damage_json)
        return resume_equals(runs, place)
    place = runs.copy("whole")
    spoil(place / "rounds.jsonl", random, damage_json)
    return report(place) == runs.page


def damage_experiment(runs: Runs, random: Random) -> bool:
    place = runs.copy("half")
    spoil(place / "experiment.toml", random, damage_toml)
    return resume_equals(runs, place)


def damage_result(runs: Runs, random: Random) -> bool:
    place = runs.copy("whole")
    spoil(place / "result.json", random, damage_json)
    return report(place) == runs.page


def damage_partition(runs: Runs, random: Random) -> bool:
    import numpy as np

    place = runs.copy("whole") / "partition.json"
    if random.random() < 0.7:
        spoil(place, random, damage_json)
        return read_partition(runs.graph, place) == runs.membership
    # Plain lists of client ids have no checksum: another valid list is another partition, and only that.
    plain = place.with_suffix(random.choice((".npy", ".txt", ".json")))
    if plain.suffix == ".npy":
        np.save(plain, np.array(runs.membership))
    else:
        plain.write_text(
            json.dumps(runs.membership) if plain.suffix == ".json" else "\n".join(map(str, runs.membership))
        )
    spoil(plain, random)
    return set(read_partition(runs.graph, plain)) >= {0}


def swap_files(runs: Runs, random: Random) -> bool:
    """A file of the run is gone, empty, or that of another run."""
    which = random.choice(("half", "whole"))
    place, other = runs.copy(which), runs.folder / "other" / which
    names = ["checkpoint/checkpoint.json", "tensors", "rounds.jsonl", "experiment.toml", "result.json"]
    names += ["checkpoint", "best"]
    for name in random.sample(names, random.choice((1, 1, 2))):
        path = tensor_file(place, random) if name == "tensors" and (place / "checkpoint").exists() else place / name
        swapped = tensor_file(other, random) if name == "tensors" else other / name
        if path.is_dir():
            shutil.rmtree(path)
            shutil.copytree(swapped, path)
        elif path.exists():
            how = random.randrange(4)
            path.unlink()
            if how == 1:
                path.write_bytes(b"")
            elif how > 1:
                shutil.copy(swapped, path)
    return resume_equals(runs, place) if which == "half" else report(place) == runs.page


def forge_checkpoint(runs: Runs, random: Random) -> bool:
    """Values are damaged and all checksums right: no other result can be told, but nothing may break."""
    place = runs.copy("half")
    path = place / "checkpoint" / "checkpoint.json"
    path.write_bytes(damage_json(path.read_bytes(), random))
    reseal(path)
    return resume_equals(runs, place) or True


def forge_tensors(runs: Runs, random: Random) -> bool:
    """Tensors are of another shape, dtype, name or value, and all checksums right."""
    import torch
    from safetensors.torch import load_file

    from graft.experiments.tensor_files import write_tensors

    place = runs.copy("half")
    folder = place / "checkpoint"
    contents = json.loads((folder / "checkpoint.json").read_text())
    stored = contents["files"][0]
    tensors = load_file(folder / stored["name"])
    name = random.choice(sorted(tensors))
    leaf = tensors[name]
    changed = random.choice(
        (
            leaf.repeat(*[2] * max(leaf.dim(), 1)),
            leaf.reshape(-1)[: max(1, leaf.numel() // 2)].clone(),
            leaf.unsqueeze(0),
            leaf.double(),
            leaf.long(),
            torch.full_like(leaf, float("nan") if leaf.is_floating_point() else 1),
            torch.zeros(0),
            leaf * 10,
        )
    )
    tensors[name] = changed
    (folder / stored["name"]).unlink()
    fresh = asdict(write_tensors(tensors, folder))
    if random.random() < 0.3:
        content = damage_bytes((folder / fresh["name"]).read_bytes(), random)
        fresh = dict(name="forged.safetensors", size=len(content), sha256=hashlib.sha256(content).hexdigest())
        (folder / "forged.safetensors").write_bytes(content)
    stored.update(fresh)
    (folder / "checkpoint.json").write_text(json.dumps(contents))
    reseal(folder / "checkpoint.json")
    return resume_equals(runs, place) or True


def spoil(path: Path, random: Random, structured=None) -> None:
    """Damages a file, in its bytes or, where there is a way to, in what they mean."""
    content = path.read_bytes()
    damage = structured if structured is not None and random.random() < 0.5 else damage_bytes
    path.write_bytes(damage(content, random))


def resume_equals(runs: Runs, place: Path) -> bool:
    import graft

    return essence(graft.resume(place)) == runs.resumed


SUBJECTS = {
    "checkpoint.json": damage_checkpoint,
    "tensors": damage_tensors,
    "best": damage_best,
    "forged best": forge_best,
    "preparation": damage_preparation,
    "rounds.jsonl": damage_rounds,
    "experiment.toml": damage_experiment,
    "result.json": damage_result,
    "partition": damage_partition,
    "swapped": swap_files,
    "forged checkpoint.json": forge_checkpoint,
    "forged tensors": forge_tensors,
}


# The worker, and who watches it.


def work(subjects: list[str], numbers: range) -> None:
    """Runs cases, of all subjects in turn, and says of each, a line at a time, that it begins and how it ended."""
    import warnings

    from graft.errors import GraftError

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        for number in numbers:
            subject = subjects[number % len(subjects)]
            print(json.dumps({"begins": number}), flush=True)
            try:
                equal = SUBJECTS[subject](runs, Random(f"{subject} {number // len(subjects)}"))
                outcome = "equal" if equal else "differs"
            except GraftError as error:
                one_sentence = str(error).endswith(".") and "\n" not in str(error).strip()
                outcome = "refused" if one_sentence else f"no sentence: {error}"
            except Exception as error:
                outcome = f"traceback: {type(error).__name__}: {error}"
            print(json.dumps({"ended": number, "outcome": outcome}), flush=True)


def run_cases(subjects: list[str], count: int, first: int = 0) -> dict[str, Counter[str]]:
    """Returns how often each outcome was seen by subject: equal, refused, or something that must not be.

    There are `count` cases of every subject, from a first one on.
    """
    outcomes: dict[str, Counter[str]] = {subject: Counter() for subject in subjects}
    next_case, end = first * len(subjects), (first + count) * len(subjects)
    while next_case < end:
        for number, outcome in watch(subjects, range(next_case, end)):
            label = outcome if outcome in FINE else f"{outcome} (case {number // len(subjects)})"
            outcomes[subjects[number % len(subjects)]][label] += 1
            next_case = number + 1
    return outcomes


def watch(subjects: list[str], numbers: range):
    """Yields case by case what a worker says, and at last, where it died or hung, that it did."""
    command = [sys.executable, "-m", "tests.damage", ",".join(subjects), str(numbers.start), str(numbers.stop)]
    folders = [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(folders)}
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True)
    lines: Queue[str | None] = Queue()

    def listen():
        for line in worker.stdout:
            lines.put(line)
        lines.put(None)

    Thread(target=listen, daemon=True).start()
    current = None
    try:
        while True:
            try:
                line = lines.get(timeout=START_SECONDS if current is None else CASE_SECONDS)
            except Empty:
                yield (numbers.start if current is None else current), "hang"
                return
            if line is None:
                if worker.wait() != 0 or current is not None:
                    yield (numbers.start if current is None else current), f"crash: status {worker.returncode}"
                return
            said = json.loads(line)
            current = said.get("begins")
            if current is None:
                yield said["ended"], said["outcome"]
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def main() -> None:
    """`python -m tests.damage all COUNT` tries everything; with subjects and two numbers it is a worker."""
    if sys.argv[1] != "all":
        work(sys.argv[1].split(","), range(int(sys.argv[2]), int(sys.argv[3])))
        return
    for subject in SUBJECTS:
        begun = time.perf_counter()
        outcomes = run_cases([subject], int(sys.argv[2]))[subject]
        print(f"{subject}: {dict(outcomes)} ({time.perf_counter() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
