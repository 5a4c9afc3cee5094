"""`graft compare`: from folders of runs to the tables and figures of a paper."""

import csv
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import graft
from graft.cli import app

DATA = [f"synthetic:nodes={nodes},degree=6,classes=3,features=8" for nodes in (90, 120)]
FIGURES = ("scores", "curves", "communication", "ranks", "gains")
WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, *_):
        if name in ("torch", "torch_geometric", "polars"):
            raise ImportError(f"{name} is not needed")

sys.meta_path.insert(0, Refuse())
from graft.cli import app
app(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of eighteen small runs: two methods and a reference on two graphs."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("local", "fedavg", "majority"):
        for number, data in enumerate(DATA):
            for seed in range(3):
                out = folder / method / f"{number}-seed{seed}"
                graft.run(method, dataset=data, clients=2, rounds=2, width=8, seed=seed, out=out, threads=1)
    return folder


def compare(*arguments):
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def test_everything_is_written_without_pytorch(runs, tmp_path):
    out = tmp_path / "paper"
    command = [sys.executable, "-c", WITHOUT_TORCH, "compare", str(runs), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    names = {path.name for path in out.iterdir()}
    assert names == {
        *(f"{name}.{ending}" for name in FIGURES for ending in ("pdf", "png")),
        *("scores.tex", "differences.tex", "cost.tex", "preview.tex", "table.csv", "numbers.csv"),
    }
    assert all(name in words for name in names)
    assert "Against local over all columns" in words
    assert r"\includegraphics{ranks}" in (out / "preview.tex").read_text()
    with (out / "numbers.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 18
    stored = graft.load_result(runs / "fedavg" / "0-seed1").summary
    (line,) = (entry for entry in lines if entry["path"].endswith("fedavg/0-seed1"))
    assert float(line["accuracy_test"]) == stored["accuracy"]["test"]
    assert int(line["up_bytes"]) == stored["communication"]["up_bytes"]
    with (out / "table.csv").open() as file:
        table = {(entry["row"], entry["column"]): entry for entry in csv.DictReader(file)}
    assert len(table) == 6
    assert {row for row, _ in table} == {"local", "fedavg", "majority"}
    assert all((entry["difference_p"] != "") == (entry["row"] == "fedavg") for entry in table.values())
    assert all(entry["reference"] == str(entry["row"] == "majority") for entry in table.values())


def test_only_the_formats_that_are_asked_for_are_written(runs, tmp_path):
    code, words = compare(runs, "--out", tmp_path, "--csv")
    assert code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv", "numbers.csv"}
    code, _ = compare(runs / "local", runs / "fedavg", "--out", tmp_path / "png", "--png", "--baseline", "fedavg")
    assert code == 0
    assert {path.name for path in (tmp_path / "png").iterdir()} == {f"{name}.png" for name in FIGURES}
    code, words = compare(runs / "fedavg", "--out", tmp_path / "alone", "--latex")  # without a baseline and ranks
    assert code == 0
    assert {path.name for path in (tmp_path / "alone").iterdir()} == {"scores.tex", "cost.tex", "preview.tex"}
    assert "Ranks need two rows" in words


@pytest.mark.usefixtures("finished")
def test_the_runs_of_a_study_are_compared_too(tmp_path):
    code, words = compare("out", "--out", tmp_path / "paper", "--latex", "--csv")
    assert code == 0
    assert "cannot be told" in words or "told from all others" in words
    table = (tmp_path / "paper" / "scores.tex").read_text()
    assert table.index("fedprox") < table.rindex("\\midrule") < table.rindex("centralised")
    assert len((tmp_path / "paper" / "numbers.csv").read_text().splitlines()) == 13


def test_without_matplotlib_there_are_tables_and_a_sentence(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert compare(runs, "--out", tmp_path, "--csv", "--latex")[0] == 0
    code, words = compare(runs, "--out", tmp_path / "figures", "--png")
    assert code == 2
    assert "need Matplotlib: pip install matplotlib" in words


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--baseline", "lokal"), "'lokal' is no row (did you mean 'local'?): there are"),
        (("--metric", "accurracy"), "There is no metric 'accurracy'"),
        (("--metric", "auroc"), "No run has auroc on record: there are accuracy"),
        (("--metric", "accuracy,auroc"), "one metric is compared at a time"),
    ],
)
def test_mistakes_are_said_in_a_sentence(runs, tmp_path, arguments, sentence):
    code, words = compare(runs, "--out", tmp_path / "paper", *arguments)
    assert code == 2
    assert sentence in words
    assert not (tmp_path / "paper").exists()


def test_a_folder_that_is_none_or_cannot_be_written_is_said(runs, tmp_path):
    assert compare(tmp_path / "nowhere")[0] == 2
    (tmp_path / "file").write_text("")
    code, words = compare(runs, "--out", tmp_path / "file", "--csv")
    assert code == 2
    assert "file cannot be used" in words
