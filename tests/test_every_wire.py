"""One method, real connections: organisations over mutual TLS end where one process ends, for every method."""

from dataclasses import replace

import pytest

from graft import keys
from graft.engines.in_process import InProcess
from graft.engines.zenoh import ZenohNode
from graft.federation.session import Session
from graft.tensors.trees import map_tree, strip_architectures
from tests.engines.zenoh_world import free_address, until
from tests.organisations import (
    NAMES,
    PEER_METHODS,
    SERVER,
    WITH_SERVER,
    federation,
    make_method,
    make_parties,
    make_peers,
    run_peers,
    serve,
)
from tests.test_every_engine import with_optimisers
from tests.toy import gap

pytest.importorskip("zenoh")
pytest.importorskip("cryptography")

ROUNDS = 2


class Nodes:
    """Connected nodes whose handlers can be another one for every test."""

    def __init__(self):
        self.handlers, self.nodes = {}, {}

    def open(self, name, files, **settings):
        def handle(sender, data):
            return self.handlers[name](sender, data)

        self.nodes[name] = ZenohNode(name, files, handle, namespace="wire", **settings)

    def wait(self):
        for node in self.nodes.values():
            until(lambda node=node: node.present() == set(node._connections))

    def close(self):
        for node in self.nodes.values():
            node.close()


@pytest.fixture(scope="module")
def key_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    keys.make_ca(folder)
    return {name: keys.make_party_keys(name, folder, folder / name) for name in (SERVER, *NAMES)}


@pytest.fixture(scope="module")
def star(key_files):
    nodes, address = Nodes(), free_address()
    nodes.open(SERVER, key_files[SERVER], others=NAMES, listen=[address])
    for name in NAMES:
        nodes.open(name, key_files[name], others=[SERVER], connect=[address])
    nodes.wait()
    yield nodes
    nodes.close()


@pytest.fixture(scope="module")
def mesh(key_files):
    nodes, addresses = Nodes(), [free_address() for _ in NAMES]
    for number, name in enumerate(NAMES):
        others = [other for other in NAMES if other != name]
        where = {"listen": [addresses[number]], "connect": addresses[:number]}
        nodes.open(name, key_files[name], others=others, **where)
    nodes.wait()
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
