"""`graft keys`."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from graft.cli import app
from graft.keys import load_keys

pytest.importorskip("cryptography")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def invoke(*words):
    result = CliRunner().invoke(app, ["keys", *words])
    return result.exit_code, " ".join(result.output.split())


def test_a_ca_and_keys_of_a_server_and_a_party_are_made(tmp_path):
    assert invoke("ca", "authority", "--name", "Our CA")[0] == 0
    status, said = invoke("party", "server", "--ca", "authority", "--address", "fl.example", "--address", "10.0.0.7")
    assert status == 0
    assert "server/server.key: its key, which only server may have." in said
    assert invoke("party", "bank_a", "--ca", "authority", "--out", "keys/a", "--days", "30")[0] == 0
    load_keys(tmp_path / "server", "server", listens=True)
    load_keys(tmp_path / "keys" / "a", "bank_a", connects=True)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["party", "bank_a", "--ca", "nowhere"], "There is no CA in nowhere"),
        (["party", "bank a", "--ca", "authority"], "'bank a' cannot be the name"),
        (["party", "ca", "--ca", "authority"], "'ca' cannot be the name"),
        (["party", "bank_a", "--ca", "authority", "--address", "host:1"], "'host:1' is not an address"),
        (["party", "bank_a", "--ca", "authority", "--days", "0"], "1 to 36500 days"),
        (["ca", "authority"], "authority/ca.crt exists already"),
        (["ca", "another", "--name", ""], "The name of a CA"),
    ],
)
def test_a_mistake_is_one_sentence(words, problem):
    assert invoke("ca", "authority")[0] == 0
    status, said = invoke(*words)
    assert status == 2
    assert problem in said
    assert said.startswith("graft: ")


def test_help_imports_neither_torch_nor_cryptography_nor_zenoh():
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom graft.cli import app\n"
        "assert CliRunner().invoke(app, ['keys', '--help']).exit_code == 0\n"
        "print(*(name for name in ('torch', 'cryptography', 'zenoh') if name in sys.modules))\n"
    )
    output = subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True, text=True)
    assert output.stdout.split() == []
