"""Many runs in one call: what is kept of each, and what happens when one fails, a worker dies or somebody stops it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import graft
from graft.errors import RunError
from graft.experiments.build import build_federation
from graft.experiments.experiment import make_experiment
from graft.experiments.given import Given
from graft.experiments.many_runs import (
    LONGEST_NAME,
    Order,
    apart_from_main,
    cached_federation,
    file_name,
    group_orders,
    run_orders,
    write_record,
)
from graft.experiments.run import run_experiment
from graft.experiments.run_directory import RunDirectory
from graft.options import parse_seeds

SECONDS = 60  # within which whatever is waited for must have happened


def order(path, data="a"):
    return Order(f"run {Path(path).name}", str(path), {}, data)


def write_file(order, _, check):
    """Stands for a run that takes no time, fails, kills its process, or goes on until it is stopped."""
    name = Path(order.path).name
    if name == "fails":
        raise RunError("The disk\nis full.")
    if name == "dies":
        os._exit(1)
    Path(order.path).write_text(str(os.getpid()))
    while name == "endless":
        check({})
        time.sleep(0.01)
    return {"test": 0.5}


def gone(process):
    """Returns whether a process has ended within the time."""
    for _ in range(10 * SECONDS):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


# Orders.


def test_orders_on_the_same_data_stay_together_unless_workers_would_idle():
    orders = [order(f"{data}{number}", data) for data in "abcd" for number in range(3)]
    assert [len(chunk) for chunk in group_orders(orders, 1)] == [3] * 4
    assert [len(chunk) for chunk in group_orders(orders, 2)] == [3] * 4
    assert {entry.data for entry in group_orders(orders, 2)[0]} == {"a"}
    assert len(group_orders(orders, 4)) == 8
    assert len(group_orders(orders, 100)) == 12
    assert group_orders([], 4) == []


def test_a_failure_is_one_line_and_the_others_run(tmp_path):
    messages = []
    outcome = run_orders(
        [order(tmp_path / name) for name in ("fails", "runs")], write_file, jobs=1, report=messages.append
    )
    assert outcome.failures == {"run fails": "The disk is full."}
    assert (outcome.ran, outcome.stopped) == (2, False)
    assert [(entry["cell"], entry["done"], entry["total"]) for entry in messages] == [
        ("run fails", 1, 2),
        ("run runs", 2, 2),
    ]
    assert messages[1]["test"] == 0.5
    assert "error" not in messages[1]


def test_workers_run_what_this_process_would_and_one_that_dies_is_reported(tmp_path):
    orders = [order(tmp_path / str(number), str(number)) for number in range(3)]
    outcome = run_orders(orders, write_file, jobs=2)
    assert (outcome.ran, outcome.failures) == (3, {})
    assert str(os.getpid()) not in {Path(entry.path).read_text() for entry in orders}
    outcome = run_orders([order(tmp_path / "dies"), order(tmp_path / "again", "b")], write_file, jobs=2)
    assert "a worker process died" in outcome.failures["run dies"]
    assert not outcome.stopped


def test_ctrl_c_stops_the_workers(tmp_path):
    orders = [order(tmp_path / name, name) for name in ("first", "endless")]

    def interrupt(_):
        while not (tmp_path / "endless").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    outcome = run_orders(orders, write_file, jobs=2, report=interrupt)
    assert (outcome.ran, outcome.stopped, outcome.failures) == (1, True, {})
    assert gone(int((tmp_path / "endless").read_text()))


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = (
        "from tests.experiments.test_many_runs import order, write_file\n"
        "from graft.experiments.many_runs import run_orders\n"  # no guard around what starts processes
        f"run_orders([order({str(tmp_path / 'endless')!r}), order({str(tmp_path / 'b')!r}, 'b')], write_file, jobs=2)\n"
    )
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "script.py")], env=environment, stderr=subprocess.PIPE)
    try:
        for _ in range(10 * SECONDS):
            if (tmp_path / "endless").exists() and (tmp_path / "endless").read_text():
                break
            time.sleep(0.1)
            assert parent.poll() is None, parent.stderr.read()
        worker = int((tmp_path / "endless").read_text())
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert gone(worker)


def test_a_script_is_in_its_place_again_after_workers_were_started():
    main = sys.modules["__main__"]
    with apart_from_main():
        assert sys.modules["__main__"] is not main
    assert sys.modules["__main__"] is main


# Records.


def record_of(folder):
    """Returns what a run directory says of a run, but for its times and where it ran."""
    result = json.loads((folder / "result.json").read_text())
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for entry in (result, *rounds):
        entry.pop("seconds")
        entry.pop("checksum")
    result.pop("peak_memory_bytes")
    return result, rounds


def test_a_record_without_models_is_that_of_any_run(tmp_path, small):
    experiment = make_experiment({**small, "method": "fedprox"})
    federation = graft.build_federation(experiment)
    given = Given(federation=federation)
    run_experiment(experiment, tmp_path / "full", given=given)
    write_record(tmp_path / "light", run_experiment(experiment, given=given), federation)
    assert record_of(tmp_path / "light") == record_of(tmp_path / "full")
    other = run_experiment(make_experiment({**small, "method": "fedprox", "seed": 1}), given=given)
    write_record(tmp_path / "other", other, federation)
    assert record_of(tmp_path / "other") != record_of(tmp_path / "full")
    for name in ("experiment.toml", "partition.json"):
        assert (tmp_path / "light" / name).read_bytes() == (tmp_path / "full" / name).read_bytes()
    assert RunDirectory(tmp_path / "light").has_result()
    assert {path.name for path in (tmp_path / "light").iterdir()} == {
        *("experiment.toml", "partition.json", "result.json", "rounds.jsonl")
    }


def test_a_record_is_written_whole_or_not_at_all(tmp_path, small, monkeypatch):
    experiment = make_experiment({**small, "method": "local"})
    federation = graft.build_federation(experiment)
    result = run_experiment(experiment, given=Given(federation=federation))

    def full_disk(*_):
        raise RunError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write_result", full_disk)
        with pytest.raises(RunError, match="full"):
            write_record(tmp_path / "run", result, federation)
    assert not (tmp_path / "run").exists()
    write_record(tmp_path / "run", result, federation)
    write_record(tmp_path / "run", result, federation)  # in the place of an earlier one
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# Names and seeds.


def test_long_names_are_cut_and_stay_different():
    names = ["x" * 300 + end for end in "ab"]
    assert len({file_name(name) for name in names}) == 2
    assert all(len(file_name(name)) <= LONGEST_NAME for name in names)
    assert file_name("fedprox, mu=0.01") == "fedprox_mu=0.01"


def test_seeds_are_a_number_or_a_list():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("0,3") == (0, 3)
    assert parse_seeds("7,") == (7,)
    assert parse_seeds("1,1,2") == (1, 2)
    for wrong in ("few", "0", "-1,2", "", "1000000000"):
        with pytest.raises(graft.InputError, match="--seeds"):
            parse_seeds(wrong)


@pytest.mark.parametrize(
    "dataset", ["tables", "banks.toml", "shards", "generated:nodes=60,degree=3,classes=3,features=4"]
)
def test_data_of_many_runs_are_those_of_a_single_one(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tables").mkdir()
    rows = "\n".join(f"{node},{node % 7},{'xy'[node % 2]}" for node in range(60))
    Path("tables/nodes.csv").write_text(f"id,age,label\n{rows}\n")
    Path("tables/edges.csv").write_text("source,target\n" + "\n".join(f"{n},{(n + 3) % 60}" for n in range(60)))
    Path("banks.toml").write_text('[clients]\none = "tables"\ntwo = "tables"\n')
    graft.write_shards(build_federation(make_experiment({"dataset": "tables", "clients": 2})), "shards")
    experiment = make_experiment({"dataset": dataset} | ({} if dataset in ("shards", "banks.toml") else {"clients": 2}))
    assert cached_federation(experiment, {}).data_hash == build_federation(experiment).data_hash
