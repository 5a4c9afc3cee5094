"""`graft run --seeds`: run directories of several seeds that are compared, and what joining changes over seeds."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import graft
from graft.cli import app
from graft.experiments.verdicts import HELPS, HURTS, UNCLEAR, UNKNOWN, judge_pairs
from tests.experiments.test_many_runs import record_of

DATA = "synthetic:nodes=120,degree=6,classes=3,features=8"
SIZE = ["--width", "8", "--rounds", "2", "--threads", "1", "--jobs", "1"]
FLAGS = ["--method", "fedprox", "--dataset", DATA, "--clients", "3", "--partition", "random", *SIZE]


def call(*arguments):
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


def refused(result, *words):
    assert result.exit_code == 2, result.output
    message = " ".join(result.stderr.split())
    for word in words:
        assert word in message, message


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_seed_is_the_run_that_it_would_be_alone_with_its_models(elsewhere):
    result = call(*FLAGS, "--seeds", "0,3")
    assert result.exit_code == 0, result.output
    (root,) = (elsewhere / "runs").iterdir()
    assert {path.name for path in root.iterdir() if path.is_dir()} == {"seed-0", "seed-3"}
    single = [flag for flag in FLAGS if flag != "--jobs"][:-1]
    assert call(*single, "--seed", "3", "--out", "alone").exit_code == 0
    assert record_of(root / "seed-3") == record_of(elsewhere / "alone")
    assert record_of(root / "seed-0")[1] != record_of(elsewhere / "alone")[1]
    assert graft.load_result(root / "seed-3").client(0).predict().labels.shape == (40,)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_seeds_of_a_run_on_a_cluster_go_one_after_the_other(elsewhere):
    flags = [*FLAGS[:-2], "--seeds", "2", "--engine", "ray", "--out", "out"]
    refused(call(*flags, "--jobs", "2"), "one seed after the other", "graft sweep --engine ray")
    result = call(*flags)
    assert result.exit_code == 0, result.output
    assert call(*FLAGS[:-2], "--seed", "1", "--out", "alone").exit_code == 0
    there, here = (record_of(elsewhere / folder)[0]["accuracy"] for folder in ("out/seed-1", "alone"))
    assert there == pytest.approx(here, abs=1e-5)
    assert record_of(elsewhere / "out/seed-0")[0]["accuracy"] != pytest.approx(here, abs=1e-5)


def test_methods_that_are_compared_have_a_row_each_and_it_goes_on_where_it_stopped(elsewhere):
    flags = [*FLAGS, "--against", "local", "--seeds", "2", "--out", "out"]
    result = call(*flags)
    assert result.exit_code == 0, result.output
    runs = sorted(path.relative_to(elsewhere / "out") for path in elsewhere.glob("out/*/*"))
    assert list(map(str, runs)) == [f"{row}/seed-{seed}" for row in ("fedprox", "local", "majority") for seed in (0, 1)]
    assert "Every seed draws another partition" in result.output
    before = record_of(elsewhere / "out" / "local" / "seed-1")
    (elsewhere / "out" / "local" / "seed-1" / "result.json").unlink()
    result = call(*flags)
    assert "1/1" in result.output
    assert record_of(elsewhere / "out" / "local" / "seed-1") == before
    refused(call(*flags, "--epochs", "7"), "exists already", "--overwrite")
    again = call(*flags, "--epochs", "7", "--overwrite")
    assert again.exit_code == 0, again.output
    assert json.loads((elsewhere / "out/local/seed-1/result.json").read_text())["experiment"]["epochs"] == 7


def test_clients_with_their_own_graphs_get_verdicts_over_seeds(elsewhere):
    generator = np.random.default_rng(0)
    for name in ("alpha", "beta"):
        edges = generator.integers(0, 60, (2, 150))
        np.savez(elsewhere / f"{name}.npz", x=generator.random((60, 4)), y=generator.integers(0, 2, 60), edges=edges)
    flags = ["--graphs", "alpha.npz", "beta.npz", "--method", "fedavg", *SIZE]
    result = call(*flags, "--against", "local", "--seeds", "3", "--out", "out")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "Does joining help?" in text
    assert "of the mean over 3 seeds" in text
    assert "alpha" in text


def test_a_verdict_over_runs_is_that_of_their_mean_difference():
    better = [(0.8 + step, 0.6 + step / 2) for step in (0.0, 0.01, 0.02)]
    verdict = judge_pairs("alpha", "accuracy", better)
    assert verdict.verdict == HELPS
    assert verdict.difference == pytest.approx(0.205)
    assert verdict.low < 0.205 < verdict.high
    assert judge_pairs("alpha", "log_loss", better).verdict == HURTS  # where less is better
    assert judge_pairs("alpha", "accuracy", [(0.8, 0.6), (0.6, 0.8), (0.7, 0.71)]).verdict == UNCLEAR
    assert judge_pairs("alpha", "accuracy", [(0.8, 0.6), (None, 0.6)]).verdict == UNKNOWN
    assert judge_pairs("alpha", "accuracy", [(None, None)]).federated is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seeds", "few"], ["--seeds is 'few'"]),
        (["--seeds", "2", "--seed", "1"], ["--seed and --seeds"]),
        (["--seeds", "2", "--against", "local", "--contribution"], ["leave --seeds out"]),
        (["--jobs", "2"], ["add --seeds"]),
        (["--seeds", "2", "--jobs", "0"], ["jobs is 0"]),
        (["--seeds", "2", "--against", "local,local"], ["names a method twice"]),
    ],
)
def test_mistakes_are_refused_before_anything_runs(flags, words, elsewhere):
    refused(call(*flags), *words)
    assert list(elsewhere.iterdir()) == []
