"""Federations of real processes, some of which are killed or frozen: each ends as it should, and leaves nothing."""

import os
import time

import pytest

from tests.federation_kills import (
    Unbroken,
    freeze_parties,
    freeze_peers,
    kill_at_the_end,
    kill_for_good,
    kill_parties,
    kill_peers,
    kill_servers,
)
from tests.federation_processes import PARTIES, SERVER, Federation, absences, differences, essence, running

pytest.importorskip("zenoh")
pytest.importorskip("cryptography")
pytestmark = pytest.mark.slow

ROUNDS = 8


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return Unbroken(tmp_path_factory.mktemp("unbroken"))


def in_the_middle(federation, witness, rounds=3):
    federation.wait_for(lambda: federation.rounds(witness) >= rounds, "the middle")


@pytest.mark.parametrize(("method", "victim"), [("fedgkc", "b"), ("fedgkc", SERVER), ("dfed_sst", "b")])
def test_one_that_is_killed_and_started_again_changes_nothing(tmp_path, unbroken, method, victim):
    expected = unbroken(method, ROUNDS)
    with running(tmp_path / "killed", method, ROUNDS) as federation:
        in_the_middle(federation, "a")
        federation.kill(victim)
        federation.start(victim)
        federation.wait()
        assert differences(expected, essence(federation)) == []


def test_one_that_is_away_for_good_is_absent_on_record_and_ends_elsewhere(tmp_path, unbroken):
    with running(tmp_path / "away", "fedgkc", ROUNDS, comeback=0) as federation:
        in_the_middle(federation, SERVER)
        federation.kill("b")
        del federation.processes["b"]
        federation.wait()
        federation.everybody.remove("b")
        missed = absences(federation)
        assert missed["a"] == missed["c"] == []
        [stretch] = missed["b"]
        assert stretch[-1] == ROUNDS
        expected = {name: ended for name, ended in unbroken("fedgkc", ROUNDS).items() if name != "b"}
        assert len(differences(expected, essence(federation))) > 3


@pytest.mark.parametrize("method", ["fedgkc", "dfed_sst"])
def test_one_that_is_frozen_is_absent_for_a_while_and_back_in_the_end(tmp_path, method):
    with running(tmp_path / "frozen", method, 20, timeout=1.0, comeback=0) as federation:
        witness = federation.everybody[0]
        in_the_middle(federation, witness)
        federation.freeze("c", 2.5)
        federation.wait()
        missed = absences(federation, witness)
        assert all(not stretches for party, stretches in missed.items() if party != "c")
        assert len(missed["c"]) == 1
        assert missed["c"][0][-1] < 20


def test_nothing_is_left_running_even_of_a_federation_that_does_not_end(tmp_path):
    with running(tmp_path / "open", "fedgkc", 1000) as federation:
        in_the_middle(federation, SERVER, 1)
        pids = [process.pid for process in federation.processes.values()]
        assert len(pids) == 1 + len(PARTIES)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)


def test_a_federation_that_hangs_is_told_with_its_logs(tmp_path):
    federation = Federation(tmp_path / "alone", "fedgkc", ROUNDS)
    try:
        federation.deadline = time.monotonic() + 5
        federation.start("a")  # and no server
        with pytest.raises(AssertionError, match="the end did not happen in time"):
            federation.wait()
    finally:
        federation.close()


@pytest.mark.parametrize("campaign", [kill_parties, kill_servers, kill_peers, kill_at_the_end])
def test_those_that_are_killed_at_random_moments_and_come_back_change_nothing(tmp_path, campaign):
    tally = campaign(tmp_path)
    assert tally["equal"] > 0
    assert not [outcome for outcome in tally if outcome.startswith("different")], tally


@pytest.mark.parametrize("campaign", [kill_for_good, freeze_parties, freeze_peers])
def test_those_that_nobody_waits_for_are_absent_for_a_while_and_come_back(tmp_path, campaign):
    tally = campaign(tmp_path)
    assert tally["absent and back"] > 0
    assert {outcome for outcome in tally if "absent" in outcome} == {"absent and back"}, tally
