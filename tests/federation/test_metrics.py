"""Metrics against scikit-learn on the predictions themselves, and what of them leaves a client."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.federation.metric_names import METRICS, check_positive, format_metric, parse_metrics
from graft.federation.metrics import SCORE_BINS, Measured, Predictions, score_bins
from graft.federation.reveals import covering, declared
from graft.federation.session import Session
from graft.methods.centralised import Centralised
from graft.methods.dpsgd import DPSGD
from graft.methods.fedavg import FedAvg
from graft.methods.fedgta import FedGTA
from graft.methods.local import Local
from graft.tensors.trees import Tree, flatten
from graft.testing.claim import contract_setup
from graft.testing.leaks import SIZES, Watching
from graft.testing.raw_data import find_raw_data
from graft.testing.toy import join_graphs, toy_graphs
from tests.contract import contract_method

EVERY = tuple(METRICS)


def random_predictions(nodes, classes, seed=0, positive=None, sharpness=2.0):
    """Returns predictions that are better than chance, of classes of which the first is the most frequent."""
    random = np.random.default_rng(seed)
    true = random.choice(classes, nodes, p=np.arange(classes, 0, -1) / np.arange(classes, 0, -1).sum())
    logits = random.normal(size=(nodes, classes)) * sharpness + 2 * np.eye(classes)[true]
    return Predictions(true, torch.from_numpy(logits).softmax(1).numpy(), positive)


def expected_values(true, probabilities, positive=None):
    """Returns all metrics of two or more classes, each as scikit-learn's users would compute it."""
    classes, predicted = probabilities.shape[1], probabilities.argmax(1)
    chosen = 1 if positive is None else positive
    if classes == 2:
        auroc = reference.roc_auc_score(true == chosen, probabilities[:, chosen])
        auprc = reference.average_precision_score(true == chosen, probabilities[:, chosen])
    else:
        auroc = reference.roc_auc_score(true, probabilities, multi_class="ovr", average="macro")
        auprc = reference.average_precision_score(np.eye(classes)[true], probabilities, average="macro")
    top = probabilities.max(1)
    bins = np.digitize(top, np.linspace(0, 1, 16)[1:-1])
    ece = sum(
        abs(top[bins == b].mean() - (predicted == true)[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)
    )
    return {
        "accuracy": reference.accuracy_score(true, predicted),
        "balanced_accuracy": reference.balanced_accuracy_score(true, predicted),
        "macro_f1": reference.f1_score(true, predicted, average="macro"),
        "f1": reference.f1_score(true == chosen, predicted == chosen),
        "auroc": auroc,
        "auprc": auprc,
        "log_loss": reference.log_loss(true, probabilities),
        "ece": ece,
    }


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("classes", "positive"), [(2, None), (2, 0), (4, 2)])
def test_every_metric_is_that_of_scikit_learn(metric, classes, positive):
    predictions = random_predictions(300, classes, positive=positive)
    expected = expected_values(predictions.classes, predictions.probabilities, positive)
    assert predictions.value(metric) == pytest.approx(expected[metric], abs=1e-12)
    assert predictions.value(metric) != pytest.approx(random_predictions(300, classes, seed=1).value(metric), abs=1e-4)


def test_the_positive_class_of_two_can_be_either():
    first, second = random_predictions(200, 2, positive=0), random_predictions(200, 2, positive=1)
    assert first.value("f1") != second.value("f1")
    assert first.value("auprc") != second.value("auprc")
    assert second.value("f1") == random_predictions(200, 2).value("f1")  # the second, if nobody says


@pytest.mark.parametrize(
    ("true", "undefined"),
    [
        ([], {*METRICS}),
        ([0, 0, 0], {"auroc", "auprc", "f1"}),  # no positive node, and none is predicted
        ([1, 1, 1], {"auroc"}),
    ],
)
def test_what_is_not_defined_is_no_number(true, undefined):
    scores = np.tile([[0.7, 0.3]], (len(true), 1))
    values = {metric: Predictions(np.array(true, int), scores).value(metric) for metric in METRICS}
    assert {metric for metric, value in values.items() if np.isnan(value)} == undefined


