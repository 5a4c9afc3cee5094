"""Faults of a real Ray cluster: processes are killed, and runs go on, or stop with a sentence and a good checkpoint.

Where exactly a worker is lost, and what is told of it, is tested without Ray in tests/experiments/test_recovery.py.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

import graft
from graft.errors import GraftWarning, InputError, RunError
from graft.experiments.run_directory import RunDirectory
from tests.damage import essence
from tests.ray_kills import Killer, is_running, processes_below, wait_for_checkpoint, wait_until_gone

pytest.importorskip("ray")

SETTINGS = dict(
    dataset="synthetic:nodes=200,degree=4,classes=3,features=8",
    clients=4,
    width=8,
    rounds=12,
    checkpoint_every=4,
    participation=0.7,
    partition="random",
    engine="ray",
    workers=2,
)
FOR_EVER = SETTINGS | {"rounds": 1_000_000, "checkpoint_every": 1}


@pytest.fixture
def pools(monkeypatch):
    """The pools of all runs of a test; a test may kill their workers and nobody else's."""
    from graft.engines import ray

    opened = []

    class Noted(ray.RayPool):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            opened.append(self)

    monkeypatch.setattr(ray, "RayPool", Noted)
    return opened


def command(place: Path, settings: dict) -> list[str]:
    """Returns `graft run` as somebody would type it."""
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return [str(Path(sys.executable).with_name("graft")), "run", "--method", "fedavg", "--out", str(place), *flags]


