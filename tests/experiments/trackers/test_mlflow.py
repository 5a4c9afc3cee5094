"""What MLflow's own client finds in the database that a run wrote."""

import pytest

import graft

mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def uri(tmp_path, monkeypatch):
    """A store of plain files: the tables of a database take MLflow many seconds."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return f"file://{tmp_path / 'mlruns'}"


def runs_of(uri, experiment="graft"):
    client = mlflow.MlflowClient(uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    return client, client.search_runs([number], order_by=["attributes.start_time ASC"])


def history(client, run, key):
    return [(entry.step, entry.value) for entry in client.get_metric_history(run.info.run_id, key)]


def test_parameters_rounds_and_the_summary_are_there(run_with, uri, tmp_path):
    result = run_with(graft.MLflow(uri))
    client, [run] = runs_of(uri)
    assert run.info.status == "FINISHED"
    assert run.data.params["settings.mu"] == "0.5"
    assert run.data.params["clients"] == "3"
    assert run.data.tags["graft.directory"] == str(tmp_path / "run")
    for key, name in {"accuracy/test": "test", "bytes/down": "down_bytes"}.items():
        assert history(client, run, key) == [(r["round"], pytest.approx(r[name])) for r in result.rounds]
    assert history(client, run, "clients/0/validation_accuracy")
    assert run.data.metrics["result/accuracy/test"] == pytest.approx(result.accuracy["test"])
    assert run.data.metrics["result/seconds/total"] > 0


def test_a_resumed_run_goes_on_with_the_same_one(run_with, uri):
    run_with(graft.MLflow(uri), fails_after=3)
    _, [run] = runs_of(uri)
    assert run.info.status == "FAILED"
    graft.resume("run", callbacks=[graft.MLflow(uri)])
    client, [again] = runs_of(uri)
    assert again.info.run_id == run.info.run_id
    assert again.info.status == "FINISHED"
    assert {step for step, _ in history(client, again, "loss")} == {1, 2, 3, 4}


def test_every_run_is_one_of_its_own(run_with, uri):
    tracker = graft.MLflow(uri, experiment="banks")
    for seed in range(2):
        run_with(tracker, out=None, seed=seed)
    _, runs = runs_of(uri, "banks")
    assert [run.data.params["seed"] for run in runs] == ["0", "1"]


def test_names_that_mlflow_does_not_take_are_written_otherwise(uri):
    graphs = {name: graft.load("synthetic:nodes=40,degree=4,classes=2,features=4") for name in ("a+b", "ünï (2)")}
    graft.run("fedavg", graft.Federation(graphs), rounds=1, width=4, callbacks=[graft.MLflow(uri)])
    _, [run] = runs_of(uri)
    assert {"clients/a_b/test_accuracy", "clients/ünï _2_/test_accuracy"} <= run.data.metrics.keys()


@pytest.mark.slow  # for the tables
def test_without_a_uri_it_is_a_database_in_the_working_folder(run_with, tmp_path):
    result = run_with(graft.MLflow())
    client, [run] = runs_of(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert history(client, run, "accuracy/test") == [(r["round"], pytest.approx(r["test"])) for r in result.rounds]
