"""FedTAD: cases worked out by hand."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GCNConv

from graft.data.graphs import make_graph
from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.federation.exchange import Clients, Server, Traffic
from graft.federation.plug import Uploads, plugged
from graft.methods.fedavg import FedAvg
from graft.methods.fedgta import FedGTA
from graft.methods.fedtad import FedTAD, FedTADPaper, FedTADReleased, PaperDistillation
from graft.methods.fedtad.generator import Generator, generate, pseudo_labels
from graft.methods.fedtad.lesson import (
    Students,
    SyntheticLesson,
    mixing_coefficients,
    relative_reliability,
    teacher_votes,
)
from graft.methods.fedtad.losses import logit_gap, mean_cosine, nearness, prediction_gap, recognition
from graft.models import build_model
from graft.tensors.randomness import streams
from graft.tensors.trees import Tree, flatten, map_tree, select_clients, stack
from graft.training.loop import start_adam
from tests.toy import CLASSES, gap, play, random_weights, same, toy_graph, toy_graphs, toy_setup

CPU = torch.device("cpu")


def path_graph(labels=(0, 0, 1), train=(True, True, True), edges=((0, 1), (1, 2)), x=((1, 0), (1, 0), (0, 1))):
    masks = {"train": np.array(train), "validation": ~np.array(train), "test": ~np.array(train)}
    pairs = np.array(edges).T if edges else np.empty((2, 0), int)
    return make_graph("path", np.array(x, float), pairs, np.array(labels), 2, masks)


def told_by(graphs, round=1, **settings):
    """What clients say of themselves."""
    setup = toy_setup(FedTADPaper(**settings), graphs=graphs)
    engine = InProcess(setup)
    return Clients(engine, round, list(range(len(graphs))), Traffic()).ask(setup.method.tell_reliability)


# What a client tells.


def test_reliability_of_a_path_by_hand():
    found = told_by([path_graph()], walk_length=2, include_self=False)
    torch.testing.assert_close(found.reliability, torch.tensor([[1.581139, 0.316228]]), atol=1e-6, rtol=0)
    found = told_by([path_graph()], walk_length=2)
    torch.testing.assert_close(found.reliability, torch.tensor([[1.729312, 0.658114]]), atol=1e-6, rtol=0)
    assert found.norm.tolist() == [1.0]
    assert found.size.tolist() == [3]


def test_only_labelled_nodes_count_and_isolated_ones_by_themselves_alone():
    last = path_graph(train=(False, False, True))
    torch.testing.assert_close(
        told_by([last], walk_length=2).reliability, torch.tensor([[0, 0.658114]]), atol=1e-6, rtol=0
    )
    apart = path_graph(edges=())
    assert told_by([apart], include_self=False).reliability.tolist() == [[0, 0]]
    assert told_by([apart]).reliability.tolist() == [[2, 1]]
    nobody = path_graph(train=(False, False, False))
    assert told_by([nobody]).reliability.tolist() == [[0, 0]]


def test_count_and_equal_reliability():
    graphs = [path_graph(), path_graph(train=(True, False, False))]
    assert told_by(graphs, reliability="count").reliability.tolist() == [[2, 1], [1, 0]]
    assert told_by(graphs, reliability="equal").reliability.tolist() == [[1, 1], [1, 1]]


def test_neighbours_that_are_opposite_never_count_against_a_class():
    opposite = path_graph(x=((9, 0), (-9, 0), (9, 0)))
    assert (told_by([opposite], include_self=False).reliability == 0).all()


def test_sparse_features_tell_what_dense_ones_do():
    graphs = toy_graphs(sparse=True)
    dense = [replace(graph, x=graph.x.toarray()) for graph in graphs]
    sparse_told, dense_told = told_by(graphs), told_by(dense)
    torch.testing.assert_close(sparse_told.reliability, dense_told.reliability, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(sparse_told.norm, dense_told.norm)
    norms = [np.linalg.norm(graph.x, axis=1).mean() for graph in dense]
    torch.testing.assert_close(dense_told.norm, torch.tensor(norms, dtype=torch.float32))
    assert (dense_told.reliability - told_by(dense, walk_length=1).reliability).abs().max() > 1e-3


def test_estimated_walks_tell_nearly_the_same_and_alike_in_any_fleet():
    graphs = toy_graphs()
    exact, rough = told_by(graphs).reliability, told_by(graphs, walk_budget=0, walk_probes=2000).reliability
    assert 0 < (exact - rough).abs().max() < 0.02
    settings = {"walk_budget": 0, "walk_probes": 8}
    together, alone = told_by(graphs, **settings), told_by(graphs[:1], **settings)
    assert torch.equal(together.reliability[:1], alone.reliability)


def test_noise_is_relative_drawn_for_each_entry_and_never_makes_a_class_negative():
    graphs = toy_graphs()
    plain = told_by(graphs).reliability
    noisy = told_by(graphs, reliability_noise=0.1).reliability
    factors = (noisy / plain)[plain > 0]
    assert (factors - 1).abs().min() > 0
    assert (factors - 1).abs().max() < 0.5
    assert len(factors.unique()) == len(factors)
    assert torch.equal(noisy, told_by(graphs, reliability_noise=0.1).reliability)
    wild = told_by(graphs, reliability_noise=50).reliability
    assert (wild >= 0).all()
    assert (wild == 0).any()


def test_clients_tell_once_and_that_is_all_that_is_sent_beside_fedavg():
    plain, with_it = play(toy_setup(FedAvg()), rounds=3), play(toy_setup(FedTADPaper()), rounds=3)
    assert with_it.traffic.up - plain.traffic.up == 3 * (4 * CLASSES + 4 + 8)
    assert with_it.traffic.down == plain.traffic.down
    setup = toy_setup(FedTADPaper(), clients=4, participation=0.5)
    played = play(setup, rounds=1)
    assert played.server.state.distillation.heard.sum() == 2
    told = played.server.state.distillation.reliability
    assert ((told.sum(1) > 0) == played.server.state.distillation.heard).all()


# Shares and pseudo labels.


def test_shares_of_a_class_add_up_to_one_over_clients():
    told = torch.tensor([[1.0, 0.0, 3.0], [3.0, 0.0, 0.0]])
    everyone = torch.ones(1, 2)
    found = relative_reliability(told, everyone)[0]
    assert found.tolist() == [[0.25, 0, 1], [0.75, 0, 0]]
    assert torch.equal(relative_reliability(told.flip(0), everyone)[0], found.flip(0))
    assert relative_reliability(told[:1], torch.ones(1, 1))[0].tolist() == [[1, 0, 1]]
    # A student that listens to one of them alone.
    assert relative_reliability(told, torch.tensor([[1.0, 0.0], [1.0, 1.0]]))[0].tolist() == [[1, 0, 1], [0, 0, 0]]


def test_votes_make_a_mean_over_the_nodes_of_each_class():
    labels = torch.tensor([0, 0, 0, 2])
    votes = teacher_votes(torch.tensor([[1.0, 0.0, 3.0], [3.0, 0.0, 0.0]]), torch.ones(1, 2), labels)[0]
    torch.testing.assert_close(votes, torch.tensor([[1 / 12, 1 / 12, 1 / 12, 1], [0.25, 0.25, 0.25, 0]]))


def test_pseudo_labels_are_balanced_over_usable_classes():
    every = torch.ones(7, dtype=torch.bool)
    assert torch.bincount(pseudo_labels(every, 100), minlength=7).tolist() == [15, 15, 14, 14, 14, 14, 14]
    some = torch.tensor([False, True, True, False, True])
    assert torch.bincount(pseudo_labels(some, 11), minlength=5).tolist() == [0, 4, 4, 0, 3]
    assert pseudo_labels(every, 3).tolist() == [0, 1, 2]
    assert pseudo_labels(torch.zeros(4, dtype=torch.bool), 5).shape == (5,)


def test_partial_participation_shares_out_among_those_who_take_part():
    seen = []

    class Watched(FedTADPaper):
        def teach(self, server, teachers, told, scope, students):
            seen.append((told, scope))
            return super().teach(server, teachers, told, scope, students)

    play(toy_setup(Watched(), clients=4, participation=0.5), rounds=2)
    for told, scope in seen:
        assert len(told) == 2
        torch.testing.assert_close(relative_reliability(told, scope)[0].sum(0), (told.sum(0) > 0).float())


# Losses.


def random_logits(students=2, teachers=3, nodes=4, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(students, nodes, classes, generator=generator, dtype=torch.float64)
    wanted = torch.randn(teachers, nodes, classes, generator=generator, dtype=torch.float64)
    votes = torch.rand(1, teachers, nodes, generator=generator, dtype=torch.float64)
    return found, wanted, votes


def test_divergence_is_that_of_the_student_from_each_teacher():
    found, wanted, votes = random_logits()
    by_hand = torch.zeros(2, dtype=torch.float64)
    turned = torch.zeros(2, dtype=torch.float64)
    for student in range(2):
        for teacher in range(3):
            for node in range(4):
                mine, theirs = found[student, node].log_softmax(0), wanted[teacher, node].log_softmax(0)
                weight = votes[0, teacher, node]
                by_hand[student] += weight * functional.kl_div(theirs, mine.exp(), reduction="sum")
                turned[student] += weight * functional.kl_div(mine, theirs.exp(), reduction="sum")
    torch.testing.assert_close(prediction_gap(found, wanted, votes), by_hand)
    assert (by_hand - turned).abs().min() > 1e-2


@pytest.mark.parametrize("loss", [prediction_gap, logit_gap])
def test_gradient_of_the_divergence_is_that_of_finite_differences(loss):
    found, wanted, votes = random_logits(students=1, teachers=2, nodes=2, classes=2)
    start, targets = found.requires_grad_(), wanted.requires_grad_()
    gradients = torch.autograd.grad(loss(start, targets, votes).sum(), (start, targets))
    for leaf, gradient in zip((start, targets), gradients, strict=True):
        slopes = torch.zeros_like(gradient).flatten()
        for place in range(slopes.numel()):
            move = torch.zeros_like(slopes)
            move[place] = 1e-6
            move = move.view_as(gradient)
            mine, theirs = (move, 0) if leaf is start else (0, move)
            up, down = (loss(start + sign * mine, targets + sign * theirs, votes) for sign in (1, -1))
            slopes[place] = (up - down).item() / 2e-6
        torch.testing.assert_close(gradient.flatten(), slopes, atol=1e-6, rtol=1e-6)


def test_student_that_agrees_with_its_teacher_feels_nothing():
    found, _, votes = random_logits(students=1, teachers=1)
    for loss in (prediction_gap, logit_gap):
        start = found.float().requires_grad_()
        value = loss(start, found.float(), votes[:, :1].float())
        assert value.item() == 0
        assert (torch.autograd.grad(value.sum(), start)[0] == 0).all()


def test_logit_gap_and_recognition_by_hand():
    found, wanted = torch.zeros(1, 2, 2), torch.tensor([[[1.0, 3.0], [0.0, 0.0]], [[-2.0, 0.0], [4.0, 0.0]]])
    votes = torch.tensor([[[1.0, 10.0], [100.0, 1000.0]]])
    assert logit_gap(found, wanted, votes).tolist() == [1 * 2 + 0 + 100 * 1 + 1000 * 2]
    labels = torch.tensor([1, 0])
    missed = [np.log1p(np.exp(-2)), np.log(2), np.log1p(np.exp(-2)), np.log1p(np.exp(-4))]
    by_hand = sum(vote * miss for vote, miss in zip((1, 10, 100, 1000), missed, strict=True))
    assert recognition(wanted, labels, votes[0]).item() == pytest.approx(by_hand, rel=1e-6)


def test_diversity_of_orthogonal_identical_and_opposite_rows():
    noise = torch.zeros(2, 1)
    assert mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 5.0]]), noise, 1).item() == pytest.approx(0.5)
    assert mean_cosine(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), noise, 1).item() == pytest.approx(1)
    assert mean_cosine(torch.tensor([[1.0, 2.0], [-1.0, -2.0]]), noise, 1).item() == pytest.approx(0)


def test_nearness_of_the_released_code():
    generator = torch.Generator().manual_seed(0)
    rows, noise = torch.randn(5, 3, generator=generator), torch.randn(5, 2, generator=generator)
    pairs = [
        (rows[i] - rows[j]).abs().mean() * (noise[i] - noise[j]).square().mean() for i in range(5) for j in range(5)
    ]
    assert nearness(rows, noise, 4).item() == pytest.approx(4 * np.exp(-np.mean(pairs)), rel=1e-5)


# The two phases.


def server_for(setup):
    server = Server(setup.models[0], setup.models, len(setup.graphs), 0, CPU, setup.architecture)
    setup.method.start_server(server)
    server.round = 1
    return server


def generator_weights():
    return stack([Generator(6, CLASSES, 32).start(torch.Generator().manual_seed(0))])


def lesson_for(model, teachers, method, norm=2.0):
    count = len(teachers["head"]["bias"])
    told = torch.rand(count, CLASSES, generator=torch.Generator().manual_seed(1)) + 0.1
    labels = pseudo_labels(told.sum(0) > 0, method.pseudo_nodes)
    votes = teacher_votes(told, torch.ones(1, count), labels)
    return SyntheticLesson(model, teachers, votes, votes[0], labels, torch.tensor(norm))


def students_for(weights, owners=(0,)):
    return Students(weights, start_adam(dict(flatten(weights))), streams(CPU, 0, list(owners)))


@pytest.mark.parametrize("kind", [FedTADPaper, FedTADReleased])
def test_each_phase_changes_its_own_weights_and_no_others(kind):
    method = kind(pseudo_nodes=12)
    setup = toy_setup(method)
    server, model = server_for(setup), setup.models[0]
    teachers, weights = random_weights(model, 3, seed=1), random_weights(model, 1, seed=2)
    lesson, known, noise = lesson_for(model, teachers, method), server.state.distillation, noise_for(12)
    kept = {name: map_tree(torch.clone, tree) for name, tree in (("teachers", teachers), ("students", weights))}
    theta = known.generator
    before = map_tree(torch.clone, theta)
    method.train_generator(known, lesson, weights, noise, Tree())
    assert not same(known.generator, before)
    assert same(theta, before)  # the old ones are not written over either
    assert same(teachers, kept["teachers"])
    assert same(weights, kept["students"])
    graph = method.synthesise(known.generator, lesson, noise)
    before = map_tree(torch.clone, known.generator)
    students = students_for(weights)
    method.train_students(lesson, students, graph, 2)
    assert not same(students.weights, kept["students"])
    assert same(weights, kept["students"])
    assert same(teachers, kept["teachers"])
    assert same(known.generator, before)


def noise_for(nodes):
    return torch.randn(nodes, 32, generator=torch.Generator().manual_seed(0))


def test_made_up_nodes_are_as_long_as_real_ones():
    for bound, wanted in (("norm", True), ("none", False)):
        method = FedTADPaper(pseudo_nodes=12, bound=bound)
        setup = toy_setup(method)
        server = server_for(setup)
        lesson = lesson_for(setup.models[0], random_weights(setup.models[0], 2), method)
        graph = method.synthesise(server.state.distillation.generator, lesson, torch.randn(12, 32))
        assert bool(((graph.features[0].norm(dim=1) - 2).abs() < 1e-6).all()) == wanted


def test_length_of_real_nodes_is_their_mean_over_all_who_told():
    seen = []

    class Watched(FedTADPaper):
        def synthesise(self, weights, lesson, noise):
            seen.append(lesson.norm)
            return super().synthesise(weights, lesson, noise)

    graphs = toy_graphs()
    play(toy_setup(Watched(), graphs=graphs), rounds=1)
    nodes = np.concatenate([graph.x for graph in graphs])
    assert seen[0].item() == pytest.approx(np.linalg.norm(nodes, axis=1).mean(), rel=1e-5)


def test_generator_looks_for_disagreement_unless_told_not_to():
    method = FedTADPaper(pseudo_nodes=12, semantic_weight=0, diversity_weight=0, generator_steps=30, distil_decay=0)
    setup = toy_setup(method)
    model = setup.models[0]
    teachers, students = random_weights(model, 3, seed=1), random_weights(model, 1, seed=2)
    noise = noise_for(12)

    def ends(**changes):
        """The three terms before and after some steps of the generator."""
        variant = replace(method, **changes)
        server = server_for(replace(setup, method=variant))
        known, lesson = server.state.distillation, lesson_for(model, teachers, variant)
        start = known.generator
        variant.train_generator(known, lesson, students, noise, Tree())
        both = [variant.generator_terms(weights, lesson, students, noise) for weights in (start, known.generator)]
        return [{name: term.item() for name, term in terms.items()} for terms in both], same(start, known.generator)

    (before, after), still = ends()
    assert after["divergence"] > before["divergence"] + 0.01
    assert not still
    (before, after), still = ends(adversarial=False)
    assert still  # nothing is left to follow
    (before, after), _ = ends(adversarial=False, semantic_weight=1.0)
    assert after["semantics"] < before["semantics"] - 0.01
    (before, after), _ = ends(adversarial=False, diversity_weight=1.0)
    assert after["diversity"] < before["diversity"] - 0.01


def test_students_follow_even_when_the_generator_does_not_look_for_disagreement():
    off = play(toy_setup(FedTADPaper(adversarial=False)), rounds=1).server.state.model
    assert not same(off, play(toy_setup(FedAvg()), rounds=1).server.state.model)


def test_released_losses_give_the_generator_no_gradient_through_the_teachers():
    model = build_model("gcn", 6, CLASSES, width=8)
    weights = generator_weights()
    teachers, students = random_weights(model, 3, seed=1), random_weights(model, 1, seed=2)
    noise = noise_for(12)
    last = weights.layer3.weight.requires_grad_()

    def gradient(method, students):
        lesson = lesson_for(model, teachers, method)
        terms = method.generator_terms(weights, lesson, students, noise)
        return torch.autograd.grad(terms.divergence, last)[0]

    blind = map_tree(torch.zeros_like, students)  # says the same of every node
    released = replace(FedTADReleased(), pseudo_nodes=12)
    assert (gradient(released, blind) == 0).all()
    assert (gradient(FedTADPaper(pseudo_nodes=12), blind) != 0).any()
    assert (gradient(released, students) != 0).any()


def test_generator_has_the_published_shape():
    weights = Generator(50, 7, 32).start(torch.Generator().manual_seed(0))
    assert weights.classes.shape == (7, 7)
    assert [weights[f"layer{i}"].weight.shape for i in range(4)] == [(39, 64), (64, 128), (128, 256), (256, 50)]
    labels, noise = torch.tensor([0, 6]), torch.randn(2, 32)
    hidden = torch.cat([weights.classes[labels], noise], 1)
    for i in range(3):
        hidden = torch.tanh(hidden @ weights[f"layer{i}"].weight + weights[f"layer{i}"].bias)
    wanted = hidden @ weights.layer3.weight + weights.layer3.bias
    torch.testing.assert_close(generate(stack([weights]), labels, noise), wanted)


# Whole rounds.


@pytest.mark.parametrize(
    "settings",
    [{"iterations": 0}, {"student_steps": 0}, {"student_learning_rate": 0.0, "distil_decay": 0.0}],
)
def test_without_distillation_it_is_fedavg_bit_for_bit(settings):
    setups = [toy_setup(method, dropout=0.5) for method in (FedAvg(), FedTADPaper(**settings), FedTADPaper())]
    plain, degenerate, real = (play(setup, rounds=3) for setup in setups)
    assert same(plain.server.state.model, degenerate.server.state.model)
    assert all(same(plain.client(client), degenerate.client(client)) for client in range(3))
    assert not same(plain.server.state.model, real.server.state.model)


@pytest.mark.parametrize("kind", [FedTADPaper, FedTADReleased])
def test_one_client_has_nothing_to_learn_from_itself(kind):
    method = kind(distil_decay=0.0)
    plain, single = (play(toy_setup(one, clients=1), rounds=2) for one in (FedAvg(), method))
    assert same(plain.server.state.model, single.server.state.model)
    two = play(toy_setup(method, clients=2), rounds=2)
    assert not same(two.server.state.model, play(toy_setup(FedAvg(), clients=2), rounds=2).server.state.model)


def test_where_nothing_is_known_reliably_nothing_is_learnt():
    graphs = [replace(graph, train=np.zeros_like(graph.train)) for graph in toy_graphs()]
    plain, ours = (play(toy_setup(method, graphs=graphs), rounds=2) for method in (FedAvg(), FedTADPaper()))
    assert same(plain.server.state.model, ours.server.state.model)


def test_equal_counts_everywhere_are_the_equal_ablation():
    graphs = [replace(toy_graph(12, seed=seed), y=toy_graph(12).y) for seed in range(3)]
    one, other, third = (
        play(toy_setup(FedTADPaper(reliability=kind), graphs=graphs), rounds=2).server.state.model
        for kind in ("count", "equal", "topology")
    )
    assert gap(one, other) < 1e-6
    assert gap(one, third) > 1e-6
    uneven = toy_graphs()
    one, other = (
        play(toy_setup(FedTADPaper(reliability=kind), graphs=uneven), rounds=2).server.state.model
        for kind in ("count", "equal")
    )
    assert gap(one, other) > 1e-5


def test_equal_reliabilities_told_by_topology_are_the_equal_ablation():
    class Told(FedTADPaper):
        """Clients whose neighbourhoods happen to be alike in every class."""

        def topology_reliability(self, fleet):  # noqa: ARG002
            return np.full(CLASSES, 3.7)

    one, other = (
        play(toy_setup(method), rounds=2).server.state.model for method in (Told(), FedTADPaper(reliability="equal"))
    )
    assert gap(one, other) < 1e-6
    assert gap(one, play(toy_setup(FedTADPaper()), rounds=2).server.state.model) > 1e-5


def test_bounded_losses_stay_small_over_many_rounds():
    setup = toy_setup(FedTADPaper(pseudo_nodes=30), dropout=0.5)
    engine, records = InProcess(setup), []
    server = server_for(setup)
    for number in range(1, 13):
        server.round = number
        setup.method.round(server, Clients(engine, number, [0, 1, 2], Traffic()))
        records.append(server.take_records())
    assert max(max(record["semantics"], record["divergence"]) for record in records) < 1e3
    assert set(records[0]) == {"divergence", "semantics", "diversity", "distillation"}
    assert all(0 <= record["diversity"] <= 1 for record in records)


def test_student_optimizer_is_kept_over_rounds_or_new_in_each():
    kept = play(toy_setup(FedTADPaper()), rounds=3).server.state
    assert kept.distillation.student_optimizer.steps.tolist() == [75]
    new = play(toy_setup(FedTADPaper(student_optimizer="reset")), rounds=3).server.state
    assert "student_optimizer" not in new.distillation
    assert not same(kept.model, new.model)
    one_round = [play(toy_setup(FedTADPaper(student_optimizer=kind)), rounds=1) for kind in ("persistent", "reset")]
    assert same(*(played.server.state.model for played in one_round))


@pytest.mark.parametrize("model", ["gat", "sage", "gin", "sgc", "mlp"])
def test_every_architecture_learns(model):
    played = play(toy_setup(FedTADPaper(pseudo_nodes=20), models=model, dropout=0.5), rounds=2)
    assert all(leaf.isfinite().all() for _, leaf in flatten(played.server.state))
    assert not same(played.server.state.model, play(toy_setup(FedAvg(), models=model, dropout=0.5)).server.state.model)


# The whole server phase, written a second time with stock layers, teacher by teacher and class by class.


class StockNet(nn.Module):
    def __init__(self, weights):
        super().__init__()
        features, width = weights.layer0.weight.shape
        self.layers = nn.ModuleList([GCNConv(features, width), GCNConv(width, width)])
        self.head = nn.Linear(width, CLASSES)
        with torch.no_grad():
            for layer, mine in zip(self.layers, (weights.layer0, weights.layer1), strict=True):
                layer.lin.weight.copy_(mine.weight.T)
                layer.bias.copy_(mine.bias)
            self.head.weight.copy_(weights.head.weight.T)
            self.head.bias.copy_(weights.head.bias)

    def forward(self, x, edges):
        for layer in self.layers:
            x = torch.relu(layer(x, edges))
        return self.head(x)


class StockGenerator(nn.Module):
    def __init__(self, weights, norm):
        super().__init__()
        self.classes = nn.Parameter(weights.classes[0].clone())
        self.layers = nn.ModuleList([nn.Linear(*weights[f"layer{i}"].weight[0].shape) for i in range(4)])
        self.norm = norm
        with torch.no_grad():
            for i, layer in enumerate(self.layers):
                layer.weight.copy_(weights[f"layer{i}"].weight[0].T)
                layer.bias.copy_(weights[f"layer{i}"].bias[0])

    def forward(self, noise, labels, count):
        x = torch.cat([self.classes[labels], noise], 1)
        for layer in self.layers[:3]:
            x = torch.tanh(layer(x))
        x = self.norm * functional.normalize(self.layers[3](x), dim=1)
        near = (x @ x.T).topk(count, 1).indices.tolist()
        pairs = {(u, v) for u, row in enumerate(near) for v in row if u != v}
        edges = torch.tensor(sorted(pairs | {(v, u) for u, v in pairs})).T
        return x, edges


def stock_phase(method, generator, student, teachers, told, labels, draws):
    """The student after one server phase."""
    settings = {"weight_decay": method.distil_decay}
    make = torch.optim.Adam(generator.parameters(), lr=method.pseudo_learning_rate, **settings)
    learn = torch.optim.Adam(student.parameters(), lr=method.student_learning_rate, **settings)

    def look(x, edges):
        apart = missed = 0.0
        for teacher, mine in zip(teachers, told, strict=True):
            answer, own = teacher(x, edges), student(x, edges)
            for kind in range(CLASSES):
                chosen = labels == kind
                share = mine[kind] / told[:, kind].sum()
                gap = functional.kl_div(answer[chosen].log_softmax(1), own[chosen].softmax(1), reduction="batchmean")
                apart += share * gap
                missed += share * functional.cross_entropy(answer[chosen], labels[chosen])
        return apart, missed

    for noise in draws:
        for _ in range(method.generator_steps):
            x, edges = generator(noise, labels, method.pseudo_neighbours)
            apart, missed = look(x, edges)
            alike = functional.cosine_similarity(x.unsqueeze(0), x.unsqueeze(1), dim=2).mean()
            make.zero_grad()
            (method.semantic_weight * missed + method.diversity_weight * alike - apart).backward()
            make.step()
        with torch.no_grad():
            x, edges = generator(noise, labels, method.pseudo_neighbours)
        for _ in range(method.student_steps):
            learn.zero_grad()
            look(x, edges)[0].backward()
            learn.step()
    return student


def test_server_phase_equals_one_written_with_stock_layers():
    method = FedTADPaper(pseudo_nodes=14, pseudo_neighbours=4, generator_steps=2, semantic_weight=0.7, iterations=3)
    setup = toy_setup(method)
    server = server_for(setup)
    plain = play(toy_setup(FedAvg()), rounds=1)
    teachers = [StockNet(plain.client(client).model) for client in range(3)]
    told = told_by(setup.graphs)
    norm = (told.norm * told.size).sum() / told.size.sum()
    generator = StockGenerator(server.state.distillation.generator, norm)
    labels = pseudo_labels(torch.ones(CLASSES, dtype=torch.bool), 14)
    draws = server.random("noise").normal(3 * 14 * 32).view(3, 14, 32)
    start = StockNet(plain.server.state.model)
    wanted = stock_phase(method, generator, start, teachers, told.reliability, labels, draws)
    found = play(setup, rounds=1).server.state.model
    for layer, mine in zip((*wanted.layers, wanted.head), (found.layer0, found.layer1, found.head), strict=True):
        stock = layer.weight if isinstance(layer, nn.Linear) else layer.lin.weight
        torch.testing.assert_close(mine.weight, stock.T, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(mine.bias, layer.bias, atol=2e-5, rtol=1e-5)
    assert gap(found, plain.server.state.model) > 1e-3


# The oracle on real graphs.


REAL = {"distil_on": "real", "reliability": "equal", "reveal_data": True}


def test_real_graphs_are_asked_for_only_in_a_declared_simulation():
    for missing in ("reveal_data", "reliability"):
        with pytest.raises(InputError, match="reveal_data"):
            FedTADPaper(**{name: value for name, value in REAL.items() if name != missing})
    setup = toy_setup(FedTADPaper())
    with pytest.raises(Exception, match="keeps its features and edges"):
        Clients(InProcess(setup), 1, [0], Traffic()).ask(setup.method.disclose)


def test_students_on_real_graphs_come_nearer_to_their_teachers():
    setup = toy_setup(FedTADPaper(**REAL, distil_decay=0.0))
    played, plain = play(setup, rounds=1), play(toy_setup(FedAvg()), rounds=1)
    assert "generator" not in played.server.state.distillation
    model, graph = setup.models[0], played.engine.fleets[0].graph

    def distance(student):
        """Summed over all real nodes of all clients."""
        total = 0.0
        for client in range(3):
            place = graph.select([client])
            mine, *theirs = (
                model(stack([one]), place).logits[:, : int(place.sizes[0])]
                for one in (student, *(played.client(teacher).model for teacher in range(3)))
            )
            total += prediction_gap(mine, torch.cat(theirs), torch.ones(1, 3, mine.shape[1])).item()
        return total

    assert distance(played.server.state.model) < distance(plain.server.state.model) - 1e-3


# A model for every client.


def test_shares_of_a_mean_are_found_in_the_weights():
    model = build_model("gcn", 6, CLASSES, width=8)
    teachers = random_weights(model, 3, seed=1)
    shares = torch.tensor([[0.2, 0.8, 0.0], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    students = map_tree(lambda leaf: torch.tensordot(shares, leaf, dims=1), teachers)
    torch.testing.assert_close(mixing_coefficients(students, teachers).float(), shares, atol=1e-5, rtol=0)
    alike = map_tree(lambda leaf: leaf[:1].expand_as(leaf), teachers)
    torch.testing.assert_close(mixing_coefficients(alike, alike), torch.full((3, 3), 1 / 3, dtype=torch.float64))


def test_every_client_of_a_personalised_host_has_a_student_and_absent_ones_keep_their_model():
    kind = plugged(FedGTA, PaperDistillation)
    setup = toy_setup(kind(), clients=4, participation=0.5)
    played = play(setup, rounds=1)
    plain = play(toy_setup(FedGTA(), clients=4, participation=0.5), rounds=1)
    ours, theirs = played.server.state.models, plain.server.state.models
    changed = [not same(select_clients(ours, client), select_clients(theirs, client)) for client in range(4)]
    assert changed == played.server.state.distillation.heard.tolist()
    steps = played.server.state.distillation.student_optimizer.steps
    assert steps.tolist() == [25.0 * one for one in changed]


def test_group_of_one_has_nothing_to_teach_and_all_others_have():
    kind = plugged(FedGTA, PaperDistillation)
    alone = {"threshold": 1.0, "distil_decay": 0.0}  # everyone is its own only partner
    plain = play(toy_setup(FedGTA(threshold=1.0)), rounds=2).server.state.models
    group = play(toy_setup(kind(teachers="group", **alone)), rounds=2).server.state.models
    everyone = play(toy_setup(kind(teachers="all", **alone)), rounds=2).server.state.models
    assert gap(plain, group) < 1e-5
    assert gap(plain, everyone) > 1e-3


def test_students_learn_apart_as_they_would_alone():
    method = FedTADPaper(pseudo_nodes=12)
    model = build_model("gcn", 6, CLASSES, width=8)
    teachers, students = random_weights(model, 3, seed=1), random_weights(model, 2, seed=2)
    lesson = lesson_for(model, teachers, method)
    weights = generator_weights()
    graph = method.synthesise(weights, lesson, noise_for(12))

    def learn(some, owners):
        learning = students_for(some, owners)
        method.train_students(lesson, learning, graph, 3)
        return learning.weights

    together = learn(students, [4, 7])
    for place, owner in enumerate((4, 7)):
        row = torch.tensor([place])
        assert gap(select_clients(together, row), learn(select_clients(students, row), [owner])) < 1e-5


def test_uploads_of_a_round_are_the_teachers():
    seen = []

    class Watched(FedTADPaper):
        def after_round(self, server, clients, uploads):  # noqa: ARG002
            seen.append(uploads)

    played = play(toy_setup(Watched()), rounds=1)
    assert isinstance(seen[0], Uploads)
    assert seen[0].clients == [0, 1, 2]
    assert same(seen[0].models, stack([played.client(client).model for client in range(3)]))


# Settings.


@pytest.mark.parametrize(
    "settings",
    [
        {"walk_length": 0},
        {"iterations": -1},
        {"pseudo_nodes": 4, "pseudo_neighbours": 5},
        {"student_learning_rate": float("nan")},
        {"reliability_noise": -0.1},
    ],
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(InputError):
        FedTADPaper(**settings)


def differing(one, other):
    return {field.name for field in fields(one) if getattr(one, field.name) != getattr(other, field.name)}


def test_published_preset_differs_where_ours_was_found_to_be_better():
    changed = {"adversarial", "semantic_weight", "diversity_weight", "student_learning_rate"}
    assert differing(FedTAD(), FedTADPaper()) == changed


def test_released_preset_differs_where_the_code_does():
    assert differing(FedTADPaper(), FedTADReleased()) == {
        "reliability",
        "semantic_weight",
        "diversity_weight",
        "distil_losses",
        "pseudo_similarity",
        "bound",
    }
