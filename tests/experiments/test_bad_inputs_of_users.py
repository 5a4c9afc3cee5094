"""What people give the command line that cannot be: one sentence, exit code 2 and nothing written, and where the words
alone are wrong, nothing loaded either."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from graft.cli import app
from tests.experiments.bad_files import (
    ALPHA,
    HEADER,
    PAYMENTS,
    ROWS,
    accounts,
    bank,
    bomb,
    data_file,
    encrypted,
    npz,
    pyg,
    together,
    truncated,
    write,
)

SMALL = "--dataset synthetic:nodes=120,degree=6,classes=3,features=8 --clients 3 --rounds 1 --method fedavg"


class Case(NamedTuple):
    """A command that is refused, a part of the sentence, and what has to be in the folder for it."""

    command: str
    sentence: str
    files: Callable[[Path], object] = lambda _: None
    listed: bool = False  # whether problems are listed below the sentence


ONE, TWO = "run --graphs a.npz", "run --graphs a.npz b.npz"


# What is wrong by what was typed alone.

TYPED = {
    "an existing folder": Case(
        f"run {SMALL} --out full", "exists already; choose another --out", write(full__a_txt="")
    ),
    "a folder of one of several runs": Case(
        f"run {SMALL} --against local --out full", "full/local exists already", write(full__local__a_txt="")
    ),
    "a file for a folder": Case(
        f"run {SMALL} --out full.txt", "is a file; a run needs a directory", write(full_txt="")
    ),
    "overwriting what is no run": Case(
        f"run {SMALL} --out full --overwrite", "not a run directory, so it is not overwritten", write(full__a_txt="")
    ),
    "a method": Case(f"run {SMALL} --method fedavgg", "Unknown method 'fedavgg' (did you mean 'fedavg'"),
    "a method to compare with": Case(f"run {SMALL} --against locale", "Unknown method 'locale' (did you mean 'local'"),
    "a plug": Case(f"run {SMALL} --plug fedtaad", "Unknown plug 'fedtaad'"),
    "a plug for a method without a server": Case(
        f"run {SMALL} --method local --plug fedtad", "cannot be added to Local"
    ),
    "a dataset": Case("run --dataset korra", "There is no dataset or file 'korra' (did you mean 'cora'"),
    "a model": Case(f"run {SMALL} --models gcn,gcm", "Unknown model 'gcm'"),
    "a partition": Case(f"run {SMALL} --partition louvian", "There is no partition method or file 'louvian'"),
    "an option of a partition": Case(f"run {SMALL} --partition louvain:size=3", "has no option 'size'"),
    "a topology": Case(f"run {SMALL} --method dpsgd --topology torus", "no topology 'torus'"),
    "a topology of other peers": Case(f"run {SMALL} --method dpsgd --topology star:centre=7", "star of 3 peers"),
    "a field of a method": Case(f"run {SMALL} --set mu=1", "Unknown setting 'mu' of method 'fedavg'"),
    "a value of a field": Case(f"run {SMALL} --method fedprox --set mu=much", "'mu' of method 'fedprox' is 'much'"),
    "a setting without a value": Case(f"run {SMALL} --set mu", "--set name=value"),
    "a width for heads": Case(f"run {SMALL} --models gat --width 6", "shares its width among 4 heads"),
    "a global model that is not": Case(
        f"run {SMALL} --method local --score global", "score is global, but method 'local' has no global model"
    ),
    "a method against itself": Case(f"run {SMALL} --against fedavg", "names a method twice"),
    "a method twice": Case(f"run {SMALL} --against local,local", "names a method twice"),
    "a contribution to nothing": Case(f"run {SMALL} --contribution", "add --against local"),
    "a contribution to others": Case(f"run {SMALL} --against centralised --contribution", "add --against local"),
    "a topology with a server": Case(f"run {SMALL} --topology ring", "sends nothing between peers"),
    "several architectures": Case(f"run {SMALL} --models gcn,gat", "needs one architecture for all clients"),
    "batches": Case(f"run {SMALL} --method fedsage_plus --batches 2", "batches must be 1, not 2"),
    "a metric": Case(f"run {SMALL} --metric auprcc", "There is no metric 'auprcc' (did you mean 'auprc'"),
    "a metric twice": Case(f"run {SMALL} --metric auroc,f1,auroc", "names auroc twice"),
    "a split of two": Case(f"run {SMALL} --split 20/40", "The split '20/40' cannot be read"),
    "a split of too much": Case(f"run {SMALL} --split 80/40/40", "The split '80/40/40' is not possible"),
    "a split by time of two": Case(f"run {SMALL} --split time:60/40", "The split 'time:60/40' cannot be read"),
    "graphs and a dataset": Case("run --graphs a.npz --dataset cora", "Both graphs and the dataset 'cora'", npz()),
    "graphs and a number of clients": Case(
        f"{TWO} --clients 5", "clients is 5, but every client brings its own graph, 2 in all", together(npz(), npz("b"))
    ),
    "graphs and a partition": Case(f"{TWO} --partition metis", "so leave partition out", together(npz(), npz("b"))),
    "a graph that is not there": Case("run --graphs a.npz gone", "There is no folder or .npz file gone", npz()),
    "two graphs of one name": Case(
        "run --graphs a.npz sub/a.npz",
        "Two of the graphs are called 'a'",
        together(npz(), write(sub__b_txt=""), npz("sub/a")),
    ),
    "two names that differ by case": Case(
        "run --graphs a.npz A=b.npz", "differ by case alone", together(npz(), npz("b"))
    ),
    "a name that is no name of a file": Case(
        "run --graphs a.npz b/c=b.npz", "could not be that of a file", together(npz(), npz("b"))
    ),
    "a data file among graphs": Case("run --graphs data.toml", "--dataset data.toml", data_file(ALPHA, "alpha")),
    "a table among graphs": Case("run --graphs alpha/accounts.csv", "give the folder", bank()),
    "a data file as an experiment": Case("run data.toml", "--dataset data.toml", data_file(ALPHA, "alpha")),
    "own graphs that nobody gave": Case(f"run {SMALL} --partition own", "--graphs"),
    "a folder as an experiment": Case("run alpha", "data are given as --graphs alpha", bank()),
    "an empty dataset": Case("run --dataset ''", "The dataset is an empty text"),
    "a table as the folder of a client": Case(
        "run --dataset data.toml",
        "accounts.csv is no .npz file; of tables, give the folder",
        data_file("[clients]\nalpha = 'alpha/accounts.csv'\n", "alpha"),
    ),
    "own graphs to be shared out": Case(
        "partition data.toml --clients 2", "every client brings its own graph", data_file(ALPHA, "alpha")
    ),
    "an example": Case("example bank", "There is no example 'bank' (did you mean 'banks'?)"),
    "an example in a folder that is there": Case("example banks full", "full exists already", write(full__a_txt="")),
    "a GPU that is not there": Case(f"run {SMALL} --device cuda", "PyTorch sees no GPU here; use cpu or auto"),
    "tf32 on a CPU": Case(f"run {SMALL} --device cpu --precision tf32", "which only a GPU has"),
    "clients that are not there": Case(f"run {SMALL} --perturbed-clients 9", "perturbed_clients is '9'"),
    "unseen nodes, perturbed": Case(
        f"run {SMALL} --inductive --label-noise 0.5 --evaluate-on perturbed", "evaluate_on is perturbed"
    ),
    "no round": Case(f"run {SMALL} --rounds 0", "rounds is 0; it must be at least 1"),
    "a share above one": Case(f"run {SMALL} --participation 2", "participation is 2.0"),
    "a choice": Case(f"run {SMALL} --class-weights many", "'class_weights'"),
    "an amount of memory": Case(f"run {SMALL} --memory 4", "memory is '4'"),
    "an experiment that is not there": Case("run gone.toml", "There is no experiment file gone.toml"),
    "an experiment with an unknown key": Case("run my.toml", "Unknown setting 'round'", write(my_toml="round = 3\n")),
    "a run that is none": Case("resume gone", "gone is not a run directory"),
    "an unknown key in a data file": Case(
        "run --dataset data.toml", "there is no key 'client' (did you mean 'clients'", write(data_toml="[client]\n")
    ),
    "a schema of the wrong type": Case(
        "run --dataset data.toml",
        "numeric is a list of texts, not 'amount'",
        data_file(f"{ALPHA}[schema]\nnumeric = 'amount'\n", "alpha"),
    ),
    "a client whose folder is missing": Case(
        "run --dataset data.toml", "data.toml, alpha: there is no file or folder", write(data_toml=ALPHA)
    ),
    "clients that differ by case": Case(
        "run --dataset data.toml",
        "'alpha' and 'Alpha' differ by case alone",
        data_file(f"{ALPHA}Alpha = 'alpha'\n", "alpha"),
    ),
    "a column of two meanings": Case(
        "run --dataset data.toml",
        "is both label and ignore",
        data_file(f"{ALPHA}[schema]\nlabel = 'fraud'\nignore = ['fraud']\n", "alpha"),
    ),
    "a data file that is no TOML": Case(
        "run --dataset data.toml", "is not a readable TOML file", write(data_toml="alpha, beta")
    ),
    "other clients than in the data file": Case(
        "run --dataset data.toml --clients 4",
        "clients is 4, but every client brings its own graph, 1 in all",
        data_file(ALPHA, "alpha"),
    ),
    "new data that are not there": Case("predict old --client 0 --data gone --out s.csv", "old is not a run directory"),
    "a format": Case(
        "export old --client 0 --out m --format keras", "There is no format 'keras'", write(old__experiment_toml="")
    ),
    "nothing to check": Case("check gone", "There is no file or folder gone"),
}

# What is wrong with files.

FILES = {
    "a ragged row": Case(
        "run --graphs alpha", "alpha/accounts.csv, line 5", bank(nodes=accounts({3: "n3,no,3.5,b,more,cells"}))
    ),
    "an id twice": Case(
        "run --graphs alpha",
        "line 42, column account_id: 'n2' was used before",
        bank(nodes=accounts() + "n2,no,3.5,b\n"),
    ),
    "an empty id": Case(
        "run --graphs alpha", "line 42, column account_id: '' is no id", bank(nodes=accounts() + ",no,3.5,b\n")
    ),
    "text in a column of numbers": Case(
        "run --graphs alpha",
        "line 5, column amount: 'much' is not a finite number",
        bank(nodes=accounts({3: "n3,no,much,b"})),
    ),
    "an edge to an unknown node": Case("run --graphs alpha", "'q9' is unknown", bank(edges=PAYMENTS + "n1,q9\n")),
    "two problems": Case(
        "run --graphs alpha",
        "2 problems",
        bank(nodes=accounts({3: "n3,no,much,b"}), edges=PAYMENTS + "n1,q9\n"),
        listed=True,
    ),
    "problems of two clients": Case(
        "run --graphs alpha beta",
        "column amount: 'much' is not a finite number",
        together(bank(nodes=accounts({3: "n3,no,much,b"})), bank("beta", edges=PAYMENTS + "n1,q9\n")),
        listed=True,
    ),
    "no column of ids": Case(
        "run --graphs alpha",
        "name the column that identifies nodes, as id =",
        bank(nodes="fraud,amount\n" + "yes,1\nno,1\n" * 20),
    ),
    "a single class": Case("run --graphs alpha", "a single class, 'no'", bank(nodes=accounts().replace("yes", "no"))),
    "no label at all": Case(
        "run --graphs alpha", "no label at all", bank(nodes=accounts(header=HEADER.replace("fraud", "colour")))
    ),
    "an empty file": Case("run --graphs alpha", "alpha/accounts.csv: the file is empty", bank(nodes="")),
    "a header alone": Case(
        "run --graphs alpha", "alpha/accounts.csv: there is a header but no node", bank(nodes=HEADER + "\n")
    ),
    "a binary file called .csv": Case(
        "run --graphs alpha", "alpha/accounts.csv is not a text file", bank(nodes=bytes(range(256)) * 8)
    ),
    "a folder without tables": Case(
        "run --graphs alpha", "alpha has no nodes.csv and no edges.csv", write(alpha__notes_docx=b"PK")
    ),
    "a table of nodes alone": Case(
        "run --graphs alpha", "alpha has no edges.csv", write(alpha__accounts_csv=accounts())
    ),
    "a positive class that does not occur": Case(
        "run --dataset data.toml",
        "The positive class 'fraudulent' does not occur; the classes are no, yes",
        data_file(f"{ALPHA}[schema]\npositive = 'fraudulent'\n", "alpha"),
    ),
    "a column of the schema that is not there": Case(
        "run --dataset data.toml",
        "there is no column 'balance'",
        data_file(f"{ALPHA}[schema]\nnumeric = ['balance']\n", "alpha"),
    ),
    "clients of other columns": Case(
        "run --graphs alpha beta",
        "client beta, column branch: there is no such column, but alpha has it",
        together(bank(), bank("beta", nodes=accounts(header=HEADER.replace("branch", "region")))),
        listed=True,
    ),
    "a time split without times": Case(
        "run --graphs alpha --split time:60/20/20", "Client alpha of 'alpha' has no times to split by", bank()
    ),
    "a split that does not come with the data": Case(
        "run --graphs alpha --split own", "needs the dataset's own masks", bank()
    ),
    "batches larger than a client": Case(
        "run --graphs alpha --method fedavg --batches 41", "batches is 41, but client alpha has only 40 nodes", bank()
    ),
    "batches larger than a client of the second method": Case(
        "run --graphs alpha beta --method centralised --against local --batches 41",
        "batches is 41, but client alpha has only 40 nodes",
        together(bank(), bank("beta")),
    ),
    "F1 of three classes": Case(f"run {SMALL} --metric f1", "use macro_f1"),
    "more clients than nodes": Case(f"run {SMALL} --clients 121", "too few for 121 clients"),
    "objects in an archive": Case(ONE, "Python objects", npz(y=np.array([None] * 30))),
    "an archive that declares gigabytes": Case(ONE, "declare that they unpack to 314,572,928", bomb),
    "an encrypted archive": Case(ONE, "is encrypted", encrypted),
    "a truncated archive": Case(ONE, "a.npz is not a readable .npz file", truncated),
    "a text called .npz": Case(ONE, "a.npz is not a readable .npz file", write(a_npz="hello")),
    "an archive without edges": Case(ONE, "a.npz lacks edges", npz(edges=None)),
    "an archive without labels": Case(ONE, "no label at all: a table needs a column of classes", npz(y=None)),
    "an archive of one class": Case(ONE, "a single class, '0'", npz(y=np.zeros(30, int))),
    "labels of a million": Case(
        ONE, "has label 1000029, but a graph of 30 nodes has at most 1000 classes", npz(y=np.arange(30) + 10**6)
    ),
    "labels below -1": Case(ONE, "has label -5", npz(y=np.arange(30) - 5)),
    "a label too few": Case(ONE, "one number for each of its 30 nodes", npz(y=np.arange(29) % 3)),
    "features that are not numbers": Case(ONE, "NaN or infinity, first at node 0", npz(x=np.full((30, 4), np.nan))),
    "features of one dimension": Case(ONE, "shape [nodes, features]", npz(x=np.ones(30))),
    "edges out of range": Case(
        ONE, "joins 99 and 2, but its nodes are 0 to 29", npz(edges=np.array([[0, 99], [1, 2]]))
    ),
    "edges of three rows": Case(ONE, "of shape [2, edges]", npz(edges=np.zeros((3, 80), int))),
    "negative weights": Case(ONE, "has weight -1: weights must be finite and above 0", npz(weights=np.full(80, -1.0))),
    "a weight too few": Case(ONE, "one number for each of its 80 edges", npz(weights=np.ones(79))),
    "a mask of another length": Case(
        ONE, "The train mask of 'a' must be true or false for each of its 30 nodes", npz(train=np.ones(29, bool))
    ),
    "masks that overlap": Case(
        f"{ONE} --split own", "overlap", npz(**{name: np.ones(30, bool) for name in ("train", "validation", "test")})
    ),
    "two nodes of one id": Case(ONE, "nodes 0 and 1 are both 'n'", npz(ids=np.array(["n", "n", *map(str, range(28))]))),
    "clients of other widths": Case(
        TWO, "Client b has 5 features, but client a has 4", together(npz(), npz("b", x=np.ones((30, 5))))
    ),
    "clients of other features": Case(
        TWO,
        "Client b has no feature 'p', which client a has",
        together(npz(feature_names=list("pqrs")), npz("b", feature_names=list("tqrs"))),
    ),
    "a partition file that lacks a node": Case(
        "run --dataset alpha --clients 2 --partition p.csv",
        "it has no client for the node 'n39'",
        together(bank(), write(p_csv="id,client\n" + "".join(f"n{row},{'xy'[row % 2]}\n" for row in range(39)))),
    ),
    "a partition file of other nodes": Case(
        "run --dataset alpha --clients 2 --partition p.txt",
        "has client ids for 3 nodes, but 'alpha' has 40",
        together(bank(), write(p_txt="0\n1\n0\n")),
    ),
    "a partition file of other clients": Case(
        "run --dataset alpha --clients 3 --partition p.txt",
        "is a partition into 2 clients, but 3 were asked for",
        together(bank(), write(p_txt="0\n1\n" * 20)),
    ),
    "a partition file with a short row": Case(
        "run --dataset alpha --clients 2 --partition p.csv",
        "row 3 has fewer cells than the header",
        together(bank(), write(p_csv="id,client\nn0,x\nn1\n")),
    ),
    "a partition file with names that differ by case": Case(
        "run --dataset alpha --clients 2 --partition p.csv",
        "differ by case alone",
        together(bank(), write(p_csv="client\n" + "north\nNorth\n" * 20)),
    ),
    "a partition file without a membership": Case(
        "run --dataset alpha --clients 2 --partition p.json",
        "it has no list called membership",
        together(bank(), write(p_json="{}")),
    ),
    "a split column with other words": Case(
        "run --graphs alpha",
        "column split: 'trian' is not a split",
        bank(
            nodes=accounts(
                dict(enumerate(f"{row},{'trian' if row == ROWS[0] else ''}" for row in ROWS)), f"{HEADER},split"
            )
        ),
    ),
    "edges without a target": Case(
        "run --graphs alpha", "the header lacks target", bank(edges="sender,amount\nn1,3\n")
    ),
    "a table without features": Case(
        "run --graphs alpha",
        "has no feature: at least one column of numbers, dates or categories is needed",
        bank(nodes="account_id,fraud\n" + "".join(f"n{row},{row % 2}\n" for row in range(40))),
    ),
    "an own function that fails": Case(
        "run --dataset own.py:load",
        "cannot be made: ValueError: no",
        write(own_py="def load():\n    raise ValueError('no')\n"),
    ),
    "an own function that gives no graph": Case(
        "run --dataset own.py:load", "should be a PyG Data", write(own_py="def load():\n    return 5\n")
    ),
    "a PyG Data with edges of three rows": Case(
        "run --dataset own.py:load",
        "whole numbers of shape [2, edges]",
        pyg("torch.ones(5, 2)", "3, 4", "torch.zeros(5)"),
    ),
    "a PyG Data with a label too few": Case(
        "run --dataset own.py:load",
        "one number for each of its 5 nodes",
        pyg("torch.ones(5, 2)", "2, 4", "torch.zeros(4)"),
    ),
    "a PyG Data without features": Case(
        "run --dataset own.py:load", "The PyG Data lacks x", pyg("None", "2, 4", "torch.zeros(4)")
    ),
    "tables that cannot be checked": Case("check alpha/accounts.csv", "cannot be checked: give a folder", bank()),
}

# What is wrong with what a run is asked for.

RUN = {
    "a client": Case("predict run --client delta --out s.csv", "There is no client 'delta'; there are a, b"),
    "no client": Case("predict run --out s.csv", "Say whose model: --client with one of a, b"),
    "a client to export": Case("export run --client delta --out m", "There is no client 'delta'; there are a, b"),
    "other widths": Case(
        "predict run --client a --data wide.npz --out s.csv",
        "'wide' has 5 features, but the model takes 4",
        npz("wide", x=np.ones((30, 5))),
    ),
    "tables for a model of graphs": Case(
        "predict run --client a --data alpha --out s.csv",
        "is a table, but the model was trained on a graph with 4 features",
        bank(),
    ),
    "data that are not there": Case(
        "predict run --client a --data gone --out s.csv", "There is no dataset or file 'gone'"
    ),
    "an existing table": Case("predict run --client a --out s.csv", "s.csv exists already", write(s_csv="mine")),
    "a table in no folder": Case("predict run --client a --out gone/s.csv", "there is no folder gone"),
    "a folder that is no run": Case(
        "predict folder --client a --out s.csv", "is not a run directory", write(folder__a_txt="")
    ),
    "a folder that is no run to export": Case(
        "export folder --client a --out m", "is not a run directory", write(folder__a_txt="")
    ),
    "an existing folder": Case("export run --client a --out m", "m exists already", write(m__a_txt="")),
    "overwriting what is no model": Case(
        "export run --client a --out m --overwrite", "not an exported model", write(m__a_txt="")
    ),
    "a run that is finished": Case("resume run", "there is nothing to resume"),
    "a global model that is not": Case(
        "predict run --client a --global --out s.csv", "Method 'fedgkc' has no global model"
    ),
    "data of several clients": Case(
        "predict run --client a --data data.toml --out s.csv",
        "has graphs of several clients, p, q: give one of them",
        write(data_toml="[clients]\np = 'a.npz'\nq = 'b.npz'\n"),
    ),
    "labels that are no class": Case(
        "predict run --client a --data odd.npz --out s.csv",
        "has label 7, but labels are 0 to 2",
        npz("odd", y=np.arange(30) % 8),
    ),
    "a run in its place": Case("run --graphs a.npz --out run", "run exists already", npz()),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return tmp_path


@pytest.fixture
def nothing_is_loaded(monkeypatch):
    def refuse(*given, **_):
        raise AssertionError(f"{given} were loaded")

    for module in ("data.sources", "experiments.build", "experiments.prediction"):
        monkeypatch.setattr(f"graft.{module}.open_data", refuse)


def call(command):
    return CliRunner().invoke(app, shlex.split(command))


def contents(folder):
    """All that is in a folder, with its size and the time of its last change."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def assert_refused(case, folder):
    before = contents(folder)
    result = call(case.command)
    assert result.exit_code == 2, (result.output, result.exception)
    first, *rest = result.stderr.strip("\n").split("\n")
    assert first.startswith("graft: ")
    assert first.endswith(":" if case.listed else "."), first
    assert bool(rest) == case.listed, result.stderr
    assert all(line.startswith("  ") for line in rest)
    assert case.sentence in result.stderr
    assert "Traceback" not in result.output
    assert contents(folder) == before


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize("case", TYPED.values(), ids=TYPED)
def test_wrong_words_are_refused_before_anything_is_loaded(case, elsewhere):
    case.files(elsewhere)
    assert_refused(case, elsewhere)


