"""What TensorBoard's own reader finds in the files that a run wrote."""

import pytest

import graft
from graft.errors import InputError

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
plugin_data = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")


def read(folder):
    events = event_accumulator.EventAccumulator(str(folder), purge_orphaned_data=True)
    events.Reload()
    return events


def values_of(folder, tag):
    return {event.step: event.value for event in read(folder).Scalars(tag)}


def test_every_round_is_there_with_scores_bytes_and_clients(run_with, tmp_path):
    result = run_with(graft.TensorBoard())
    folder = tmp_path / "run" / "tensorboard"
    for tag, name in {"accuracy/test": "test", "loss": "loss", "bytes/up": "up_bytes", "seconds": "seconds"}.items():
        expected = {record["round"]: pytest.approx(record[name], rel=1e-6) for record in result.rounds}
        assert values_of(folder, tag) == expected
    of_client = {record["round"]: pytest.approx(record["per_client"]["test"][2]) for record in result.rounds}
    assert values_of(folder, "clients/2/test_accuracy") == of_client


def test_parameters_summary_and_status_are_there(run_with, tmp_path):
    result = run_with(graft.TensorBoard())
    events = read(tmp_path / "run" / "tensorboard")
    table = events.Tensors("experiment/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| settings.mu | `0.5` |" in table
    assert str(tmp_path / "run") in table
    assert events.Tensors("status/text_summary")[0].tensor_proto.string_val == [b"finished"]
    assert events.Scalars("result/accuracy/test")[0].value == pytest.approx(result.accuracy["test"])
    start = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    parameters = plugin_data.HParamsPluginData.FromString(start).session_start_info.hparams
    assert parameters["settings.mu"].number_value == 0.5
    assert parameters["method"].string_value == "fedprox"


def test_a_run_that_failed_says_so_and_a_resumed_one_has_every_round_once(run_with, tmp_path):
    tracker = graft.TensorBoard("logs")
    run_with(tracker, fails_after=3)
    [folder] = (tmp_path / "logs").iterdir()
    assert read(folder).Tensors("status/text_summary")[-1].tensor_proto.string_val == [b"failed"]
    assert sorted(values_of(folder, "loss")) == [1, 2, 3]
    result = graft.resume("run", callbacks=[graft.TensorBoard("logs")])
    assert [entry.name for entry in (tmp_path / "logs").iterdir()] == [folder.name]
    assert [event.step for event in read(folder).Scalars("loss")] == [1, 2, 3, 4]
    assert values_of(folder, "loss") == {r["round"]: pytest.approx(r["loss"]) for r in result.rounds}


def test_runs_of_one_folder_do_not_mix(run_with, tmp_path):
    tracker = graft.TensorBoard("logs")
    run_with(tracker, out=None)
    run_with(tracker, out=None)
    names = sorted(folder.name for folder in (tmp_path / "logs").iterdir())
    assert names == [name := "fedprox-synthetic:nodes=60,degree=4,classes=3,features=6-3-0", f"{name}-2"]


def test_an_overwritten_run_begins_anew(run_with, tmp_path):
    run_with(graft.TensorBoard())
    graft.run("fedavg", "digits", out="run", overwrite=True, clients=2, rounds=1, width=4)
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert not (tmp_path / "run" / "trackers.json").exists()


def test_a_run_without_a_record_needs_a_folder():
    with pytest.raises(InputError, match=r"TensorBoard needs a folder .* graft.TensorBoard\('logs'\)"):
        graft.run("fedavg", callbacks=[graft.TensorBoard()], rounds=1, clients=2)
