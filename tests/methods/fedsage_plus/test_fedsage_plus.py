"""FedSage+: cases worked out by hand, and what travels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from graft.data.graphs import make_graph
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.federation.fleet import Fleet
from graft.methods.fedavg import FedAvg
from graft.methods.fedsage_plus import FedSagePlus
from graft.methods.fedsage_plus.neighbour_generator import Generated
from graft.tensors.randomness import Stream
from graft.tensors.trees import Tree, map_tree
from tests.methods.fedsage_plus.cases import QUICK, Keen, all_features, edges_of, mended_fleet, started_fleet
from tests.toy import gap, run_rounds, same, toy_graph, toy_graphs, toy_setup


def test_loss_of_features_by_hand():
    """Two slots; one training node with one hidden neighbour at (1, 0) of two training nodes."""
    method = FedSagePlus(slots=2)
    x = np.array([[1, 0], [0, 0], [0, 0], [0, 0]], float)
    graph = make_graph("small", x, np.array([[0, 2], [1, 3]]), np.zeros(4, int), 1)
    graph = replace(graph, train=np.array([0, 1, 1, 0], bool), validation=np.array([1, 0, 0, 0], bool), test=None)
    fleet = started_fleet(method, graphs=[graph])
    method = replace(method, hidden=1.0)
    lesson = method.lesson(fleet)
    assert lesson.missing.tolist() == [[0.0, 1.0, 0.0, 0.0]]
    # Node 1 has two generated neighbours, and node 2, which misses none, has one that nothing is known of.
    made = torch.tensor([[[1.0, 0.0], [9.0, 9.0], [0.0, 1.0]]])
    generated = Generated(torch.tensor([[0.0, 2.0, 1.0, 0.0]]), torch.tensor([1, 2, 1]), made)
    assert method.comparable(fleet, lesson, generated).tolist() == [0, 2]
    assert method.feature_loss(fleet, lesson, generated).tolist() == [(0 + 1) / (2 * 2)]
    # Counts 2 and 1 against 1 and 0: smooth L1 gives 1/2 each.
    only_counts = replace(method, feature_weight=0.0, class_weight=0.0)
    assert only_counts.own_loss(fleet, lesson, fleet.state.generator, generated).tolist() == [0.5]


@pytest.mark.parametrize(("count", "each"), [(0.9, 0), (1.0, 1), (2.99, 2), (7.0, 5)])
def test_counts_are_cut_to_whole_numbers_and_to_the_slots(count, each):
    method = FedSagePlus()
    fleet = mended_fleet(method, count=count)
    mended = method.mended(fleet)
    sizes = [12, 9, 7]
    assert mended.nodes == 12 * (1 + each)  # and padding nodes, whose count is the same, have none
    degrees = mended.degree - torch.nn.functional.pad(fleet.graph.degree, (0, mended.nodes - 12))
    for client, size in enumerate(sizes):
        assert degrees[client, :size].tolist() == [float(each)] * size
        assert degrees[client, size : size * (1 + each)].tolist() == [1.0] * size * each
        assert not degrees[client, size * (1 + each) :].any()


def test_generated_features_are_bounded_unless_asked_otherwise():
    for output, bounded in (("tanh", True), ("identity", False)):
        method = FedSagePlus(output=output)
        fleet = mended_fleet(method)
        last = fleet.state.generator.maker.last
        last.weight *= 100
        made = method.neighbours(fleet, 0)[1]
        assert bool((made.abs() <= 1).all()) is bounded


def test_full_last_layer_is_that_of_the_paper():
    shapes = {}
    for rank in (0, 16):
        fleet = mended_fleet(FedSagePlus(rank=rank))
        shapes[rank] = map_tree(lambda leaf: tuple(leaf.shape[1:]), fleet.state.generator)
        assert FedSagePlus(rank=rank).neighbours(fleet, 0)[1].shape == (24, 6)
    assert shapes[0].maker.last.weight == (2048, 5 * 6)
    assert "narrow" not in shapes[0].maker
    assert (shapes[16].maker.narrow, shapes[16].maker.last.weight) == ((2048, 16), (16, 5 * 6))
    assert shapes[0].encoder.second.weight == (32, 128)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.usefixtures("asked_about_all")
def test_nothing_hidden_or_nothing_generated_is_unweighted_fedavg_of_graphsage(dropout, sparse):
    settings = {"dropout": dropout, "sparse": sparse}
    fedavg = run_rounds(toy_setup(FedAvg(), models="sage", weight_by="uniform", **settings), rounds=3)
    plain = run_rounds(toy_setup(FedSagePlus(hidden=0.0), **settings), rounds=3)
    assert same(plain.server.state.model, fedavg.server.state.model)

    class Modest(FedSagePlus):
        """Never misses anybody."""

        def make(self, fleet, latent, counts, *others):
            return super().make(fleet, latent, counts * 0, *others)

    modest = run_rounds(toy_setup(Modest(**QUICK), **settings), rounds=3)
    assert gap(modest.server.state.model, fedavg.server.state.model) < 1e-5
    assert modest.engine.fleets[0].state.mended.all()
    by_nodes = run_rounds(toy_setup(FedAvg(), models="sage", **settings), rounds=3)
    assert gap(plain.server.state.model, by_nodes.server.state.model) > 1e-4

    keen = run_rounds(toy_setup(Keen(**QUICK), **settings), rounds=3)
    assert gap(keen.server.state.model, fedavg.server.state.model) > 1e-3


class Watched(InProcess):
    """An engine that keeps every request and its replies."""

    def __init__(self, setup):
        super().__init__(setup)
        self.kept = []

    def ask(self, request):
        replies = super().ask(request)
        self.kept.append((request, replies))
        return replies

    def of(self, step):
        return [(request, replies) for request, replies in self.kept if request.step == step]


def shared_once(clients=3, **settings):
    graphs = [toy_graph(12, seed=seed) for seed in range(clients)]
    setup = toy_setup(Keen(generator_epochs=1, shared_epochs=1, hidden=1.0), graphs=graphs, **settings)
    engine = Watched(setup)
    run_rounds(setup, rounds=1, engine=engine)
    return setup, engine


def test_clients_are_sent_the_sum_of_the_gradients_of_others():
    _, engine = shared_once()
    (_, generated), (request, judged), (refined, _) = (engine.of(step)[0] for step in ("imagine", "judge", "refine"))
    rows = [len(generated[client].made) for client in range(3)]
    assert all(rows)
    for client in range(3):
        others = [other for other in range(3) if other != client]
        sent = request.each[client].made
        assert torch.equal(sent, torch.cat([generated[other].made for other in others]))
    first = [judged[1].gradient[: rows[0]], judged[2].gradient[: rows[0]]]
    assert torch.equal(refined.each[0].gradient, first[0] + first[1])
    assert not torch.equal(refined.each[0].gradient, first[0])
    assert refined.each[0].clients == 3


def test_gradient_is_of_the_error_to_a_real_neighbour_and_a_server_that_keeps_both_can_reconstruct_it():
    setup, engine = shared_once()
    request, judged = engine.of("judge")[0]
    for client in range(3):
        x = torch.as_tensor(setup.graphs[client].x)
        made, gradient = request.each[client].made, judged[client].gradient
        nearby = made - made.shape[1] / 2 * gradient
        gaps = torch.cdist(nearby, x).amin(1)
        assert gaps.max() < 1e-5
        assert torch.cdist(made, x).amin() > 1e-3
        # One node is judged by one set of neighbours, and all are neighbours of somebody.
        linked = (torch.cdist(nearby, x).argmin(1)[:, None] == torch.as_tensor(setup.graphs[client].edges[0])).any(1)
        assert linked.all()


def test_sum_over_two_others_reveals_neither():
    setup, engine = shared_once()
    _, generated = engine.of("imagine")[0]
    refined, _ = engine.of("refine")[0]
    made = generated[0].made
    guess = made - made.shape[1] / 2 * refined.each[0].gradient
    everything = torch.cat([torch.as_tensor(graph.x) for graph in setup.graphs[1:]])
    assert torch.cdist(guess, everything).amin() > 1e-2


def test_gradient_that_arrives_is_that_of_the_whole_loss(monkeypatch):
    """One step of plain descent moves the maker as the loss of all clients together would, worked out in one place."""
    method = Keen(hidden=1.0)
    fleet = started_fleet(method, graphs=[toy_graph(12)], dropout=0.5).for_call(1, "imagine")
    sent = method.imagine(fleet)
    lesson, generator = method.lesson(fleet), fleet.state.generator
    targets = torch.randn(sent.made.shape, generator=torch.Generator().manual_seed(0))
    gradient = 2 / 6 * (sent.made - targets)
    gradients = {}

    def fit(fleet, weights, loss, name, training):  # noqa: ARG001
        leaves = map_tree(lambda leaf: leaf.detach().clone().requires_grad_(), weights)
        matrices = [leaves.last.weight, leaves.first.weight]
        gradients["ours"] = torch.autograd.grad(loss(leaves, fleet).sum(), matrices)
        whole = Tree({**generator, "maker": leaves})
        generated = method.generate(fleet, lesson, whole, Stream(fleet.state.draws), settled=True)
        judged = generated.features[:, method.comparable(fleet, lesson, generated)]
        torch.testing.assert_close(judged, sent.made)
        own = method.own_loss(fleet, lesson, whole, generated)
        of_others = (judged - targets).square().mean(2).sum() / (5 * int(fleet.labels.masks[:, 0].sum()))
        gradients["expected"] = torch.autograd.grad((own + of_others).sum() / 2, matrices, retain_graph=True)
        gradients["alone"] = torch.autograd.grad(own.sum() / 2, matrices)
        return weights

    monkeypatch.setattr(Fleet, "fit", fit)
    method.refine(fleet, Tree(gradient=gradient, clients=torch.tensor([2])))
    for ours, expected, alone in zip(gradients["ours"], gradients["expected"], gradients["alone"], strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-7, rtol=1e-4)
        assert (ours - alone).abs().max() > 1e-5


def test_only_the_maker_learns_from_others_and_each_client_keeps_its_own():
    def generators(**epochs):
        finished = run_rounds(
            toy_setup(Keen(**epochs), graphs=[toy_graph(12, seed=seed) for seed in range(3)]), rounds=1
        )
        return [finished.client(client).generator for client in range(3)]

    alone = generators(generator_epochs=3, shared_epochs=0)
    shared = generators(generator_epochs=3, shared_epochs=2)
    for before, after in zip(alone, shared, strict=True):
        for part in ("encoder", "count", "classifier"):
            assert same(before[part], after[part])
        assert gap(before.maker, after.maker) > 1e-4
    assert gap(shared[0].maker, shared[1].maker) > 1e-4


def test_learning_lowers_every_part_of_the_loss():
    method = Keen(hidden=1.0, generator_epochs=60)
    fleet = started_fleet(method, graphs=[toy_graph(12)])
    lesson = method.lesson(fleet)

    def terms():
        random = fleet.for_call(9, "measure").random
        made = method.generate(fleet, lesson, fleet.state.generator, random)
        counts = replace(method, feature_weight=0.0, class_weight=0.0)
        return torch.cat(
            [
                counts.own_loss(fleet, lesson, fleet.state.generator, made),
                method.feature_loss(fleet, lesson, made),
                method.class_loss(fleet, lesson, fleet.state.generator, made),
            ]
        )

    before = terms()
    method.learn(fleet)
    assert (terms() < before).all()


def test_count_begins_at_the_mean_number_of_hidden_neighbours():
    method = FedSagePlus(generator_epochs=0, hidden=1.0)
    fleet = started_fleet(method, graphs=[toy_graph(12)])
    lesson = method.lesson(fleet)
    method.learn(fleet)
    mean = lesson.missing[0, fleet.labels.masks[0, 0]].mean()
    assert mean > 0
    torch.testing.assert_close(fleet.state.generator["count"].bias[0, 0], mean)


def test_newcomers_learn_when_they_first_take_part_and_others_are_left_alone():
    setup = toy_setup(FedSagePlus(**QUICK), clients=4, participation=0.5)
    engine = Watched(setup)
    finished = run_rounds(setup, rounds=1, engine=engine)
    mended = finished.server.state.mended
    assert mended.sum() == 2
    for client in range(4):
        assert bool(finished.client(client).mended) is bool(mended[client])
    run_rounds(setup, rounds=6, engine=engine, first=2, state=finished.server.state)
    learnt = [client for request, _ in engine.of("learn") for client in request.clients]
    assert sorted(learnt) == [0, 1, 2, 3]  # everyone once
    assert engine.fleets[0].state.mended.all()


def test_client_that_has_not_learnt_is_scored_on_its_graph_as_it_is():
    method = FedSagePlus()
    fleet = mended_fleet(method)
    fleet.state.mended = torch.tensor([True, False, True])
    mended = method.mended(fleet)
    shift = mended.nodes
    mine = {(row - shift, column - shift) for row, column in edges_of(mended.neighbours) if row // shift == 1}
    whole = {(row - 12, column - 12) for row, column in edges_of(fleet.graph.neighbours) if row // 12 == 1}
    assert mine == whole
    plain = fleet.predict(fleet.state.model).logits
    logits = method.logits(fleet)
    assert logits.shape == plain.shape
    torch.testing.assert_close(logits[1], plain[1])
    assert not torch.allclose(logits[0], plain[0])
    fleet.state.mended = torch.tensor([False, False, False])
    for cache in fleet.caches:
        cache.clear()
    assert method.mended(fleet) is fleet.graph


def test_mended_graphs_are_made_once_and_again_after_a_restart():
    setup = toy_setup(Keen(**QUICK))
    finished = run_rounds(setup, rounds=2)
    fleet = finished.engine.fleets[0]
    mended = setup.method.mended(fleet)
    assert setup.method.mended(fleet) is mended
    engine = InProcess(setup)
    engine.restore(finished.engine.state())
    again = setup.method.mended(engine.fleets[0])
    assert again is not mended
    assert torch.equal(all_features(again), all_features(mended))
    assert torch.equal(again.neighbours.columns, mended.neighbours.columns)
    engine.restore(InProcess(setup).state())
    assert setup.method.mended(engine.fleets[0]) is engine.fleets[0].graph


def test_data_to_be_scored_on_are_mended_by_themselves():
    graphs = toy_graphs()
    clear = [replace(graph, x=2 * graph.x, edges=graph.edges[:, :0]) for graph in graphs]
    setup = replace(toy_setup(Keen(**QUICK), graphs=graphs), scoring=clear)
    fleet = run_rounds(setup, rounds=1).engine.fleets[0]
    mended, scored = setup.method.mended(fleet), setup.method.mended(fleet.on(fleet.scoring))
    assert setup.method.mended(fleet) is mended
    added = mended.neighbours.entries - fleet.graph.neighbours.entries
    assert scored.neighbours.entries == added == 4 * 28
    torch.testing.assert_close(all_features(scored)[:, :7], 2 * all_features(mended)[:, :7])
    assert not torch.equal(all_features(scored)[0, 12:], all_features(mended)[0, 12:])
    assert setup.method.score(fleet)["correct"].shape == (3, 1, 3)


def test_single_client_refines_on_its_own_loss():
    finished = run_rounds(toy_setup(Keen(**QUICK), clients=1), rounds=1)
    alone = run_rounds(toy_setup(Keen(generator_epochs=3, shared_epochs=0), clients=1), rounds=1)
    assert gap(finished.client(0).generator.maker, alone.client(0).generator.maker) > 1e-4


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_fleet_with_generated_neighbours_equals_its_clients_one_by_one(dropout):
    setup = toy_setup(Keen(**QUICK), dropout=dropout)
    together, alone = run_rounds(setup, rounds=3), run_rounds(setup, rounds=3, engine=InProcess(setup, alone=True))
    assert together.traffic == alone.traffic
    for client in range(3):
        assert gap(together.client(client), alone.client(client)) < 1e-5
    fewer = run_rounds(toy_setup(Keen(**QUICK, slots=1), dropout=dropout), rounds=3)
    assert gap(together.client(0).model, fewer.client(0).model) > 1e-3


def test_processes_exchange_generated_features_as_bytes():
    setup = toy_setup(Keen(**QUICK), clients=2, dropout=0.5)
    here = run_rounds(setup, rounds=1)
    engine = Loopback(setup)
    try:
        there = run_rounds(setup, rounds=1, engine=engine)
        assert gap(here.server.state, there.server.state) < 1e-5
    finally:
        engine.close()
    assert here.traffic == there.traffic


def test_traffic_of_later_rounds_is_that_of_fedavg():
    setup = toy_setup(FedSagePlus(**QUICK))
    one, two = run_rounds(setup, rounds=1).traffic, run_rounds(setup, rounds=2).traffic
    fedavg = run_rounds(toy_setup(FedAvg(), models="sage"), rounds=1).traffic
    assert (two.up - one.up, two.down - one.down) == (fedavg.up, fedavg.down)
    assert one.up > fedavg.up


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rounds_on_mended_graphs_are_replayed_on_a_gpu():
    setup = replace(toy_setup(Keen(**QUICK), dropout=0.5), device=torch.device("cuda"))
    replayed = run_rounds(setup, rounds=5)
    assert replayed.engine.rounds.captured
    plain = run_rounds(replace(setup, capture=False), rounds=5)
    assert all(gap(replayed.client(client), plain.client(client)) < 1e-5 for client in range(3))
    shorter = run_rounds(setup, rounds=4)
    assert gap(replayed.client(0).model, shorter.client(0).model) > 1e-4
