"""FedLIT: cases worked out by hand."""

import numpy as np
import pytest
import torch

from graft.data.graphs import make_graph
from graft.federation.clients import Replies, Request
from graft.federation.fleet import initial_weights
from graft.federation.server import Server
from graft.graphs.fleet_graph import build_fleet_graph
from graft.methods.fedavg import FedAvg
from graft.methods.fedlit import FedLIT
from graft.methods.fedlit.channels import Channels
from graft.methods.fedlit.edge_types import initial_centroids, nearest_types, type_means, type_views
from graft.methods.fedlit.method import match_clusters, reorder
from graft.tensors.randomness import streams
from graft.tensors.trees import Tree, broadcast_tree, count_bytes, map_tree, select_clients, stack
from tests.toy import gap, random_weights, run_rounds, same, toy_graph, toy_graphs, toy_setup

CPU = torch.device("cpu")


def graph_of(edges, nodes, features=None):
    features = np.ones((nodes, 1)) if features is None else features
    return build_fleet_graph([make_graph("small", features, np.array(edges).T, np.zeros(nodes, int), 1)], CPU)


def triangle():
    """Three nodes that stand at 1, -1 and 3, all linked: the edges are (1, -1), (1, 3) and (-1, 3)."""
    return graph_of([(0, 1), (0, 2), (1, 2)], 3), torch.tensor([[[1.0], [-1.0], [3.0]]])


def by_edge(graph, values):
    """One value for every pair of nodes."""
    rows, columns = graph.neighbours.row_of.tolist(), graph.neighbours.columns.tolist()
    return {(row, column): value for row, column, value in zip(rows, columns, values.tolist(), strict=True)}


def test_edges_go_to_the_centroid_in_their_direction_and_centroids_to_the_mean_of_their_edges():
    graph, nodes = triangle()
    centroids = torch.tensor([[[1.0, 1.0], [1.0, -1.0]]])
    kinds = nearest_types(graph, nodes, centroids)
    assert by_edge(graph, kinds) == {(0, 1): 1, (1, 0): 1, (0, 2): 0, (2, 0): 0, (1, 2): 0, (2, 1): 0}
    assert type_means(graph, nodes, kinds, centroids).tolist() == [[[0.0, 3.0], [1.0, -1.0]]]
    far = torch.tensor([[[100.0, 100.0], [0.1, -0.1]]])  # how long a centroid is says nothing
    assert torch.equal(nearest_types(graph, nodes, far), kinds)
    other = torch.tensor([[[1.0, 1.0], [-1.0, 1.0]]])
    assert not torch.equal(nearest_types(graph, nodes, other), kinds)


