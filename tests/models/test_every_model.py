"""One table of architectures: each equals its stock PyG layers, and a fleet of each equals its clients alone."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, GINConv, JumpingKnowledge, SAGEConv, SGConv, TAGConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from graft.errors import InputError
from graft.federation.fleet import initial_weights
from graft.methods.local import Local
from graft.models import assign_models, build_model
from graft.models.gin import GIN
from graft.tensors.randomness import Stream
from graft.tensors.trees import flatten, select_clients
from graft.training.optimizers import Training
from tests.toy import CLASSES, bare_fleet, gap, random_weights, same, toy_graph, toy_graphs, toy_setup, trained_tree

NAMES = ("gcn", "gat", "sage", "gin", "gin_plain", "sgc", "tag", "tag3", "mlp", "gcn4", "gcn6", "gcn8")
HEADS = ("linear", "conv")
EVERY = list(itertools.product(NAMES, HEADS, (False, True)))
WIDTH = 8
CPU = torch.device("cpu")


def case_name(case):
    name, head, sparse = case
    return f"{name}-{head}-{'sparse' if sparse else 'dense'}"


@pytest.fixture(params=EVERY, ids=case_name)
def case(request):
    return request.param


@pytest.fixture(params=itertools.product(NAMES, HEADS), ids="-".join)
def layout(request):
    return request.param


def make_fleet(name, head="linear", sparse=False, dropout=0.0, graphs=None, clients=None, **training):
    graphs = graphs or toy_graphs(sparse=sparse)
    model = build_model(name, graphs[0].features, CLASSES, width=WIDTH, dropout=dropout, head=head)
    return bare_fleet(clients or list(range(len(graphs))), graphs, model, Training(**training))


# Stock layers --------------------------------------------------------------------------------------------------------


def turn(weight):
    return weight.t()


def lift(weight):
    return weight.unsqueeze(0)


def keep(weight):
    return weight


def stock_gcn(inputs, outputs, last):  # noqa: ARG001
    layer = GCNConv(inputs, outputs)
    return layer, [("weight", layer.lin.weight, turn), ("bias", layer.bias, keep)]


def stock_gat(inputs, outputs, last):
    heads = 1 if last else 4
    layer = GATConv(inputs, outputs // heads, heads=heads, concat=True, negative_slope=0.2)
    return layer, [
        ("weight", layer.lin.weight, turn),
        ("target", layer.att_dst, lift),
        ("source", layer.att_src, lift),
        ("bias", layer.bias, keep),
    ]


def stock_sage(inputs, outputs, last):  # noqa: ARG001
    layer = SAGEConv(inputs, outputs, aggr="mean")
    return layer, [
        ("neighbours", layer.lin_l.weight, turn),
        ("own", layer.lin_r.weight, turn),
        ("bias", layer.lin_l.bias, keep),
    ]


def stock_gin(inputs, outputs, last):  # noqa: ARG001
    first, norm, second = nn.Linear(inputs, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, outputs)
    layer = GINConv(nn.Sequential(first, norm, nn.ReLU(), second))
    return layer, [
        ("first/weight", first.weight, turn),
        ("first/bias", first.bias, keep),
        ("scale", norm.weight, keep),
        ("shift", norm.bias, keep),
        ("second/weight", second.weight, turn),
        ("second/bias", second.bias, keep),
    ]


def stock_plain_gin(inputs, outputs, last):  # noqa: ARG001
    first, second = nn.Linear(inputs, WIDTH), nn.Linear(WIDTH, outputs)
    return GINConv(nn.Sequential(first, nn.ReLU(), second)), [
        ("first/weight", first.weight, turn),
        ("first/bias", first.bias, keep),
        ("second/weight", second.weight, turn),
        ("second/bias", second.bias, keep),
    ]


def stock_linear(inputs, outputs, last=True):  # noqa: ARG001
    layer = nn.Linear(inputs, outputs)
    return layer, [("weight", layer.weight, turn), ("bias", layer.bias, keep)]


class LoopedTAGConv(TAGConv):
    """PyG's TAGConv over edges and self-loops, normalised by both degrees; its own leaves self-loops out."""

    def __init__(self, inputs, outputs, steps):
        super().__init__(inputs, outputs, K=steps, normalize=False)

    def forward(self, x, edges):
        return super().forward(x, *gcn_norm(edges, num_nodes=len(x), dtype=x.dtype))


