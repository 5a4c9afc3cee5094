"""Sweeps: which experiments they have, what they are called, and that each is the run that it would be alone."""

import shutil
import signal
import subprocess
import sys
import time

import pytest

import graft
from graft.experiments.sweep.design import Design, parse_grid
from graft.experiments.sweep.plan import plan_runs, suit
from tests.experiments.small_sweep import DATA, FLAGS, VALUES, call
from tests.experiments.test_many_runs import record_of


def refused(result, *words):
    assert result.exit_code == 2, result.output
    message = " ".join(result.stderr.split())
    for word in words:
        assert word in message, message


def rows_of(design):
    runs = plan_runs(suit(design.variants()), lambda row, column, seed: f"{row}/{column}/{seed}")
    return list(dict.fromkeys(run.row for run in runs))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# What a sweep has.


def test_a_setting_gives_a_row_for_each_value_to_the_methods_that_have_it(swept):
    out, text = swept
    sweep = graft.Sweep.load(out)
    assert sweep.comparison.rows == ["fedavg", "fedprox, mu=0", "fedprox, mu=0.01", "fedprox, mu=1"]
    assert {row.name for row in (out / "runs").iterdir()} == {
        "fedavg",
        "fedprox_mu=0",
        "fedprox_mu=0.01",
        "fedprox_mu=1",
    }
    assert all(set(cell) == {0, 1} for cell in sweep.comparison.cells.values())
    assert "8/8" in text
    assert "fedprox, mu=0.01 on" in text
    grid = {"mu": [0, 0.01, 1]}
    assert len(rows_of(Design(methods=["fedprox"], grid=grid, values=VALUES))) == 3
    assert len(rows_of(Design(methods=["fedavg"], values=VALUES))) == 1


def test_a_run_of_a_sweep_is_the_run_that_it_would_be_alone(swept, tmp_path):
    out, _ = swept
    graft.run("fedprox", DATA, settings={"mu": 0.01}, seed=1, out=tmp_path / "alone", **VALUES)
    (folder,) = (out / "runs" / "fedprox_mu=0.01").glob("*-seed1")
    assert record_of(folder) == record_of(tmp_path / "alone")
    (other,) = (out / "runs" / "fedprox_mu=0.01").glob("*-seed0")
    assert record_of(other)[1] != record_of(tmp_path / "alone")[1]


def test_several_processes_find_what_one_finds(swept, tmp_path):
    out, _ = swept
    flags = [flag for flag in FLAGS[:-2] if flag != "--jobs"]
    result = call("--method", "fedavg", "--seeds", "2", *flags, "--jobs", "2", "--out", tmp_path / "there")
    assert result.exit_code == 0, result.output
    here, there = (sorted((folder / "runs" / "fedavg").iterdir()) for folder in (out, tmp_path / "there"))
    assert [path.name for path in here] == [path.name for path in there]
    assert [record_of(path) for path in here] == [record_of(path) for path in there]


def test_values_that_are_the_same_are_run_once():
    design = Design(methods=["fedavg", "fedavg"], grid={"rounds": [2, 2], "dropout": [0, 0.0, 0.5]}, values=VALUES)
    assert rows_of(design) == ["fedavg, dropout=0", "fedavg, dropout=0.5"]


def test_methods_data_fields_and_plugs_can_be_in_the_grid():
    values = {**VALUES, "dataset": DATA}
    assert rows_of(Design(methods=[], grid={"method": ["fedavg", "local"]}, values=values)) == ["fedavg", "local"]
    plugged = Design(methods=["fedavg"], grid={"plug": ["", "fedtad"], "student_steps": [1, 2]}, values=values)
    assert rows_of(plugged) == ["fedavg", "fedavg+fedtad, student_steps=1", "fedavg+fedtad, student_steps=2"]
    runs = plan_runs(
        suit(Design(methods=["fedavg"], grid={"clients": [2, 3]}, values=values).variants()), lambda *parts: repr(parts)
    )
    assert [run.column for run in runs] == [f"{DATA}, clients=2", f"{DATA}, clients=3"]


def test_what_only_some_methods_can_do_is_left_out_for_the_others_and_refused_if_none_can():
    values = {**VALUES, "dataset": DATA, "topology": "ring", "clients": 4}
    runs = plan_runs(suit(Design(methods=["gossip", "fedavg"], values=values).variants()), lambda *parts: repr(parts))
    assert [run.experiment.topology for run in runs] == ["ring", ""]
    with pytest.raises(graft.InputError, match="takes no topology"):
        rows_of(Design(methods=["fedavg", "local"], values=values))
    with pytest.raises(graft.InputError, match="has no global model"):
        rows_of(Design(methods=["local"], values={**VALUES, "score": "global"}))


