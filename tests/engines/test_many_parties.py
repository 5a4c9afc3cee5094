"""Two hundred parties on one machine, each with a certificate of its own."""

import time
from dataclasses import replace

import pytest

from graft.engines.in_process import InProcess
from graft.engines.parties import Parties
from graft.engines.party import Party, Terms
from graft.engines.policy import Policy
from graft.engines.rehearsal import Rehearsal, rehearse
from graft.engines.wire import Patience
from graft.federation.session import Session
from graft.keys import make_ca, make_party_keys
from graft.methods.fedavg import FedAvg
from graft.testing.toy import toy_graphs
from tests.toy import gap, toy_setup

pytest.importorskip("zenoh")
from tests.engines.zenoh_world import World

PARTIES, ROUNDS = 200, 5
GENEROUS = 400.0  # seconds, on a machine that does much else


@pytest.mark.slow
def test_two_hundred_parties_connect_train_and_leave(tmp_path):
    names = tuple(f"party_{number}" for number in range(PARTIES))
    make_ca(tmp_path / "ca")
    for name in ("server", *names):
        make_party_keys(name, tmp_path / "ca", tmp_path / name)
    setup = replace(toy_setup(FedAvg(), graphs=toy_graphs(PARTIES)), minimum=1, names=names)
    shapes = setup.features, setup.classes
    forms = rehearse(Rehearsal(setup.method, setup.name, PARTIES, *shapes, ("gcn",), setup.width, rounds=setup.rounds))
    terms = Terms("server", "many", setup.rounds, forms)
    world, end = World(tmp_path), time.monotonic() + GENEROUS
    try:
        server = world.server(others=names)
        parties = []
        for number, name in enumerate(names):
            own = replace(setup.part([number]), kinds=(setup.models[number],))
            parties.append(Party(own, terms, Policy(minimum_count=0, scores="all")))
            world.node(name, parties[-1].handle)
        while len(server.present()) < PARTIES:
            assert time.monotonic() < end, f"{len(server.present())} of {PARTIES} have connected"
            time.sleep(0.05)
        graphless = replace(setup, on_demand=True)
        engine = Parties(graphless, server, names, Patience(GENEROUS), run="many", forms=forms)
        session, here = Session(graphless, engine), Session(setup, InProcess(setup))
        for number in range(1, ROUNDS + 1):
            assert not session.round(number).facts.absent
            here.round(number)
        engine.end()
        assert {party.state.committed for party in parties} == {ROUNDS}
        assert gap(session.server.state, here.server.state) < 1e-5
        assert gap(session.server.state, Session(setup, InProcess(setup)).server.state) > 1e-3  # it has learnt
    finally:
        world.close()
    assert not server.present()
