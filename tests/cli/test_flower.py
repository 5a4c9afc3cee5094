"""`graft flower app`: the folder that Flower is given."""

import tomllib

import pytest
from typer.testing import CliRunner

from graft.cli import app

FEDERATION = 'name = "banks"\nserver = "hub"\nparties = ["bank_a", "bank_b"]\nmethod = "fedavg"\n'


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
        ("name =", "cannot be read as a federation's file"),
        ('name = "banks"\nserver = "hub"\n', "should have name, server, and parties"),
        ('server = "hub"\nparties = ["bank a"]\n', "'bank a' is no such name"),
        ('server = "hub"\nparties = ["../hub"]\n', "'../hub' is no such name"),
        ('server = "hub"\nparties = ["bank_a", "bank_a"]\n', "each used once"),
        ('server = "hub"\nparties = ["hub"]\n', "each used once"),
    ],
    ids=["no TOML", "no parties", "a space", "a path", "twice", "the server"],
)
def test_a_file_that_names_nobody_or_somebody_twice_is_refused(here, content, text):
    (here / "federation.toml").write_text(content)
    status, said = flower_app("banks")
    assert (status, text in said) == (2, True), said
    assert not (here / "banks").exists()


@pytest.mark.usefixtures("here")
def test_a_missing_file_is_refused():
    status, text = flower_app("banks", "--federation", "none.toml")
    assert status == 2
    assert "none.toml cannot be read as a federation's file" in text
