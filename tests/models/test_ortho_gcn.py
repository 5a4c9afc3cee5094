"""The orthogonal GCN: cases worked out by hand, and what every architecture of a fleet must do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCNConv

from graft.errors import InputError
from graft.federation.fleet import initial_weights
from graft.models import build_model
from graft.models.gcn import GCN
from graft.models.ortho_gcn import OrthoGCN, departure, of_size_one, orthogonalised
from graft.tensors.trees import flatten, select_clients
from graft.training.optimizers import Training
from tests.toy import CLASSES, bare_fleet, gap, random_weights, same, toy_graph, toy_graphs, trained_tree

WIDTH = 8
CPU = torch.device("cpu")

every_depth = pytest.mark.parametrize("depth", [2, 4, 6, 8, 10])
every_head = pytest.mark.parametrize("head", ["linear", "conv"])


def make_fleet(graphs=None, clients=None, sparse=False, training=None, **fields):
    graphs = graphs or toy_graphs(sparse=sparse)
    model = OrthoGCN(graphs[0].features, CLASSES, **({"width": WIDTH, "dropout": 0.0} | fields))
    clients = clients or list(range(len(graphs)))
    return bare_fleet(clients, graphs, model, Training(**(training or {})))


def raw_matrices(width=64, count=3):
    """Matrices as the layers start with."""
    weights = initial_weights(OrthoGCN(6, CLASSES, depth=count, width=width), 0)
    return torch.stack([weights[f"layer{index}"].weight for index in range(1, count + 1)])


# Newton's iteration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "wanted"), [(1, (0.99966, 0.67900)), (2, (1.0, 0.86197)), (5, (1.0, 1.0))])
def test_newton_steps_on_a_diagonal_by_hand(steps, wanted):
    found = orthogonalised(torch.diag(torch.tensor([2.0, 1.0])), steps)
    torch.testing.assert_close(found, torch.diag(torch.tensor(wanted)), atol=1e-5, rtol=0)


def test_spectral_bound_lies_between_the_largest_singular_value_and_the_frobenius_norm():
    matrix = raw_matrices()[0]
    bounded = orthogonalised(matrix, 0)
    largest = torch.linalg.matrix_norm(bounded, 2)
    assert largest <= 1
    assert largest > torch.linalg.matrix_norm(matrix / matrix.norm(), 2)  # the paper's bound shrinks it more


def test_frobenius_bound_by_hand():
    """3 and 4 over their norm of 5, and then 1.5 x - 0.5 x^3 of each."""
    matrix = torch.diag(torch.tensor([3.0, 4.0]))
    for steps, wanted in ((0, (0.6, 0.8)), (1, (0.792, 0.944)), (9, (1.0, 1.0))):
        found = orthogonalised(matrix, steps, "frobenius")
        torch.testing.assert_close(found, torch.diag(torch.tensor(wanted)), atol=1e-6, rtol=0)
    narrower = orthogonalised(matrix, 0)  # by (81 + 256) ** 0.25
    torch.testing.assert_close(narrower, matrix / 337**0.25)
    layers = [OrthoGCN(6, CLASSES, newton_bound=bound).effective(raw_matrices()) for bound in ("gram", "frobenius")]
    assert departure(layers[0]).max() < 1 < departure(layers[1]).min()  # it needs more than four steps


def test_limit_is_the_orthogonal_factor_of_the_hybrid_matrix():
    model, matrix = OrthoGCN(6, CLASSES, newton_steps=12), raw_matrices()[0].double()
    left, _, right = torch.linalg.svd(0.2 * matrix + 0.8 * torch.eye(64).double())
    torch.testing.assert_close(model.effective(matrix), left @ right, atol=1e-12, rtol=0)
    left, _, right = torch.linalg.svd(matrix)
    assert (model.effective(matrix) - left @ right).abs().max() > 0.1


def test_orthogonal_matrix_stays_what_it_is():
    orthogonal = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).double())[0]
    torch.testing.assert_close(orthogonalised(orthogonal, 12), orthogonal, atol=1e-12, rtol=0)
    assert (orthogonalised(orthogonal, 1) - orthogonal).abs().max() > 1e-3  # the bound had shrunk it


def test_layers_are_orthogonal_after_enough_steps():
    matrices = raw_matrices()
    assert (departure(matrices) > 5).all()
    left = [departure(OrthoGCN(6, CLASSES, newton_steps=steps).effective(matrices)).max() for steps in (2, 4, 6, 10)]
    assert left == sorted(left, reverse=True)
    assert left[1] < 1
    assert left[3] < 1e-5


def test_centred_rows_cannot_become_orthogonal():
    model = OrthoGCN(6, CLASSES, newton_steps=30, center=True)
    torch.testing.assert_close(departure(model.effective(raw_matrices())), torch.ones(3), atol=1e-3, rtol=0)


def test_many_steps_stay_finite_in_single_precision():
    uniform = torch.empty(64, 64).uniform_(-0.125, 0.125, generator=torch.Generator().manual_seed(0))
    assert departure(orthogonalised(uniform, 40)) < 1e-4


def test_gradient_flows_through_all_steps():
    matrix = raw_matrices(width=4, count=1).double().requires_grad_()
    model = OrthoGCN(6, CLASSES, width=4)
    assert torch.autograd.gradcheck(model.effective, matrix)
    assert torch.autograd.grad(model.effective(matrix).sum(), matrix)[0].abs().min() > 0


def test_departure_by_hand_and_its_gradient_at_zero():
    matrices = torch.stack([2 * torch.eye(2), torch.eye(2)]).requires_grad_()
    found = departure(matrices)
    torch.testing.assert_close(found, torch.tensor([3 * 2**0.5, 0.0]))
    gradient = torch.autograd.grad(found.sum(), matrices)[0]
    assert gradient[0].abs().max() > 0
    assert not gradient[1].any()


def test_mean_of_orthogonal_matrices_is_not_orthogonal_and_so_raw_ones_are_averaged():
    model, matrices = OrthoGCN(6, CLASSES, newton_steps=12), raw_matrices(count=2)
    assert departure(model.effective(matrices).mean(0)) > 0.1
    assert departure(model.effective(matrices.mean(0))) < 1e-5


# The network ---------------------------------------------------------------------------------------------------------


@every_depth
@every_head
def test_network_equals_stock_layers_with_the_effective_matrices(depth, head):
    graph = toy_graph(12)
    fleet = make_fleet([graph], depth=depth, head=head)
    weights = random_weights(fleet.model)
    x, edges = torch.from_numpy(graph.x), torch.from_numpy(graph.edges)
    hidden = []
    for index in range(depth + 1):
        layer = select_clients(weights[f"layer{index}"], 0)
        stock = GCNConv(x.shape[1], WIDTH, bias=index == 0)
        stock.lin.weight.data = (fleet.model.effective(layer.weight) if index else layer.weight).t()
        if index == 0:
            stock.bias.data = layer.bias
        x = torch.relu(stock(x, edges))
        hidden.append(x)
    last = select_clients(weights.head, 0)
    stock = GCNConv(WIDTH, CLASSES)
    stock.lin.weight.data, stock.bias.data = last.weight.t(), last.bias
    wanted = stock(x, edges) if head == "conv" else x @ last.weight + last.bias

    ours, logits = fleet.model.outputs(weights, fleet.graph)
    assert len(ours) == depth + 1
    for layer, (mine, theirs) in enumerate(zip(ours, hidden, strict=True)):
        torch.testing.assert_close(mine[0], theirs, atol=1e-5, rtol=1e-4, msg=f"layer {layer}")
    torch.testing.assert_close(logits[0], wanted, atol=1e-5, rtol=1e-4)
    assert torch.equal(fleet.predict(weights).embedding, ours[-1])
    other = fleet.predict(random_weights(fleet.model, seed=1)).logits
    assert (other - logits).abs().max() > 1e-2


def test_without_orthogonality_it_is_a_gcn_of_one_layer_more_bit_for_bit():
    fleet = make_fleet(orthogonal=False)
    gcn = GCN(fleet.model.features, CLASSES, depth=3, width=WIDTH, dropout=0.0)
    weights = random_weights(gcn, 3)
    assert [path for path, _ in flatten(weights)] == [path for path, _ in flatten(random_weights(fleet.model, 3))]
    plain, wanted = fleet.predict(weights), fleet.predict(weights, gcn)
    assert torch.equal(plain.logits, wanted.logits)
    assert torch.equal(plain.embedding, wanted.embedding)
    assert fleet.model.inner_weights(weights).shape == (3, 0, WIDTH, WIDTH)
    assert not torch.allclose(make_fleet().predict(weights).logits, wanted.logits)


def test_row_of_size_one_by_hand():
    rows = torch.tensor([[[3.0, -1.0], [0.0, 0.0], [1e-3, 1e-3]]])
    wanted = torch.tensor([[[3 / 5**0.5, -1 / 5**0.5], [0.0, 0.0], [1.0, 1.0]]])
    torch.testing.assert_close(of_size_one(rows), wanted)
    zeros = torch.zeros(1, 2, 3, requires_grad=True)
    assert not torch.autograd.grad(of_size_one(zeros).sum(), zeros)[0].isnan().any()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("size", [0.01, 100.0])
def test_scale_free_network_does_not_see_the_size_of_features(size, sparse):
    graphs = toy_graphs(sparse=sparse)
    resized = [replace(graph, x=graph.x * np.float32(size)) for graph in graphs]
    weights = random_weights(make_fleet(graphs).model, 3)

    def logits(graphs, **fields):
        return make_fleet(graphs, **fields).predict(weights).logits

    assert gap_of(logits(resized, scale_free=True), logits(graphs, scale_free=True)) < 1e-4
    assert gap_of(logits(resized), logits(graphs)) > 1e-2
    hidden, _ = make_fleet(graphs, scale_free=True).model.outputs(weights, make_fleet(graphs).graph)
    assert hidden[0].square().mean(2).max() < 4  # 1, half of which the activation takes, and what the bias adds


def gap_of(one, other):
    return float((one - other).abs().max())


def test_layer_that_does_not_propagate_is_its_matrix_alone():
    fleet = make_fleet(propagated=False)
    weights = random_weights(fleet.model, 3)
    hidden, _ = fleet.model.outputs(weights, fleet.graph)
    wanted = torch.relu(hidden[0] @ fleet.model.effective(weights.layer1.weight))
    torch.testing.assert_close(hidden[1], wanted, atol=1e-6, rtol=1e-5)
    assert gap_of(make_fleet().model.outputs(weights, fleet.graph)[0][1], wanted) > 1e-2


def test_variants_of_the_network_start_from_the_same_weights():
    """So they are compared from the same start, and one of before they existed starts as it did."""
    plain = OrthoGCN(6, CLASSES)
    for variant in (
        replace(plain, scale_free=True),
        replace(plain, newton_bound="frobenius"),
        replace(plain, propagated=False),
    ):
        assert variant != plain
        assert same(initial_weights(variant, 0), initial_weights(plain, 0))
    assert not same(initial_weights(replace(plain, hybrid=0.3), 0), initial_weights(plain, 0))


def test_signals_keep_their_size_through_orthogonal_layers():
    """Without graph and activation ten orthogonal layers change no norm, ten plain ones do."""
    matrices = raw_matrices(count=10)
    through = dict.fromkeys(("orthogonal", "plain"), torch.ones(64))
    for matrix in matrices:
        through["orthogonal"] = through["orthogonal"] @ OrthoGCN(6, CLASSES, newton_steps=10).effective(matrix)
        through["plain"] = through["plain"] @ (0.2 * matrix)
    assert float(through["orthogonal"].norm()) == pytest.approx(8, abs=1e-4)
    assert through["plain"].norm() < 1e-3


@every_depth
@every_head
@pytest.mark.parametrize("sparse", [False, True])
def test_fleet_of_three_predicts_as_three_fleets_of_one(depth, head, sparse):
    graphs = toy_graphs(sparse=sparse)
    fleet = make_fleet(graphs, depth=depth, head=head)
    weights, wanted = trained_tree(random_weights(fleet.model, 3))
    output = fleet.forward(weights)
    gradients = torch.autograd.grad(fleet.cross_entropy(output.logits).sum(), wanted)
    for client, graph in enumerate(graphs):
        alone = make_fleet([graph], [client], depth=depth, head=head)
        own, own_wanted = trained_tree(select_clients(weights, slice(client, client + 1)))
        single = alone.forward(own)
        own_gradients = torch.autograd.grad(alone.cross_entropy(single.logits).sum(), own_wanted)
        torch.testing.assert_close(output.logits[client, : graph.nodes], single.logits[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(output.embedding[client, : graph.nodes], single.embedding[0], atol=1e-5, rtol=1e-5)
        for mine, theirs in zip(own_gradients, gradients, strict=True):
            torch.testing.assert_close(mine[0], theirs[client], atol=1e-5, rtol=1e-4)
    assert (output.logits[0, :7] - output.logits[2, :7]).abs().max() > 1e-3


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_fleet_of_three_trains_as_three_fleets_of_one(dropout):
    graphs, training = toy_graphs(), {"epochs": 4}
    fleet = make_fleet(graphs, dropout=dropout, training=training)
    start = random_weights(fleet.model, 3)

    def trained(fleet, weights):
        fleet = fleet.for_call(1, "train")
        return fleet.fit(weights, lambda weights, batch: batch.cross_entropy(batch.forward(weights).logits))

    together = trained(fleet, start)
    assert gap(together, start) > 1e-2
    for client, graph in enumerate(graphs):
        alone = make_fleet([graph], [client], dropout=dropout, training=training)
        assert (
            gap(
                select_clients(trained(alone, select_clients(start, slice(client, client + 1))), 0),
                select_clients(together, client),
            )
            < 1e-5
        )


def test_selection_of_a_fleet_predicts_as_the_whole():
    fleet = make_fleet()
    weights = random_weights(fleet.model, 3)
    whole = fleet.predict(weights).logits
    some = fleet.select([2, 0]).predict(select_clients(weights, torch.tensor([2, 0]))).logits
    torch.testing.assert_close(some, whole[[2, 0]], atol=1e-6, rtol=1e-6)


def test_clients_without_edges_give_finite_numbers():
    graphs = [toy_graph(12), toy_graph(7, edgeless=True)]
    fleet = make_fleet(graphs, dropout=0.5)
    weights, wanted = trained_tree(random_weights(fleet.model, 2))
    output = fleet.forward(weights)
    gradients = torch.autograd.grad(fleet.cross_entropy(output.logits).sum(), wanted)
    assert all(part.isfinite().all() for part in (*output, *gradients))


def test_hidden_layers_are_seen_before_dropout():
    fleet = make_fleet(dropout=0.5)
    weights = random_weights(fleet.model, 3)
    noisy, _ = fleet.model.outputs(weights, fleet.graph, fleet.random)
    quiet, _ = fleet.model.outputs(weights, fleet.graph)
    assert torch.equal(noisy[0], quiet[0])
    assert not torch.equal(noisy[1], quiet[1])


def test_first_layer_may_start_with_orthogonal_columns():
    start = initial_weights(OrthoGCN(200, CLASSES, width=16, orthogonal_start=True), 0).layer0.weight
    torch.testing.assert_close(start.t() @ start, torch.eye(16), atol=1e-4, rtol=0)
    plain = initial_weights(OrthoGCN(200, CLASSES, width=16), 0).layer0.weight
    assert (plain.t() @ plain - torch.eye(16)).abs().max() > 0.1


def test_orthogonal_layers_have_no_bias():
    assert [path for path, _ in flatten(initial_weights(OrthoGCN(6, CLASSES), 0))] == [
        "layer0/weight",
        "layer0/bias",
        "layer1/weight",
        "layer2/weight",
        "head/weight",
        "head/bias",
    ]


def test_initial_weights_depend_on_the_seed_alone():
    model, again = (OrthoGCN(6, CLASSES) for _ in range(2))
    assert same(initial_weights(model, 3), initial_weights(again, 3))
    assert gap(initial_weights(model, 3), initial_weights(model, 4)) > 1e-2


@pytest.mark.parametrize(
    ("name", "depth", "shown"),
    [("ortho_gcn", 2, "ortho_gcn"), ("ortho_gcn10", 10, "ortho_gcn10"), ("ortho_gcn-4", 4, "ortho_gcn4")],
)
def test_number_in_the_name_counts_the_orthogonal_layers(name, depth, shown):
    model = build_model(name, 6, CLASSES, width=WIDTH, head="conv")
    assert isinstance(model, OrthoGCN)
    assert model.name == shown
    assert len([path for path in initial_weights(model, 0) if path.startswith("layer")]) == depth + 1


@pytest.mark.parametrize("name", ["ortho", "ortho_", "ortho_gnc", "ortho_gcn0"])
def test_impossible_names_are_refused(name):
    with pytest.raises(InputError, match=name):
        build_model(name, 6, CLASSES)
