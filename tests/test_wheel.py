"""A wheel of this source, installed: it holds all files, has types, and takes somebody's method in an empty folder."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

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
TYPED = """
from dataclasses import dataclass
from pathlib import Path

import graft
from graft import Clients, Fleet, Method, Result, Server, Tree, step, weighted_mean


@dataclass(frozen=True)
class FedMean(Method):
    def start_server(self, server: Server) -> None:
        server.state.model = server.initial()

    def round(self, server: Server, clients: Clients) -> None:
        replies = clients.ask(self.train, server.state.model)
        server.state.model = weighted_mean(replies.model, replies.weight)

    @step
    def train(self, fleet: Fleet, model: Tree) -> Tree:
        fleet.state.model = fleet.fit(model, lambda weights, batch: batch.label_loss(weights))
        return Tree(model=fleet.state.model, weight=fleet.weight)


def best_round(out: Path, seed: int) -> int:
    result: Result = graft.run(FedMean(), "digits", clients=3, rounds=2, seed=seed, out=out)
    return result.best_round
"""
MISTYPED = """
import graft

graft.run(1.5, "digits")
number: int = graft.run("fedavg", "digits").finished.upper()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of this source."""
    source, wheels = (tmp_path_factory.mktemp(name) for name in ("source", "wheels"))
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    shutil.rmtree(source / "src" / "graft_fgl.egg-info", ignore_errors=True)
    call_pip("wheel", "--no-build-isolation", "--wheel-dir", wheels, source)
    [path] = wheels.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder that the wheel was installed into."""
    target = tmp_path_factory.mktemp("target")
    call_pip("install", "--target", target, wheel)
    return target


def call_pip(command, *arguments):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", command, "--no-deps", "--no-index"]
    subprocess.run([*pip, *arguments], check=True, capture_output=True)


@pytest.fixture
def graft(installed, tmp_path):
    """Calls the installed command in an empty folder; what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}

    def call(*arguments, folder=".", code=0):
        here = tmp_path / folder
        here.mkdir(exist_ok=True)
        command = [sys.executable, *arguments] if arguments[0] == "-c" else [installed / "bin" / "graft", *arguments]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return call


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("graft/")}
    source = ROOT / "src"
    files = {path for path in (source / "graft").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert inside == {path.relative_to(source).as_posix() for path in files}
    assert {"graft/py.typed", "graft/experiments/reports/templates/page.html"} <= inside


def test_an_installed_wheel_runs_and_writes_a_report(graft, installed, tmp_path):
    assert str(installed) in graft("-c", "import graft; print(graft.__file__)")
    graft("run", "--method", "fedavg", "--dataset", DATASET, "--clients", "3", "--rounds", "2", "--out", "run")
    (tmp_path / "run" / "report.html").unlink(missing_ok=True)
    graft("report", "run")
    assert "</html>" in (tmp_path / "run" / "report.html").read_text()


@pytest.fixture
def check_types(installed, tmp_path):
    """Calls mypy, strict, on a project in an environment that has the wheel; returns its exit code and what it said."""
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    [packages] = (tmp_path / "environment").glob("lib/python*/site-packages")
    (tmp_path / "project").mkdir()

    def call(text, *folders):
        (packages / "folders.pth").write_text("".join(f"{folder}\n" for folder in (installed, *folders)))
        (tmp_path / "project" / "project.py").write_text(text)
        python = tmp_path / "environment" / "bin" / "python"
        options = ["--strict", "--python-executable", python, "--cache-dir", tmp_path / "cache"]
        done = subprocess.run(
            [sys.executable, "-m", "mypy", *options, "project.py"],
            cwd=tmp_path / "project", capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return call


def test_mypy_knows_the_types_of_an_installed_graft(check_types, installed):
    assert check_types(TYPED) == (0, "Success: no issues found in 1 source file\n")
    code, said = check_types(MISTYPED)
    assert code == 1
    assert '"run" has incompatible type "float"' in said
    assert '"bool" has no attribute "upper"' in said
    (installed / "graft" / "py.typed").rename(installed / "hidden")
    try:
        assert "missing library stubs or py.typed marker" in check_types(TYPED)[1]
    finally:
        (installed / "hidden").rename(installed / "graft" / "py.typed")


@pytest.mark.slow
def test_mypy_knows_them_beside_the_types_of_pytorch(check_types):
    packages = sysconfig.get_path("purelib")
    assert check_types(TYPED, packages) == (0, "Success: no issues found in 1 source file\n")
    assert (
        "incompatible types in assignment"
        in check_types(
            "from graft import Fleet\n\ndef count(fleet: Fleet) -> None:\n    nodes: str = fleet.weight\n", packages
        )[1].lower()
    )


@pytest.mark.slow
def test_a_method_outside_the_repository_runs_resumes_reports_and_keeps_the_contract(graft, tmp_path):
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
    graft("report", "../stopped", folder="elsewhere")
    assert "fedsoft" in (tmp_path / "stopped" / "report.html").read_text()
    assert "keeps all" in graft("check-method", "../soft.py:FedSoft", folder="elsewhere")


@pytest.mark.slow
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
