"""Somebody else's method, in a file of theirs, with an installed wheel, in an empty folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
OWN = '''
"""FedSoft. A paper of our own."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from graft import Method, Reveals, Tree, map_tree, step, weighted_mean


@dataclass(frozen=True)
class FedSoft(Method):
    """The server moves only some way towards the mean of its clients' models."""

    one_model: ClassVar = True
    capturable: ClassVar = True
    reveals: ClassVar = {
        "train/model": Reveals("weights of a model trained on the client's data", model=True),
        "train/weight": Reveals("the client's vote in the mean: a number of nodes", ()),
    }

    softness: Annotated[float, Ge(0)] = 0.5  # share of the old model that is kept

    def start_server(self, server):
        server.state.model = server.initial()

    def round(self, server, clients):
        replies = clients.ask(self.train, server.state.model)
        mean = weighted_mean(replies.model, replies.weight)
        server.state.model = map_tree(
            lambda old, new: self.softness * old + (1 - self.softness) * new, server.state.model, mean
        )

    @step
    def train(self, fleet, model):
        fleet.state.model = fleet.fit(model, lambda weights, batch: batch.label_loss(weights))
        return Tree(model=fleet.state.model, weight=fleet.weight)

    def shared(self, server):
        return server.state.model
'''
STOPPED = """
import graft

def stop(record):
    if record["round"] == 2:
        raise KeyboardInterrupt

graft.run("soft.py:FedSoft", {dataset!r}, clients=3, rounds=4, checkpoint_every=1, out="stopped", callbacks=[stop])
"""
DATASET = "synthetic:nodes=90,degree=6,classes=3,features=8"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that a wheel of this source was installed into."""
    source, wheels, target = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "target"))
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    shutil.rmtree(source / "src" / "graft_fgl.egg-info", ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", wheels, source]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    [wheel] = wheels.glob("*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", target, wheel], check=True, capture_output=True
    )
    return target


@pytest.fixture
def graft(installed, tmp_path):
    """Calls the installed command in an empty folder; what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}

    def call(*arguments, folder=".", code=0):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        command = [sys.executable, *arguments] if arguments[0] == "-c" else [installed / "bin" / "graft", *arguments]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return call


def test_a_method_outside_the_repository_runs_resumes_reports_and_keeps_the_contract(graft, installed, tmp_path):
    assert str(installed) in graft("-c", "import graft; print(graft.__file__)")
    (tmp_path / "soft.py").write_text(OWN)
    settings = ["--dataset", DATASET, "--clients", "3", "--rounds", "4"]
    graft("run", "--method", "soft.py:FedSoft", *settings, "--out", "whole")
    graft("-c", STOPPED.format(dataset=DATASET), code=1 if sys.platform == "win32" else -2)
    assert not (tmp_path / "stopped" / "result.json").exists()
    graft("resume", "../stopped", folder="elsewhere")
    whole, resumed = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "stopped"))
    assert whole["method"] == "fedsoft"
    for name in ("accuracy", "per_client", "communication", "best_round"):
        assert whole[name] == resumed[name]
    assert "mean" in graft("report", "../whole", "../stopped", folder="elsewhere")
    assert "<svg" in (tmp_path / "stopped" / "report.html").read_text()
    assert "keeps all" in graft("check-method", "../soft.py:FedSoft", folder="elsewhere")


def test_an_installed_package_can_add_a_method(graft, installed, tmp_path):
    assert "fedsoft" not in graft("list", "methods")
    about = installed / "fedsoft-1.0.dist-info"
    about.mkdir()
    try:
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fedsoft\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[graft.methods]\nfedsoft = soft_package:FedSoft\n")
        (installed / "soft_package.py").write_text(OWN)
        assert "fedsoft           The server moves only some way" in graft("list", "methods")
        graft("run", "--method", "fedsoft", "--dataset", DATASET, "--clients", "3", "--rounds", "2", "--out", "run")
        assert json.loads((tmp_path / "run" / "result.json").read_text())["method"] == "fedsoft"
    finally:
        shutil.rmtree(about)
