"""What AdaFGL propagates along: cases worked out by hand."""

import pytest
import torch
from torch.nn import functional

from graft.methods.adafgl import AdaFGL
from graft.methods.adafgl.propagation import (
    TrainRows,
    propagate_hops,
    propagate_parts,
    propagation_matrix,
    rows_at,
    signed_messages,
    signed_similarity,
    similar_pairs,
)
from graft.tensors.trees import Tree
from tests.methods.adafgl.cases import fleet_of, linked
from tests.toy import toy_graphs


def test_a_second_softmax_brings_different_classes_together():
    certain = torch.eye(7)[:2].unsqueeze(0)
    unit = functional.normalize(certain.softmax(2), dim=2)
    assert float((unit @ unit.mT)[0, 0, 1]) == pytest.approx(0.779485, abs=1e-6)
    real = torch.ones(1, 2, dtype=torch.bool)

    def pairs(method, threshold):
        return similar_pairs(method.compared(certain), real, threshold)[0].tolist()

    assert pairs(AdaFGL(), 0.779) == [[0, 1], [1, 0]]
    assert pairs(AdaFGL(), 0.78) == pairs(AdaFGL(double_softmax=False), 0.001) == [[0, 0], [0, 0]]


def test_similar_pairs_leave_out_padding_and_nodes_themselves():
    chances = torch.tensor([[[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.9, 0.1]]])
    real = torch.tensor([[True, True, True, False]])
    wanted = torch.zeros(1, 4, 4)
    wanted[0, 0, 1] = wanted[0, 1, 0] = 1
    assert torch.equal(similar_pairs(chances, real, 0.999), wanted)
    assert similar_pairs(chances, torch.ones_like(real), 0.999).sum() == 6


def test_with_edges_alone_features_are_propagated_as_in_a_graph_convolution():
    graph = fleet_of(*toy_graphs()).graph
    similar = torch.ones(3, 12, 12)
    torch.testing.assert_close(propagation_matrix(graph, similar, 1.0), graph.normalised.dense())
    assert not torch.allclose(propagation_matrix(graph, similar, 0.5), graph.normalised.dense())