def stock_sgc(inputs, outputs, steps):
    layer = SGConv(inputs, outputs, K=steps)
    return layer, [("weight", layer.lin.weight, turn), ("bias", layer.lin.bias, keep)]


def stock_tag(inputs, outputs, steps):
    layer = LoopedTAGConv(inputs, outputs, steps)
    hops = [(f"hop{step}", linear.weight, turn) for step, linear in enumerate(layer.lins)]
    return layer, [*hops, ("bias", layer.bias, keep)]


STEPPED = {"sgc": stock_sgc, "tag": stock_tag}  # one layer of several steps, without activation
LAYERS = {
    "gcn": stock_gcn,
    "gat": stock_gat,
    "sage": stock_sage,
    "gin": stock_gin,
    "gin_plain": stock_plain_gin,
    "mlp": stock_linear,
}


class Stock(nn.Module):
    """The same network out of PyG's own layers; `pairs` says which parameter is which leaf of our weights."""

    def __init__(self, name, head, features):
        super().__init__()
        self.kind, self.depth = name.rstrip("0123456789"), int(name.lstrip("abcdefghijklmnopqrstuvwxyz_") or 2)
        self.layers, self.pairs = nn.ModuleList(), []
        hidden = self.depth if head == "linear" else self.depth - 1
        if self.kind in STEPPED:
            self.add("layer0", STEPPED[self.kind](features, WIDTH, hidden))
        else:
            for index in range(hidden):
                self.add(f"layer{index}", LAYERS[self.kind](WIDTH if index else features, WIDTH, False))
        if head == "linear":
            self.add("head", stock_linear(WIDTH, CLASSES))
        elif self.kind in STEPPED:
            self.add("head", STEPPED[self.kind](WIDTH, CLASSES, 1))
        else:
            self.add("head", LAYERS[self.kind](WIDTH, CLASSES, True))

    def add(self, place, made):
        layer, pairs = made
        self.layers.append(layer)
        self.pairs += [(f"{place}/{path}", parameter, shape) for path, parameter, shape in pairs]

    def load(self, weights):
        ours = dict(flatten(weights))
        assert {path for path, _, _ in self.pairs} == set(ours)
        for path, parameter, shape in self.pairs:
            parameter.data = shape(ours[path]).clone()

    def forward(self, x, edges):
        outputs = []
        for layer in self.layers[:-1]:
            x = self.apply_layer(layer, x, edges)
            x = x if self.kind in STEPPED else torch.relu(x)
            outputs.append(x)
        embedding = JumpingKnowledge("max")(outputs) if self.depth >= 4 else x
        return embedding, self.apply_layer(self.layers[-1], embedding, edges)

    @staticmethod
    def apply_layer(layer, x, edges):
        return layer(x) if isinstance(layer, nn.Linear) else layer(x, edges)


def dense_of(graph):
    return torch.as_tensor(graph.x.toarray() if hasattr(graph.x, "toarray") else graph.x)


def test_every_model_equals_its_stock_layers(case):
    name, head, sparse = case
    graph = toy_graph(12, sparse=sparse)
    fleet = make_fleet(name, head, graphs=[graph])
    weights, wanted = trained_tree(random_weights(fleet.model))
    ours = fleet.forward(weights)
    gradients = dict(
        zip(
            [path for path, _ in flatten(weights)],
            torch.autograd.grad(fleet.cross_entropy(ours.logits).sum(), wanted),
            strict=True,
        )
    )

    stock = Stock(name, head, graph.features)
    stock.load(select_clients(weights, 0))
    embedding, logits = stock(dense_of(graph), torch.from_numpy(graph.edges))
    train = torch.from_numpy(graph.train)
    functional.cross_entropy(logits[train], torch.from_numpy(graph.y)[train]).backward()

    torch.testing.assert_close(ours.embedding[0], embedding, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.logits[0], logits, atol=1e-5, rtol=1e-5)
    for path, parameter, shape in stock.pairs:
        torch.testing.assert_close(shape(gradients[path][0]), parameter.grad, atol=1e-5, rtol=1e-5, msg=path)

    stock.load(select_clients(random_weights(fleet.model, seed=1), 0))
    other = stock(dense_of(graph), torch.from_numpy(graph.edges))[1]
    assert (ours.logits[0] - other).abs().max() > 1e-2  # other weights, other logits


