"""One method, real connections: organisations over mutual TLS end where one process ends, for every method."""

from dataclasses import replace

import pytest

from graft.engines.in_process import InProcess
from graft.federation.session import Session
from graft.tensors.trees import map_tree, strip_architectures
from tests.organisations import (
    NAMES,
    PEER_METHODS,
    SERVER,
    WITH_SERVER,
    federation,
    make_key_files,
    make_method,
    make_parties,
    make_peers,
    open_mesh,
    open_star,
    run_peers,
    serve,
)
from tests.test_every_engine import with_optimisers
from tests.toy import gap

pytest.importorskip("zenoh")
pytest.importorskip("cryptography")

ROUNDS = 2


@pytest.fixture(scope="module")
def key_files(tmp_path_factory):
    return make_key_files(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def star(key_files):
    nodes = open_star(key_files)
    yield nodes
    nodes.close()


@pytest.fixture(scope="module")
def mesh(key_files):
    nodes = open_mesh(key_files)
    yield nodes
    nodes.close()


def distance_of_parties(star, setup, other=None):
    """The largest difference between a server with parties and one process, after some rounds."""
    parties = make_parties(setup)
    star.handlers = {name: party.handle for name, party in zip(NAMES, parties, strict=True)}
    session = serve(setup, star.nodes[SERVER])
    here = Session(other or setup, InProcess(other or setup))
    for number in range(1, ROUNDS + 1):
        assert not session.round(number, evaluate=False).facts.absent
        here.round(number, evaluate=False)
    expected = here.engine.state()
    states = [map_tree(lambda leaf: leaf[0], party.fleet.state) for party in parties]
    gaps = [gap(strip_architectures(expected[client]), state) for client, state in enumerate(states)]
    return max(gap(here.server.state, session.server.state), *gaps)


def distance_of_peers(mesh, setup, other=None):
    """The largest difference between peers and one process, after some rounds."""
    sessions = make_peers(setup)
    mesh.handlers = {name: session.engine.handle for name, session in zip(NAMES, sessions, strict=True)}
    for name, session in zip(NAMES, sessions, strict=True):
        session.engine.node = mesh.nodes[name]
    run_peers(sessions, range(1, ROUNDS + 1))
    here = Session(other or setup, InProcess(other or setup))
    for number in range(1, ROUNDS + 1):
        here.round(number, evaluate=False)
    expected = here.engine.state()
    gaps = []
    for number, session in enumerate(sessions):
        assert not session.absences
        [own] = session.engine.state().values()
        gaps.append(gap(with_optimisers(expected[number], own), with_optimisers(own, expected[number])))
    return max(gaps)


@pytest.mark.parametrize("name", WITH_SERVER)
def test_organisations_over_tls_end_where_one_process_ends(name, star):
    assert distance_of_parties(star, federation(make_method(name))) < 1e-5


@pytest.mark.parametrize("name", PEER_METHODS)
def test_peers_over_tls_end_where_one_process_ends(name, mesh):
    assert distance_of_peers(mesh, federation(make_method(name))) < 1e-5


def test_another_seed_would_be_noticed(star, mesh):
    setup = federation(make_method("fedavg"))
    assert distance_of_parties(star, setup, replace(setup, seed=1)) > 1e-3
    setup = federation(make_method("dpsgd"))
    assert distance_of_peers(mesh, setup, replace(setup, seed=1)) > 1e-3
