"""`graft shard`, and runs on what it wrote."""

import json

import pytest
from typer.testing import CliRunner

from graft.cli import app
from graft.data.shards import ShardedGraphs

DATA = "synthetic:nodes=200,degree=6,classes=3,features=8"
QUICK = ("--method", "fedavg", "--rounds", "2", "--width", "8")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def call(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def results_of(folder):
    result = json.loads((folder / "result.json").read_text())
    return {name: result[name] for name in ("accuracy", "per_client", "dataset", "partition", "communication")}


def test_what_was_written_is_said_and_trained_on(tmp_path):
    said = call("shard", "--dataset", DATA, "--clients", "3", "--inductive", "--out", "place")
    graphs = ShardedGraphs(tmp_path / "place")
    assert "3 clients (louvain, inductive)" in said
    assert f"hash {graphs.hash[:16]}" in said
    assert "graft run --dataset place" in said
    call("run", "--dataset", "place", *QUICK, "--out", "read")
    call("run", "--dataset", DATA, "--clients", "3", "--inductive", *QUICK, "--out", "direct")
    assert results_of(tmp_path / "read") == results_of(tmp_path / "direct")
    call("run", "--dataset", DATA, "--clients", "3", *QUICK, "--out", "transductive")
    assert results_of(tmp_path / "read") != results_of(tmp_path / "transductive")


def test_generated_clients_are_written_too(tmp_path):
    data = "generated:nodes=60,degree=3,classes=3,features=4"
    said = call("shard", "--dataset", data, "--clients", "30", "--out", "file://" + str(tmp_path / "place"))
    assert "30 clients (own)" in said
    call("run", "--dataset", "place", *QUICK, "--out", "read")
    call("run", "--dataset", data, "--clients", "30", *QUICK, "--out", "direct")
    assert results_of(tmp_path / "read") == results_of(tmp_path / "direct")


def test_clients_with_names_keep_them(tmp_path):
    for number, name in enumerate(("north", "south")):
        rows = "\n".join(f"{n},{n % 5 + number},{'xy'[n % 2]}" for n in range(40))
        links = "\n".join(f"{n},{(n + 2) % 40}" for n in range(40))
        (tmp_path / name).mkdir()
        (tmp_path / name / "nodes.csv").write_text(f"id,age,label\n{rows}\n")
        (tmp_path / name / "edges.csv").write_text(f"source,target\n{links}\n")
    call("shard", "--graphs", "north", "south", "--out", "place")
    call("run", "--dataset", "place", *QUICK, "--out", "read")
    assert [row["client"] for row in results_of(tmp_path / "read")["per_client"]] == ["north", "south"]
    call("predict", "read", "--client", "south", "--out", "predicted.csv")
    call("predict", "read", "--client", "south", "--data", "north", "--out", "other.csv")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--clients", "4"), "clients is 4, but the shards in place were written with clients=3"),
        (("--partition", "metis"), "partition is metis"),
        (("--split", "50/25/25"), "split is 50/25/25"),
        (("--features", "row"), "features is row"),
        (("--edge-noise", "0.1"), "edge_noise is 0.1"),
        (("--method", "centralised"), "one by one"),
    ],
)
def test_run_beside_other_settings_is_refused(arguments, words):
    call("shard", "--dataset", DATA, "--clients", "3", "--out", "place")
    result = invoke("run", "--dataset", "place", *QUICK, *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dataset", "cola"), "no dataset or file 'cola'"),
        (("--dataset", DATA, "--partition", "louvian"), "no partition method"),
        (("--dataset", DATA, "--out", "nowhere://x"), "Protocol not known"),
        (("--dataset", "generated", "--clients", "2000000"), "at most 1,000,000"),
        (("--dataset", "generated", "--inductive"), "inductive is True"),
    ],
)
def test_mistakes_are_one_sentence(arguments, words):
    result = invoke("shard", "--out", "place", *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_place_is_not_written_over_unless_told_to(tmp_path):
    call("shard", "--dataset", DATA, "--clients", "3", "--out", "place")
    refused = invoke("shard", "--dataset", DATA, "--clients", "2", "--out", "place")
    assert refused.exit_code == 2
    assert "--overwrite" in refused.output
    assert len(ShardedGraphs(tmp_path / "place")) == 3
    call("shard", "--dataset", DATA, "--clients", "2", "--out", "place", "--overwrite")
    assert len(ShardedGraphs(tmp_path / "place")) == 2


def test_shards_are_checked_byte_by_byte(tmp_path):
    call("shard", "--dataset", DATA, "--clients", "3", "--inductive", "--out", "place")
    said = call("check", "place")
    assert "shards of 3 clients" in said
    assert "No problem was found." in said
    path = tmp_path / "place" / "clients-0000000.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    result = invoke("check", "place")
    assert result.exit_code == 2
    assert "is damaged: of client 2" in " ".join(result.output.split())


def test_what_brings_a_graph_for_every_client_is_not_partitioned():
    call("shard", "--dataset", DATA, "--clients", "3", "--out", "place")
    for dataset in ("place", "generated"):
        result = invoke("partition", dataset)
        assert result.exit_code == 2
        assert "nothing is shared out" in result.output
