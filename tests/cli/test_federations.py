"""`graft serve`, `join`, `peer` and `trial`: what cannot be is refused with one sentence, before anything is sent."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graft.cli import app
from graft.cli.trial import COMMAND, PORTS, free_ports, own_data
from graft.errors import InputError
from graft.keys import load_keys, make_ca, make_party_keys, server_name

SERVED = """
name = "digits"
server = "coordinator"
address = "127.0.0.1:7447"
parties = ["a", "b"]
classes = 10
features = 64
[experiment]
method = "fedavg"
rounds = 2
width = 8
"""
PEERS = """
name = "digits"
classes = 10
features = 64
[peers]
a = "127.0.0.1:7451"
b = "127.0.0.1:7452"
[experiment]
method = "dpsgd"
rounds = 2
width = 8
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("served.toml").write_text(SERVED)
    Path("peers.toml").write_text(PEERS)
    return tmp_path


def refused(*words):
    outcome = CliRunner().invoke(app, list(words))
    assert outcome.exit_code == 2, outcome.output
    assert not Path("runs").exists()
    return " ".join(outcome.output.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("serve", "peers.toml"), "Method 'dpsgd' has no server: every peer runs `graft peer peers.toml`."),
        (("peer", "served.toml", "--as", "a", "--data", "digits#0/2"), "Method 'fedavg' has a server"),
        (("peer", "peers.toml", "--as", "z", "--data", "digits#0/2"), "'z' is no party of federation 'digits'"),
        (("join", "--as", "a", "--data", "digits#0/2"), "Where is the server? Give --server HOST:PORT"),
        (("serve", "nothing.toml"), "There is no federation file nothing.toml"),
        (("serve", "served.toml", "--out", "x", "--resume", "y"), "Give --resume or --out, not both"),
        (("serve", "served.toml", "--keys", "nowhere"), "nowhere"),
        (("trial", "served.toml", "--data", "."), ". holds nothing for a: a folder a, a.npz or a.toml."),
        (("join", "served.toml", "--as", "a", "--data", "x", "--scores", "some"), "scores"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_cannot_be_is_refused(words, sentence):
    assert sentence in refused(*words)


def test_a_trial_does_not_write_into_a_folder_that_is_in_use(folder):
    Path("here").mkdir()
    (folder / "here" / "mine.txt").write_text("mine")
    assert "here is not empty" in refused("trial", "served.toml", "--data", "digits", "--out", "here")
    assert [path.name for path in Path("here").iterdir()] == ["mine.txt"]


def test_parties_of_a_trial_have_data_of_their_own(folder):
    assert own_data(["a", "b"], "digits") == {"a": "digits#0/2", "b": "digits#1/2"}
    (folder / "data" / "a").mkdir(parents=True)
    (folder / "data" / "b.npz").touch()
    assert own_data(["a", "b"], "data") == {"a": "data/a", "b": "data/b.npz"}


def test_free_ports_are_free_and_different():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ports = free_ports(20)
        assert len(set(ports)) == 20
        assert all(port in PORTS for port in ports)
        assert taken.getsockname()[1] not in ports


def test_a_server_tells_its_name_to_those_of_its_ca_and_to_nobody_else(tmp_path):
    import ssl

    for ca in ("ours", "theirs"):
        make_ca(tmp_path / ca)
    make_party_keys("hub", tmp_path / "ours", tmp_path / "hub")
    mine = make_party_keys("a", tmp_path / "ours", tmp_path / "a")
    foreign = make_party_keys("a", tmp_path / "theirs", tmp_path / "b")
    hub = load_keys(tmp_path / "hub", "hub")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(hub.ca))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(hub.certificate, hub.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def answer():
            for _ in range(2):
                plain, _ = listening.accept()
                try:
                    context.wrap_socket(plain, server_side=True).close()
                except OSError:
                    plain.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert server_name(address, mine) == "hub"
        with pytest.raises(InputError, match="cannot be trusted"):
            server_name(address, foreign)
        thread.join(10)
    with pytest.raises(InputError, match="cannot be reached"):
        server_name(address, mine)


@pytest.mark.usefixtures("folder")
def test_nobody_approves_in_silence():
    """Without a terminal and without --approve nothing leaves but the question what there is."""
    from graft.cli.federations import asking
    from graft.engines.forms import FieldForm, StepForm
    from graft.experiments.consent import consent_sheet
    from graft.methods.fedavg import FedAvg

    forms = {"train": StepForm({}, {"weight": FieldForm((), "int64")})}
    sheet = consent_sheet(FedAvg(), "fedavg", forms, rounds=2)
    assert asking(True)(sheet)
    with pytest.raises(InputError, match="Nobody is here to approve"):
        asking(False)(sheet)


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ({"accuracy": {"test": 0.912}}, "test accuracy 91.2 %"),
        ({"accuracy": {"test": 0.912}, "metric": "auprc", "metrics": {"auprc": {"test": 0.25}}}, "test AUPRC 25.0 %"),
        (
            {"accuracy": {"test": 0.9}, "metric": "log_loss", "metrics": {"log_loss": {"test": 0.5}}},
            "test log loss 0.500",
        ),
        (
            {"accuracy": {"test": 0.5}, "metric": "accuracy", "metrics": {"auroc": {"test": 0.7}}},
            "test accuracy 50.0 %",
        ),
        ({"accuracy": {"test": None}}, ""),
        ({"accuracy": {"test": None}, "metric": "auprc"}, ""),
    ],
)
def test_the_end_tells_the_metric_that_picked_the_best_round(summary, words):
    from graft.cli.federations import score_in_words

    assert score_in_words(summary) == words


@pytest.mark.slow
@pytest.mark.parametrize("file", ["served.toml", "peers.toml"])
def test_a_trial_runs_real_processes_with_certificates_and_leaves_none(folder, file):
    words = ["trial", file, "--data", "digits", "--out", "trial", "--scores", "own"]
    told = subprocess.run(
        [sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "2 rounds" in told.stdout
    for name in ("a", "b"):
        assert Path("trial", name, "predictions.csv").is_file()
        assert Path("trial", name, "report.html").is_file()
        assert Path("trial", name, "party", "sent.jsonl").read_text().count("\n") >= 2
    running = subprocess.run(["pgrep", "-f", str(folder / "trial")], capture_output=True, text=True, check=False)
    assert running.stdout == ""
