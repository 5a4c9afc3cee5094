"""A run whose workers are lost goes back to its last checkpoint and ends as if nothing had happened.

Workers are plain objects of this process here, which are lost when a test says so; tests/engines/test_faults.py kills
real ones.
"""

import itertools
import json
import os
import re
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import pytest
from typer.testing import CliRunner

import graft
from graft.cli import app
from graft.cli.run_state import RunState
from graft.engines.cluster import Cluster
from graft.engines.failures import ClusterLost, WorkerLost, persist
from graft.engines.worker import Worker
from graft.errors import GraftWarning, InputError, RunError
from graft.experiments import engines
from graft.experiments import run as runs
from graft.experiments.engines import Host
from graft.experiments.following import FollowedRun
from graft.experiments.run_directory import RunDirectory
from graft.methods.fedavg import FedAvg
from graft.testing.local_pool import LocalPool
from tests.damage import essence

SETTINGS = dict(
    dataset="synthetic:nodes=60,degree=4,classes=3,features=6",
    clients=4,
    width=4,
    rounds=7,
    checkpoint_every=3,
    participation=0.7,
    device="cpu",
    threads=1,
    partition="random",
    engine="ray",
    workers=2,
)
ROUNDS = list(range(1, 8))


class FragilePool(LocalPool):
    """Loses a worker at the calls whose numbers are in `die_at`, and all of them at the call `gone`."""

    def __init__(self, workers=2):
        super().__init__(workers)
        self.log = []  # the names of all calls
        self.die_at, self.gone, self.full = set(), None, False
        self.lost = set()

    def call(self, worker, name, *arguments):
        number = len(self.log)
        self.log.append(name)
        if number in self.die_at:
            self.lost.add(worker)
        if worker in self.lost:
            return WorkerLost("A worker of the cluster has ended: it was killed.")
        if self.gone is not None and number >= self.gone:
            return ClusterLost("The Ray cluster is gone: nobody answers at head.")
        return super().call(worker, name, *arguments)

    def gather(self, calls):
        for result in calls:
            if isinstance(result, Exception):
                raise result
        return calls

    def replace_lost(self):
        lost = sorted(self.lost)
        if self.full and lost:
            raise ClusterLost("The cluster has no place for 1 of 2 workers.")
        for worker in lost:
            self.workers[worker] = Worker()
        self.lost.clear()
        return lost


@pytest.fixture
def pool(monkeypatch):
    """A pool that stands for Ray's."""
    fragile = FragilePool()

    @contextmanager
    def host(experiment):
        def open_engine(setup):
            return persist(lambda: Cluster(setup, fragile), fragile.replace_lost, experiment.max_failures)

        yield Host("cpu", lambda: 10**9, open_engine, 1)

    monkeypatch.setitem(engines.HOSTS, "ray", host)
    return fragile


@pytest.fixture(scope="module")
def unbroken():
    """The essence of a run that lost nobody."""
    with pytest.MonkeyPatch.context() as patch:
        calls = FragilePool()

        @contextmanager
        def host(_):
            yield Host("cpu", lambda: 10**9, lambda setup: Cluster(setup, calls), 1)

        patch.setitem(engines.HOSTS, "ray", host)
        yield essence(graft.run("fedavg", **SETTINGS))


def count_calls(pool, folder):
    """Returns how many calls a run with a record makes, and resets the pool."""
    graft.run("fedavg", out=folder, **SETTINGS)
    count = len(pool.log)
    pool.log.clear()
    return count


@pytest.mark.filterwarnings("ignore::graft.errors.GraftWarning")
@pytest.mark.parametrize("scored", ["all", "participants"])
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_a_run_that_loses_a_worker_at_any_call_ends_equal(pool, tmp_path, scored, every):
    """In a round, a checkpoint, a scoring, while models are copied, at the very end."""
    settings = SETTINGS | {"evaluate_clients": scored}
    expected = essence(graft.run("fedavg", out=tmp_path / "whole", **settings))
    went_back = set()
    for number in range(0, len(pool.log), every):
        pool.log.clear()
        pool.die_at = {number}
        place = tmp_path / f"run{number}"
        result = graft.run("fedavg", out=place, **settings)
        assert essence(result) == expected, f"call {number}"
        RunDirectory(place).read_record()
        went_back.update(result.summary.get("recoveries", []))
    assert went_back >= {0, 3, 6}


@pytest.mark.filterwarnings("ignore::graft.errors.GraftWarning")
def test_a_run_without_a_record_begins_anew(pool, unbroken):
    graft.run("fedavg", **SETTINGS)
    for number in range(2, len(pool.log), 9):
        pool.log.clear()
        pool.die_at = {number}
        assert essence(graft.run("fedavg", **SETTINGS)) == unbroken


@pytest.mark.filterwarnings("ignore::graft.errors.GraftWarning")
@pytest.mark.parametrize("method", ["fedgkc", "dfed_sst", "fedtgp"])
def test_other_methods_go_back_too(pool, tmp_path, method):
    expected = essence(graft.run(method, **SETTINGS))
    pool.log.clear()
    pool.die_at = {40}
    result = graft.run(method, out=tmp_path / "run", **SETTINGS)
    assert result.summary["recoveries"]
    assert essence(result) == expected


