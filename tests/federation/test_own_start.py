"""Clients whose models start apart: each at a point that its number decides, wherever and beside whomever it lives."""

from dataclasses import replace

import pytest
import torch

import graft
from graft.engines.cluster import Cluster
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.experiments.combinations import suited
from graft.federation.fleet import initial_weights
from graft.federation.server import Server
from graft.methods import METHODS
from graft.methods.fedgkc import FedGKC
from graft.methods.local import Local
from graft.tensors.trees import map_tree, select_clients
from graft.testing.claim import contract_setup
from graft.testing.contract import predictions
from graft.testing.local_pool import LocalPool
from tests.contract import contract_method
from tests.experiments.small_sweep import SMALL
from tests.test_every_method import SETTINGS
from tests.toy import gap, run_rounds, same, toy_setup

SEVERAL = dict(clients=5, models="gcn,gat", dropout=0.5)
KEEP = sorted(name for name, kind in METHODS.items() if kind.keeps_start)
IGNORE = sorted(set(METHODS) - set(KEEP))


def method_of(name):
    """Returns a method whose clients predict by the models that start apart."""
    method = SETTINGS.get(name) or contract_method(name)
    return replace(method, answer="local") if isinstance(method, FedGKC) else method


def test_each_client_starts_at_the_point_of_its_own_number():
    setup = toy_setup(Local(), clients=3, own_start=True, seed=4)
    started = setup.fleet([0, 1, 2]).initial()
    for client in range(3):
        assert same(select_clients(started, client), initial_weights(setup.models[0], 4, client))
    assert gap(select_clients(started, 0), select_clients(started, 1)) > 1e-2
    other = toy_setup(Local(), clients=3, own_start=True, seed=5).fleet([0]).initial()
    assert gap(select_clients(started, 0), select_clients(other, 0)) > 1e-2


def test_without_it_all_start_where_the_server_does():
    setup = toy_setup(Local(), clients=3, seed=4)
    started = setup.fleet([0, 1, 2]).initial()
    for client in range(3):
        assert same(select_clients(started, client), Server.of(setup).initial())


def test_a_client_starts_by_its_number_and_not_by_its_place():
    setup = toy_setup(Local(), own_start=True, **SEVERAL)
    part = setup.part([3])
    (alone,) = InProcess(part).state().values()
    assert same(alone, InProcess(setup).state()[3])
    assert gap(alone.model, InProcess(setup).state()[1].model) > 1e-2  # of the same architecture
    renumbered = part.fleet([0], numbers=[1]).initial()
    assert gap(renumbered, setup.part([1]).fleet([0]).initial()) == 0


@pytest.mark.parametrize("method", [Local(), FedGKC()])
def test_a_fleet_ends_where_its_clients_end_one_by_one(method):
    setup = toy_setup(method, own_start=True, **SEVERAL)
    together, alone = run_rounds(setup, 3), run_rounds(setup, 3, InProcess(setup, alone=True))
    common = run_rounds(toy_setup(method, **SEVERAL), 3)
    for client in range(5):
        assert gap(together.client(client), alone.client(client)) < 1e-5
        assert gap(together.client(client).model, common.client(client).model) > 1e-2


@pytest.mark.parametrize("method", [Local(), FedGKC()])
def test_processes_and_workers_start_their_clients_alike(method):
    setup = toy_setup(method, own_start=True, **SEVERAL)
    here = run_rounds(setup)
    engine = Loopback(setup)
    try:
        apart = run_rounds(setup, engine=engine)
        assert gap(here.engine.state(), apart.engine.state()) < 1e-5
    finally:
        engine.close()
    for workers in (1, 3):
        spread = run_rounds(setup, engine=Cluster(setup, LocalPool(workers)))
        assert gap(here.engine.state(), spread.engine.state()) < 1e-5
    assert gap(here.engine.state(), run_rounds(toy_setup(method, **SEVERAL)).engine.state()) > 1e-2


def test_what_travels_starts_alike_everywhere():
    setup = toy_setup(FedGKC(copilot="gcn", answer="copilot"), own_start=True, **SEVERAL)
    server, states = Server.of(setup), InProcess(setup).state()
    for state in states.values():
        assert same(state.copilot, server.state.copilot)
    # Client 0 has the copilot's architecture, and still a start of its own.
    assert gap(states[0].model["@gcn"], map_tree(torch.clone, server.state.copilot)) > 1e-2


@pytest.mark.parametrize("name", KEEP)
def test_methods_whose_clients_keep_a_model_end_elsewhere(name):
    method = method_of(name)
    common, own = (predictions(run_rounds(contract_setup(method, own_start=apart))) for apart in (False, True))
    for client, (first, second) in enumerate(zip(common, own, strict=True)):
        assert gap({"": first}, {"": second}) > 1e-4, client


@pytest.mark.parametrize("name", IGNORE)
def test_methods_that_refuse_it_would_end_where_they_do_without(name):
    method = method_of(name)
    common, own = (predictions(run_rounds(contract_setup(method, own_start=apart))) for apart in (False, True))
    for first, second in zip(common, own, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", IGNORE)
def test_methods_for_which_it_means_nothing_refuse_it(name):
    with pytest.raises(InputError, match=rf"initial_weights is own, but with method '{name}' .* use common, or one of"):
        graft.run(name, initial_weights="own", **SMALL)
    assert suited({"initial_weights": "own"}, METHODS[name])["initial_weights"] == "common"


def test_comparisons_leave_it_to_methods_that_can():
    assert suited({"initial_weights": "own"}, METHODS["local"])["initial_weights"] == "own"


def test_modules_of_ones_own_have_one_start_only():
    with pytest.raises(InputError, match="initial_weights is own, but pyg:GCN starts everywhere with the weights that"):
        graft.run("local", models="gcn,pyg:GCN", initial_weights="own", **SMALL)


def test_a_run_has_it_on_record_and_ends_elsewhere():
    common, own = (graft.run("local", initial_weights=start, **SMALL) for start in ("common", "own"))
    assert own.summary["experiment"]["initial_weights"] == "own"
    assert gap(common.client(1).weights, own.client(1).weights) > 1e-3
    with pytest.raises(InputError, match="initial_weights"):
        graft.run("local", initial_weights="apart", **SMALL)
