"""Several architectures as one model: each kind says what it would say alone, and draws what it would draw alone."""

from dataclasses import replace

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.graphs.fleet_graph import build_fleet_graph
from graft.methods import METHODS
from graft.methods.centralised import Centralised
from graft.methods.fedgkc import FedGKC
from graft.methods.local import Local
from graft.methods.majority import Majority
from graft.models import build_model
from graft.models.gcn import GCN
from graft.models.heterogeneous import ArchitectureGroup, Heterogeneous, architecture_names, make_heterogeneous
from graft.tensors.randomness import Stream
from graft.tensors.trees import Tree, flatten, map_tree, strip_architectures
from tests.contract import contract_method
from tests.toy import CLASSES, gap, random_weights, run_rounds, same, toy_graphs, toy_setup, trained_tree

CPU = torch.device("cpu")
FAMILIES = {"architectures": ["gcn", "gat", "sage", "gin", "sgc"], "scales": ["sgc", "gcn", "gcn4", "gcn6", "gcn8"]}
COUNTS = (2, 1, 1, 2, 1)


def make_mixed(family="architectures", sparse=False, dropout=0.5):
    """A mixed model, random weights for it, and the graphs of its clients."""
    graph = build_fleet_graph(toy_graphs(sum(COUNTS), sparse=sparse), CPU)
    models = [build_model(name, graph.width, CLASSES, width=8, dropout=dropout) for name in FAMILIES[family]]
    names = architecture_names(models)
    model = Heterogeneous(
        tuple(ArchitectureGroup(names[kind], kind, count) for kind, count in zip(models, COUNTS, strict=True))
    )
    weights = Tree({kind.name: random_weights(kind.model, kind.clients, seed=7) for kind in model.parts})
    return model, weights, graph


def keys(clients):
    return Stream(torch.arange(clients) * 1000 + 17)


every_family = pytest.mark.parametrize("family", FAMILIES)


# The model ------------------------------------------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("sparse", [False, True])
def test_every_kind_says_and_learns_what_it_would_alone(family, sparse):
    model, weights, graph = make_mixed(family, sparse)
    tree, parameters = trained_tree(weights)
    output = model(tree, graph, keys(graph.clients))
    gradients = torch.autograd.grad(output.logits.square().sum() + output.embedding.sum(), parameters)
    found = dict(zip([path for path, _ in flatten(tree)], gradients, strict=True))
    for kind, owners in zip(model.parts, model.kinds.values(), strict=True):
        own, mine = trained_tree(weights[kind.name])
        alone = kind.model(own, graph.select(list(owners)), keys(graph.clients).select(owners))
        for whole, part in zip(output, alone, strict=True):
            assert gap({"": whole[owners.start : owners.stop]}, {"": part}) < 1e-6
        wanted = torch.autograd.grad(alone.logits.square().sum() + alone.embedding.sum(), mine)
        for (path, _), gradient in zip(flatten(own), wanted, strict=True):
            torch.testing.assert_close(found[f"{kind.name}/{path}"], gradient, atol=1e-5, rtol=1e-5)
    other = model(weights, graph, Stream(keys(graph.clients).keys + 5))
    assert gap({"": output.logits.detach()}, {"": other.logits}) > 1e-3


@every_family
def test_clients_go_on_drawing_after_their_own_draws_however_often_others_drew(family):
    model, weights, graph = make_mixed(family)
    together = keys(graph.clients)
    model(weights, graph, together)
    model(weights, graph, together)
    after = together.bits(4)
    spent = set()
    for kind, owners in zip(model.parts, model.kinds.values(), strict=True):
        alone = keys(graph.clients).select(owners)
        part = graph.select_range(owners)
        kind.model(weights[kind.name], part, alone)
        kind.model(weights[kind.name], part, alone)
        spent.add(alone.draws)
        assert torch.equal(after[owners.start : owners.stop], alone.bits(4))
    assert len(spent) > 1  # or this shows nothing


@every_family
def test_both_ways_at_once_are_the_two_one_after_the_other(family):
    model, weights, graph = make_mixed(family)
    training, evaluation = model.forward_train_eval(weights, graph, keys(graph.clients))
    for found, wanted in ((training, model(weights, graph, keys(graph.clients))), (evaluation, model(weights, graph))):
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert gap({"": training.logits}, {"": evaluation.logits}) > 1e-3
    tree, _ = trained_tree(weights)
    training, evaluation = model.forward_train_eval(tree, graph, keys(graph.clients))
    assert training.logits.requires_grad
    assert not evaluation.logits.requires_grad


@pytest.mark.parametrize("sparse", [False, True])
def test_views_of_the_whole_graph_are_cut_like_it(sparse):
    model, weights, graph = make_mixed(sparse=sparse)
    view = graph.perturbed(keys(graph.clients), 0.4, 0.3)
    output = model(weights, view)
    for kind, owners in zip(model.parts, model.kinds.values(), strict=True):
        own = graph.select(list(owners)).perturbed(keys(graph.clients).select(owners), 0.4, 0.3)
        alone = kind.model(weights[kind.name], own)
        assert gap({"": output.logits[owners.start : owners.stop]}, {"": alone.logits}) < 1e-6
    assert gap({"": output.logits}, {"": model(weights, graph).logits}) > 1e-3


def test_parts_of_a_graph_are_cut_once_and_dense_features_are_not_copied():
    model, weights, graph = make_mixed()
    model(weights, graph)
    parts = [graph.select_range(owners) for owners in model.kinds.values()]
    assert parts == [graph.select_range(owners) for owners in model.kinds.values()]
    assert {part.features.untyped_storage().data_ptr() for part in parts} == {
        graph.features.untyped_storage().data_ptr()
    }
    assert graph.select_range(range(graph.clients)) is graph


