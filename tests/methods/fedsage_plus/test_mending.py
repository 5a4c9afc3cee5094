"""Graphs with generated neighbours, worked out by hand."""

import torch

from graft.graphs.fleet_graph import build_fleet_graph
from graft.methods.fedsage_plus.lesson import without_edges_of
from graft.methods.fedsage_plus.mending import add_neighbours, mend_graph, offset_nodes
from tests.methods.fedsage_plus.cases import CPU, all_features, edges_of, star
from tests.toy import toy_graphs


def test_mended_graph_has_a_new_node_for_every_slot_that_is_asked_for():
    graph = build_fleet_graph([star()], CPU)
    owners = torch.tensor([0, 3, 0])
    pattern = add_neighbours(graph, [owners])
    assert (pattern.rows, pattern.entries) == (8, 8 + 6)
    new = {(0, 5), (5, 0), (3, 6), (6, 3), (0, 7), (7, 0)}
    assert edges_of(pattern) == edges_of(graph.neighbours) | new
    made = torch.full((3, 5), 7.0)
    mended = mend_graph(graph, [(owners, made)])
    assert torch.equal(all_features(mended)[0], torch.cat([torch.eye(5), made]))
    assert mended.real[0].tolist() == [True] * 5 + [False] * 3
    cut = add_neighbours(without_edges_of(graph, torch.tensor([[False, True, False, False, False]])), [owners])
    assert edges_of(cut) == edges_of(pattern) - {(0, 1), (1, 0)}


def test_mended_fleet_keeps_every_clients_own_layout():
    graphs = toy_graphs()
    parts = [
        (torch.tensor([0, 0]), torch.ones(2, 6)),
        (torch.tensor([8]), torch.ones(1, 6)),
        (torch.tensor([], dtype=torch.int64), torch.ones(0, 6)),
    ]
    together = mend_graph(build_fleet_graph(graphs, CPU), parts)
    assert together.nodes == 14
    for client, (graph, part) in enumerate(zip(graphs, parts, strict=True)):
        alone = mend_graph(build_fleet_graph([graph], CPU), [part])
        shift = client * 14
        mine = {(row - shift, column - shift) for row, column in edges_of(together.neighbours) if row // 14 == client}
        assert mine == edges_of(alone.neighbours)
        assert torch.equal(all_features(together)[client, : alone.nodes], all_features(alone)[0])
        assert not all_features(together)[client, alone.nodes :].any()


def test_new_nodes_with_zero_features_change_no_sum_over_neighbours():
    graph = build_fleet_graph([star()], CPU)
    mended = mend_graph(graph, [(torch.tensor([0, 2]), torch.zeros(2, 5))])
    sums = mended.neighbours @ all_features(mended)
    assert torch.equal(sums[:, :5], graph.neighbours @ graph.features)
    other = mend_graph(graph, [(torch.tensor([0, 2]), torch.ones(2, 5))])
    assert not torch.equal((other.neighbours @ all_features(other))[:, :5], graph.neighbours @ graph.features)


def test_nodes_of_different_clients_get_different_numbers():
    parts = [torch.tensor([0, 0, 1]), torch.tensor([], dtype=torch.int64), torch.tensor([0, 1, 1])]
    assert offset_nodes(parts).tolist() == [0, 0, 1, 2, 3, 3]
