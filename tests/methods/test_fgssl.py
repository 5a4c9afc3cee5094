"""FGSSL: cases worked out by hand."""

import math

import numpy as np
import pytest
import torch

from graft.data.graphs import make_graph
from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.graphs.fleet_graph import FleetGraph
from graft.methods.fedavg import FedAvg
from graft.methods.fgssl import FGSSL
from graft.methods.fgssl.contrast import semantic_contrast
from graft.methods.fgssl.structure import edge_products, neighbour_log_softmax, structure_loss
from graft.tensors.trees import flatten, map_tree
from tests.toy import gap, random_weights, run_rounds, same, toy_graph, toy_graphs, toy_setup, with_weights

EVERY_VIEW_WHOLE = {"weak_edges": 0.0, "weak_features": 0.0, "strong_edges": 0.0, "strong_features": 0.0}


def contrast(student, teacher, classes, temperature=1.0, against="all", real=None):
    """The contrast of one client."""
    classes = torch.tensor([classes])
    real = torch.ones_like(classes).bool() if real is None else torch.tensor([real])
    points = (torch.as_tensor(points, dtype=torch.float32).unsqueeze(0) for points in (student, teacher))
    return float(semantic_contrast(*points, classes, real, temperature, against)[0])


@pytest.mark.parametrize("against", ["all", "others"])
def test_two_nodes_of_two_classes_at_right_angles(against):
    points = [[2.0, 0.0], [0.0, 5.0]]
    assert contrast(points, points, [0, 1], against=against) == pytest.approx(0.313262, abs=1e-6)
    assert contrast(points, points[::-1], [0, 1], against=against) == pytest.approx(math.log(1 + math.e), abs=1e-6)


def test_two_nodes_of_one_class_that_are_the_same():
    points = [[1.0, 1.0], [1.0, 1.0]]
    assert contrast(points, points, [0, 0]) == pytest.approx(math.log(2), abs=1e-6)
    assert contrast(points, points, [0, 0], against="others") == 0  # there is nothing to be told from
    assert contrast(points, points, [0, 1], against="others") == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("against", ["all", "others"])
def test_contrast_is_the_papers_formula(against):
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 6, 3, generator=generator)
    classes, temperature = [0, 1, 0, 2, 1, 0], 0.4
    cosines = torch.cosine_similarity(student.unsqueeze(1), teacher.unsqueeze(0), dim=2) / temperature
    by_node = []
    for i, own in enumerate(classes):
        terms = []
        for p in (p for p in range(6) if classes[p] == own):
            others = [k for k in range(6) if (k != p if against == "all" else classes[k] != own)]
            pair, rest = cosines[i, p].exp(), cosines[i, others].exp().sum()
            terms.append(-(pair / (pair + rest)).log())
        by_node.append(sum(terms) / len(terms))
    found = contrast(student, teacher, classes, temperature, against)
    assert found == pytest.approx(float(sum(by_node)) / 6, abs=1e-6)
    assert found != pytest.approx(contrast(teacher, student, classes, temperature, against), abs=1e-3)


@pytest.mark.parametrize("against", ["all", "others"])
def test_padding_is_not_contrasted_and_a_client_without_nodes_has_no_contrast(against):
    points = [[1.0, 0.5], [-1.0, 2.0], [0.3, 0.3]]
    wanted = contrast(points[:2], points[:2], [0, 1], against=against)
    assert contrast(points, points, [0, 1, 0], against=against, real=[True, True, False]) == pytest.approx(wanted)
    assert contrast(points, points, [0, 1, 0], against=against) != pytest.approx(wanted)
    student = torch.tensor([points], requires_grad=True)
    nowhere = torch.zeros(1, 3, dtype=torch.bool)
    loss = semantic_contrast(student, student.detach(), torch.tensor([[0, 1, 0]]), nowhere, 0.1, against)
    assert float(loss.detach()) == 0
    assert not torch.autograd.grad(loss.sum(), student)[0].any()