def test_propagation_mixes_edges_and_similar_pairs_by_hand():
    graph = fleet_of(linked([(0, 1)], [0, 1, 0])).graph
    similar = torch.tensor([[[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    # With a quarter for edges: rows 0, 1, 2 of A' + I add up to 2, 1.25 and 1.75.
    raw = torch.tensor([[1.0, 0.25, 0.75], [0.25, 1.0, 0.0], [0.75, 0.0, 1.0]])
    scale = torch.tensor([2.0, 1.25, 1.75]).rsqrt()
    torch.testing.assert_close(propagation_matrix(graph, similar, 0.25)[0], raw * scale * scale.unsqueeze(1))


def test_hops_by_hand():
    matrix = torch.tensor([[[0.0, 2.0], [1.0, 0.0]]])
    by_hop = torch.tensor([[[[1.0], [10.0], [100.0]], [[2.0], [20.0], [200.0]]]])
    # 1 + 2 * 20 + 2 * 1 * 100 and 2 + 1 * 10 + 1 * 2 * 200, since the matrix squared is 2 I.
    assert propagate_hops(matrix, by_hop)[0, :, 0].tolist() == [241.0, 412.0]


def training_rows(hops=3):
    """A fleet whose clients have different numbers of training nodes, its matrices, and their rows there."""
    generator = torch.Generator().manual_seed(0)
    fleet = fleet_of(*toy_graphs())
    similar = similar_pairs(torch.randn(3, 12, 3, generator=generator).softmax(2), fleet.graph.real, 0.9)
    matrices = Tree(similar=similar, propagation=propagation_matrix(fleet.graph, similar, 0.5))
    subset = fleet.data.train_subset
    assert len(set(subset.real.sum(1).tolist())) > 1
    return fleet, matrices, TrainRows(subset, **rows_at(subset, matrices, hops))


def test_rows_of_powers_by_hand():
    fleet = fleet_of(linked([(0, 1)], [0, 1], train=[1]))
    matrices = Tree(similar=torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), propagation=torch.tensor([[[0.0, 2.0], [3, 1]]]))
    rows = rows_at(fleet.data.train_subset, matrices, hops=2)
    assert (rows.itself.tolist(), rows.similar.tolist()) == ([[[0, 1]]], [[[1, 0]]])
    # Of the first node 0, 3 and 1 * 3, of the second 1, 1 and 3 * 2 + 1.
    assert rows.powers.tolist() == [[[0, 3, 3, 1, 1, 7]]]


@pytest.mark.parametrize("hops", [0, 1, 3])
def test_parts_propagated_to_where_they_are_needed_are_those_propagated_everywhere(hops):
    _, matrices, rows = training_rows(hops)
    matrix = matrices.propagation
    by_hop = torch.randn(3, 12, hops + 1, 3, 4, requires_grad=True)
    everywhere, at_rows = propagate_parts(matrix, rows.powers, by_hop)
    wanted = propagate_hops(matrix, by_hop.flatten(3)).view(3, 12, 3, 4)
    wanted_rows = rows.subset.gather(wanted[:, :, 1].contiguous())
    torch.testing.assert_close(everywhere, wanted[:, :, ::2])
    torch.testing.assert_close(at_rows, wanted_rows)
    assert not torch.allclose(everywhere[:, :, 1], wanted[:, :, 1], atol=1e-3)
    factors = torch.randn_like(everywhere), torch.randn_like(at_rows)
    (found,) = torch.autograd.grad([everywhere, at_rows], by_hop, factors)
    (by_autograd,) = torch.autograd.grad([wanted[:, :, ::2], wanted_rows], by_hop, factors)
    torch.testing.assert_close(found, by_autograd)
    assert found.abs().amax((0, 1, 4)).min() > 0.1  # every hop of every part gets a gradient


def test_rows_of_the_signed_similarity_are_those_of_the_whole():
    fleet, matrices, rows = training_rows()
    chances = torch.randn(3, 12, 3, generator=torch.Generator().manual_seed(1)).softmax(2).requires_grad_()
    whole = signed_similarity(chances, matrices.similar, fleet.graph.real, 0.2)
    some = signed_similarity(chances, matrices.similar, fleet.graph.real, 0.2, rows)
    real = rows.subset.real
    for client in range(3):
        nodes = rows.subset.nodes[client, real[client]]
        torch.testing.assert_close(some[client, real[client]], whole[client, nodes])
    factors = torch.randn_like(some) * real.unsqueeze(2)
    (found,) = torch.autograd.grad(some, chances, factors)
    (wanted,) = torch.autograd.grad(whole, chances, rows.itself.mT @ factors)
    torch.testing.assert_close(found, wanted)
    (other,) = torch.autograd.grad(signed_similarity(chances, matrices.similar, fleet.graph.real, 0.5), chances, whole)
    assert not torch.allclose(found, other, atol=1e-3)


def test_signed_similarity_is_rescaled_with_one_more_for_a_node_itself():
    generator = torch.Generator().manual_seed(0)
    chances = torch.randn(1, 6, 3, generator=generator).softmax(2)
    similar = similar_pairs(chances, torch.ones(1, 6, dtype=torch.bool), 0.9)
    signed = signed_similarity(chances, similar, torch.ones(1, 6, dtype=torch.bool), 0.2)[0]
    unit = functional.normalize(chances[0], dim=1)
    mixed = 0.2 * similar[0] + 0.8 * unit @ unit.T
    centred = mixed - mixed.mean()
    wanted = torch.where(centred > 0, centred / centred.max(), centred / mixed.mean())
    torch.testing.assert_close(signed - torch.eye(6), wanted, atol=1e-5, rtol=0)
    assert wanted.abs().max() <= 1
    assert (wanted > 0).any()
    assert (wanted < 0).any()


def test_signed_similarity_of_a_padded_client_is_that_of_the_client_alone():
    chances = torch.randn(1, 6, 3, generator=torch.Generator().manual_seed(0)).softmax(2)
    real = torch.arange(6).unsqueeze(0) < 4
    padded = signed_similarity(chances, similar_pairs(chances, real, 0.9), real, 0.2)
    alone = signed_similarity(chances[:, :4], similar_pairs(chances[:, :4], real[:, :4], 0.9), real[:, :4], 0.2)
    torch.testing.assert_close(padded[:, :4, :4], alone)


def test_constant_similarities_stay_finite():
    chances = torch.full((1, 3, 2), 0.5)
    real = torch.ones(1, 3, dtype=torch.bool)
    for share in (0.0, 0.2, 1.0):
        signed = signed_similarity(chances, torch.zeros(1, 3, 3), real, share)
        assert signed.isfinite().all()
        assert (signed - torch.eye(3)).abs().max() <= 1


def test_signed_messages_are_products_with_both_prelus():
    generator = torch.Generator().manual_seed(1)
    signed, values = torch.randn(2, 5, 5, generator=generator), torch.randn(2, 5, 3, generator=generator)
    slope = torch.tensor([[0.25], [-0.5]])
    alike, unlike = signed_messages(signed, values, slope)
    for client in range(2):
        for found, sign in ((alike, 1), (unlike, -1)):
            wanted = functional.prelu(sign * signed[client], slope[client]) @ values[client]
            torch.testing.assert_close(found[client], wanted)