def test_no_model_but_mlp_ignores_the_edges():
    graph = toy_graph(12)
    bare = toy_graph(12, edgeless=True)
    for name in NAMES:
        fleet, without = make_fleet(name, graphs=[graph]), make_fleet(name, graphs=[bare])
        weights = random_weights(fleet.model)
        unchanged = torch.equal(dense_of(graph), dense_of(bare)) and torch.allclose(
            fleet.predict(weights).logits, without.predict(weights).logits
        )
        assert unchanged == (name == "mlp"), name


# Fleets --------------------------------------------------------------------------------------------------------------


def test_fleet_of_three_predicts_as_three_fleets_of_one(case):
    name, head, sparse = case
    graphs = toy_graphs(sparse=sparse)
    fleet = make_fleet(name, head, graphs=graphs)
    weights, wanted = trained_tree(random_weights(fleet.model, 3))
    output = fleet.forward(weights)
    gradients = torch.autograd.grad(fleet.cross_entropy(output.logits).sum(), wanted)
    for client, graph in enumerate(graphs):
        alone = make_fleet(name, head, graphs=[graph], clients=[client])
        own, own_wanted = trained_tree(select_clients(weights, slice(client, client + 1)))
        single = alone.forward(own)
        own_gradients = torch.autograd.grad(alone.cross_entropy(single.logits).sum(), own_wanted)
        torch.testing.assert_close(output.logits[client, : graph.nodes], single.logits[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(output.embedding[client, : graph.nodes], single.embedding[0], atol=1e-5, rtol=1e-5)
        for mine, theirs in zip(own_gradients, gradients, strict=True):
            torch.testing.assert_close(mine[0], theirs[client], atol=1e-5, rtol=1e-5)
    assert (output.logits[0, :7] - output.logits[2, :7]).abs().max() > 1e-2  # clients do differ


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_fleet_of_three_trains_as_three_fleets_of_one(case, dropout):
    name, head, sparse = case
    graphs = toy_graphs(sparse=sparse)
    fleet = make_fleet(name, head, graphs=graphs, dropout=dropout, epochs=4)
    start = random_weights(fleet.model, 3)

    def loss(weights, fleet):
        return fleet.cross_entropy(fleet.forward(weights).logits)

    fleet = fleet.for_call(1, "train")
    together = fleet.fit(start, loss)
    assert gap(together, start) > 1e-2  # it did train
    for client, graph in enumerate(graphs):
        alone = make_fleet(name, head, graphs=[graph], clients=[client], dropout=dropout, epochs=4)
        alone = alone.for_call(1, "train")
        own = alone.fit(select_clients(start, slice(client, client + 1)), loss)
        assert gap(select_clients(own, 0), select_clients(together, client)) < 1e-5
    fleet.state.clear()
    fleet = fleet.for_call(2, "train")  # another round has other dropout, and only then other weights
    assert same(fleet.fit(start, loss), together) == (dropout == 0)


def test_one_clients_features_change_only_its_own_output(layout):
    name, head = layout
    graphs = toy_graphs()
    changed = [graphs[0], replace(graphs[1], x=graphs[1].x + 1), graphs[2]]
    fleet, other = make_fleet(name, head, graphs=graphs), make_fleet(name, head, graphs=changed)
    weights = random_weights(fleet.model, 3)
    before, after = fleet.predict(weights).logits, other.predict(weights).logits
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert (before[1, :9] - after[1, :9]).abs().max() > 1e-2


def test_a_selection_of_a_fleet_predicts_as_the_whole(case):
    name, head, sparse = case
    fleet = make_fleet(name, head, sparse)
    weights = random_weights(fleet.model, 3)
    whole = fleet.predict(weights).logits
    some = fleet.select([2, 0]).predict(select_clients(weights, torch.tensor([2, 0]))).logits
    torch.testing.assert_close(some, whole[[2, 0]], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(some, whole[[0, 2]])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.75])
def test_dropout_keeps_the_mean_by_enlarging_what_is_left(rate):
    model = build_model("gcn", 6, CLASSES, dropout=rate)
    dropped = model.apply_dropout(torch.ones(2, 500, 64), Stream(torch.tensor([1, 2])))
    assert torch.allclose(dropped[dropped != 0], torch.tensor(1 / (1 - rate)))
    assert float(dropped.mean()) == pytest.approx(1, abs=4 * (rate / (1 - rate) / dropped.numel()) ** 0.5)
    assert torch.equal(model.apply_dropout(torch.ones(2, 5, 64), None), torch.ones(2, 5, 64))


def test_embedding_is_taken_before_dropout():
    fleet = make_fleet("mlp1", dropout=0.5, graphs=[toy_graph(12)])
    weights = random_weights(fleet.model)
    noisy, quiet = fleet.forward(weights), fleet.predict(weights)
    assert torch.equal(noisy.embedding, quiet.embedding)
    assert not torch.equal(noisy.logits, quiet.logits)


# Initial weights -----------------------------------------------------------------------------------------------------


def test_initial_weights_depend_on_the_seed_alone(layout):
    name, head = layout
    model = build_model(name, 6, CLASSES, width=WIDTH, head=head)
    again = build_model(name, 6, CLASSES, width=WIDTH, head=head)
    assert same(initial_weights(model, 3), initial_weights(again, 3))
    assert gap(initial_weights(model, 3), initial_weights(model, 4)) > 1e-2
    fleet = toy_setup(Local(), models=name, head=head, seed=3).fleet([0, 1, 2])
    started = fleet.initial()
    assert same(select_clients(started, 0), select_clients(started, 2))
    assert same(select_clients(started, 0), initial_weights(fleet.model, 3))


GLOROT = {"gcn": ("weight",), "gat": ("weight", "target", "source")}  # the other leaves start as PyTorch's Linear does


@pytest.mark.parametrize("name", NAMES)
def test_initial_weights_fill_their_bounds(name):
    model = build_model(name, 200, 5, width=64)
    weights = initial_weights(model, 0)
    kind = name.rstrip("0123456789")
    for path, leaf in flatten(weights):
        *_, field = path.split("/")
        starts_as_glorot = kind in GLOROT and not path.startswith("head")
        if field in ("scale", "shift"):
            assert (leaf == (field == "scale")).all(), path
            continue
        if starts_as_glorot and field == "bias":
            assert not leaf.any(), path
            continue
        if starts_as_glorot:
            bound = (6 / sum(leaf.shape)) ** 0.5
        else:
            inputs = leaf.shape[0] if leaf.dim() == 2 else inputs_of(weights, path)
            bound = inputs**-0.5
        assert leaf.abs().max() <= bound, path
        if leaf.numel() > 1000:
            assert leaf.abs().max() > 0.95 * bound, path
            assert leaf.mean().abs() < 0.1 * bound, path
            assert abs(float(leaf.var()) / (bound**2 / 3) - 1) < 0.1, path


def inputs_of(weights, path):
    """How many inputs the layer of a bias has."""
    place = path.rsplit("/", 1)[0] + "/"
    return next(leaf.shape[0] for other, leaf in flatten(weights) if other.startswith(place) and leaf.dim() == 2)


def test_convolutional_head_of_gat_has_one_attention_head_whatever_the_number_of_classes():
    few = build_model("gat", 6, CLASSES, width=WIDTH, head="conv")
    many = build_model("gat", 6, WIDTH, width=WIDTH, head="conv")
    assert initial_weights(few, 0).head.target.shape == (1, CLASSES)
    assert initial_weights(many, 0).head.target.shape == (1, WIDTH)
    assert initial_weights(many, 0).layer0.target.shape == (4, WIDTH // 4)


# Nodes and clients without neighbours --------------------------------------------------------------------------------


def test_clients_without_edges_or_training_nodes_give_finite_numbers(case):
    name, head, sparse = case
    graphs = [toy_graph(12, sparse=sparse), toy_graph(7, edgeless=True, sparse=sparse), toy_graph(9, sparse=sparse)]
    graphs[2] = replace(graphs[2], train=graphs[2].train & False)
    for held in (graphs, graphs[1:2]):  # among others, and alone: then there is no edge at all
        fleet = make_fleet(name, head, graphs=held, dropout=0.5)
        weights, wanted = trained_tree(random_weights(fleet.model, len(held)))
        output = fleet.forward(weights)
        loss = fleet.cross_entropy(output.logits)
        gradients = torch.autograd.grad(loss.sum(), wanted)
        assert all(part.isfinite().all() for part in (*output, loss, *gradients))
    fleet = make_fleet(name, head, graphs=graphs)
    weights, wanted = trained_tree(random_weights(fleet.model, 3))
    loss = fleet.cross_entropy(fleet.forward(weights).logits)
    assert loss[2] == 0
    assert not any(gradient[2].any() for gradient in torch.autograd.grad(loss.sum(), wanted))
    assert loss[1] > 0


def test_isolated_node_hears_only_itself(layout):
    name, head = layout
    graph = toy_graph(12)
    assert 11 not in graph.edges
    rest = graph.x.copy()
    rest[:11] += 1
    itself = graph.x.copy()
    itself[11] += 1
    fleet = make_fleet(name, head, graphs=[graph])
    weights = random_weights(fleet.model)
    before = fleet.predict(weights).logits[0, 11]
    unmoved = make_fleet(name, head, graphs=[replace(graph, x=rest)]).predict(weights).logits[0, 11]
    moved = make_fleet(name, head, graphs=[replace(graph, x=itself)]).predict(weights).logits[0, 11]
    torch.testing.assert_close(before, unmoved, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(before, moved)


# The table -----------------------------------------------------------------------------------------------------------


def test_clients_get_models_in_turn():
    models = assign_models("architectures", 7, 6, 3, width=8)
    assert [model.name for model in models] == ["gcn", "gat", "sage", "gin", "sgc", "gcn", "gat"]
    assert [model.name for model in assign_models("scales", 5, 6, 3)] == ["sgc", "gcn", "gcn4", "gcn6", "gcn8"]
    assert [model.name for model in assign_models("mlp, gcn4", 3, 6, 3)] == ["mlp", "gcn4", "mlp"]


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("gnc", {}, "Unknown model 'gnc': there are gcn, gat, sage"),
        ("gcn0", {}, "between 1 and 64"),
        ("gat", {"width": 6}, "6 does not divide"),
        ("gcn1", {"head": "conv"}, "no layer left for its embedding; use gcn2"),
    ],
)
def test_impossible_models_are_refused(name, settings, words):
    with pytest.raises(InputError, match=words):
        build_model(name, 6, 3, **settings)


def test_gin_without_normalisation_is_the_plain_sum_through_a_perceptron():
    graph = toy_graph(9)
    model = GIN(graph.features, CLASSES, width=WIDTH, dropout=0.0, normalise=False)
    weights = random_weights(model)
    fleet = bare_fleet([0], [graph], model, Training())
    layer = weights.layer0
    x, edges = torch.from_numpy(graph.x), torch.from_numpy(graph.edges)
    summed = x.index_add(0, edges[0], x[edges[1]])
    inner = torch.relu(summed @ layer.first.weight[0] + layer.first.bias[0])
    wanted = inner @ layer.second.weight[0] + layer.second.bias[0]
    assert torch.allclose(model.layer(layer, fleet.graph, fleet.graph.features)[0], wanted, atol=1e-5)
    normalised = GIN(graph.features, CLASSES, width=WIDTH, dropout=0.0)
    assert "scale" in random_weights(normalised).layer0
    assert "scale" not in layer


@pytest.mark.parametrize("name", [*NAMES, "ortho_gcn"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_training_and_evaluation_at_once_are_the_two_one_by_one(name, dropout):
    fleet = make_fleet(name, dropout=dropout)
    weights, wanted = trained_tree(random_weights(fleet.model, 3))
    training, evaluation = fleet.forward_and_predict(weights)
    fleet = fleet.for_call(0, "start")
    alone, judged = fleet.forward(weights), fleet.predict(weights)
    assert all(torch.equal(one, other) for one, other in zip((*training, *evaluation), (*alone, *judged), strict=True))
    assert torch.equal(training.logits, evaluation.logits) == (dropout == 0)
    assert not evaluation.logits.requires_grad
    gradients = [torch.autograd.grad(output.logits.square().sum(), wanted) for output in (training, alone)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