def graph_of(*graphs):
    graph: FleetGraph = toy_setup(FGSSL(), graphs=list(graphs)).fleet(list(range(len(graphs)))).graph
    return graph


def dense_structure_loss(graph, student, teacher, temperature):
    """The same with a row of cosines a node, for one client."""
    linked = graph.neighbours.dense()[0] > 0
    scores = []
    for points in (teacher, student):
        unit = points[0] / points[0].norm(dim=1, keepdim=True)
        scores.append((unit @ unit.T / temperature).masked_fill(~linked, -1e9).log_softmax(1))
    by_node = (scores[0].exp() * (scores[0] - scores[1]) * linked).sum(1)
    return by_node[linked.any(1)].mean()


@pytest.mark.parametrize("weighted", [False, True])
def test_structure_loss_and_its_gradient_are_those_of_dense_matrices(weighted):
    own = toy_graph(12)
    graph = graph_of(with_weights(own) if weighted else own)
    generator = torch.Generator().manual_seed(1)
    student, teacher = torch.randn(2, 1, 12, 4, generator=generator)
    student.requires_grad_()
    found, wanted = structure_loss(graph, student, teacher, 0.3), dense_structure_loss(graph, student, teacher, 0.3)
    torch.testing.assert_close(found[0], wanted)
    ours, theirs = (torch.autograd.grad(loss.sum(), student)[0] for loss in (found, wanted))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    assert theirs.abs().max() > 1e-3


def test_similarities_of_neighbours_add_up_to_one():
    graph = graph_of(*toy_graphs())
    points = torch.randn(3, 12, 4, generator=torch.Generator().manual_seed(2))
    chances = neighbour_log_softmax(graph.neighbours, edge_products(graph.neighbours, points)).exp()
    sums = graph.neighbours.row_sums(chances).view(3, 12)
    torch.testing.assert_close(sums, (graph.degree > 0).float())
    assert (graph.degree == 0).any()


def path(nodes):
    """A path of nodes, all of one class."""
    edges = np.stack([np.arange(nodes - 1), np.arange(1, nodes)])
    masks = {name: np.ones(nodes, bool) for name in ("train", "validation", "test")}
    return make_graph("path", np.ones((nodes, 2)), edges, np.zeros(nodes, int), 2, masks)


def test_a_node_with_one_neighbour_has_nothing_to_learn_and_one_with_two_has():
    student = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    teacher = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    assert float(structure_loss(graph_of(path(2)), student[:, :2], teacher[:, :2], 1.0)) == 0
    # In the middle of three: cosines 1 and 0 for the teacher, 0 and 1 / sqrt(2) for the student; the ends add nothing.
    p = math.e / (1 + math.e)
    q = 1 / (1 + math.exp(2**-0.5))
    wanted = (p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))) / 3
    assert float(structure_loss(graph_of(path(3)), student, teacher, 1.0)) == pytest.approx(wanted, abs=1e-6)


def test_equal_embeddings_give_no_gradient_and_different_ones_do():
    graph = graph_of(toy_graph(12))
    student = torch.randn(1, 12, 4, generator=torch.Generator().manual_seed(3)).requires_grad_()

    def gradient(teacher):
        return torch.autograd.grad(structure_loss(graph, student, teacher, 0.1).sum(), student)[0]

    assert not gradient(student.detach()).any()
    assert not gradient(2 * student.detach()).any()  # only directions count
    assert gradient(student.detach().flip(1)).any()


