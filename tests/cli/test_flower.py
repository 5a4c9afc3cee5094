"""`graft flower app`: the folder that Flower is given."""

import json
import tomllib

import pytest
from typer.testing import CliRunner

from graft.cli import app

NAMES = 'name = "banks"\nserver = "hub"\naddress = "127.0.0.1:8000"\n'
DATA = "classes = 10\nfeatures = 64\n"
FEDERATION = f'{NAMES}parties = ["bank_a", "bank_b"]\n{DATA}[experiment]\nmethod = "fedavg"\n'


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text(FEDERATION)
    return tmp_path


def flower_app(*words):
    result = CliRunner().invoke(app, ["flower", "app", *words])
    return result.exit_code, " ".join(result.output.split())


def test_the_folder_holds_settings_and_no_code(here):
    assert flower_app("banks")[0] == 0
    assert {path.name for path in (here / "banks").iterdir()} == {"pyproject.toml", "README.md"}
    project = tomllib.loads((here / "banks" / "pyproject.toml").read_text())
    parts = project["tool"]["flwr"]["app"]
    assert set(parts["components"].values()) == {"graft.engines.flower:server_app", "graft.engines.flower:client_app"}
    assert parts["config"]["federation"] == FEDERATION
    assert (parts["config"]["server"], parts["config"]["parties"]) == ("hub", "bank_a,bank_b")


def test_the_commands_name_this_federation_and_the_warning_is_there(here):
    flower_app("banks")
    text = (here / "banks" / "README.md").read_text()
    assert "num-supernodes=2" in text
    assert "flwr supernode register bank_a.key.pub deployment --name bank_a" in text
    assert "@" not in text
    assert "Whoever reaches the SuperLink can run code at every party" in text


def test_nothing_is_overwritten(here):
    (here / "banks").mkdir()
    status, text = flower_app("banks")
    assert (status, "banks exists already: name a new folder." in text) == (2, True)
    assert list((here / "banks").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("name =", "is not a readable TOML file"),
        (NAMES + DATA, "parties is missing"),
        (f'{NAMES}parties = ["bank a", "bank_b"]\n{DATA}', "is 'bank a'"),
        (f'{NAMES}parties = ["../hub", "bank_b"]\n{DATA}', "is '../hub'"),
        (f'{NAMES}parties = ["bank_a", "bank_a"]\n{DATA}', "need names of their own"),
        (f'{NAMES}parties = ["hub", "bank_b"]\n{DATA}', "need names of their own"),
        (
            f'name = "banks"\n{DATA}[peers]\na = "127.0.0.1:1"\nb = "127.0.0.1:2"\n[experiment]\nmethod = "dfed_sst"\n',
            "has no server, and Flower carries none without one",
        ),
    ],
    ids=["no TOML", "no parties", "a space", "a path", "twice", "the server", "peers"],
)
def test_a_file_of_which_flower_can_carry_nothing_is_refused(here, content, text):
    (here / "federation.toml").write_text(content)
    status, said = flower_app("banks")
    assert (status, text in said) == (2, True), said
    assert not (here / "banks").exists()


@pytest.mark.usefixtures("here")
def test_a_missing_file_is_refused():
    status, text = flower_app("banks", "--federation", "none.toml")
    assert status == 2
    assert "There is no federation file none.toml" in text


def flower_party(*words):
    result = CliRunner().invoke(app, ["flower", "party", "federation.toml", "--out", "folder", *words])
    return result.exit_code, " ".join(result.output.split())


def test_a_party_sees_what_will_leave_and_its_folder_says_where_its_data_are(here, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    status, said = flower_party("--as", "bank_b", "--data", "digits#1/2", "--approve", "--scores", "never")
    assert status == 0, said
    assert "model" in said
    assert "bank_b takes part in banks" in said
    record = json.loads((here / "folder" / "party.json").read_text())
    assert (record["name"], record["data"], record["policy"]["scores"]) == ("bank_b", "digits#1/2", "never")
    assert json.loads(record["federation"])["parties"] == ["bank_a", "bank_b"]
    assert (here / "folder" / "consent.json").is_file()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--as", "bank_b", "--data", "digits#1/2"], "Nobody is here to approve of that"),
        (["--as", "bank_z", "--data", "digits#1/2", "--approve"], "'bank_z' is no party of federation 'banks'"),
        (["--as", "bank_a", "--data", "nowhere", "--approve"], "nowhere"),
        (["--as", "bank_a", "--data", "digits#0/2", "--model", "gat", "--approve"], "one architecture for all"),
    ],
    ids=["not approved", "a stranger", "no data", "another model"],
)
def test_a_party_that_does_not_fit_or_does_not_approve_has_no_folder_that_answers(here, words, text):
    status, said = flower_party(*words)
    assert (status, text in said) == (2, True), said
    assert not (here / "folder" / "party.json").exists()


def test_a_folder_of_something_else_or_of_a_run_that_has_begun_is_left_alone(here):
    (here / "folder").mkdir()
    (here / "folder" / "mine").write_text("")
    words = "--as", "bank_a", "--data", "digits#0/2", "--approve"
    assert "folder is not empty" in flower_party(*words)[1]
    (here / "folder" / "mine").rename(here / "folder" / "federation.json")
    assert "is of a run that has begun" in flower_party(*words)[1]