@pytest.mark.filterwarnings("ignore::graft.errors.GraftWarning")
def test_a_worker_that_is_lost_while_another_is_replaced_is_replaced_too(pool, unbroken, tmp_path):
    count = count_calls(pool, tmp_path / "whole")
    for second in (1, 2, 3, 5, 8, 12):
        pool.log.clear()
        pool.die_at = {count // 2, count // 2 + second}
        result = graft.run("fedavg", out=tmp_path / f"run{second}", **SETTINGS)
        assert essence(result) == unbroken


def test_a_negative_control_a_state_that_is_not_restored_is_seen(pool, unbroken, tmp_path, monkeypatch):
    count = count_calls(pool, tmp_path / "whole")
    monkeypatch.setattr(Cluster, "restore", lambda *_: None)
    pool.die_at = {count - 12}
    with pytest.warns(GraftWarning, match="A worker has ended"):
        result = graft.run("fedavg", out=tmp_path / "run", **SETTINGS)
    assert essence(result) != unbroken


class Kills(graft.Callback):
    """Loses a worker after some rounds, each time that they come or just once, and keeps what it was told."""

    def __init__(self, pool, rounds, *, once=True):
        self.pool, self.rounds, self.once = pool, set(rounds), once
        self.told = []

    def on_round(self, record):
        self.told.append(record["round"])
        if record["round"] in self.rounds:
            self.pool.lost.add(1)
            if self.once:
                self.rounds.discard(record["round"])

    def on_phase(self, phase):
        if phase == "replacing workers":
            self.told.append(phase)

    def on_recovery(self, reason, records):
        self.told.append((reason, len(records)))


def test_callbacks_and_the_result_are_told_how_it_went_on(pool, tmp_path):
    kills = Kills(pool, [2, 5])
    with pytest.warns(GraftWarning) as caught:
        result = graft.run("fedavg", out=tmp_path / "run", callbacks=[kills], **SETTINGS)
    reason = "A worker of the cluster has ended: it was killed."
    back = ["replacing workers", (reason, 0)], ["replacing workers", (reason, 3)]
    assert kills.told == [1, 2, *back[0], 1, 2, 3, 4, 5, *back[1], 4, 5, 6, 7]
    assert result.summary["recoveries"] == [0, 3]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["recoveries"] == [0, 3]
    assert [str(entry.message) for entry in caught if entry.category is GraftWarning] == [
        "A worker has ended; going on from the checkpoint of round 0 (1 of 3 failures).",
        "A worker has ended; going on from the checkpoint of round 3 (1 of 3 failures).",
    ]
    assert [record["round"] for record in result.rounds] == ROUNDS


@pytest.mark.usefixtures("pool")
def test_a_run_that_lost_nobody_says_nothing_of_it():
    assert "recoveries" not in graft.run("fedavg", **SETTINGS).summary


@pytest.mark.filterwarnings("ignore::graft.errors.GraftWarning")
@pytest.mark.parametrize(("allowed", "times"), [(0, "once"), (2, "3 times")])
def test_after_too_many_failures_a_run_stops_and_can_be_resumed(pool, unbroken, tmp_path, allowed, times):
    kills = Kills(pool, [5], once=False)
    place = tmp_path / "run"
    with pytest.raises(RunError) as stopped:
        graft.run("fedavg", out=place, callbacks=[kills], **SETTINGS, max_failures=allowed)
    assert str(stopped.value) == (
        f"Workers were lost {times} without a new checkpoint in between, and max_failures is {allowed}. The last time: "
        f"A worker of the cluster has ended: it was killed. The checkpoint of round 3 in {place} is good."
    )
    assert kills.told.count(5) == allowed + 1
    assert graft.load_result(place).client(0).round <= 5  # the best models are there
    pool.replace_lost()
    assert essence(graft.resume(place)) == unbroken


@pytest.mark.filterwarnings("ignore::graft.errors.GraftWarning")
def test_failures_are_forgotten_with_a_new_checkpoint(pool, tmp_path):
    result = graft.run("fedavg", out=tmp_path / "run", callbacks=[Kills(pool, [2, 5, 6])], **SETTINGS, max_failures=1)
    assert result.summary["recoveries"] == [0, 3, 6]


@pytest.mark.filterwarnings("ignore::graft.errors.GraftWarning")
@pytest.mark.parametrize(("fault", "sentence"), [("full", "has no place"), ("gone", "nobody answers")])
def test_a_cluster_that_is_full_or_gone_ends_the_run_with_a_good_checkpoint(pool, unbroken, tmp_path, fault, sentence):
    count = count_calls(pool, tmp_path / "whole")
    pool.die_at, pool.full = ({count // 2}, True) if fault == "full" else (set(), False)
    pool.gone = count // 2 if fault == "gone" else None
    place = tmp_path / "run"
    with pytest.raises(RunError, match=f"{sentence}.* The checkpoint of round 3 in {re.escape(str(place))} is good.$"):
        graft.run("fedavg", out=place, **SETTINGS)
    pool.full, pool.gone, pool.die_at = False, None, set()
    assert essence(graft.resume(place)) == unbroken


@pytest.mark.filterwarnings("ignore::graft.errors.GraftWarning")
def test_a_run_that_ends_while_workers_are_replaced_keeps_its_best_models(pool, unbroken, tmp_path, monkeypatch):
    place = tmp_path / "run"
    monkeypatch.setattr(runs, "begin_anew", stop_half_way(runs.begin_anew))
    with pytest.raises(KeyboardInterrupt):
        graft.run("fedavg", out=place, callbacks=[Kills(pool, [5])], **SETTINGS)
    assert graft.load_result(place).client(0).round <= 3
    assert essence(graft.resume(place)) == unbroken


def stop_half_way(begin_anew):
    def stopped(session):
        begin_anew(session)
        raise KeyboardInterrupt

    return stopped


def test_a_run_that_was_asked_to_stop_does_not_go_back(pool, unbroken, tmp_path):
    place = tmp_path / "run"

    def stop(record):
        if record["round"] == 4:
            pool.lost.add(0)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(RunError, match=r"it was killed\. The checkpoint of round 3 in .* is good\.$"):
        graft.run("fedavg", out=place, callbacks=[stop], **SETTINGS)
    pool.replace_lost()
    assert essence(graft.resume(place)) == unbroken


def test_trackers_are_told_of_every_round_once(pool, tmp_path):
    from graft.experiments.trackers.tracker import Tracker

    class Notes(Tracker):
        name, package = "notes", "json"

        def begin(self, _start, _kept):
            self.steps = []
            return {}

        def log(self, _numbers, step):
            self.steps.append(step)

        def end(self, summary, status):
            pass

    notes = Notes()
    with pytest.warns(GraftWarning, match="A worker has ended"):
        graft.run("fedavg", out=tmp_path / "run", callbacks=[notes, Kills(pool, [5])], **SETTINGS)
    assert notes.steps == ROUNDS


def test_a_view_forgets_the_rounds_that_come_again(unbroken):
    records = json.loads(unbroken)[1]
    straight, back = (RunState("run", 7, clients=range(4), phase="training", begun=1.0) for _ in range(2))
    for record in records:
        straight.see(record | {"seconds": 1.0})
    for record in itertools.chain(records[:5], [None], records[3:]):
        if record is None:
            back.go_back([entry | {"seconds": 1.0} for entry in records[:3]])
        else:
            back.see(record | {"seconds": 1.0})
    assert back == straight


@pytest.mark.filterwarnings("ignore::graft.errors.GraftWarning")
def test_who_watches_sees_the_record_begin_anew(pool, tmp_path):
    place = tmp_path / "run"
    seen = []

    class Watch(graft.Callback):
        def on_start(self, _start):
            self.run = FollowedRun(place)

        def on_round(self, _record):
            seen.extend((anew, [entry["round"] for entry in added]) for anew, added in self.run.new_rounds())

    graft.run("fedavg", out=place, callbacks=[Watch(), Kills(pool, [5])], **SETTINGS)
    assert seen == [*((False, [n]) for n in range(1, 6)), (True, [1, 2, 3, 4]), *((False, [n]) for n in (5, 6, 7))]


@dataclass(frozen=True)
class Counting(FedAvg):
    """Records the number of every try of a round before it asks anybody."""

    tries: ClassVar[list[int]] = []

    def round(self, server, clients):
        self.tries.append(server._number)
        server.record(**{f"try{len(self.tries)}": 1.0})
        super().round(server, clients)


def test_what_the_server_recorded_in_a_broken_round_is_forgotten(pool, tmp_path):
    with pytest.warns(GraftWarning, match="A worker has ended"):
        result = graft.run(Counting(), out=tmp_path / "run", callbacks=[Kills(pool, [4])], **SETTINGS)
    assert Counting.tries == [1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert [list(record["details"]) for record in result.rounds] == [[f"try{n}"] for n in (1, 2, 3, 6, 7, 8, 9)]


@pytest.mark.usefixtures("pool")
def test_a_run_may_go_on_at_another_address(unbroken, tmp_path):
    place = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        graft.run("fedavg", out=place, callbacks=[lambda record: 1 / (record["round"] - 5)], **SETTINGS)
    addresses = []
    at_last = graft.resume(place, address="auto", callbacks=[Address(addresses)])
    assert addresses == ["auto"]
    assert essence(at_last) == unbroken
    assert graft.load_result(place).rounds == RunDirectory(place).read_rounds()


class Address(graft.Callback):
    def __init__(self, addresses):
        self.addresses = addresses

    def on_start(self, start):
        self.addresses.append(start.experiment.address)


def test_an_address_is_refused_where_a_run_has_none(tmp_path):
    place = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        graft.run("fedavg", out=place, callbacks=[lambda _: 1 / 0], **SETTINGS | {"engine": "in_process"})
    with pytest.raises(InputError, match="is a run of the engine in_process, which has no address"):
        graft.resume(place, address="auto")
    told = CliRunner().invoke(app, ["resume", str(place), "--address", "auto"])
    assert told.exit_code == 2
    assert "which has no address" in told.output
