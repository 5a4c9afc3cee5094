"""The tutorial: its commands, as they stand on the page, from nothing to predictions and a verdict a bank."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import graft
from graft.cli import app

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```\n(graft .*)\n```$", PAGE, re.MULTILINE)
DATA_FILE = re.search(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]


def run_page(folder, size="1", **changes):
    """Runs the commands of the page in a folder; returns what each printed."""
    outputs = {}
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        words += ["--size", size] if words[0] == "example" else []
        for flag, value in changes.items():
            if flag in words:
                words[words.index(flag) + 1] = value
        result = CliRunner().invoke(app, words)
        outputs[" ".join(words[:2])] = result
        if words[0] == "check" and "banks.toml" not in words:
            assert result.exit_code == 2
            (folder / "banks.toml").write_text(DATA_FILE)
        else:
            assert result.exit_code == 0, result.output
    return outputs


def scores(folder, method):
    return json.loads((folder / "runs" / "banks" / method / "result.json").read_text())


def test_six_commands_lead_from_files_to_predictions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) <= 6
    outputs = run_page(tmp_path, size="0.5", **{"--rounds": "2"})
    assert 'unknown_nodes = "drop"' in outputs["check banks/alpha"].stderr
    assert "No problem" in outputs["check banks.toml"].output
    result = scores(tmp_path, "fedgkc")
    assert result["metric"] == "auprc"
    assert [row["client"] for row in result["per_client"]] == ["alpha", "beta", "gamma"]
    verdicts = json.loads((tmp_path / "runs" / "banks" / "fedgkc" / "verdicts.json").read_text())["clients"]
    assert [verdict["client"] for verdict in verdicts] == ["alpha", "beta", "gamma"]
    assert all(verdict["contribution"] is not None for verdict in verdicts)
    rows = list(csv.DictReader((tmp_path / "scores.csv").open(encoding="utf-8")))
    new = (tmp_path / "banks" / "gamma-new" / "customers.csv").read_text(encoding="utf-8").splitlines()
    assert [row["id"] for row in rows] == [line.split("|")[0] for line in new[1:]]
    assert all(abs(float(row["p(no)"]) + float(row["p(yes)"]) - 1) < 1e-4 for row in rows)
    assert (tmp_path / "gamma-model" / "model.py").is_file()


def test_accuracy_would_have_praised_a_model_that_sees_no_fraud(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["example", "banks"])
    (tmp_path / "banks.toml").write_text(DATA_FILE)
    blind = graft.run("majority", "banks.toml", rounds=1, metric="auprc")
    assert blind.accuracy["test"] > 0.96
    assert blind.metrics["auprc"]["test"] < 0.04


@pytest.mark.slow
def test_the_page_as_it_stands_finds_frauds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(tmp_path)
    federated, alone, blind = (
        scores(tmp_path, method)["metrics"]["auprc"]["test"] for method in ("fedgkc", "local", "majority")
    )
    assert federated > alone > 5 * blind
