"""What clients of FedTAD report of themselves, worked out by hand."""

from dataclasses import replace

import numpy as np
import torch

from graft.methods.fedavg import FedAvg
from graft.methods.fedtad import FedTADPaper
from tests.methods.fedtad.cases import path_graph, reported_by
from tests.toy import CLASSES, run_rounds, toy_graphs, toy_setup


def test_reliability_of_a_path_by_hand():
    report = reported_by([path_graph()], walk_length=2, include_self=False)
    torch.testing.assert_close(report.reliability, torch.tensor([[1.581139, 0.316228]]), atol=1e-6, rtol=0)
    report = reported_by([path_graph()], walk_length=2)
    torch.testing.assert_close(report.reliability, torch.tensor([[1.729312, 0.658114]]), atol=1e-6, rtol=0)
    assert not FedTADPaper().include_self  # as Eq. 5 is printed
    assert report.norm.tolist() == [1.0]
    assert report.size.tolist() == [3]


def test_only_labelled_nodes_count_and_isolated_ones_by_themselves_alone():
    last = path_graph(train=(False, False, True))
    torch.testing.assert_close(
        reported_by([last], walk_length=2).reliability, torch.tensor([[0, 0.658114]]), atol=1e-6, rtol=0
    )
    apart = path_graph(edges=())
    assert reported_by([apart], include_self=False).reliability.tolist() == [[0, 0]]
    assert reported_by([apart]).reliability.tolist() == [[2, 1]]
    nobody = path_graph(train=(False, False, False))
    assert reported_by([nobody]).reliability.tolist() == [[0, 0]]


def test_count_and_equal_reliability():
    graphs = [path_graph(), path_graph(train=(True, False, False))]
    assert reported_by(graphs, reliability="count").reliability.tolist() == [[2, 1], [1, 0]]
    assert reported_by(graphs, reliability="equal").reliability.tolist() == [[1, 1], [1, 1]]


def test_neighbours_that_are_opposite_never_count_against_a_class():
    opposite = path_graph(x=((9, 0), (-9, 0), (9, 0)))
    assert (reported_by([opposite], include_self=False).reliability == 0).all()


def test_sparse_features_give_the_reliability_of_dense_ones():
    graphs = toy_graphs(sparse=True)
    dense = [replace(graph, x=graph.x.toarray()) for graph in graphs]
    sparse_report, dense_report = reported_by(graphs), reported_by(dense)
    torch.testing.assert_close(sparse_report.reliability, dense_report.reliability, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(sparse_report.norm, dense_report.norm)
    norms = [np.linalg.norm(graph.x, axis=1).mean() for graph in dense]
    torch.testing.assert_close(dense_report.norm, torch.tensor(norms, dtype=torch.float32))
    assert (dense_report.reliability - reported_by(dense, walk_length=1).reliability).abs().max() > 1e-3


def test_estimated_walks_give_nearly_the_same_and_are_equal_in_any_fleet():
    graphs = toy_graphs()
    exact, rough = reported_by(graphs).reliability, reported_by(graphs, walk_budget=0, walk_probes=2000).reliability
    assert 0 < (exact - rough).abs().max() < 0.02
    settings = {"walk_budget": 0, "walk_probes": 8}
    together, alone = reported_by(graphs, **settings), reported_by(graphs[:1], **settings)
    assert torch.equal(together.reliability[:1], alone.reliability)


def test_noise_is_relative_drawn_for_each_entry_and_never_makes_a_class_negative():
    graphs = toy_graphs()
    plain = reported_by(graphs).reliability
    noisy = reported_by(graphs, reliability_noise=0.1).reliability
    factors = (noisy / plain)[plain > 0]
    assert (factors - 1).abs().min() > 0
    assert (factors - 1).abs().max() < 0.5
    assert len(factors.unique()) == len(factors)
    assert torch.equal(noisy, reported_by(graphs, reliability_noise=0.1).reliability)
    wild = reported_by(graphs, reliability_noise=50).reliability
    assert (wild >= 0).all()
    assert (wild == 0).any()


def test_clients_report_once_and_nothing_else_is_sent_beside_fedavg():
    plain, with_it = run_rounds(toy_setup(FedAvg()), rounds=3), run_rounds(toy_setup(FedTADPaper()), rounds=3)
    assert with_it.traffic.up - plain.traffic.up == 3 * (4 * CLASSES + 4 + 8)
    assert with_it.traffic.down == plain.traffic.down
    setup = toy_setup(FedTADPaper(), clients=4, participation=0.5)
    finished = run_rounds(setup, rounds=1)
    assert finished.server.state.distillation.heard.sum() == 2
    reliability = finished.server.state.distillation.reliability
    assert ((reliability.sum(1) > 0) == finished.server.state.distillation.heard).all()
