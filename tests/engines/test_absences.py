"""Clients that are lost in the middle of a round: the round is what it would have been without them."""

import os
import signal
from dataclasses import replace

import pytest

from graft.engines.loopback import Loopback
from graft.engines.wire import Patience
from graft.federation.clients import ClientsAbsent
from graft.federation.session import Session
from graft.methods import METHODS
from graft.methods.fedavg import FedAvg
from graft.methods.fedomd import FedOMD
from tests.contract import contract_method, usual_model
from tests.test_every_method import SETTINGS
from tests.toy import gap, toy_setup

LOST = 1  # the client that is
ALONE = {"centralised"}  # has one client, in which all data is


class Losing(Loopback):
    """An engine that loses a client at one of the exchanges of a round, once what all answered has arrived."""

    def __init__(self, setup, round, exchange):
        super().__init__(setup)
        self.when, self.count = (round, exchange), 0

    def screen(self, request, replies):
        if request.round == self.when[0] and LOST in replies:
            self.count += 1
            if self.count == self.when[1]:
                return {LOST: "is lost"}
        return {}


class Without(Session):
    """A session whose round has one participant less."""

    def __init__(self, setup, engine, round):
        super().__init__(setup, engine)
        self.round_without = round

    def participants(self, round):
        drawn = super().participants(round)
        return [client for client in drawn if round != self.round_without or client != LOST]


def played(session, rounds=3):
    """Rounds of a session without scores; returns what server and clients keep, and who was absent when."""
    absent = []
    try:
        for number in range(1, rounds + 1):
            absent.append(dict(session.round(number, evaluate=False).facts.absent))
        return session.server.state, session.engine.state(), absent
    finally:
        session.close()


def federation(method, **settings):
    models = "gcn,gat,sage" if method.heterogeneous else usual_model(method)
    return replace(toy_setup(method, clients=3, models=models, dropout=0.5, **settings), minimum=1)


@pytest.mark.parametrize("name", sorted(set(METHODS) - ALONE))
def test_a_round_that_loses_a_client_equals_one_in_which_it_never_took_part(name):
    method = SETTINGS.get(name) or contract_method(name)
    setup = federation(method)
    lost = Session(setup, Losing(setup, round=2, exchange=2))
    server, clients, absent = played(lost)
    if not absent[1]:  # a round of this method has one exchange
        lost = Session(setup, Losing(setup, round=2, exchange=1))
        server, clients, absent = played(lost)
    if not absent[1]:
        pytest.skip("nobody is asked anything in the second round")
    assert absent == [{}, {LOST: "is lost"}, {}]
    expected_server, expected_clients, _ = played(Without(setup, Loopback(setup), round=2))
    assert gap(server, expected_server) < 1e-6
    for client, state in clients.items():
        assert gap(state, expected_clients[client]) < 1e-6


def test_taking_part_would_be_noticed():
    setup = federation(FedOMD())
    server, _, _ = played(Session(setup, Loopback(setup)))
    without, _, _ = played(Without(setup, Loopback(setup), round=2))
    assert gap(server, without) > 1e-4


def test_a_killed_and_a_frozen_client_are_absent_and_the_others_go_on():
    setup = federation(FedAvg())
    engine = Loopback(setup, Patience(seconds=20))
    session = Session(setup, engine)
    try:
        assert not session.round(1).facts.absent
        engine.pipes.workers[0].kill()
        engine.pipes.workers[0].join()
        outcome = session.round(2)
        assert outcome.facts.absent == {0: "has ended: its process is gone"}
        assert outcome.facts.scored == [1, 2]
        os.kill(engine.pipes.workers[1].pid, signal.SIGSTOP)
        engine.patience = Patience(seconds=1)
        assert session.round(3).facts.absent[1] == "did not answer within 1 s"
        os.kill(engine.pipes.workers[1].pid, signal.SIGCONT)
        engine.patience = Patience(seconds=20)
        outcome = session.round(4)
        assert (outcome.facts.participants, outcome.facts.scored) == ([1, 2], [1, 2])
    finally:
        session.close()
    assert not any(worker.is_alive() for worker in engine.pipes.workers)


def test_too_few_clients_end_the_round_with_a_sentence():
    setup = replace(federation(FedAvg()), minimum=3)
    engine = Loopback(setup)
    try:
        engine.pipes.workers[2].kill()
        engine.pipes.workers[2].join()
        with pytest.raises(ClientsAbsent, match=r"Not all answered step 'train' of fedavg, round 1: 2 has ended"):
            Session(setup, engine).round(1)
    finally:
        engine.close()
