"""`graft check`: what it shows, what it finds, and its exit code."""

import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from graft.cli import app
from graft.data.data_file import read_data_file

ROWS = [f"n{i},{'yes' if i % 10 == 0 else 'no'},{i}.5,{'ab'[i % 2]},remark {i}" for i in range(40)]
NODES = "account_id,fraud,amount,branch,remark\n" + "\n".join(ROWS) + "\n"
EDGES = "sender,receiver\n" + "\n".join(f"n{i},n{i + 1}" for i in range(30)) + "\nn0,n1\nn5,n5\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(name="alpha", nodes=NODES, edges=EDGES):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "accounts.csv").write_text(nodes)
        (tmp_path / name / "payments.csv").write_text(edges)
        return name

    return write


def check(*arguments):
    return CliRunner().invoke(app, ["check", *map(str, arguments)])


def cells(output, client):
    return next(line.split() for line in output.splitlines() if line.startswith(f"{client} "))


def test_a_good_folder_is_shown_and_has_no_problem(folder):
    result = check(folder())
    assert result.exit_code == 0, result.output
    assert cells(result.output, "alpha") == ["alpha", "40", "30", "9", "1", "1", "100.0%", "0.80", "0"]
    assert "alpha: no 90.0%, yes 10.0%" in result.output
    assert "remark: ignored, text that hardly repeats itself" in result.output
    assert "No problem was found." in result.output


def test_the_schema_that_is_shown_can_be_pasted(folder, tmp_path):
    folder()
    folder("beta", edges=EDGES.replace("sender,receiver", "From,To"))
    shown = check("alpha", "beta").output
    schema = shown[shown.index("[schema]") : shown.index("client ")]
    (tmp_path / "data.toml").write_text(f'[clients]\nalpha = "alpha"\nbeta = "beta"\n\n{schema}')
    content = read_data_file(tmp_path / "data.toml")
    assert content.schema.numeric == ("amount",)
    assert content.schema.ignore == ("remark",)
    again = check("data.toml")
    assert again.exit_code == 0, again.output
    assert cells(again.output, "beta") == cells(shown, "beta")


def test_problems_are_listed_and_the_exit_code_is_2(folder):
    folder("good")
    folder("bad", NODES.replace("\nn3,no,3.5", "\nn3,no,x"), EDGES.replace("n7,n8", "n7,q8"))
    result = check("good", "bad")
    assert result.exit_code == 2
    assert "bad/accounts.csv, line 5, column amount: 'x' is not a finite number" in result.output
    assert "bad/payments.csv, line 9, column receiver: 'q8' is unknown" in result.output
    assert cells(result.output, "good")[1] == "40"


def test_clients_that_do_not_agree_are_named(folder):
    folder()
    folder("beta", NODES.replace("branch", "region"))
    folder("gamma", NODES.replace("yes", "no"))
    result = check("alpha", "beta", "gamma")
    assert result.exit_code == 2
    assert "client beta, column branch: there is no such column, but alpha has it" in result.output
    assert "client gamma, column region" in result.output
    assert "gamma has no node of class yes" in result.output


def test_classes_of_very_different_shares_are_a_note(folder):
    folder()
    folder("beta", NODES.replace("n1,no", "n1,yes").replace("5,no", "5,yes").replace("6,no", "6,yes"))
    result = check("alpha", "beta")
    assert result.exit_code == 0, result.output
    assert "class yes is 32.5% of the labelled nodes of beta, but 10.0% of alpha" in result.output


def test_values_far_out_are_a_note_until_their_logarithm_is_taken(folder, tmp_path):
    rows = [f"n{i},{'xy'[i % 2]},{1e9 if i == 7 else i}" for i in range(150)]
    folder(nodes="account_id,fraud,amount\n" + "\n".join(rows) + "\n")
    assert 'log = ["amount"]' in check("alpha").output
    (tmp_path / "schema.toml").write_text('log = ["amount"]\n')
    result = check("alpha", "--schema", "schema.toml")
    assert result.exit_code == 0, result.output
    assert "far out" not in result.output


def test_a_single_class_is_a_problem(folder):
    result = check(folder(nodes=NODES.replace("yes", "no")))
    assert result.exit_code == 2
    assert "a single class, 'no'" in result.output


def test_npz_files_and_data_files_are_checked(folder, tmp_path):
    x, edges = np.arange(6.0).reshape(3, 2), np.array([[0, 1], [1, 2]])
    for name in ("p", "q"):
        np.savez(tmp_path / f"{name}.npz", x=x, edges=edges, y=[0, 1, 0])
    folder()
    result = check("p.npz", "q.npz")
    assert result.exit_code == 0, result.output
    assert cells(result.output, "q")[:4] == ["q", "3", "2", "0"]
    np.savez(tmp_path / "q.npz", x=x[:, :1], edges=edges, y=[0, 1, 0])
    assert "Client q has 1 features, but client p has 2" in check("p.npz", "q.npz").output
    (tmp_path / "data.toml").write_text('folder = "alpha"\n[schema.edges]\ndirected = true\n')
    assert "directed = true" in check("data.toml").output


def test_a_schema_may_be_given_beside_folders(folder, tmp_path):
    (tmp_path / "schema.toml").write_text('[schema]\nunknown_nodes = "drop"\n')
    folder(edges=EDGES.replace("n7,n8", "n7,q8"))
    assert check("alpha").exit_code == 2
    result = check("alpha", "--schema", "schema.toml")
    assert result.exit_code == 0, result.output
    assert "1 edges to unknown nodes were dropped" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none",), "There is no file or folder none"),
        (("alpha", "alpha"), "differ by case alone"),
        (("alpha", "data.toml"), "give it alone"),
        (("alpha/accounts.csv",), "cannot be checked"),
        (("alpha", "--schema", "none.toml"), "none.toml cannot be read"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(folder, arguments, message):
    folder()
    result = check(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_help_imports_neither_polars_nor_torch():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom graft.cli import app\n"
        "assert CliRunner().invoke(app, ['check', '--help']).exit_code == 0\n"
        "assert CliRunner().invoke(app, ['check', 'none']).exit_code == 2\n"
        "print({'polars', 'torch'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