def test_grids_are_lists_and_values_with_commas_are_toml():
    assert parse_grid(["mu=0,0.01,1", "models=gcn,gat"]) == {"mu": [0, 0.01, 1], "models": ["gcn", "gat"]}
    assert parse_grid(['models=["gcn,gat", "gcn"]'])["models"] == ["gcn,gat", "gcn"]
    assert parse_grid(["learning-rate=0.1"]) == {"learning_rate": [0.1]}
    assert parse_grid(["plug=,fedtad"])["plug"] == ["", "fedtad"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--grid", "muu=1,2", "--methods", "fedprox"], ["'muu'", "did you mean 'mu'", "the settings are mu"]),
        (["--grid", "mu=0,1", "--method", "fedavg"], ["'mu'", "neither a field"]),
        (["--set", "mu=1", "--method", "fedavg"], ["'mu'", "neither a field"]),
        (["--grid", "round=1,2"], ["did you mean 'rounds'"]),
        (["--grid", "mu"], ["--grid name=value,value"]),
        (["--grid", "mu="], ["--grid name=value,value"]),
        (["--grid", "mu=1", "--grid", "mu=2"], ["given twice"]),
        (["--grid", "seed=1,2"], ["seed cannot be in the grid", "--seeds"]),
        (["--grid", "dropout=0.1,2"], ["dropout is 2", "below 1"]),
        (["--grid", "dropout=0.1,,0.2"], ["empty value"]),
        (["--grid", "optimizer=adam,adamw"], ["'optimizer'", "'adamw'"]),
        (["--grid", "dataset=digits,core"], ["'core'", "did you mean 'cora'"]),
        (["--methods", "fedavg,fedprx"], ["fedprx", "did you mean 'fedprox'"]),
        (["--methods", ","], ["--methods is empty"]),
        (["--methods", "fedavg", "--method", "local"], ["--method and --methods were both given"]),
        (["--grid", "width=8,16", "--width", "4"], ["--width and --grid width were both given"]),
        (["--methods", "fedavg", "--grid", "method=local"], ["methods are given twice"]),
        (["--seeds", "none"], ["--seeds is 'none'"]),
        (["--seeds", "2", "--seed", "1"], ["--seed and --seeds were both given"]),
        (["--jobs", "0"], ["jobs is 0"]),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(flags, words, elsewhere):
    refused(call(*flags), *words)
    assert list(elsewhere.iterdir()) == []


def test_a_value_that_does_not_fit_its_method_is_refused_before_anything_runs(elsewhere):
    refused(call("--method", "fedprox", "--grid", "mu=0,-1", *FLAGS), "mu is -1", "at least 0")
    refused(call("--methods", "fedavg,fedgta", "--models", "gcn,gat", *FLAGS), "needs one architecture")
    assert list(elsewhere.iterdir()) == []


def test_help_and_mistakes_import_no_pytorch():
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom graft.cli import app\n"
        "for words in (['--help'], ['--grid', 'nu=1'], ['--grid', 'dropout=7'], ['--methods', 'fedprx']):\n"
        "    assert CliRunner().invoke(app, ['sweep', *words]).exit_code == (0 if words == ['--help'] else 2), words\n"
        "assert not {'torch', 'polars', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_file_is_what_all_runs_share_and_settings_of_its_method_are_not_forced_on_others(swept):
    (file,) = (swept[0] / "runs" / "fedprox_mu=1").glob("*-seed1/experiment.toml")
    result = call(file, "--methods", "local,fedprox", "--seeds", "1", "--epochs", "1", "--jobs", "1", "--out", "out")
    assert result.exit_code == 0, result.output
    runs = {run.summary["method"]: run.experiment for run in graft.Sweep.load("out").runs}
    assert runs["fedprox"]["settings"] == {"mu": 1.0}
    assert runs["local"]["settings"] == {}
    assert {(values["seed"], values["epochs"], values["width"]) for values in runs.values()} == {
        (0, 1, VALUES["width"])
    }


# Going on.


def test_the_same_command_runs_what_is_missing_and_more_seeds_may_be_added(swept, tmp_path):
    out, _ = swept
    shutil.copytree(out, tmp_path / "out")
    flags = ["--methods", "fedavg,fedprox", "--grid", "mu=0,0.01,1", *FLAGS, "--out", tmp_path / "out"]
    folders = sorted((tmp_path / "out" / "runs").glob("*/*"))
    before = [record_of(folder) for folder in folders]
    (folders[0] / "result.json").write_text("{}")
    shutil.rmtree(folders[3])
    result = call(*flags, "--seeds", "2")
    assert result.exit_code == 0, result.output
    assert "2/2" in result.output
    assert "6 of 8 runs were finished before this call" in result.output
    assert [record_of(folder) for folder in folders] == before
    result = call(*flags, "--seeds", "0,1,4")
    assert "4/4" in result.output
    refused(call(*flags, "--seeds", "2"), "holds another sweep", "seeds is 0,1,4 there and 0,1 here")


def test_a_folder_of_something_else_or_of_another_sweep_is_refused_with_what_differs(swept, tmp_path):
    out, _ = swept
    base = ["--seeds", "2", *FLAGS, "--out", out]
    refused(call("--methods", "fedavg", *base), "methods is fedavg,fedprox there and fedavg here")
    refused(call("--methods", "fedavg,fedprox", "--grid", "mu=0,2", *base), "grid.mu is 0,0.01,1 there and 0,2 here")
    other = ["--methods", "fedavg,fedprox", "--grid", "mu=0,0.01,1", "--epochs", "2"]
    refused(call(*other, *base), "experiment.epochs is not given there and 2 here")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "table.md").write_text("years of work")
    refused(call("--method", "local", *FLAGS, "--out", "thesis"), "something else than a sweep")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["table.md"]