def test_clients_without_edges_have_no_structure():
    points = torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(4))
    assert structure_loss(graph_of(toy_graph(9, edgeless=True)), points, points.flip(1), 0.1).tolist() == [0]
    pair = graph_of(toy_graph(9, edgeless=True), toy_graph(9))
    beside = structure_loss(pair, points.repeat(2, 1, 1), points.flip(1).repeat(2, 1, 1), 0.1)
    assert (beside > 0).tolist() == [False, True]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_without_both_losses_it_is_fedavg_bit_for_bit(model, optimizer):
    settings = {"models": model, "optimizer": optimizer, "dropout": 0.5}
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=2)
    ours = run_rounds(toy_setup(FGSSL(contrast=0.0, structure=0.0), **settings), rounds=2)
    assert same(ours.server.state, wanted.server.state)
    assert all(same(ours.client(client), wanted.client(client)) for client in range(3))
    for taught in (FGSSL(contrast=0.0), FGSSL(structure=0.0)):
        assert not same(run_rounds(toy_setup(taught, **settings), rounds=2).server.state, wanted.server.state)


def test_on_whole_views_the_first_step_learns_no_structure_and_the_second_does():
    method = FGSSL(contrast=0.0, structure=10.0, **EVERY_VIEW_WHOLE)

    def after(method, epochs):
        return run_rounds(toy_setup(method, epochs=epochs), rounds=2).server.state

    assert same(after(method, 1), after(FedAvg(), 1))
    assert not same(after(method, 2), after(FedAvg(), 2))


def test_views_lack_their_shares_and_are_drawn_anew_in_every_step(monkeypatch):
    views = []
    perturbed = FleetGraph.perturbed

    def watched(graph, random, *rates):
        view = perturbed(graph, random, *rates)
        views.append((rates, float(view.neighbours.values.mean()), view.features.columns.clone()))
        return view

    monkeypatch.setattr(FleetGraph, "perturbed", watched)
    run_rounds(toy_setup(FGSSL(), epochs=2, sparse=True), rounds=1)
    weak, strong, later, _ = views
    assert (weak[0], strong[0]) == ((0.3, 0.3), (0.8, 0.5))
    assert weak[1] > strong[1] > 0
    assert not torch.equal(weak[2], strong[2])
    assert not torch.equal(weak[2], later[2])


def test_teacher_is_the_received_model_in_evaluation_mode_and_gets_no_gradient():
    setup = toy_setup(FGSSL(**EVERY_VIEW_WHOLE), dropout=0.5)
    fleet = setup.fleet([0, 1, 2]).for_call(1, "train")
    weights, received = (random_weights(setup.models[0], 3, seed=seed) for seed in (0, 1))
    received = map_tree(lambda leaf: leaf.clone().requires_grad_(), received)
    weights = map_tree(lambda leaf: leaf.clone().requires_grad_(), weights)
    seen = []

    class Watched(FGSSL):
        def semantic_loss(self, fleet, student, teacher):
            seen.append(teacher)
            return super().semantic_loss(fleet, student, teacher)

    loss = Watched(**EVERY_VIEW_WHOLE).loss(fleet, weights, received).sum()
    torch.testing.assert_close(seen[0], fleet.predict(received).embedding)
    leaves = [leaf for tree in (weights, received) for _, leaf in flatten(tree)]
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    half = len(leaves) // 2
    assert all(gradient is not None for gradient in gradients[:half])
    assert all(gradient is None for gradient in gradients[half:])


def test_terms_are_weighted():
    setup = toy_setup(FGSSL())
    weights, received = (random_weights(setup.models[0], 3, seed=seed) for seed in (0, 1))

    def loss(contrast, structure):
        fleet = setup.fleet([0, 1, 2]).for_call(1, "train")
        return FGSSL(contrast=contrast, structure=structure, **EVERY_VIEW_WHOLE).loss(fleet, weights, received)

    plain = loss(0.0, 0.0)
    both = loss(0.5, 2.0) - plain
    torch.testing.assert_close(both, 0.5 * (loss(1.0, 0.0) - plain) + 2 * (loss(0.0, 1.0) - plain))
    assert (both > 0).all()


