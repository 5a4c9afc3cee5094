"""Flower as the carrier: what reaches a party, what comes back, and who counts as absent, and why."""

import json
import subprocess
import sys
import tomllib
import zipfile

import pytest

from graft.engines.wire import Absent, Patience
from graft.errors import InputError
from tests.engines import flower_processes as processes

flwr = pytest.importorskip("flwr", reason="Flower is not installed: pip install 'graft-fgl[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict  # noqa: E402

from graft.engines import flower  # noqa: E402
from graft.engines.flower import FlowerNode, NotAnAnswer, place_of, server_app, unwrap, wrap  # noqa: E402
from tests.engines.flower_grid import COUNTING, PARTIES, FakeGrid, let_messages_be_made  # noqa: E402

SOON = Patience(0.3)
OF_NUMPY = Array("float32", (1,), "numpy.ndarray", b"")


def echo(sender, count, data):
    """What a counting party answers."""
    return f"{sender} {count} ".encode() + data[:100] + len(data).to_bytes(8, "little")


@pytest.fixture(autouse=True)
def _run_of_flower(monkeypatch):
    let_messages_be_made(monkeypatch)


@pytest.fixture
def grid(tmp_path):
    return FakeGrid(tmp_path)


def ask_all(grid, patience=SOON, data=b"x", **options):
    return FlowerNode(grid, "hub", PARTIES, **options).ask(dict.fromkeys(PARTIES, data), patience)


# Messages.


def test_every_party_gets_its_own_request_and_answers_by_name(grid):
    node = FlowerNode(grid, "hub", PARTIES)
    requests = {"bank_a": b"to a", "bank_c": b"to c"}
    assert node.ask(requests, SOON) == {name: echo("hub", 1, data) for name, data in requests.items()}
    assert node.present() == set(PARTIES)
    kinds = {(message.metadata.message_type, message.metadata.group_id) for message in grid.pushed}
    assert kinds == {("query.ask", "1")}  # no question for names: they are registered
    node.ask(requests, SOON)
    assert grid.pushed[-1].metadata.group_id == "2"


def test_a_party_is_opened_from_its_folder_for_every_message(grid):
    node = FlowerNode(grid, "hub", PARTIES)
    counts = [node.ask({"bank_b": b""}, SOON)["bank_b"] for _ in range(3)]
    assert counts == [echo("hub", count, b"") for count in (1, 2, 3)]
    assert node.ask({"bank_a": b""}, SOON)["bank_a"] == echo("hub", 1, b"")


@pytest.mark.parametrize("size", [0, 1, 6_000_000])  # Flower cuts arrays into pieces of 5 MB
def test_bytes_travel_as_they_are(size):
    data = bytes(range(251)) * (size // 251 + 1)
    message = Message(wrap(data[:size], party="bank_a"), 5, "query.ask")
    assert unwrap(message.content) == ({"party": "bank_a"}, data[:size])
    head, body = message.content["head"], message.content["body"]["bytes"]
    assert dict(head) == {"party": "bank_a"}
    assert body.data == data[:size]  # no pickle, and no header of NumPy's


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"head": ConfigRecord({"party": "bank_a"})}),
        RecordDict({"head": ConfigRecord({"party": 3}), "body": wrap(b"")["body"]}),
        RecordDict(
            {"head": ConfigRecord(), "body": ArrayRecord({"bytes": Array("float32", (1,), "numpy.ndarray", b"")})}
        ),
        RecordDict({"head": ConfigRecord(), "body": ArrayRecord({"other": Array("uint8", (0,), "raw", b"")})}),
    ],
    ids=["empty", "no body", "a number in the head", "an array of NumPy's", "another field"],
)
def test_what_is_no_message_of_graft_is_not_read(content, grid):
    with pytest.raises(NotAnAnswer):
        unwrap(content)
    grid.instead[900] = lambda message: Message(content, reply_to=message)
    answers = ask_all(grid)
    assert answers["bank_a"] == Absent("sent something that is no message of Graft")
    assert answers["bank_b"] == echo("hub", 1, b"x")


# Who is who.


def test_nodes_that_are_not_registered_are_asked_for_their_names(tmp_path):
    grid = FakeGrid(tmp_path, registered=False)
    node = FlowerNode(grid, "hub", PARTIES, registered=False)
    assert node.meet(PARTIES, 1) == set(PARTIES)
    assert {message.metadata.message_type for message in grid.pushed} == {"query.name"}
    assert node.ask({"bank_b": b"x"}, SOON) == {"bank_b": echo("hub", 1, b"x")}
    assert len(grid.pushed) == len(PARTIES) + 1  # each was asked once


