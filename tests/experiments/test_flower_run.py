"""Federations that Flower carries end where one process ends; who is invited, who comes, and who is refused."""

import json
import tomllib
from dataclasses import replace

import pytest
import torch

import graft
from graft.data.party import read_party
from graft.engines.envelopes import ANSWER, StepRequest, seal, unseal
from graft.engines.in_process import InProcess
from graft.engines.kept_state import CHECKED
from graft.engines.messages import unpack
from graft.engines.parties import Parties
from graft.engines.party import Party, Terms
from graft.engines.policy import Policy
from graft.engines.wire import Patience
from graft.errors import InputError, RunError
from graft.experiments import flower_run
from graft.experiments.build import build_models
from graft.experiments.federation_file import parse_federation
from graft.experiments.flower_run import COMING, Invite, open_party, serve_over_flower, write_party
from graft.experiments.parties_setup import server_setup
from graft.experiments.party_run import Joining
from graft.experiments.run_directory import RunDirectory
from graft.experiments.welcome import PROTOCOL, Join, Welcome
from graft.federation.session import Session
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import map_tree, strip_architectures
from tests.contract import contract_method
from tests.engines import flower_processes as processes
from tests.organisations import WITH_SERVER, federation, forms_of, own_part
from tests.test_every_method import SETTINGS
from tests.toy import gap

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'graft-fgl[flower]'")

from graft.engines.flower import FlowerNode
from tests.engines import flower_parties
from tests.engines.flower_grid import PARTIES, FakeGrid, let_messages_be_made

ROUNDS = 2
ALL_SCORES = Policy(minimum_count=0, scores="all")
MODELS = {"fedavg": ("gcn", "gcn", "gcn"), "fedgkc": ("gcn", "gat", "sage")}
NO_MESSAGE = b"no message"


@pytest.fixture(autouse=True)
def _run_of_flower(monkeypatch):
    let_messages_be_made(monkeypatch)
    monkeypatch.setattr(flower_run, "OPENED", {})


# Every method, at parties that are made anew for every message.


def carried(setup, folder):
    """A session of a server whose parties are behind Flower's messages, and the way to make these parties anew."""
    forms = forms_of(setup)
    terms = Terms("hub", "banks-1", setup.rounds, forms)

    def opener(client):
        return lambda: Party(own_part(setup, client), terms, ALL_SCORES, folder / PARTIES[client])

    for client, name in enumerate(PARTIES):
        flower_parties.TOYS[folder / name] = opener(client)
    grid = FakeGrid(folder, open_party="tests.engines.flower_parties:open_toy")
    node, graphless = FlowerNode(grid, "hub", PARTIES), replace(setup, on_demand=True)
    session = Session(graphless, Parties(graphless, node, PARTIES, Patience(60), run="banks-1", forms=forms))
    return session, [opener(client) for client in range(len(PARTIES))]


QUICK = ("fedavg", "fedgkc", "fedomd", "fedgta")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in WITH_SERVER]
)
def test_flower_ends_where_one_process_ends(name, tmp_path):
    setup = federation(SETTINGS.get(name) or contract_method(name))
    session, openers = carried(setup, tmp_path)
    here = Session(setup, InProcess(setup))
    for number in range(1, ROUNDS + 1):
        last = number == ROUNDS
        there, expected = session.round(number, evaluate=last), here.round(number, evaluate=last)
        assert not there.facts.absent
    assert torch.equal(there.tensors.correct.own, expected.tensors.correct.own)
    assert gap(here.server.state, session.server.state) < 1e-5
    in_process = here.engine.state()
    for client, opener in enumerate(openers):
        state = map_tree(lambda leaf: leaf[0], opener().fleet.state)
        assert gap(strip_architectures(in_process[client]), state) < 1e-5


def test_another_seed_would_be_noticed(tmp_path):
    setup = federation(FedAvg())
    session, _ = carried(setup, tmp_path)
    other = replace(setup, seed=setup.seed + 1)
    here = Session(other, InProcess(other))
    session.round(1)
    here.round(1)
    assert gap(here.server.state, session.server.state) > 1e-3


# From a federation's file to results.


def text_of(method, rounds=ROUNDS, evaluate_every=1, **rules):
    rules = {"timeout": 120, "join_timeout": 120, "comeback": 0, **rules}
    return "\n".join(
        [
            'name = "banks"\nserver = "hub"\naddress = "127.0.0.1:8000"\nclasses = 10\nfeatures = 64',
            f"parties = {json.dumps(PARTIES)}",
            f"[experiment]\nmethod = '{method}'\nrounds = {rounds}\nwidth = 8",
            f"evaluate_every = {evaluate_every}\n[rounds]",
            *(f"{name} = {value}" for name, value in rules.items()),
        ]
    )


def source_of(client):
    return f"digits#{client}/{len(PARTIES)}"


def file_of(text):
    content = tomllib.loads(text)
    return parse_federation(content, "federation.toml"), content


