"""A server and three banks, each with its own files: from federation.toml to predictions, over a wire in memory."""

import json
import threading
import tomllib
from dataclasses import replace

import pytest

import graft
from graft.data.example_banks import write_banks
from graft.engines.policy import Policy
from graft.experiments.callbacks import AllCallbacks
from graft.experiments.consent import describe_consent
from graft.experiments.federation_file import parse_federation
from graft.experiments.party_run import Joining, join
from graft.experiments.peering import Greeting, Peering, PeerRun, take_part_as_peer
from graft.experiments.run_directory import RunDirectory
from graft.experiments.serving import serve
from tests.toy import gap
from tests.wire import MemoryWire

BANKS = ("alpha", "beta", "gamma")
COMMON = """
name = "banks"
classes = ["no", "yes"]
positive = "yes"
{who}
[experiment]
method = "{method}"
rounds = 3
width = 8
metric = "auprc"
features = "standard"
[schema]
label = "fraud"
numeric = ["balance", "turnover"]
categorical = ["channel", "branch"]
date = ["opened"]
hash = 4
unknown_nodes = "drop"
[rounds]
join_timeout = 60
timeout = 60
comeback = 0
"""
WITH_SERVER = 'server = "coordinator"\naddress = "127.0.0.1:7447"\nparties = ["alpha", "beta", "gamma"]'
AS_PEERS = '[peers]\nalpha = "127.0.0.1:7451"\nbeta = "127.0.0.1:7452"\ngamma = "127.0.0.1:7453"'


@pytest.fixture(scope="module")
def banks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("banks")
    write_banks(folder, size=0.1)
    return folder


def content_of(method, who=WITH_SERVER, **changes):
    content = tomllib.loads(COMMON.format(who=who, method=method))
    for path, value in changes.items():
        table, _, name = path.rpartition("__")
        (content.setdefault(table, {}) if table else content)[name] = value
    return content


class Federation:
    """The processes of a federation as threads."""

    def __init__(self, folder, banks, content):
        self.folder, self.banks, self.content = folder, banks, content
        self.file = parse_federation(content, "federation.toml")
        self.wire, self.results, self.errors, self.sheets = MemoryWire(), {}, {}, {}
        self.threads = {}

    def start(self, name, function, *arguments, **options):
        def run():
            try:
                self.results[name] = function(*arguments, **options)
            except Exception as error:
                self.errors[name] = error

        self.threads[name] = threading.Thread(target=run, daemon=True)
        self.threads[name].start()

    def serve(self, **options):
        node = lambda handler: self.wire.node("coordinator", handler)  # noqa: E731
        self.start("coordinator", serve, self.file, self.content, self.folder / "coordinator", node, **options)

    def join(self, name, model="gcn", approve=True, **changes):
        joining = Joining(name, self.banks / name, model, policy=Policy(scores="all", minimum_count=0), reach_within=20)
        joining = replace(joining, **changes)

        def approved(sheet):
            self.sheets[name] = sheet
            return approve

        node = lambda handler: self.wire.node(name, handler)  # noqa: E731
        self.start(name, join, joining, "coordinator", self.folder / name, node, approved)

    def peer(self, name):
        node = lambda handler: self.wire.node(name, handler)  # noqa: E731
        arguments = Peering(name, self.banks / name), self.file, self.folder / name, node, lambda sheet: True  # noqa: ARG005
        self.start(name, take_part_as_peer, *arguments)

    def wait(self, seconds=120):
        for name, thread in self.threads.items():
            thread.join(seconds)
            assert not thread.is_alive(), f"{name} did not end: {self.errors}"


