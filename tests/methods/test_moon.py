"""MOON: cases worked out by hand."""

import math

import pytest
import torch

from graft.errors import InputError
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.methods.moon import MOON, unit
from graft.tensors.trees import Tree, map_tree
from tests.methods.prototypes import hand_graph, mirror_setup
from tests.toy import gap, random_weights, run_rounds, same, toy_setup


def contrast(method, embedding, ahead, behind):
    """The loss of one node whose references are given."""
    points = [torch.tensor([[one]]) for one in (embedding, ahead, behind)]
    return float(method.contrast(points[0], unit(points[2]) - unit(points[1])))


def test_contrast_by_hand():
    assert contrast(MOON(), [2.0, 0.0], [3.0, 0.0], [0.0, 5.0]) == pytest.approx(0.126928, abs=1e-6)
    assert contrast(MOON(), [2.0, 0.0], [1.0, 1.0], [1.0, 1.0]) == pytest.approx(math.log(2), abs=1e-6)
    assert contrast(MOON(temperature=1.0), [2.0, 0.0], [3.0, 0.0], [0.0, 5.0]) == pytest.approx(
        math.log(1 + math.exp(-1)), abs=1e-6
    )


def test_contrast_is_the_papers_formula():
    points = torch.randn(3, 1, 5, 4, generator=torch.Generator().manual_seed(0))
    a, b = (torch.cosine_similarity(points[0], points[one], dim=2) / 0.5 for one in (1, 2))
    wanted = -(a.exp() / (a.exp() + b.exp())).log()
    torch.testing.assert_close(MOON().contrast(points[0], unit(points[2]) - unit(points[1])), wanted)


def mirrors(nodes="all", trained=True):
    """Two clients of two and one nodes, whose last models say the opposite of the received one."""
    graphs = [hand_graph([[1, 0], [0, 2]], [0, 1], 2, train=[True, False]), hand_graph([[3, 4]], [1], 2)]
    setup = mirror_setup(MOON(nodes=nodes), graphs)
    fleet = setup.fleet([0, 1])
    setup.method.start_client(fleet)
    received = map_tree(torch.clone, fleet.state.model)
    fleet.state.model = Tree(received, scale=-received.scale)
    fleet.state.trained = torch.full((2,), trained)
    return setup.method, fleet, received


@pytest.mark.parametrize("nodes", ["all", "train"])
def test_embeddings_of_models_are_contrasted_at_real_nodes_alone(nodes):
    method, fleet, received = mirrors(nodes)
    backwards = method.backwards(fleet, received)
    plain = fleet.cross_entropy(fleet.forward(received).logits)
    # Every node lies along the received model's embedding, and its last embedding points the other way: cosines 1, -1.
    extra = method.contrastive_loss(fleet, received, backwards) - plain
    torch.testing.assert_close(extra, torch.full((2,), math.log(1 + math.exp(-4))), atol=1e-6, rtol=0)
    backwards[0, 1] = 0  # the second node of the first client, which is not a training node, is contrasted no more
    first = float((method.contrastive_loss(fleet, received, backwards) - plain)[0])
    quiet, even = math.log(1 + math.exp(-4)), math.log(2)
    assert first == pytest.approx((quiet + even) / 2 if nodes == "all" else quiet, abs=1e-6)


def test_client_that_never_trained_has_nothing_to_contrast():
    method, fleet, received = mirrors(trained=False)
    assert not method.backwards(fleet, received).any()
    method, fleet, received = mirrors(trained=True)
    assert method.backwards(fleet, received).any()


@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.usefixtures("asked_about_all")
def test_without_contrast_it_is_fedavg_bit_for_bit(model, optimizer):
    settings = {"models": model, "optimizer": optimizer, "dropout": 0.5, "learning_rate": 0.1}
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=3)
    ours = run_rounds(toy_setup(MOON(mu=0.0), **settings), rounds=3)
    assert same(ours.server.state, wanted.server.state)
    assert all(same(ours.client(client).model, wanted.client(client).model) for client in range(3))
    contrasted = run_rounds(toy_setup(MOON(mu=1.0), **settings), rounds=3)
    assert not same(contrasted.server.state, wanted.server.state)


