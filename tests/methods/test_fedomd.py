"""FedOMD: cases worked out by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import graft
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.experiments.experiment import make_experiment
from graft.federation.clients import Request
from graft.federation.session import Session
from graft.methods.fedavg import FedAvg
from graft.methods.fedomd import FedOMD, central_moments, discrepancy, hidden_of, moments_around
from graft.models.ortho_gcn import OrthoGCN, departure
from graft.tensors.randomness import Stream
from graft.tensors.trees import broadcast_tree, count_bytes, flatten, map_tree
from tests.methods.prototypes import hand_graph, mirror_setup
from tests.toy import CLASSES, gap, random_weights, run_rounds, same, toy_graph, toy_setup

# One feature each: {0, 1} at client 0 and {1, 1, 4} at client 1.
TWO = [hand_graph([(0,), (1,)], [0, 1], 2), hand_graph([(1,), (1,), (4,)], [0, 1, 0], 2)]
POOLED = [1.4, 1.84, 2.928, 9.9232, 22.68096]  # mean and central moments of {0, 1, 1, 1, 4}


class Watched(InProcess):
    """An engine that keeps every request and what came back."""

    def __init__(self, setup, **settings):
        super().__init__(setup, **settings)
        self.seen = []

    def ask(self, request):
        replies = super().ask(request)
        self.seen.append((request, replies))
        return replies

    @property
    def train_subset(self):
        return [request.step for request, _ in self.seen]


def ortho_setup(method=None, **settings):
    return toy_setup(FedOMD() if method is None else method, **({"models": "ortho_gcn", "epochs": 1} | settings))


def watch(setup, rounds=1):
    engine = Watched(setup)
    return run_rounds(setup, rounds=rounds, engine=engine), engine


# Moments -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (FedOMD(span_from="fixed", span=1.0), (37.95966, 18.29215)),
        (FedOMD(span_from="fixed", span=4.0), (0.430793, 0.202209)),
        (FedOMD(), (0.430793, 0.202209)),  # the features go from 0 to 4
    ],
)
def test_two_clients_by_hand(method, wanted):
    finished, engine = watch(mirror_setup(method, TWO))
    assert engine.train_subset == ["means", "moments", "match"]
    (_, means), (center, moments), (target, _) = engine.seen
    assert means.stacked().mean.flatten().tolist() == [0.5, 2.0]
    assert means.size.tolist() == [2, 3]
    found = [center.message.mean.flatten(), target.message.moments.flatten()]
    torch.testing.assert_close(torch.cat(found), torch.tensor(POOLED))
    torch.testing.assert_close(moments.moments[0].flatten()[:2], torch.tensor([1.06, -1.404]))  # around 1.4, not 0.5
    torch.testing.assert_close(finished.records["discrepancy"], torch.tensor(wanted), atol=1e-5, rtol=1e-5)
    own = finished.client(0).own.flatten()
    torch.testing.assert_close(own, torch.tensor([0.5, 0.25, 0.0, 0.0625, 0.0]))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("models", ["ortho_gcn", "ortho_gcn5", "gcn"])
def test_global_moments_are_those_of_all_hidden_features_together(models, dropout):
    setup = ortho_setup(FedOMD(), models=models, dropout=dropout)
    engine = Watched(setup)
    fleet = engine.fleets[0]
    start = random_weights(fleet.model, seed=2)  # biases that are not 0, so that padding nodes say something
    sent = map_tree(lambda leaf: leaf[0], start)
    run_rounds(setup, rounds=1, engine=engine, state=map_tree(torch.clone, {"model": sent}))
    fleet = fleet.with_random(Stream(fleet.state.seeds))
    hidden, _ = hidden_of(fleet, broadcast_tree(sent, 3, fleet.device))
    assert len(hidden) == {"ortho_gcn": 3, "ortho_gcn5": 6, "gcn": 1}[models]
    assert not fleet.graph.real.all()
    center, target = engine.seen[1][0].message, engine.seen[2][0].message
    for layer, features in enumerate(hidden):
        together = features[fleet.graph.real].double()
        mean = together.mean(0)
        torch.testing.assert_close(center.mean[layer].double(), mean, atol=1e-6, rtol=1e-6)
        for order in range(2, 6):
            wanted = (together - mean).pow(order).mean(0)
            found = target.moments[layer, order - 2].double()
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)
        assert float(center.span[layer]) == pytest.approx(float(together.max() - together.min()))
    assert (features.mean((0, 1)) - center.mean[-1]).abs().max() > 1e-4  # padding nodes would have changed it


def test_moments_around_another_point_are_exact():
    features = torch.rand(2, 9, 4, generator=torch.Generator().manual_seed(1)).double()
    own = central_moments(features, torch.ones(2, 9).bool(), 5).unsqueeze(1)
    point = torch.full((2, 1, 4), 0.3, dtype=torch.float64)
    wanted = torch.stack([(features - 0.3).pow(order).mean(1) for order in range(2, 6)], dim=1)
    torch.testing.assert_close(moments_around(point, own).squeeze(1), wanted, atol=1e-12, rtol=0)
    assert torch.equal(moments_around(own[:, :, 0], own), own[:, :, 1:])


def test_padding_nodes_are_in_no_moment():
    fleet = InProcess(ortho_setup()).fleets[0]
    features = torch.rand(3, 12, 4, generator=torch.Generator().manual_seed(0))
    wild = features.masked_fill(~fleet.graph.real.unsqueeze(2), 1e6)
    assert torch.equal(*(central_moments(one, fleet.graph.real, 5) for one in (features, wild)))
    torch.testing.assert_close(central_moments(wild, fleet.graph.real, 3)[2, 2], third_moment(features[2, :7]))


def third_moment(features):
    return (features - features.mean(0)).pow(3).mean(0)


def test_mean_of_all_clients_counts_nodes_whatever_votes_count():
    finished, engine = watch(mirror_setup(FedOMD(), TWO, weight_by="uniform"))
    assert float(engine.seen[1][0].message.mean) == pytest.approx(1.4)
    assert engine.seen[2][1].weight.tolist() == [1, 1]
    assert float(finished.client(0).mean) == pytest.approx(1.4)


# The discrepancy -----------------------------------------------------------------------------------------------------


def some_moments(features, order=5):
    return central_moments(features, torch.ones(features.shape[:2]).bool(), order).unsqueeze(1)


def some_features(seed=0, clients=2):
    return torch.rand(clients, 10, 4, generator=torch.Generator().manual_seed(seed)).double()


def test_client_has_no_discrepancy_with_itself_and_feels_none():
    features = some_features().requires_grad_()
    own = some_moments(features)
    itself = discrepancy(own, own.detach(), torch.ones(2, 1))
    assert itself.tolist() == [0, 0]
    assert not torch.autograd.grad(itself.sum(), features)[0].any()
    other = discrepancy(some_moments(features), some_moments(some_features(1)), torch.ones(2, 1))
    assert (other > 0.1).all()
    assert torch.autograd.grad(other.sum(), features)[0].any()


def test_shift_changes_the_first_order_alone():
    features, span = some_features(), torch.ones(2, 1)
    own, moved = some_moments(features), some_moments(features + torch.tensor([0.5, 0, 0, 0]))
    torch.testing.assert_close(moved[:, :, 1:], own[:, :, 1:], atol=1e-12, rtol=0)
    torch.testing.assert_close(discrepancy(moved, own, span), torch.full((2,), 0.5).double(), atol=1e-6, rtol=0)
    # Of all clients together every moment changes.
    pooled, before = (
        some_moments(torch.cat(tuple(one)).unsqueeze(0)) for one in ((features[0] + 0.5, features[1]), features)
    )
    assert ((pooled - before).abs().amax(3) > 1e-4).all()


def test_scale_of_features_and_span_together_does_not_matter():
    features, others, span = some_features(), some_features(1), torch.full((2, 1), 0.8)
    before = discrepancy(some_moments(features), some_moments(others), span)
    after = discrepancy(some_moments(7 * features), some_moments(7 * others), 7 * span)
    torch.testing.assert_close(before, after, atol=1e-9, rtol=1e-6)
    assert (discrepancy(some_moments(7 * features), some_moments(7 * others), span) > 7 * before).all()


def test_higher_orders_add_to_the_discrepancy():
    one, other = some_features(), some_features(1)
    parts = [discrepancy(some_moments(one, order), some_moments(other, order), torch.ones(2, 1)) for order in (2, 3, 5)]
    assert (parts[0] < parts[1]).all()
    assert (parts[1] < parts[2]).all()
    _, engine = watch(ortho_setup(FedOMD(order=3)))
    assert engine.seen[2][0].message.moments.shape == (3, 2, 8)


def test_layer_that_says_the_same_of_all_nodes_is_not_divided_by_zero():
    graphs = [hand_graph([(2,), (2,)], [0, 1], 2), hand_graph([(2,), (2,), (2,)], [0, 1, 0], 2)]
    finished = run_rounds(mirror_setup(FedOMD(), graphs), rounds=1)
    assert finished.records["discrepancy"].tolist() == [0, 0]
    assert float(finished.client(0).span) == pytest.approx(1e-6)


# The loss ------------------------------------------------------------------------------------------------------------


def last_losses(setup):
    """Every client's loss at the end of a first round."""
    return Session(setup, InProcess(setup)).round(1, evaluate=False).tensors.losses


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_one_client_alone_has_no_discrepancy_even_under_dropout(dropout):
    """The first epoch drops what was dropped for the statistics."""
    losses = [last_losses(ortho_setup(FedOMD(beta=beta), clients=1, dropout=dropout)) for beta in (1.0, 10.0)]
    assert torch.equal(*losses)
    several = [last_losses(ortho_setup(FedOMD(beta=beta), clients=2, dropout=dropout)) for beta in (1.0, 10.0)]
    assert (several[0] < several[1]).all()