def test_three_banks_train_with_models_of_their_own_and_end_with_predictions(banks, tmp_path):
    federation = Federation(tmp_path, banks, content_of("fedgkc"))
    federation.serve()
    for name, model in zip(BANKS, ("gcn", "gat", "sage"), strict=True):
        federation.join(name, model)
    federation.wait()
    assert not federation.errors
    summary = federation.results["coordinator"]
    assert summary["rounds"] == 3
    assert summary["absences"] == {}
    assert RunDirectory(tmp_path / "coordinator").read_result()["clients"] == 3
    assert "gat" not in (tmp_path / "coordinator" / "result.json").read_text()
    for name, model in zip(BANKS, ("gcn", "gat", "sage"), strict=True):
        result = federation.results[name]
        assert result.finished
        assert result.summary["per_client"][0]["client"] == name
        assert result.summary["per_client"][0]["model"] == model
        assert [record["round"] for record in result.rounds] == [1, 2, 3]
        loaded = graft.load_result(tmp_path / name)
        assert loaded.client(name).round == result.best_round
        assert len(loaded.client(name).predict(banks / f"{name}-new")) > 0
        consent = json.loads((tmp_path / name / "consent.json").read_text())
        assert consent["method"] == "fedgkc"
    shown = describe_consent(federation.sheets["beta"])
    assert "copilot" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_server_is_told_the_scores_that_parties_have_themselves(banks, tmp_path):
    federation = Federation(tmp_path, banks, content_of("fedavg", experiment__metric="accuracy"))
    federation.serve()
    for name in BANKS:
        federation.join(name, None)
    federation.wait()
    assert not federation.errors
    rounds = RunDirectory(tmp_path / "coordinator").read_rounds()
    for position, name in enumerate(BANKS):
        own = [record["per_client"]["test"][0] for record in federation.results[name].rounds]
        assert own == [record["per_client"]["test"][position] for record in rounds]


def server_state(banks, folder, **settings):
    """What the server keeps in the end where parties train with FedAvg."""
    folder.mkdir()
    federation = Federation(folder, banks, content_of("fedavg", **settings))
    federation.serve()
    for name in BANKS:
        federation.join(name, None)
    federation.wait()
    assert not federation.errors
    return RunDirectory(folder / "coordinator").load().server


def test_a_server_takes_the_average_that_the_file_names(banks, tmp_path):
    models = {
        average: server_state(banks, tmp_path / average, experiment__average=average).model
        for average in ("mean", "median", "trimmed:0.34")
    }
    assert gap(models["median"], models["trimmed:0.34"]) < 1e-6  # of three, both leave the middle one
    assert gap(models["median"], models["mean"]) > 1e-3


def test_a_server_steps_as_the_file_names_and_parties_need_not_know(banks, tmp_path):
    states = {
        name: server_state(banks, tmp_path / name, experiment__server_optimizer=name)
        for name in ("none", "sgd", "adam")
    }
    assert gap(states["none"], states["sgd"]) < 1e-6  # at a rate of 1
    assert gap(states["none"].model, states["adam"].model) > 1e-3
    assert set(states["adam"].server_optimizer) == {"direction", "square"}


def test_who_does_not_approve_sends_nothing_and_the_others_go_on(banks, tmp_path):
    content = content_of("fedavg", rounds__join_timeout=8.0)
    federation = Federation(tmp_path, banks, content)
    federation.serve()
    federation.join("alpha", None)
    federation.join("beta", None)
    federation.join("gamma", None, approve=False)
    federation.wait()
    assert set(federation.errors) == {"gamma"}
    assert "Not approved" in str(federation.errors["gamma"])
    assert federation.results["coordinator"]["absences"] == {"gamma": 3}
    assert not any(sender == "gamma" and b"join" in data for sender, _, data, _ in federation.wire.passed)


def test_a_party_with_other_data_or_another_model_is_refused_with_a_sentence(banks, tmp_path):
    federation = Federation(tmp_path, banks, content_of("fedavg", rounds__join_timeout=3.0))
    federation.serve()
    federation.join("alpha", "gat")
    federation.join("beta", None, data=banks / "nothing")
    federation.join("delta", None, data=banks / "alpha")
    federation.wait()
    assert "one architecture for all" in str(federation.errors["alpha"])
    assert "nothing" in str(federation.errors["beta"])
    assert "'delta' is no party of federation 'banks'" in str(federation.errors["delta"])
    assert "A round needs 2 parties, but after 3 s there are 0 (nobody)" in str(federation.errors["coordinator"])


