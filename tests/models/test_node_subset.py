"""Models that are asked about some nodes alone, against what they say of all."""

import pytest
import torch

from graft.graphs.fleet_graph import build_fleet_graph
from graft.graphs.node_subset import NodeSubset
from graft.models import build_model
from graft.models.heterogeneous import architecture_names, make_heterogeneous
from graft.tensors.randomness import Stream
from graft.tensors.sparse import BlockSparse
from graft.tensors.trees import Tree, select_clients
from graft.training.optimizers import Training
from tests.toy import CLASSES, bare_fleet, random_weights, toy_graphs, trained_tree

CPU = torch.device("cpu")
NODES = torch.tensor([[3, 0, 5], [6, 1, 1], [2, 4, 0]])  # the third one of the second client is padding
REAL = torch.tensor([[True, True, True], [True, True, False], [True, True, True]])
MODELS = ("gcn", "gat", "sage", "gin", "sgc", "tag", "tag3", "mlp", "gcn4", "gcn1", "sage1", "mlp1", "ortho_gcn")
every_kind = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
KEYS = torch.tensor([5, 6, 7])


def picked(values):
    """Those of the nodes that are asked about, with zeros where there is none."""
    return values.gather(1, NODES.unsqueeze(2).expand(-1, -1, values.shape[2])) * REAL.unsqueeze(2)


def results(weights, say):
    """What a model says of the real ones of these nodes, the gradients of a number made of it, and draws."""
    tree, parameters = trained_tree(weights)
    stream = Stream(KEYS)
    output = [part * REAL.unsqueeze(2) for part in say(tree, stream)]
    loss = sum(part.square().sum() + part.sum() for part in output)
    return [*output, *torch.autograd.grad(loss, parameters)], stream.draws


@every_kind
@pytest.mark.parametrize("head", ["linear", "conv"])
@pytest.mark.parametrize("name", MODELS)
def test_it_says_of_some_nodes_what_it_says_of_all(name, head, sparse, monkeypatch):
    if head == "conv" and name in ("gcn1", "sage1", "mlp1"):
        pytest.skip("there is no layer before such a head")
    graph = build_fleet_graph(toy_graphs(sparse=sparse), CPU)
    model = build_model(name, graph.width, CLASSES, width=8, dropout=0.5, head=head)
    weights = random_weights(model, 3)
    wanted, draws = results(weights, lambda tree, stream: map(picked, model(tree, graph, stream)))
    for small in (2**18, 0):  # masks drawn for all nodes, or for those that are asked about
        monkeypatch.setattr("graft.tensors.randomness.SMALL_MASK", small)
        found, others = results(
            weights, lambda tree, stream: model.forward_at(tree, NodeSubset(graph, NODES, REAL), stream)
        )
        assert draws == others
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@every_kind
def test_so_do_several_architectures_and_clients_selected_from_more(sparse):
    graphs = toy_graphs(sparse=sparse)
    kinds = [build_model(name, graphs[0].features, CLASSES, width=8, dropout=0.5) for name in ("gcn", "sage", "gat")]
    model = make_heterogeneous(kinds, architecture_names(kinds))
    weights = Tree({kind.name: random_weights(kind.model, 1, seed=place) for place, kind in enumerate(model.parts)})
    graph = build_fleet_graph(graphs, CPU)
    wanted, _ = results(weights, lambda tree, stream: map(picked, model(tree, graph, stream)))
    more = build_fleet_graph([graphs[1], graphs[0], graphs[2], graphs[1]], CPU)
    chosen = [1, 3, 2]
    there = NodeSubset(more, torch.stack([NODES[1], NODES[0], NODES[2], NODES[1]]), REAL[[1, 0, 2, 1]])
    for rows in (NodeSubset(graph, NODES, REAL), NodeSubset(more.select(chosen), NODES, REAL, (there, chosen))):
        found, _ = results(weights, lambda tree, stream, rows=rows: model.forward_at(tree, rows, stream))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_rows_of_a_matrix_by_hand():
    starts, columns = torch.tensor([0, 1, 3, 3, 5], dtype=torch.int32), torch.tensor([0, 0, 1, 2, 3], dtype=torch.int32)
    matrix = BlockSparse(starts, columns, torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), 2, (2, 2))
    assert matrix.dense().tolist() == [[[1, 0], [2, 3]], [[0, 0], [4, 5]]]
    some = matrix.select_rows(
        torch.tensor([[1, 1, 0], [1, 0, 1]]), torch.tensor([[True, True, True], [True, True, False]])
    )
    assert some.dense().tolist() == [[[2, 3], [2, 3], [1, 0]], [[4, 5], [0, 0], [0, 0]]]
    assert some.transpose.dense().tolist() == some.dense().mT.tolist()


