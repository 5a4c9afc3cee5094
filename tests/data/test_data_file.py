"""Data files: whose data are where, what columns mean, and all that such a file can get wrong."""

import subprocess
import sys

import pytest

from graft.data.data_file import read_data_file, read_schema
from graft.data.schema import Schema, canonical, parse_schema
from graft.errors import InputError

FULL = """
[clients]
alpha = "alpha"
beta = { nodes = "beta/accounts.csv", edges = "beta/payments.csv" }
"gamma & sons" = "gamma.npz"

[schema]
nodes = "accounts.csv"
id = "Account ID"
label = "fraud"
positive = "yes"
numeric = ["Balance", "turnover"]
categorical = { branch = ["north", "south"], channel = [] }
date = { opened = "%d.%m.%Y", closed = "" }
log = ["Turnover"]
ignore = ["holder"]
rename = { saldo = "balance" }
split = "set"
time = "opened at"
separator = ";"
encoding = "cp1252"
decimal = ","
missing = ["", "n/a"]
hash = 32
unknown_nodes = "drop"

[schema.edges]
file = "payments.csv"
source = "From"
target = "To"
directed = true
time = "paid"
weight = "amount"
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "alpha").mkdir()
    (tmp_path / "beta").mkdir()
    for name in ("beta/accounts.csv", "beta/payments.csv", "gamma.npz"):
        (tmp_path / name).touch()

    def put(text, name="data.toml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return put


def test_everything_that_a_data_file_can_say(write, tmp_path):
    content = read_data_file(write(FULL))
    assert list(content.clients) == ["alpha", "beta", "gamma & sons"]
    assert content.clients["alpha"].path == tmp_path / "alpha"
    assert content.clients["beta"].edges_file == tmp_path / "beta" / "payments.csv"
    assert content.single is None
    schema = content.schema
    assert schema == Schema(
        nodes="accounts.csv",
        edges="payments.csv",
        id="account_id",
        label="fraud",
        positive="yes",
        numeric=("balance", "turnover"),
        categorical=("branch", "channel"),
        categories={"branch": ("north", "south")},
        date=("opened", "closed"),
        date_formats={"opened": "%d.%m.%Y"},
        log=("turnover",),
        ignore=("holder",),
        rename={"saldo": "balance"},
        split="set",
        time="opened_at",
        separator=";",
        encoding="cp1252",
        decimal=",",
        missing=("", "n/a"),
        hash=32,
        unknown_nodes="drop",
        source="from",
        target="to",
        directed=True,
        edge_time="paid",
        edge_weight="amount",
    )
    assert parse_schema(schema.to_dict(), "again") == schema
    assert read_schema(write(schema.to_toml(), "schema.toml")) == schema
    assert read_schema(tmp_path / "data.toml") == schema


def test_a_schema_may_stand_alone_and_be_empty(write):
    assert read_schema(write('id = "a"\n')) == Schema(id="a")
    assert read_data_file(write('[clients]\nalpha = "alpha"\n')).schema == Schema()
    assert parse_schema(Schema(missing=()).to_dict(), "here") == Schema(missing=())


def test_one_dataset_needs_no_clients(write, tmp_path):
    content = read_data_file(write('folder = "alpha"\n'))
    assert content.clients == {}
    assert content.single.path == tmp_path / "alpha"
    pair = read_data_file(write('nodes = "beta/accounts.csv"\nedges = "beta/payments.csv"\n')).single
    assert (pair.nodes_file.name, pair.edges_file.name) == ("accounts.csv", "payments.csv")


CLIENTS = '[clients]\nalpha = "alpha"\n'
BAD = {
    "not TOML": ("[clients\n", "is not a readable TOML file"),
    "nothing": ("", r"needs either a table \[clients\]"),
    "both": (f'folder = "alpha"\n{CLIENTS}', r"needs either a table \[clients\]"),
    "no client": ("[clients]\n", r"needs either a table \[clients\]"),
    "clients are a list": ('clients = ["alpha"]\n', "is a table of names and folders"),
    "an unknown key": (f"clinets = 1\n{CLIENTS}", "no key 'clinets' .did you mean 'clients'.*keys are clients, schema"),
    "a folder that is not there": ('[clients]\nalpha = "alhpa"\n', "alpha: there is no file or folder .*alhpa"),
    "a file with a NUL": ('[clients]\nalpha = "a\\u0000b"\n', "there is no file or folder"),
    "a number for a folder": ("[clients]\nalpha = 3\n", "alpha: the data of a client are a folder"),
    "nodes alone": ('[clients]\nalpha = { nodes = "alpha" }\n', "alpha: edges must name a file"),
    "something beside nodes": ('[clients]\nalpha = { nodez = "alpha" }\n', "no key 'nodez' .did you mean 'nodes'"),
    "nodes of one dataset alone": ('nodes = "alpha"\n', "the dataset: edges must name a file"),
    "folder and nodes": ('folder = "alpha"\nnodes = "alpha"\n', "give either folder, or nodes and edges"),
    "an empty name": ('[clients]\n"" = "alpha"\n', "a client's name has 1 to 100 letters"),
    "a long name": (f'[clients]\n{"a" * 101} = "alpha"\n', "a client's name has 1 to 100 letters"),
    "a name with a slash": ('[clients]\n"a/b" = "alpha"\n', "could not be that of a file"),
    "a name with a line break": ('[clients]\n"a\\nb" = "alpha"\n', "could not be that of a file"),
    "a name that is a folder": ('[clients]\n".." = "alpha"\n', "could not be that of a file"),
    "two names alike": (f'{CLIENTS}ALPHA = "alpha"\n', "'alpha' and 'ALPHA' differ by case alone"),
    "schema is a text": (f'schema = "x"\n{CLIENTS}', "schema is a table"),
    "a typing error": (
        f'{CLIENTS}[schema]\nlable = "x"\n',
        r"\[schema\]: there is no key 'lable' .did you mean 'label'",
    ),
    "one of edges": (
        f'{CLIENTS}[schema.edges]\nsorce = "x"\n',
        r"\[schema.edges\]: there is no key 'sorce' .did you mean",
    ),
    "id is a number": (f"{CLIENTS}[schema]\nid = 3\n", "id is a text, not 3"),
    "numeric is a text": (f'{CLIENTS}[schema]\nnumeric = "x"\n', "numeric is a list of texts"),
    "a column twice": (f'{CLIENTS}[schema]\nnumeric = ["a", "A"]\n', "numeric names the column 'a' twice"),
    "two meanings": (f'{CLIENTS}[schema]\nnumeric = ["a"]\ndate = ["a"]\n', "column 'a' is both numeric and date"),
    "label and feature": (f'{CLIENTS}[schema]\nlabel = "a"\nnumeric = ["a"]\n', "'a' is both label and numeric"),
    "source is target": (f'{CLIENTS}[schema.edges]\nsource = "a"\ntarget = "A"\n', "source and target are both 'a'"),
    "a category twice": (f'{CLIENTS}[schema]\ncategorical = {{ a = ["x", "x"] }}\n', "a names a category twice"),
    "a date without a form": (f'{CLIENTS}[schema]\ndate = {{ a = "day" }}\n', "a is a form of dates"),
    "a separator": (f'{CLIENTS}[schema]\nseparator = "x"\n', "separator is one of"),
    "an encoding": (f'{CLIENTS}[schema]\nencoding = "klingon"\n', "there is no encoding 'klingon'"),
    "a decimal": (f'{CLIENTS}[schema]\ndecimal = ";"\n', "decimal is one of"),
    "buckets": (f"{CLIENTS}[schema]\nhash = 0\n", "hash is a whole number from 1 to"),
    "buckets that are true": (f"{CLIENTS}[schema]\nhash = true\n", "hash is a whole number"),
    "directed": (f'{CLIENTS}[schema.edges]\ndirected = "yes"\n', "directed is true or false"),
    "unknown nodes": (f'{CLIENTS}[schema]\nunknown_nodes = "keep"\n', "unknown_nodes is one of 'refuse', 'drop'"),
    "positive": (f"{CLIENTS}[schema]\npositive = true\n", "positive is the text of a class"),
    "the logarithm of a date": (f'{CLIENTS}[schema]\nlog = ["a"]\ndate = ["a"]\n', "'a' is under log, but also date"),
    "rename": (f'{CLIENTS}[schema]\nrename = ["a"]\n', "rename is a table"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_data_files_are_refused_in_one_sentence(write, kind):
    text, message = BAD[kind]
    path = write(text)
    with pytest.raises(InputError, match=message) as caught:
        read_data_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_huge_or_not_text_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_data_file(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\0")
    with pytest.raises(InputError, match="not a readable TOML file"):
        read_data_file(tmp_path / "binary.toml")
    (tmp_path / "huge.toml").write_bytes(b"#" * 2**21)
    with pytest.raises(InputError, match="larger than a data file can be"):
        read_data_file(tmp_path / "huge.toml")


def test_names_of_columns_have_one_form():
    forms = ("Account ID", " account_id ", "ACCOUNT-ID", "account.id", "account  id", "_account_id_")
    assert {canonical(form) for form in forms} == {"account_id"}
    assert canonical("accountid") != "account_id"


def test_reading_a_data_file_imports_nothing_heavy():
    code = "import graft.data.data_file, sys; print({'numpy', 'polars', 'torch'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