def test_a_single_node_in_the_contrast_has_nothing_to_be_told_from():
    settings = {"structure": 0.0, "temperature": 0.5}
    wanted = run_rounds(toy_setup(FedAvg())).server.state
    assert same(run_rounds(toy_setup(FGSSL(most_nodes=1, **settings))).server.state, wanted)
    assert not same(run_rounds(toy_setup(FGSSL(most_nodes=2, **settings))).server.state, wanted)


def test_drawn_nodes_are_different_training_nodes_and_others_in_another_step():
    method = FGSSL(most_nodes=3)
    fleet = toy_setup(method).fleet([0, 1, 2]).for_call(1, "train")
    numbers = torch.arange(12.0).view(1, 12, 1).expand(3, 12, 1)
    drawn = []

    def keep(student, _, classes, real, *settings):  # noqa: ARG001
        drawn.append((student[:, :, 0].long(), classes, real))
        return torch.zeros(3)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("graft.methods.fgssl.method.semantic_contrast", keep)
        for _ in range(4):
            method.semantic_loss(fleet, numbers, numbers)
    for nodes, classes, real in drawn:
        assert real.all()
        assert fleet.labels.masks[:, 0].gather(1, nodes).all()
        assert torch.equal(classes, fleet.labels.classes.gather(1, nodes))
        assert all(len(set(row.tolist())) == 3 for row in nodes)
    assert len({tuple(nodes[0].sort().values.tolist()) for nodes, _, _ in drawn}) > 1


def test_a_client_beside_one_of_which_nodes_are_drawn_ends_where_it_does_alone():
    setup = toy_setup(FGSSL(most_nodes=4, temperature=0.5), dropout=0.5, seed=1)  # of 6, 4 and 4 training nodes
    together, alone = run_rounds(setup), run_rounds(setup, engine=InProcess(setup, alone=True))
    assert all(gap(together.client(client), alone.client(client)) < 1e-5 for client in range(3))
    whole = run_rounds(toy_setup(FGSSL(temperature=0.5), dropout=0.5, seed=1))
    assert gap(together.client(0), whole.client(0)) > 1e-3


@pytest.mark.parametrize("against", ["all", "others"])
def test_contrast_moves_nodes_towards_the_teachers_of_their_class(against):
    generator = torch.Generator().manual_seed(0)
    teacher = torch.tensor([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]])
    student = torch.randn(1, 4, 2, generator=generator).requires_grad_()
    classes, real = torch.tensor([[0, 0, 1, 1]]), torch.ones(1, 4, dtype=torch.bool)
    optimizer = torch.optim.SGD([student], lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        semantic_contrast(student, teacher, classes, real, 0.5, against).sum().backward()
        optimizer.step()
    cosines = torch.cosine_similarity(student.detach()[0].unsqueeze(1), teacher[0].unsqueeze(0), dim=2)
    assert cosines[:2, :2].min() > cosines[:2, 2:].max()
    assert cosines[2:, 2:].min() > cosines[2:, :2].max()


def test_batches_are_contrasted_one_by_one():
    finished = run_rounds(toy_setup(FGSSL(), batches=2))
    assert all(leaf.isfinite().all() for _, leaf in flatten(finished.server.state))
    assert not same(finished.server.state, run_rounds(toy_setup(FedAvg(), batches=2)).server.state)


def test_messages_are_those_of_fedavg():
    ours, wanted = run_rounds(toy_setup(FGSSL())), run_rounds(toy_setup(FedAvg()))
    assert (ours.traffic.up, ours.traffic.down) == (wanted.traffic.up, wanted.traffic.down)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("contrast", -1.0),
        ("structure", -0.1),
        ("temperature", 0.0),
        ("structure_temperature", 0.0),
        ("against", "none"),
        ("most_nodes", 0),
        ("weak_edges", 1.0),
        ("strong_features", -0.5),
    ],
)
def test_values_that_make_no_sense_are_refused(field, value):
    with pytest.raises(InputError, match=field):
        FGSSL(**{field: value})
