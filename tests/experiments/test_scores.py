"""Metrics in what a run writes, the round that the first one picks, and warnings of models that say one thing only."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import graft
from graft.cli import app
from graft.cli.report import headline
from graft.data.graphs import make_graph
from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.finished_runs import DEFAULTS, FinishedRun
from graft.experiments.experiment import Experiment
from graft.experiments.record_files import ResultRecord, RoundRecord, check_record
from graft.experiments.reports.report import write_report
from graft.experiments.run_directory import RunDirectory
from graft.experiments.scores import Scores, count_predicted, warn_of_one_class
from graft.federation.evaluation import Best
from graft.testing.toy import toy_federation
from tests.damage import essence

RARE = dict(clients=3, width=4, rounds=6, threads=1, partition="random", models="gcn")


@pytest.fixture(scope="module")
def rare():
    """A graph of two classes, the second of which is rare."""
    random = np.random.default_rng(1)
    y = (random.random(240) < 0.15).astype(int)
    edges = random.integers(0, 240, (2, 500))
    return make_graph("rare", random.normal(size=(240, 6)) + 0.7 * y[:, None], edges, y, 2)


@pytest.fixture(scope="module")
def measured(rare, tmp_path_factory):
    """A run that was measured by several metrics, and its directory."""
    out = tmp_path_factory.mktemp("measured") / "run"
    return graft.run("fedavg", rare, metric="auprc,log_loss,auroc", out=out, **RARE), out


# The best round.


def test_a_lower_score_is_the_better_one_where_the_metric_says_so():
    for higher, expected in ((True, [True, True, False, False]), (False, [True, False, True, False])):
        best = Best(higher)
        assert [best.see(number, score) for number, score in enumerate((0.5, 0.6, 0.4, None), 1)] == expected


def records_of(metric, values, accuracies):
    return [
        {
            "round": number,
            "up_bytes": 0,
            "down_bytes": 0,
            "peer_bytes": 0,
            "seconds": 0.0,
            "validation": accuracy,
            "test": accuracy,
            "per_client": {"validation": [accuracy], "test": [accuracy]},
            "metrics": {
                metric: {"validation": value, "test": value, "per_client": {"validation": [value], "test": [value]}}
            },
        }
        for number, (value, accuracy) in enumerate(zip(values, accuracies, strict=True), 1)
    ]


@pytest.mark.parametrize(
    ("metric", "values", "best_round"),
    [("auprc", [0.2, 0.9, 0.5, 0.4], 2), ("log_loss", [0.2, 0.9, 0.1, 0.4], 3), ("auroc", [None, 0.5, 0.5, None], 2)],
)
def test_the_first_metric_picks_the_round_and_drives_patience(metric, values, best_round):
    accuracies = [0.9, 0.1, 0.1, 0.8]  # the accuracy would pick the first
    nothing = torch.zeros(1, 1)
    scores = Scores(nothing, nothing, "personal", (metric,))
    scores.restore(records_of(metric, values, accuracies))
    assert (scores.best.round, scores.stale) == (best_round, 4 - best_round)
    by_accuracy = Scores(nothing, nothing, "personal")
    by_accuracy.restore([{**record} for record in map(without_metrics, scores.records)])
    assert by_accuracy.best.round == 1
    summary = scores.summary(1)
    assert summary["metric"] == metric
    assert summary["metrics"][metric]["test"] == values[best_round - 1]
    assert summary["accuracy"]["test"] == accuracies[best_round - 1]


def without_metrics(record):
    return {name: value for name, value in record.items() if name != "metrics"}


def test_a_run_where_accuracy_and_auprc_disagree_follows_the_first(rare):
    runs = {metric: graft.run("local", rare, metric=metric, **RARE) for metric in ("auprc", "accuracy,auprc")}
    rounds = {metric: run.summary["best_round"] for metric, run in runs.items()}
    assert rounds["auprc"] != rounds["accuracy,auprc"]
    for metric, run in runs.items():
        first = metric.split(",")[0]
        values = [record["metrics"][first]["validation"] for record in run.rounds]
        assert rounds[metric] == values.index(max(values)) + 1


def test_the_global_model_can_be_what_picks_the_round(rare):
    run = graft.run("fedavg", rare, metric="log_loss", score="global", **RARE)
    values = [record["metrics"]["log_loss"]["validation_global"] for record in run.rounds]
    assert run.summary["best_round"] == values.index(min(values)) + 1
    own = [record["metrics"]["log_loss"]["validation"] for record in run.rounds]
    assert own != values


# Records.


def test_records_hold_the_metrics_and_fit_their_types(measured):
    result, out = measured
    summary, rounds = RunDirectory(out).read_record()
    for record in rounds:
        check_record(RoundRecord, record)
        assert list(record["metrics"]) == ["auprc", "log_loss", "auroc"]
        for values in record["metrics"].values():
            assert set(values) == {
                *("train", "validation", "test", "validation_pooled", "test_pooled"),
                *("validation_global", "test_global", "per_client"),
            }
            known = [value for value in values["per_client"]["test"] if value is not None]
            assert values["test"] == pytest.approx(np.mean(known))
    check_record(ResultRecord, summary)
    best = rounds[summary["best_round"] - 1]
    assert summary["metric"] == "auprc"
    assert summary["metrics"]["auroc"]["test"] == best["metrics"]["auroc"]["test"]
    assert "per_client" not in summary["metrics"]["auroc"]
    for client, row in enumerate(summary["per_client"]):
        assert row["metrics"]["auprc"]["test"] == best["metrics"]["auprc"]["per_client"]["test"][client]
        assert row["confusion"] == best["confusion"][client]
        correct = np.trace(row["confusion"]) / np.sum(row["confusion"])
        assert row["test"] == pytest.approx(correct)
    assert result.summary["metrics"] == summary["metrics"]


def test_runs_by_accuracy_alone_say_nothing_of_metrics(rare, measured):
    plain = graft.run("fedavg", rare, **RARE)
    assert not {"metric", "metrics"} & set(plain.summary)
    assert not any({"metrics", "confusion"} & set(record) for record in plain.rounds)
    for record, other in zip(plain.rounds, measured[0].rounds, strict=True):  # and are the same otherwise
        assert {name: other[name] for name in record if name != "seconds"} == {
            name: value for name, value in record.items() if name != "seconds"
        }


def test_damaged_metrics_are_refused(measured):
    _, rounds = RunDirectory(measured[1]).read_record()
    wrong = json.loads(json.dumps(rounds[0]))
    wrong["metrics"]["auprc"]["test"] = "high"
    with pytest.raises(ValueError, match=r"metrics.auprc.test"):
        check_record(RoundRecord, wrong)


def test_a_metric_that_is_not_defined_for_a_client_is_none_and_left_out(rare, tmp_path):
    # The last client has no node of the rare class.
    membership = np.where(rare.y == 1, np.arange(240) % 2, np.arange(240) % 3)
    file = tmp_path / "partition.txt"
    file.write_text("\n".join(map(str, membership)))
    out = tmp_path / "run"
    run = graft.run("local", rare, metric="auroc,auprc,f1", out=out, **RARE | {"partition": str(file)})
    last = run.rounds[-1]["metrics"]["auroc"]
    assert last["per_client"]["test"][2] is None
    assert last["test"] == pytest.approx(np.mean(last["per_client"]["test"][:2]))
    text = (out / "rounds.jsonl").read_text() + (out / "result.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text


def test_resumed_metrics_equal_unbroken_ones(rare, measured, tmp_path):
    def stop(record):
        if record["round"] == 3:
            raise ZeroDivisionError

    settings = RARE | {"metric": "auprc,log_loss,auroc", "checkpoint_every": 1}
    with pytest.raises(ZeroDivisionError):
        graft.run("fedavg", rare, out=tmp_path / "half", callbacks=[stop], **settings)
    resumed = graft.resume(tmp_path / "half", dataset=rare)
    assert essence(resumed) == essence(measured[0])
    for name in ("best_round", "metric", "metrics", "per_client"):
        assert resumed.summary[name] == measured[0].summary[name]


@pytest.mark.parametrize("method", ["centralised", "dpsgd", "majority"])
def test_all_kinds_of_methods_are_measured(method, rare):
    run = graft.run(method, rare, metric="auroc,ece", **RARE | {"rounds": 2})
    assert len(run.summary["per_client"]) == 3
    assert all(row["metrics"]["ece"]["test"] is not None for row in run.summary["per_client"])
    own = run.summary["metrics"]["auroc"]["test"]
    points = [run.summary["metrics"]["auroc"][f"test_{point}"] for point in ("trained", "served")]
    assert own in points
    assert (points[1] is not None) == (method == "dpsgd")


def test_metrics_are_of_both_points_of_a_round(rare):
    settings = RARE | {"rounds": 3}
    run = graft.run("fedgta", rare, metric="auroc,log_loss", **settings)
    for metric in ("auroc", "log_loss"):
        scores = run.summary["metrics"][metric]
        trained = [record["metrics"]["auroc"]["validation_trained"] for record in run.rounds]
        best = run.rounds[trained.index(max(trained))]["metrics"][metric]
        assert (scores["test_trained"], scores["test_served"]) == (best["test_trained"], scores["test"])
    shared = graft.run("fedavg", rare, metric="auroc,log_loss", **settings).summary["metrics"]["log_loss"]
    assert (shared["test_trained"], shared["test_served"]) == (shared["test"], shared["test_global"])


def test_majority_is_no_better_than_chance(rare):
    run = graft.run("majority", rare, metric="auroc,auprc", **RARE | {"rounds": 1})
    assert run.summary["metrics"]["auroc"]["test"] == 0.5
    shares = [(np.array(row["confusion"])[1].sum() / np.sum(row["confusion"])) for row in run.summary["per_client"]]
    assert [row["metrics"]["auprc"]["test"] for row in run.summary["per_client"]] == pytest.approx(shares)
    assert run.summary["warnings"] == []


def test_patience_follows_the_first_metric(rare):
    run = graft.run("local", rare, metric="log_loss", patience=2, **RARE | {"rounds": 200, "learning_rate": 0.2})
    values = [record["metrics"]["log_loss"]["validation"] for record in run.rounds]
    assert len(values) == values.index(min(values)) + 3
    assert len(values) < 200


@pytest.mark.parametrize("metric", ["aurok", "auroc,,f1", "auroc,auroc"])
def test_unknown_metrics_are_refused_before_anything_is_loaded(metric):
    with pytest.raises(InputError, match="metric"):
        Experiment(metric=metric)
    assert CliRunner().invoke(app, ["run", "--dataset", "/nowhere.npz", "--metric", metric]).exit_code == 2


def test_f1_of_several_classes_is_refused(small):
    with pytest.raises(InputError, match="metric f1 is of the positive class"):
        graft.run("fedavg", metric="f1", **small)


# What people see.


def test_reports_and_tables_show_the_metrics(measured):
    summary = RunDirectory(measured[1]).read_result()
    html = write_report(measured[1]).read_text()
    auprc = f"{100 * summary['metrics']['auprc']['test']:.1f} %"
    assert f"reaches {auprc} mean test AUPRC" in html
    assert html.index("AUPRC over rounds") < html.index("Accuracy over rounds")
    assert f"{summary['metrics']['log_loss']['test']:.3f}" in html
    table = headline(compared(summary))
    heads = [column.header for column in table.columns]
    assert heads[:5] == ["method", "AUPRC", "log loss", "AUROC", "accuracy"]
    for heading, name in (("trained", "test"), ("handed out", "test_global")):
        value = f"{100 * summary['metrics']['auprc'][name]:.1f}"
        assert next(iter(table.columns[heads.index(heading)].cells)) == value
    assert next(iter(table.columns[1].cells)) == auprc.removesuffix(" %")
    other = without_metrics(summary)
    mixed = headline(compared(summary, other | {"experiment": {**other["experiment"], "method": "local"}}))
    assert list(mixed.columns[1].cells)[1] == "-"


def compared(*summaries):
    return Comparison([FinishedRun({**DEFAULTS, **summary["experiment"]}, summary) for summary in summaries])


def test_a_report_without_metrics_is_about_the_accuracy(rare, tmp_path):
    graft.run("local", rare, out=tmp_path / "run", **RARE)
    html = write_report(tmp_path / "run").read_text()
    assert "mean test accuracy of the clients&#39; own models" in html
    assert "Accuracy over rounds" in html
    assert "Confusion matrices are on record where metrics are asked for" in html


# Models that predict one class only.


def warning_of(predicted, accuracies, names=None, class_names=None, **settings):
    federation = toy_federation(len(predicted))
    federation = replace(federation, names=names, graph=replace(federation.graph, class_names=class_names))
    return warn_of_one_class(np.array(predicted), accuracies, federation, Experiment(**settings))


def test_a_model_that_predicts_one_class_only_is_named():
    (sentence,) = warning_of(
        [[812, 0, 0], [400, 5, 0]], [0.966, 0.9], names=("alpha", "beta"), class_names=("no", "yes", "?")
    )
    assert sentence == (
        "The model of client alpha predicts class 'no' for all of its 812 test nodes; accuracy is then the share of "
        "that class (96.6 %): look at auprc or balanced_accuracy, or try --class-weights balanced."
    )


def test_several_models_share_one_sentence():
    (sentence,) = warning_of([[12, 0, 0], [0, 1500, 0], [3, 9, 0]], [0.5, 0.8, 0.7], class_weights="balanced")
    assert "The models of 2 clients predict one class only" in sentence
    assert "client 0: class 0 for all of its 12 test nodes, accuracy 50.0 %" in sentence
    assert "client 1: class 1 for all of its 1,500 test nodes, accuracy 80.0 %" in sentence
    assert "--class-weights" not in sentence  # which it has


@pytest.mark.parametrize(
    ("predicted", "accuracy"), [([20, 1, 0], 0.9), ([20, 0, 0], 1.0), ([0, 0, 0], None), ([3, 0, 0], 0.5)]
)
def test_nothing_is_said_of_models_that_may_well_be_right(predicted, accuracy):
    assert warning_of([predicted], [accuracy]) == []


@pytest.mark.parametrize("metric", ["accuracy", "auprc"])
def test_a_run_warns_in_its_result_and_on_the_screen(metric, rare, tmp_path):
    settings = RARE | {"rounds": 1, "epochs": 1, "metric": metric, "learning_rate": 1e-9}
    noise = make_graph("noise", np.zeros_like(rare.x), rare.edges, rare.y, 2)  # nothing to tell nodes apart by
    run = graft.run("local", noise, out=tmp_path / "run", **settings)
    (sentence,) = run.summary["warnings"]
    assert "predict one class only" in sentence
    assert RunDirectory(tmp_path / "run").read_result()["warnings"] == [sentence]
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert shown.exit_code == 0
    assert "predict one class only" in shown.output
    assert "predict one class only" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("name", ["local", "fedgta", "centralised", "fedproto"])
def test_the_warning_is_about_the_models_of_the_best_round(name, rare):
    result = graft.run(name, rare, **RARE | {"rounds": 4})
    accuracies = [row["test"] for row in result.summary["per_client"]]
    federation = result.models.federation()
    fewer = count_predicted(result.models, federation, accuracies)
    for client, graph in enumerate(federation.clients):
        classes = np.bincount(result.client(client).predict().classes[graph.test], minlength=2)
        assert fewer[client].tolist() in ([0, 0], classes.tolist())
        assert fewer[client].any() or (classes > 0).all()  # none that predicts one class is overlooked
    blind = count_predicted(
        result.models, federation, [1 - np.mean(graph.y[graph.test]) for graph in federation.clients]
    )
    assert (blind.sum(axis=1) == [graph.test.sum() for graph in federation.clients]).all()


def test_all_numbers_of_a_result_are_finite(measured):
    def numbers(value):
        if isinstance(value, dict | list):
            for part in value.values() if isinstance(value, dict) else value:
                yield from numbers(part)
        elif isinstance(value, float):
            yield value

    assert all(map(math.isfinite, numbers(measured[0].summary)))


def test_a_result_shows_the_first_metric_first(measured, rare):
    result = measured[0]
    assert list(result.metrics) == ["auprc", "log_loss", "auroc"]
    auprc, accuracy = (f"{100 * value:.1f} %" for value in (result.metrics["auprc"]["test"], result.accuracy["test"]))
    assert f"test AUPRC {auprc}, log loss 0." in repr(result)
    assert f"accuracy {accuracy} at round" in repr(result)
    assert "<th>test</th><th>test AUPRC</th>" in result._repr_html_()
    plain = graft.run("local", rare, **RARE | {"rounds": 1})
    assert plain.metrics == {}
    assert "AUPRC" not in plain._repr_html_()