def test_classes_that_do_not_occur_are_left_out_of_means():
    predictions = random_predictions(200, 3)
    few = predictions.classes < 2
    part = Predictions(predictions.classes[few], predictions.probabilities[few])
    ovr = [reference.roc_auc_score(part.classes == c, part.probabilities[:, c]) for c in (0, 1)]
    assert part.value("auroc") == pytest.approx(np.mean(ovr))
    recalls = [(part.probabilities.argmax(1) == part.classes)[part.classes == c].mean() for c in (0, 1)]
    assert part.value("balanced_accuracy") == pytest.approx(np.mean(recalls))


# Over the nodes of all clients.


def as_measured(clients, metrics=EVERY, positive=None):
    """Returns what clients with these predictions, the same for validation and test, would have replied."""
    parts = {
        "confusion": [part.confusion for part in clients],
        "histograms": [part.histograms() for part in clients],
        "gaps": [part.calibration_gaps() for part in clients],
    }
    statistics = {name: np.stack([np.stack([leaf, leaf]) for leaf in leaves]) for name, leaves in parts.items()}
    values = np.array([[[part.value(metric) for metric in metrics]] * 3 for part in clients])
    return Measured(metrics, positive, values, statistics)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("classes", "positive"), [(2, None), (4, 2)])
def test_pooled_values_are_those_of_all_predictions_together(metric, classes, positive):
    clients = [random_predictions(size, classes, seed, positive) for seed, size in enumerate((400, 50, 150))]
    true, probabilities = (
        np.concatenate([getattr(part, name) for part in clients]) for name in ("classes", "probabilities")
    )
    expected = expected_values(true, probabilities, positive)[metric]
    pooled = as_measured(clients, positive=positive).pooled(metric, "test")
    assert pooled == pytest.approx(expected, abs=2e-3 if metric in ("auroc", "auprc") else 1e-9)
    alone = np.mean([part.value(metric) for part in clients])
    assert pooled != pytest.approx(alone, abs=2e-3)  # which is not the mean over clients


@pytest.mark.parametrize(
    ("sharpness", "shift"), [(0.3, 0.0), (1.0, -4.0), (3.0, -8.0)], ids=["vague", "rare", "very rare"]
)
def test_pooled_rankings_are_close_wherever_the_scores_are(sharpness, shift):
    random = np.random.default_rng(0)
    true = (random.random(5000) < 0.05).astype(int)
    odds = sharpness * (random.normal(size=5000) + 1.5 * true) + shift
    probabilities = torch.tensor(np.stack([np.zeros(5000), odds], 1)).softmax(1).numpy()
    clients = [Predictions(true[part::2], probabilities[part::2]) for part in (0, 1)]
    whole, pooled = Predictions(true, probabilities), as_measured(clients)
    assert pooled.pooled("auroc", "test") == pytest.approx(whole.value("auroc"), abs=1e-3)
    assert pooled.pooled("auprc", "test") == pytest.approx(whole.value("auprc"), abs=1e-2)
    coarse = np.floor(probabilities[:, 1] * SCORE_BINS)  # equal steps of the probability fail where scores are low
    off = abs(reference.roc_auc_score(true, coarse) - whole.value("auroc"))
    assert (off > 1e-2) == (shift == -8)


def test_bins_of_scores_are_in_the_order_of_the_scores():
    scores = np.array([0.0, 1e-14, 1e-9, 1e-3, 0.49, 0.5, 0.51, 0.999, 1 - 1e-12, 1.0])
    bins = score_bins(scores)
    assert bins[0] == 0
    assert bins[-1] == SCORE_BINS - 1
    assert (np.diff(bins) >= 0).all()
    assert len(set(bins[1:-1])) == 8


def test_pooled_values_of_no_nodes_are_none():
    empty = Predictions(np.empty(0, int), np.empty((0, 2)))
    assert {as_measured([empty]).pooled(metric, "test") for metric in METRICS} == {None}


# Names.