@pytest.fixture
def start(tmp_path):
    """Starts `graft run` with a Ray of its own, in a process group of its own, and kills it in the end."""
    started = []

    def begin(settings=FOR_EVER, place=tmp_path / "run"):
        driver = subprocess.Popen(
            command(place, settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        started.append(driver)
        return driver, place

    yield begin
    for driver in started:
        driver.kill()
        driver.wait()
        driver.stdout.close()


def child(driver, name):
    """Returns the process of Ray's with this name that a driver has started."""
    [process] = [process for process, text in processes_below(driver.pid).items() if name in text.split(" ")[0]]
    return process


@pytest.mark.usefixtures("ray_cluster")
def test_a_run_whose_worker_is_killed_ends_equal(tmp_path, pools):
    expected = essence(graft.run("fedavg", **SETTINGS))
    with Killer(lambda: [pools[-1].processes()[1]], 6, 0.0) as killer, pytest.warns(GraftWarning) as caught:
        result = graft.run("fedavg", out=tmp_path / "run", callbacks=[killer.wait_for], **SETTINGS)
    assert result.summary["recoveries"] == [4]
    assert [str(entry.message) for entry in caught if entry.category is GraftWarning] == [
        "A worker has ended; going on from the checkpoint of round 4 (1 of 3 failures)."
    ]
    assert essence(result) == expected
    assert essence(graft.run("fedavg", **SETTINGS | {"seed": 1})) != expected


@pytest.mark.usefixtures("ray_cluster")
def test_a_cluster_without_room_says_so(tmp_path, monkeypatch):
    from graft.engines import ray

    monkeypatch.setattr(ray, "START_SECONDS", 1.0)
    with pytest.raises(RunError, match=r"no place for \d of 2 workers with 5 cores each: it has 6 cores in all\."):
        graft.run("fedavg", out=tmp_path / "run", **SETTINGS, cpus_per_worker=5)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.filterwarnings("ignore::graft.errors.GraftWarning")
def test_a_cluster_that_has_no_room_any_more_ends_the_run_with_a_good_checkpoint(tmp_path, pools, monkeypatch):
    from graft.engines import ray

    def victims():
        monkeypatch.setattr(ray, "START_SECONDS", 1.0)
        pools[-1]._resources = ray.Resources(cpus=50)  # of the worker that is started in its place
        return [pools[-1].processes()[0]]

    with Killer(victims, 6, 0.0) as killer, pytest.raises(RunError) as stopped:
        graft.run("fedavg", out=tmp_path / "run", callbacks=[killer.wait_for], **SETTINGS)
    assert re.search("no place for 1 of 2 workers.* The checkpoint of round 4 in .* is good.$", str(stopped.value))


def test_a_cluster_that_is_not_there_says_so(tmp_path, monkeypatch):
    import ray

    if ray.is_initialized():
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
        with pytest.raises(InputError, match=r"There is no Ray cluster at '(ray://)?127\.0\.0\.1:1': .*refused\.$"):
            graft.run("fedavg", out=tmp_path / "run", **SETTINGS, address=address)


@pytest.mark.slow
def test_ctrl_c_lets_the_round_finish_and_leaves_nothing_running(start):
    driver, place = start(FOR_EVER | {"checkpoint_every": 1000})
    wait_for_checkpoint(place)
    time.sleep(2)
    below = processes_below(driver.pid)
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to Ray's processes too
    output, _ = driver.communicate(timeout=60)
    number = RunDirectory(place).last_checkpoint()
    assert f"Stopped after round {number}; go on with: graft resume" in output
    assert driver.returncode == 1
    assert any("raylet" in text for text in below.values())
    assert wait_until_gone(below) == []


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_killed_driver_leaves_nothing_running_and_its_run_goes_on_elsewhere(start):
    driver, place = start(SETTINGS | {"rounds": 60})
    wait_for_checkpoint(place, 4)
    below = processes_below(driver.pid)
    driver.kill()
    driver.wait()
    assert any("raylet" in text for text in below.values())
    assert wait_until_gone([process for process, text in below.items() if "Agent" not in text], 20) == []
    assert not (place / "result.json").exists()
    assert essence(graft.resume(place, address="")) == essence(graft.run("fedavg", **SETTINGS | {"rounds": 60}))


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once_and_leaves_nothing_running(start):
    driver, place = start(FOR_EVER | {"epochs": 20_000})  # a round takes minutes
    wait_for_checkpoint(place)
    time.sleep(2)
    below = processes_below(driver.pid)
    os.killpg(driver.pid, signal.SIGINT)
    time.sleep(2)
    assert is_running(driver.pid)
    os.killpg(driver.pid, signal.SIGINT)
    driver.communicate(timeout=60)
    assert driver.returncode
    assert wait_until_gone(below) == []
    assert RunDirectory(place).last_checkpoint() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "sentence"),
    [("gcs_server", "The Ray cluster is gone: nobody answers"), ("raylet", "The Ray cluster is gone: none of its")],
)
def test_a_cluster_that_dies_ends_the_run_with_a_sentence(start, victim, sentence):
    driver, place = start()
    wait_for_checkpoint(place, 1)
    below = processes_below(driver.pid)
    os.kill(child(driver, victim), signal.SIGKILL)
    output, _ = driver.communicate(timeout=120)
    number = RunDirectory(place).last_checkpoint()
    assert re.search(rf"graft: {sentence}.* The checkpoint of round {number} in ", output.replace("\n", " ")), output
    assert driver.returncode == 1
    assert wait_until_gone(below) == []


@pytest.mark.slow
@pytest.mark.parametrize(("what", "count"), [("workers", 20), ("nodes", 5), ("drivers", 5)])
def test_runs_that_lose_workers_nodes_or_drivers_end_equal(what, count):
    seed = Random().randrange(10**6)
    campaign = [sys.executable, "-m", "tests.ray_kills", what, str(count), str(seed)]
    ended = subprocess.run(campaign, capture_output=True, text=True, timeout=1800, check=False)
    outcomes = [line for line in ended.stdout.splitlines() if re.match(r"(worker|node|driver) \d+ ", line)]
    assert ended.returncode == 0, f"seed {seed}: {ended.stdout}{ended.stderr}"
    assert len(outcomes) == count
    assert all(": equal" in line and "left" not in line for line in outcomes), f"seed {seed}: {outcomes}"
