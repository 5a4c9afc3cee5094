"""Sweeps in Python: objects instead of names, and what can be asked of a `Sweep`."""

import sys
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

import graft
from tests.experiments.small_sweep import DATA, VALUES


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass(frozen=True)
class Mine(graft.METHODS["fedprox"]):
    """A method of somebody's own."""


def ring(nodes):
    edges = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    generator = torch.Generator().manual_seed(nodes)
    return Data(x=torch.rand(nodes, 4, generator=generator), edge_index=edges, y=torch.arange(nodes) % 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x, edge_index):  # noqa: ARG002
        return self.linear(x)


def test_objects_are_run_in_this_process_and_told_apart(tmp_path):
    heard, net = [], Net()
    given = {"methods": [Mine(mu=0.5), "local"], "datasets": [ring(60), ring(80)], "models": net}
    settings = {"grid": {"mu": [0.5, 1.0]}, "seeds": [3], "out": tmp_path / "out", **VALUES}
    sweep = graft.sweep(**given, **settings, jobs=2, callbacks=[heard.append])
    assert len(sweep.runs) == 6
    assert [row.split(",")[-1].strip() for row in sweep.comparison.rows] == ["mu=0.5", "mu=1", "local"]
    assert len(sweep.comparison.columns) == 2
    assert len(heard) == 6 * VALUES["rounds"]
    alone = graft.run(Mine(mu=1.0), ring(60), models=net, seed=3, **VALUES)
    same = [run for run in sweep.runs if run.experiment["settings"].get("mu") == 1.0]
    assert alone.summary["per_client"] in [run.summary["per_client"] for run in same]
    again = graft.sweep(**given, **settings)
    assert again.outcome.ran == 0


def test_a_sweep_without_a_folder_keeps_everything_in_memory(elsewhere):
    sweep = graft.sweep("fedprox", DATA, grid={"mu": [0, 1]}, seeds=2, jobs=1, **VALUES)
    assert list(elsewhere.iterdir()) == []
    assert [run.path for run in sweep.runs] == [None] * 4
    assert [len(run.rounds) for run in sweep.runs] == [VALUES["rounds"]] * 4
    with pytest.raises(graft.InputError, match="kept no folder"):
        sweep.report()


def test_a_frame_has_a_row_a_run_with_what_was_varied(swept):
    pytest.importorskip("polars")
    frame = graft.Sweep.load(swept[0]).frame()
    assert frame.height == 8
    assert {"row", "column", "seed", "method", "mu", "test", "validation", "up_bytes", "seconds"} <= set(frame.columns)
    assert frame["mu"].to_list().count(None) == 2
    assert sorted(set(frame["mu"].drop_nulls())) == [0, 0.01, 1]
    assert "dropout" not in frame.columns  # the same everywhere


def test_without_polars_a_frame_is_refused_in_one_sentence(swept, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(graft.InputError, match="pip install polars"):
        graft.Sweep.load(swept[0]).frame()


def test_a_sweep_says_what_it_is_and_names_no_markup(swept):
    sweep = graft.Sweep.load(swept[0])
    assert repr(sweep) == "Sweep(8 runs, 4 rows x 1 columns)"
    assert "fedprox, mu=0.01" in sweep._repr_html_()
    sweep.failures["<b>"] = "why"
    assert "<b>" not in sweep._repr_html_()
    assert "1 failed" in repr(sweep)
    nothing = graft.Sweep([], {"local on digits, seed 0": "The disk is full."})
    with pytest.raises(graft.InputError, match="The disk is full"):
        nothing.comparison  # noqa: B018
    assert "0 runs" in nothing._repr_html_()


def test_a_sweep_compares_draws_and_reports(swept, tmp_path):
    sweep = graft.Sweep.load(swept[0])
    assert "fedprox, mu=0.01" in (swept[0] / "report.html").read_text()
    assert sweep.report(tmp_path / "new" / "page.html").read_text().startswith("<!")
    assert {entry.row for entry in sweep.compare(baseline="fedavg")} == set(sweep.comparison.rows) - {"fedavg"}
    assert "tabular" in sweep.to_latex()
    figure = sweep.plot_scores()
    assert figure.axes


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"seed": 3}, "seeds="),
        ({"grid": {"mu": []}}, "no values of mu"),
        ({"seeds": 0}, "at least one seed"),
        ({"methods": graft.METHODS["fedprox"]}, "instance of a Method"),
        ({"jobs": 0}, "jobs is 0"),
        ({"dataset": "core"}, "core"),
        ({"grid": {"method": ["local"]}, "methods": ["fedavg"]}, "given twice"),
    ],
)
def test_mistakes_in_python_are_refused(arguments, word):
    arguments = {"methods": "fedprox", "datasets": arguments.pop("dataset", DATA), **VALUES, **arguments}
    with pytest.raises(graft.InputError, match=word):
        graft.sweep(**arguments)