def test_metrics_are_named_in_a_list():
    assert parse_metrics("auprc, macro_f1") == ("auprc", "macro_f1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("auroc,acuracy", "no metric 'acuracy' \\(did you mean 'accuracy'\\?\\): there are accuracy, balanced"),
        ("auroc,auroc", "names auroc twice"),
        ("", "no metric ''"),
    ],
)
def test_unknown_metrics_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        parse_metrics(text)


def test_f1_needs_a_positive_class():
    check_positive(("f1",), 2, None)
    check_positive(("f1",), 5, 3)
    with pytest.raises(InputError, match=r"none of the 5 classes .* use macro_f1"):
        check_positive(("auroc", "f1"), 5, None)


def test_values_are_shown_as_people_read_them():
    assert [format_metric(name, 0.1234) for name in ("auprc", "log_loss")] == ["12.3 %", "0.123"]
    assert format_metric("auroc", None) == "none"


# In a session.


def measuring(method, metrics=EVERY, **settings):
    return replace(contract_setup(method, **settings), metrics=metrics, positive=1)


def own_predictions(session, kind):
    """Returns the predictions of every client's own model on its nodes of one kind, from its logits."""
    setup, predictions = session.setup, {}
    for fleet in session.engine.fleets:
        view = fleet.on(fleet.scoring)
        logits = setup.method.logits(view).double().softmax(2).numpy()
        for row, client in enumerate(fleet.clients):
            nodes = view.labels.masks[row, kind].numpy()
            predictions[client] = Predictions(view.labels.classes[row].numpy()[nodes], logits[row][nodes], 1)
    return [predictions[client] for client in sorted(predictions)]


@pytest.mark.parametrize("name", ["fedavg", "local", "dpsgd", "fedgta", "fedproto", "fedsage_plus", "majority"])
def test_a_session_measures_every_client_by_its_own_model(name):
    method = contract_method(name)
    setup = measuring(method)
    session = Session(setup, InProcess(setup))
    outcome = session.round(1)
    measured = outcome.measured["own"]
    if method.personalised(session.server) is not None:
        assert np.isfinite(measured.of_metric("log_loss")).all()
        return
    for kind in range(3):
        for client, predictions in enumerate(own_predictions(session, kind)):
            values = [predictions.value(metric) for metric in EVERY]
            assert np.allclose(measured.values[client, kind], values, atol=1e-6, equal_nan=True)
    correct = outcome.tensors.correct.own[:, 0]
    assert np.array_equal(np.trace(measured.statistics["confusion"], axis1=2, axis2=3), correct[:, 1:].numpy())


def test_all_kinds_of_models_are_measured():
    given = {"own", "trained"}  # what clients were given after training, and what they had trained
    for method, models in ((FedAvg(), {"own", "global"}), (Local(), {"own"}), (DPSGD(), given), (FedGTA(), given)):
        setup = measuring(method, ("auroc",))
        measured = Session(setup, InProcess(setup)).round(1).measured
        assert set(measured) == models
        values = [part.of_metric("auroc") for part in measured.values()]
        assert len(values) == 1 or not np.array_equal(values[0], values[1], equal_nan=True)


def test_nothing_is_measured_for_the_accuracy_alone_or_without_scores():
    plain = contract_setup(FedAvg())
    watching = Watching(plain)
    assert Session(plain, watching).round(1).measured == {}
    setup = measuring(FedAvg())
    assert Session(setup, InProcess(setup)).round(1, evaluate=False).measured == {}
    assert not {step for step in watching.steps if step.startswith("measure")}


def test_measuring_changes_no_state_and_no_later_round():
    for participation in (1.0, 0.5):
        runs = []
        for metrics in (("accuracy",), EVERY):
            setup = measuring(FedAvg(), metrics, participation=participation, dropout=0.5)
            session = Session(setup, InProcess(setup))
            outcomes = [session.round(number) for number in (1, 2, 3)]
            runs.append((session.state(), [outcome.tensors.correct.own for outcome in outcomes]))
        (first, scores), (second, others) = runs
        leaves, other_leaves = (
            dict(flatten(Tree({"server": state.server, **{str(c): t for c, t in state.clients.items()}})))
            for state in (first, second)
        )
        assert all(torch.equal(leaf, other_leaves[path]) for path, leaf in leaves.items())
        assert all(torch.equal(*pair) for pair in zip(scores, others, strict=True))