@pytest.mark.usefixtures("nothing_is_loaded")
def test_loading_would_be_seen():
    result = call(f"run {SMALL}")
    assert "were loaded" in str(result.exception)


@pytest.mark.parametrize("case", FILES.values(), ids=FILES)
def test_wrong_files_are_refused_before_anything_is_written(case, elsewhere):
    case.files(elsewhere)
    assert_refused(case, elsewhere)


@pytest.mark.parametrize("case", [case for case in FILES.values() if case.command.startswith("run --graphs")])
def test_a_check_finds_what_a_run_would_refuse(case, elsewhere):
    case.files(elsewhere)
    names = [word for word in case.command.split()[2:] if (elsewhere / word).exists()]
    result = call(f"check {' '.join(names)}")
    if any(word in case.command for word in ("--split", "--batches")):  # what only a run is asked for
        assert result.exit_code == 0, result.output
        return
    assert result.exit_code == 2
    assert case.sentence in result.stderr


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A run of two clients that bring their own graphs."""
    folder = tmp_path_factory.mktemp("finished")
    together(npz(), npz("b"))(folder)
    result = call(f"run --graphs {folder / 'a.npz'} {folder / 'b.npz'} --rounds 1 --out {folder / 'run'}")
    assert result.exit_code == 0, result.output
    return folder


@pytest.mark.parametrize("case", RUN.values(), ids=RUN)
def test_what_a_run_cannot_give_is_refused_before_anything_is_written(case, elsewhere, finished_run):
    shutil.copytree(finished_run, elsewhere, dirs_exist_ok=True)
    case.files(elsewhere)
    assert_refused(case, elsewhere)


def test_a_good_command_writes_something(elsewhere, finished_run):
    shutil.copytree(finished_run, elsewhere, dirs_exist_ok=True)
    before = contents(elsewhere)
    assert call("predict run --client a --out s.csv").exit_code == 0
    assert contents(elsewhere) != before


def test_there_are_more_than_a_hundred_of_them():
    assert len({case.command + case.sentence for case in (*TYPED.values(), *FILES.values(), *RUN.values())}) > 100