def test_numbers_of_any_kind_can_be_picked():
    graph = build_fleet_graph(toy_graphs(), CPU)
    values = torch.randn(3, graph.nodes, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = NodeSubset(graph, NODES, REAL)
    assert torch.equal(rows.gather(values), picked(values))
    assert torch.equal(rows.gather(values.float()), picked(values.float()))
    assert torch.equal(rows.gather(values.bfloat16()), picked(values.bfloat16()))


def fleet_of(graphs, model="gcn", **options):
    made = build_model(model, graphs[0].features, CLASSES, width=8, **options)
    return bare_fleet(list(range(len(graphs))), graphs, made, Training())


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_loss_of_the_labels_is_their_cross_entropy_among_all_and_for_some_clients(model):
    fleet = fleet_of(toy_graphs(clients=4), model)
    weights = random_weights(fleet.model, 4)
    wanted = fleet.cross_entropy(fleet.predict(weights).logits)
    torch.testing.assert_close(fleet.label_loss(weights, dropout=False), wanted)
    chosen = [3, 0]
    part = fleet.select(chosen)
    mine = select_clients(weights, torch.tensor(chosen))
    torch.testing.assert_close(part.label_loss(mine, dropout=False), wanted[chosen])
    torch.testing.assert_close(part.cross_entropy(part.predict(mine).logits), wanted[chosen])


def test_client_without_a_training_node_has_no_loss_and_no_gradient():
    graphs = toy_graphs()
    graphs[1].train[:] = False
    fleet = fleet_of(graphs)
    weights, parameters = trained_tree(random_weights(fleet.model, 3))
    loss = fleet.label_loss(weights)
    assert loss[1] == 0
    gradients = torch.autograd.grad(loss.sum(), parameters)
    assert not any(gradient[1].any() for gradient in gradients)
    assert any(gradient[0].any() for gradient in gradients)


@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "sgc", "tag", "gcn4", "ortho_gcn"])
def test_propagateding_dense_features_first_changes_nothing(name):
    graphs = toy_graphs()
    lasting, passing = build_fleet_graph(graphs, CPU), build_fleet_graph(graphs, CPU)
    passing.cacheable = False
    model = build_model(name, lasting.width, CLASSES, width=8)
    weights = random_weights(model, 3)
    found, wanted = (model(weights, graph) for graph in (lasting, passing))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert lasting._propagated
    assert not any(spread is not None for spread in passing._propagated.values())
    chosen = [2, 0]
    logits = model(select_clients(weights, torch.tensor(chosen)), lasting.select(chosen)).logits
    torch.testing.assert_close(logits, wanted.logits[chosen], rtol=1e-4, atol=1e-5)


def test_features_that_are_learnt_keep_their_gradient_and_sparse_ones_stay_sparse():
    graph = build_fleet_graph(toy_graphs(), CPU)
    graph.features = graph.features.clone().requires_grad_()
    graph.cacheable = False
    model = build_model("gcn", graph.width, CLASSES, width=8)
    model(random_weights(model, 3), graph).logits.sum().backward()
    assert graph.features.grad.any()
    assert build_fleet_graph(toy_graphs(sparse=True), CPU).propagated_features("normalised") is None
