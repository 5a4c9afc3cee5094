"""What the file of an offline run of Weights & Biases holds, by the package's own protocol."""

import json
import struct

import pytest

import graft

wandb = pytest.importorskip("wandb")
protocol = pytest.importorskip("wandb.proto.wandb_internal_pb2")

HEADER, BLOCK = 7, 32_768  # bytes; the file is a log of LevelDB, whose records are cut at the ends of blocks
LAST_PARTS = (1, 4)  # kinds of parts: a whole record, or the last part of one


def records_of(path):
    """Reads the records of a .wandb file."""
    content, position, parts = path.read_bytes(), HEADER, b""
    while position + HEADER <= len(content):
        if BLOCK - position % BLOCK < HEADER:  # no part begins so near to the end of a block
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + HEADER])
        parts += content[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in LAST_PARTS:
            yield protocol.Record.FromString(parts)
            parts = b""


def offline_runs(folder):
    """Returns the files of runs."""
    wandb.teardown()  # a run may say that it has finished before its file is whole; the end of the service waits
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def items_of(items):
    """Returns the values of items, which are under a key or a nested key."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def history_of(path):
    records = [record for record in records_of(path) if record.WhichOneof("record_type") == "history"]
    return {record.history.step.num: items_of(record.history.item) for record in records}


def test_parameters_rounds_the_summary_and_the_end_are_there(run_with, tmp_path):
    result = run_with(graft.WandB("banks", tags=["demo"], dir=str(tmp_path)))
    [path] = offline_runs(tmp_path)
    records = {record.WhichOneof("record_type"): record for record in records_of(path)}
    run = next(record.run for record in records_of(path) if record.WhichOneof("record_type") == "run")
    assert run.project == "banks"
    assert list(run.tags) == ["demo"]
    config = items_of(run.config.update)
    assert config["settings.mu"] == 0.5
    assert config["graft.directory"] == str(tmp_path / "run")
    history = history_of(path)
    assert {step: values["accuracy/test"] for step, values in history.items()} == {
        record["round"]: pytest.approx(record["test"]) for record in result.rounds
    }
    assert history[4]["clients/1/test_accuracy"] == pytest.approx(result.rounds[3]["per_client"]["test"][1])
    summary = {}
    for record in records_of(path):
        if record.WhichOneof("record_type") == "summary":
            summary |= items_of(record.summary.update)
    assert summary["result/accuracy/test"] == pytest.approx(result.accuracy["test"])
    assert summary["status"] == "finished"
    assert records["exit"].exit.exit_code == 0


def test_a_resumed_run_has_the_same_id_and_a_failed_one_says_so(run_with, tmp_path):
    run_with(graft.WandB("banks", dir=str(tmp_path)), fails_after=3)
    [first] = offline_runs(tmp_path)
    assert [record.exit.exit_code for record in records_of(first) if record.HasField("exit")] == [1]
    graft.resume("run", callbacks=[graft.WandB("banks", dir=str(tmp_path))])
    files = offline_runs(tmp_path)
    assert {path.name for path in files} == {first.name}  # in a folder a session, to be synchronised as one run
    [second] = [path for path in files if path != first]
    assert (sorted(history_of(first)), sorted(history_of(second))) == ([1, 2, 3], [3, 4])
