"""Memory: what clients need is known beforehand, fleets keep to a budget, and results do not depend on it."""

import gc
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from graft.data.splits import split as split_nodes
from graft.data.synthetic import generate
from graft.engines.amounts import parse_memory
from graft.engines.in_process import InProcess, plan_fleets
from graft.engines.memory import Need, Parameters, count_parameters, estimate, free_memory, mapped_zeros, plan
from graft.errors import InputError, MemoryWarning
from graft.federation.clients import Request
from graft.federation.fleet import group_clients
from graft.graphs.fleet_graph import FleetGraph
from graft.methods import METHODS
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC
from graft.tensors.sparse import BlockSparse
from graft.tensors.trees import flatten
from graft.training.optimizers import Training
from tests.memory import peak_of
from tests.toy import gap, run_rounds, same, toy_setup, unbroken_and_resumed

TINY = 1  # byte: nothing fits
MB = 10**6


def sized_graphs(clients=6, nodes=300, features=32):
    graphs = [generate(nodes=nodes, degree=10, classes=4, features=features, seed=client) for client in range(clients)]
    return split_nodes(graphs, "20/40/40", seed=0)


def needs_of(setup):
    parameters = count_parameters(setup)
    return [
        estimate(graph, graph.nodes, model, parameters[model], setup.training, setup.method.graph_views())
        for graph, model in zip(setup.graphs, setup.models, strict=True)
    ]


# Amounts.


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4 * 10**9), ("512 MB", 512 * 10**6), ("1.5gib", 3 * 2**29), ("", None), ("  ", None), ("1KiB", 1024)],
)
def test_amounts_are_read_with_their_unit(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["4", "GB", "four GB", "-1GB", "0GB", "4 horses"])
def test_other_amounts_are_refused_with_an_example(text):
    with pytest.raises(InputError, match="4GB"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"meminfo": "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n"}, 5000 * 1024),
        ({"meminfo": "MemAvailable: 5000 kB", "memory.max": "max\n", "memory.current": "700\n"}, 5000 * 1024),
        ({"meminfo": "MemAvailable: 5000 kB", "memory.max": "3000\n", "memory.current": "700\n"}, 2300),
        ({"meminfo": "MemAvailable: 5000 kB", "memory.max": "500\n", "memory.current": "700\n"}, 0),
        ({}, 4 * 10**9),
    ],
    ids=["a machine", "a container without a limit", "a container", "a full container", "one that does not say"],
)
def test_free_memory_is_what_the_system_or_the_container_leaves(files, free, monkeypatch, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("graft.machine.Path", lambda path: tmp_path / Path(path).name)
    assert free_memory(torch.device("cpu")) == free


# Estimates.


@pytest.mark.parametrize(
    ("method", "model"),
    [
        *product(["fedavg", "fedgkc", "scaffold"], ["gcn", "gat", "gin", "gcn6"]),
        *product(["fedgkc", "fml"], ["architectures", "scales"]),
    ],
)
def test_estimates_are_between_two_thirds_and_three_times_what_is_measured(method, model):
    setup = toy_setup(METHODS[method](), models=model, graphs=sized_graphs(), width=64, dropout=0.5)

    def rounds():
        engine = run_rounds(setup, rounds=2).engine
        engine.ask(Request("score", 2, engine.members()))

    measured, estimated = peak_of(rounds), sum(map(sum, needs_of(setup)))
    assert 2 / 3 < estimated / measured < 3


@pytest.mark.parametrize("copilot", ["gcn", "sage", "tag"])
@pytest.mark.parametrize("models", ["gcn", "mlp", "architectures"])
def test_estimates_count_a_second_model_of_another_architecture_where_features_are_many(models, copilot):
    setup = toy_setup(FedGKC(copilot=copilot), models=models, graphs=sized_graphs(features=1400), width=64)
    measured, estimated = peak_of(lambda: run_rounds(setup, rounds=2)), sum(map(sum, needs_of(setup)))
    assert 0.75 < estimated / measured < 1.5


def test_a_second_model_of_another_architecture_has_its_own_parameters():
    def counts(method, models):
        return list(count_parameters(toy_setup(method, models=models)).values())

    (gcn,), (sage,) = counts(FedAvg(), "gcn"), counts(FedAvg(), "sage")
    assert gcn.own < sage.own
    assert gcn.second is sage.second is None
    assert counts(FedGKC(copilot="sage"), "gcn,sage") == [Parameters(gcn.own, sage.own), sage]
    assert counts(FedGKC(copilot="gcn"), "gcn,sage") == [gcn, Parameters(sage.own, gcn.own)]


def test_estimates_grow_with_what_costs_memory():
    graph, other = sized_graphs(clients=2, nodes=300)[0], sized_graphs(clients=1, nodes=300, features=320)[0]

    def need(graph=graph, nodes=300, parameters=10, second=None, models="gcn", views=0, **training):
        model = toy_setup(FedAvg(), models=models, graphs=[graph]).models[0]
        return estimate(graph, nodes, model, Parameters(parameters, second), Training(**training), views)

    assert need(nodes=600).work == pytest.approx(2 * need().work, rel=0.1)
    assert need(models="gcn6").work > 2 * need().work
    assert need(models="gat").work > need().work
    assert need(parameters=0, views=2).work == 2 * need(parameters=0).work
    assert need(other).data - need().data == 8 * 300 * (320 - 32)  # as they are, and spread
    assert need(parameters=20).state == 2 * need().state
    assert need(optimizer="sgd").state * 3 == need().state  # no moments
    assert need(second=20).state == 1.5 * need().state  # 10 and 20, not twice 10
    assert need(second=20).work - need().work == 4 * 3 * 10
    assert need(second=5).state == need().state  # never less than two of its own
    assert need(other, second=20).data - need(second=20).data == 12 * 300 * (320 - 32)  # spread in two ways


# Plans.


def test_a_plan_keeps_fleets_whole_where_they_fit_and_cuts_them_where_not():
    needs = [Need(data=10, state=5, work=20)] * 10
    groups = [list(range(6)), list(range(6, 10))]
    roomy = plan(groups, needs, 10_000, 1.0)
    assert roomy == (groups, True, False, [])
    # 150 bytes are there all the time, and 20 for every client that trains: 40 are left for two at a time.
    tight = plan(groups, needs, 195, 1.0)
    assert tight.groups == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert (tight.roomy, tight.on_disk, tight.too_large) == (False, False, [])
    # With few clients in a round, more of them can share a fleet.
    assert plan(groups, needs, 195, 0.1).groups == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]


