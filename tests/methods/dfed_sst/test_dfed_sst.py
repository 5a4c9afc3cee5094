"""DFed-SST against cases worked out by hand, its degenerate forms and its ablations."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from graft.data.graphs import make_graph
from graft.engines.in_process import InProcess
from graft.federation.peers import interpolate
from graft.federation.topologies import Topology
from graft.methods.dfed_sst import DFedSST, DFedSSTPaper
from graft.methods.dfed_sst.fingerprints import fingerprint
from graft.methods.dfed_sst.paths import Paths
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.tensors.trees import Tree, count_bytes, map_tree, select_clients
from tests.toy import gap, run_rounds, same, toy_graphs, toy_setup

PATH = [(0, 1), (1, 2), (2, 3)]


def labelled(nodes, edges, labels, seed=0):
    """A graph all of whose nodes are for training."""
    x = np.random.default_rng(seed).normal(size=(nodes, 5))
    edges = np.array(edges, int).reshape(-1, 2).T
    masks = {"train": np.ones(nodes, bool), "validation": np.zeros(nodes, bool), "test": np.zeros(nodes, bool)}
    return make_graph("path", x, edges, labels, 2, masks)


def three_paths():
    """Peers whose WLSD is 1, 2 and 2.115772, whatever their models say."""
    return [
        labelled(4, PATH, [0, 0, 1, 1], 0),
        labelled(4, PATH, [0, 1, 0, 1], 1),
        labelled(5, PATH, [0, 0, 1, 1, 1], 2),
    ]


def fleet_of(method, clients=3, **settings):
    """All clients as one fleet."""
    engine = InProcess(toy_setup(method, clients, sizes=(9,), **settings))
    (fleet,) = engine.fleets
    return fleet


def inbox_of(wlsd, vectors):
    """What three peers hear: descriptions that are vectors of length 4."""
    count = len(wlsd)
    sent = Tree(wlsd=torch.tensor(wlsd), cse=torch.tensor(vectors).view(count, 2, 2))
    return Tree(
        sent=map_tree(lambda leaf: leaf.expand(count, *leaf.shape), sent),
        links=torch.full((count, count), 1 / count),
        senders=torch.arange(count).expand(count, -1),
    )


def by_hand():
    """WLSD 1, 2 and 3; the last peer is like the second by 0.9 and like the first by 0.5."""
    vectors = [[0.5, math.sqrt(0.75), 0, 0], [0.9, math.sqrt(0.19), 0, 0], [1.0, 0, 0, 0]]
    return inbox_of([1.0, 2.0, 3.0], vectors)


def links_of(finished, peers=3):
    return torch.stack([finished.client(client).links for client in range(peers)])


# Whom a peer hears.


@pytest.mark.parametrize(
    ("include_self", "last"), [(True, [0.111984, 0.334122, 0.553893]), (False, [0.251026, 0.748974, 0])]
)
def test_degrees_are_ranks_and_weights_follow_eq_8(include_self, last):
    method = DFedSSTPaper(include_self=include_self)
    fleet = fleet_of(method)
    record = method.choose(fleet, by_hand())
    assert record.degree.tolist() == [0, 1, 2]
    assert record.wlsd.tolist() == [1, 2, 3]
    assert fleet.state.links[0].tolist() == [1, 0, 0]  # who hears nobody keeps its own model
    assert fleet.state.links[2].tolist() == pytest.approx(last, abs=1e-6)
    # The second peer is like the third by 0.9, like the first by 0.83: the degree says how many, not whom.
    assert fleet.state.links[1, 0] == 0
    own, other = (2 * math.e, 3 * math.exp(0.9)) if include_self else (0, 1)
    assert fleet.state.links[1, 1:].tolist() == pytest.approx([own / (own + other), other / (own + other)], abs=1e-6)
    assert torch.allclose(fleet.state.links.sum(1), torch.ones(3))


def test_equal_similarities_go_to_the_lower_number():
    method = DFedSSTPaper(degree="half")
    fleet = fleet_of(method, 4)
    method.choose(fleet, inbox_of([1.0] * 4, [[1.0, 0, 0, 0]] * 4))
    heard = (fleet.state.links > 0).float().fill_diagonal_(0)
    assert heard.tolist() == [[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0]]


def test_nobody_is_heard_where_all_are_as_scattered_unless_a_minimum_is_set():
    for least, links in ((0, [[1, 0], [0, 1]]), (1, [[0.5, 0.5], [0.5, 0.5]])):
        method = DFedSSTPaper(min_share=least / 2)
        fleet = fleet_of(method, 2)
        record = method.choose(fleet, inbox_of([2.0, 2.0], [[1.0, 0, 0, 0]] * 2))
        assert record.degree.tolist() == [least, least]
        assert fleet.state.links.tolist() == links


def test_weights_are_equal_where_nothing_is_scattered():
    method = DFedSSTPaper(min_share=2 / 3)
    fleet = fleet_of(method)
    method.choose(fleet, inbox_of([0.0] * 3, [[0.0] * 4] * 3))
    assert torch.allclose(fleet.state.links, torch.full((3, 3), 1 / 3))


def test_a_peer_that_was_away_is_known_by_what_it_said_last():
    method = DFedSSTPaper(min_share=2 / 3)
    fleet = fleet_of(method)
    everybody = by_hand()
    some = Tree(
        sent=map_tree(lambda leaf: leaf[:, 1:], everybody.sent),
        links=everybody.links[:, 1:],
        senders=everybody.senders[:, 1:],
    )
    method.choose(fleet, some)
    assert fleet.state.known.tolist() == [[False, True, True]] * 3
    assert (fleet.state.links[1:, 0] == 0).all()  # never heard of
    method.choose(fleet, everybody)
    before = fleet.state.links.clone()
    assert (before[1:, 0] > 0).all()
    method.choose(fleet, some)
    assert torch.equal(fleet.state.links[1:], before[1:])


def test_a_round_with_some_peers_leaves_the_others_as_they_were():
    setup = toy_setup(
        DFedSSTPaper(labels="train", k_topo=1), graphs=three_paths() + three_paths()[::-1], participation=0.5
    )
    engine = InProcess(setup)
    before = engine.state()
    finished = run_rounds(setup, rounds=1, engine=engine)
    there = [client for client in range(6) if finished.client(client).known.any()]
    assert len(there) == 3
    wlsd = torch.tensor([1, 2, 2.115772, 2.115772, 2, 1])
    for client in range(6):
        present = torch.isin(torch.arange(6), torch.tensor(there)) & (client in there)
        assert torch.allclose(finished.client(client).wlsd, wlsd * present)
        assert (finished.client(client).similar[~present] == 0).all()
        if client in there:
            assert finished.client(client).similar[client] == pytest.approx(1)
            assert finished.client(client).links[~present].sum() == 0
        else:
            assert torch.equal(finished.client(client).links, before[client].links)


# What a peer says of itself.


def test_peers_describe_their_graph_as_their_model_sees_it_before_mixing():
    method = DFedSSTPaper(labels="train")
    setup = toy_setup(method, graphs=three_paths())
    finished = run_rounds(setup, rounds=1)
    engine = finished.engine
    for client, (expected, rows) in enumerate(((1, [1, 1]), (2, [2, 2]), (2.115772, [1, 3]))):
        assert finished.client(client).wlsd.tolist() == pytest.approx([1, 2, 2.115772], abs=1e-6)
        (fleet,) = [one for one in engine.fleets if client in one.clients]
        alone = fleet.select([fleet.clients.index(client)])
        alone.state.update(trained=map_tree(lambda leaf: leaf.unsqueeze(0), finished.client(client).trained))
        graph = setup.graphs[client]
        soft = alone.predict(alone.state.trained).logits[0, : graph.nodes].softmax(1)
        matrix = Paths(np.searchsorted(graph.edges[0], np.arange(graph.nodes + 1)), graph.edges[1])
        described = method.describe(alone)
        assert described.wlsd.item() == pytest.approx(expected, abs=1e-6)
        assert described.cse[0].numpy() == pytest.approx(fingerprint(matrix, graph.y, soft.numpy()).cse, abs=1e-5)
        assert described.cse[0].sum(1).numpy() == pytest.approx(rows)


@pytest.mark.parametrize(("disconnected", "wlsd"), [("penalty", 2.115772), ("ignore", 1.0), ("zero", 0.628076)])
def test_disconnected_pairs(disconnected, wlsd):
    finished = run_rounds(
        toy_setup(DFedSSTPaper(labels="train", disconnected=disconnected), graphs=three_paths()), rounds=1
    )
    assert finished.client(0).wlsd[2].item() == pytest.approx(wlsd, abs=1e-6)


def test_label_sources_differ_and_only_the_oracle_sees_test_labels():
    graphs = toy_graphs(3, sizes=(12,))

    def told(labels, graphs):
        return run_rounds(toy_setup(DFedSSTPaper(labels=labels), graphs=graphs), rounds=1).client(0).wlsd

    found = {labels: told(labels, graphs) for labels in ("mixed", "train", "oracle")}
    assert len({tuple(values.tolist()) for values in found.values()}) == 3
    spoiled = [replace(graph, y=np.where(graph.test, (graph.y + 1) % 3, graph.y)) for graph in graphs]
    assert torch.equal(told("mixed", spoiled), found["mixed"])
    assert torch.equal(told("train", spoiled), found["train"])
    assert not torch.equal(told("oracle", spoiled), found["oracle"])


def test_large_graphs_are_sampled():
    graphs = toy_graphs(2, sizes=(40,))
    exact, sampled, full = (
        run_rounds(toy_setup(DFedSSTPaper(labels="oracle", **how), 2, graphs=graphs), rounds=1).client(0).wlsd
        for how in ({}, {"exact_up_to": 0, "sources": 3}, {"exact_up_to": 0, "sources": 40})
    )
    assert torch.allclose(full, exact)
    assert not torch.allclose(sampled, exact, rtol=1e-3)
    assert torch.allclose(sampled, exact, rtol=0.5)


# The round.


def test_the_first_round_hears_half_of_the_others_at_random_and_mixes_what_was_trained():
    setup = toy_setup(DFedSSTPaper(), 5, sizes=(9,))
    engine = InProcess(setup)
    first = torch.stack([engine.state()[client].links for client in range(5)])
    assert (first.diagonal() == 1 / 3).all()
    assert ((first > 0).sum(1) == 3).all()
    assert torch.allclose(first.sum(1), torch.ones(5))
    finished = run_rounds(setup, rounds=1, engine=engine)
    for client in range(5):
        wanted = map_tree(
            lambda *models, own=first[client]: sum(weight * model for weight, model in zip(own, models, strict=True)),
            *(finished.client(sender).trained for sender in range(5)),
        )
        assert gap(wanted, finished.client(client).model) < 1e-6
    assert not torch.equal(links_of(finished, 5), first)
    literal = InProcess(toy_setup(DFedSSTPaper(include_self=False), 5, sizes=(9,))).state()
    assert all(literal[client].links[client] == 0 and literal[client].links.max() == 0.5 for client in range(5))


def test_peers_choose_anew_every_k_topo_rounds():
    setup = toy_setup(DFedSSTPaper(k_topo=3), 4, sizes=(9,))
    links = [links_of(run_rounds(setup, rounds=rounds), 4) for rounds in range(1, 6)]
    assert torch.equal(links[0], links[1])
    assert torch.equal(links[0], links[2])
    assert not torch.equal(links[2], links[3])
    assert torch.equal(links[3], links[4])


def test_messages_are_models_along_links_and_descriptions_to_everybody():
    graphs = three_paths()
    weights = count_bytes(InProcess(toy_setup(Local(), graphs=graphs)).state()[0].model)
    method = DFedSSTPaper(labels="train", k_topo=2)
    one, two, three = (run_rounds(toy_setup(method, graphs=graphs), rounds=rounds).traffic.peer for rounds in (1, 2, 3))
    described = 3 * 2 * 4 * (1 + 2 * 2)
    assert one == 3 * weights + described  # in the first round everybody hears one other
    assert two - one == 3 * weights  # degrees 0, 1 and 2
    assert three - two == 3 * weights + described


def test_the_least_scattered_peer_hears_nobody_and_is_heard():
    finished = run_rounds(toy_setup(DFedSSTPaper(labels="train"), graphs=three_paths()), rounds=2)
    links = links_of(finished)
    assert links[0].tolist() == [1, 0, 0]
    assert links[2, 0] > 0
    assert same(finished.client(0).model, finished.client(0).trained)
    assert not same(finished.client(2).model, finished.client(2).trained)


# Degenerate cases.


def test_one_peer_trains_as_if_alone():
    peer, alone = (run_rounds(toy_setup(method, 1, dropout=0.5), rounds=3) for method in (DFedSSTPaper(), Local()))
    assert same(peer.client(0).model, alone.client(0).model)


def test_peers_that_are_all_as_scattered_train_as_if_alone():
    graphs = [labelled(4, PATH, [0, 0, 1, 1], seed) for seed in range(3)]
    setup = toy_setup(DFedSSTPaper(labels="train", k_topo=1), graphs=graphs)
    start = run_rounds(setup, rounds=1)  # the first round hears others, for nothing is known yet

    def go_on(setup):
        engine = InProcess(setup)
        engine.restore(start.engine.state())
        return run_rounds(setup, rounds=3, engine=engine, first=2)

    found = go_on(setup)
    unlinked = go_on(toy_setup(setup.method, graphs=graphs, topology=Topology("none")))
    assert all(same(found.client(client).model, unlinked.client(client).model) for client in range(3))
    scattered = toy_setup(setup.method, graphs=[*graphs[:2], three_paths()[1]])
    assert gap(go_on(scattered).client(2).model, unlinked.client(2).model) > 1e-3


def test_everybody_heard_alike_is_fedavg_without_weights():
    graphs = [labelled(nodes, [], np.arange(nodes) % 2, nodes) for nodes in (8, 7, 5)]
    # Without edges and with distance 0 between what no path joins, every WLSD is 0, and weights are equal.
    method = DFedSSTPaper(disconnected="zero", min_share=2 / 3, k_topo=1)
    setup = toy_setup(method, graphs=graphs, optimizer_state="reset")
    start = run_rounds(setup, rounds=1)
    finished = run_rounds(setup, rounds=2)
    average = map_tree(lambda *leaves: sum(leaves) / 3, *(finished.client(client).trained for client in range(3)))
    for client in range(3):
        assert gap(finished.client(client).model, average) < 1e-6
        assert torch.allclose(start.client(client).links, torch.full((3,), 1 / 3))
    # From one common model on, that is FedAvg round by round.
    uniform = toy_setup(FedAvg(), graphs=graphs, optimizer_state="reset", weight_by="uniform")
    engine, server = InProcess(setup), run_rounds(uniform, rounds=1, first=3, state=Tree(model=average))
    engine.restore(finished.engine.state())
    after = run_rounds(setup, rounds=1, engine=engine, first=3)
    assert gap(after.client(1).model, server.server.state.model) < 1e-6
    weighted = toy_setup(FedAvg(), graphs=graphs, optimizer_state="reset")
    control = run_rounds(weighted, rounds=1, first=3, state=Tree(model=average))
    assert gap(after.client(1).model, control.server.state.model) > 1e-5


def test_two_peers_that_hear_half_of_all_are_fedavg():
    graphs = [labelled(nodes, [], np.arange(nodes) % 2, nodes) for nodes in (8, 5)]
    peers = run_rounds(toy_setup(DFedSSTPaper(degree="half", disconnected="zero"), graphs=graphs), rounds=3)
    server = run_rounds(toy_setup(FedAvg(), graphs=graphs, weight_by="uniform"), rounds=3)
    for client in (0, 1):
        assert gap(peers.client(client).model, server.server.state.model) < 1e-5


# Ablations.


def test_without_the_adaptive_degree_everybody_hears_half_of_the_others():
    finished = run_rounds(toy_setup(DFedSSTPaper(degree="half"), 5, sizes=(9,)), rounds=1)
    assert ((links_of(finished, 5) > 0).sum(1) == 3).all()
    adaptive = run_rounds(toy_setup(DFedSSTPaper(), 5, sizes=(9,)), rounds=1)
    assert sorted((links_of(adaptive, 5) > 0).sum(1).tolist()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("sparse", [False, True])
def test_without_cse_similarity_is_that_of_mean_features(sparse):
    setup = toy_setup(DFedSSTPaper(similar_by="features"), sparse=sparse)
    finished = run_rounds(setup, rounds=1)
    means = [np.asarray(graph.x.toarray() if sparse else graph.x).mean(axis=0) for graph in setup.graphs]
    for one in range(3):
        for other in range(3):
            wanted = means[one] @ means[other] / np.linalg.norm(means[one]) / np.linalg.norm(means[other])
            assert finished.client(one).similar[other].item() == pytest.approx(wanted, abs=1e-5)
    by_cse = run_rounds(toy_setup(DFedSSTPaper(), sparse=sparse), rounds=1)
    assert not torch.allclose(by_cse.client(0).similar, finished.client(0).similar, atol=1e-2)
    assert torch.equal(by_cse.client(0).wlsd, finished.client(0).wlsd)


def test_without_selection_peers_are_drawn_anew_and_weighed_as_before():
    method = DFedSSTPaper(select="random", degree="half")
    fleet = fleet_of(method, 4)
    seen = set()
    for turn in range(20):
        fleet = fleet.for_call(1, "choose", turn)
        method.choose(fleet, inbox_of([1.0, 2.0, 3.0, 4.0], torch.eye(4).tolist()))
        heard = fleet.state.links[0] > 0
        seen.add(tuple(heard.tolist()))
        assert heard.sum() == 3
        raw = torch.tensor([math.e, 2, 3, 4]) * heard  # nobody is like anybody else, so only WLSD counts
        assert torch.allclose(fleet.state.links[0], raw / raw.sum())
    assert len(seen) == 3


def test_the_defaults_are_the_papers_but_for_search_and_share():
    ours, theirs = asdict(DFedSST()), asdict(DFedSSTPaper())
    assert {name for name in ours if ours[name] != theirs[name]} == {"search", "min_share"}


@pytest.mark.parametrize("search", [0, 1, 4])
def test_a_peer_goes_towards_the_mean_as_far_as_its_validation_nodes_like_it(search):
    method = DFedSST(search=search)
    fleet = fleet_of(method, 2)
    own = fleet.fit(fleet.state.model, lambda weights, batch: method.loss(batch, weights))
    fleet.state.trained = own
    far = map_tree(lambda leaf: -9 * leaf[:1].expand(2, *leaf.shape[1:]), own)
    inbox = Tree(
        sent=Tree(model=map_tree(lambda leaf: leaf.expand(2, *leaf.shape), far)),
        links=torch.tensor([[1.0, 0.0]] * 2),
        senders=torch.arange(2).expand(2, 2),
    )
    reply = method.mix(fleet, inbox)
    known = {
        part: fleet.correct(interpolate(own, far, torch.full((2,), part)))[:, 0, 1] for part in (0, 0.25, 0.5, 0.75, 1)
    }
    assert any(known[0] > known[1])  # else there would be nothing to refuse
    if not search:
        assert same(fleet.state.model, far)
        return
    tried = [point / search for point in range(search + 1)]
    for client in range(2):
        best = max(known[part][client] for part in tried)
        way = max(part for part in tried if known[part][client] == best)  # of equal ones the nearest to the mean
        assert reply.way[client] == way
        assert same(
            select_clients(fleet.state.model, client),
            select_clients(interpolate(own, far, torch.full((2,), way, dtype=torch.float32)), client),
        )
