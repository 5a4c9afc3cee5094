"""Many runs on a Ray cluster: what processes find, whatever dies, and files of machines that share no disk."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from typer.testing import CliRunner

import graft
from graft.cli import app
from graft.engines.tasks import RETRIES
from graft.experiments import cluster_runs
from graft.experiments.cluster_runs import pack_code, run_missing
from graft.experiments.experiment import make_experiment, own_files
from graft.experiments.make_method import make_method
from graft.experiments.many_runs import Order
from graft.experiments.reproduce import make_plan, reproduce
from graft.experiments.run_cluster import RunCluster
from graft.experiments.studies import STUDIES
from graft.experiments.studies.study import Variant
from tests.experiments.small_sweep import DATA, VALUES
from tests.experiments.test_many_runs import SECONDS, gone, record_of
from tests.experiments.tiny_study import TINY, accuracies, tiny_plan
from tests.ray_kills import processes_below

HERE = RunCluster()
METHOD = """\
    from dataclasses import dataclass

    from graft.methods.fedprox import FedProx


    @dataclass(frozen=True)
    class Mine(FedProx):
        \"\"\"Somebody's own method.\"\"\"
"""

SLOW = """\
    import time
    from dataclasses import dataclass
    from pathlib import Path

    from graft.methods.fedavg import FedAvg


    @dataclass(frozen=True)
    class Slow(FedAvg):
        \"\"\"Takes its time, if it is patient, as long as a file is there.\"\"\"

        folder: str = "."
        patient: bool = False

        def round(self, server, clients):
            if self.patient:
                with Path(self.folder, "seen").open("a") as file:
                    file.write(".")
                if Path(self.folder, "wait").exists():
                    time.sleep(0.2)
            super().round(server, clients)