def test_state_goes_to_disk_where_it_leaves_no_room():
    needs = [Need(data=10, state=100, work=20)] * 10
    groups = [list(range(10))]
    assert not plan(groups, needs, 1120, 1.0).on_disk
    spilled = plan(groups, needs, 500, 1.0)
    assert spilled.on_disk
    assert not spilled.too_large
    assert [len(part) for part in spilled.groups] == [3, 3, 2, 2]  # 400 bytes for 120 a client
    assert not plan(groups, [Need(10, 1, 600)] * 10, 500, 1.0).on_disk  # ten bytes of state are not what is too large


def test_a_client_that_does_not_fit_alone_is_named_and_runs_alone():
    needs = [Need(10, 5, 20), Need(10, 5, 5000), Need(10, 5, 20)]
    found = plan([[0, 1, 2]], needs, 200, 1.0)
    assert found.too_large == [1]
    assert found.groups == [[0], [1], [2]]
    setup = replace(toy_setup(FedAvg()), memory=TINY)
    with pytest.warns(MemoryWarning, match="client 0, 1, 2 is estimated to need up to"):
        trained = run_rounds(setup, rounds=2)
    assert gap(trained.server.state, run_rounds(replace(setup, memory=None), rounds=2).server.state) < 1e-5


# Runs.