def test_cosine_of_edges_is_that_of_their_nodes_side_by_side():
    graph = build_fleet_graph(toy_graphs(), CPU)
    generator = torch.Generator().manual_seed(0)
    nodes = torch.randn(3, 12, 4, generator=generator)
    centroids = torch.randn(3, 3, 8, generator=generator)
    rows, columns = graph.neighbours.row_of, graph.neighbours.columns.long()
    edges = torch.cat(
        [nodes.flatten(0, 1)[torch.minimum(rows, columns)], nodes.flatten(0, 1)[torch.maximum(rows, columns)]], 1
    )
    cosines = torch.nn.functional.cosine_similarity(edges.unsqueeze(1), centroids[rows // 12], dim=2)
    kinds = nearest_types(graph, nodes, centroids)
    assert torch.equal(kinds, cosines.argmax(1))
    wanted = torch.stack(
        [
            torch.stack([edges[(rows // 12 == client) & (kinds == kind)].mean(0) for kind in range(3)])
            for client in range(3)
        ]
    )
    torch.testing.assert_close(type_means(graph, nodes, kinds, centroids), wanted)


def test_both_directions_of_an_edge_are_of_one_type_and_every_edge_is_in_one_view():
    graph = build_fleet_graph(toy_graphs(), CPU)
    nodes = torch.randn(3, 12, 4, generator=torch.Generator().manual_seed(0))
    kinds = nearest_types(graph, nodes, torch.randn(3, 3, 8, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(kinds, kinds[graph.neighbours.transpose_permutation])
    assert set(kinds.tolist()) == {0, 1, 2}
    parts = [view.neighbours.values for view in type_views(graph, kinds, 3)]
    assert torch.equal(torch.stack(parts).sum(0), torch.ones(graph.neighbours.entries))
    assert all(set(part.tolist()) == {0.0, 1.0} for part in parts)


def test_cluster_without_edges_keeps_its_centroid():
    graph, nodes = triangle()
    before = torch.tensor([[[0.0, 1.0], [0.0, -5.0], [7.0, 7.0]]])
    kinds = torch.zeros(6, dtype=torch.int64)
    moved = type_means(graph, nodes, kinds, before)
    assert moved[0, 0].tolist() == pytest.approx([1 / 3, 5 / 3])
    assert torch.equal(moved[:, 1:], before[:, 1:])


def test_two_bunches_of_edges_are_found_whoever_is_drawn_first():
    # Edges among 0 to 3 stand near (10, 10), edges among 4 to 7 near (-10, 10).
    edges = [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7), (4, 7)]
    x = np.array([[10, 1], [10.5, 0], [9.5, 0], [10, -1], [-10, 1], [-10.5, 0], [-9.5, 0], [-10, -1]])
    graph, nodes = graph_of(edges, 8, x), torch.tensor(x, dtype=torch.float32).unsqueeze(0)
    for seed in range(10):
        found = initial_centroids(graph, nodes, streams(CPU, seed, [0]), 2)
        kinds = by_edge(graph, nearest_types(graph, nodes, found))
        assert {kinds[edge] for edge in edges[:3]} == {kinds[0, 1]}
        assert {kinds[edge] for edge in edges[3:]} == {1 - kinds[0, 1]}
        means = [np.mean([[*x[a], *x[b]] for a, b in part], axis=0) for part in (edges[:3], edges[3:])]
        torch.testing.assert_close(found[0, kinds[0, 1]], torch.tensor(means[0], dtype=torch.float32))


def test_fewer_edges_than_types_and_none_at_all():
    graph = graph_of([(0, 1)], 3)
    nodes = torch.tensor([[[1.0], [2.0], [3.0]]])
    assert initial_centroids(graph, nodes, streams(CPU, 0, [0]), 3).tolist() == [[[1.0, 2.0]] * 3]
    pair = build_fleet_graph([toy_graph(9), toy_graph(8, edgeless=True)], CPU)
    found = initial_centroids(pair, torch.ones(2, 9, 2), streams(CPU, 0, [0, 1]), 2)
    assert torch.equal(found[0, 0], torch.ones(4))
    assert not found[1].any()


def test_centroids_are_matched_by_the_highest_cosine_first_and_not_the_other_way_round():
    groups = torch.eye(3)
    # Cluster 0 belongs to group 1, 1 to 2 and 2 to 0; read the other way round it would be 2, 0, 1.
    turned = torch.eye(3)[[1, 2, 0]]
    assert match_clusters(turned.unsqueeze(0), groups).tolist() == [[1, 2, 0]]
    # Both clusters like group 0 best; the one that likes it more gets it.
    rivals = torch.tensor([[[0.8, 0.6, 0.0], [1.0, 0.1, 0.0], [0.0, 0.0, 1.0]]])
    assert match_clusters(rivals, groups).tolist() == [[1, 0, 2]]
    tied = torch.ones(1, 3, 3)
    assert match_clusters(tied, groups).tolist() == [[0, 1, 2]]


class Answering:
    """Clients that answer what they were told to, and remember what they were sent."""

    def __init__(self, replies):
        self.members = list(range(len(replies)))
        self.replies = replies

    def ask(self, step, each):  # noqa: ARG002
        self.sent = each
        return Replies([(self.members, stack(self.replies))])


def run_round(method, server, models, weights=(1, 1), present=None, trained=None):
    all_there = [[True] * method.types] * len(models)
    present, trained = present or all_there, trained or all_there
    replies = [
        Tree(
            common=Tree(projection=model.projection, head=model.head),
            by_type=Tree(channels=model.channels, centroids=model.centroids),
            weight=torch.tensor(weight),
            present=torch.tensor(here),
            trained=torch.tensor(taught, dtype=torch.int64),
        )
        for model, weight, here, taught in zip(models, weights, present, trained, strict=True)
    ]
    clients = Answering(replies)
    method.round(server, clients)
    return clients


def small_server(method, clients=2):
    setup = toy_setup(method, clients)
    return Server.of(setup), setup.models[0]


def test_swapped_clusters_are_averaged_after_they_are_swapped_back():
    method = FedLIT(types=2)
    server, network = small_server(method)
    first, second = (select_clients(random_weights(network, seed=seed), 0) for seed in (1, 2))
    first.centroids = torch.eye(2, 16)
    second.centroids = torch.eye(2, 16).flip(0)
    run_round(method, server, [first, second], weights=(3, 1))
    assert server.state.groups.tolist() == [[0, 1], [1, 0]]
    back = reorder(second, torch.tensor([1, 0]))
    wanted = map_tree(lambda one, other: (one + other) / 2, first.channels, back.channels)
    assert gap(server.state.model.channels, wanted) < 1e-6
    assert torch.equal(server.state.model.centroids, first.centroids)
    crossed = map_tree(lambda one, other: (one + other) / 2, first.channels, second.channels)
    assert gap(server.state.model.channels, crossed) > 1e-2
    # The parts that have no type are weighted by what clients say they weigh.
    shared = map_tree(lambda one, other: (3 * one + other) / 4, first.head, second.head)
    assert gap(server.state.model.head, shared) < 1e-6
    # In the next round each is sent the channels in its own order, and nobody else's.
    model = server.state.model
    clients = run_round(method, server, [first, second])
    assert same(clients.sent[0].model, model)
    assert same(clients.sent[1].model, reorder(model, torch.tensor([1, 0])))
    assert not same(clients.sent[1].model, model)


def test_only_clusters_with_training_nodes_train_a_channel_and_only_those_with_edges_a_centre():
    method = FedLIT(types=2)
    server, network = small_server(method)
    first, second = (select_clients(random_weights(network, seed=seed), 0) for seed in (1, 2))
    first.centroids, second.centroids = torch.eye(2, 16), 3 * torch.eye(2, 16)
    before = server.state.model
    run_round(
        method,
        server,
        [first, second],
        present=[[True, True], [True, False]],
        trained=[[0, 0], [2, 0]],
    )
    model = server.state.model
    # In the first group the first client has no label, and in the second one nobody has.
    assert same(select_clients(model.channels, 0), select_clients(second.channels, 0))
    assert same(select_clients(model.channels, 1), select_clients(before.channels, 1))
    assert model.centroids[0, 0] == 2
    assert model.centroids[1, 1] == 1


def test_client_without_edges_is_not_the_one_that_others_are_matched_to():
    method = FedLIT(types=2)
    server, network = small_server(method)
    first, second = (select_clients(random_weights(network, seed=seed), 0) for seed in (1, 2))
    first.centroids, second.centroids = torch.zeros(2, 16), torch.eye(2, 16)
    run_round(method, server, [first, second], present=[[False, False], [True, True]])
    assert torch.equal(server.state.model.centroids, torch.eye(2, 16))
    server, _ = small_server(method)
    run_round(method, server, [first, first], present=[[False, False], [False, False]])
    assert not server.state.known
    assert not server.state.model.centroids.any()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_one_type_is_fedavg_of_the_network_with_one_channel(dropout):
    settings = {"dropout": dropout, "weight_by": "uniform"}
    method = FedLIT(types=1)
    ours = run_rounds(toy_setup(method, **settings), rounds=3)
    network = Channels(6, 3, 2, 8, dropout, types=1)
    wanted = run_rounds(toy_setup(FedAvg(), models=network, **settings), rounds=3)
    for part in ("projection", "channels", "head"):
        assert gap(ours.server.state.model[part], wanted.server.state.model[part]) < 1e-6
    by_nodes = run_rounds(toy_setup(FedAvg(), models=network, dropout=dropout), rounds=3)
    assert gap(ours.server.state.model.channels, by_nodes.server.state.model.channels) > 1e-4


def test_one_client_and_its_server_have_the_same_model():
    finished = run_rounds(toy_setup(FedLIT(types=3), clients=1), rounds=1)
    model = reorder(finished.client(0).model, finished.server.state.groups[0].argsort())
    assert gap(finished.server.state.model, model) < 1e-6
    several = run_rounds(toy_setup(FedLIT(types=3)), rounds=1)
    assert gap(several.server.state.model.head, several.client(0).model.head) > 1e-3


@pytest.mark.parametrize("self_loops", [False, True])
def test_network_is_the_sum_of_its_channels_worked_out_densely(self_loops):
    network = Channels(6, 3, 2, 4, 0.0, types=2, self_loops=self_loops)
    setup = toy_setup(FedLIT())
    fleet = setup.fleet([1])
    weights = random_weights(network, seed=3)
    weights.centroids = torch.randn(1, 2, 8, generator=torch.Generator().manual_seed(2))
    output = network(weights, fleet.graph)
    model = select_clients(weights, 0)
    nodes = fleet.graph.features[0] @ model.projection.weight + model.projection.bias
    kinds = by_edge(fleet.graph, nearest_types(fleet.graph, nodes.unsqueeze(0), weights.centroids))
    assert set(kinds.values()) == {0, 1}
    total = torch.zeros_like(nodes)
    for kind in (0, 1):
        adjacency = torch.zeros(len(nodes), len(nodes))
        for (row, column), found in kinds.items():
            adjacency[row, column] = found == kind
        touched = (adjacency.sum(1) > 0) | self_loops
        adjacency += self_loops * torch.eye(len(nodes))
        scale = adjacency.sum(1).clamp(min=1).rsqrt()
        adjacency = scale[:, None] * adjacency * scale
        channel = map_tree(lambda leaf, kind=kind: leaf[kind], model.channels)
        hidden = nodes @ channel.inner.weight + channel.inner.bias
        for layer in (channel.layer0, channel.layer1):
            hidden = torch.relu(adjacency @ hidden @ layer.weight + layer.bias)
        total += hidden * touched[:, None]
    torch.testing.assert_close(output.embedding[0], total)
    torch.testing.assert_close(output.logits[0], total @ model.head.weight + model.head.bias)
    isolated = output.logits[0, -1] - model.head.bias
    assert bool(isolated.any()) is self_loops  # without a loop the classifier's bias decides


def test_centroids_move_in_training_and_stand_still_in_evaluation():
    setup = toy_setup(FedLIT(types=2))
    fleet = setup.fleet([0, 1, 2])
    setup.method.start_client(fleet)
    weights = map_tree(torch.clone, fleet.state.model)
    weights.centroids = torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(0))
    before = weights.centroids.clone()
    fleet.predict(weights)
    assert torch.equal(weights.centroids, before)
    fleet.forward(weights)
    assert not torch.equal(weights.centroids, before)
    finished = run_rounds(setup, rounds=1)
    assert not torch.equal(finished.client(0).model.centroids, fleet.state.model.centroids[0])


def test_each_iteration_assigns_and_moves():
    graph, nodes = triangle()
    once, twice = (torch.tensor([[[1.0, 1.0], [1.0, -1.0]]]) for _ in range(2))
    Channels(1, 1, em_iterations=1).cluster(once, graph, nodes, training=True)
    assert once.tolist() == [[[0.0, 3.0], [1.0, -1.0]]]
    Channels(1, 1, em_iterations=2).cluster(twice, graph, nodes, training=True)
    kinds = nearest_types(graph, nodes, once)
    assert torch.equal(twice, type_means(graph, nodes, kinds, once))


def test_first_round_is_with_own_centroids_and_later_ones_with_the_servers():
    setup = toy_setup(FedLIT(types=2), epochs=1, learning_rate=1e-12)
    for known in (False, True):
        fleet = setup.fleet([0, 1, 2])
        setup.method.start_client(fleet)
        own = fleet.state.model.centroids.clone()
        sent = stack([initial_weights(fleet.model, 0)] * 3)
        sent.centroids = torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(0))
        nodes = fleet.graph.features @ sent.projection.weight + sent.projection.bias.unsqueeze(1)
        begun = sent.centroids if known else own
        wanted = type_means(fleet.graph, nodes, nearest_types(fleet.graph, nodes, begun), begun)
        setup.method.train(fleet, Tree(model=sent, known=torch.tensor([known] * 3)))
        torch.testing.assert_close(fleet.state.model.centroids, wanted)


def test_clients_of_one_graph_in_different_orders_find_each_other():
    """Two copies of a graph whose clusters begin in opposite orders end with one model between them."""
    graph = toy_graph(12)
    setup = toy_setup(FedLIT(types=2), graphs=[graph, graph], weight_decay=0.0)
    fleet = setup.fleet([0, 1])
    setup.method.start_client(fleet)
    server, _ = small_server(setup.method)
    own = select_clients(fleet.state.model.centroids, torch.tensor([0, 0]))
    own[1] = own[1].flip(0)
    order = torch.tensor([[0, 1], [1, 0]])
    sent = stack([reorder(server.state.model, order[k]) for k in (0, 1)])
    sent.centroids = own
    reply = setup.method.train(fleet, Tree(model=sent, known=torch.tensor([True, True])))
    assert match_clusters(reply.by_type.centroids, reply.by_type.centroids[0]).tolist() == order.tolist()
    assert gap(select_clients(reply.common, 1), select_clients(reply.common, 0)) < 1e-5
    assert gap(reorder(select_clients(reply.by_type, 1), order[1]), select_clients(reply.by_type, 0)) < 1e-5
    assert gap(select_clients(reply.by_type, 1), select_clients(reply.by_type, 0)) > 1e-2


def test_bytes_are_a_model_with_its_centroids_and_what_each_cluster_has():
    setup = toy_setup(FedLIT(types=4))
    model = count_bytes(initial_weights(setup.models[0], 0))
    channel = 3 * (8 * 8 + 8)
    assert model == 4 * (6 * 8 + 8 + 4 * channel + 8 * 3 + 3 + 4 * 16)
    finished = run_rounds(setup, rounds=2)
    assert finished.traffic.down == 2 * 3 * (model + 1)
    assert finished.traffic.up == 2 * 3 * (model + 8 + 4 * (1 + 8))


def test_global_model_is_scored_with_its_own_centroids():
    setup = toy_setup(FedLIT(types=2), epochs=20)
    finished = run_rounds(setup, rounds=2)
    shared = setup.method.shared(finished.server)
    right = finished.engine.ask(Request("score_shared", 2, [0, 1, 2], shared)).correct
    assert right.shape == (3, 1, 3)
    lost = Tree({**shared, "centroids": -shared.centroids})
    fleet = finished.engine.fleets[0]
    ours, other = (fleet.predict(broadcast_tree(model, 3, CPU)).logits for model in (shared, lost))
    assert not torch.allclose(ours, other)
