"""No code path of training reads a label of a test node: it enters the test scores at the end, and nothing else."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from graft.experiments.build import build_federation
from graft.experiments.experiment import make_experiment
from graft.experiments.given import Given
from graft.experiments.run import run_experiment
from graft.federation.plug import takes_plugs
from graft.methods import METHODS, PLUGS
from graft.testing.labels import judging_method, with_wrong_labels
from graft.testing.toy import same

DATA = {"dataset": "synthetic:nodes=90,degree=6,classes=3,features=8", "clients": 3, "width": 8}
HASTE = {  # less of what takes long
    "adafgl": {"extractor_share": 0.01},  # a round of each of its two steps
    "fedsage_plus": {"generator_epochs": 2, "slots": 2, "latent": 8, "encoder_width": 8, "rank": 4},
    "fedtad": {"iterations": 1, "student_steps": 1},
    "fedtad_paper": {"iterations": 1, "student_steps": 1},
    "fedtad_released": {"iterations": 1, "student_steps": 1},
    "fedtgp": {"server_epochs": 5},
    "trust": {"pretrain_epochs": 2},
}
CASES = [(name, "") for name in sorted(METHODS)] + [
    (host, plug) for plug in sorted(PLUGS) for host in ("fedgta", "scaffold")
]


@cache
def federation():
    return build_federation(make_experiment({**DATA, "method": "fedavg"}))


def changed(change):
    """The federation with another graph for each client, and as a whole."""
    data = federation()
    return replace(data, graph=change(data.graph), clients=[change(graph) for graph in data.clients])


def garbage(graph):
    """The graph with wrong labels at its test nodes, and every other one of these not to be tested on."""
    wrong = with_wrong_labels(graph, "test")
    nodes = np.flatnonzero(graph.test)[::2]
    return replace(wrong, test=np.isin(np.arange(graph.nodes), nodes))


def run(name, plug, data, **more):
    """A run with all choices among models that the method may make, and other metrics than the accuracy."""
    settings = {**HASTE.get(name, {}), **HASTE.get(plug, {})}
    settings = vars(judging_method(METHODS[name](**HASTE.get(name, {})))) if not plug else settings
    values = {**DATA, "method": name, "plug": plug, "settings": settings, "rounds": 2, "metric": "accuracy,macro_f1"}
    return run_experiment(make_experiment({**values, **more}), given=Given(federation=data))


def apart_from_tests(value: Any) -> Any:
    """What a run says, without its test scores and times."""
    if isinstance(value, dict):
        return {
            key: apart_from_tests(entry)
            for key, entry in value.items()
            if not key.startswith(("test", "confusion", "seconds", "hashes", "peak_memory", "cpu"))
        }
    return [apart_from_tests(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("name", "plug"), CASES)
def test_test_labels_enter_test_scores_alone(name, plug):
    right, wrong = run(name, plug, federation()), run(name, plug, changed(garbage))
    assert same(right.server, wrong.server)
    assert list(right.clients) == list(wrong.clients)
    for client, state in right.clients.items():
        assert same(state, wrong.clients[client])
    assert apart_from_tests(right.rounds) == apart_from_tests(wrong.rounds)
    assert right.best_round == wrong.best_round
    assert right.accuracy["validation"] == wrong.accuracy["validation"]
    assert right.accuracy["test"] != wrong.accuracy["test"]


def test_plugs_are_tried_with_hosts_that_take_them():
    assert all(takes_plugs(METHODS[name]) for name, plug in CASES if plug)


@pytest.mark.parametrize("name", ["fedavg", "fedgkc", "dpsgd", "centralised", "majority"])
def test_training_labels_change_what_test_labels_do_not(name):
    right = run(name, "", federation())
    wrong = run(name, "", changed(lambda graph: replace(graph, y=np.where(graph.train, (graph.y + 1) % 3, graph.y))))
    assert apart_from_tests(right.rounds) != apart_from_tests(wrong.rounds)


@pytest.mark.parametrize("name", ["fedavg", "fedgkc", "dpsgd", "centralised", "majority"])
def test_validation_labels_change_validation_scores(name):
    right, wrong = (
        run(name, "", federation()),
        run(name, "", changed(lambda graph: with_wrong_labels(graph, "validation"))),
    )
    assert right.accuracy["validation"] != wrong.accuracy["validation"]