@pytest.mark.parametrize("clock", ["goes on", "was set back"])
def test_a_server_that_was_stopped_goes_on_and_ends_as_the_unbroken_one(banks, tmp_path, monkeypatch, clock):
    (tmp_path / "whole").mkdir()
    whole = Federation(tmp_path / "whole", banks, content_of("fedgkc"))
    whole.serve()
    for name in BANKS:
        whole.join(name)
    whole.wait()
    assert not whole.errors

    (tmp_path / "broken").mkdir()
    broken = Federation(tmp_path / "broken", banks, content_of("fedgkc"))

    class Stopped(Exception):
        pass

    def stop(record):
        if record["round"] == 2:
            broken.wire.away.add("coordinator")
            raise Stopped

    broken.serve(callbacks=[stop])
    for name in BANKS:
        broken.join(name)
    broken.threads["coordinator"].join(60)
    assert isinstance(broken.errors.pop("coordinator"), Stopped)
    broken.wire.away.clear()
    if clock == "was set back":  # the second process must not be taken for one before the first
        monkeypatch.setattr("time.time_ns", lambda: 1)
    broken.serve(resume=True)
    broken.wait()
    assert not broken.errors
    for name in BANKS:
        first, second = whole.results[name], broken.results[name]
        assert [record["loss"] for record in first.rounds] == [record["loss"] for record in second.rounds]
    unbroken, resumed = (
        RunDirectory(path / "coordinator").read_rounds() for path in (tmp_path / "whole", tmp_path / "broken")
    )
    assert [record["test"] for record in unbroken] == [record["test"] for record in resumed]


def test_peers_without_a_server_end_with_models_of_their_own(banks, tmp_path):
    federation = Federation(tmp_path, banks, content_of("dfed_sst", AS_PEERS))
    for name in BANKS:
        federation.peer(name)
    federation.wait()
    assert not federation.errors
    for name in BANKS:
        result = federation.results[name]
        assert result.finished
        assert len(graft.load_result(tmp_path / name).client(name).predict(banks / f"{name}-new")) > 0
        assert json.loads((tmp_path / name / "consent.json").read_text())["facts"] == {
            "federation": "banks",
            "peers": 3,
        }
    assert {to for _, to, _, _ in federation.wire.passed} == set(BANKS)


def test_a_peer_that_has_finished_is_not_taken_for_a_busy_one_by_what_it_said_before(tmp_path):
    file = parse_federation(content_of("dfed_sst", AS_PEERS), "federation.toml")
    run = PeerRun(Peering("alpha", None), file, tmp_path, RunDirectory(tmp_path), AllCallbacks(()))
    before = Greeting(1, graft.__version__, file.hash, "drawn", {}, round=3)
    run._note("beta", before)
    assert not run.greetings["beta"].finished
    run._note("beta", replace(before, finished=True))
    run._note("beta", before)
    assert run.greetings["beta"].finished


def test_parties_that_fail_every_time_end_the_run_with_a_sentence(banks, tmp_path, monkeypatch):
    monkeypatch.setattr("graft.engines.party.run_step", lambda *_: 1 / 0)
    federation = Federation(tmp_path, banks, content_of("fedavg"))
    federation.serve()
    for name in BANKS:
        federation.join(name, None, return_within=1.0)
    federation.threads["coordinator"].join(120)
    assert "had too few parties 20 times in a row" in str(federation.errors["coordinator"])
    assert "failed: ZeroDivisionError" in str(federation.errors["coordinator"])
    federation.wire.away.add("coordinator")
    federation.wait()
