"""Runs, their records, and going on after a stop."""

import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import graft
from graft.data import datasets
from graft.errors import InputError, RunError
from graft.experiments import tensor_files
from graft.experiments.run_directory import RunDirectory
from graft.federation.session import Session
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import Tree
from tests.toy import same

RESULT = {
    "graft": str,
    "method": str,
    "dataset": str,
    "partition": str,
    "clients": int,
    "seed": int,
    "rounds": int,
    "best_round": int,
    "accuracy": dict,
    "per_client": list,
    "communication": dict,
    "seconds": dict,
    "peak_memory_bytes": int,
    "device": str,
    "threads": int,
    "warnings": list,
    "checksum": str,
    "experiment": dict,
    "hashes": dict,
    "versions": dict,
}


SCORES = {"test", "validation", "test_node_weighted", "test_global", "test_trained", "test_served"}


def timeless(record):
    """A record of a round without what may differ from run to run."""
    return {name: value for name, value in record.items() if name != "seconds"}


def test_result_has_exactly_the_promised_fields(small, tmp_path):
    graft.run("fedavg", out=tmp_path / "run", **small)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {name: type(value) for name, value in result.items()} == RESULT
    assert set(result["accuracy"]) == SCORES
    assert set(result["communication"]) == {"up_bytes", "down_bytes", "peer_bytes"}
    assert set(result["seconds"]) == {"total", "per_round", "setup"}
    assert [set(row) for row in result["per_client"]] == [
        {"client", "model", "nodes", "edges", "test", "validation"} for _ in range(3)
    ]


def test_the_best_validation_round_is_reported_never_the_best_test_round(small):
    result = graft.run("fedavg", **small)
    validation = [record["validation"] for record in result.rounds]
    best = validation.index(max(validation))
    assert result.summary["best_round"] == best + 1
    assert result.accuracy["test"] == result.rounds[best]["test"]
    shared = [record["validation_global"] for record in result.rounds]
    assert result.accuracy["test_global"] == result.rounds[shared.index(max(shared))]["test_global"]


def test_accuracy_is_the_plain_mean_and_the_node_weighted_mean_over_clients(small):
    result = graft.run("local", partition="label-skew", **small)
    rows = result.summary["per_client"]
    assert result.accuracy["test"] == pytest.approx(np.mean([row["test"] for row in rows]))
    weighted = np.average([row["test"] for row in rows], weights=[row["nodes"] for row in rows])
    assert result.accuracy["test_node_weighted"] == pytest.approx(weighted)
    assert result.accuracy["test"] != pytest.approx(weighted)  # the clients differ in size


def test_both_points_of_a_round_are_scored_whatever_the_method(small):
    """After local training, and what clients are given then: each at the round where its own validation was best."""
    for method, trained, served in (
        ("fedavg", "", "_global"),
        ("fedgta", "_trained", ""),
        ("dpsgd", "_trained", ""),
        ("local", "", None),
    ):
        result = graft.run(method, **small)
        for point, ending in (("test_trained", trained), ("test_served", served)):
            validation = [] if ending is None else [record[f"validation{ending}"] for record in result.rounds]
            best = validation and result.rounds[validation.index(max(validation))]
            assert result.accuracy[point] == (best[f"test{ending}"] if best else None), (method, point)
        assert result.accuracy["test"] == result.accuracy["test_trained" if trained == "" else "test_served"]


def test_score_global_picks_the_round_by_the_global_model(small):
    personal, common = (graft.run("fedavg", score=score, **small) for score in ("personal", "global"))
    assert personal.accuracy["test_trained"] == common.accuracy["test_trained"] == personal.accuracy["test"]
    assert personal.accuracy["test_served"] == common.accuracy["test_served"]
    shared = [record["validation_global"] for record in common.rounds]
    assert common.summary["best_round"] == shared.index(max(shared)) + 1
    assert [timeless(record) for record in personal.rounds] == [timeless(record) for record in common.rounds]


def test_score_global_needs_a_global_model(small):
    with pytest.raises(InputError, match="'local' has no global model"):
        graft.run("local", score="global", **small)


def test_a_run_that_was_stopped_and_resumed_equals_the_unbroken_one(small, tmp_path):
    settings = small | {"rounds": 9, "participation": 0.7}
    unbroken = graft.run("fedprox", out=tmp_path / "whole", **settings)

    def interrupt(record):
        if record["round"] == 4:
            signal.raise_signal(signal.SIGINT)

    half = graft.run("fedprox", out=tmp_path / "half", callbacks=[interrupt], **settings)
    assert not half.finished
    assert half.rounds[-1]["round"] == 5  # the round that was under way is finished first
    assert not (tmp_path / "half" / "result.json").exists()
    resumed = graft.resume(tmp_path / "half")
    assert resumed.finished
    assert same(resumed.server, unbroken.server)
    assert all(same(resumed.clients[client], unbroken.clients[client]) for client in unbroken.clients)
    assert [timeless(record) for record in resumed.rounds] == [timeless(record) for record in unbroken.rounds]
    for name in ("accuracy", "per_client", "communication", "best_round"):
        assert resumed.summary[name] == unbroken.summary[name]
    on_disk = RunDirectory(tmp_path / "half").read_rounds()
    assert [record["round"] for record in on_disk] == list(range(1, 10))