"""


def order(name, folder, data="a"):
    """An order for the functions below; what they leave for the test is in a folder that all of them see."""
    return Order(f"run {name}", str(folder / "results" / name), {"settings": {"folder": str(folder)}}, data)


def leave_a_file(order, _, check):
    """Stands for a run that takes no time, fails, dies always or once, or goes on until it is stopped."""
    name, folder = Path(order.path).name, Path(order.experiment["settings"]["folder"])
    with (folder / f"{name}.begun").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if name == "fails":
        raise graft.RunError("The disk\nis full.")
    if name == "dies" or (name == "dies-once" and len((folder / f"{name}.begun").read_text().split()) == 1):
        os._exit(1)
    while name == "endless":
        check({})
        time.sleep(0.01)
    Path(order.path).parent.mkdir(exist_ok=True)
    Path(order.path).write_text(order.path)
    return {"test": 0.5}


def begun_by(folder, name):
    """Returns the processes that an order was begun in."""
    return [int(line) for line in (folder / f"{name}.begun").read_text().split()]


# What is found.


@pytest.mark.usefixtures("ray_cluster", "tiny")
def test_cells_of_a_study_are_those_of_the_process_pool_and_what_fails_is_told(finished, monkeypatch):
    rows = {**TINY.rows, "wild": Variant("fedavg", changes={"models": "gcn,mlp"})}
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, rows=rows))
    arguments = ["--seeds", "2", "--clients", "2", "--engine", "ray", "--jobs", "2", "--out", "there"]
    result = CliRunner().invoke(app, ["reproduce", "tiny", *arguments])
    assert result.exit_code == 1, result.output
    assert "wild seed 1: Method 'fedavg' needs one architecture" in result.stderr
    here, there = accuracies(finished), accuracies(tiny_plan("there", clients=(2,), methods=tuple(TINY.rows)))
    assert len(there) == 6
    assert there == {name: here[name] for name in there}
    assert len({str(accuracy) for accuracy in there.values()}) > 1  # the cells are not all one run


@pytest.mark.usefixtures("tiny")
def test_a_second_call_runs_nothing_and_starts_no_cluster(finished, monkeypatch):
    monkeypatch.setattr(cluster_runs, "cluster_for_tasks", None)
    outcome = reproduce(finished, cluster=HERE)
    assert (outcome.ran, outcome.skipped) == (0, 12)
    finished.cells[0].path.unlink()
    with pytest.raises(TypeError, match="NoneType"):
        reproduce(finished, cluster=HERE)


@pytest.mark.usefixtures("ray_cluster")
def test_a_sweep_on_a_cluster_is_the_sweep_in_processes(swept, tmp_path):
    values = {"grid": {"mu": [0, 0.01, 1]}, "seeds": 2, "out": tmp_path / "there", **VALUES}
    sweep = graft.sweep(["fedavg", "fedprox"], DATA, engine="ray", jobs=2, **values)
    assert (len(sweep.runs), sweep.failures) == (8, {})
    here, there = (sorted((folder / "runs").glob("*/*")) for folder in (swept[0], tmp_path / "there"))
    assert [path.name for path in here] == [path.name for path in there]
    records = [[without_device(record_of(folder)) for folder in folders] for folders in (here, there)]
    assert records[0] == records[1]
    assert records[0][0] != records[0][1]
    assert graft.sweep(["fedavg", "fedprox"], DATA, engine="ray", **values).outcome.ran == 0


def without_device(record):
    """Returns a record without the device by its name, which on a cluster is never "auto"."""
    result, rounds = record
    return {**result, "experiment": {**result["experiment"], "device": ""}}, rounds


# What dies.


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_orders_of_a_lost_worker_are_run_again_and_one_that_always_dies_fails_alone(tmp_path):
    orders = [order(name, tmp_path) for name in ("first", "dies-once", "dies", "fails", "last")]
    messages = []
    outcome = run_missing(orders, leave_a_file, HERE, jobs=1, report=messages.append)
    assert (outcome.ran, outcome.stopped) == (5, False)
    assert set(outcome.failures) == {"run dies", "run fails"}
    assert outcome.failures["run fails"] == "The disk is full."
    assert f"Its worker died {RETRIES + 1} times" in outcome.failures["run dies"]
    begun = {name: begun_by(tmp_path, name) for name in ("first", "dies-once", "dies", "last")}
    assert {name: len(processes) for name, processes in begun.items()} == {
        "first": 1,
        "dies-once": 2,
        "dies": RETRIES + 1,
        "last": 1,
    }
    assert begun["dies-once"][0] != begun["dies-once"][1]
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"first", "dies-once", "last"}
    assert [message["done"] for message in messages] == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("ray_cluster")
def test_ctrl_c_lets_tasks_stop_and_starts_no_other(tmp_path):
    orders = [order("first", tmp_path), order("endless", tmp_path, "b"), *(order(f"{n}", tmp_path, "c") for n in "123")]

    def interrupt(_):
        while not (tmp_path / "endless.begun").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    outcome = run_missing(orders, leave_a_file, HERE, jobs=2, report=interrupt)
    assert (outcome.ran, outcome.stopped, outcome.failures) == (1, True, {})
    assert not (tmp_path / "results" / "endless").exists()
    assert not (tmp_path / "3.begun").exists()


@pytest.mark.usefixtures("ray_cluster")
def test_a_stopped_run_comes_back_with_its_checkpoint_and_goes_on_from_there(tmp_path):
    (tmp_path / "slow.py").write_text(dedent(SLOW))
    (tmp_path / "wait").touch()
    method = f"{tmp_path / 'slow.py'}:Slow"
    values = {**VALUES, "rounds": 40, "settings": {"folder": str(tmp_path)}, "checkpoint_every": 1}

    def interrupt(_):
        while not (tmp_path / "seen").exists() or len((tmp_path / "seen").read_text()) < 8:
            time.sleep(0.01)
        raise KeyboardInterrupt

    options = {"grid": {"patient": [False, True]}, "seeds": [0], "out": tmp_path / "out", "keep_models": True, **values}
    begun = graft.sweep(method, DATA, engine="ray", jobs=2, report=interrupt, **options)
    assert (begun.outcome.stopped, len(begun.runs)) == (True, 1)
    (folder,) = (path.parent for path in tmp_path.glob("out/runs/*patient=True/*/checkpoint"))
    rounds = (folder / "rounds.jsonl").read_text().splitlines()
    assert 0 < len(rounds) < 40
    (tmp_path / "wait").unlink()
    sweep = graft.sweep(method, DATA, engine="ray", **options)
    assert (sweep.outcome.ran, len(sweep.runs)) == (1, 2)
    assert (folder / "rounds.jsonl").read_text().splitlines()[0] == rounds[0]  # its seconds too: it was not run again
    values["settings"] |= {"patient": True}
    graft.run(method, DATA, seed=0, out=tmp_path / "alone", **values)
    assert record_of(folder)[1] == record_of(tmp_path / "alone")[1]


@pytest.mark.slow
def test_a_study_goes_on_after_its_driver_was_killed(tiny, finished):
    script = dedent("""\
        import sys
        from graft.experiments.reproduce import make_plan, reproduce
        from graft.experiments.run_cluster import RunCluster
        from graft.experiments.studies import STUDIES
        from tests.experiments.tiny_study import TINY, tiny_plan

        def hear(message):
            print(message["cell"], flush=True)
            if sys.argv[1] == "wait":
                sys.stdin.read()

        STUDIES["tiny"] = TINY
        print(reproduce(tiny_plan("killed"), 2, hear, RunCluster()), flush=True)
    """)
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    driver = subprocess.Popen(
        [*command, "wait"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tiny
    )
    try:
        assert "seed" in driver.stdout.readline()
        below = processes_below(driver.pid)
        busy = [
            process for process, command in below.items() if "raylet/raylet" in command or "ray::perform" in command
        ]
        assert len(busy) > 1
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
    assert all(gone(process) for process in busy)
    done = [cell.done for cell in tiny_plan("killed").cells]
    assert True in done
    assert False in done
    again = subprocess.run(
        [*command, "go"], env=environment, check=True, capture_output=True, text=True, cwd=tiny, timeout=10 * SECONDS
    )
    assert f"ran={done.count(False)}, skipped={done.count(True)}" in again.stdout
    assert accuracies(tiny_plan("killed")) == accuracies(finished)


# What travels.


def write_graph(path):
    generator = np.random.default_rng(len(path.name))
    edges = generator.integers(0, 60, (2, 200))
    np.savez(path, x=generator.random((60, 4)), y=generator.integers(0, 2, 60), edges=edges)
    return path


@pytest.fixture
def gone_when_packed(monkeypatch, tmp_path):
    """A folder whose files are away while orders are on their way: a worker that shares no disk does not see them."""
    folder = tmp_path / "own"
    folder.mkdir()
    pack = cluster_runs.pack_orders

    def pack_and_hide(*arguments):
        if not folder.exists():
            folder.with_suffix(".away").rename(folder)
        packed = pack(*arguments)
        folder.rename(folder.with_suffix(".away"))
        return packed

    monkeypatch.setattr(cluster_runs, "pack_orders", pack_and_hide)
    return folder


@pytest.mark.usefixtures("ray_cluster")
def test_own_code_and_data_reach_workers_that_do_not_see_the_files(gone_when_packed, tmp_path):
    (gone_when_packed / "mine.py").write_text(dedent(METHOD))
    write_graph(gone_when_packed / "graph.npz")
    method, dataset = f"{gone_when_packed / 'mine.py'}:Mine", gone_when_packed / "graph.npz"
    values = {**VALUES, "seeds": [0, 1], "settings": {"mu": 0.5}}
    there = graft.sweep(method, dataset, engine="ray", jobs=1, out=tmp_path / "there", **values)
    assert (there.failures, len(there.runs)) == ({}, 2)
    gone_when_packed.with_suffix(".away").rename(gone_when_packed)
    here = graft.sweep(method, dataset, jobs=1, **values)
    assert [run.summary["per_client"] for run in there.runs] == [run.summary["per_client"] for run in here.runs]
    assert [run.hashes for run in there.runs] == [run.hashes for run in here.runs]


@pytest.mark.usefixtures("ray_cluster")
def test_graphs_of_clients_reach_workers_that_do_not_see_the_files(gone_when_packed, tmp_path):
    graphs = [str(write_graph(gone_when_packed / f"{name}.npz")) for name in ("alpha", "beta-two")]
    values = {"graphs": graphs, "width": 8, "rounds": 2, "threads": 1, "seeds": [0]}
    there = graft.sweep("fedavg", engine="ray", jobs=1, out=tmp_path / "there", **values)
    gone_when_packed.with_suffix(".away").rename(gone_when_packed)
    here = graft.sweep("fedavg", jobs=1, **values)
    assert len(there.runs) == 1
    assert there.runs[0].summary["per_client"] == here.runs[0].summary["per_client"]


def test_code_is_read_from_its_copy_only_where_the_file_is_not_there(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(dedent(METHOD))
    experiment = make_experiment({"method": f"{file}:Mine"})
    code, content = pack_code([experiment]), file.read_bytes()
    with code.unpacked(tmp_path / "copies"):
        assert own_files(experiment) == [file]
    file.unlink()
    with code.unpacked(tmp_path / "copies"):
        (copy,) = own_files(experiment)
        assert (copy.name, copy.read_bytes()) == ("mine.py", content)
        assert type(make_method(experiment.method, {}, "")).__name__ == "Mine"
    assert own_files(experiment) == [file]
    with pytest.raises(graft.InputError, match="there is no file"):
        make_method(experiment.method, {}, "")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_objects_given_in_python_are_run_on_the_cluster(tmp_path):
    from tests.experiments.test_sweep_in_python import Mine, Net, ring

    values = {**VALUES, "models": Net(), "seeds": [3]}
    sweep = graft.sweep([Mine(mu=0.5)], [ring(60), ring(80)], engine="ray", jobs=2, out=tmp_path / "out", **values)
    assert (sweep.failures, len(sweep.runs)) == ({}, 2)
    here = graft.sweep([Mine(mu=0.5)], [ring(60), ring(80)], **values)
    assert [run.summary["per_client"] for run in sweep.runs] == [run.summary["per_client"] for run in here.runs]
    with pytest.raises(graft.InputError, match="Callbacks hear of runs in this process"):
        graft.sweep("fedavg", DATA, engine="ray", callbacks=[print], **VALUES)


@pytest.mark.usefixtures("ray_cluster")
def test_methods_added_in_python_are_run_on_the_cluster(monkeypatch):
    from tests.experiments.test_sweep_in_python import Mine

    monkeypatch.setitem(graft.METHODS.added, "mine", Mine)
    sweep = graft.sweep("mine", DATA, engine="ray", jobs=1, seeds=1, **VALUES)
    assert (sweep.failures, len(sweep.runs)) == ({}, 1)
    assert sweep.runs[0].summary["method"] == "mine"


# What is refused.


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sweep", "--engine", "ray", "--device", "cuda"], "gpus_per_run=1"),
        (["sweep", "--engine", "ray", "--device", "cpu", "--gpus-per-run", "0.5"], "takes 0.5 GPU"),
        (["sweep", "--engine", "ray", "--gpus-per-run", "2"], "from 0 to 1"),
        (["sweep", "--engine", "ray", "--cpus-per-run", "0"], "cpus_per_run is 0"),
        (["sweep", "--engine", "ray", "--address", "ray://head:10001"], "Ray's client cannot follow many tasks"),
        (["sweep", "--cpus-per-run", "2"], "the engine must be ray"),
        (["tune", "fedprox", "--address", "auto"], "the engine must be ray"),
        (["reproduce", "fedgkc-architectures", "--gpus-per-run", "1"], "the engine must be ray"),
        (["sweep", "--grid", "engine=in_process,ray"], "of many runs each is one task"),
        (["sweep", "FILE"], "of many runs each is one task"),
        (["tune", "fedprox", "FILE"], "of many runs each is one task"),
        (["sweep", "--engine", "horses"], "'engine'"),
        (["reproduce", "fedgkc-architectures", "--engine", "horses"], "'engine'"),
    ],
)
def test_what_no_cluster_can_do_is_refused_before_anything_runs(words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "one.toml"
    file.write_text('method = "fedprox"\nengine = "ray"\n')
    result = CliRunner().invoke(app, [str(file) if word == "FILE" else word for word in words])
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_of_a_run_on_a_cluster_can_be_swept_there_as_a_whole(tmp_path, monkeypatch):
    from graft.cli.cluster_options import read_cluster

    in_file = {"engine": "ray", "workers": 4, "gpus_per_worker": 1.0, "address": "auto", "rounds": 3}
    assert read_cluster(in_file, {}, "ray", None, None, None) == ({"rounds": 3}, RunCluster("auto"))
    assert read_cluster(in_file, {}, "in_process", None, None, None)[1] is None
    with pytest.raises(graft.InputError, match="workers shares out the clients of a single run"):
        graft.sweep("fedavg", DATA, engine="ray", workers=2)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("ray_cluster")
def test_a_share_of_a_gpu_that_no_machine_has_is_refused():
    with pytest.raises(graft.InputError, match=r"No machine of the cluster has 1 core and 0\.5 GPU for a run"):
        graft.sweep("fedavg", DATA, engine="ray", gpus_per_run=0.5, **VALUES)


# Studies and tunings.


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.skipif(not os.environ.get("GRAFT_DATA"), reason="needs Cora under GRAFT_DATA")
def test_a_part_of_fedgkc_architectures_has_the_cells_of_the_process_pool(tmp_path):
    def run(folder, cluster):
        part = {"datasets": ["cora"], "clients": [5], "methods": ["local", "fedgkc"], "seeds": (0, 1), "rounds": 3}
        plan = make_plan("fedgkc-architectures", tmp_path / folder, **part, device="cpu")
        outcome = reproduce(plan, 2, cluster=cluster)
        assert (outcome.ran, outcome.failures) == (4, {})
        return {cell.name: (cell.read()["summary"]["per_client"], cell.read()["curve"]) for cell in plan.cells}

    there = run("there", HERE)
    assert there == run("here", None)
    assert len({str(cell) for cell in there.values()}) == 4
