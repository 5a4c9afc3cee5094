import shutil

import pytest

from graft.experiments.studies import STUDIES
from tests.experiments.tiny_study import TINY, reproduce_plan, tiny_plan

SMALL = {"dataset": "synthetic:nodes=120,degree=6,classes=3,features=8", "clients": 3, "width": 8, "rounds": 6}


@pytest.fixture
def small():
    """An experiment that takes milliseconds."""
    return dict(SMALL)


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The study "tiny", reproduced in an empty folder."""
    monkeypatch.setitem(STUDIES, "tiny", TINY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny_runs(tmp_path_factory):
    """The results of the twelve experiments of the study, computed once."""
    out = tmp_path_factory.mktemp("tiny") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STUDIES, "tiny", TINY)
        outcome, _ = reproduce_plan(tiny_plan(out))
    assert (outcome.ran, outcome.failures) == (12, {})
    return out


@pytest.fixture
def finished(tiny, tiny_runs):
    """The plan of the study with a copy of all its results."""
    shutil.copytree(tiny_runs, tiny / "out")
    return tiny_plan()


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    """The folder of a sweep, and what was printed: FedAvg, and FedProx with three values of mu, on two seeds."""
    from tests.experiments.small_sweep import FLAGS, call

    out = tmp_path_factory.mktemp("sweep") / "out"
    result = call("--methods", "fedavg,fedprox", "--grid", "mu=0,0.01,1", "--seeds", "2", *FLAGS, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.output