def test_a_checkpoint_in_several_files_is_resumed_equal(small, tmp_path, monkeypatch):
    settings = small | {"rounds": 4, "participation": 0.7, "checkpoint_every": 2}
    unbroken = graft.run("fedavg", **settings)
    monkeypatch.setattr(tensor_files, "FILE_BYTES", 1000)

    def crash(record):
        if record["round"] == 3:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        graft.run("fedavg", out=tmp_path / "run", callbacks=[crash], **settings)
    assert len(list((tmp_path / "run" / "checkpoint").glob("state*.safetensors"))) > 3
    assert same(graft.resume(tmp_path / "run").server, unbroken.server)


def test_resume_drops_rounds_that_came_after_the_checkpoint(small, tmp_path):
    place = tmp_path / "run"
    settings = small | {"rounds": 7, "checkpoint_every": 3}
    unbroken = graft.run("fedavg", **settings)

    def crash(record):
        if record["round"] == 5:
            raise RuntimeError("the power went out")

    with pytest.raises(RuntimeError, match="power"):
        graft.run("fedavg", out=place, callbacks=[crash], **settings)
    assert RunDirectory(place).load().round == 3
    assert len(RunDirectory(place).read_rounds()) == 5
    resumed = graft.resume(place)
    assert same(resumed.server, unbroken.server)
    assert [record["round"] for record in RunDirectory(place).read_rounds()] == list(range(1, 8))


def test_a_finished_run_cannot_be_resumed_and_keeps_its_record(small, tmp_path):
    graft.run("fedavg", out=tmp_path / "run", **small)
    with pytest.raises(InputError, match="is a finished run of 6 rounds"):
        graft.resume(tmp_path / "run")
    assert len(RunDirectory(tmp_path / "run").read_rounds()) == 6


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_checkpoint(small, tmp_path):
    class Explodes(FedAvg):
        def loss(self, fleet, weights, received):
            loss = super().loss(fleet, weights, received)
            return loss + torch.tensor(
                [torch.nan if (client, fleet.round) == (1, 5) else 0.0 for client in fleet.clients]
            )

    place = tmp_path / "run"
    with pytest.raises(RunError, match=r"client 1 .* step 'train' of explodes, round 5; .*checkpoint of round 4"):
        graft.run(Explodes(), out=place, checkpoint_every=2, **small)
    assert RunDirectory(place).load().round == 4
    assert len(RunDirectory(place).read_rounds()) == 4
    assert not (place / "result.json").exists()


def test_patience_stops_early(small):
    patient = graft.run("local", patience=2, **(small | {"rounds": 60}))
    last, best = patient.rounds[-1]["round"], patient.summary["best_round"]
    assert last == best + 2 < 60
    assert patient.finished


def test_evaluation_can_be_rarer_than_rounds(small):
    result = graft.run("fedavg", evaluate_every=4, **small)
    assert [record["round"] for record in result.rounds if "test" in record] == [4, 6]  # and always the last
    every = graft.run("fedavg", **small)
    assert same(result.server, every.server)


def participants(members, share, seed, round):
    session = SimpleNamespace(engine=SimpleNamespace(members=lambda: members))
    session.setup = SimpleNamespace(participation=share, seed=seed)
    return Session.participants(session, round)


def test_participation_is_a_fair_draw_that_does_not_depend_on_anything_else():
    members = list(range(20))
    drawn = [participants(members, 0.2, 0, number) for number in range(1000)]
    assert all(len(set(one)) == 4 and one == sorted(one) for one in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=20)
    assert counts.min() > 150
    assert counts.max() < 250
    assert participants(members, 1.0, 0, 1) == members
    assert len(participants(members, 0.01, 0, 1)) == 1
    assert len(participants(list(range(10)), 0.7, 0, 1)) == 7  # 0.7 * 10 is 7, not 6.999...


def test_every_input_of_the_python_interface_may_be_an_object(tmp_path):
    graph = datasets.load("synthetic:nodes=90,degree=6,classes=3,features=8")
    data = Data(torch.from_numpy(graph.x), torch.from_numpy(graph.edges), y=torch.from_numpy(graph.y))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GCNConv(8, 8), GCNConv(8, 3)

        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index).relu(), edge_index)

    net = Net()
    settings = dict(clients=3, rounds=4)
    result = graft.run(FedAvg(), data, models=net, out=tmp_path / "run", **settings)
    assert result.summary["method"] == "fedavg"
    assert result.summary["per_client"][0]["model"] == "own"
    with pytest.raises(InputError, match="given its dataset in Python"):
        graft.resume(tmp_path / "run")
    mixed = graft.run("local", data, models=["gcn", net], **settings)
    assert [row["model"] for row in mixed.summary["per_client"]] == ["gcn", "own", "gcn"]


