"""The pages on real federations: files are read, commands understood, the sheet and the table are what the code has."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graft.cli import app
from graft.engines.policy import Policy, read_policy
from graft.experiments.consent import consent_sheet, describe_consent
from graft.experiments.federation_file import Content, read_federation
from graft.experiments.federation_rules import Limits, RoundRules
from graft.experiments.parties_setup import forms_of
from graft.federation.method import Method
from graft.federation.reveals import declared
from graft.methods import METHODS
from tests.documents import ROOT, blocks, commands
from tests.test_commands import parse
from tools import threat_page

PAGE = ROOT / "docs" / "federations.md"
TEXT = PAGE.read_text(encoding="utf-8")
THREATS = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
WAITING = ("serve", "join", "peer", "trial")  # commands that wait for others, or start processes


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the files of the page."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(PAGE):
        if block.file:
            Path(block.file).write_text(block.code)
    return tmp_path


def lines_of(opening):
    """Returns the lines of the block that begins with a text."""
    return next(block.code for block in blocks(PAGE) if block.code.startswith(opening)).splitlines()


def run(words):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.usefixtures("here")
def test_files_of_the_page_are_read():
    with_server, without = read_federation(Path("federation.toml")), read_federation(Path("without_server.toml"))
    assert (with_server.has_server, without.has_server) == (True, False)
    assert read_policy(Path("policy.toml")) == Policy()


def test_every_key_is_explained_with_its_default():
    named = set(re.findall(r"`\[?(\w+)\]?`", TEXT))
    assert {entry.name for kind in (Content, RoundRules, Limits) for entry in fields(kind)} - named == set()
    assert "no_such_key" not in named
    for entry in fields(RoundRules):
        if entry.default is not None:
            assert f"| `{entry.name}` | {entry.default} |" in TEXT
    policy = next(block.code for block in blocks(PAGE) if block.file == "policy.toml")
    assert [line.split(" = ")[0] for line in policy.splitlines()] == [entry.name for entry in fields(Policy)]


@pytest.mark.usefixtures("here")
def test_commands_are_understood_and_keys_are_made():
    pytest.importorskip("cryptography")
    from graft.keys import load_keys

    called = set()
    for command in commands(PAGE):
        name = command.words[0]
        called.add(name)
        parse(command)
        if name == "keys":
            run(command.words)
    assert called >= {"keys", *WAITING}
    for name in ("hub", "alpha", "beta", "gamma"):
        assert load_keys(Path("keys") / name, name).key.is_file()


@pytest.mark.usefixtures("here")
def test_the_sheet_is_the_one_that_a_party_sees():
    file = read_federation(Path("federation.toml"))
    facts = {"federation": file.name, "server": file.server, "parties": len(file.parties)}
    sheet = consent_sheet(file.method, "fedgkc", forms_of(file, ["sage"]), rounds=file.experiment.rounds, facts=facts)
    seen = describe_consent(sheet).splitlines()
    shown = [line for line in lines_of("Method    fedgkc") if line.strip() != "..."]
    assert shown[:-1] == [line for line in seen if line in shown][: len(shown) - 1]
    left_out = [line for line in seen if line not in shown]
    assert all(" = " in line or line.startswith("This sheet") for line in left_out)


def table_rows():
    """Returns the rows of the table of what leaves, by method."""
    region = THREATS.partition("<!-- leaves -->")[2].partition("<!-- /leaves -->")[0]
    return {match[1]: match[0] for match in re.finditer(r"^\| \[`(\w+)`\].*$", region, re.MULTILINE)}


def test_the_table_of_what_leaves_has_every_method_and_names_what_is_declared():
    assert set(table_rows()) == {name for name in METHODS if METHODS[name].place is Method.place}
    for name, row in table_rows().items():
        named = set(re.findall(r"`(\w+/[\w/]+)`", row))
        assert named <= set(declared(METHODS[name]))
        assert all(f"`{field}`" in row for field in METHODS[name].logged if "/" in field and field in named)


@pytest.mark.slow
def test_the_table_of_what_leaves_is_as_the_code_has_it():
    assert threat_page.filled() == THREATS, "out of date: run python -m tools.threat_page"


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_trial_leads_from_the_page_to_predictions():
    pytest.importorskip("zenoh")
    pytest.importorskip("cryptography")
    printed = {}
    for command in commands(PAGE):
        name, *rest = command.words
        words = ["runs/trial/alpha" if word == "runs/alpha" else word for word in rest]
        if name in ("example", "trial", "predict", "export"):
            printed[name] = run([name, *words, *(["--seconds", "500"] if name == "trial" else [])])
    shown = lines_of("4 processes")
    assert [masked(line) for line in printed["trial"].splitlines()] == [masked(line) for line in shown]
    rows = Path("alpha-new.csv").read_text().splitlines()
    assert rows[0] == "id,class,p(no),p(yes)"
    assert len(rows) > 100
    assert (Path("alpha-model") / "model.py").is_file()
    sent = Path("runs/trial/alpha/party/sent.jsonl").read_text()
    assert '"field": "copilot/head/weight"' in sent


def masked(line):
    """Returns a line without scores and numbers of best rounds, which depend on the machine."""
    return re.sub(r" +\d+(\.\d+)?( %)?(?=,|$)", " N", line)
