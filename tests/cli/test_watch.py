"""`graft watch`: what it says of runs that are finished, go on, stopped or are damaged, and when it ends."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

import graft
from graft.cli import app
from graft.experiments import following
from graft.experiments.following import FINISHED, RUNNING, STOPPED, FollowedRun, FollowedRuns, FollowedTuning, follow
from graft.experiments.many_runs import exclusive
from graft.experiments.progress_log import logged
from graft.files import Lock, is_locked

SETTINGS = dict(
    dataset="synthetic:nodes=60,degree=4,classes=3,features=6", clients=3, width=4, rounds=6, checkpoint_every=2
)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("watched") / "run"
    graft.run("fedavg", out=out, **SETTINGS)
    return out


@pytest.fixture
def run(finished_run, tmp_path):
    """A finished run, to be changed."""
    shutil.copytree(finished_run, tmp_path / "run")
    return tmp_path / "run"


def watch(*arguments):
    return CliRunner().invoke(app, ["watch", *map(str, arguments)])


def said(*arguments, code=0):
    result = watch(*arguments)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def lines_of(run):
    return (run / "rounds.jsonl").read_text().splitlines(keepends=True)


# One run.


def test_a_finished_run_is_told_with_its_best_round(run):
    output = said(run, "--once")
    summary = json.loads((run / "result.json").read_text())
    assert f"{run} is finished after 6 rounds; its report: graft report {run}" in output
    best = 100 * summary["accuracy"]["test"]
    assert f"accuracy: best in round {summary['best_round']}: validation" in output
    assert f"test {best:.1f} %" in output
    assert "kB up" in output


def test_a_run_that_stopped_says_how_to_go_on(run):
    (run / "result.json").unlink()
    (run / "rounds.jsonl").write_text("".join(lines_of(run)[:4]))
    assert f"{run} stopped or crashed after round 4 of 6" in said(run, "--once")
    assert f"go on with: graft resume {run}" in said(run, code=1)


def test_a_run_whose_lock_is_held_is_running(run):
    (run / "result.json").unlink()
    with Lock(run):
        assert f"{run} is running, round 6 of 6" in said(run, "--once")
    (run / "rounds.jsonl").unlink()
    with Lock(run):
        assert f"{run} is running, before its first round" in said(run, "--once")
    assert "stopped or crashed before its first round" in said(run, "--once")


def test_somebody_who_looks_keeps_nobody_from_running(run):
    looking = True

    def look():
        while looking:
            is_locked(run / ".lock")

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(20):
            with Lock(run):
                assert is_locked(run / ".lock")
    finally:
        looking = False
        watcher.join()
    assert not is_locked(run / ".lock")


@pytest.mark.parametrize(("ends_well", "code", "words"), [(True, 0, "is finished after 6"), (False, 1, "graft resume")])
def test_a_look_ends_when_the_run_ends(run, ends_well, code, words):
    result, lines = (run / "result.json").read_text(), lines_of(run)
    (run / "result.json").unlink()
    (run / "rounds.jsonl").write_text(lines[0])
    held = threading.Event()

    def play():
        with Lock(run):
            held.set()
            for line in lines[1:]:
                time.sleep(0.1)
                with (run / "rounds.jsonl").open("a") as file:
                    file.write(line[:20])
                    file.flush()
                    time.sleep(0.05)
                    file.write(line[20:])
            if ends_well:
                (run / "result.json").write_text(result)

    player = threading.Thread(target=play)
    player.start()
    held.wait()
    output = said(run, "--interval", "0.1", code=code)
    player.join()
    assert words in output
    assert "fedavg: round 6/6 validation" in output
    assert "cannot be read" not in output


def test_only_what_is_new_is_read_and_a_line_that_is_being_written_is_none(run):
    lines = lines_of(run)
    path = run / "rounds.jsonl"
    path.write_text("".join(lines[:2]) + lines[2][:30])
    followed = FollowedRun(run)

    def new():
        return [(anew, [record["round"] for record in records]) for anew, records in followed.new_rounds()]

    assert new() == [(False, [1, 2])]
    assert new() == []
    with path.open("a") as file:
        file.write(lines[2][30:] + lines[3])
    assert new() == [(False, [3, 4])]
    shorter = run / "shorter"  # as a resumed run replaces its rounds by those before the checkpoint
    shorter.write_text("".join(lines[:3]))
    shorter.replace(path)
    assert new() == [(True, [1, 2, 3])]
    path.unlink()
    assert new() == [(True, [])]
    assert followed.damaged == 0


@pytest.mark.parametrize(
    "damage",
    [
        b"not json\n",
        b'{"round": "seven"}\n',
        b"\xff\xfe\x00\n",
        b"[1]\n",
        b'{"round": 3, "metrics": 5}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_damage_is_left_out_and_counted(run, damage):
    lines = [line.encode() for line in lines_of(run)]
    (run / "rounds.jsonl").write_bytes(b"".join([*lines[:2], damage, *lines[3:]]))
    output = said(run, "--once")
    assert "1 line of" in output
    assert "is finished after 6 rounds" in output
    (run / "result.json").write_bytes(damage)
    (run / "preparation.json").write_bytes(damage)
    assert "is finished after 6 rounds" in said(run, "--once")


def test_names_of_clients_are_read(run):
    assert list(FollowedRun(run).names()) == [0, 1, 2]
    values = json.loads((run / "preparation.json").read_text())
    (run / "preparation.json").write_text(json.dumps({**values, "names": ["a", "b", "c"]}))
    assert FollowedRun(run).names() == ["a", "b", "c"]


def test_a_run_of_another_machine_goes_on_while_it_writes_although_its_lock_is_not_seen(run, monkeypatch):
    (run / "result.json").unlink()
    assert FollowedRun(run).status() == STOPPED
    monkeypatch.setattr(following, "kind_of_disk", lambda _: "nfs4")
    now = time.time()
    os.utime(run / "rounds.jsonl", (now, now))
    assert FollowedRun(run).status() == RUNNING
    for name in ("rounds.jsonl", "experiment.toml"):
        os.utime(run / name, (now - 1000, now - 1000))
    assert FollowedRun(run).status() == STOPPED


def test_the_kind_of_disk_is_told():
    assert following.kind_of_disk(following.Path("/proc")) in ("proc", "")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (None, "There is no folder"),
        ({}, "holds no run, sweep, study or tuning"),
        ({"experiment.toml": "rounds = 'many'"}, "Setting 'rounds' of an experiment is 'many'"),
        ({"experiment.toml": "= ="}, "not a readable TOML file"),
    ],
)
def test_a_bad_folder_is_one_sentence(tmp_path, files, words):
    if files is not None:
        (tmp_path / "place").mkdir()
        for name, content in files.items():
            (tmp_path / "place" / name).write_text(content)
    result = watch(tmp_path / "place", "--once")
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_an_interval_of_nothing_is_refused(run):
    for interval in ("0", "-1", "nan"):
        result = watch(run, "--interval", interval)
        assert result.exit_code == 2
        assert "it must be at least 0.1 seconds" in result.stderr


def test_it_needs_no_pytorch_and_writes_nothing(run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom graft.cli import app\n"
        f"result = CliRunner().invoke(app, ['watch', {str(run)!r}])\n"
        "assert result.exit_code == 0, result.output\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


# Many runs.


def test_a_sweep_is_told_with_its_last_runs_and_failures(run, tmp_path):
    sweep = tmp_path / "sweep"
    shutil.copytree(run, sweep / "runs" / "fedavg" / "digits-seed0")
    tell = logged(sweep, 3)
    tell({"cell": "fedavg on digits, seed 0", "done": 1, "total": 3, "test": 0.5, "seconds": 2.0})
    tell({"cell": "fedavg on digits, seed 1", "done": 2, "total": 3, "error": "no memory", "seconds": 1.0})
    with (sweep / "progress.jsonl").open("a") as file:
        file.write('damaged\n[]\n{"cell": "half')
    with exclusive(sweep, "graft sweep"):
        output = said(sweep, "--once")
    assert f"{sweep} is running: 1 of 3 runs done, 1 failed." in output
    assert "ended: fedavg on digits, seed 0: 50.0 % in 2 s" in output
    assert "failed: fedavg on digits, seed 1: no memory" in output
    output = said(sweep, code=1)
    assert f"{sweep} is not finished, and no process works on it: 1 of 3 runs done, 1 failed." in output
    assert "The command that began it goes on from there." in output


def test_runs_that_go_on_are_shown_with_their_rounds(run, tmp_path):
    for name in ("done", "going", "left"):
        shutil.copytree(run, tmp_path / "demo" / name)
    for name in ("going", "left"):
        (tmp_path / "demo" / name / "result.json").unlink()
    with Lock(tmp_path / "demo" / "going"):
        output = said(tmp_path / "demo", "--once")
    assert "is running: 1 run done" in output
    assert "running: going: round 6/6" in output
    output = said(tmp_path / "demo", "--once")
    assert f"Go on with: graft resume {tmp_path / 'demo' / 'going'}; graft resume" in output


def test_a_sweep_that_is_over_ends_the_look(run, tmp_path, monkeypatch):
    monkeypatch.setattr("graft.cli.watch.PATIENCE", 0.2)
    shutil.copytree(run, tmp_path / "demo" / "fedavg")
    assert "is finished: 1 run done." in said(tmp_path / "demo", "--interval", "0.1")


def test_a_real_sweep_can_be_looked_at(tmp_path):
    graft.sweep("fedavg", SETTINGS["dataset"], seeds=2, clients=3, width=4, rounds=2, out=tmp_path / "sweep", jobs=1)
    output = said(tmp_path / "sweep")
    assert "is finished: 2 of 2 runs done." in output
    assert isinstance(follow(tmp_path / "sweep"), FollowedRuns)


def test_the_cells_of_a_study_are_counted(tmp_path):
    folder = tmp_path / "study" / "runs" / "cora-10"
    folder.mkdir(parents=True)
    (folder / "fedavg-0.json").write_text(json.dumps({"experiment": {}, "summary": {}}))
    (folder / "local-0.json").write_text(json.dumps({"experiment": {}, "error": "diverged"}))
    followed = follow(tmp_path / "study")
    seen = followed.look()
    assert (seen.done, seen.failures, seen.status) == (1, {"cora-10 local-0": "diverged"}, FINISHED)
    (folder / "local-0.json").write_text(json.dumps({"experiment": {}, "summary": {}}))
    os.utime(folder / "local-0.json", (1, 1))
    assert (followed.look().done, followed.look().failures) == (2, {})


TRIAL = {"method": "fedprox", "metric": "accuracy", "reason": "", "seconds": 1.0, "total": 4}


def test_a_tuning_is_followed_trial_by_trial(tmp_path):
    (tmp_path / "trials.jsonl").touch()
    tell = logged(tmp_path, 4)
    for number, (state, score) in enumerate([("complete", 0.5), ("pruned", 0.25), ("failed", None)]):
        reason = "diverged" if state == "failed" else ""
        tell({**TRIAL, "trial": number, "state": state, "validation": score, "reason": reason, "done": number + 1})
    with exclusive(tmp_path, "graft tune"):
        output = said(tmp_path, "--once")
    assert "is running: 2 of 4 trials done, 1 failed." in output
    assert "ended: fedprox, trial 0: 50.0 % in 1 s" in output
    assert "ended: fedprox, trial 1: pruned" in output
    assert "failed: fedprox, trial 2: diverged" in output
    assert isinstance(follow(tmp_path), FollowedTuning)


def test_a_tuning_that_is_over_is_read_of_its_summary(tmp_path):
    rows = [{"trial": n, "state": "complete", "validation": 0.5, "seconds": 1.0} for n in range(2)]
    content = {"trials": 2, "methods": {"fedprox": {"history": rows}}}
    (tmp_path / "tuning.json").write_text(json.dumps(content))
    assert "is finished: 2 of 2 trials done." in said(tmp_path)
    (tmp_path / "tuning.json").write_text('{"trials": "two", "methods": [3]}')
    assert "0 trials done" in said(tmp_path, "--once")