def test_pooled_data_are_measured_for_each_client():
    setup = measuring(Centralised())
    session = Session(setup, InProcess(setup))
    measured = session.round(1).measured["own"]
    (view,) = (fleet.on(fleet.scoring) for fleet in session.engine.fleets)
    probabilities = setup.method.logits(view)[0].double().softmax(1).numpy()
    assert measured.values.shape == (3, 3, len(EVERY))
    for client in range(3):
        nodes = (view.labels.masks[0, 2] & (view.labels.membership[0] == client)).numpy()
        own = Predictions(view.labels.classes[0].numpy()[nodes], probabilities[nodes], 1)
        expected = [own.value(metric) for metric in EVERY]
        assert np.allclose(measured.values[client, 2], expected, atol=1e-6, equal_nan=True)


def test_a_client_without_labels_has_no_metrics():
    graphs = toy_graphs()
    nowhere = np.zeros(graphs[1].nodes, bool)
    graphs[1] = replace(graphs[1], train=nowhere, validation=nowhere, test=nowhere)
    setup = measuring(Local(), graphs=graphs)
    measured = Session(setup, InProcess(setup)).round(1).measured["own"]
    assert np.isnan(measured.values[1]).all()
    assert not np.isnan(measured.of_metric("log_loss")[0]).any()


def test_a_model_that_diverged_has_no_metrics():
    class Diverged(Local):
        def logits(self, fleet):
            return super().logits(fleet) * float("nan")

    setup = measuring(Diverged())
    measured = Session(setup, InProcess(setup)).round(1).measured["own"]
    assert np.isnan(measured.values).all()
    assert measured.pooled("ece", "test") is None


def test_every_client_measures_in_a_process_of_its_own_what_it_does_in_a_fleet():
    setup = measuring(FedAvg(), clients=2)
    outcomes = []
    for make in (InProcess, Loopback):
        session = Session(setup, make(setup))
        outcomes.append(session.round(1).measured)
        session.close()
    for models, here in outcomes[0].items():
        there = outcomes[1][models]
        assert np.allclose(here.values, there.values, atol=1e-4, equal_nan=True)
        assert np.array_equal(here.statistics["confusion"], there.statistics["confusion"])


# What leaves.


def watched(method, sizes=SIZES):
    setup = replace(
        contract_setup(method, federation=join_graphs(toy_graphs(sizes=sizes)), dropout=0.5), metrics=EVERY, positive=1
    )
    engine = Watching(setup)
    Session(setup, engine).round(1)
    return setup, [sent for sent in engine.sent if sent.field.startswith("measure")]


@pytest.mark.parametrize("name", ["fedavg", "dpsgd", "centralised", "fedproto", "fedgta", "majority"])
def test_what_is_measured_is_declared_and_holds_no_raw_data(name):
    method = contract_method(name)
    setup, replies = watched(method)
    assert {sent.field.partition("/")[2] for sent in replies} == {
        "values",
        "confusion",
        "histograms",
        "gaps",
    }
    for sent in replies:
        assert covering(declared(method), sent.field) == sent.field
        assert find_raw_data(sent.leaf.numpy(), setup.graphs[sent.client]) is None, sent.field


@pytest.mark.parametrize("sizes", [(12, 9, 7), (6, 6, 6), (40, 30, 20)])
def test_counts_of_tiny_clients_are_not_taken_for_raw_data(sizes):
    setup, replies = watched(FedAvg(), sizes)
    assert replies
    assert [sent.field for sent in replies if find_raw_data(sent.leaf.numpy(), setup.graphs[sent.client])] == []


def test_a_score_for_every_node_would_be_taken_for_raw_data_of_labels():
    setup, _ = watched(FedAvg())
    graph = setup.graphs[0]
    assert find_raw_data(np.eye(graph.classes)[graph.y], graph) is not None
