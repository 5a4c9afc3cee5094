"""The command line as people use it."""

import json
import subprocess
import sys
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from graft import __version__
from graft.cli import app
from graft.experiments.experiment import GROUPS, Experiment
from graft.federation import TOPOLOGIES
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
    methods = call("list", "methods")
    assert all(name in methods for name in METHODS)
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
    assert "centralised" in (elsewhere / "demo" / "report.html").read_text()  # a page of all of them
    assert all(name in output for name in ("fedavg", "local", "centralised", "majority", "trained", "handed out"))
    assert {file.parent.name for file in (elsewhere / "demo").rglob("result.json")} == {
        "fedavg",
        "local",
        "centralised",
        "majority",
    }
    assert results_of(elsewhere, "demo/majority")[0]["rounds"] == 1


def test_the_majority_class_is_one_row_if_it_is_asked_for_too(elsewhere):
    call("run", *SMALL, "--against", "majority", "--out", "demo")
    assert {file.parent.name for file in (elsewhere / "demo").rglob("result.json")} == {"fedavg", "majority"}
    call("run", *SMALL, "--out", "alone")
    assert (elsewhere / "alone" / "result.json").exists()


def test_report_joins_seeds_into_mean_and_deviation(elsewhere):
    for seed in range(3):
        call("run", *SMALL, "--seed", seed, "--out", f"runs/{seed}")
    output = call("report", "runs")
    assert "±" in output
    assert "3 seeds" in output
    page = (elsewhere / "runs" / "report.html").read_text()
    assert "3 seeds" in page
    assert 'src="http' not in page


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
    assert "before mixing" in page.lower()
    assert "as handed out" in page
    assert 'src="http' not in page
    refused = CliRunner().invoke(app, ["report", "run", "--rounds", "first"])
    assert refused.exit_code == 2
    assert "--rounds is 'first'" in refused.stderr


# Answers before PyTorch is imported.

QUICK = [
    (["--help"], 0, "check-method"),
    (["--version"], 0, __version__),
    (["run", "--help"], 0, "How many clients share the graph. (5)"),
    (["list"], 0, "fedgkc"),
    (["list", "methods", "fedgkc"], 0, "smoothing"),
    (["list", "plugs", "fedtad"], 0, "iterations"),
    (["list", "models", "gat"], 0, "heads"),
    *(
        (["list", what], 0, word)
        for what, word in {"datasets": "cora", "models": "scales", "studies": "fedgkc"}.items()
    ),
    *((["list", what], 0, word) for what, word in {"partitions": "metis", "topologies": "ring"}.items()),
    (["list", "methods", "fedgkcc"], 2, "did you mean 'fedgkc'"),
    (["run", "--method", "fedavgg"], 2, "Unknown method 'fedavgg'"),
    (["run", "--against", "fedavgg"], 2, "Unknown method 'fedavgg'"),
    (["run", "--method", "gone.py:Mine"], 2, "no file"),
    (["run", "--plug", "fedtaad"], 2, "Unknown plug"),
    (["run", "--dataset", "korra"], 2, "no dataset or file 'korra'"),
    (["run", "--models", "gcn,gcm"], 2, "Unknown model 'gcm'"),
    (["run", "--partition", "louvian"], 2, "louvian"),
    (["run", "--method", "dpsgd", "--topology", "torus"], 2, "no topology 'torus'"),
    (["run", "--method", "dpsgd", "--topology", "random:k=-1"], 2, "at least 0"),
    (["run", "--method", "fedprox", "--set", "nu=1"], 2, "Unknown setting 'nu'"),
    (["run", "--clients", "0"], 2, "clients is 0"),
    (["run", "--clients", "many"], 2, "--clients"),
    (["run", "--threads", "1000000"], 2, "at most 1024"),
    (["run", "--features", "log"], 2, "features"),
    (["run", "--memory", "4"], 2, "memory is '4'"),
    (["run", "--split", "20/40"], 2, "20/40"),
    (["run", "--no-such-option"], 2, "--no-such-option"),
    (["run", "--out", "full"], 2, "exists already"),
    (["run", "absent.toml"], 2, "no experiment file"),
    (["resume", "nowhere"], 2, "nowhere"),
    (["watch", "--help"], 0, "--interval"),
    (["watch", "nowhere"], 2, "no folder nowhere"),
    (["run", "--track", "sacred"], 2, "no tracker 'sacred'"),
    (["report", "nowhere"], 2, "There is no folder nowhere"),
    (["check-method", "gone.py:Mine"], 2, "no file"),
]
RUNNER = """
import json, sys
from typer.testing import CliRunner
from graft.cli import app
for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    print(json.dumps([result.exit_code, result.output, "torch" in sys.modules]))
"""