def test_a_node_that_cannot_say_its_name_is_asked_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(flower, "ASK_AGAIN_SECONDS", 0.05)
    grid = FakeGrid(tmp_path, registered=False)

    def crash(message):
        del grid.instead[900]
        return Message(Error(8, ""), reply_to=message)

    grid.instead[900] = crash
    folder = grid.node_configs[899].pop("folder")
    node = FlowerNode(grid, "hub", PARTIES, registered=False)
    assert node.meet(PARTIES, 0.2) == {"bank_a", "bank_c"}
    grid.node_configs[899]["folder"] = folder
    assert node.meet(PARTIES, 5) == set(PARTIES)
    assert "node 900 does not say its name: it lost the process" in caplog.text
    assert "node 899 does not say its name: it failed with InputError" in caplog.text


def test_a_node_that_only_says_it_is_a_party_is_none_where_nodes_are_registered(tmp_path):
    grid = FakeGrid(tmp_path, registered=False)
    assert ask_all(grid) == dict.fromkeys(PARTIES, Absent("is not connected"))
    assert grid.pushed == []
    assert FlowerNode(grid, "hub", PARTIES, registered=False).meet(PARTIES, 1) == set(PARTIES)


def test_a_node_with_a_partys_name_that_is_another_does_not_answer_for_it(grid):
    grid.node_configs[900]["name"] = "bank_x"
    answers = ask_all(grid)
    assert answers["bank_a"] == Absent("was asked as 'bank_a', but is bank_x")
    assert not (set(PARTIES) - {"bank_a"}) & {name for name, answer in answers.items() if isinstance(answer, Absent)}


def test_an_answer_in_the_name_of_another_party_is_none(grid):
    grid.instead[900] = lambda message: Message(wrap(b"mine", party="bank_b"), reply_to=message)
    answers = ask_all(grid)
    assert answers["bank_a"] == Absent("answered as 'bank_b'")
    assert answers["bank_b"] == echo("hub", 1, b"x")


