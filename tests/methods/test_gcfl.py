"""GCFL and GCFL+: cases worked out by hand."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from graft.errors import InputError
from graft.federation.clients import Clients, Replies
from graft.federation.plug import plugged
from graft.methods.fedavg import FedAvg
from graft.methods.fedtad import PaperDistillation
from graft.methods.gcfl import GCFL, GCFLPlus, noting_gradients, smaller_part, warping_distances
from graft.methods.local import Local
from graft.models.own import OwnModel
from graft.tensors.trees import Tree, count_bytes, flatten, map_tree, select_clients, stack, trainable, weighted_mean
from graft.testing.contract import unlabelled
from tests.methods.normed import Normed
from tests.methods.quadratic import OneNumber
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup

EAGER = {"mean_below": 10.0, "largest_above": 0.0, "warm_up": 0}  # splits whenever there are three
KINDS = pytest.mark.parametrize("kind", [GCFL, GCFLPlus])


def warping(first, second):
    return float(warping_distances(np.array([first, second], dtype=float))[0, 1])


def slow_warping(first, second):
    """The same by trying every path."""

    def least(i, j):
        rest = [least(*before) for before in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if min(before) >= 0]
        return (first[i] - second[j]) ** 2 + min(rest, default=0)

    return math.sqrt(least(len(first) - 1, len(second) - 1))


def test_sequences_may_wait_for_each_other():
    assert warping([0, 0, 1], [0, 1, 1]) == 0
    assert warping([0], [2]) == 2
    assert warping([0, 0], [2, 3]) == pytest.approx(math.sqrt(4 + 9))
    assert warping([0, 1, 0], [1, 0, 1]) == pytest.approx(math.sqrt(2))
    assert warping([0, 0, 1], [1, 0, 0]) > 0


def test_distances_of_sequences_are_the_least_over_all_paths():
    sequences = np.random.default_rng(0).random((5, 4))
    distances = warping_distances(sequences)
    assert np.array_equal(distances, distances.T)
    assert not distances.diagonal().any()
    for first, second in itertools.combinations(range(5), 2):
        assert distances[first, second] == pytest.approx(slow_warping(sequences[first], sequences[second]))


def test_cut_is_where_members_are_least_alike():
    alike = np.ones((5, 5))
    alike[:2, 2:] = alike[2:, :2] = 0.1
    assert sorted(smaller_part(alike)) == [0, 1]
    alike[0, 1] = alike[1, 0] = 0.2
    alike[1, 2:] = alike[2:, 1] = 0.2  # to cut the first off costs 0.2 + 0.3, the pair 0.9
    assert smaller_part(alike) == [0]


def test_cut_of_two_halves_leaves_the_first_member_where_it_is():
    two_by_two = np.kron(np.eye(2), np.ones((2, 2)))
    assert sorted(smaller_part(two_by_two)) == [2, 3]
    turns = np.array([2, 0, 3, 1])
    assert sorted(smaller_part(two_by_two[np.ix_(turns, turns)])) == [1, 3]


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_members_that_are_all_equally_alike_are_not_split(value):
    assert smaller_part(np.full((4, 4), value)) == []


def test_cut_is_the_least_of_all_cuts():
    random = np.random.default_rng(1)
    for trial in range(40):
        half = np.triu(random.random((5, 5)), 1)
        half[random.random((5, 5)) < (trial % 4) / 6] = 0  # pairs that have nothing in common, and members, too
        alike = half + half.T

        def weight(side, alike=alike):
            other = [node for node in range(5) if node not in side]
            return alike[np.ix_(side, other)].sum()

        sides = [list(side) for size in (1, 2) for side in itertools.combinations(range(5), size)]
        assert weight(smaller_part(alike)) == pytest.approx(min(map(weight, sides)))


def moved_by(updates, method, cluster=None, first=None, votes=None, norms=None, round=30):
    """The server after clients have replied with models of one number that moved by so much."""
    setup = toy_setup(method, clients=len(updates), models=OneNumber(1.0))
    finished = run_rounds(setup, rounds=0)
    server = finished.server
    if cluster is not None:
        server.state.cluster = torch.tensor(cluster)
    if first is not None:
        server.state.first = torch.tensor(first, dtype=torch.float64)
    votes = torch.ones(len(updates)) if votes is None else torch.tensor(votes)
    reply = Tree(model=Tree(x=server.state.models.x + torch.tensor(updates)), weight=votes)
    if norms is not None:
        reply.norm = torch.tensor(norms)

    clients = Clients(finished.engine, round, list(range(len(updates))))
    method.aggregate(server, clients, Replies([(clients.members, reply)]))
    return server


def test_clients_that_pull_in_two_directions_are_split_between_them():
    method = GCFL(relative=False, mean_below=0.05, largest_above=0.1)
    server = moved_by([0.5, 0.5, -0.5, -0.5], method)
    assert server.state.cluster.tolist() == [0, 0, 1, 1]
    assert server.state.models.x.tolist() == [1.5, 1.5, 0.5, 0.5]
    assert server.records["mean_norm"].tolist() == [0] * 4
    assert server.records["largest_norm"].tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("updates", "settings"),
    [
        ([0.5, 0.5, -0.5, -0.25], {}),  # the mean is above 0.05
        ([0.09, 0.09, -0.09, -0.09], {}),  # no update is above 0.1
        ([0.5, -0.5], {}),  # two are not split
        ([0.5, 0.5, -0.5, -0.5], {"warm_up": 30}),  # it is round 30
        ([0.5, 0.5, -0.5, -0.5], {"mean_below": 0.0}),
    ],
)
def test_others_are_not_split_and_get_one_mean(updates, settings):
    method = GCFL(**{"relative": False, "mean_below": 0.05, "largest_above": 0.1} | settings)
    server = moved_by(updates, method)
    assert server.state.cluster.tolist() == [0] * len(updates)
    assert server.state.models.x.tolist() == pytest.approx([1 + sum(updates) / len(updates)] * len(updates))


def test_thresholds_may_be_shares_of_what_was_seen_in_the_first_round():
    updates = [0.5, 0.4, -0.4, -0.4]  # the norm of the mean is 0.025
    shares = GCFL(mean_below=0.1, largest_above=0.1)
    assert moved_by(updates, shares, first=[0.2, 4.0]).state.cluster.tolist() == [0] * 4
    assert moved_by(updates, shares, first=[0.3, 4.0]).state.cluster.tolist() == [0, 0, 1, 1]
    assert moved_by(updates, shares, first=[0.3, 6.0]).state.cluster.tolist() == [0] * 4
    fresh = moved_by(updates, shares)
    assert fresh.state.first.tolist() == pytest.approx([0.025, 0.5])
    assert moved_by([0.0] * 4, shares).state.first.tolist() == [0, 0]


def test_clusters_average_by_votes_inside_and_are_split_again():
    method = GCFL(relative=False, mean_below=0.05, largest_above=0.1)
    server = moved_by([3.0, 1.0, -0.5, 0.25, 0.25], method, cluster=[0, 0, 1, 1, 1], votes=[3.0, 1.0, 2.0, 1.0, 1.0])
    assert server.state.cluster.tolist() == [0, 0, 2, 1, 1]
    assert server.state.models.x.tolist() == pytest.approx([3.5, 3.5, 0.5, 1.25, 1.25])
    nobody = moved_by([1.0, 3.0], method, votes=[0.0, 0.0])
    assert nobody.state.models.x.tolist() == [3.0, 3.0]


def test_gcfl_plus_waits_for_sequences_and_forgets_them_after_a_split():
    method = GCFLPlus(relative=False, mean_below=0.05, largest_above=0.1, length=2, warm_up=0)
    setup = toy_setup(method, clients=4, models=OneNumber(1.0))
    server = run_rounds(setup, rounds=0).server
    rows = torch.arange(4)
    for norms, wanted in (([1, 5, 1, 5], None), ([2, 5, 2.5, 5], [[0, 7], [5, 5]])):
        method.observe(server, rows, Replies([([0, 1, 2, 3], Tree(norm=torch.tensor(norms, dtype=torch.float32)))]))
        alike = method.similarity(server, [0, 1, 2, 3], torch.zeros(4, 1))
        assert (alike is None) == (wanted is None)
    distances = warping_distances(np.array([[1, 2], [5, 5], [1, 2.5], [5, 5]]))
    assert alike == pytest.approx(distances.max() - distances)
    assert sorted(smaller_part(alike)) == [1, 3]
    method.forget(server)
    assert method.similarity(server, [0, 1, 2, 3], torch.zeros(4, 1)) is None
    assert server.state.seen.tolist() == [0] * 4


def test_only_the_last_norms_count_and_absent_clients_keep_theirs():
    method = GCFLPlus(length=3)
    server = run_rounds(toy_setup(method, models=OneNumber()), rounds=0).server
    for clients, norm in (([0, 1, 2], 1.0), ([0, 2], 2.0), ([0], 3.0), ([0], 4.0)):
        replies = Replies([(clients, Tree(norm=torch.full((len(clients),), norm)))])
        method.observe(server, torch.tensor(clients), replies)
    assert server.state.norms.tolist() == [[2, 3, 4], [0, 0, 1], [0, 1, 2]]
    assert server.state.seen.tolist() == [4, 1, 2]
    assert method.similarity(server, [0, 1], torch.zeros(2, 1)) is None  # the second has told too few
    assert method.similarity(server, [0], torch.zeros(1, 1)) is not None


def test_standardised_sequences_have_one_deviation_and_constant_ones_stay():
    def alike(**settings):
        method = GCFLPlus(length=2, **settings)
        server = run_rounds(toy_setup(method, models=OneNumber()), rounds=0).server
        server.state.norms = torch.tensor([[1.0, 3.0], [10.0, 30.0], [4.0, 4.0]])
        server.state.seen += 2
        return method.similarity(server, [0, 1, 2], torch.zeros(3, 1))

    same_shape = warping_distances(np.array([[1.0, 3.0], [1.0, 3.0], [4.0, 4.0]]))
    assert alike(standardise=True) == pytest.approx(same_shape.max() - same_shape)
    assert alike()[0, 1] < alike()[0, 2]


def test_cosines_of_updates_are_never_negative_and_updates_of_nobody_are_neutral():
    updates = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    alike = GCFL().similarity(None, [0, 1, 2, 3], updates)
    assert alike[0].tolist() == pytest.approx([2, 0, 1, 1])
    assert (GCFL().similarity(None, [0, 1], torch.tensor([[0.1, 0.3], [-0.1, -0.3]])) >= 0).all()


@KINDS
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_a_split_it_is_fedavg_bit_for_bit(kind, participation):
    settings = {"clients": 4, "participation": participation, "dropout": 0.5}
    ours = run_rounds(toy_setup(kind(**EAGER | {"mean_below": 0.0}), **settings), rounds=4)
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=4)
    for client in range(4):
        assert same(select_clients(ours.server.state.models, client), wanted.server.state.model)
        assert same(ours.client(client).model, wanted.client(client).model)
    split = run_rounds(toy_setup(kind(**EAGER, **({"length": 1} if kind is GCFLPlus else {})), **settings), rounds=4)
    assert not same(split.client(0).model, wanted.client(0).model) or participation < 1


class TwoKinds(GCFL):
    """Knows that the first two clients are of one kind and all others of another."""

    def similarity(self, server, members, updates):  # noqa: ARG002
        first = np.array(members) < 2
        return (first[:, None] == first[None, :]).astype(float)


def test_clusters_are_federations_of_their_own():
    graph = toy_graph(12)
    other = replace(graph, y=(graph.y + 1) % graph.classes)
    setup = toy_setup(TwoKinds(**EAGER | {"relative": False}), graphs=[graph, graph, other, other], epochs=5)
    finished = run_rounds(setup, rounds=1)
    assert finished.server.state.cluster.tolist() == [0, 0, 1, 1]
    later = run_rounds(setup, rounds=4)
    models = later.server.state.models
    assert same(select_clients(models, 0), select_clients(models, 1))
    assert same(select_clients(models, 2), select_clients(models, 3))
    assert gap(select_clients(models, 0), select_clients(models, 2)) > 1e-2
    mean = weighted_mean(stack([later.client(client).model for client in (2, 3)]), torch.ones(2))
    assert gap(select_clients(models, 2), mean) < 1e-6


def test_everybody_in_a_cluster_of_its_own_is_local_training():
    class Apart(GCFL):
        def start_server(self, server):
            super().start_server(server)
            server.state.cluster = torch.arange(server.clients)

    ours = run_rounds(toy_setup(Apart(), dropout=0.5), rounds=3)
    wanted = run_rounds(toy_setup(Local(), dropout=0.5), rounds=3)
    for client in range(3):
        assert gap(ours.client(client).model, wanted.client(client).model) < 1e-6
        assert gap(select_clients(ours.server.state.models, client), wanted.client(client).model) < 1e-6
    together = run_rounds(toy_setup(GCFL(), dropout=0.5), rounds=3)
    assert gap(together.client(0).model, wanted.client(0).model) > 1e-3


def test_absent_members_go_with_the_larger_part_and_are_given_its_model():
    class InTwo(GCFL):
        def similarity(self, server, members, updates):  # noqa: ARG002
            first_alone = np.ones((len(members), len(members)))
            first_alone[0], first_alone[:, 0] = 0.1, 0.1
            return first_alone

    setup = toy_setup(InTwo(**EAGER), clients=5, participation=0.6)
    finished = run_rounds(setup, rounds=1)
    asked = finished.session.participants(1)
    assert len(asked) == 3
    clusters = finished.server.state.cluster.tolist()
    assert clusters == [int(client == asked[0]) for client in range(5)]
    models = finished.server.state.models
    for client in set(range(5)) - {asked[0]}:
        assert same(select_clients(models, client), select_clients(models, asked[1]))
    assert not same(select_clients(models, asked[0]), select_clients(models, asked[1]))


def test_norm_is_that_of_the_gradient_at_the_last_step():
    class Watched(GCFLPlus):
        def loss(self, fleet, weights):
            losses = super().loss(fleet, weights)
            plain = map_tree(lambda leaf: leaf.detach().clone().requires_grad_(), weights)
            leaves = [leaf for _, leaf in flatten(plain)]
            slopes = torch.autograd.grad(super().loss(fleet, plain).sum(), leaves)
            norms.append(torch.stack([slope.square().flatten(1).sum(1) for slope in slopes]).sum(0).sqrt())
            return losses

    norms = []
    finished = run_rounds(toy_setup(Watched(length=2), epochs=3), rounds=2)
    assert len(norms) == 6
    torch.testing.assert_close(finished.server.state.norms, torch.stack([norms[2], norms[5]], dim=1))
    assert not torch.allclose(norms[1], norms[2])


def test_noted_gradients_change_nothing_and_are_those_of_the_named_paths():
    weights = Tree(a=torch.tensor([2.0], requires_grad=True), b=torch.tensor([3.0], requires_grad=True))
    gradients = {}
    seen = noting_gradients(weights, {"a"}, gradients)
    slopes = torch.autograd.grad((seen.a**2 * seen.b).sum(), [weights.a, weights.b])
    assert [float(slope) for slope in slopes] == [12, 4]
    assert {path: float(slope) for path, slope in gradients.items()} == {"a": 12}


def test_gcfl_plus_trains_as_gcfl_does():
    plain, noted = (run_rounds(toy_setup(kind(), dropout=0.5, batches=2), rounds=3) for kind in (GCFL, GCFLPlus))
    assert same(plain.server.state.models, noted.server.state.models)
    assert (noted.server.state.norms[:, -3:] > 0).all()


def test_a_client_without_labels_has_no_norm_and_takes_its_clusters_model():
    graphs = [toy_graph(9), toy_graph(10, seed=1), unlabelled(toy_graph(8))]
    finished = run_rounds(toy_setup(GCFLPlus(), graphs=graphs), rounds=2)
    assert finished.server.state.norms[2].tolist() == [0] * 5
    wanted = run_rounds(toy_setup(FedAvg(), graphs=graphs), rounds=2)
    assert same(select_clients(finished.server.state.models, 2), wanted.server.state.model)


@KINDS
def test_heads_that_are_not_shared_stay_with_their_clients(kind):
    setup = toy_setup(kind(share="convolutions", **EAGER | {"mean_below": 0.0}), dropout=0.5)
    finished = run_rounds(setup, rounds=3)
    assert "head" not in finished.server.state.models
    assert setup.method.personalised(finished.server) is None
    heads = [finished.client(client).model.head for client in range(3)]
    assert gap(heads[0], heads[1]) > 1e-3
    body = count_bytes(select_clients(finished.server.state.models, 0))
    extra = 4 if kind is GCFLPlus else 0
    assert (finished.traffic.down, finished.traffic.up) == (9 * body, 9 * (body + 8 + extra))
    layers = [select_clients(finished.server.state.models, client) for client in range(3)]
    assert same(layers[0], layers[1])
    trained = stack([Tree({k: v for k, v in finished.client(c).model.items() if k != "head"}) for c in range(3)])
    assert gap(layers[0], weighted_mean(trained, torch.tensor([12, 9, 7]))) < 1e-6


def test_norms_of_shared_layers_leave_the_head_out():
    whole, part = (run_rounds(toy_setup(GCFLPlus(share=share)), rounds=1) for share in ("all", "convolutions"))
    assert (part.server.state.norms[:, -1] < whole.server.state.norms[:, -1]).all()


def test_models_without_a_linear_head_cannot_keep_it():
    for settings in ({"head": "conv"}, {"models": OneNumber()}):
        with pytest.raises(InputError, match="share = convolutions keeps the linear head"):
            run_rounds(toy_setup(GCFL(share="convolutions"), **settings), rounds=0)


def test_buffers_are_averaged_and_no_part_of_an_update():
    setup = toy_setup(GCFLPlus(), models=OwnModel(Normed()))
    finished = run_rounds(setup, rounds=2)
    means = torch.stack([finished.client(client).model.norm.running_mean for client in range(3)])
    shares = torch.tensor([12, 9, 7]) / 28
    torch.testing.assert_close(finished.server.state.models.norm.running_mean[1], shares @ means)
    before = run_rounds(setup, rounds=1)
    assert (before.records["largest_norm"] < 10).all()
    start = trainable(setup.models[0].start(torch.Generator()), setup.models[0].frozen)
    assert not any("running" in path for path, _ in flatten(start))


def test_students_of_a_plug_are_the_models_of_all_clients():
    finished = run_rounds(toy_setup(plugged(GCFLPlus, PaperDistillation)(pseudo_nodes=12)), rounds=2)
    plain = run_rounds(toy_setup(GCFLPlus()), rounds=2)
    assert gap(finished.server.state.models, plain.server.state.models) > 1e-4


def test_bytes_are_those_of_fedavg_and_a_norm_more():
    plain, plus, fedavg = (run_rounds(toy_setup(kind())).traffic for kind in (GCFL, GCFLPlus, FedAvg))
    assert (plain.up, plain.down) == (fedavg.up, fedavg.down)
    assert (plus.up, plus.down) == (fedavg.up + 2 * 3 * 4, fedavg.down)


@pytest.mark.parametrize(
    ("field", "value"), [("mean_below", -0.1), ("largest_above", float("nan")), ("warm_up", -1), ("length", 0)]
)
def test_values_that_make_no_sense_are_refused(field, value):
    with pytest.raises(InputError, match=field):
        GCFLPlus(**{field: value})