def answers_of(commands):
    """Exit code and output of each command, and whether PyTorch was imported by then, in one fresh process."""
    command = [sys.executable, "-c", RUNNER, json.dumps(commands)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_help_lists_and_mistakes_are_answered_without_pytorch(elsewhere):
    (elsewhere / "full").mkdir()
    (elsewhere / "full" / "thesis.txt").touch()
    answers = answers_of([arguments for arguments, _, _ in QUICK])
    for (arguments, code, words), (exit_code, output, imported) in zip(QUICK, answers, strict=True):
        assert exit_code == code, (arguments, output)
        assert words in " ".join(output.split()), (arguments, output)
        assert not imported, arguments
    assert not (elsewhere / "runs").exists()


def test_a_run_imports_pytorch():
    [(exit_code, _, imported)] = answers_of([["run", *SMALL, "--rounds", "1"]])
    assert exit_code == 0
    assert imported


def test_a_list_describes_an_entry_with_its_paper_bounds_and_meaning():
    page = " ".join(call("list", "methods", "fedprox").split())
    assert "FedAvg with a pull towards the model that was received." in page
    assert "Federated optimization in heterogeneous networks" in page
    assert "mu = 0.001 (float, at least 0, searched 0.0001..1:log) strength of the pull; 0 is FedAvg" in page
    assert "Settings" not in call("list", "methods", "fedavg")


def test_every_field_of_an_experiment_is_an_option_in_its_group():
    page = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
    for field in fields(Experiment):
        assert field.name == "settings" or f" --{field.name.replace('_', '-')} " in page
    titles = [line.split()[1] for line in page.splitlines() if line.startswith("╭")]
    assert titles == ["Arguments", "Options", *GROUPS.values()]


# Methods, models and data of other people.

OWN = """
from dataclasses import dataclass
from graft.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Slow(FedAvg):
    \"\"\"FedAvg.\"\"\"

    pace: float = 1.0  # of its steps
"""


def test_a_method_of_a_file_runs_reports_and_is_compared(elsewhere, monkeypatch):
    (elsewhere / "own.py").write_text(OWN)
    output = call("run", *SMALL, "--method", "own.py:Slow", "--set", "pace=2", "--against", "fedavg", "--out", "demo")
    assert {file.parent.name for file in (elsewhere / "demo").rglob("result.json")} == {"slow", "fedavg", "majority"}
    slow, plain = results_of(elsewhere, "demo/slow", "demo/fedavg")
    assert slow["accuracy"] == plain["accuracy"]
    assert slow["method"] == "slow"
    assert "slow" in output
    (elsewhere / "other").mkdir()
    monkeypatch.chdir(elsewhere / "other")
    assert "slow" in call("report", "../demo")
    call("run", "../demo/slow/experiment.toml", "--out", "again")
    assert results_of(elsewhere / "other", "again")[0]["accuracy"] == slow["accuracy"]
    assert "of its steps" in call("list", "methods", "../own.py:Slow")


def test_a_method_cannot_be_put_beside_itself():
    refused = CliRunner().invoke(app, ["run", *SMALL, "--against", "local,fedavg"])
    assert refused.exit_code == 2
    assert "names a method twice" in refused.stderr


# Foreign text.


def test_nothing_from_outside_moves_the_cursor_or_is_markup(elsewhere):
    escape = "\x1b[2J"
    (elsewhere / f"{escape}.py").write_text(f"raise ValueError('{escape}')\nclass A: pass")
    (elsewhere / f"data{escape}").mkdir()
    (elsewhere / f"data{escape}" / "nodes.csv").write_text(
        "id,label,a\n" + "".join(f"{k},{k % 2},{k}\n" for k in range(40))
    )
    (elsewhere / f"data{escape}" / "edges.csv").write_text("source,target\n0,1\n1,2\n2,3\n")
    commands = [
        ["run", "--method", f"{escape}.py:A"],
        ["run", "--method", f"{escape}"],
        ["run", "--set", f"{escape}=1"],
        ["list", escape],
        ["resume", escape],
        ["report", escape],
        ["run", *SMALL, "--partition", "random", "--dataset", f"data{escape}", "--out", f"[/b]{escape}[red]"],
        ["report", "."],
        ["partition", f"data{escape}", "--clients", "2", "--by", "random", "--out", "[/i].json"],
    ]
    results = [CliRunner().invoke(app, command) for command in commands]
    assert [result.exit_code for result in results] == [2, 2, 2, 2, 2, 2, 0, 0, 0], [
        result.output for result in results
    ]
    for result in results:
        assert "\x1b" not in result.output
    assert "[/b]\\x1b[2J[red]" in results[6].output
