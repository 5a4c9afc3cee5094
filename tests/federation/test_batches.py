"""Training in batches: a client's nodes are cut into parts once, and an epoch takes one step on each."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import graft
import graft.federation.setup
from graft.data.graphs import subgraph
from graft.data.synthetic import generate
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.federation.labels import FleetData
from graft.methods import METHODS
from graft.models import assign_models, build_model
from graft.tensors.trees import flatten, map_tree, select_clients
from graft.training.optimizers import Training
from tests.contract import usual_model
from tests.memory import peak_of
from tests.toy import (
    CLASSES,
    bare_fleet,
    gap,
    random_weights,
    run_rounds,
    same,
    toy_graph,
    toy_graphs,
    toy_setup,
    unbroken_and_resumed,
)

CPU = torch.device("cpu")
SIZES = (41, 37, 31)
MODELS = ("gcn", "gat", "sage", "gin", "sgc", "mlp")

# The majority class is no model that is trained, in batches or otherwise.
BATCHED = sorted(name for name, method in METHODS.items() if method.supports_batches and name != "majority")
every_batched_method = pytest.mark.parametrize("name", BATCHED)


def setup_of(name, batches=2, **settings):
    method = METHODS[name]()
    settings = {"models": usual_model(method) if method.one_model else "gcn,sage", "sizes": SIZES, **settings}
    return toy_setup(method, batches=batches, **settings)


def make_fleet(graphs, model="gcn", batches=3, dropout=0.0, clients=None, **training):
    model = build_model(model, graphs[0].features, CLASSES, width=8, dropout=dropout)
    settings = Training(batches=batches, **training)
    return bare_fleet(clients or list(range(len(graphs))), graphs, model, settings)


def nodes_of(fleet, batch, client):
    data = fleet.cut_batches()[batch]
    return data.nodes[client][data.graph.real[client]].tolist()


def plain_loss(weights, fleet):
    return fleet.cross_entropy(fleet.forward(weights).logits)


def batches_of(fleet):
    """A view of each batch, in the order of the first epoch."""
    return [turn.batch for turn in fleet._batches(0)]


def number_of(fleet):
    """Which of its batches a view is of."""
    return next(number for number, data in enumerate(fleet.cut_batches()) if data is fleet.data)


def test_batches_share_out_every_clients_nodes():
    graphs = toy_graphs(sizes=SIZES)
    fleet = make_fleet(graphs)
    assert len(fleet.cut_batches()) == 3
    for client, graph in enumerate(graphs):
        parts = [nodes_of(fleet, batch, client) for batch in range(3)]
        assert sorted(node for part in parts for node in part) == list(range(graph.nodes))
        assert max(map(len, parts)) <= 1.4 * graph.nodes / 3
        for place, part in enumerate(parts):
            batch = fleet.cut_batches()[place]
            assert batch.labels.classes[client, : len(part)].tolist() == graph.y[part].tolist()
            assert batch.labels.masks[client, 0, : len(part)].tolist() == graph.train[part].tolist()
            assert np.array_equal(batch.graph.features[client, : len(part)].numpy(), graph.x[part])


def test_clusters_keep_more_edges_than_chance_would():
    graph = generate(600, 8, 6, homophily=0.95, features=4)
    fleet = make_fleet([replace(graph, classes=CLASSES, y=graph.y % CLASSES)], batches=4)
    kept = sum(batch.graph.neighbours.entries for batch in fleet.cut_batches())
    assert kept > 1.5 * graph.edges.shape[1] / 4  # parts drawn by lot keep a quarter


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_loss_of_a_batch_is_the_loss_on_its_subgraph(model, sparse):
    graphs = toy_graphs(sizes=SIZES, sparse=sparse)
    fleet = make_fleet(graphs, model)
    weights = random_weights(fleet.model, 3)
    whole = plain_loss(weights, fleet)
    seen = []
    for batch in batches_of(fleet):
        place = number_of(batch)
        losses = plain_loss(weights, batch)
        for client, graph in enumerate(graphs):
            part = subgraph(graph, nodes_of(fleet, place, client))
            alone = make_fleet([part], model, batches=1)
            wanted = plain_loss(map_tree(lambda leaf, k=client: leaf[k : k + 1], weights), alone)
            torch.testing.assert_close(losses[client : client + 1], wanted)
            assert not torch.allclose(losses[client], whole[client], atol=1e-4)
        seen.append(place)
    assert sorted(seen) == [0, 1, 2]


def test_loss_of_a_batch_worked_out_with_dense_matrices():
    graph = toy_graph(20)
    fleet = make_fleet([graph], batches=2)
    weights = random_weights(fleet.model, 1)
    first, second, head = (select_clients(weights[name], 0) for name in ("layer0", "layer1", "head"))
    for batch in batches_of(fleet):
        nodes = batch.data.nodes[0].numpy()
        adjacency = np.eye(20)
        adjacency[graph.edges[0], graph.edges[1]] = 1
        inside = torch.tensor(adjacency[np.ix_(nodes, nodes)], dtype=torch.float32)
        scale = inside.sum(1).rsqrt()
        spread = scale[:, None] * inside * scale
        hidden = torch.as_tensor(graph.x[nodes])
        for layer in (first, second):
            hidden = torch.relu(spread @ hidden @ layer.weight + layer.bias)
        chances = (hidden @ head.weight + head.bias).log_softmax(1)
        train = np.flatnonzero(graph.train[nodes])
        wanted = -np.mean([float(chances[node, graph.y[nodes][node]]) for node in train])
        assert float(plain_loss(weights, batch)) == pytest.approx(wanted, abs=1e-5)


def test_one_batch_of_all_nodes_is_full_batch_training():
    graphs = toy_graphs(sizes=SIZES)
    full, one, two = (make_fleet(graphs, batches=batches, dropout=0.5) for batches in (1, 2, 2))
    everything = FleetData(one.graph, one.labels, torch.arange(SIZES[0]).expand(3, -1))
    one = replace(one, cut_batches=lambda: [everything])
    results = [fleet.fit(fleet.initial(), plain_loss) for fleet in (full, one, two)]
    assert same(results[0], results[1])
    assert same(full.state, one.state)
    assert torch.equal(full.call.losses["model"], one.call.losses["model"])
    assert gap(results[0], results[2]) > 1e-3


def test_full_batch_training_cuts_nothing(monkeypatch):
    monkeypatch.setattr(graft.federation.setup, "build_batches", None)
    run_rounds(setup_of("fedavg", batches=1))
    with pytest.raises(Exception, match="callable"):
        run_rounds(setup_of("fedavg", batches=2))


def test_every_epoch_takes_every_batch_once_in_an_order_of_its_own():
    fleet = make_fleet(toy_graphs(sizes=SIZES), batches=5, epochs=4)
    orders = []

    def loss(weights, batch):
        orders.append(number_of(batch))
        return plain_loss(weights, batch)

    weights = fleet.fit(fleet.initial(), loss)
    epochs = [tuple(orders[first : first + 5]) for first in range(0, 20, 5)]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)
    assert len(set(epochs)) > 1
    fleet = fleet.for_call(2, "train")
    fleet.fit(weights, loss)
    assert orders[:20] == orders[20:]  # what a captured step does must not depend on the round


def test_adam_counts_a_step_a_batch_and_the_loss_is_the_mean_over_the_last_epoch():
    fleet = make_fleet(toy_graphs(sizes=SIZES), batches=3, epochs=2)
    losses = []

    def loss(weights, batch):
        losses.append(plain_loss(weights, batch))
        return losses[-1]

    fleet.fit(fleet.initial(), loss)
    assert fleet.training.steps == 6
    assert fleet.state.optimizer.model.steps.tolist() == [6, 6, 6]
    torch.testing.assert_close(fleet.call.losses["model"], torch.stack(losses[3:]).mean(0).detach())


def test_a_loss_is_given_the_batch_and_the_fleet_itself_cannot_be_changed():
    fleet = make_fleet(toy_graphs(sizes=SIZES))
    seen = []

    def loss(weights, batch):
        seen.append(batch)
        return plain_loss(weights, batch)

    fleet.fit(fleet.initial(), loss)
    assert all(batch.graph is not fleet.graph and batch.labels is not fleet.labels for batch in seen)
    assert all(batch.state is fleet.state and batch.call is fleet.call for batch in seen)
    with pytest.raises(FrozenInstanceError):
        fleet.data = seen[0].data


def test_values_of_all_nodes_are_gathered_for_those_of_a_batch():
    graphs = toy_graphs(sizes=SIZES)
    fleet = make_fleet(graphs)
    assert torch.equal(fleet.at_nodes(fleet.graph.features), fleet.graph.features)
    for batch in batches_of(fleet):
        whole = torch.zeros(3, SIZES[0], 6)
        for client, graph in enumerate(graphs):
            whole[client, : graph.nodes] = torch.as_tensor(graph.x)
        real = batch.graph.real
        assert torch.equal(batch.at_nodes(whole)[real], batch.graph.features[real])
        assert batch.at_nodes(whole[:, :, 0]).shape == real.shape


@pytest.mark.parametrize("optimizer", ["adam", "momentum", "sgd"])
def test_a_client_stays_as_it_is_where_a_batch_teaches_it_nothing(optimizer):
    """Momentum and weight decay would move it otherwise."""
    graphs = toy_graphs(2, sizes=(41, 37))
    one_label = graphs[1].train & (np.cumsum(graphs[1].train) == 1)
    lone = replace(graphs[1], train=one_label)
    settings = dict(batches=3, epochs=2, optimizer=optimizer, weight_decay=0.1)
    fleet = make_fleet([graphs[0], lone], **settings)
    assert [batch.may_lack_labels for batch in fleet.cut_batches()].count(True) == 2
    path = []

    def loss(weights, batch):
        path.append((batch.data.may_lack_labels, map_tree(lambda leaf: leaf.detach().clone(), weights)))
        return plain_loss(weights, batch)

    end = fleet.fit(fleet.initial(), loss)
    afterwards = [weights for _, weights in path[1:]] + [end]
    for (may_lack_labels, before), after in zip(path, afterwards, strict=True):
        moved = [gap(select_clients(before, client), select_clients(after, client)) for client in (0, 1)]
        assert moved[0] > 0
        assert (moved[1] > 0) == (not may_lack_labels)
    assert all(leaf.isfinite().all() for _, leaf in flatten(end))
    if optimizer == "adam":
        assert fleet.state.optimizer.model.steps.tolist() == [6, 2]
    alone = make_fleet([lone], clients=[1], **settings)
    assert gap(select_clients(alone.fit(alone.initial(), plain_loss), 0), select_clients(end, 1)) < 1e-6


def test_an_unlabelled_batch_still_teaches_what_needs_no_labels():
    graph = toy_graph(41)
    fleet = make_fleet([replace(graph, train=graph.train & (np.cumsum(graph.train) == 1))])
    start = fleet.initial()
    fleet.fit(start, lambda weights, batch: batch.forward(weights).logits.square().mean((1, 2)))
    assert fleet.state.optimizer.model.steps.tolist() == [9]


def test_a_client_without_any_training_node_gives_no_nan():
    graph = toy_graph(41)
    fleet = make_fleet([replace(graph, train=np.zeros(41, bool)), toy_graph(37)])
    end = fleet.fit(fleet.initial(), plain_loss)
    assert all(leaf.isfinite().all() for _, leaf in flatten(end))
    assert gap(select_clients(end, 0), select_clients(fleet.initial(), 0)) == 0
    assert gap(select_clients(end, 1), select_clients(fleet.initial(), 1)) > 0


def test_a_graph_without_edges_is_cut_too():
    fleet = make_fleet([toy_graph(12, edgeless=True)], batches=4)
    assert [len(nodes_of(fleet, batch, 0)) > 0 for batch in range(4)] == [True] * 4
    fleet.fit(fleet.initial(), plain_loss)


class Made(TorchDispatchMode):
    """Notes the sides of every tensor that is made."""

    def __init__(self):
        super().__init__()
        self.sides = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, torch.Tensor):
                self.sides |= set(one.shape)
        return result


def sides_while_training(setup, monkeypatch):
    """The sides of all tensors made while clients train, and those that tensors of all nodes would have."""
    engine = InProcess(setup)
    finished = run_rounds(setup, rounds=1, engine=engine)  # what is prepared once is made here
    made, fit = Made(), graft.federation.fleet.fit

    def watched(*given, **options):
        with made:
            return fit(*given, **options)

    monkeypatch.setattr(graft.federation.fleet, "fit", watched)
    run_rounds(setup, rounds=1, engine=engine, first=2, state=finished.server.state)
    assert made.sides
    return made.sides, {fleet.graph.nodes for fleet in engine.fleets}


@every_batched_method
def test_no_method_makes_a_tensor_of_all_nodes_while_it_trains_in_batches(name, monkeypatch):
    made, whole = sides_while_training(setup_of(name, batches=3, dropout=0.5), monkeypatch)
    assert not made & whole


def test_full_batch_training_does_make_such_tensors(monkeypatch):
    made, whole = sides_while_training(setup_of("fedgkc", batches=1), monkeypatch)
    assert whole <= made


@every_batched_method
def test_a_fleet_equals_its_clients_one_by_one(name):
    setup = setup_of(name, dropout=0.5)
    together, alone = run_rounds(setup, rounds=2), run_rounds(setup, rounds=2, engine=InProcess(setup, alone=True))
    for client in together.engine.members():
        assert gap(together.client(client), alone.client(client)) < 1e-5
    full = run_rounds(setup_of(name, batches=1, dropout=0.5), rounds=2)
    assert gap(together.client(0), full.client(0)) > 1e-4


@pytest.mark.parametrize("name", ["fedavg", "fedgkc", "fedgkc_paper", "moon", "dpsgd"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_resumed_equals_unbroken(name, participation):
    setup = setup_of(name, clients=4, dropout=0.5, participation=participation)
    unbroken, rest = unbroken_and_resumed(setup)
    assert same(unbroken.server.state, rest.server.state)
    for client in rest.engine.members():
        assert same(unbroken.client(client), rest.client(client))


@pytest.mark.parametrize("name", ["fedavg", "fedgkc_paper"])
def test_processes_with_messages_as_bytes_give_the_same_result(name):
    setup = setup_of(name, batches=3, dropout=0.5)
    here = run_rounds(setup, rounds=2)
    engine = Loopback(setup)
    try:
        run_rounds(setup, rounds=2, engine=engine)
        states = engine.state()
    finally:
        engine.close()
    for client, state in here.engine.state().items():
        assert gap(state, states[client]) < 1e-5


def test_scaffold_divides_its_path_by_all_steps_of_a_round():
    """With one client there is nothing to correct, so its control is the mean of the gradients it followed."""
    setup = toy_setup(METHODS["scaffold"](), clients=1, sizes=SIZES, batches=2, optimizer="sgd", weight_decay=0.0)
    engine = InProcess(setup)
    fleet = engine.fleets[0]
    start = fleet.initial()
    end = run_rounds(setup, rounds=1, engine=engine).client(0)
    path = map_tree(lambda first, last: (first[0] - last) / (6 * 0.01), start, end.model)
    assert gap(path, end.control) < 1e-5


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_training_takes_less_memory_with_more_batches(model):
    graph = generate(4000, 10, CLASSES, features=16)
    graph = replace(graph, train=np.arange(4000) % 5 == 0)
    peaks = []
    for batches in (1, 4, 16):
        fleet = make_fleet([graph], model, batches=batches, dropout=0.5, epochs=1)
        start = fleet.initial()
        fleet.fit(start, plain_loss)  # what is prepared once is made here
        peaks.append(peak_of(lambda fleet=fleet, start=start: fleet.fit(start, plain_loss)))
    assert peaks[1] < 0.4 * peaks[0]
    assert peaks[2] < 0.4 * peaks[1]


def test_batches_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="batches is 0; it must be at least 1"):
        graft.run(batches=0)
    with pytest.raises(InputError, match="batches is 1000, but client 3 has only"):
        graft.run("fedavg", batches=1000, rounds=1)
    with pytest.raises(InputError, match="'fedsage_plus' trains on whole graphs only: batches must be 1, not 2"):
        graft.run("fedsage_plus", batches=2, rounds=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["fedavg", "fedgkc_paper", "moon"])
def test_replayed_batches_equal_plain_ones_and_those_of_the_cpu(name):
    here = setup_of(name, batches=3, dropout=0.5)
    there = replace(here, device=torch.device("cuda"))
    replayed, plain, cpu = (
        run_rounds(there, rounds=5),
        run_rounds(replace(there, capture=False), rounds=5),
        run_rounds(here, rounds=5),
    )
    assert replayed.engine.rounds.captured
    for client in range(3):
        assert gap(replayed.client(client), plain.client(client)) < 1e-5
        assert gap(map_tree(torch.Tensor.cpu, replayed.client(client).model), cpu.client(client).model) < 1e-4


def test_your_own_module_trains_in_batches():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.map = torch.nn.Linear(6, CLASSES)

        def forward(self, x, edges):
            return self.map(x.index_add(0, edges[0], x[edges[1]]))

    graph = toy_graph(41)
    model = assign_models(Own(), 1, 6, CLASSES, width=8, dropout=0.0, head="linear")[0]
    fleet = bare_fleet([0], [graph], model, Training(batches=3))
    weights = fleet.initial()
    for batch in batches_of(fleet):
        part = subgraph(graph, batch.data.nodes[0].numpy())
        alone = bare_fleet([0], [part], model, Training())
        torch.testing.assert_close(plain_loss(weights, batch), plain_loss(weights, alone))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedgkc"])
def test_models_learn_the_digits_in_batches_about_as_well(method):
    full, cut = (
        graft.run(method, clients=3, rounds=20, batches=batches, device="cpu").accuracy["test"] for batches in (1, 4)
    )
    assert cut > full - 0.02
    assert cut > 0.94