@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_one_client_alone_trains_its_network_with_orthogonality_only(alpha):
    with_it, without = (run_rounds(ortho_setup(FedOMD(alpha, beta), clients=1), rounds=3) for beta in (10.0, 0.0))
    assert same(with_it.client(0).model, without.client(0).model)
    assert same(with_it.server.state, without.server.state)
    two, free = (run_rounds(ortho_setup(FedOMD(alpha, beta), clients=2), rounds=3) for beta in (10.0, 0.0))
    assert gap(two.client(0).model, free.client(0).model) > 1e-3


def test_two_identical_clients_have_no_discrepancy():
    graph = toy_graph(12)
    finished = run_rounds(ortho_setup(graphs=[graph, graph]), rounds=2)
    assert finished.records["discrepancy"].tolist() == [0, 0]
    other = run_rounds(ortho_setup(graphs=[graph, toy_graph(12, seed=5)]), rounds=2)
    assert (other.records["discrepancy"] > 0.01).all()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_without_both_ingredients_it_is_fedavg_bit_for_bit(dropout):
    plain = OrthoGCN(6, CLASSES, width=8, dropout=dropout, orthogonal=False, scale_free=True)
    settings = {"models": plain, "dropout": dropout, "epochs": 2}
    ours = run_rounds(toy_setup(FedOMD(alpha=0.0, beta=0.0, orthogonal=False), **settings), rounds=3)
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=3)
    assert same(ours.server.state, wanted.server.state)
    assert ours.traffic == wanted.traffic
    for client in range(3):
        assert same(ours.client(client), wanted.client(client))
    for method in (FedOMD(alpha=0.0, beta=1.0, orthogonal=False), FedOMD(alpha=0.0, beta=0.0)):
        assert not same(run_rounds(toy_setup(method, **settings), rounds=3).server.state, wanted.server.state)