def test_some_clients_have_the_kinds_that_they_have():
    model, weights, graph = make_mixed()
    chosen = [1, 3, 4, 6]  # no GAT
    some = model.select(chosen)
    assert some.kinds == {"@gcn": range(1), "@sage": range(1, 2), "@gin": range(2, 3), "@sgc": range(3, 4)}
    rows = {"@gcn": [1], "@sage": [0], "@gin": [0], "@sgc": [0]}
    own = Tree({name: map_tree(lambda leaf, name=name: leaf[rows[name]], weights[name]) for name in rows})
    whole, part = model(weights, graph), some(own, graph.select(chosen))
    assert gap({"": whole.logits[chosen]}, {"": part.logits}) < 1e-6


def test_kinds_have_names_of_their_own_and_no_weight_has_such_a_name():
    shallow, deep, careful = GCN(6, 3, width=8), GCN(6, 3, width=8, depth=4), GCN(6, 3, width=8, dropout=0.1)
    assert architecture_names([shallow, deep, careful]) == {shallow: "@gcn", deep: "@gcn4", careful: "@gcn-2"}
    model = make_heterogeneous([shallow, shallow, careful], architecture_names([shallow, deep, careful]))
    assert model.kinds == {"@gcn": range(2), "@gcn-2": range(2, 3)}
    assert model.frozen == frozenset()


# Fleets ---------------------------------------------------------------------------------------------------------------


def test_clients_of_different_kinds_are_one_fleet_in_the_order_of_their_kinds():
    setup = toy_setup(Local(), clients=7, models="architectures")
    (fleet,) = InProcess(setup).fleets
    assert fleet.clients == [0, 5, 1, 6, 2, 3, 4]
    assert fleet.model.kinds["@gat"] == range(2, 4)


def test_a_method_that_looks_inside_has_a_fleet_for_every_architecture():
    engine = InProcess(toy_setup(METHODS["lg_fedavg"](), clients=7, models="architectures", sizes=(12,)))
    assert [fleet.clients for fleet in engine.fleets] == [[0, 5], [1, 6], [2], [3], [4]]
    assert not any("@" in path for state in engine.state().values() for path, _ in flatten(state))


def test_one_architecture_is_no_mixture():
    engine = InProcess(toy_setup(FedGKC(), clients=4, models="gcn"))
    assert len(engine.fleets) == 1
    assert not any("@" in path for state in engine.state().values() for path, _ in flatten(state))


def test_widths_and_kinds_of_features_part_fleets():
    graphs = toy_graphs(4, sizes=(12,))
    models = [GCN(6, 3, width=8), GCN(6, 3, width=4), GCN(6, 3, width=8, depth=4), GCN(6, 3, width=4, depth=3)]
    setup = replace(toy_setup(Local(), clients=4, graphs=graphs), models=models)
    assert [fleet.clients for fleet in InProcess(setup).fleets] == [[0, 2], [1, 3]]
    small = [*toy_graphs(2, sizes=(12,)), *toy_graphs(2, sizes=(5,))]  # less than half of 12
    setup = toy_setup(Local(), clients=4, models="gcn,sage", graphs=small)
    assert [fleet.clients for fleet in InProcess(setup).fleets] == [[0, 1], [2, 3]]


def test_your_own_module_stays_alone_beside_mixed_clients():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(6, CLASSES)

        def forward(self, x, edges):  # noqa: ARG002
            return self.head(x)

    setup = toy_setup(Local(), clients=3, models=["gcn", "sage", Own()])
    engine = InProcess(setup)
    assert sorted(fleet.clients for fleet in engine.fleets) == [[0, 1], [2]]
    finished = run_rounds(setup, rounds=2, engine=engine)
    assert {path for path, _ in flatten(finished.client(2).model)} == {"head/weight", "head/bias"}


@pytest.mark.parametrize("models", ["architectures", "scales"])
@pytest.mark.parametrize("engine", [{}, {"alone": True}])
def test_a_client_keeps_the_weights_of_its_own_architecture_and_no_others(models, engine):
    setup = toy_setup(FedGKC(), clients=7, models=models)
    finished = run_rounds(setup, rounds=1, engine=InProcess(setup, **engine))
    for client, state in finished.engine.state().items():
        kind = setup.models[client]
        wanted = {path: leaf.shape for path, leaf in flatten(kind.start(torch.Generator()))}
        assert {path: leaf.shape for path, leaf in flatten(strip_architectures(state).model)} == wanted
        assert {path: leaf.shape for path, leaf in flatten(strip_architectures(state).optimizer.model.first)} == wanted
        assert list(state.model) == [f"@{kind.name}"]
        assert "@" not in "".join(path for path, _ in flatten(state.optimizer.copilot))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "name", sorted(name for name, kind in METHODS.items() if kind.heterogeneous and kind not in (Centralised, Majority))
)
@pytest.mark.parametrize("capture", [True, False])
def test_kinds_on_a_gpu_give_what_they_give_here(name, capture):
    setup = toy_setup(contract_method(name), clients=10, models="architectures", width=64, dropout=0.5)
    there = run_rounds(replace(setup, device=torch.device("cuda"), capture=capture), rounds=6)
    here = run_rounds(setup, rounds=6)
    assert len(there.engine.fleets) == 1
    for client in range(10):
        assert gap(here.client(client).model, map_tree(torch.Tensor.cpu, there.client(client).model)) < 1e-3
    assert not same(here.client(0).model, run_rounds(setup, rounds=5).client(0).model)
