"""Clients that bring their own graphs, on the command line: their names everywhere, and what joining gives them."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from graft.cli import app
from graft.cli.many_values import repeat_options
from graft.experiments.run import Run
from graft.federation.session import Session

QUICK = ["--method", "fedavg", "--width", "8", "--rounds", "2"]


def write_graph(path, seed, nodes=60, labelled=True):
    """Two classes that features tell apart, and edges mostly within them."""
    random = np.random.default_rng(seed)
    y = np.arange(nodes) % 2
    x = random.normal(size=(nodes, 4)) + 2 * y[:, None]
    edges = random.integers(0, nodes // 2, (2, 3 * nodes)) * 2 + random.integers(0, 2, 3 * nodes)
    np.savez(path, x=x, edges=edges, y=y if labelled else np.full(nodes, -1))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("a", "b", "c")):
        write_graph(tmp_path / f"{name}.npz", seed)
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def call(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def read_json(path):
    return json.loads(path.read_text())


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_clients_are_called_by_their_files_everywhere(elsewhere):
    call("run", "--graphs", "a.npz", "b.npz", *QUICK, "--out", "run")
    result = read_json(elsewhere / "run" / "result.json")
    assert [row["client"] for row in result["per_client"]] == ["a", "b"]
    assert result["dataset"] == "a-b"
    assert result["partition"] == "own"
    assert all(record["participants"] == ["a", "b"] for record in read_lines(elsewhere / "run" / "rounds.jsonl"))
    assert [row["client"] for row in read_json(elsewhere / "run" / "partition.json")["per_client"]] == ["a", "b"]
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", (elsewhere / "run" / "report.html").read_text())
    assert {"a", "b"} <= set(cells)


def test_graphs_may_be_renamed_and_the_option_repeated(elsewhere):
    call("run", "--graphs", "north=a.npz", "--graphs", "b.npz", "south=c.npz", *QUICK, "--out", "run")
    rows = read_json(elsewhere / "run" / "result.json")["per_client"]
    assert [row["client"] for row in rows] == ["north", "b", "south"]
    call("predict", "run", "--client", "south", "--out", "scores.csv")
    assert len((elsewhere / "scores.csv").read_text().splitlines()) == 61


def test_clients_of_a_data_file_have_its_names(elsewhere):
    (elsewhere / "data.toml").write_text('[clients]\nnorth = "a.npz"\nsouth = "b.npz"\n')
    call("run", "--dataset", "data.toml", *QUICK, "--out", "run")
    result = read_json(elsewhere / "run" / "result.json")
    assert [row["client"] for row in result["per_client"]] == ["north", "south"]
    call("run", "--graphs", "north=a.npz", "south=b.npz", *QUICK, "--out", "same")
    assert read_json(elsewhere / "same" / "result.json")["accuracy"] == result["accuracy"]


def test_a_run_of_own_graphs_is_resumed_from_another_folder(elsewhere, monkeypatch):
    arguments = ["run", "--graphs", "a.npz", "north=b.npz", *QUICK, "--rounds", "4", "--checkpoint-every", "1"]
    arguments += ["--optimizer", "adam", "--learning-rate", "0.01"]  # with which both graphs are not learnt at once
    call(*arguments, "--out", "unbroken")
    run_round = Run.round

    def fail_in_the_third(self, number):
        if number == 3:
            raise KeyboardInterrupt
        return run_round(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "round", fail_in_the_third)
        assert invoke(*arguments, "--out", "broken").exit_code != 0
    assert not (elsewhere / "broken" / "result.json").exists()
    (elsewhere / "other").mkdir()
    monkeypatch.chdir(elsewhere / "other")
    call("resume", "../broken")
    broken, unbroken = (read_json(elsewhere / name / "result.json") for name in ("broken", "unbroken"))
    assert [row["client"] for row in broken["per_client"]] == ["a", "north"]
    assert broken["accuracy"] == unbroken["accuracy"]
    write_graph(elsewhere / "b.npz", seed=9)
    call("run", "../unbroken/experiment.toml", "--out", "again")
    assert read_json(elsewhere / "other" / "again" / "result.json")["accuracy"] != unbroken["accuracy"]


def test_what_goes_wrong_in_a_round_is_said_of_the_client_by_name(elsewhere):
    graphs = ["run", "--graphs", "a.npz", "north=b.npz", "--feature-norm", "0", "--clip-norm", "0", *QUICK]
    graphs += ["--optimizer", "adam"]
    values = dict(np.load(elsewhere / "b.npz"))
    values["x"][3] = 3e38  # finite, but no square of it is
    np.savez(elsewhere / "b.npz", **values)
    state = invoke(*graphs, "--out", "state")
    assert state.exit_code == 1
    assert "of client north holds a NaN or an infinity" in state.stderr
    values["x"][:] = 3e38
    np.savez(elsewhere / "b.npz", **values)
    loss = invoke(*graphs, "--out", "loss")
    assert loss.exit_code == 1
    assert "The loss of client north is no longer a finite number in step 'train'" in loss.stderr


def test_every_client_gets_a_verdict_that_is_on_record_and_in_the_report(elsewhere):
    output = call("run", "--graphs", "a.npz", "b.npz", *QUICK, "--against", "local", "--out", "demo")
    assert "Does joining help? accuracy" in output
    assert "gives the others" in output  # as it is, for few clients that bring their own graphs
    rows = read_json(elsewhere / "demo" / "fedavg" / "verdicts.json")["clients"]
    assert [row["client"] for row in rows] == ["a", "b"]
    per_client = read_json(elsewhere / "demo" / "fedavg" / "result.json")["per_client"]
    alone = read_json(elsewhere / "demo" / "local" / "result.json")["per_client"]
    for row, federated, own in zip(rows, per_client, alone, strict=True):
        assert row["federated"] == pytest.approx(federated["test"])
        assert row["alone"] == pytest.approx(own["test"])
        assert row["difference"] == pytest.approx(row["federated"] - row["alone"])
        assert row["low"] <= row["difference"] <= row["high"]
        assert row["contribution"] is not None
        assert row["verdict"] in output
    page = (elsewhere / "demo" / "fedavg" / "report.html").read_text()
    assert rows[0]["verdict"] in page
    assert "Does joining help" in page
    assert "Does joining help" not in (elsewhere / "demo" / "local" / "report.html").read_text()
    assert not (elsewhere / "demo" / "local" / "verdicts.json").exists()


def test_contributions_can_be_left_out_or_asked_for(elsewhere):
    output = call(
        "run", "--graphs", "a.npz", "b.npz", *QUICK, "--against", "local", "--no-contribution", "--out", "demo"
    )
    assert "gives the others" not in output
    rows = read_json(elsewhere / "demo" / "fedavg" / "verdicts.json")["clients"]
    assert [row["contribution"] for row in rows] == [None, None]
    shared = ["--dataset", "synthetic:nodes=90,degree=4,classes=2,features=4", "--clients", "3", *QUICK]
    assert "gives the others" not in call("run", *shared, "--against", "local", "--out", "shared")
    assert "gives the others" in call("run", *shared, "--against", "local", "--contribution", "--out", "asked")
    rows = read_json(elsewhere / "asked" / "fedavg" / "verdicts.json")["clients"]
    assert [row["client"] for row in rows] == [0, 1, 2]
    assert all(row["contribution"] is not None for row in rows)


def test_a_client_without_labels_gets_a_model_but_no_verdict(elsewhere):
    write_graph(elsewhere / "c.npz", seed=2, labelled=False)
    call("run", "--graphs", "a.npz", "b.npz", "c.npz", *QUICK, "--against", "local", "--out", "demo")
    rows = read_json(elsewhere / "demo" / "fedavg" / "verdicts.json")["clients"]
    assert rows[2]["verdict"] == "cannot be told"
    assert rows[0]["verdict"] != "cannot be told"
    call("predict", "demo/fedavg", "--client", "c", "--out", "scores.csv")
    assert len((elsewhere / "scores.csv").read_text().splitlines()) == 61


def test_contributions_of_a_topology_that_needs_everybody_are_refused_at_once(elsewhere):
    star = ["run", "--graphs", "a.npz", "b.npz", *QUICK, "--method", "dpsgd", "--topology", "star:centre=1"]
    refused = invoke(*star, "--against", "local", "--contribution")
    assert refused.exit_code == 2
    assert "star of 1 peers" in refused.stderr
    assert not (elsewhere / "runs").exists()
    assert "gives the others" not in call(*star, "--against", "local")


@pytest.mark.parametrize(
    ("words", "repeated"),
    [
        (["--graphs", "a", "b"], ["--graphs", "a", "--graphs", "b"]),
        (["--graphs", "a", "--seed", "1"], ["--graphs", "a", "--seed", "1"]),
        (["x.toml", "--graphs", "a", "b", "--seed", "1"], ["x.toml", "--graphs", "a", "--graphs", "b", "--seed", "1"]),
        (["--graphs", "a", "--graphs", "b", "c"], ["--graphs", "a", "--graphs", "b", "--graphs", "c"]),
        (["--graphs=a", "b"], ["--graphs=a", "b"]),
        (["--set", "a=1", "b"], ["--set", "a=1", "b"]),
        ([], []),
    ],
)
def test_all_words_after_graphs_are_graphs(words, repeated):
    assert repeat_options(words) == repeated


@pytest.mark.parametrize("words", [["--graphs"], ["--graphs", "--seed", "3"]])
def test_graphs_without_a_graph_are_a_mistake(words, elsewhere):
    result = invoke("run", *words)
    assert result.exit_code == 2
    assert "--graphs needs at least one value" in result.stderr
    assert not (elsewhere / "runs").exists()


def test_a_session_is_not_begun_for_graphs_that_do_not_fit(elsewhere, monkeypatch):
    np.savez(elsewhere / "b.npz", x=np.ones((5, 3)), edges=np.zeros((2, 0), int), y=[0, 1, 0, 1, 0])
    monkeypatch.setattr(Session, "__init__", lambda *_: pytest.fail("a session was begun"))
    refused = invoke("run", "--graphs", "a.npz", "b.npz", *QUICK)
    assert refused.exit_code == 2
    assert "Client b has 3 features, but client a has 4" in refused.stderr