def test_an_answer_from_another_node_is_none(grid):
    def forge(message):
        reply = Message(wrap(b"mine", party="bank_a"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 899
        return reply

    grid.instead[900] = forge
    assert ask_all(grid)["bank_a"] == Absent("was answered for by another node")


def test_a_name_that_two_nodes_have_is_nobodys(grid):
    grid.add(7, "bank_a", grid.node_configs[900])
    assert ask_all(grid)["bank_a"] == Absent("is the name of 2 nodes at once")
    grid.online.discard(7)
    assert ask_all(grid)["bank_a"] == echo("hub", 1, b"x")


def test_nodes_of_others_are_left_alone(grid, caplog):
    grid.add(7, "bank_z", grid.node_configs[900])
    node = FlowerNode(grid, "hub", PARTIES)
    assert node.present() == set(PARTIES)
    node.ask(dict.fromkeys(PARTIES, b""), SOON)
    assert 7 not in {message.metadata.dst_node_id for message in grid.pushed}
    assert "node 7 is 'bank_z', not a party of this federation" in caplog.text


# Who does not answer, and why.


@pytest.mark.parametrize(
    ("code", "text", "reason"),
    [
        (2, "ValueError:\n  no\x1b[2J", "failed in Graft's app: ValueError: no"),
        (5, "Node unavailable", "is not connected"),
        (8, "", "lost the process that worked on it"),
        (77, "?", "failed with Flower's error 77"),
    ],
)
def test_flowers_errors_are_absences(grid, code, text, reason):
    grid.instead[899] = lambda message: Message(Error(code, text), reply_to=message)
    answers = ask_all(grid)
    assert answers["bank_b"].reason.startswith(reason)
    assert "\x1b" not in answers["bank_b"].reason
    assert answers["bank_a"] == echo("hub", 1, b"x")


@pytest.mark.parametrize(("data", "kind"), [(b"fail", "RuntimeError"), (b"refuse", "InputError")])
def test_what_went_wrong_at_a_party_stays_in_its_log(grid, caplog, data, kind):
    reason = ask_all(grid, data=data)["bank_a"].reason
    assert reason == f"failed with {kind}: its own log says why"
    assert "a secret of this party" in caplog.text or kind != "RuntimeError"


def test_a_party_without_a_folder_is_absent(grid, tmp_path, caplog):
    grid.node_configs[900]["folder"] = str(tmp_path / "nowhere")
    assert ask_all(grid)["bank_a"] == Absent("failed with InputError: its own log says why")
    assert "nowhere cannot be used" in caplog.text
    del grid.node_configs[899]["folder"]
    ask_all(grid)
    assert "--node-config has no folder" in caplog.text


def test_who_does_not_answer_in_time_is_absent_and_what_comes_later_is_dropped(grid):
    kept = []
    grid.instead[899] = lambda message: kept.append(message)
    node = FlowerNode(grid, "hub", PARTIES)
    answers = node.ask(dict.fromkeys(PARTIES, b"first"), SOON)
    assert answers["bank_b"].reason.startswith("did not answer within 0.3")
    assert answers["bank_a"] == echo("hub", 1, b"first")
    assert 0 < kept[0].metadata.ttl <= 0.3 + flower.TRANSIT_SECONDS
    del grid.instead[899]
    grid.replies[kept[0].metadata.message_id] = Message(wrap(b"late", party="bank_b"), reply_to=kept[0])
    assert node.ask({"bank_b": b"second"}, SOON) == {"bank_b": echo("hub", 1, b"second")}


def test_a_reply_to_something_else_answers_nothing(grid):
    def mix_up(message):
        reply = Message(wrap(b"mine", party="bank_a"), reply_to=message)
        reply.metadata.__dict__["_reply_to_message_id"] = "message-77"
        return reply

    grid.instead[900] = mix_up
    assert ask_all(grid)["bank_a"].reason.startswith("did not answer within")


def test_a_quorum_leaves_the_others_a_moment(grid):
    grid.instead[898] = lambda _: None
    answers = ask_all(grid, Patience(60, quorum=2, grace=0.05))
    assert [isinstance(answers[name], bytes) for name in PARTIES] == [True, True, False]


def test_a_party_that_is_away_is_asked_when_it_comes_back(grid):
    grid.online.discard(899)
    assert ask_all(grid)["bank_b"] == Absent("is not connected")

    def bring_back(message):
        grid.online.add(899)
        return Message(wrap(b"", party="bank_a"), reply_to=message)

    grid.instead[900] = bring_back
    assert ask_all(grid, Patience(5, comeback=5))["bank_b"] == echo("hub", 1, b"x")


def test_a_party_that_is_lost_while_it_works_is_asked_again(grid):
    def lose(message):
        del grid.instead[899]
        return Message(Error(5, "Node unavailable"), reply_to=message)

    grid.instead[899] = lose
    assert ask_all(grid, Patience(5, comeback=5))["bank_b"] == echo("hub", 1, b"x")
    grid.instead[899] = lose
    assert ask_all(grid, Patience(5))["bank_b"] == Absent("is not connected")


# The two apps.


def context(node, run=None):
    return Context(1, 5, node, RecordDict(), {"server": "hub", **(run or {})})


def test_a_party_of_a_deployment_lies_where_the_party_says_and_not_where_the_run_says():
    run = {"parties": "bank_a", "folders": "/elsewhere", "open-party": "os:system"}
    place = place_of(context({"name": "bank_a", "folder": "here"}, run))
    assert (place.name, str(place.folder), place.server) == ("bank_a", "here", "hub")
    assert place.open_party == flower.OPEN_PARTY
    assert place_of(context({"name": "bank_a", "folder": "here", "server": "mine"}, run)).server == "mine"


def test_a_party_of_a_simulation_is_found_by_its_number():
    run = {"parties": "bank_a,bank_b", "folders": "parties", "open-party": COUNTING}
    place = place_of(context({"partition-id": 1, "num-partitions": 3}, run))
    assert (place.name, str(place.folder), place.open_party) == ("bank_b", "parties/bank_b", COUNTING)
    with pytest.raises(InputError, match="has 2 parties; Flower simulates more nodes"):
        place_of(context({"partition-id": 2, "num-partitions": 3}, run))


def test_the_servers_app_hands_its_node_to_what_the_settings_name(grid, tmp_path, monkeypatch):
    monkeypatch.setenv("PARTIES", json.dumps(PARTIES))
    monkeypatch.setenv("REQUESTS", json.dumps([{"text": "hello"}]))
    run = {"server": "hub", "parties": ",".join(PARTIES), "folders": "", "meeting-seconds": 5, "federation": "a text"}
    run |= {"serve": "tests.engines.flower_parties:serve_echo", "out": str(tmp_path / "out")}
    server_app(grid, Context(1, 1, {}, RecordDict(), run))
    told = json.loads((tmp_path / "out" / "answers.json").read_text())
    assert (told["name"], told["present"], told["federation"]) == ("hub", PARTIES, "a text")
    assert told["rounds"][0]["answers"] == {name: echo("hub", 1, b"hello").hex() for name in PARTIES}
    with pytest.raises(InputError, match="'no:thing' cannot be loaded"):
        server_app(grid, Context(1, 1, {}, RecordDict(), run | {"serve": "no:thing"}))


def test_without_flower_the_extra_is_named():
    code = "import sys; sys.modules['flwr'] = None; import graft.engines.flower"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "InputError: Flower is not installed: pip install 'graft-fgl[flower]'." in done.stderr


# In earnest.


def test_nothing_that_lies_in_the_folder_travels_but_what_was_written_there(tmp_path, monkeypatch):
    app, _ = make_app(tmp_path)
    for name in ("accounts.json", "parties/bank_a/secret.toml", "parties/README.md", "extra.py"):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text("")
    monkeypatch.chdir(tmp_path)
    processes.flwr(tmp_path / "home", "build", "--app", app)
    (bundle,) = tmp_path.glob("*.fab")
    assert set(zipfile.ZipFile(bundle).namelist()) - {".info/CONTENT"} == {"pyproject.toml", "README.md"}


def make_app(folder, **settings):
    """Write the project of a federation of three that echoes, and return its folder and the settings of a run."""
    names = f'name = "banks"\nserver = "hub"\naddress = "127.0.0.1:8000"\nparties = {json.dumps(PARTIES)}\n'
    settings |= {"serve": "tests.engines.flower_parties:serve_echo", "out": folder / "out"}
    return write_app(folder, f"{names}classes = 10\nfeatures = 64\n", **settings)


def write_app(folder, text, **settings):
    """Write the project of a federation's file, and return its folder and the settings of a run."""
    from typer.testing import CliRunner

    from graft.cli import app

    (folder / "federation.toml").write_text(text)
    words = ["flower", "app", str(folder / "app"), "--federation", str(folder / "federation.toml")]
    assert CliRunner().invoke(app, words).exit_code == 0
    known = tomllib.loads((folder / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert set(settings) <= set(known)
    return folder / "app", " ".join(f'{name}="{value}"' for name, value in settings.items())


def rounds_of(folder):
    told = json.loads((folder / "out" / "answers.json").read_text())
    assert (told["name"], told["present"]) == ("hub", PARTIES)
    return [entry["answers"] for entry in told["rounds"]]


REQUESTS = [{"text": "hello"}, {"size": 1_000_000}, {"text": "fail"}]


def check_rounds(rounds):
    assert rounds[0] == {name: echo("hub", 1, b"hello").hex() for name in PARTIES}
    assert rounds[1] == {name: echo("hub", 2, bytes(1_000_000)).hex() for name in PARTIES}
    assert rounds[2] == dict.fromkeys(PARTIES, "failed with RuntimeError: its own log says why")


@pytest.mark.slow
@pytest.mark.ray
def test_a_federation_on_flowers_simulation(tmp_path):
    for name in PARTIES:
        (tmp_path / "parties" / name).mkdir(parents=True)
    app, settings = make_app(tmp_path, folders=tmp_path / "parties", **{"open-party": COUNTING})
    variables = {"PARTIES": json.dumps(PARTIES), "REQUESTS": json.dumps(REQUESTS)}
    with processes.simulation_link(tmp_path, **variables) as home:
        nodes = "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=2"
        processes.flwr(home, "run", app, "here", "--stream", "--federation-config", nodes, "--run-config", settings)
    check_rounds(rounds_of(tmp_path))


@pytest.mark.slow
def test_a_federation_on_a_flower_deployment(tmp_path):
    app, settings = make_app(tmp_path)
    variables = {"PARTIES": json.dumps(PARTIES), "REQUESTS": json.dumps(REQUESTS)}
    with processes.Deployment(tmp_path, **variables) as deployment:
        for name in PARTIES:
            folder = tmp_path / "parties" / name
            folder.mkdir(parents=True)
            deployment.register(name)
            deployment.start_node(name, f'name="{name}" folder="{folder}" open-party="{COUNTING}"')
        deployment.run(app, "--run-config", settings)
    check_rounds(rounds_of(tmp_path))
