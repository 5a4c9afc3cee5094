"""A session: who takes part, what a round returns, and going on from a state."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from graft.engines.in_process import InProcess
from graft.errors import RunError
from graft.federation.clients import Traffic
from graft.federation.session import RoundFacts, RoundOutcome, Session
from graft.methods.dfed_sst import DFedSST
from graft.methods.fedavg import FedAvg
from graft.methods.fedgta import FedGTA
from graft.methods.local import Local
from graft.tensors.randomness import seed_for
from graft.tensors.trees import Tree
from graft.testing.toy import gap, same, toy_setup


def session_of(method, **settings):
    setup = toy_setup(method, **settings)
    return Session(setup, InProcess(setup))


def test_a_share_of_the_clients_is_drawn_anew_in_every_round():
    session = session_of(Local(), clients=10, participation=0.35)
    draws = [session.participants(number) for number in range(1, 30)]
    assert all(len(draw) == 3 and draw == sorted(set(draw)) for draw in draws)
    assert len({tuple(draw) for draw in draws}) > 10
    assert {client for draw in draws for client in draw} == set(range(10))
    assert draws == [session.participants(number) for number in range(1, 30)]
    other = session_of(Local(), clients=10, participation=0.35, seed=1)
    assert draws != [other.participants(number) for number in range(1, 30)]
    assert session_of(Local(), clients=10, participation=0.01).participants(1) != []
    assert session_of(Local(), clients=3).participants(5) == [0, 1, 2]


class Registered:
    """An engine that has a million clients and does nothing."""

    def members(self):
        return range(1_000_000)


def test_a_few_of_a_million_are_drawn_without_a_list_of_all():
    setup = replace(toy_setup(Local()), participation=1e-5)
    session = Session(setup, Registered())
    tracemalloc.start()
    drawn = session.participants(3)
    few = tracemalloc.get_traced_memory()[1]
    list(session.engine.members())
    many = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    random = np.random.default_rng(seed_for(0, 3, "participants"))
    assert drawn == sorted(random.choice(1_000_000, 10, replace=False).tolist())
    assert all(type(client) is int for client in drawn)
    assert few < 100_000
    assert many > 10_000_000


def test_a_round_returns_losses_scores_traffic_and_who_took_part():
    session = session_of(FedAvg(), clients=4, participation=0.5)
    outcome = session.round(1)
    assert outcome.facts.participants == session.participants(1)
    assert outcome.losses.owners == [("train", client) for client in outcome.facts.participants]
    assert set(outcome.tensors.correct) == {"own", "global"}
    assert outcome.tensors.correct.own.shape == (4, 1, 3)
    assert outcome.facts.traffic.up > outcome.facts.traffic.down > 0
    assert not session.round(2, evaluate=False).tensors.correct


def test_models_that_the_server_makes_for_each_client_are_what_is_scored():
    session = session_of(FedGTA(), clients=3)
    for number in (1, 2, 3):
        scored = session.round(number).tensors.correct.own
    (fleet,) = session.engine.fleets
    assert torch.equal(scored, fleet.correct(session.server.state.models))
    assert gap(fleet.state.model, session.server.state.models) > 1e-3  # clients still hold what they trained


def test_peers_are_scored_before_and_after_they_mix():
    correct = session_of(DFedSST(), clients=4).round(1).tensors.correct
    assert set(correct) == {"own", "trained"}


def test_details_keep_their_names_however_they_come_back_from_a_device():
    """One copy of many tensors comes back as a tree, where a slash is a branch."""
    value = torch.tensor([1.0])
    facts = RoundFacts([0], Traffic(), {}, [], {"choose/wlsd": value, "mean": 2.0})
    for details in (Tree({"choose/wlsd": value}), Tree(choose=Tree(wlsd=value))):
        outcome = RoundOutcome(Tree(losses=torch.empty(0), details=details, correct=Tree()), facts)
        assert outcome.details == {"choose/wlsd": value, "mean": 2.0}


def test_a_session_goes_on_from_a_state_of_before():
    unbroken, first, second = (session_of(FedAvg(), dropout=0.5) for _ in range(3))
    for number in (1, 2, 3):
        unbroken.round(number)
    first.round(1)
    second.restore(first.state())
    for number in (2, 3):
        second.round(number)
    assert same(unbroken.server.state, second.server.state)
    forgetful = session_of(FedAvg(), dropout=0.5)
    for number in (2, 3):
        forgetful.round(number)
    assert not same(unbroken.server.state, forgetful.server.state)


def test_a_loss_that_is_no_number_ends_the_run_with_a_sentence():
    setup = toy_setup(FedAvg(), learning_rate=1e30)
    session = Session(setup, InProcess(setup))
    with pytest.raises(RunError, match=r"The loss of client 0 is no longer a finite number in step 'train' of fedavg"):
        [session.round(number) for number in range(1, 5)]
