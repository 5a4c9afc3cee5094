"""Runs in rows and columns: what may be averaged, and how rows are called."""

from pathlib import Path

import pytest

import graft
from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison, mean_std
from graft.experiments.comparison.finished_runs import FinishedRun, find_runs

SMALL = {"dataset": "digits", "clients": 3, "rounds": 2, "width": 8}


def finished(**settings):
    result = graft.run(**{**SMALL, **settings})
    return FinishedRun(result.summary["experiment"], result.summary)


def test_the_folder_of_the_issue_is_four_groups_and_not_four_seeds(tmp_path):
    for number, (settings, rate) in enumerate([({"mu": 0}, 0.01), ({"mu": 0.01}, 0.01), ({"mu": 10}, 0.01)]):
        graft.run("fedprox", settings=settings, learning_rate=rate, out=tmp_path / str(number), **SMALL)
    graft.run("fedprox", settings={"mu": 0.01}, learning_rate=0.1, out=tmp_path / "other", **SMALL)
    comparison = Comparison(find_runs([tmp_path]))
    assert sorted(comparison.rows) == [
        "fedprox, learning_rate=0.01, mu=0",
        "fedprox, learning_rate=0.01, mu=0.01",
        "fedprox, learning_rate=0.01, mu=10",
        "fedprox, learning_rate=0.1, mu=0.01",
    ]
    assert comparison.columns == ["digits"]
    assert all(len(cell) == 1 for cell in comparison.cells.values())


def test_seeds_are_averaged_and_how_a_run_is_computed_does_not_matter():
    runs = [finished(method="fedavg", seed=seed, threads=1 + seed % 2) for seed in range(3)]
    comparison = Comparison(runs)
    assert comparison.rows == ["fedavg"]
    assert set(comparison.cell("fedavg", "digits")) == {0, 1, 2}
    assert comparison.values("fedavg", "digits") == {run.seed: run.summary["accuracy"]["test"] for run in runs}


def test_columns_are_named_by_what_differs_about_the_data():
    runs = [finished(method="fedavg", clients=clients) for clients in (2, 3)]
    comparison = Comparison([*runs, finished(method="local", clients=2)])
    assert comparison.rows == ["fedavg", "local"]
    assert comparison.columns == ["digits, clients=2", "digits, clients=3"]
    assert comparison.cell("local", "digits, clients=3") == {}


def test_what_differs_between_methods_without_being_in_their_names_is_said():
    comparison = Comparison([finished(method="fedavg"), finished(method="local", rounds=3)])
    assert comparison.also_differs() == {"rounds": {"fedavg": 2, "local": 3}}


def test_graphs_that_were_given_as_objects_are_told_apart():
    import torch
    from torch_geometric.data import Data

    def ring(nodes):
        edges = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
        return Data(x=torch.rand(nodes, 4), edge_index=edges, y=torch.arange(nodes) % 2)

    runs = [finished(method="local", dataset=ring(nodes), seed=seed) for seed, nodes in enumerate((40, 60))]
    assert len(Comparison(runs).columns) == 2
    assert all("graph" in column for column in Comparison(runs).columns)


def test_the_same_experiment_twice_is_refused():
    run = finished(method="local")
    with pytest.raises(InputError, match="same experiment with the same seed, 0"):
        Comparison([run, run])


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(InputError, match="no finished run"):
        find_runs([tmp_path])
    with pytest.raises(InputError, match="There is no folder"):
        find_runs([Path("nowhere")])


def test_seeds_are_written_as_mean_and_deviation():
    assert mean_std([0.5, 0.7]) == "60.0 ± 14.1"
    assert mean_std([0.5]) == "50.0"
    assert mean_std([0.5, None]) == "50.0"
    assert mean_std([None]) == "-"
    assert mean_std([0.5], "log_loss") == "0.500"