def test_without_discrepancy_it_is_fedavg_of_an_orthogonal_network():
    settings = {"models": OrthoGCN(6, CLASSES, width=8, dropout=0.5, scale_free=True), "dropout": 0.5}
    ours, wanted = (run_rounds(toy_setup(method, **settings), rounds=3) for method in (FedOMD(0.0, 0.0), FedAvg()))
    assert same(ours.server.state, wanted.server.state)
    pulled = run_rounds(toy_setup(FedOMD(0.1, 0.0), **settings), rounds=3)
    assert not same(pulled.server.state, wanted.server.state)


@pytest.mark.parametrize("pull_on", ["raw", "effective"])
def test_pull_by_hand(pull_on):
    method = FedOMD(alpha=0.5, beta=0.0, pull_on=pull_on)
    fleet = InProcess(ortho_setup(method)).fleets[0]
    weights = random_weights(fleet.model, 3)
    weights.layer1.weight[:] = 2 * torch.eye(8)
    weights.layer2.weight[:] = torch.eye(8)
    raw, effective = 0.5 * 3 * 8**0.5, 0.5 * 2 * float(departure(fleet.model.effective(torch.eye(8))))
    assert method.pull(fleet, weights).tolist() == pytest.approx([raw if pull_on == "raw" else effective] * 3, abs=1e-4)


