"""What a generator of neighbours learns from, worked out by hand."""

import torch

from graft.graphs.fleet_graph import build_fleet_graph
from graft.methods.fedsage_plus import FedSagePlus
from graft.methods.fedsage_plus.lesson import hidden_nodes, nearest_features, neighbours_among, without_edges_of
from tests.methods.fedsage_plus.cases import CPU, mended_fleet, star


def test_hidden_leaves_of_a_star_are_missed_by_its_centre_alone():
    graph = build_fleet_graph([star()], CPU)
    hidden = torch.tensor([[False, True, True, False, False]])
    missing = (graph.neighbours @ hidden.float().unsqueeze(2)).squeeze(2)
    assert missing.tolist() == [[2.0, 0.0, 0.0, 0.0, 0.0]]
    view = without_edges_of(graph, hidden)
    assert view.degree.tolist() == [[2.0, 0.0, 0.0, 1.0, 1.0]]
    assert missing.sum() == (graph.neighbours.entries - view.neighbours.values.sum()) / 2
    targets, known = neighbours_among(graph, hidden[0], 3)
    assert targets[0].tolist() == [1, 2, 0]
    assert known.tolist() == [[True, True, False]] + [[False] * 3] * 4
    assert neighbours_among(graph, hidden[0], 1)[0][0].tolist() == [1]


def test_lesson_counts_every_cut_edge_once_and_hides_validation_nodes_alone():
    fleet = mended_fleet(FedSagePlus(), clients=[0])
    lesson = fleet_lesson = FedSagePlus().lesson(fleet)
    hidden = fleet.graph.real & ~lesson.visible
    assert hidden.sum() == 1  # half of two, and for any client half rounded down
    assert (hidden & ~fleet.labels.masks[:, 1]).sum() == 0
    adjacency = torch.zeros(12, 12)
    adjacency[fleet.graph.neighbours.row_of, fleet.graph.neighbours.columns.long()] = 1
    node = int(hidden[0].nonzero())
    wanted = adjacency[:, node].clone()
    assert torch.equal(fleet_lesson.missing[0], wanted)
    assert torch.equal(lesson.valid.sum(1), wanted.long())
    assert lesson.graph.degree[0, node] == 0
    whole = FedSagePlus(hidden=1.0)
    assert hidden_nodes(fleet, 1.0).equal(fleet.labels.masks[:, 1])
    others = whole.lesson(fleet)
    between = adjacency[others.visible[0]][:, ~others.visible[0] & fleet.graph.real[0]]
    assert others.missing.sum() == between.sum()


def test_error_of_a_generated_neighbour_is_that_to_the_nearest_true_one():
    x = torch.tensor([[1.0, 0.0], [5.0, 5.0], [0.0, 2.0]])
    made = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    def errors(candidates, known):
        wanted = nearest_features(made, x, torch.tensor([candidates] * 2), torch.tensor([known] * 2))
        return (made - wanted).square().mean(1).tolist()

    assert errors([0], [True]) == [0.0, 1.0]
    assert errors([0, 2], [True, True]) == [0.0, 0.5]
    assert errors([0, 2], [True, False]) == [0.0, 1.0]
    assert errors([1, 0], [True, False]) == [20.5, 20.5]
