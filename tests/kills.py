"""Runs in processes of their own that are killed, at a random moment or at a chosen call of the file system."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests import damage
from tests.damage import essence

SETTINGS = {name: value for name, value in damage.SETTINGS.items() if name not in ("rounds", "checkpoint_every")}
CALLS = [(os, "fsync"), (os, "replace"), (os, "unlink"), (os, "mkdir"), (os, "rmdir"), (io, "open"), (os, "open")]

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["graft.experiments.run", "tests.kills"])


def run_rounds(place: Path, settings: dict, begun, die_at: int | None) -> None:
    """Runs an experiment, in the process that is to be killed."""
    import graft

    if die_at is not None:
        count = itertools.count()
        for module, name in CALLS:
            setattr(module, name, dying(getattr(module, name), count, die_at, place))
    begun.set()
    graft.run("fedprox", out=place, **settings)


def dying(function, count, die_at, place):
    """Returns the function of the system, except that the process is killed just before the chosen call on a run."""

    def called(path, *arguments, **options):
        if (isinstance(path, int) or str(place) in str(path)) and next(count) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(path, *arguments, **options)

    return called


def run_and_kill(place: Path, settings: dict, *, after: float | None = None, die_at: int | None = None) -> bool:
    """Starts a run and kills it after so many seconds, or at a call of the file system; returns whether it died."""
    begun = context.Event()
    process = context.Process(target=run_rounds, args=(place, settings, begun, die_at))
    process.start()
    assert begun.wait(60)
    process.join(after)
    if after is not None:
        process.kill()
    process.join(60)
    died = process.exitcode == -signal.SIGKILL
    assert died or process.exitcode == 0, process.exitcode
    return died


def outcome_of(place: Path, settings: dict, expected: str) -> str:
    """Returns how a killed run went on: 'equal' is what it should be, 'not begun' and 'finished' are fine as well."""
    import graft
    from graft.errors import InputError
    from graft.experiments.run_directory import RunDirectory

    check_best_on_disk(place)
    try:
        result = graft.resume(place)
    except InputError as error:
        if "holds no experiment.toml" in str(error):  # then nothing is lost, and the same command may be given again
            again = essence(graft.run("fedprox", out=place, **settings))
            return "not begun" if again == expected else "differs"
        if "is a finished run" in str(error):
            RunDirectory(place).read_record()
            return "finished"
        return f"refused: {error}"
    RunDirectory(place).read_record()
    return "equal" if essence(result) == expected else "differs"


def check_best_on_disk(place: Path) -> None:
    """Fails unless the models that a killed run left for predictions are whole, and of a round on record."""
    import graft

    if (place / "experiment.toml").exists() and (place / "best" / "best.json").exists():
        opened = graft.load_result(place)
        assert 1 <= opened.client(0).round <= len(opened.rounds)


def random_kills(folder: Path, count: int, settings: dict, first: int = 0) -> Counter[str]:
    """Returns the outcomes of runs that were killed at random moments of their lives."""
    import graft

    expected = essence(graft.run("fedprox", **settings))
    begun = time.perf_counter()
    assert not run_and_kill(folder / "whole", settings)
    duration = time.perf_counter() - begun
    outcomes: Counter[str] = Counter()
    for number in range(first, first + count):
        place = folder / f"run{number}"
        run_and_kill(place, settings, after=Random(number).random() * duration)
        outcomes[outcome_of(place, settings, expected)] += 1
        shutil.rmtree(place, ignore_errors=True)
    return outcomes


def main() -> None:
    """`python -m tests.kills FOLDER COUNT` kills so many runs at random moments and prints how they went on."""
    settings = SETTINGS | {"rounds": 100, "checkpoint_every": 1}
    print(dict(random_kills(Path(sys.argv[1]), int(sys.argv[2]), settings)))


if __name__ == "__main__":
    main()