def test_training_draws_the_layers_to_orthogonal_matrices():
    def left(alpha):
        finished = run_rounds(ortho_setup(FedOMD(alpha=alpha, beta=0.0), epochs=20), rounds=3)
        model = finished.engine.fleets[0].model
        return departure(model.inner_weights(broadcast_tree(finished.server.state.model, 1, torch.device("cpu")))).sum()

    assert left(1.0) < 0.5 * left(0.0)


def test_training_draws_the_moments_of_clients_together():
    def left(beta):
        finished = run_rounds(ortho_setup(FedOMD(beta=beta, scale_free=False)), rounds=40)
        return finished.records["discrepancy"].mean()

    assert left(10.0) < 0.7 * left(1e-9)


def test_moments_stand_still_while_a_client_takes_several_steps():
    _, engine = watch(ortho_setup(epochs=5), rounds=2)
    assert engine.train_subset == ["means", "moments", "match"] * 2


# Choices -------------------------------------------------------------------------------------------------------------


def test_method_sets_up_the_orthogonal_layers_of_clients_and_server():
    method = FedOMD(newton_steps=7, hybrid=0.5, center=True, orthogonal_start=True)
    engine = InProcess(ortho_setup(method))
    model = engine.fleets[0].model
    wanted = replace(engine._setup.models[0], newton_steps=7, hybrid=0.5, center=True, orthogonal_start=True)
    assert model == wanted
    finished = run_rounds(ortho_setup(method), rounds=0)
    assert gap(finished.server.state.model, finished.client(0).model) == 0


def test_ablation_without_orthogonality_has_plain_layers_and_no_pull():
    method = FedOMD(alpha=5.0, orthogonal=False)
    fleet = InProcess(ortho_setup(method)).fleets[0]
    assert "bias" in fleet.state.model.layer1
    assert method.pull(fleet, fleet.state.model).tolist() == [0, 0, 0]


def test_scores_use_the_network_that_was_trained():
    setup = ortho_setup(FedOMD(orthogonal=False), epochs=5)
    finished = run_rounds(setup, rounds=2)
    model = finished.engine.fleets[0].model
    correct = finished.engine.ask(Request("score", 5, [0, 1, 2])).correct
    assert torch.equal(correct, finished.engine.fleets[0].correct(finished.engine.fleets[0].state.model))
    assert not model.orthogonal
    common = finished.engine.ask(Request("score_shared", 5, [0, 1, 2], finished.server.state.model)).correct
    assert common.shape == (3, 1, 3)


@pytest.mark.parametrize("name", ["fedomd", "fedomd_paper"])
def test_papers_network_is_trained_unless_another_is_named(name):
    usual = make_experiment({"method": name})
    assert (usual.models, usual.head) == ("ortho_gcn", "conv")
    named = make_experiment({"method": name, "models": "gcn", "head": "linear"})
    assert (named.models, named.head) == ("gcn", "linear")
    other = make_experiment({"method": "fedavg"})
    assert (other.models, other.head) == ("gcn", "linear")


@pytest.mark.parametrize("method", ["fedomd", FedOMD(order=2)])
def test_papers_network_is_trained_from_python_too(method):
    def trained(**settings):
        return graft.run(method, "synthetic:nodes=60,classes=3,features=8", clients=2, rounds=1, **settings)

    usual, named = trained(), trained(models="gcn")
    assert [row["model"] for row in usual.summary["per_client"]] == ["ortho_gcn"] * 2
    assert list(usual.server.model) == ["layer0", "layer1", "layer2", "head"]
    assert [row["model"] for row in named.summary["per_client"]] == ["gcn"] * 2


