"""A client without any label takes part, is given a model, and has no say in what others learn from labels."""

from dataclasses import replace

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.methods import METHODS
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.tensors.trees import Tree, shares_among, vote_shares, weighted_mean
from graft.testing.contract import unlabelled
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup

LABELLED = [toy_graph(9), toy_graph(10, seed=1)]
GRAPHS = [LABELLED[0], unlabelled(toy_graph(8)), LABELLED[1]]
AVERAGING = ("ditto", "fedavg", "fedprox", "fedrep", "scaffold", "feddc", "lg_fedavg", "moon", "pfedme")


@pytest.mark.parametrize("weight_by", ["nodes", "train", "uniform"])
def test_client_without_labels_has_no_vote(weight_by):
    fleet = toy_setup(FedAvg(), graphs=GRAPHS, weight_by=weight_by).fleet([0, 1, 2])
    votes = {"nodes": [9, 0, 10], "train": [4, 0, 4], "uniform": [1, 0, 1]}[weight_by]
    assert fleet.weight.tolist() == votes
    assert fleet.select([1]).weight.tolist() == [0]
    labelled = toy_setup(FedAvg(), graphs=LABELLED, weight_by=weight_by).fleet([0, 1])
    assert labelled.weight.tolist() == [vote for vote in votes if vote]
    assert not labelled.data.may_lack_labels
    assert not fleet.select([2, 0]).data.may_lack_labels


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_weight_decay_alone_does_not_move_a_client_without_labels(optimizer):
    setup = toy_setup(Local(), graphs=GRAPHS, weight_decay=0.1, optimizer=optimizer)
    start = {client: InProcess(setup).state()[client].model for client in (0, 1)}
    finished = run_rounds(setup)
    assert same(finished.client(1).model, start[1])
    assert gap(finished.client(0).model, start[0]) > 1e-3
    # Its labelled neighbours in the fleet move as they do without it.
    alone = run_rounds(toy_setup(Local(), graphs=LABELLED[:1], weight_decay=0.1, optimizer=optimizer))
    assert gap(finished.client(0).model, alone.client(0).model) < 1e-6


@pytest.mark.parametrize("name", AVERAGING)
def test_labelled_clients_learn_as_if_it_were_not_there(name):
    # The unlabelled client is the last one, so that the random numbers of the others are their own.
    with_it = run_rounds(toy_setup(METHODS[name](), graphs=[*LABELLED, GRAPHS[1]]), rounds=3)
    without = run_rounds(toy_setup(METHODS[name](), graphs=LABELLED), rounds=3)
    for client in (0, 1):
        assert gap(with_it.client(client)["model"], without.client(client)["model"]) < 1e-5
    other = run_rounds(toy_setup(METHODS[name](), graphs=[*LABELLED, toy_graph(8)]), rounds=3)
    assert gap(other.client(0)["model"], without.client(0)["model"]) > 1e-3  # with labels it is heard


@pytest.mark.parametrize("name", ["fml", "fedkd", "fedgkc", "fedgta", "fedavg", "dpsgd", "gossip", "feddual"])
def test_federation_of_clients_without_labels_stays_finite(name):
    graphs = [unlabelled(graph) for graph in LABELLED]
    finished = run_rounds(toy_setup(METHODS[name](), graphs=graphs))
    for client in (0, 1):
        assert gap(finished.client(client), finished.client(client)) == 0  # which is NaN if anything is not finite


def test_client_without_labels_receives_what_the_others_learnt():
    finished = run_rounds(toy_setup(FedAvg(), graphs=GRAPHS), rounds=2)
    before = run_rounds(toy_setup(FedAvg(), graphs=GRAPHS), rounds=1)
    assert same(finished.client(1).model, before.server.state.model)  # that of the round before, which it did not train


def test_means_without_any_vote_are_plain_means():
    models = Tree(leaf=torch.tensor([[1.0], [3.0], [8.0]]))
    assert weighted_mean(models, torch.tensor([1, 1, 0])).leaf.tolist() == [2]
    assert weighted_mean(models, torch.tensor([0, 0, 0])).leaf.tolist() == [4]
    assert vote_shares(torch.tensor([0.0, 0.0])).tolist() == [0.5, 0.5]
    heard = torch.tensor([[True, True, False], [True, False, True]])
    assert shares_among(torch.tensor([0.0, 0.0, 2.0]), heard).tolist() == [[0.5, 0.5, 0], [0, 0, 1]]


def test_batches_of_a_client_without_labels_leave_it_as_it_is():
    setup = toy_setup(Local(), graphs=GRAPHS, weight_decay=0.1, batches=2)
    finished = run_rounds(setup)
    assert same(finished.client(1).model, InProcess(setup).state()[1].model)
    assert gap(finished.client(0).model, InProcess(setup).state()[0].model) > 1e-3


def test_label_that_is_in_no_mask_is_no_reason_to_train():
    graph = toy_graph(8)
    masked = replace(graph, train=graph.train & False)
    fleet = toy_setup(FedAvg(), graphs=[LABELLED[0], masked]).fleet([0, 1])
    assert fleet.weight.tolist() == [9, 0]