def write_parties(folder, text, method, names=PARTIES):
    _, content = file_of(text)
    for client, name in enumerate(PARTIES):
        if name in names:
            chosen = MODELS[method][client] if method == "fedgkc" else None
            joining = Joining(name, source_of(client), chosen, policy=ALL_SCORES)
            write_party(folder / "federation.toml", content, joining, folder / name, lambda sheet: True)  # noqa: ARG005


def in_one_process(text, method, **changes):
    """The server's and the clients' state after the rounds of a file, where all graphs are in this process."""
    file, _ = file_of(text)
    bare = server_setup(file)
    graphs = [
        read_party(source_of(client), file.agreement, name, client).federation().clients[0]
        for client, name in enumerate(PARTIES)
    ]
    experiment = replace(file.experiment, models=",".join(MODELS[method]))
    models = build_models(experiment, file.method, len(PARTIES), bare.features, bare.classes)
    setup = replace(bare, graphs=graphs, models=models, on_demand=False, **changes)
    session = Session(setup, InProcess(setup))
    for number in range(1, file.experiment.rounds + 1):
        session.round(number)
    return session.server.state, session.engine.state()


def gaps(out, folder, server, clients):
    """The largest differences of the server's and of the parties' weights to these."""
    files = [folder / name / "party" / "state" / "committed" for name in PARTIES]
    states = [unpack(file.read_bytes()[CHECKED:])[1].state for file in files]
    apart = [
        gap(strip_architectures(clients[client]), map_tree(lambda leaf: leaf[0], state))
        for client, state in enumerate(states)
    ]
    return gap(RunDirectory(out).load().server, server), max(apart)


def check_ends_alike(out, folder, text, method):
    assert max(gaps(out, folder, *in_one_process(text, method))) < 1e-5
    for client, name in enumerate(PARTIES):
        result = graft.load_result(folder / name)
        assert result.summary["per_client"][0]["model"] == MODELS[method][client]
        assert [record["round"] for record in result.rounds] == [1, 2]
        assert all(record["loss"] is not None and record["up_bytes"] > 0 for record in result.rounds)
        assert {"report.html", "predictions.csv"} <= {path.name for path in (folder / name).iterdir()}


def over_flower(folder, text, out="out", names=PARTIES):
    grid = FakeGrid(folder, names, open_party="graft.experiments.flower_run:open_party")
    return serve_over_flower(FlowerNode(grid, "hub", PARTIES), text, str(folder / out))


def noted_preparations(monkeypatch):
    """The parties whose data are read and whose method is rehearsed, from now on."""
    names, make_ready = [], flower_run.make_ready

    def noting(file, joining, callbacks):
        names.append(joining.name)
        return make_ready(file, joining, callbacks)

    monkeypatch.setattr(flower_run, "make_ready", noting)
    return names


@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedgkc", marks=pytest.mark.slow)])
def test_a_federation_from_its_file_ends_where_one_process_ends(method, tmp_path, monkeypatch):
    text = text_of(method)
    write_parties(tmp_path, text, method)
    prepared = noted_preparations(monkeypatch)
    summary = over_flower(tmp_path, text)
    assert (summary["rounds"], summary["absences"]) == (2, {})
    assert sorted(prepared) == PARTIES  # one process reads the data of a party once
    assert (tmp_path / "out" / "report.html").is_file()
    check_ends_alike(tmp_path / "out", tmp_path, text, method)
    assert max(gaps(tmp_path / "out", tmp_path, *in_one_process(text, method, seed=7))) > 1e-3


