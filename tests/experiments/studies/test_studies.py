"""The declared studies: possible experiments, and the papers' numbers as they are printed."""

from statistics import mean

import numpy as np
import pytest

from graft.experiments.experiment import make_experiment
from graft.experiments.make_method import make_method
from graft.experiments.reproduce import make_plan
from graft.experiments.studies import STUDIES, fedgkc
from graft.experiments.studies.study import Number, numbers


@pytest.fixture
def some_graphs(tmp_path, monkeypatch):
    """A data root with a file for each client of the studies whose clients bring their own graphs."""
    for study in STUDIES.values():
        for pattern in study.graphs.values():
            for client in range(study.clients[0]):
                path = tmp_path / pattern.replace("*", f"c{client}")
                path.parent.mkdir(exist_ok=True)
                np.savez(path, x=np.eye(4), edges=np.array([[0, 1], [1, 2]]), y=np.arange(4) % 2)
    monkeypatch.setenv("GRAFT_DATA", str(tmp_path))


@pytest.mark.usefixtures("some_graphs")
@pytest.mark.parametrize("name", STUDIES)
def test_every_declared_study_is_made_of_possible_experiments(name):
    plan = make_plan(name, seeds=(0,), device="cpu")
    study = plan.study
    assert len(plan.cells) == len(study.datasets) * len(study.clients) * len(study.rows)
    assert len({cell.path for cell in plan.cells}) == len(plan.cells)
    for cell in {cell.row: cell for cell in plan.cells}.values():  # what a plan resolved can be run as it stands
        experiment = make_experiment(cell.experiment)
        make_method(experiment.method, experiment.settings, experiment.plug)
    datasets, names = {*study.datasets, *study.on_request}, {row.paper or name for name, row in study.rows.items()}
    for table in (study.paper, study.later):
        for row, dataset, clients in table:
            assert row in names
            assert dataset in datasets
            assert clients in study.clients
    if study.figure == "lines":
        assert all(row.point is not None for row in study.rows.values())


def test_the_paper_settings_live_in_one_place():
    row = STUDIES["fedgkc-architectures"].rows["fedgkc-paper"]
    assert (row.method, row.settings) == ("fedgkc_paper", {})
    both = STUDIES["fedgkc-modules"].rows["both"]
    assert (both.method, both.settings) == ("fedgkc_paper", {})


def test_printed_numbers_are_read_cell_by_cell():
    assert numbers({"a": {"cora": "80.5±0.25 - 70"}}) == {
        ("a", "cora", 5): Number(80.5, 0.25),
        ("a", "cora", 20): Number(70.0),
    }
    target, later = (numbers(table) for table in (fedgkc.ARCHITECTURES, fedgkc.ARCHITECTURES_LATER))
    assert target["fedgkc", "cora", 10] == Number(80.71)
    assert (target["fedkd", "photo", 20].mean, later["fedkd", "photo", 20].mean) == (85.37, 86.74)
    assert (target["lg_fedavg", "cs", 5].mean, later["lg_fedavg", "cs", 5].mean) == (89.07, 88.07)
    assert len(target) == 6 * 8 * 3
    homogeneous = numbers(fedgkc.HOMOGENEOUS, (10,))
    assert mean(number.mean for (row, _, _), number in homogeneous.items() if row == "fedavg") == pytest.approx(
        79.67, abs=0.01
    )
    assert mean(number.mean for (row, _, _), number in homogeneous.items() if row == "fedgkc") == pytest.approx(
        90.17, abs=0.01
    )
