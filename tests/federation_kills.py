"""Federations of real processes, of which some are killed or frozen at random moments: each must end as it should.

`python -m tests.federation_kills parties 30`, and so with absent, frozen, servers, peers, frozen_peers and end, does so
much harm and prints when it was done and how the federations went on; without words, all of that is done.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from tests.federation_processes import (
    PARTIES,
    SERVER,
    Federation,
    absences,
    absent_on_record,
    differences,
    essence,
    running,
)


class Unbroken:
    """What federations end with to which nothing is done, each run once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, {}

    def __call__(self, method: str, rounds: int) -> dict[str, Any]:
        if (method, rounds) not in self._known:
            with running(self._folder / f"unbroken-{method}-{rounds}", method, rounds) as federation:
                federation.wait()
                self._known[method, rounds] = essence(federation)
        return self._known[method, rounds]


def kill_and_restart(
    folder: Path, method: str, victims: tuple[str, ...], kills: int, rounds: int, random: Random, tally: Counter[str]
) -> dict[str, Any]:
    """Returns what a federation ends with of which somebody is killed again and again, and started again at once."""
    with running(folder, method, rounds) as federation:
        done = 0
        while done < kills:
            # Now and then while it starts, or very soon after; else when it has worked for a while.
            name, reached = random.choice(victims), federation.rounds(federation.everybody[0])
            if random.random() < 0.8:
                more = min(rounds, reached + 1)
                federation.wait_for(lambda more=more: federation.rounds(federation.everybody[0]) >= more, "a round")
            time.sleep(random.uniform(0, 0.6))
            if any(process.exitcode == 0 for process in federation.processes.values()):
                break
            tally[f"killed: {federation.kill(name)}"] += 1
            federation.start(name)
            done += 1
        tally["kills"] += done
        federation.wait()
        return essence(federation)


def compare_killed(
    folder: Path, number: int, method: str, victims: tuple[str, ...], rounds: int, at_most: int = 6
) -> Counter[str]:
    """Returns when so many kills hit, and how federations went on that were killed at most six times each."""
    expected = Unbroken(folder)(method, rounds)
    tally: Counter[str] = Counter()
    for attempt in count():
        left = number - tally["kills"]
        if left <= 0:
            return tally
        place = folder / f"{method}-{victims[0]}-{attempt}"
        ended = kill_and_restart(place, method, victims, min(left, at_most), rounds, Random(attempt), tally)
        different = differences(expected, ended)
        tally["equal" if not different else "different"] += 1
        if different:
            print(place, *different, *absent_on_record(place), sep="\n  ")
    raise AssertionError


def kill_parties(folder: Path, number: int = 30) -> Counter[str]:
    """Kills parties that come back in time: the federation ends as the unbroken one."""
    return compare_killed(folder, number, "fedgkc", PARTIES, rounds=40)


def kill_servers(folder: Path, number: int = 15) -> Counter[str]:
    """Kills servers, which are resumed: the federation ends as the unbroken one."""
    return compare_killed(folder, number, "fedgkc", (SERVER,), rounds=40, at_most=5)


def kill_peers(folder: Path, number: int = 10) -> Counter[str]:
    """Kills peers that come back in time: the federation ends as the unbroken one."""
    return compare_killed(folder, number, "dfed_sst", PARTIES, rounds=30, at_most=5)