def test_a_party_that_another_process_answers_for_in_between_has_its_state_read_again(tmp_path, monkeypatch):
    """Two processes of a simulation, as two memories of what was opened."""
    text = text_of("fedavg")
    write_parties(tmp_path, text, "fedavg")
    prepared = noted_preparations(monkeypatch)
    memories, turns = [{}, {}], []

    def open_by_turns(folder):
        turns.append(folder)
        monkeypatch.setattr(flower_run, "OPENED", memories[len(turns) // 4 % 2])
        return open_party(folder)

    monkeypatch.setattr(flower_parties, "open_toy", open_by_turns)
    grid = FakeGrid(tmp_path, open_party="tests.engines.flower_parties:open_toy")
    serve_over_flower(FlowerNode(grid, "hub", PARTIES), text, str(tmp_path / "out"))
    assert all(memories)
    assert sorted(prepared) == sorted(PARTIES * len(memories))  # each process reads the data of a party once
    check_ends_alike(tmp_path / "out", tmp_path, text, "fedavg")


def test_a_party_without_a_folder_has_not_joined_and_the_others_go_on(tmp_path, caplog):
    text = text_of("fedavg", join_timeout=1)
    write_parties(tmp_path, text, "fedavg", PARTIES[:2])
    summary = over_flower(tmp_path, text)
    assert summary["absences"] == {"bank_c": 2}
    assert "bank_c has not joined: failed with InputError: its own log says why" in caplog.text


def test_a_party_with_another_file_refuses_and_nothing_is_asked_of_it(tmp_path, caplog):
    text = text_of("fedavg", join_timeout=1, rounds=3)
    write_parties(tmp_path, text_of("fedavg"), "fedavg", ["bank_a"])
    write_parties(tmp_path, text, "fedavg", ["bank_b", "bank_c"])
    assert over_flower(tmp_path, text)["absences"] == {"bank_a": 3}
    assert "bank_a has not joined: bank_a has another federation file" in caplog.text
    assert not (tmp_path / "bank_a" / "federation.json").exists()


def test_a_run_that_was_stopped_goes_on_and_another_is_refused(tmp_path, monkeypatch, caplog):
    text = text_of("fedavg", join_timeout=1)
    write_parties(tmp_path, text, "fedavg")
    whole = flower_run.serve

    def stop(record):
        raise RunError(f"stopped after round {record['round']}")

    monkeypatch.setattr(flower_run, "serve", lambda *words, **options: whole(*words, **options, callbacks=[stop]))
    with pytest.raises(RunError, match="stopped after round 1"):
        over_flower(tmp_path, text)
    monkeypatch.setattr(flower_run, "serve", whole)
    with pytest.raises(RunError, match="A round needs 2 parties"):
        over_flower(tmp_path, text, "another")
    assert "bank_b has not joined: bank_b has a folder of an earlier run of federation 'banks'" in caplog.text
    assert over_flower(tmp_path, text)["rounds"] == 2
    check_ends_alike(tmp_path / "out", tmp_path, text, "fedavg")
    with pytest.raises(InputError, match="is a finished run"):
        over_flower(tmp_path, text)


# A party by itself.


@pytest.fixture
def asked(tmp_path):
    """What a party answers to a server, as an envelope; and the hash of its federation."""
    text = text_of("fedavg")
    write_parties(tmp_path, text, "fedavg", ["bank_a"])
    handle = open_party(str(tmp_path / "bank_a"))
    return lambda said, kind=COMING, sender="hub": unseal(handle(sender, seal(said)), kind)[0], file_of(text)[0].hash


def test_only_its_own_server_invites_a_party_to_what_it_has_approved(asked):
    ask, agreed = asked
    invite = Invite(PROTOCOL, graft.__version__, "banks-1", agreed)
    refused = {
        "takes part in a federation of hub, not of bank_b": (invite, "bank_b"),
        "the server Graft 0.0.1": (replace(invite, graft="0.0.1"), "hub"),
        f"(protocol {PROTOCOL + 1})": (replace(invite, protocol=PROTOCOL + 1), "hub"),
        "has another federation file": (replace(invite, hash="0" * 64), "hub"),
    }
    for words, (said, sender) in refused.items():
        answer = ask(said, sender=sender)
        assert isinstance(answer, Welcome)
        assert words in answer.refused
    step = StepRequest("banks-1", 5, 1, 1, "5-0", 0, "train", 0)
    assert ask(step, ANSWER).reason == "this party was not invited yet"
    for _ in range(2):
        joined = ask(invite)
        assert isinstance(joined, Join)
        assert (joined.run, joined.hash) == ("banks-1", agreed)
    assert "earlier run" in ask(replace(invite, run="banks-2")).refused


def test_what_was_not_approved_does_not_answer(tmp_path):
    write_parties(tmp_path, text_of("fedavg"), "fedavg", ["bank_a"])
    (tmp_path / "bank_a" / "consent.json").write_text('{"hash": "of another sheet"}')
    with pytest.raises(InputError, match="Not approved"):
        open_party(str(tmp_path / "bank_a"))("hub", NO_MESSAGE)
    with pytest.raises(InputError, match="is no folder of a party"):
        open_party(str(tmp_path))("hub", NO_MESSAGE)


# In earnest.


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("method", MODELS)
def test_a_simulation_of_flowers_ends_where_one_process_ends(method, tmp_path):
    from tests.engines.test_flower import write_app

    text = text_of(method)
    (tmp_path / "parties").mkdir()
    write_parties(tmp_path / "parties", text, method)
    app, settings = write_app(tmp_path, text, folders=tmp_path / "parties", out=tmp_path / "out")
    with processes.simulation_link(tmp_path) as home:
        nodes = "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=2"
        processes.flwr(home, "run", app, "here", "--stream", "--federation-config", nodes, "--run-config", settings)
    check_ends_alike(tmp_path / "out", tmp_path / "parties", text, method)


@pytest.mark.slow
def test_a_deployment_of_flowers_ends_where_one_process_ends(tmp_path):
    from tests.engines.test_flower import write_app

    text = text_of("fedavg", evaluate_every=ROUNDS)  # every exchange is a process for each party
    (tmp_path / "parties").mkdir()
    write_parties(tmp_path / "parties", text, "fedavg")
    app, settings = write_app(tmp_path, text, out=tmp_path / "out")
    with processes.Deployment(tmp_path) as deployment:
        for name in PARTIES:
            deployment.register(name)
            deployment.start_node(name, f'name="{name}" folder="{tmp_path / "parties" / name}"')
        deployment.run(app, "--run-config", settings, seconds=480)
    check_ends_alike(tmp_path / "out", tmp_path / "parties", text, "fedavg")
    assert max(gaps(tmp_path / "out", tmp_path / "parties", *in_one_process(text, "fedavg", seed=7))) > 1e-3
