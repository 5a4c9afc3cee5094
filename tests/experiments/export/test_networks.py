"""Plain modules give what Graft's own models give, on graphs that training never saw."""

import numpy as np
import pytest
import torch

import graft
from graft.experiments.export.modules import NETWORKS
from graft.experiments.export.networks.gat import GAT
from graft.experiments.export.networks.gin import GIN
from graft.experiments.export.networks.layered import LayeredNetwork
from graft.experiments.export.networks.mlp import MLP
from graft.models import NATIVE
from graft.tensors.trees import flatten

SETTINGS = dict(
    dataset="synthetic:nodes=60,degree=4,classes=3,features=6", clients=2, width=8, rounds=2, device="cpu", threads=1
)


def unseen_graph(nodes=23, weighted=False, features=6):
    """Returns a graph with an isolated node, and its tensors as PyG people have them."""
    random = np.random.default_rng(nodes)
    ends = random.integers(0, nodes - 1, (2, 3 * nodes))
    weights = random.uniform(0.2, 3, ends.shape[1]) if weighted else None
    x = random.normal(size=(nodes, features))
    graph = graft.make_graph("unseen", x, ends, np.full(nodes, -1), 3, weights=weights)
    edge_weight = None if graph.weights is None else torch.from_numpy(graph.weights)
    return graph, (torch.from_numpy(graph.x), torch.from_numpy(graph.edges), edge_weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("head", ["linear", "conv"])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("name", NATIVE)
def test_module_gives_the_logits_of_the_model(name, depth, head, weighted):
    if depth == 1 and head == "conv" and name != "ortho_gcn":
        pytest.skip("no layer would be left for an embedding")
    result = graft.run("fedavg", models=f"{name}{depth}", head=head, **SETTINGS)
    graph, inputs = unseen_graph(weighted=weighted)
    model = result.client(1)
    prepared = model.prepare(graph)
    with torch.no_grad():
        logits = model.module()(torch.from_numpy(prepared.x), *inputs[1:])
    expected = model.logits(prepared)
    rounding = 1e-6 * max(1, float(expected.abs().max()))  # sums that nothing normalises grow from layer to layer
    assert torch.allclose(logits, expected, rtol=1e-6, atol=rounding)
    assert torch.allclose(logits.softmax(1), torch.from_numpy(model.predict(graph).probabilities), atol=1e-6)
    assert expected.std(0).max() > 1e-3  # all alike would be no test


@pytest.mark.parametrize("name", NATIVE)
def test_module_depends_on_edges_and_weights_as_the_model_does(name):
    model = graft.run("fedavg", models=name, **SETTINGS).client(0)
    _, (x, edge_index, edge_weight) = unseen_graph(weighted=True)
    with torch.no_grad():
        module = model.module()
        weighted, plain, edgeless = (
            module(x, edge_index, edge_weight),
            module(x, edge_index),
            module(x, edge_index[:, :0]),
        )
    reads_edges = name != "mlp"
    assert torch.allclose(weighted, plain) != reads_edges
    assert torch.allclose(plain, edgeless) != reads_edges


@pytest.mark.parametrize(
    "settings",
    [
        dict(orthogonal=False),
        dict(center=True),
        dict(newton_steps=2, hybrid=0.5),
        dict(scale_free=False),
        dict(newton_bound="frobenius"),
        dict(propagated=False),
    ],
)
def test_settings_of_orthogonal_layers_are_those_of_the_method(settings):
    model = graft.run("fedomd", settings=settings, **SETTINGS).client(0)
    graph, inputs = unseen_graph()
    with torch.no_grad():
        assert torch.allclose(model.module()(*inputs), model.logits(graph), rtol=1e-5, atol=1e-6)


def test_module_of_fedomd_does_not_see_the_size_of_features_either():
    _, (x, edge_index, _) = unseen_graph()
    resized = []
    for scale_free in (True, False):
        model = graft.run("fedomd", settings={"scale_free": scale_free}, **SETTINGS).client(0)
        with torch.no_grad():
            module = model.module()
            resized.append(torch.allclose(module(100 * x, edge_index), module(x, edge_index), rtol=1e-3, atol=1e-4))
    assert resized == [True, False]


@pytest.mark.parametrize(("depth", "head"), [(2, "linear"), (2, "conv"), (4, "linear"), (4, "conv")])
@pytest.mark.parametrize("network", [GAT, GIN, MLP])
def test_networks_that_torchscript_can_express_are_compiled_and_not_recorded(network, depth, head):
    module = network(6, 3, depth, width=8, head=head).eval()
    compiled = torch.jit.script(module)
    for weighted in (False, True):  # what was recorded with weights would need them
        _, inputs = unseen_graph(weighted=weighted)
        with torch.no_grad():
            assert torch.allclose(compiled(*inputs), module(*inputs), atol=1e-6)


def test_compiling_takes_branches_that_are_known(monkeypatch):
    monkeypatch.setattr(LayeredNetwork, "__constants__", ())
    with pytest.raises(RuntimeError):
        torch.jit.script(GIN(6, 3))


def test_a_perceptron_needs_no_edges():
    _, (x, edge_index, edge_weight) = unseen_graph(weighted=True)
    module = MLP(6, 3).eval()
    assert torch.equal(module(x), module(x, edge_index, edge_weight))
    with pytest.raises(TypeError, match="edge_index"):
        GIN(6, 3)(x)


def test_a_setting_of_another_kind_is_refused():
    assert len(GAT(6, 3, heads=2).layers[0].target) == 2
    with pytest.raises(TypeError, match="heads"):
        GIN(6, 3, heads=2)


def test_every_native_model_has_a_network():
    assert {kind.kind for kind in NETWORKS} == set(NATIVE)


def test_weights_of_a_client_are_copies_without_the_name_of_its_architecture():
    result = graft.run("local", models="gcn,gat", **SETTINGS)
    weights = result.client(1).weights
    assert {path for path, _ in flatten(weights)} > {"layer0/target", "head/bias"}
    before = result.client(1).predict().probabilities
    for _, leaf in flatten(weights):
        leaf.zero_()
    assert (result.client(1).predict().probabilities == before).all()


def test_a_method_that_predicts_with_more_than_a_model_has_no_module():
    small = dict(hidden=1.0, slots=2, latent=8, encoder_width=8, rank=4, generator_epochs=2, shared_epochs=1)
    model = graft.run("fedsage_plus", settings=small, **SETTINGS).client(0)
    with pytest.raises(graft.InputError, match="Method 'fedsage_plus' predicts with more than models and a graph"):
        model.module()
    assert len(model.predict(unseen_graph()[0])) == 23


def test_an_architecture_that_a_method_made_has_no_module():
    model = graft.run("fedlit", **SETTINGS).client(0)
    with pytest.raises(graft.InputError, match="'channels' has no plain module; there is one for gat, gcn"):
        model.module()
    assert len(model.predict(unseen_graph()[0])) == 23


@pytest.mark.parametrize("name", ["pyg:GCN", "pyg:GIN", "pyg:PNA3"])
def test_models_of_pyg_come_back_as_they_are(name):
    model = graft.run("fedavg", models=name, **SETTINGS).client(0)
    graph, (x, edge_index, _) = unseen_graph()
    with torch.no_grad():
        assert torch.allclose(model.module()(x, edge_index), model.logits(graph), rtol=1e-5, atol=1e-6)


class Normed(torch.nn.Module):
    """A module with buffers."""

    def __init__(self, features=6, classes=3):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(features)
        self.linear = torch.nn.Linear(features, classes)

    def forward(self, x, edge_index):
        return self.linear(self.norm(x.index_add(0, edge_index[1], x[edge_index[0]])))


def test_own_module_comes_back_with_weights_and_buffers():
    given = Normed()
    model = graft.run("fedavg", models=given, **SETTINGS).client(0)
    graph, (x, edge_index, _) = unseen_graph()
    module = model.module()
    assert type(module) is Normed
    assert not module.training
    assert module is not given
    assert module.norm.running_mean.abs().sum() > 0
    with torch.no_grad():
        assert torch.allclose(module(x, edge_index), model.logits(graph), atol=1e-6)
        assert not torch.allclose(given.eval()(x, edge_index), model.logits(graph), atol=1e-3)