@pytest.mark.parametrize("epochs", [1, 5])
@pytest.mark.parametrize("mu", [1.0, 1000.0])
@pytest.mark.usefixtures("asked_about_all")
def test_first_round_is_fedavgs_bit_for_bit_and_the_second_is_not(mu, epochs):
    def after(method, rounds):
        return run_rounds(toy_setup(method, epochs=epochs, dropout=0.5), rounds=rounds).server.state

    assert same(after(MOON(mu=mu), 1), after(FedAvg(), 1))
    assert not same(after(MOON(mu=mu), 2), after(FedAvg(), 2))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.usefixtures("asked_about_all")
def test_one_client_is_local_training_bit_for_bit(dropout):
    settings = {"clients": 1, "dropout": dropout, "epochs": 4}
    ours = run_rounds(toy_setup(MOON(mu=5.0), **settings), rounds=4)
    assert same(ours.client(0).model, run_rounds(toy_setup(Local(), **settings), rounds=4).client(0).model)


def test_equal_references_give_no_gradient_and_different_ones_do():
    points = torch.randn(3, 2, 4, 3, generator=torch.Generator().manual_seed(1))
    embedding = points[0].clone().requires_grad_()

    def gradient(ahead, behind):
        loss = MOON().contrast(embedding, unit(behind) - unit(ahead)).sum()
        return torch.autograd.grad(loss, embedding)[0]

    assert not gradient(points[1], points[1]).any()
    assert gradient(points[1], points[2]).any()


def test_no_gradient_reaches_the_references():
    setup = toy_setup(MOON())
    fleet = setup.fleet([0, 1, 2])
    setup.method.start_client(fleet)
    fleet.state.model = random_weights(setup.models[0], 3)
    fleet.state.trained = torch.ones(3, dtype=torch.bool)
    received = map_tree(lambda leaf: leaf.clone().requires_grad_(), random_weights(setup.models[0], 3, seed=1))
    backwards = setup.method.backwards(fleet, received)
    assert backwards.any()
    assert not backwards.requires_grad


def test_embedding_of_zeros_has_no_direction():
    nothing = torch.zeros(1, 1, 3, requires_grad=True)
    pushed = nothing.relu()  # as the last layer of an encoder does
    loss = MOON().contrast(pushed, torch.ones(1, 1, 3)).sum()
    assert float(loss.detach()) == pytest.approx(math.log(2))
    assert not torch.autograd.grad(loss, nothing)[0].any()


def test_last_model_is_that_of_the_last_round_in_which_the_client_trained():
    setup = toy_setup(MOON(), participation=0.34)
    before = run_rounds(setup, rounds=1)
    (asked,) = (client for client in range(3) if bool(before.client(client).trained))
    seen = []

    class Watched(MOON):
        def backwards(self, fleet, received):
            seen.append((fleet.clients, map_tree(torch.clone, fleet.state.model)))
            return super().backwards(fleet, received)

    run_rounds(toy_setup(Watched(), participation=0.34), rounds=12)
    again = next(place for place, (clients, _) in enumerate(seen) if place > 0 and clients == [asked])
    kept = map_tree(lambda leaf: leaf[0], seen[again][1])
    assert same(kept, before.client(asked).model)
    assert gap(kept, map_tree(lambda leaf: leaf[0], seen[0][1])) > 1e-3  # and not the model it started from


def test_messages_are_those_of_fedavg():
    ours, wanted = run_rounds(toy_setup(MOON())), run_rounds(toy_setup(FedAvg()))
    assert (ours.traffic.up, ours.traffic.down) == (wanted.traffic.up, wanted.traffic.down)


@pytest.mark.parametrize(("field", "value"), [("mu", -1.0), ("mu", float("inf")), ("temperature", 0.0)])
def test_values_that_make_no_sense_are_refused(field, value):
    with pytest.raises(InputError, match=field):
        MOON(**{field: value})