def kill_for_good(folder: Path, number: int = 5, rounds: int = 40) -> Counter[str]:
    """Kills a party that nobody waits for and starts it again: it is absent for a while, on record, and comes back."""
    tally: Counter[str] = Counter()
    for attempt in range(number):
        random = Random(attempt)
        with running(folder / f"absent-{attempt}", "fedgkc", rounds, comeback=0) as federation:
            reached = random.randrange(2, rounds // 2)
            federation.wait_for(lambda: federation.rounds(SERVER) >= reached, "the middle")  # noqa: B023
            time.sleep(random.uniform(0, 0.2))
            name = random.choice(PARTIES)
            tally[f"killed: {federation.kill(name)}"] += 1
            time.sleep(random.uniform(0.2, 0.5))
            federation.start(name)
            federation.wait()
            tally[judge(federation, name)] += 1
    return tally


def freeze(folder: Path, number: int, method: str, rounds: int, most: int = 5, longest: float = 5.0) -> Counter[str]:
    """Freezes parties or peers for longer than anybody waits: absent in these rounds, and back afterwards."""
    tally: Counter[str] = Counter()
    for attempt in count():
        left = min(most, number - tally["freezes"])
        if left <= 0:
            return tally
        random, name = Random(attempt), PARTIES[attempt % len(PARTIES)]
        place = folder / f"frozen-{method}-{attempt}"
        with running(place, method, rounds, timeout=1.5, comeback=0) as federation:
            witness = next(other for other in federation.everybody if other != name)
            done = 0
            while done < left:
                reached = min(federation.rounds(witness) + random.randrange(2, 5), rounds)
                federation.wait_for(lambda: federation.rounds(witness) >= reached, "a few rounds")  # noqa: B023
                time.sleep(random.uniform(0, 0.2))
                if reached >= rounds - 5:
                    break
                tally[f"frozen: {federation.freeze(name, random.uniform(2, longest))}"] += 1
                done += 1
            tally["freezes"] += max(done, 1)
            federation.wait()
            tally[judge(federation, name, witness, done)] += 1
    raise AssertionError


def kill_at_the_end(folder: Path, number: int = 8, rounds: int = 4) -> Counter[str]:
    """Kills somebody when the last round has just been run: all end with what they end with otherwise."""
    tally: Counter[str] = Counter()
    expected = {method: Unbroken(folder)(method, rounds) for method in ("fedgkc", "dfed_sst")}
    for attempt in range(number):
        random, method = Random(attempt), ("fedgkc", "dfed_sst")[attempt % 4 == 3]
        with running(folder / f"end-{attempt}", method, rounds, comeback=10) as federation:
            name, witness = random.choice(federation.everybody), federation.everybody[0]
            federation.wait_for(lambda: federation.rounds(witness) >= rounds, "the last round")  # noqa: B023
            time.sleep(random.uniform(0, 0.15))
            phase = federation.kill(name)
            tally[f"killed: {name if name == SERVER else 'a party'}, {phase}"] += 1
            if (federation.out / name / "result.json").exists():  # then it is over for this one
                del federation.processes[name]
            else:
                federation.start(name)
            federation.wait()
            different = differences(expected[method], essence(federation))
            tally["equal" if not different else f"different: {different}"] += 1
    return tally


def judge(federation: Federation, name: str, witness: str = SERVER, faults: int = 1) -> str:
    """Returns how a federation ended: whether one was absent at most once for every fault, and nobody else was."""
    missed = absences(federation, witness)
    others = [party for party, stretches in missed.items() if party != name and stretches]
    if others:
        print(federation.out, missed, federation.logs()[-3000:])
        return f"others were absent: {others}"
    if not missed[name]:
        return "nobody was absent"
    if len(missed[name]) > faults:
        print(federation.out, missed)
        return "absent more often than harmed"
    back = missed[name][-1][-1] < federation.file.experiment.rounds
    return "absent and back" if back else "absent to the end"


def freeze_parties(folder: Path, number: int = 10) -> Counter[str]:
    return freeze(folder, number, "fedgkc", rounds=60)


def freeze_peers(folder: Path, number: int = 5) -> Counter[str]:
    return freeze(folder, number, "dfed_sst", rounds=40)


CAMPAIGNS: dict[str, Callable[..., Counter[str]]] = {
    "parties": kill_parties,
    "absent": kill_for_good,
    "frozen": freeze_parties,
    "servers": kill_servers,
    "peers": kill_peers,
    "frozen_peers": freeze_peers,
    "end": kill_at_the_end,
}


def main() -> None:
    number = [int(word) for word in sys.argv[2:3]]
    for what in sys.argv[1:2] or CAMPAIGNS:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            tally = CAMPAIGNS[what](Path(folder), *number)
        print(f"{what}: {dict(sorted(tally.items()))}, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