def test_a_run_given_objects_can_be_resumed_with_them(tmp_path):
    graph = datasets.load("synthetic:nodes=90,degree=6,classes=3,features=8")
    stop = lambda record: signal.raise_signal(signal.SIGINT) if record["round"] == 2 else None  # noqa: E731
    graft.run("fedavg", graph, out=tmp_path / "run", clients=3, rounds=5, callbacks=[stop])
    other = datasets.load("synthetic:nodes=90,degree=6,classes=3,features=8,seed=1")
    with pytest.raises(InputError, match="not what this run began with"):
        graft.resume(tmp_path / "run", dataset=other)
    resumed = graft.resume(tmp_path / "run", dataset=graph)
    assert same(resumed.server, graft.run("fedavg", graph, clients=3, rounds=5).server)


def test_one_architecture_methods_refuse_a_mixture(small):
    with pytest.raises(InputError, match="'fedavg' needs one architecture for all clients, not gcn, gat"):
        graft.run("fedavg", models="gcn,gat", **small)


def test_fedavg_bytes_are_what_arithmetic_says(small):
    """Width 8 on 8 features and 3 classes: 8*8+8 + 8*8+8 + 8*3+3 values of 4 bytes, and an 8-byte weight up."""
    result = graft.run("fedavg", participation=0.7, **small)  # 2 of 3 clients, 6 rounds
    model = 4 * (8 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3)
    assert result.summary["communication"] == {
        "up_bytes": 6 * 2 * (model + 8),
        "down_bytes": 6 * 2 * model,
        "peer_bytes": 0,
    }


@pytest.mark.skipif(not os.environ.get("GRAFT_DATA"), reason="needs Cora under GRAFT_DATA")
def test_fedavg_on_cora_sends_what_arithmetic_says():
    result = graft.run("fedavg", "cora", clients=10, rounds=1)
    values = 1433 * 64 + 64 + 64 * 64 + 64 + 64 * 7 + 7
    assert values == 96_391
    assert result.rounds[0]["down_bytes"] == 10 * 4 * values
    assert result.rounds[0]["up_bytes"] == 10 * (4 * values + 8)


def test_details_that_a_method_records_reach_the_rounds(small):
    class Talks(FedAvg):
        def round(self, server, clients):
            super().round(server, clients)
            server.record(norm=server.state.model.head.weight.norm(), asked=len(clients))

    result = graft.run(Talks(), **small)
    assert result.rounds[0]["details"]["asked"] == 3
    assert result.rounds[0]["details"]["norm"] > 0


def test_without_out_nothing_is_written(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = graft.run("fedavg", **small)
    assert list(tmp_path.iterdir()) == []
    assert isinstance(result.server, Tree)


def test_centralised_can_be_scored_on_each_clients_graph_alone(small):
    whole, own = (graft.run("centralised", settings={"inference": where}, **small) for where in ("whole", "own"))
    assert same(whole.clients[0], own.clients[0])  # training is the same
    assert whole.rounds[-1]["per_client"] != own.rounds[-1]["per_client"]
    alone = graft.run("centralised", settings={"inference": "own"}, **{**small, "clients": 1})
    usual = graft.run("centralised", **{**small, "clients": 1})
    assert alone.rounds[-1]["per_client"] == usual.rounds[-1]["per_client"]  # with one client nothing is lost


def test_a_run_in_separate_processes_can_be_stopped_and_resumed_too(small, tmp_path):
    settings = small | {"rounds": 4, "engine": "loopback", "device": "cpu"}
    unbroken = graft.run("fedavg", **settings)

    def interrupt(record):
        if record["round"] == 1:
            signal.raise_signal(signal.SIGINT)

    assert not graft.run("fedavg", out=tmp_path / "half", callbacks=[interrupt], **settings).finished
    resumed = graft.resume(tmp_path / "half")
    assert same(resumed.server, unbroken.server)
    assert all(same(resumed.clients[client], unbroken.clients[client]) for client in unbroken.clients)


def test_clients_too_small_to_be_scored_leave_no_accuracy_instead_of_a_crash(small, tmp_path):
    settings = small | {"dataset": "synthetic:nodes=12,degree=1,classes=3,features=4", "clients": 12, "rounds": 2}
    result = graft.run("fedavg", out=tmp_path / "run", **settings)  # one node a client, and it is a training node
    assert result.accuracy == dict.fromkeys(SCORES)
    assert json.loads((tmp_path / "run" / "result.json").read_text(), parse_constant=pytest.fail)["best_round"] == 2


def test_a_run_stopped_before_its_first_evaluation_has_no_accuracy_yet(small, tmp_path):
    stop = lambda record: signal.raise_signal(signal.SIGINT) if record["round"] == 1 else None  # noqa: E731
    result = graft.run("fedavg", out=tmp_path / "run", evaluate_every=5, callbacks=[stop], **small)
    assert not result.finished
    assert result.accuracy["test"] is None
    assert graft.resume(tmp_path / "run").accuracy["test"] is not None
