"""The command line as people use it."""

import json

import pytest
from typer.testing import CliRunner

from graft import __version__
from graft.cli import app
from graft.federation.topologies import TOPOLOGIES
from graft.methods import METHODS

DATASET = "synthetic:nodes=120,degree=6,classes=3,features=8"
SMALL = ["--method", "fedavg", "--dataset", DATASET, "--clients", "3", "--rounds", "3"]


def call(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_version_and_lists():
    assert __version__ in call("--version")
    assert all(name in call("list", "methods") for name in METHODS)
    assert "digits" in call("list", "datasets")
    assert "architectures" in call("list", "models")
    assert "label-skew" in call("list", "partitions")
    topologies = call("list", "topologies")
    assert all(name in topologies for name in TOPOLOGIES)
    assert "p=0.1" in topologies


def test_run_without_arguments_trains_on_the_embedded_dataset(elsewhere):
    assert "digits" in call("run", "--rounds", "2")
    result = json.loads((elsewhere / "runs" / "fedgkc-digits-5-0" / "result.json").read_text())
    assert result["dataset"] == "digits"


def test_flags_win_over_the_file_and_the_record_repeats_the_run(elsewhere):
    (elsewhere / "my.toml").write_text(
        'method = "fedprox"\ndataset = "synthetic:nodes=120,degree=6,classes=3,features=8"\n'
        "clients = 3\nrounds = 9\n\n[settings]\nmu = 0.5\n"
    )
    call("run", "my.toml", "--rounds", "2", "--set", "mu=0.25", "--out", "first")
    kept = (elsewhere / "first" / "experiment.toml").read_text()
    assert "rounds = 2" in kept
    assert "mu = 0.25" in kept
    call("run", "first/experiment.toml", "--out", "second")
    first, second = (json.loads((elsewhere / name / "result.json").read_text()) for name in ("first", "second"))
    assert first["accuracy"] == second["accuracy"]


def test_methods_are_compared_in_one_table(elsewhere):
    output = call("run", *SMALL, "--against", "local,centralised", "--out", "demo")
    assert all(name in output for name in ("fedavg", "local", "centralised", "own models", "global model"))
    assert {place.name for place in (elsewhere / "demo").iterdir()} == {"fedavg", "local", "centralised"}


def test_report_joins_seeds_into_mean_and_deviation(elsewhere):
    for seed in range(3):
        call("run", *SMALL, "--seed", seed, "--out", f"runs/{seed}")
    output = call("report", "runs")
    assert "±" in output
    assert "3 seeds" in output
    page = (elsewhere / "runs" / "0" / "report.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_partition_prints_a_card_and_saves_what_run_can_use(elsewhere):
    output = call("partition", DATASET, "--clients", "3", "--by", "louvain:resolution=2", "--out", "p.json")
    assert "homophily" in output
    assert "content hash" in output
    saved = json.loads((elsewhere / "p.json").read_text())
    assert saved["options"] == {"resolution": 2}
    call("run", *SMALL, "--partition", "p.json", "--out", "run")
    used = json.loads((elsewhere / "run" / "partition.json").read_text())
    assert used["membership"] == saved["membership"]
    assert used["hash"] == saved["hash"]


def test_loopback_gives_the_same_answer(elsewhere):
    for engine in ("in_process", "loopback"):
        call("run", *SMALL, "--engine", engine, "--device", "cpu", "--out", engine)
    here, there = (json.loads((elsewhere / name / "result.json").read_text()) for name in ("in_process", "loopback"))
    assert here["accuracy"] == pytest.approx(there["accuracy"], abs=1e-6)
    assert here["communication"] == there["communication"]


def test_little_memory_gives_a_warning_and_the_same_answer(elsewhere):
    assert "graft: A step of client 0, 1, 2 is estimated" in call("run", *SMALL, "--memory", "1KB", "--out", "little")
    assert "estimated" not in call("run", *SMALL, "--memory", "1GB", "--out", "enough")
    little, enough = (json.loads((elsewhere / name / "result.json").read_text()) for name in ("little", "enough"))
    assert little["accuracy"] == pytest.approx(enough["accuracy"], abs=1e-6)
    assert little["communication"] == enough["communication"]


PEERS = ["--method", "dpsgd", "--dataset", DATASET, "--clients", "4"]


def results_of(elsewhere, *names):
    return [json.loads((elsewhere / name / "result.json").read_text()) for name in names]


def test_a_topology_is_chosen_with_its_options(elsewhere):
    call("run", *PEERS, "--rounds", "2", "--topology", "star:centre=2", "--out", "star")
    call("run", *PEERS, "--rounds", "2", "--topology", "none", "--out", "none")
    call("run", *PEERS, "--rounds", "2", "--out", "own")
    star, none, own = results_of(elsewhere, "star", "none", "own")
    assert star["topology"] == "star:centre=2"
    assert "topology" not in own
    assert star["communication"]["peer_bytes"] > none["communication"]["peer_bytes"] == 0
    first = json.loads((elsewhere / "star" / "rounds.jsonl").read_text().splitlines()[0])
    assert {(to, sender) for to, sender, _ in first["links"]["mix"] if to != sender} == {
        pair for other in (0, 1, 3) for pair in ((2, other), (other, 2))
    }
    assert 'topology = "star:centre=2"' in (elsewhere / "star" / "experiment.toml").read_text()


def test_links_may_come_from_a_file_or_from_another_run(elsewhere):
    (elsewhere / "links.csv").write_text("to,from\n0,1\n2,3\n")
    call("run", *PEERS, "--rounds", "2", "--topology", "links.csv", "--out", "table")
    call("run", *PEERS, "--rounds", "2", "--topology", "table/rounds.jsonl", "--out", "again")
    table, again = results_of(elsewhere, "table", "again")
    assert table["accuracy"] == again["accuracy"]
    assert table["communication"] == again["communication"]
    refused = CliRunner().invoke(app, ["run", *PEERS, "--rounds", "3", "--topology", "table/rounds.jsonl"])
    assert refused.exit_code == 2
    assert "has no links for round 3" in " ".join(refused.stderr.split())


def test_methods_beside_that_have_no_links_run_as_they_are(elsewhere):
    output = call("run", *PEERS, "--rounds", "2", "--topology", "ring", "--against", "local,fedavg", "--out", "demo")
    assert all(word in output for word in ("topology", "ring", "local", "before"))
    peers, local = results_of(elsewhere, "demo/dpsgd", "demo/local")
    assert peers["topology"] == "ring"
    assert "topology" not in local


def test_the_report_draws_the_links_of_the_rounds_asked_for(elsewhere):
    call("run", *PEERS, "--rounds", "5", "--out", "run")

    def drawn():
        page = (elsewhere / "run" / "report.html").read_text()
        return [number for number in range(1, 10) if f'aria-label="round {number}"' in page]

    assert drawn() == [1, 3, 5]
    call("report", "run", "--rounds", "2,5,9")
    assert drawn() == [2, 5]
    page = (elsewhere / "run" / "report.html").read_text()
    assert "No links are on record for round 9." in page
    assert "before mixing" in page
    assert "<script" not in page
    assert "http" not in page
    refused = CliRunner().invoke(app, ["report", "run", "--rounds", "first"])
    assert refused.exit_code == 2
    assert "--rounds is 'first'" in refused.stderr