def test_a_failed_run_is_reported_the_others_run_and_it_is_tried_again():
    words = ["--method", "local", "--grid", "clients=3,500", "--seeds", "1", *FLAGS[:2], "--rounds", "1", "--jobs", "1"]
    result = call(*words, "--partition", "random", "--out", "out")
    assert result.exit_code == 1
    assert "failed: local on" in result.stderr
    assert "clients=500, seed 0" in result.stderr
    assert "local" in result.stdout
    assert len(graft.Sweep.load("out").runs) == 1
    again = call(*words, "--partition", "random", "--out", "out")
    assert (again.exit_code, "1/1" in again.output) == (1, True)


def test_a_sweep_that_is_killed_goes_on(tmp_path):
    words = [
        "--methods",
        "fedavg,local",
        "--grid",
        "epochs=1,2,3",
        "--seeds",
        "4",
        *FLAGS,
        "--out",
        str(tmp_path / "out"),
    ]
    command = [sys.executable, "-c", "from graft.cli import main; main()", "sweep", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        for _ in range(3600):  # three minutes, on a busy machine
            if len(list(tmp_path.glob("out/runs/*/*/result.json"))) >= 3:
                break
            time.sleep(0.05)
            assert process.poll() is None, process.stderr.read()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    finished = len(list(tmp_path.glob("out/runs/*/*-seed?/result.json")))
    assert 3 <= finished < 24
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert len(graft.Sweep.load(tmp_path / "out").runs) == 24
    assert not list(tmp_path.glob("out/runs/*/*.part"))


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(monkeypatch):
    from graft.experiments import many_runs

    whole, runs = many_runs.run_experiment, []

    def second_is_interrupted(*arguments, **options):
        runs.append(1)
        if len(runs) == 2:
            options["callbacks"] = [lambda _: signal.raise_signal(signal.SIGINT)]
        return whole(*arguments, **options)

    monkeypatch.setattr(many_runs, "run_experiment", second_is_interrupted)
    result = call("--method", "local", "--seeds", "3", *FLAGS, "--out", "out")
    assert result.exit_code == 1
    assert "Stopped; the same command goes on from here." in result.output
    assert [run.seed for run in graft.Sweep.load("out").runs] == [0]
    assert "2/2" in call("--method", "local", "--seeds", "3", *FLAGS, "--out", "out").output


# With models.


def test_models_are_kept_where_they_are_asked_for_and_half_a_run_goes_on(tmp_path):
    flags = ["--method", "fedprox", "--seeds", "1", *FLAGS, "--out", "out", "--keep-models"]
    assert call(*flags).exit_code == 0
    (folder,) = tmp_path.glob("out/runs/fedprox/*-seed0")
    assert graft.load_result(folder).client(0).predict().probabilities.shape[1] == 3
    before = record_of(folder)
    (folder / "result.json").unlink()
    assert "1/1" in call(*flags).output
    assert record_of(folder) == before
    refused(call(*flags[:-1]), "keep_models is True there and False here")