@pytest.mark.parametrize("models", ["gcn", "gat", "sage", "gin", "sgc", "mlp", "gcn4"])
def test_of_other_architectures_the_embedding_is_matched(models):
    finished, engine = watch(ortho_setup(models=models), rounds=2)
    assert engine.seen[1][0].message.mean.shape == (1, 8)
    assert (finished.records["discrepancy"] > 0).all()
    alpha = run_rounds(ortho_setup(FedOMD(alpha=5.0), models=models), rounds=2)
    assert same(alpha.server.state, finished.server.state)  # there is nothing to keep orthogonal
    beta = run_rounds(ortho_setup(FedOMD(beta=0.0), models=models), rounds=2)
    assert not same(beta.server.state, finished.server.state)


def test_your_own_module_can_be_matched_too():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(6, 4), nn.Linear(4, CLASSES)

        def forward(self, x, edge_index):  # noqa: ARG002
            hidden = torch.relu(self.inner(x))
            return hidden, self.head(hidden)

    with torch.random.fork_rng():
        finished = run_rounds(ortho_setup(models=Own()), rounds=2)
    assert finished.client(0).own.shape == (1, 5, 4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"beta": float("nan")}, "beta is nan"),
        ({"order": 1}, "order is 1"),
        ({"span": 0.0}, "span is 0.0"),
        ({"hybrid": 0.0}, "hybrid is 0.0"),
        ({"hybrid": 1.5}, "hybrid is 1.5"),
        ({"newton_steps": -1}, "newton_steps is -1"),
    ],
)
def test_fields_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        FedOMD(**settings)


# Messages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("span_from", "span_floats"), [("global", 1), ("fixed", 0)])
def test_bytes_of_moments_beside_bytes_of_weights(span_from, span_floats):
    setup = ortho_setup(FedOMD(span_from=span_from), width=64)
    finished, engine = watch(setup)
    layers, clients = 3, 3
    floats = layers * 5 * 64
    assert floats == 960  # each way
    up, down = 4 * (floats + 2 * layers * span_floats) + 8, 4 * (floats + layers * span_floats)
    records = finished.records
    assert records["moment_bytes"] == clients * (up + down)
    model = count_bytes(finished.server.state.model)
    assert records["weight_bytes"] == clients * (model + model + 8 + 4)  # a vote, and the discrepancy for the record
    assert records["moment_bytes"] + records["weight_bytes"] == finished.traffic.up + finished.traffic.down
    assert sum(count_bytes(request.message) for request, _ in engine.seen) * clients == finished.traffic.down


def test_without_discrepancy_only_weights_travel():
    finished, engine = watch(ortho_setup(FedOMD(beta=0.0)), rounds=2)
    assert engine.train_subset == ["train", "train"]
    model = count_bytes(finished.server.state.model)
    assert (finished.traffic.down, finished.traffic.up) == (2 * 3 * model, 2 * 3 * (model + 8))
    assert {path.split("/")[0] for path, _ in flatten(finished.client(0))} == {"model", "optimizer"}


def test_orthogonal_networks_are_the_same_alone_in_processes_and_resumed():
    setup = ortho_setup(clients=4, dropout=0.5, participation=0.5, epochs=2)
    whole = run_rounds(setup, rounds=4)
    half, engine = run_rounds(setup, rounds=2), InProcess(setup)
    engine.restore(half.engine.state())
    run_rounds(setup, rounds=2, engine=engine, first=3, state=half.server.state)
    assert all(same(whole.client(client), engine.state()[client]) for client in range(4))
    workers = Loopback(setup)
    try:
        for other in (InProcess(setup, alone=True), workers):
            there = run_rounds(setup, rounds=4, engine=other)
            assert gap(there.server.state, whole.server.state) < 1e-5
            assert there.traffic == whole.traffic
    finally:
        workers.close()
    assert gap(run_rounds(replace(setup, seed=1), rounds=4).server.state, whole.server.state) > 1e-3


def test_fleet_equals_its_clients_alone():
    setup = ortho_setup(dropout=0.5, models="ortho_gcn4", head="conv")
    together, alone = (run_rounds(setup, rounds=3, engine=InProcess(setup, alone=one)) for one in (False, True))
    for client in range(3):
        assert gap(together.client(client), alone.client(client)) < 1e-5
