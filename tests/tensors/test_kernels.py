"""Kernels of our own give what PyTorch's operations give; runs where there is a GPU."""

from dataclasses import replace

import pytest
import torch

from graft.data.synthetic import generate
from graft.graphs.fleet_graph import build_fleet_graph
from graft.graphs.node_subset import NodeSubset
from graft.methods.fedavg import FedAvg
from graft.tensors import kernels
from graft.tensors.randomness import Stream, streams
from graft.tensors.sparse import BlockSparse, attention
from graft.tensors.trees import Owners, flatten, map_tree
from graft.training.optimizers import OPTIMIZERS, Training
from tests.toy import gap, run_rounds, toy_graphs, toy_setup, with_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
HERE, THERE = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("width", [1, 3, 4, 7, 16, 40, 64, 65, 128, 200])
@pytest.mark.parametrize("weighted", [False, True])
def test_products_with_rows_of_every_length(width, weighted):
    generator = torch.Generator().manual_seed(width)
    counts = torch.randint(0, 9, (501,), generator=generator)
    counts[:3] = torch.tensor([0, 1, 300])
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
    columns = torch.randint(0, 77, (int(starts[-1]),), generator=generator, dtype=torch.int32)
    values = torch.randn(len(columns), generator=generator) if weighted else None
    dense = torch.randn(77, width, generator=generator)
    wanted = BlockSparse(starts, columns, values, 1, (501, 77)).times(dense[None])[0]
    moved = [None if part is None else part.to(THERE) for part in (starts, columns, values, dense)]
    output = kernels.product(*moved)
    assert output is not None
    torch.testing.assert_close(output.cpu(), wanted, atol=1e-4, rtol=1e-4)
    assert torch.equal(output[0].cpu(), torch.zeros(width))
    odd = torch.cat([moved[3].flatten()[:1], moved[3].flatten()])[1:].view_as(dense)  # not at a multiple of 16 bytes
    torch.testing.assert_close(kernels.product(*moved[:3], odd), output, atol=1e-4, rtol=1e-4)


