"""What people get wrong: one clear sentence, exit code 2, nothing written over."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

import graft
from graft.cli import app

DATASET = "synthetic:nodes=120,degree=6,classes=3,features=8"
SMALL = ["--method", "fedavg", "--dataset", DATASET, "--clients", "3", "--rounds", "2"]


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(result, *words):
    assert result.exit_code == 2, result.output
    message = " ".join(result.stderr.split())
    assert message.startswith("graft: ")
    assert "Traceback" not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--method", "fedavgg"],
            ["Unknown method 'fedavgg'", "did you mean 'fedavg'", "there are adafgl, "],
        ),
        (["--dataset", "korra"], ["no dataset or file 'korra'", "cora"]),
        (["--models", "gcm"], ["Unknown model 'gcm'", "gcn, gat, sage"]),
        (["--models", "gcn999"], ["between 1 and 64"]),
        (["--models", "gat", "--width", "6"], ["heads"]),
        (["--set", "mu=1"], ["Unknown setting 'mu' of method 'fedavg'"]),
        (["--set", "mu"], ["--set name=value"]),
        (["--method", "fedprox", "--set", "mu=much"], ["'mu'", "'much'", "number"]),
        (["--partition", "louvian"], ["louvian", "louvain"]),
        (["--partition", "louvain:size=3"], ["size", "resolution"]),
        (["--partition", "louvain:nonsense"], ["option=value"]),
        (["--clients", "100000"], ["100000"]),
        (["--clients", "0"], ["clients is 0", "at least 1"]),
        (["--split", "20/40"], ["20/40"]),
        (["--split", "80/40/40"], ["80/40/40"]),
        (["--split", "own"], ["own"]),
        (["--features", "log"], ["'features'", "'log'", "raw"]),
        (["--optimizer", "lion"], ["'optimizer'", "'lion'", "adam"]),
        (["--dropout", "1"], ["dropout is 1.0"]),
        (["--participation", "0"], ["participation is 0.0"]),
        (["--topology", "ring"], ["'fedavg' sends nothing between peers", "takes no topology", "dpsgd"]),
        (["--method", "dpsgd", "--topology", "torus"], ["no topology 'torus'", "ring", "or a file"]),
        (["--method", "dpsgd", "--topology", "random:k"], ["option=value"]),
        (["--method", "dpsgd", "--topology", "random:k=-3"], ["k of topology 'random' is -3", "at least 0"]),
        (["--method", "dpsgd", "--topology", "star:centre=3"], ["star of 3 peers"]),
        (["--learning-rate", "-1"], ["learning_rate"]),
        (["--against", "nobody"], ["Unknown method 'nobody'"]),
        (["--engine", "carrier-pigeon"], ["'engine'", "in_process"]),
        (["--memory", "4"], ["memory is '4'", "4GB"]),
        (["--memory", "9999999TB"], ["at most"]),
        (["--threads", "1000000"], ["threads is 1000000", "at most 1024"]),
        (["--width", "10000000000"], ["width is 10000000000", "at most 65536"]),
        (["--learning-rate", "nan"], ["learning_rate is nan", "finite"]),
        (["--perturbed-clients", "7"], ["perturbed_clients is '7'", "from 0 to 2"]),
        (["--method", "gone.py:Mine"], ["Method 'gone.py:Mine' cannot be loaded", "no file"]),
        (["--method", "no_package.module:Mine"], ["there is no module 'no_package'"]),
        (["--method", "graft.models.gcn:GCN"], ["'graft.models.gcn:GCN' is no method", "graft.Method"]),
        (["--plug", "graft.methods.fedavg:FedAvg"], ["is no plug", "graft.Plug"]),
        (["--plug", "fedtaad"], ["Unknown plug 'fedtaad'", "did you mean 'fedtad'"]),
        (["--models", "gone.py:Net"], ["Model 'gone.py:Net' cannot be loaded"]),
        (["--dataset", "gone.py:load"], ["Dataset 'gone.py:load' cannot be loaded"]),
        (["--method", "fedprox", "--set", "mu=-5"], ["mu is -5", "at least 0"]),
        (["--precision", "tf32", "--device", "cpu"], ["tf32", "GPU"]),
    ],
)
def test_wrong_words_are_refused_with_what_exists(arguments, words, elsewhere):
    refused(call("run", *SMALL, *arguments), *words)
    assert not (elsewhere / "runs").exists()


def test_a_gpu_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(call("run", *SMALL, "--device", "cuda"), "no GPU", "cpu or auto")


def test_a_list_that_does_not_exist_is_refused():
    refused(call("list", "dragons"), "dragons", "methods, datasets, models, partitions, topologies")


def test_an_existing_run_is_kept_unless_told_otherwise(elsewhere):
    place = elsewhere / "run"
    assert call("run", *SMALL, "--out", place).exit_code == 0
    before = (place / "result.json").read_bytes()
    refused(call("run", *SMALL, "--out", place, "--seed", "1"), "exists already", "--overwrite")
    assert (place / "result.json").read_bytes() == before
    assert call("run", *SMALL, "--out", place, "--seed", "1", "--overwrite").exit_code == 0
    assert json.loads((place / "result.json").read_text())["seed"] == 1


def test_overwrite_spares_a_folder_that_is_no_run(elsewhere):
    (elsewhere / "thesis").mkdir()
    (elsewhere / "thesis" / "chapter1.txt").write_text("years of work")
    refused(call("run", *SMALL, "--out", "thesis", "--overwrite"), "not a run directory")
    assert (elsewhere / "thesis" / "chapter1.txt").read_text() == "years of work"


def test_a_bad_input_with_overwrite_leaves_the_old_run_alone(elsewhere):
    assert call("run", *SMALL, "--out", "run").exit_code == 0
    before = (elsewhere / "run" / "result.json").read_bytes()
    refused(call("run", *SMALL, "--out", "run", "--overwrite", "--clients", "100000"), "100000")
    refused(call("run", *SMALL, "--out", "run", "--overwrite", "--models", "gcn,gat"), "one architecture")
    assert (elsewhere / "run" / "result.json").read_bytes() == before


def test_a_file_in_the_place_of_the_run_is_refused(elsewhere):
    (elsewhere / "taken").write_text("mine")
    refused(call("run", *SMALL, "--out", "taken"), "is a file")
    assert (elsewhere / "taken").read_text() == "mine"


def test_a_read_only_place_is_refused(elsewhere, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    refused(call("run", *SMALL, "--out", elsewhere / "run"), "cannot be written to", "Permission denied")


def write_npz(place, **changes):
    random = np.random.default_rng(0)
    arrays = {"x": random.normal(size=(30, 4)), "edges": random.integers(0, 30, (2, 80)), "y": np.arange(30) % 3}
    arrays |= changes
    np.savez(place / "own.npz", **arrays)
    return place / "own.npz"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.full((30, 4), np.nan)}, ["NaN or infinity"]),
        ({"x": np.full((30, 4), np.inf)}, ["NaN or infinity"]),
        ({"y": np.full(30, -1)}, ["label"]),
        ({"y": np.arange(30) - 5}, ["label"]),
        ({"y": np.arange(29)}, ["29"]),
        ({"edges": np.array([[0, 99], [1, 2]])}, ["99"]),
        ({"edges": np.array([[0, -1], [1, 2]])}, ["-1"]),
    ],
)
def test_impossible_data_is_refused(changes, words, elsewhere):
    path = write_npz(elsewhere, **changes)
    refused(call("run", "--dataset", path, "--clients", "2"), *words)


def test_a_split_that_leaves_a_client_without_training_nodes_names_it(elsewhere):
    labels = np.full(30, -1)
    labels[:6] = np.arange(6) % 3
    path = write_npz(elsewhere, y=labels)
    (elsewhere / "ids.txt").write_text("\n".join(["0"] * 15 + ["1"] * 15))
    refused(call("run", "--dataset", path, "--clients", "2", "--partition", "ids.txt"), "lient 1", "train")


def test_damaged_and_foreign_files_are_refused(elsewhere):
    (elsewhere / "broken.npz").write_bytes(b"PK\x03\x04 not a zip at all")
    refused(call("run", "--dataset", "broken.npz"), "broken.npz")
    (elsewhere / "notes.txt").write_text("hello")
    refused(call("run", "--dataset", "notes.txt"), "notes.txt")
    (elsewhere / "broken.toml").write_text("method = = fedavg")
    refused(call("run", "broken.toml"), "broken.toml", "TOML")
    (elsewhere / "foreign.toml").write_text("[tool.poetry]\nname = 'x'")
    refused(call("run", "foreign.toml"), "Unknown setting 'tool'")
    (elsewhere / "settings.toml").write_text("settings = 5")
    refused(call("run", "settings.toml"), "settings is 5")
    (elsewhere / "none.toml").write_text("none = 5")
    refused(call("run", "none.toml"), "none.toml")
    (elsewhere / "deep.toml").write_text("a = " + "[" * 5000)
    refused(call("run", "deep.toml"), "deep.toml")
    (elsewhere / "typed.toml").write_text("rounds = 'many'")
    refused(call("run", "typed.toml"), "'rounds'", "'many'")
    refused(call("run", "absent.toml"), "no experiment file")


def test_a_damaged_or_missing_checkpoint_is_refused(elsewhere):
    refused(call("resume", "nowhere"), "nowhere")
    settings = dict(dataset=DATASET, clients=3, rounds=4, checkpoint_every=2)

    def crash(record):
        if record["round"] == 3:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        graft.run("fedavg", out="run", callbacks=[crash], **settings)
    checkpoint = elsewhere / "run" / "checkpoint"
    tensors = next(checkpoint.glob("state*.safetensors"))
    good = tensors.read_bytes()
    for bad in (good[: len(good) // 2], b"\x80\x04pickle", b"", good[:-1] + b"!"):
        tensors.write_bytes(bad)
        refused(call("resume", "run"), "damaged")
    tensors.write_bytes(good)
    text = (checkpoint / "checkpoint.json").read_text()
    for bad in ("{}", "[1]", "not json", text.replace("graft-checkpoint-3", "torch-checkpoint")):
        (checkpoint / "checkpoint.json").write_text(bad)
        refused(call("resume", "run"), "damaged")
    (checkpoint / "checkpoint.json").write_text(text)
    assert call("resume", "run").exit_code == 0
    shutil.rmtree(checkpoint)
    refused(call("resume", "run"), "no checkpoint")


def test_a_report_of_nothing_is_refused(elsewhere):
    refused(call("report", elsewhere), "no finished run")
    assert call("run", *SMALL, "--out", "run").exit_code == 0
    (elsewhere / "run" / "result.json").write_text('{"foreign": 1}')
    refused(call("report", "run"), "damaged")


def test_more_clients_than_nodes_is_refused_in_partition_too(elsewhere):
    refused(call("partition", DATASET, "--clients", "121"), "121")
    assert not (elsewhere / "partitions").exists()


def own_graphs():
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    return {name: Data(x=torch.rand(5, 2), edge_index=edges, y=torch.arange(5) % 2) for name in ("alpha", "beta")}


@pytest.mark.parametrize(
    ("graphs", "settings", "words"),
    [
        (own_graphs(), {"clients": 7}, "clients is 7, but every client brings its own graph, 2 in all"),
        (own_graphs(), {"partition": "metis"}, "so leave partition out"),
        (list(own_graphs().values()), {"clients": 3}, "clients is 3"),
        (own_graphs(), {"graphs": ["alpha"]}, "leave one of them out"),
        (dict(enumerate(own_graphs().values())), {}, "a client's name is a text, not 0"),
        ({"alpha": 5}, {}, "The graph of client 'alpha' is a int"),
        ({}, {}, "at least one client's graph"),
        (None, {}, "dataset is None"),
    ],
)
def test_graphs_that_cannot_be_clients_are_refused_in_python_too(graphs, settings, words):
    with pytest.raises(graft.InputError) as refusal:
        graft.run("fedavg", graphs, rounds=1, **settings)
    assert words in str(refusal.value)


def test_graphs_with_their_own_number_of_clients_are_run():
    assert graft.run("fedavg", own_graphs(), rounds=1, clients=2, partition="own").summary["clients"] == 2
