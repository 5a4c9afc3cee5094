"""The majority class: what labels alone say."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from graft.engines.in_process import InProcess
from graft.federation.session import Session
from graft.methods.majority import Majority
from tests.toy import run_rounds, toy_graph, toy_setup


def graph_of(y, train, test):
    graph = replace(toy_graph(len(y)), y=np.array(y), train=np.array(train, bool), test=np.array(test, bool))
    return replace(graph, validation=graph.test)


def logits_after(rounds, graphs):
    setup = toy_setup(Majority(), graphs=graphs)
    finished = run_rounds(setup, rounds=rounds)
    return {
        client: setup.method.logits(fleet)[row, : graphs[client].nodes]
        for fleet in finished.engine.fleets
        for row, client in enumerate(fleet.clients)
    }


def test_every_node_gets_the_shares_of_the_client_s_training_labels():
    graphs = [
        graph_of([0, 0, 0, 1, 2, 2], [1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]),
        graph_of([2, 2, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]),
    ]
    logits = logits_after(1, graphs)
    assert logits[0].softmax(1).tolist() == [pytest.approx([0.75, 0.25, 0])] * 6
    assert logits[1].softmax(1).tolist() == [pytest.approx([0, 0, 1])] * 4
    assert logits[0].isfinite().all()


def test_one_round_is_as_good_as_many():
    graphs = [graph_of([0, 0, 1, 2], [1, 1, 1, 0], [0, 0, 0, 1])]
    assert torch.equal(logits_after(1, graphs)[0], logits_after(3, graphs)[0])
    assert not torch.equal(logits_after(1, graphs)[0], logits_after(0, graphs)[0])


def test_a_client_without_labels_takes_all_classes_for_equally_frequent():
    (logits,) = logits_after(1, [graph_of([0, 1, 2], [0, 0, 0], [1, 1, 1])]).values()
    assert logits.softmax(1).tolist() == [pytest.approx([1 / 3] * 3)] * 3


def test_nothing_is_sent():
    traffic = run_rounds(toy_setup(Majority())).traffic
    assert (traffic.up, traffic.down, traffic.peer) == (0, 0, 0)


def test_it_ranks_no_node_above_another():
    random = np.random.default_rng(0)
    y = (random.random(50) < 0.2).astype(int)
    graph = replace(toy_graph(50), y=y, classes=2)
    setup = replace(toy_setup(Majority(), graphs=[graph]), metrics=("auroc", "auprc", "balanced_accuracy", "accuracy"))
    measured = Session(setup, InProcess(setup)).round(1).measured["own"]
    prevalence = y[graph.test].mean()
    assert 0 < prevalence < 0.5
    assert measured.values[0, 2].tolist() == pytest.approx([0.5, prevalence, 0.5, 1 - prevalence])
    assert measured.pooled("auprc", "test") == pytest.approx(prevalence)