@pytest.mark.filterwarnings("ignore::graft.errors.MemoryWarning")
@pytest.mark.parametrize("name", ["fedavg", "fedgkc", "scaffold", "dpsgd"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_results_do_not_depend_on_the_memory_there_is(name, participation):
    setup = toy_setup(METHODS[name](), clients=6, dropout=0.5, participation=participation)
    whole = run_rounds(setup, rounds=3)
    parts = run_rounds(replace(setup, memory=TINY), rounds=3)
    assert len(whole.engine.fleets) < len(parts.engine.fleets) == 6
    assert not whole.engine.plan.on_disk
    assert parts.engine.plan.on_disk
    for client in range(6):
        assert gap(*on_the_same_paths(whole.client(client), parts.client(client))) < 1e-5
    other = run_rounds(replace(setup, seed=1, memory=TINY), rounds=3)
    assert max(gap(whole.client(client).model, other.client(client).model) for client in range(6)) > 1e-3


def on_the_same_paths(first, second):
    """Two states without the zeros of optimisers that have not begun, which only a fleet has room for."""
    one, other = dict(flatten(first)), dict(flatten(second))
    assert all(path.startswith("optimizer/") and not leaf.any() for path, leaf in one.items() if path not in other)
    return {path: leaf for path, leaf in one.items() if path in other}, other


def test_a_smaller_budget_means_a_smaller_peak():
    setup = toy_setup(FedAvg(), graphs=sized_graphs(clients=12), width=64, dropout=0.5)
    data, state, work = (sum(need[place] for need in needs_of(setup)) for place in range(3))
    parts = replace(setup, memory=data + state + work // 4)
    assert len(InProcess(parts).fleets) == 4
    whole_peak, parts_peak = (peak_of(lambda one=one: run_rounds(one, rounds=2)) for one in (setup, parts))
    assert parts_peak < 0.7 * whole_peak
    assert parts_peak < parts.memory


def on_disk(setup):
    """An engine with the fleets of the usual one, and its state in files."""
    engine = InProcess(setup)
    engine.plan = engine.plan._replace(on_disk=True)
    for group in engine.groups:
        group.state = engine._keep(group.state)
    return engine


@pytest.mark.parametrize("name", ["fedavg", "fedgkc", "scaffold", "dpsgd"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_state_on_disk_gives_the_same_bits(name, participation, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    setup = toy_setup(METHODS[name](), clients=6, dropout=0.5, participation=participation)
    here, there = run_rounds(setup, rounds=4), run_rounds(setup, rounds=4, engine=on_disk(setup))
    for client in range(6):
        assert same(here.client(client), there.client(client))
    assert same(here.server.state, there.server.state)
    assert not list(tmp_path.iterdir())  # files have lost their names
    kept = [leaf for fleet in there.engine.fleets for _, leaf in flatten(fleet.state)]
    assert {id(leaf.untyped_storage()) for leaf in kept if not lives_in_a_file(leaf)} == set()


def lives_in_a_file(leaf):
    """Whether the kernel knows the memory of a tensor as that of a file which has been deleted."""
    place = leaf.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= place < last:
            return "graft-state-" in line
    return False


def test_a_tensor_in_a_file_begins_with_zeros_and_keeps_what_is_written():
    leaf = mapped_zeros((3, 4), torch.float64)
    assert lives_in_a_file(leaf)
    assert not lives_in_a_file(torch.zeros(3, 4))
    assert leaf.eq(0).all()
    leaf[1] = 2.5
    assert leaf.sum() == 10
    assert mapped_zeros((3, 0), torch.int64).shape == (3, 0)


def test_state_on_disk_is_restored(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    setup = toy_setup(FedGKC(), clients=4, dropout=0.5, participation=0.5)
    unbroken, rest = unbroken_and_resumed(setup, make=on_disk)
    for client in range(4):
        assert same(unbroken.client(client), rest.client(client))
    assert all(lives_in_a_file(leaf) for _, leaf in flatten(rest.engine.fleets[0].state))


@pytest.mark.filterwarnings("ignore::graft.errors.MemoryWarning")
@pytest.mark.parametrize(("before", "after"), [(TINY, None), (None, TINY)])
def test_a_run_can_go_on_with_more_or_less_memory(before, after):
    setup = toy_setup(FedAvg(), clients=6, dropout=0.5, participation=0.34)
    first, second = (replace(setup, memory=size) for size in (before, after))
    half = run_rounds(first, rounds=1)
    engine = InProcess(second)
    engine.restore(half.engine.state())
    rest = run_rounds(second, rounds=2, engine=engine, first=2, state=half.server.state)
    unbroken = run_rounds(setup, rounds=3)
    assert gap(unbroken.server.state, rest.server.state) < 1e-5


def test_the_default_budget_leaves_small_fleets_alone():
    setup = toy_setup(FedGKC(), models="gcn,sage")
    groups = group_clients(setup.models, setup.graphs)
    assert plan_fleets(setup, groups).groups == groups


# One graph, however many models look at it.


def graph_bytes(engine):
    """The memory of all that the graphs of an engine hold, every tensor once."""
    found = {}
    whole = [fleet.graph for fleet in engine.fleets]
    for graph in (*whole, *(part for one in whole for part in one._ranges.values())):
        matrices = [part for part in graph.__dict__.values() if isinstance(part, BlockSparse)]
        for part in (graph.features, *(piece for matrix in matrices for piece in matrix.__dict__.values())):
            tensors = [part] if isinstance(part, torch.Tensor) else []
            found.update({leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes() for leaf in tensors})
    return sum(found.values())


def fleet_graphs():
    gc.collect()
    return sum(type(one) is FleetGraph for one in gc.get_objects())


def test_a_second_model_looks_at_the_same_graph():
    graphs = sized_graphs()
    before = fleet_graphs()
    one = run_rounds(toy_setup(FedAvg(), graphs=graphs), rounds=2).engine
    assert fleet_graphs() - before == 1
    two = run_rounds(toy_setup(FedGKC(copilot="gcn"), graphs=graphs), rounds=2).engine
    assert fleet_graphs() - before == 2
    assert graph_bytes(one) == graph_bytes(two)
    # A copilot of another architecture has its own way to propagate, of which values and products are kept besides.
    other = run_rounds(toy_setup(FedGKC(copilot="sage"), graphs=graphs), rounds=2).engine
    assert fleet_graphs() - before == 3
    assert graph_bytes(two) < graph_bytes(other) < 1.5 * graph_bytes(two)
    # Clients of several architectures look at the same graph, and each kind at its part of it, mostly views.
    for copilot, alone in (("gcn", two), ("sage", other)):
        count = fleet_graphs()
        mixed = run_rounds(toy_setup(FedGKC(copilot=copilot), models="gcn,sage", graphs=graphs), rounds=2).engine
        assert len(mixed.fleets) == 1
        assert fleet_graphs() - count == 1 + 2
        assert graph_bytes(mixed) < 1.75 * graph_bytes(alone)
        del mixed


@pytest.mark.parametrize("models", ["gcn", "gcn,sage"])
def test_no_mask_outlives_its_step(models):
    for epochs in (1, 2, 5):  # of which some leave masks that were made ahead
        finished = run_rounds(toy_setup(FedGKC(), models=models, dropout=0.5, epochs=epochs), rounds=1)
        assert not any(fleet.random._masks for fleet in finished.engine.fleets)
