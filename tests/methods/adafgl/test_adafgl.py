"""AdaFGL: cases worked out by hand."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.federation.session import Session
from graft.methods.adafgl import AdaFGL
from graft.methods.adafgl.branches import PARTS, Branches, second_layer, signed_part
from graft.methods.adafgl.propagation import propagation_matrix
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import Tree, count_bytes, flatten, map_tree, select_clients, unflatten
from graft.training.losses import mean_over
from tests.methods.adafgl.cases import SOON, bipartite, cliques, fleet_of, linked
from tests.toy import gap, run_rounds, run_session, same, toy_graph, toy_graphs, toy_setup


@pytest.mark.parametrize(("graph", "wanted"), [(cliques, 1.0), (bipartite, 0.0)])
def test_labels_propagate_within_cliques_and_mislead_between_sides(graph, wanted):
    fleet = fleet_of(graph())
    known = torch.tensor([[True, False, False, False, True, False, False, False]])
    assert SOON.label_accuracy(fleet, known, ~known).tolist() == [wanted]


def test_homophily_is_measured_with_halves_of_the_training_nodes():
    seen = []

    class Watched(AdaFGL):
        def label_accuracy(self, fleet, known, asked):
            seen.append((known, asked))
            return super().label_accuracy(fleet, known, asked)

    method = Watched()
    fleet = toy_setup(method).fleet([0, 1, 2])
    for number in (1, 2):
        method.homophily(fleet.for_call(number, "begin"))
    for known, asked in seen:
        assert not (known & asked).any()
        assert torch.equal(known | asked, fleet.labels.masks[:, 0])
        assert (known.sum(1).tolist(), asked.sum(1).tolist()) == ([3, 2, 2], [3, 2, 2])
    assert not torch.equal(seen[0][0], seen[1][0])


def test_a_client_with_fewer_than_two_training_nodes_is_half_homophilous():
    fleet = fleet_of(linked([(0, 1)], [0, 1], train=[0]), linked([(0, 1)], [0, 1], train=[]), cliques())
    assert SOON.homophily(fleet.for_call(2, "begin"))[:2].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("hops", [0, 1, 3])
@pytest.mark.parametrize("sparse", [False, True])
def test_hidden_layers_are_those_of_concatenated_features(hops, sparse):
    """Projecting first and propagating then is the first layer on X, A'X, A'^2 X, ..."""
    fleet = toy_setup(SOON, sparse=sparse).fleet([0, 1, 2])
    model = Branches(fleet.features, 3, 5, hops, 0.0)
    weights = fleet.initial(model)
    matrix = propagation_matrix(fleet.graph, torch.zeros(3, 12, 12), 1.0)
    features = fleet.graph.features
    hidden = model.hidden(weights, features, matrix, 12)
    x = features if isinstance(features, torch.Tensor) else features.dense()
    smoothed = [x]
    for _ in range(hops):
        smoothed.append(matrix @ smoothed[-1])
    generator = torch.Generator().manual_seed(0)
    layers = [torch.nn.Linear(x.shape[2] * (hops + 1), 5) for _ in range(PARTS - 1)]
    by_part = [layer.weight.T.view(hops + 1, -1, 5) for layer in layers]
    weights = map_tree(torch.clone, weights)
    weights.propagated = torch.stack(by_part).permute(2, 1, 0, 3).reshape(1, x.shape[2], -1).expand(3, -1, -1)
    weights.first_bias = torch.randn(3, PARTS, 5, generator=generator)
    assert not torch.equal(hidden, model.hidden(weights, features, matrix, 12))
    hidden = model.hidden(weights, features, matrix, 12)
    for part, layer in enumerate(layers, start=1):
        wanted = functional.linear(torch.cat(smoothed, 2), layer.weight) + weights.first_bias[:, part].unsqueeze(1)
        torch.testing.assert_close(hidden[:, :, part], functional.prelu(wanted, torch.tensor([0.25])))
    own = x @ weights.own + weights.first_bias[:, 0].unsqueeze(1)
    torch.testing.assert_close(hidden[:, :, 0], functional.prelu(own, torch.tensor([0.25])))


def test_branches_are_mixed_by_homophily_or_one_is_chosen():
    homophilous, heterophilous = torch.tensor([[[0.9, 0.1]]]), torch.tensor([[[0.3, 0.7]]])

    def fused(homophily, **settings):
        return AdaFGL(**settings).fuse(torch.tensor([homophily]), homophilous, heterophilous)

    torch.testing.assert_close(fused(1.0), homophilous)
    torch.testing.assert_close(fused(0.0), heterophilous)
    torch.testing.assert_close(fused(0.25), torch.tensor([[[0.45, 0.55]]]))
    torch.testing.assert_close(fused(0.9, fusion="hard"), homophilous)
    torch.testing.assert_close(fused(0.89, fusion="hard"), heterophilous)
    torch.testing.assert_close(fused(0.89, fusion="hard", threshold=0.5), homophilous)


def test_loss_has_a_term_for_every_output_and_one_for_what_the_extractor_predicts():
    fleet = fleet_of(*toy_graphs())
    knowledge = SOON.knowledge(fleet)
    logits = SOON.branch_logits(fleet, fleet.state.branches, knowledge)
    train, real = fleet.labels.masks[:, 0], fleet.graph.real
    wanted = []
    for client in range(3):
        nodes, own = train[client], real[client]
        parts = [logits.homophilous, *logits.heterophilous]
        labels = [functional.cross_entropy(z[client, nodes], fleet.labels.classes[client, nodes]) for z in parts]
        errors = functional.mse_loss(logits.homophilous[client, own], knowledge.chances[client, own])
        wanted.append(sum(labels) + errors)
    torch.testing.assert_close(
        SOON.branch_loss(fleet, fleet.state.branches, knowledge, SOON.train_rows(fleet)),
        torch.stack(wanted),
        atol=1e-5,
        rtol=0,
    )


def everywhere(fleet, weights, knowledge, random=None):
    """The loss with all parts worked out at all nodes, as it is written in the paper."""
    model = SOON.branches(fleet)
    plain = model.hidden(weights, fleet.graph.features, knowledge.propagation, fleet.graph.nodes)
    hidden = random.dropout(plain.flatten(2), model.dropout).view_as(plain) if random else plain
    own, homophilous, heterophilous, embedding = second_layer(hidden, weights, slice(None))
    messages = signed_part(embedding, weights, fleet.graph, knowledge.similar, SOON.signed_share)
    errors = (homophilous - knowledge.chances).square().mean(2)
    labels = [fleet.cross_entropy(part) for part in (homophilous, own, heterophilous, messages)]
    return torch.stack([*labels, mean_over(errors, fleet.graph.real)]).sum(0)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("sparse", [False, True])
def test_what_the_loss_leaves_out_changes_neither_it_nor_its_gradient(dropout, sparse):
    fleet = toy_setup(SOON, dropout=dropout, sparse=sparse).fleet([0, 1, 2])
    SOON.start_client(fleet)
    knowledge, rows = SOON.knowledge(fleet), SOON.train_rows(fleet)
    generator = torch.Generator().manual_seed(0)
    start = {path: leaf + torch.randn(leaf.shape, generator=generator) for path, leaf in flatten(fleet.state.branches)}

    def gradients(loss_of):
        leaves = {path: leaf.clone().requires_grad_() for path, leaf in start.items()}
        view = fleet.for_call(2, "personalise")
        loss = loss_of(view, unflatten(leaves))
        return loss.detach(), torch.autograd.grad(loss.sum(), list(leaves.values()))

    loss, found = gradients(lambda view, weights: SOON.branch_loss(view, weights, knowledge, rows))
    whole, wanted = gradients(lambda view, weights: everywhere(view, weights, knowledge, view.random))
    torch.testing.assert_close(loss, whole)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    plain, _ = gradients(lambda view, weights: everywhere(view, weights, knowledge))
    assert torch.allclose(plain, loss, atol=1e-4) == (dropout == 0)


def test_predictions_are_means_of_probabilities():
    fleet = fleet_of(*toy_graphs())
    fleet.state.homophily = torch.tensor([1.0, 0.0, 0.5])
    knowledge = SOON.knowledge(fleet)
    logits = SOON.branch_logits(fleet, fleet.state.branches, knowledge)
    mixed = SOON.mixed(fleet)
    extractor = fleet.predict(fleet.state.model).logits.softmax(2)
    homophilous = (logits.homophilous.softmax(2) + extractor.softmax(2)) / 2
    heterophilous = sum(part.softmax(2) for part in logits.heterophilous) / 3
    torch.testing.assert_close(mixed[0], homophilous[0])
    torch.testing.assert_close(mixed[1], heterophilous[1])
    torch.testing.assert_close(mixed[2], (homophilous[2] + heterophilous[2]) / 2)
    torch.testing.assert_close(mixed.sum(2), torch.ones(3, 12))


def test_without_a_second_step_it_is_fedavg_bit_for_bit():
    settings = {"dropout": 0.5, "rounds": 4}
    ours = run_rounds(toy_setup(AdaFGL(extractor_share=1.0), **settings), rounds=4)
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=4)
    assert same(ours.server.state, wanted.server.state)
    assert all(same(ours.client(client), wanted.client(client)) for client in range(3))
    assert (ours.traffic, ours.session.evaluate(4).own.tolist()) == (
        wanted.traffic,
        wanted.session.evaluate(4).own.tolist(),
    )


def test_first_half_of_the_rounds_is_fedavgs_and_its_last_model_is_the_extractor():
    ours = run_rounds(toy_setup(AdaFGL(), dropout=0.5, rounds=4), rounds=2)
    wanted = run_rounds(toy_setup(FedAvg(), dropout=0.5, rounds=4), rounds=2)
    assert same(ours.server.state.model, wanted.server.state.model)
    assert all(same(ours.client(client).model, wanted.client(client).model) for client in range(3))
    start = map_tree(torch.clone, ours.client(0).branches)
    went_on = run_session(ours.session, first=3, rounds=2)
    assert same(went_on.server.state.model, wanted.server.state.model)
    assert all(same(went_on.client(client).model, wanted.server.state.model) for client in range(3))
    assert gap(start, went_on.client(0).branches) > 1e-3
    longer = run_rounds(toy_setup(FedAvg(), dropout=0.5, rounds=4), rounds=3)
    assert not same(longer.server.state.model, wanted.server.state.model)


@pytest.mark.parametrize(("share", "rounds", "wanted"), [(0.5, 100, 50), (0.5, 1, 1), (0.01, 4, 1), (0.9, 10, 9)])
def test_rounds_of_the_first_step(share, rounds, wanted):
    assert AdaFGL(extractor_share=share).extractor_rounds(rounds) == wanted


def test_second_step_sends_nothing_but_the_extractor_once():
    session = Session(setup := toy_setup(AdaFGL(), rounds=4), InProcess(setup))
    traffic = [session.round(number, evaluate=False).facts.traffic for number in (1, 2, 3, 4)]
    model = count_bytes(session.server.state.model)
    assert [round.down for round in traffic] == [3 * model, 3 * model, 3 * model, 0]
    assert [round.up for round in traffic] == [3 * (model + 8)] * 2 + [0, 0]


def test_a_client_that_begins_late_is_given_the_extractor_then():
    setup = toy_setup(SOON, clients=4, participation=0.5, rounds=10)
    finished = run_rounds(setup, rounds=1)
    asked = set()
    for number in range(2, 8):
        before = {client: finished.client(client) for client in range(4)}
        outcome = finished.session.round(number)
        new = set(outcome.facts.participants) - asked
        asked |= new
        assert outcome.facts.traffic.down == len(new) * count_bytes(finished.server.state.model)
        for client in range(4):
            assert bool(finished.client(client).personal) == (client in asked)
            if client not in asked:
                assert same(before[client], finished.client(client))
    assert asked == {0, 1, 2, 3}
    assert finished.server.state.personal.all()


def test_each_client_predicts_with_what_it_has():
    setup = toy_setup(SOON, clients=4, participation=0.5, rounds=10)
    finished = run_rounds(setup, rounds=2)
    begun = finished.session.participants(2)
    for fleet in finished.engine.fleets:
        logits, plain = SOON.logits(fleet), fleet.predict(fleet.state.model).logits
        for row, client in enumerate(fleet.clients):
            assert torch.equal(logits[row], plain[row]) == (client not in begun)


def test_scores_are_those_of_the_mixed_branches():
    finished = run_rounds(toy_setup(SOON, epochs=20), rounds=3)
    (fleet,) = finished.engine.fleets
    wanted = fleet.count_correct(SOON.mixed(fleet))
    assert torch.equal(finished.session.evaluate(3).own, wanted)
    assert not torch.equal(wanted, fleet.count_correct(fleet.predict(fleet.state.model).logits))


def test_knowledge_is_made_once_from_the_extractor():
    made = []

    class Watched(AdaFGL):
        def make_knowledge(self, fleet):
            made.append(map_tree(torch.clone, select_clients(fleet.state.model, 0)))
            return super().make_knowledge(fleet)

    session = Session(setup := toy_setup(Watched(extractor_share=0.5), rounds=6), InProcess(setup))
    for number in range(1, 7):
        session.round(number)
    assert len(made) == 1
    assert same(made[0], session.server.state.model)


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_resumed_in_the_second_step_is_unbroken(optimizer):
    setup = toy_setup(AdaFGL(), dropout=0.5, rounds=6, optimizer=optimizer)
    for first in (2, 4):  # before and after the second step has begun
        unbroken, part = run_rounds(setup, rounds=6), run_rounds(setup, rounds=first)
        session = Session(setup, InProcess(setup))
        session.restore(part.session.state())
        resumed = run_session(session, first=first + 1, rounds=6 - first)
        assert same(unbroken.server.state, resumed.server.state)
        assert all(same(unbroken.client(client), resumed.client(client)) for client in range(3))


def test_every_field_is_there_from_the_first_round():
    finished = run_rounds(toy_setup(AdaFGL(), rounds=4), rounds=1)
    before = [path for path, _ in flatten(finished.client(0))]
    assert [path for path, _ in flatten(run_session(finished.session, 2, 3).client(0))] == before


def test_clients_are_scored_on_other_graphs_than_they_train_on():
    setup = toy_setup(SOON, rounds=4)
    others = [toy_graph(graph.nodes + 1, seed=7) for graph in setup.graphs]
    finished = run_rounds(replace(setup, scoring=others), rounds=3)
    (fleet,) = finished.engine.fleets
    correct = finished.session.evaluate(3).own
    wanted = fleet.on(fleet.scoring)
    assert torch.equal(correct, wanted.count_correct(SOON.mixed(wanted)))
    assert SOON.mixed(wanted).shape[1] == 13


def test_a_client_of_too_many_nodes_is_refused():
    with pytest.raises(InputError, match=r"Client 0 has 12 nodes.*max_dense_nodes, which is 11"):
        run_rounds(toy_setup(AdaFGL(max_dense_nodes=11)), rounds=1)
    run_rounds(toy_setup(AdaFGL(max_dense_nodes=12)), rounds=1)
    run_rounds(toy_setup(AdaFGL(max_dense_nodes=1, extractor_share=1.0)), rounds=1)  # it compares no nodes


def test_models_of_the_second_step_are_not_a_model_alone():
    assert AdaFGL(extractor_share=1.0).model_alone()
    assert not AdaFGL().model_alone()


@pytest.mark.parametrize("homophily", [0.0, 1.0])
def test_no_gradient_of_one_branch_reaches_the_other(homophily):
    """So training both and choosing one is training that one alone."""
    fleet = fleet_of(*toy_graphs())
    weights = map_tree(lambda leaf: leaf.clone().requires_grad_(), fleet.state.branches)
    logits = SOON.branch_logits(fleet, weights, SOON.knowledge(fleet))
    loss = fleet.cross_entropy(logits.homophilous if homophily else logits.heterophilous[2]).sum()
    gradient = torch.autograd.grad(loss, weights.second)[0]
    moved = [bool(gradient[:, part].any()) for part in range(PARTS)]
    assert moved == ([False, True, False, False] if homophily else [False, False, False, True])


def test_state_of_both_steps_is_kept_apart():
    finished = run_rounds(toy_setup(SOON, rounds=4), rounds=3)
    assert finished.client(0).optimizer.keys() == {"branches", "model"}
    assert isinstance(finished.client(0).branches, Tree)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("extractor_share", 0.0),
        ("extractor_share", 1.1),
        ("adjacency", -0.1),
        ("signed_share", 1.5),
        ("hops", -1),
        ("similar", 2.0),
        ("fusion", "none"),
        ("label_share", 2.0),
        ("max_dense_nodes", 0),
    ],
)
def test_values_that_make_no_sense_are_refused(field, value):
    with pytest.raises(InputError, match=field):
        AdaFGL(**{field: value})
