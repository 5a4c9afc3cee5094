"""FedProto: cases worked out by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.federation.clients import Request
from graft.methods.fedproto import FedProto
from graft.methods.fedproto.prototypes import class_means, prototype_loss
from graft.methods.fedtgp import FedTGP
from graft.methods.local import Local
from graft.models.gcn import GCN
from graft.tensors.trees import flatten, select_clients
from tests.methods.prototypes import hand_graph, known, mirror_setup
from tests.toy import CLASSES, gap, run_rounds, same, toy_graph, toy_graphs, toy_setup

both = pytest.mark.parametrize("method", [FedProto, FedTGP])

# Class 0: three nodes around (1, 0) at client 0, one at (0, 2) at client 1; class 1 at client 1 only; no class 2.
OWNERS = [
    hand_graph([(0, 1), (1, 1), (2, -2)], [0, 0, 0], 3),
    hand_graph([(0, 2), (5, 5)], [0, 1], 3),
]


@pytest.mark.parametrize(("aggregation", "wanted"), [("uniform", (0.5, 1.0)), ("count", (0.75, 0.5))])
def test_prototypes_of_owners_are_averaged(aggregation, wanted):
    finished = run_rounds(mirror_setup(FedProto(aggregation=aggregation), OWNERS), rounds=1)
    state = finished.server.state.known
    assert tuple(state.prototypes[0].tolist()) == wanted
    assert state.prototypes[1].tolist() == [5, 5]  # not dragged towards the origin by the client without it
    assert state.present.tolist() == [True, True, False]


def test_client_sends_means_and_counts_of_its_training_nodes():
    graph = hand_graph([(0, 1), (2, 3), (9, 9), (4, 4)], [0, 0, 0, 2], 3, train=[1, 1, 0, 1])
    engine = InProcess(mirror_setup(FedProto(), [graph, larger_client()]))
    nothing = select_clients(known([[0.0, 0.0]] * 3, [False] * 3), 0)
    reply = engine.ask(Request("train", 1, [0, 1], nothing))[0]
    assert reply.prototypes.tolist() == [[1, 2], [0, 0], [4, 4]]
    assert reply.counts.tolist() == [2, 0, 1]


def larger_client():
    """A client that is larger, so that the other one is padded."""
    return hand_graph([(1, 1)] * 6, [0, 1, 2, 0, 1, 2], 3)


def test_penalty_of_one_node_by_hand():
    fleet = mirror_setup(FedProto(), [hand_graph([(1, 1)], [0], 2)]).fleet([0])
    weights, origin = fleet.initial(), known([[0.0, 0.0], [9.0, 9.0]])
    free, pulled = (FedProto(lam=lam).loss(fleet, weights, origin) for lam in (0.0, 2.0))
    assert float(pulled - free) == pytest.approx(2.0, abs=1e-6)
    assert float(prototype_loss(fleet, torch.tensor([[[1.0, 3.0]]]), origin)) == 5.0


def test_pull_is_one_mean_over_nodes_or_a_sum_of_means_over_classes():
    fleet = mirror_setup(FedProto(), [hand_graph([(1, 1), (3, 3), (2, 2)], [0, 0, 1], 3)]).fleet([0])
    embedding, origin = fleet.predict(fleet.initial()).embedding, known([[0.0, 0.0]] * 3)
    assert float(FedProto().pull(fleet, embedding, origin)) == pytest.approx((1 + 9 + 4) / 3)
    assert float(FedProto(per_class=True).pull(fleet, embedding, origin)) == pytest.approx((1 + 9) / 2 + 4)


@pytest.mark.parametrize("per_class", [False, True])
def test_class_without_prototype_gives_no_gradient(per_class):
    fleet = mirror_setup(FedProto(), [hand_graph([(1, 1), (3, 3)], [0, 1], 2)]).fleet([0])
    embedding = fleet.predict(fleet.initial()).embedding.requires_grad_()

    def gradient(*present):
        prototypes = known([[0.0, 0.0], [0.0, 0.0]], list(present))
        loss = FedProto(per_class=per_class).pull(fleet, embedding, prototypes)
        return torch.autograd.grad(loss.sum(), embedding)[0][0].tolist()

    assert gradient(True, False) == [[1, 1], [0, 0]]  # and a mean over the one node that is pulled
    assert gradient(False, False) == [[0, 0], [0, 0]]
    assert gradient(True, True)[1] != [0, 0]


def test_client_without_a_class_neither_sends_it_nor_is_pulled_by_it():
    fleet = InProcess(toy_setup(FedProto(), graphs=toy_graphs())).fleets[0]
    reply = class_means(fleet, fleet.predict(fleet.state.model))
    assert (reply.counts > 0).tolist() == [[True] * 3, [True] * 3, [True, True, False]]
    weights, state = fleet.state.model, known([[0.5] * 8] * 3)
    state = {name: leaf.expand(3, *leaf.shape[1:]) for name, leaf in state.items()}
    moved = {**state, "prototypes": state["prototypes"] + torch.tensor([0.0, 0.0, 1.0])[:, None]}
    change = FedProto().loss(fleet, weights, moved) - FedProto().loss(fleet, weights, state)
    assert change[2] == 0
    assert (change[:2].abs() > 1e-3).all()


def test_padding_nodes_are_in_no_mean():
    fleet = InProcess(toy_setup(FedProto())).fleets[0]
    output = fleet.predict(fleet.state.model)
    wild = output.embedding.masked_fill(~fleet.graph.real.unsqueeze(2), 1e9)
    nowhere = {name: leaf.expand(3, *leaf.shape[1:]) for name, leaf in known([[0.0] * 8] * 3).items()}
    assert same(class_means(fleet, output), class_means(fleet, output._replace(embedding=wild)))
    assert torch.equal(
        *(prototype_loss(fleet, fleet.at_train_nodes(part), nowhere) for part in (output.embedding, wild))
    )
    assert not fleet.graph.real.all()


@both
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_without_pull_it_is_local_training_bit_for_bit(method, dropout):
    settings = {"models": "gcn,sage", "dropout": dropout}
    wanted = run_rounds(toy_setup(Local(), **settings), rounds=3)
    ours = run_rounds(toy_setup(method(lam=0.0), **settings), rounds=3)
    pulled = run_rounds(toy_setup(method(), **settings), rounds=3)
    for client in range(3):
        assert same(ours.client(client), wanted.client(client))
        assert not same(pulled.client(client), wanted.client(client))


@both
def test_first_round_knows_no_prototypes_and_is_local_training(method):
    first, local = (run_rounds(toy_setup(kind), rounds=1) for kind in (method(lam=10.0), Local()))
    assert gap(first.client(0), local.client(0)) == 0
    second, local = (run_rounds(toy_setup(kind), rounds=2) for kind in (method(lam=10.0), Local()))
    assert gap(second.client(0).model, local.client(0).model) > 1e-4


def test_one_client_that_does_not_train_hears_itself_and_is_pulled_by_its_variance():
    setup = toy_setup(FedProto(), clients=1, epochs=0)
    finished = run_rounds(setup, rounds=1)
    fleet, graph = finished.engine.fleets[0], setup.graphs[0]
    embedding = fleet.predict(fleet.state.model).embedding[0]
    state, variances = finished.server.state.known, []
    for label in range(CLASSES):
        mine = embedding[torch.from_numpy(graph.train & (graph.y == label))]
        torch.testing.assert_close(state.prototypes[label], mine.mean(0))
        variances.append((mine - mine.mean(0)).square().sum())
    pull = FedProto().pull(
        fleet, fleet.at_train_nodes(embedding.unsqueeze(0)), {name: leaf.unsqueeze(0) for name, leaf in state.items()}
    )
    assert float(pull) == pytest.approx(float(sum(variances)) / (graph.train.sum() * 8), rel=1e-5)
    assert float(pull) > 0


@both
@pytest.mark.parametrize("models", [["gcn"] * 3, ["gcn", "sage", "gat"]])
def test_order_of_clients_does_not_matter(method, models):
    graphs = toy_graphs()

    def after(order):
        picked = {"models": [models[client] for client in order], "graphs": [graphs[client] for client in order]}
        return run_rounds(toy_setup(method(), **picked), rounds=2).server.state.known

    assert gap(after([0, 1, 2]), after([2, 0, 1])) < 1e-5
    assert gap(after([0, 1, 2]), after([0, 1])) > 1e-4


def test_class_that_nobody_sends_in_a_round_keeps_its_prototype():
    graphs = [hand_graph([(1, 1)], [0], 2), hand_graph([(3, 5)], [1], 2)]
    setup = replace(mirror_setup(FedProto(), graphs), participation=0.5)
    finished = run_rounds(setup, rounds=8)  # one client a round
    assert finished.server.state.known.prototypes.tolist() == [[1, 1], [3, 5]]
    assert run_rounds(setup, rounds=1).server.state.known.present.sum() == 1


def test_pull_draws_training_nodes_to_the_prototypes():
    def spread_of(lam):
        finished = run_rounds(toy_setup(FedProto(lam=lam), epochs=10), rounds=10)
        fleet, state = finished.engine.fleets[0], finished.server.state.known
        received = {name: leaf.expand(3, *leaf.shape) for name, leaf in state.items()}
        return prototype_loss(fleet, fleet.at_train_nodes(fleet.predict(fleet.state.model).embedding), received).mean()

    assert spread_of(10.0) < 0.5 * spread_of(0.0)


NEAREST = [
    hand_graph([(0, 1), (6, 1), (1, 0), (5, 1), (9, 9)], [0, 1, 0, 1, 2], 3, train=[1, 1, 0, 0, 0]),
    hand_graph([(0, 2), (6, 2), (2, 2)], [0, 1, 1], 3, train=[1, 1, 0]),
]


@both
def test_classifier_answers_unless_prototypes_are_asked_for(method):
    finished = run_rounds(mirror_setup(method(), NEAREST), rounds=1)
    correct = finished.engine.ask(Request("score", 1, [0, 1])).correct
    assert correct[:, 0, 2].tolist() == [1, 0]  # the mirror's classifier says 0 of everything


def test_nearest_prototype_answers_among_the_classes_that_have_one():
    finished = run_rounds(mirror_setup(FedProto(inference="prototype"), NEAREST), rounds=1)
    fleet = finished.engine.fleets[0]
    assert fleet.state.known.prototypes[0].tolist() == [[0, 1.5], [6, 1.5], [0, 0]]
    said = FedProto(inference="prototype").logits(fleet).argmax(2)
    # Absent class 2 stands at the origin in the message; read as a prototype it would take (1, 0).
    assert said[0].tolist() == [0, 1, 0, 1, 1]
    assert said[1, :3].tolist() == [0, 1, 0]
    correct = finished.engine.ask(Request("score", 1, [0, 1])).correct
    assert correct[:, 0, 2].tolist() == [2, 0]


@both
def test_client_that_has_heard_nothing_answers_by_its_classifier(method):
    engine = InProcess(toy_setup(method(inference="prototype")))
    plain = InProcess(toy_setup(method()))
    asked = Request("score", 1, [0, 1, 2])
    assert torch.equal(engine.ask(asked).correct, plain.ask(asked).correct)
    fleet = engine.fleets[0]
    assert torch.equal(method(inference="prototype").logits(fleet), fleet.predict(fleet.state.model).logits)


@both
def test_inference_does_not_change_training_and_costs_one_more_message(method):
    head = run_rounds(toy_setup(method(), models="gcn,sage", dropout=0.5), rounds=3)
    near = run_rounds(toy_setup(method(inference="prototype"), models="gcn,sage", dropout=0.5), rounds=3)
    assert same(head.server.state, near.server.state)
    for client in range(3):
        assert same(head.client(client).model, near.client(client).model)
        assert same(near.client(client).known, near.server.state.known)
    down, up = 4 * 3 * 8 + 3, 4 * 3 * 8 + 8 * 3
    assert (head.traffic.down, head.traffic.up) == (3 * 3 * down, 3 * 3 * up)
    assert (near.traffic.down, near.traffic.up) == (2 * 3 * 3 * down, 3 * 3 * up)


@both
def test_prototype_inference_is_the_same_alone_in_processes_and_resumed(method):
    setup = toy_setup(method(inference="prototype"), clients=4, models="gcn,sage", dropout=0.5, participation=0.5)
    whole = run_rounds(setup, rounds=4)
    asked = Request("score", 4, [0, 1, 2, 3])
    half, engine = run_rounds(setup, rounds=2), InProcess(setup)
    engine.restore(half.engine.state())
    rest = run_rounds(setup, rounds=2, engine=engine, first=3, state=half.server.state)
    assert all(same(whole.client(client), rest.client(client)) for client in range(4))
    workers = Loopback(setup)
    try:
        for other in (InProcess(setup, alone=True), workers):
            finished = run_rounds(setup, rounds=4, engine=other)
            assert torch.equal(other.ask(asked).correct, whole.engine.ask(asked).correct)
            assert gap(finished.client(0), whole.client(0)) < 1e-5
    finally:
        workers.close()


@both
def test_messages_have_the_shape_of_the_prototypes_whatever_the_models(method):
    setup = toy_setup(method(), clients=5, models="architectures")
    engine, seen = InProcess(setup), []
    ask = engine.ask
    engine.ask = lambda request: seen.append((request.message, ask(request))) or seen[-1][1]
    run_rounds(setup, rounds=2, engine=engine)
    for message, replies in seen:
        assert {path: tuple(leaf.shape) for path, leaf in flatten(message)} == {"prototypes": (3, 8), "present": (3,)}
        assert {path: tuple(leaf.shape) for path, leaf in flatten(replies[0])} == {"prototypes": (3, 8), "counts": (3,)}


class Logits(nn.Module):
    def __init__(self, classes=CLASSES):
        super().__init__()
        self.only = nn.Linear(6, classes)

    def forward(self, x, edge_index):  # noqa: ARG002
        return self.only(x)


@both
def test_module_that_gives_only_logits_has_prototypes_of_logits(method):
    with torch.random.fork_rng():
        setup = toy_setup(method(inference="prototype"), 2, [Logits(), Logits()])
    finished = run_rounds(setup, rounds=2)
    assert finished.server.state.known.prototypes.shape == (3, 3)
    assert finished.engine.ask(Request("score", 2, [0, 1])).correct.shape == (2, 1, 3)


@both
@pytest.mark.parametrize(
    ("models", "found"),
    [
        ([GCN(6, 3, width=8), GCN(6, 3, width=4)], "gcn 8 and 3, gcn 4 and 3"),
        ([GCN(6, 3, width=8), Logits()], "gcn 8 and 3, own 3 and 3"),
        ([GCN(6, 3, width=8), GCN(6, 4, width=8)], "gcn 8 and 3, gcn 8 and 4"),
    ],
)
def test_models_of_different_width_are_refused(method, models, found):
    with pytest.raises(InputError, match=f"{method.__name__} compares embeddings.*not {found}"):
        run_rounds(toy_setup(method(), models=models, graphs=[toy_graph(9), toy_graph(8)]), rounds=1)


@both
def test_client_without_training_nodes_sends_nothing_that_counts(method):
    graphs = toy_graphs()
    bare = replace(graphs[1], train=graphs[1].train & False)
    with_it = run_rounds(toy_setup(method(), graphs=[graphs[0], bare]), rounds=2)
    without = run_rounds(toy_setup(method(), graphs=[graphs[0]]), rounds=2)
    assert gap(with_it.server.state, without.server.state) < 1e-6
    assert all(leaf.isfinite().all() for _, leaf in flatten(with_it.client(1)))


def test_norm_of_the_prototypes_is_recorded():
    finished = run_rounds(mirror_setup(FedProto(), [hand_graph([(3, 4), (0, 1)], [0, 1], 3)]), rounds=1)
    assert float(finished.records["prototype_norm"]) == 3.0  # of 5 and 1; the absent class has none