def test_long_rows_are_left_to_the_library(monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(kernels, "product", never)
    entries = kernels.LONGEST_ROW + 1
    starts = torch.tensor([0, entries], dtype=torch.int32, device=THERE)
    columns = torch.arange(entries, dtype=torch.int32, device=THERE)
    matrix = BlockSparse(starts, columns, None, 1, (1, entries))
    assert matrix.times(torch.ones(1, entries, 2, device=THERE)).tolist() == [[[entries, entries]]]


def test_draws_are_those_of_the_cpu():
    for count in (1, 255, 1000):
        assert torch.equal(streams(THERE, 5, [3, 8]).bits(count).cpu(), streams(HERE, 5, [3, 8]).bits(count))


@pytest.mark.parametrize("rate", [0.5, 0.25, 0.3, 0.9, 0.0001])
@pytest.mark.parametrize("width", [1, 7, 64, 67])
def test_dropout_is_that_of_the_cpu_and_so_is_its_gradient(rate, width):
    values = torch.randn(3, 11, width, generator=torch.Generator().manual_seed(0))
    results = []
    for device in (HERE, THERE):
        stream = streams(device, 1, [0, 1, 5])
        stream.bits(3)
        leaf = values.clone().to(device).requires_grad_()
        out = stream.dropout(leaf, rate)
        (out * values.to(device)).sum().backward()
        results.append((out.detach().cpu(), leaf.grad.cpu(), stream.draws))
    assert results[0][2] == results[1][2]
    torch.testing.assert_close(results[0][:2], results[1][:2])
    assert rate < 0.2 or (results[1][0] == 0).any()
    again = Stream(streams(THERE, 1, [0, 1, 5]).keys).dropout(values.to(THERE), rate).cpu()
    assert rate < 0.2 or width == 1 or not torch.equal(again, results[1][0])


@pytest.mark.parametrize("width", [1, 3, 16, 64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_attention_and_its_gradients_are_those_of_the_cpu(width, masked, weighted):
    graphs = [generate(nodes=200, degree=degree, classes=3, features=4, seed=1) for degree in (4, 40)]
    graphs = [with_weights(graph) for graph in graphs] if weighted else graphs
    generator = torch.Generator().manual_seed(width)
    numbers = [torch.randn(4, 200, generator=generator) * 3 for _ in range(2)]
    values, wanted = (torch.randn(4, 200, width, generator=generator) for _ in range(2))
    results = []
    for device in (HERE, THERE):
        graph = build_fleet_graph(graphs, device)
        if masked:
            graph = graph.perturbed(streams(device, 3, [0, 1]), edges=0.5, features=0.1)
        pattern = graph.self_loops_per_head(2)
        given = [one.to(device).requires_grad_() for one in (*numbers, values)]
        out = attention(pattern, *given, slope=0.2)
        gradients = torch.autograd.grad((out * wanted.to(device)).sum(), given)
        results.append([one.detach().cpu() for one in (out, *gradients)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_attention_without_kernels_is_the_same(monkeypatch, weighted):
    graph = generate(nodes=200, degree=40, classes=3, features=4, seed=1)
    pattern = build_fleet_graph([with_weights(graph) if weighted else graph], THERE).self_loops_per_head(1)
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 200), (1, 200), (1, 200, 8)
    given = [torch.randn(shape, generator=generator).to(THERE).requires_grad_() for shape in shapes]

    def results():
        out = attention(pattern, *given, slope=0.2)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), given)]

    wanted = results()
    monkeypatch.setattr(kernels, "supports_attention", lambda _: False)
    torch.testing.assert_close(results(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gcn", "gat", "sage", "gin", "sgc"])
def test_clients_whose_edges_have_weights_learn_what_they_learn_on_the_cpu(name):
    graphs = [with_weights(graph, seed) for seed, graph in enumerate(toy_graphs())]
    setup = toy_setup(FedAvg(), models=name, dropout=0.5, graphs=graphs)
    here, there = (run_rounds(replace(setup, device=device), rounds=4) for device in (HERE, THERE))  # captured from 3
    assert gap(here.server.state, map_tree(lambda leaf: leaf.cpu(), there.server.state)) < 1e-3
    plain = run_rounds(toy_setup(FedAvg(), models=name, dropout=0.5, graphs=toy_graphs()), rounds=4)
    assert gap(here.server.state, plain.server.state) > 1e-2


@pytest.mark.parametrize("matrix", ["neighbours", "mean", "normalised", "with_self_loops"])
def test_weighted_products_and_their_gradients_are_those_of_the_cpu(matrix):
    graphs = [with_weights(generate(nodes=200, degree=degree, classes=3, features=4, seed=1)) for degree in (4, 40)]
    generator = torch.Generator().manual_seed(0)
    dense, wanted = (torch.randn(2, 200, 9, generator=generator) for _ in range(2))
    results = []
    for device in (HERE, THERE):
        given = dense.to(device).requires_grad_()
        product = getattr(build_fleet_graph(graphs, device), matrix) @ given
        (gradient,) = torch.autograd.grad((product * wanted.to(device)).sum(), given)
        results.append([product.detach().cpu(), gradient.cpu()])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gcn", "gat", "sage", "gin", "sgc"])
def test_clients_padded_for_sums_in_parts_learn_what_they_learn_on_the_cpu(name, monkeypatch):
    for where in ("graft.tensors.sparse.MANY_NODES", "graft.models.gat.MANY_NODES"):
        monkeypatch.setattr(where, 8)
    monkeypatch.setattr("graft.tensors.sparse.CHUNK_NODES", 4)
    setup = toy_setup(FedAvg(), models=name, dropout=0.5, sizes=(13, 11, 9))
    setups = [replace(setup, device=device) for device in (HERE, THERE)]
    here, there = (run_rounds(setup, rounds=2) for setup in setups)
    assert [one.engine.fleets[0].graph.nodes for one in (here, there)] == [13, 16]
    assert gap(here.server.state, map_tree(lambda leaf: leaf.cpu(), there.server.state)) < 1e-3


def test_dropout_of_some_rows_is_that_of_the_cpu():
    graphs = toy_graphs()
    outputs = []
    for device in (HERE, THERE):
        graph = build_fleet_graph(graphs, device)
        rows = NodeSubset(
            graph,
            torch.tensor([[3, 0], [1, 2], [4, 4]], device=device),
            torch.ones(3, 2, dtype=torch.bool, device=device),
        )
        values = torch.ones(3, 2, 67, device=device)
        outputs.append(streams(device, 1, [0, 1, 5]).dropout(values, 0.5, rows).cpu())
    torch.testing.assert_close(*outputs)


def test_adam_is_that_of_the_cpu_for_clients_that_have_taken_different_steps():
    generator = torch.Generator().manual_seed(0)
    start, update = OPTIMIZERS["adam"]
    weights = {"a": torch.randn(3, 50, 7, generator=generator), "@x/b": torch.randn(2, 300, generator=generator)}
    owners = Owners(3, {"@x": range(1, 3)})
    sides = []
    for device in (HERE, THERE):
        moved = {path: leaf.clone().to(device) for path, leaf in weights.items()}
        state = start(moved, None, 3)
        state.steps.copy_(torch.tensor([0.0, 4.0, 900.0]))
        for seed in range(3):
            draw = torch.Generator().manual_seed(seed)
            gradients = {path: torch.randn(leaf.shape, generator=draw).to(device) for path, leaf in weights.items()}
            update(moved, gradients, dict(flatten(state)), Training(), owners)
        sides.append(map_tree(torch.Tensor.cpu, {"weights": moved, "state": state}))
    for part in ("weights", "state"):
        torch.testing.assert_close(dict(sides[0][part]), dict(sides[1][part]), atol=2e-6, rtol=1e-5)
    assert (sides[0]["weights"]["a"] - weights["a"]).abs().min() > 0
